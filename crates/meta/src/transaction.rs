//! Operations that touch records of several executors: two-phase commit among executors.
//!
//! The rules of the namespace run in a [`Txn`](crate::txn::Txn), as for a local operation. Where a
//! run needs a record of another executor that it does not know yet, the run ends with
//! [`OperationFailure::Missing`](crate::error::Failure). The coordinator asks for the record, and
//! runs the operation again from its start.
//!
//! **An operation that changes something** takes *locks* at first contact (strict two-phase
//! locking), so that the fetched values stay true. Deadlocks are prevented by age (wound-wait and
//! wait-die, Rosenkrantz 1978): the oldest operation always makes progress. When nothing is missing
//! any more, the coordinator writes four things in one batch of its write-ahead log: its own
//! changes, the answer, the decision, and the writes of the participants. Before that batch nothing
//! has happened; after it, all of it has. The coordinator does not lock its own records, since the
//! last run sees their current values. ([`locking`])
//!
//! **An operation that only reads** locks nothing at first (optimistic concurrency control). It is
//! answered if all values that it read were true at one moment. That holds if they came from one
//! executor and nothing here has changed meanwhile, or if a second read gives the same values:
//! inodes have versions, so equal values at two moments mean no change between them. If something
//! changes at every attempt, the operation takes locks, too.
//!
//! **A split** is not urgent and writes many records. It reads optimistically. Then the
//! participants *prepare* its writes: each of them compares the values that the split has read with
//! the current ones. The split is run once more, and decided if it comes to the same result.
//! ([`preparing`])
//!
//! No operation waits for a client. It waits for another executor only where every operation would
//! wait for that executor's shards. A transaction that meets a lock asks the lock's coordinator
//! after a while; that coordinator aborts its operation for an older one. A coordinator that does
//! not know a transaction has not committed it and never will (presumed abort). A coordinator that
//! cannot reach a participant releases the locks after a while, and retries later.

pub(crate) mod acks;
pub(crate) mod coordinator;
pub(crate) mod intervals;
pub(crate) mod lock_set;
pub(crate) mod locking;
pub(crate) mod locks;
pub(crate) mod messages;
pub(crate) mod participant;
pub(crate) mod participations;
pub(crate) mod peer_value;
pub(crate) mod pending;
pub(crate) mod prepare;
pub(crate) mod prepare_attempt;
pub(crate) mod record;
pub(crate) mod split_plan;
pub(crate) mod splits;
pub(crate) mod tables;
