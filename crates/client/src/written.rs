//! Files that other clients are writing: the state of their objects.
//!
//! The shard learns of new bytes when a writer syncs or closes. The attributes say so when another
//! client may be writing the file. Then a client that needs the size asks the node that has the
//! bytes.

use crate::Client;
use crate::peer::Retry;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tatami_wire::frame::Class;
use tatami_wire::meta::DataState;
use tatami_wire::object::{ObjectCall, ObjectOp, ObjectReply, ObjectResult, ObjectState};
use tatami_wire::{Access, Attr, Cap, Cred, Errno, NodeId, Timestamp};

/// A node that did not answer is not asked again for this long. Meanwhile the last state that the
/// shard knows counts, and the node's space does not.
const AWAY: Duration = Duration::from_secs(5);

/// Nodes that did not answer, and when.
#[derive(Default)]
pub(crate) struct Away(Mutex<HashMap<NodeId, Instant>>);

impl Away {
    pub(crate) fn is_away(&self, node: NodeId) -> bool {
        self.0.lock().get(&node).is_some_and(|since| since.elapsed() < AWAY)
    }

    pub(crate) fn note(&self, node: NodeId) {
        self.0.lock().insert(node, Instant::now());
    }
}

impl Client {
    /// Returns the attributes of a file that other clients write, with the present state of its
    /// bytes as far as they have reached their node. The attributes stay as they are if that node
    /// does not answer, for a tiled file (its size is the one that was published last), and for any
    /// other file.
    pub fn with_bytes(&self, attr: Attr) -> Attr {
        if !attr.written_elsewhere || attr.layout.is_tiled() {
            return attr;
        }
        let Ok((attr, cap)) = self.open(&Cred::ROOT, attr.ino, Access::NONE) else { return attr };
        match self.object_state(&attr, cap) {
            Ok(now) => as_written(attr, &now),
            Err(error) => {
                tracing::debug!(ino = %attr.ino, %error, "how long it is now is not known");
                attr
            }
        }
    }

    /// Returns the time of the last change of the object of a file that other clients write, if
    /// there is an object and its node answers. A time that a user sets overrides the writes before
    /// it.
    pub fn object_changed(&self, attr: &Attr) -> Option<Timestamp> {
        if !attr.written_elsewhere {
            return None;
        }
        let (attr, cap) = self.open(&Cred::ROOT, attr.ino, Access::NONE).ok()?;
        let now = self.object_state(&attr, cap).ok()?;
        now.exists.then_some(now.changed)
    }

    /// Asks for the state once, and a second time when the first connection was to a daemon that is
    /// gone.
    fn object_state(&self, attr: &Attr, cap: Cap) -> Result<ObjectState, Errno> {
        let node = attr.layout.node();
        if attr.layout.is_tiled() || self.away.is_away(node) {
            return Err(Errno::EHOSTDOWN);
        }
        let peer = self.peer(node)?;
        let call = ObjectCall { cap, piece: attr.layout.base(), op: ObjectOp::Stat };
        let retry = Retry::new(peer.patience());
        for _ in 0..2 {
            let Ok(mut connection) = peer.take_data(retry.time_left()) else { break };
            let Ok(reply) = connection.call::<_, ObjectResult>(Class::Object, 0, &call) else {
                continue;
            };
            peer.return_data(connection);
            retry.end();
            return match reply? {
                ObjectReply::State(state) => Ok(state),
                _ => Err(Errno::EPROTO),
            };
        }
        self.away.note(node);
        Err(Errno::EHOSTDOWN)
    }
}

/// Returns the attributes of a file that other clients write, with the state of its object: as the
/// shard will return them after the writer's report.
pub fn as_written(mut attr: Attr, now: &ObjectState) -> Attr {
    if now.exists {
        attr.take_bytes(&DataState::from(*now));
    }
    attr
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::{Ino, Kind};

    fn attr(size: u64, mtime: i64, ctime: i64) -> Attr {
        let (mtime, ctime) = (Timestamp::from_sec(mtime), Timestamp::from_sec(ctime));
        Attr {
            size,
            blocks: size.div_ceil(512),
            mtime,
            ctime,
            written_elsewhere: true,
            ..Attr::plain(Ino(7), Kind::File)
        }
    }

    fn state(size: u64, mtime: i64) -> ObjectState {
        let mtime = Timestamp::from_sec(mtime);
        let blocks = size.div_ceil(512);
        ObjectState { exists: true, size, blocks, mtime, changed: mtime, ..ObjectState::default() }
    }

    fn told(attr: Attr, state: &ObjectState) -> (u64, i64, i64) {
        let now = as_written(attr, state);
        (now.size, now.mtime.sec, now.ctime.sec)
    }

    #[test]
    fn what_was_written_since_is_told_and_times_that_were_set_stay() {
        // The shard knows of a change of the object at 10.
        let known = |mtime, ctime| Attr {
            object_changed: Timestamp::from_sec(10),
            ..attr(5, mtime, ctime)
        };
        assert_eq!(told(known(10, 10), &state(9, 20)), (9, 20, 20));
        assert_eq!(told(known(10, 10), &state(5, 20)), (5, 20, 20), "written in place");
        assert_eq!(told(known(10, 10), &state(3, 20)), (3, 20, 20), "cut");
        assert_eq!(told(known(10, 10), &state(5, 10)), (5, 10, 10), "known");
        assert_eq!(told(known(1, 30), &state(5, 10)), (5, 1, 30), "set by a user, later");
        assert_eq!(told(known(1, 30), &state(9, 10)), (9, 1, 30));
        assert_eq!(told(known(10, 30), &state(5, 20)), (5, 20, 30), "another mode, later");
        assert_eq!(told(known(90, 30), &state(5, 40)), (5, 40, 40), "set to lie in the future");
        assert_eq!(told(attr(0, 10, 10), &state(0, 5)), (0, 10, 10), "a file that was lent");
        assert_eq!(told(known(10, 10), &ObjectState::default()), (5, 10, 10));
        let set_on_its_mount = ObjectState { mtime: Timestamp::from_sec(90), ..state(5, 20) };
        assert_eq!(told(known(70, 30), &set_on_its_mount), (5, 70, 30), "and then on another");
    }

    #[test]
    fn no_time_goes_back_where_the_clock_of_the_disk_is_behind() {
        let now = as_written(attr(0, 100, 100), &state(5, 40));
        assert!(now.mtime > Timestamp::from_sec(100) && now.ctime >= now.mtime, "{now:?}");
        assert_eq!(as_written(now.clone(), &state(5, 40)), now, "one change, one time");
    }

    #[test]
    fn a_node_that_is_away_is_not_asked_for_a_while() {
        let away = Away::default();
        assert!(!away.is_away(NodeId(1)));
        away.note(NodeId(1));
        assert!(away.is_away(NodeId(1)) && !away.is_away(NodeId(2)));
    }
}
