//! The versions of the protocol that this program speaks, so that daemons of two releases can be
//! replaced one by one.
//!
//! A message of a version never changes: `tests/messages.rs` compares all of them with the recorded
//! ones. A later version has more messages, which follow the earlier ones in their types. A side
//! sends only messages of the version on which both sides agreed in the handshake.

use crate::PROTOCOL_VERSION;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

/// The oldest version that this program speaks.
pub const OLDEST_PROTOCOL: u32 = 3;
/// The first version whose servers agree on a lower version. A server of an earlier one refuses a
/// client of any other version and states its own.
pub(crate) const FIRST_AGREEING: u32 = 4;

/// The versions of the protocol that a side speaks: all from the oldest to the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolRange {
    oldest: u32,
    newest: u32,
}

/// The limit of this process.
static NEWEST: AtomicU32 = AtomicU32::new(PROTOCOL_VERSION);

/// Limits this process to versions up to `newest`, for all later handshakes. An administrator who
/// tries a release thus keeps the way back to the one before it.
///
/// # Errors
/// The range of this program, if it does not have that version.
pub fn limit_protocol(newest: u32) -> Result<(), ProtocolRange> {
    let known = ProtocolRange { oldest: OLDEST_PROTOCOL, newest: PROTOCOL_VERSION };
    if !known.includes(newest) {
        return Err(known);
    }
    NEWEST.store(newest, Ordering::Relaxed);
    Ok(())
}

impl ProtocolRange {
    /// Returns the versions that this process speaks.
    pub fn of_process() -> ProtocolRange {
        ProtocolRange { oldest: OLDEST_PROTOCOL, newest: NEWEST.load(Ordering::Relaxed) }
    }

    /// Returns the newest version.
    pub fn newest(self) -> u32 {
        self.newest
    }

    /// Returns the same range up to `newest`.
    #[must_use]
    pub fn up_to(self, newest: u32) -> ProtocolRange {
        ProtocolRange { newest: self.newest.min(newest), ..self }
    }

    /// Checks whether the side speaks a version.
    pub fn includes(self, version: u32) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }

    /// Returns the version for a peer whose newest one is `theirs`; `None` if that is too old.
    pub(crate) fn agree_with(self, theirs: u32) -> Option<u32> {
        let version = self.newest.min(theirs);
        self.includes(version).then_some(version)
    }
}

impl fmt::Display for ProtocolRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.oldest < self.newest {
            true => write!(f, "{} to {}", self.oldest, self.newest),
            false => write!(f, "{}", self.newest),
        }
    }
}
