//! The intervals at which executors repeat their messages.

/// A message without an answer is sent again after this many ms.
pub(crate) const RESEND_MS: u64 = 50;

/// An attempt holds locks for at most this long (in ms) while a participant does not answer.
pub(crate) const ATTEMPT_MS: u64 = 500;

/// A request that waits for a lock asks the lock's coordinator after this many ms: nearly all locks
/// are released earlier. Unless an executor has died or a message is lost, all waits end without
/// that, since a transaction that holds locks waits for younger ones only.
pub(crate) const ASK_SOON: u64 = 3;

/// And again after this many ms.
pub(crate) const ASK_AGAIN: u64 = 20;
/// An acknowledgement waits at most this long (in ms) for others: less than until the coordinator
/// asks again.
pub(crate) const ACK_DELAY_MS: u64 = 20;
