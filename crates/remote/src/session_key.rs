//! What names the session of a process here with its I/O process there: a later ssh proves with it
//! that it belongs to the session. It travels inside ssh, and over a socket between processes of
//! one user, and never stands in arguments or in the environment.

use crate::data_proof::DataSecret;
use serde::{Deserialize, Serialize};
use std::io;
use tatami_net::make_random_secret;

/// The version of the messages between a process here and its I/O process there.
pub const REMOTE_PROTOCOL: u32 = 3;

/// The number and the secret of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteSessionKey {
    number: u64,
    secret: DataSecret,
}

impl SiteSessionKey {
    /// Makes a new key.
    ///
    /// # Errors
    /// The system has no random bytes yet.
    pub fn make() -> io::Result<SiteSessionKey> {
        let [a, b, c, d, e, f, g, h, ..] = make_random_secret()?;
        let number = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        Ok(SiteSessionKey { number, secret: DataSecret::make()? })
    }

    /// Returns the name of the socket on which the I/O process awaits a later ssh.
    pub fn socket_name(&self) -> String {
        format!("tatami-session-{:016x}", self.number)
    }
}

/// Most bytes of encoded [`HandoverWords`].
pub const HANDOVER_MAX: usize = 512;

/// What the process of a later ssh says to the I/O process of the session, with its streams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoverWords {
    /// [`REMOTE_PROTOCOL`] of the later ssh.
    protocol: u32,
    /// The key that the other side has sent.
    pub key: SiteSessionKey,
    /// Replies that the other side has received.
    pub received: u64,
    /// The number of the attempt. One that comes late, behind a later one, is refused.
    pub attempt: u64,
    /// `SSH_CONNECTION` of the later ssh, or an empty text.
    pub connection: String,
}

impl HandoverWords {
    /// Returns the words for a session.
    pub fn new(
        key: SiteSessionKey,
        received: u64,
        attempt: u64,
        connection: String,
    ) -> HandoverWords {
        HandoverWords { protocol: REMOTE_PROTOCOL, key, received, attempt, connection }
    }

    /// Returns the words as bytes.
    pub fn encode(&self) -> Vec<u8> {
        // Plain data: encoding into memory cannot fail.
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// Returns the words in these bytes; `None` if they are none, or those of another version.
    pub fn parse(bytes: &[u8]) -> Option<HandoverWords> {
        let (words, rest) = postcard::take_from_bytes::<HandoverWords>(bytes).ok()?;
        (rest.is_empty() && words.protocol == REMOTE_PROTOCOL && bytes.len() <= HANDOVER_MAX)
            .then_some(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_were_written_and_no_others() {
        let key = SiteSessionKey::make().expect("random bytes");
        let words = HandoverWords::new(key.clone(), 7, 1, "10.0.0.1 5 10.0.0.2 22".to_owned());
        let bytes = words.encode();
        assert_eq!(HandoverWords::parse(&bytes), Some(words.clone()));
        for len in 0..bytes.len() {
            assert_eq!(HandoverWords::parse(&bytes[..len]), None);
        }
        assert_eq!(HandoverWords::parse(&[&bytes[..], &[0]].concat()), None);
        let other = HandoverWords { protocol: REMOTE_PROTOCOL + 1, ..words };
        assert_eq!(HandoverWords::parse(&other.encode()), None);
        assert_ne!(SiteSessionKey::make().expect("random bytes"), key);
        assert!(format!("{key:?}").contains("DataSecret(secret)"), "no secret in logs");
    }
}
