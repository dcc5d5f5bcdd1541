//! The proof that both ends of a data connection have the secret of its offer. The secret itself
//! never passes over the connection.
//!
//! ```text
//! caller ─▶ "tATAMI2D", nonce of the caller (32 bytes)
//! server ─▶ nonce of the server (32 bytes), MAC("server", both nonces) (16 bytes)
//! caller ─▶ MAC("caller", both nonces) (16 bytes)
//! server ─▶ one byte: 1, the connection is the one of the offer
//! ```

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, Read, Write};
use tatami_net::make_random_secret;
use tatami_wire::VolumeKey;

/// The first bytes of a data connection.
const MAGIC: &[u8; 8] = b"tATAMI2D";
/// Bytes of a nonce.
const NONCE: usize = 32;
/// Bytes of a MAC.
const MAC: usize = 16;
/// What the server says to a connection that it takes.
const TAKEN: u8 = 1;

/// The secret of one offer, 32 random bytes. It is never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataSecret([u8; 32]);

impl DataSecret {
    /// Makes a new secret.
    ///
    /// # Errors
    /// The system has no random bytes yet.
    pub fn make() -> io::Result<DataSecret> {
        make_random_secret().map(DataSecret)
    }

    fn key(&self) -> VolumeKey {
        VolumeKey::new(self.0)
    }
}

impl fmt::Debug for DataSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataSecret(secret)")
    }
}

/// Why an end of a connection is not the one of the offer.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    /// The connection failed, or was too slow.
    #[error("the data connection: {0}")]
    Io(#[from] io::Error),
    /// The other end is no part of Tatami.
    #[error("the other end of the data connection is another program")]
    Stranger,
    /// It does not have the secret.
    #[error("the other end of the data connection does not have its secret")]
    Wrong,
    /// The offer was taken by another connection, or has ended.
    #[error("the offer of the data connection has ended")]
    Ended,
}

/// Proves the secret as the side that connected, and checks the other side.
///
/// # Errors
/// [`ProofError`].
pub fn prove_as_caller(
    stream: &mut (impl Read + Write),
    secret: &DataSecret,
) -> Result<(), ProofError> {
    let mut nonces = [0; 2 * NONCE];
    nonces[..NONCE].copy_from_slice(&make_random_secret()?);
    let mut first = MAGIC.to_vec();
    first.extend_from_slice(&nonces[..NONCE]);
    stream.write_all(&first)?;
    stream.flush()?;
    stream.read_exact(&mut nonces[NONCE..])?;
    let mut mac = [0; MAC];
    stream.read_exact(&mut mac)?;
    if !secret.key().verify_mac("data server", &nonces, &mac) {
        return Err(ProofError::Wrong);
    }
    stream.write_all(&secret.key().compute_mac("data caller", &nonces))?;
    stream.flush()?;
    let mut said = [0; 1];
    match stream.read_exact(&mut said) {
        Ok(()) if said[0] == TAKEN => Ok(()),
        Ok(()) => Err(ProofError::Ended),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Err(ProofError::Ended),
        Err(e) => Err(e.into()),
    }
}

/// Checks the side that connected, and proves the secret to it. `take` then decides whether this
/// connection is taken: an offer is for one.
///
/// # Errors
/// [`ProofError`].
pub fn prove_as_server(
    stream: &mut (impl Read + Write),
    secret: &DataSecret,
    take: impl FnOnce() -> bool,
) -> Result<(), ProofError> {
    let mut magic = [0; MAGIC.len()];
    stream.read_exact(&mut magic)?;
    if magic != *MAGIC {
        return Err(ProofError::Stranger);
    }
    let mut nonces = [0; 2 * NONCE];
    stream.read_exact(&mut nonces[..NONCE])?;
    nonces[NONCE..].copy_from_slice(&make_random_secret()?);
    let mut answer = nonces[NONCE..].to_vec();
    answer.extend_from_slice(&secret.key().compute_mac("data server", &nonces));
    stream.write_all(&answer)?;
    stream.flush()?;
    let mut mac = [0; MAC];
    stream.read_exact(&mut mac)?;
    if !secret.key().verify_mac("data caller", &nonces, &mac) {
        return Err(ProofError::Wrong);
    }
    if !take() {
        return Err(ProofError::Ended);
    }
    stream.write_all(&[TAKEN])?;
    stream.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::thread;

    /// Runs both sides; returns what each of them found.
    fn run_proof(
        ours: &DataSecret,
        theirs: &DataSecret,
        takes: bool,
    ) -> (Result<(), ProofError>, Result<(), ProofError>) {
        let (mut near, mut far) = UnixStream::pair().expect("a pair");
        let theirs = theirs.clone();
        let server = thread::spawn(move || prove_as_server(&mut far, &theirs, || takes));
        let caller = prove_as_caller(&mut near, ours);
        drop(near);
        (caller, server.join().expect("no panic"))
    }

    #[test]
    fn both_sides_need_the_same_secret() {
        let secret = DataSecret::make().expect("random bytes");
        let other = DataSecret::make().expect("random bytes");
        assert!(matches!(run_proof(&secret, &secret, true), (Ok(()), Ok(()))));
        let (caller, server) = run_proof(&secret, &other, true);
        assert!(matches!(caller, Err(ProofError::Wrong)) && server.is_err());
        let (caller, server) = run_proof(&secret, &secret, false);
        assert!(matches!((caller, server), (Err(ProofError::Ended), Err(ProofError::Ended))));
        assert_eq!(format!("{secret:?}"), "DataSecret(secret)");
    }

    #[test]
    fn a_caller_without_the_secret_is_refused() {
        let secret = DataSecret::make().expect("random bytes");
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], MAGIC, &[MAGIC.as_slice(), &[7; 48]].concat()]
        {
            let (mut near, mut far) = UnixStream::pair().expect("a pair");
            near.write_all(bytes).expect("a small message");
            near.shutdown(std::net::Shutdown::Write).expect("it is connected");
            assert!(prove_as_server(&mut far, &secret, || true).is_err(), "{bytes:?}");
        }
    }
}
