//! Random ids of clients and nonces of handshakes.

use std::io;

/// Returns 16 fresh random bytes, for an id or a nonce.
///
/// # Errors
/// The system has no random bytes yet.
pub fn make_random_id() -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(io::Error::other)?;
    Ok(id)
}

/// Returns 32 fresh random bytes, for a secret that two processes share.
///
/// # Errors
/// The system has no random bytes yet.
pub fn make_random_secret() -> io::Result<[u8; 32]> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(io::Error::other)?;
    Ok(secret)
}
