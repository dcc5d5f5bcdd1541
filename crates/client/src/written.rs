//! Files that other clients are writing: the state of their objects.
//!
//! The shard learns of new bytes when a writer syncs or closes. The attributes say so when another
//! client may be writing the file. Then a client that needs the size asks the node that has the
//! bytes.

use crate::Client;
use crate::retry::Retry;
use tatami_wire::frame::FrameClass;
use tatami_wire::meta::DataState;
use tatami_wire::object::{ObjectCall, ObjectOp, ObjectReply, ObjectResult, ObjectState};
use tatami_wire::{Access, Attr, Cap, Cred, Errno, Timestamp};

impl Client {
    /// Returns the attributes of a file that other clients write, with the present state of its
    /// bytes as far as they have reached their node. The attributes stay as they are if that node
    /// does not answer, for a tiled file (its size is the one that was published last), and for any
    /// other file.
    pub fn refresh_written_attr(&self, attr: Attr) -> Attr {
        if !attr.maybe_written_elsewhere || attr.layout.is_tiled() {
            return attr;
        }
        let Ok((attr, cap)) = self.open(&Cred::ROOT, attr.ino, Access::NONE) else { return attr };
        match self.fetch_object_state(&attr, cap) {
            Ok(now) => merge_object_state(attr, &now),
            Err(error) => {
                tracing::debug!(ino = %attr.ino, %error, "how long it is now is not known");
                attr
            }
        }
    }

    /// Returns the time of the last change of the object of a file that other clients write, if
    /// there is an object and its node answers. A time that a user sets overrides the writes before
    /// it.
    pub fn fetch_change_time(&self, attr: &Attr) -> Option<Timestamp> {
        if !attr.maybe_written_elsewhere {
            return None;
        }
        let (attr, cap) = self.open(&Cred::ROOT, attr.ino, Access::NONE).ok()?;
        let now = self.fetch_object_state(&attr, cap).ok()?;
        now.exists.then_some(now.changed)
    }

    /// Asks for the state once, and a second time when the first connection was to a daemon that is
    /// gone.
    fn fetch_object_state(&self, attr: &Attr, cap: Cap) -> Result<ObjectState, Errno> {
        let node = attr.layout.node();
        if attr.layout.is_tiled() || self.away_nodes.is_away(node) {
            return Err(Errno::EHOSTDOWN);
        }
        let peer = self.node_client(node)?;
        let call = ObjectCall { cap, piece: attr.layout.base(), op: ObjectOp::Stat };
        let retry = Retry::new(peer.timeout());
        for _ in 0..2 {
            let Ok(mut connection) = peer.take_data_connection(retry.time_left()) else { break };
            let Ok(reply) = connection.call::<_, ObjectResult>(FrameClass::Object, 0, &call) else {
                continue;
            };
            peer.return_data_connection(connection);
            retry.record_answer();
            return match reply? {
                ObjectReply::State(state) => Ok(state),
                _ => Err(Errno::EPROTO),
            };
        }
        self.away_nodes.record_away(node);
        peer.record_timeout();
        Err(Errno::EHOSTDOWN)
    }
}

/// Returns the attributes of a file that other clients write, with the state of its object: as the
/// shard will return them after the writer's report.
pub fn merge_object_state(mut attr: Attr, now: &ObjectState) -> Attr {
    if now.exists {
        attr.apply_object_state(&DataState::from(*now));
    }
    attr
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::{Ino, InodeKind};

    fn attr(size: u64, mtime: i64, ctime: i64) -> Attr {
        let (mtime, ctime) = (Timestamp::from_sec(mtime), Timestamp::from_sec(ctime));
        Attr {
            size,
            blocks: size.div_ceil(512),
            mtime,
            ctime,
            maybe_written_elsewhere: true,
            ..Attr::with_defaults(Ino(7), InodeKind::File)
        }
    }

    fn state(size: u64, mtime: i64) -> ObjectState {
        let mtime = Timestamp::from_sec(mtime);
        let blocks = size.div_ceil(512);
        ObjectState { exists: true, size, blocks, mtime, changed: mtime, ..ObjectState::default() }
    }

    fn merged_times(attr: Attr, state: &ObjectState) -> (u64, i64, i64) {
        let now = merge_object_state(attr, state);
        (now.size, now.mtime.sec, now.ctime.sec)
    }

    #[test]
    fn what_was_written_since_is_told_and_times_that_were_set_stay() {
        // The shard knows of a change of the object at 10.
        let known = |mtime, ctime| Attr {
            object_changed: Timestamp::from_sec(10),
            ..attr(5, mtime, ctime)
        };
        assert_eq!(merged_times(known(10, 10), &state(9, 20)), (9, 20, 20));
        assert_eq!(merged_times(known(10, 10), &state(5, 20)), (5, 20, 20), "written in place");
        assert_eq!(merged_times(known(10, 10), &state(3, 20)), (3, 20, 20), "cut");
        assert_eq!(merged_times(known(10, 10), &state(5, 10)), (5, 10, 10), "known");
        assert_eq!(merged_times(known(1, 30), &state(5, 10)), (5, 1, 30), "set by a user, later");
        assert_eq!(merged_times(known(1, 30), &state(9, 10)), (9, 1, 30));
        assert_eq!(merged_times(known(10, 30), &state(5, 20)), (5, 20, 30), "another mode, later");
        assert_eq!(
            merged_times(known(90, 30), &state(5, 40)),
            (5, 40, 40),
            "set to lie in the future"
        );
        assert_eq!(
            merged_times(attr(0, 10, 10), &state(0, 5)),
            (0, 10, 10),
            "a file that was lent"
        );
        assert_eq!(merged_times(known(10, 10), &ObjectState::default()), (5, 10, 10));
        let set_on_its_mount = ObjectState { mtime: Timestamp::from_sec(90), ..state(5, 20) };
        assert_eq!(
            merged_times(known(70, 30), &set_on_its_mount),
            (5, 70, 30),
            "and then on another"
        );
    }

    #[test]
    fn no_time_goes_back_where_the_clock_of_the_disk_is_behind() {
        let now = merge_object_state(attr(0, 100, 100), &state(5, 40));
        assert!(now.mtime > Timestamp::from_sec(100) && now.ctime >= now.mtime, "{now:?}");
        assert_eq!(merge_object_state(now.clone(), &state(5, 40)), now, "one change, one time");
    }
}
