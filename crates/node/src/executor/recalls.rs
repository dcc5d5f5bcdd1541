//! Decides which answers of a round may leave at once, which wait for recalls, and what is
//! delegated along with them.
//!
//! The answers of a round are examined in the order in which the requests were applied. So a later
//! change of the round recalls what an earlier answer delegates. When other nodes take part, that
//! order is not known. Then all changes are examined first, and an answer delegates only attributes
//! that are still current. Messages to other nodes wait as answers do.

use crate::executor::answer::RoundAnswer;
use crate::executor::delegations::{Delegations, Recall};
use crate::executor::holders_file::HoldersFile;
use crate::executor::shards::ExecutorShards;
use std::io;
use std::time::{Duration, Instant};
use tatami_meta::{OutgoingMessage, Store};
use tatami_wire::delegation::{DelegationGrant, PartitionAttr};
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply, MetaResult};
use tatami_wire::{Attr, ClientId, Errno, Ino, InodeKind};

/// Most messages to other nodes that wait. More are dropped; their senders repeat them.
const HELD_MESSAGES_MAX: usize = 4096;
/// Tells whether what an answer shows is still so.
pub(crate) trait CurrentState {
    /// Whether the attributes are still those of the inode.
    fn is_current(&mut self, attr: &Attr) -> bool;
    /// Whether a path through the directory is still walked as these attributes show.
    fn is_current_path(&mut self, dir: &Attr) -> bool;
    /// Whether the partition has changed neither its attributes nor its entries.
    fn is_current_partition(&mut self, part: &PartitionAttr) -> bool;
}

impl<S: Store> CurrentState for ExecutorShards<S> {
    fn is_current(&mut self, attr: &Attr) -> bool {
        let now = self.meta_mut().and_then(|meta| meta.current_attr(attr.ino));
        now.is_some_and(|now| now.version == attr.version)
    }

    fn is_current_path(&mut self, dir: &Attr) -> bool {
        let now = self.meta_mut().and_then(|meta| meta.own_attr(dir.ino));
        let walked = |dir: &Attr| (dir.kind, dir.mode, dir.uid, dir.gid, dir.xattr_class);
        now.is_some_and(|now| walked(&now) == walked(dir))
    }

    fn is_current_partition(&mut self, part: &PartitionAttr) -> bool {
        let now = self.meta_mut().and_then(|meta| meta.partition_info(part.attr.ino));
        now.is_some_and(|now| now.attr.version == part.attr.version && now.range == part.range)
    }
}

/// In a round without other nodes, answers are examined in the order in which they were applied.
struct AppliedInOrder;

impl CurrentState for AppliedInOrder {
    fn is_current(&mut self, _: &Attr) -> bool {
        true
    }
    fn is_current_path(&mut self, _: &Attr) -> bool {
        true
    }
    fn is_current_partition(&mut self, _: &PartitionAttr) -> bool {
        true
    }
}

/// See the module.
pub(crate) struct ServerRecalls {
    delegations: Delegations,
    file: HoldersFile,
    /// Answers that wait.
    held_answers: Vec<RoundAnswer>,
    /// Messages to other nodes that wait.
    held_messages: Vec<OutgoingMessage>,
}

impl ServerRecalls {
    /// Reads the list of holders that a daemon before this one has left.
    pub(crate) fn new(term: Duration, file: HoldersFile) -> ServerRecalls {
        let delegations = Delegations::new(term, file.read(), Instant::now());
        ServerRecalls { delegations, file, held_answers: Vec::new(), held_messages: Vec::new() }
    }

    /// Whether the executor must record the inodes that operations read and change.
    pub(crate) fn has_clients(&self) -> bool {
        self.delegations.has_clients()
    }

    /// See [`Delegations::term`].
    pub(crate) fn term(&self) -> Duration {
        self.delegations.term()
    }

    /// See [`Delegations::closed_until`].
    pub(crate) fn closed_until(&mut self) -> Option<Instant> {
        // Every round asks, and nearly always the list is empty: then no clock is read.
        if self.delegations.is_open() {
            None
        } else {
            self.delegations.closed_until(Instant::now())
        }
    }

    /// Whether inodes may be delegated to the client.
    pub(crate) fn may_delegate(&self, client: ClientId) -> bool {
        self.delegations.has_client(client)
    }

    /// Returns the client's recall connection.
    pub(crate) fn connection(&self, client: ClientId) -> Option<usize> {
        self.delegations.connection(client)
    }

    /// Records that a client has opened recall connection `at`. Returns its former one.
    ///
    /// # Errors
    /// Those of the disk: then nothing may be delegated to the client.
    pub(crate) fn open_connection(
        &mut self,
        client: ClientId,
        at: usize,
    ) -> io::Result<Option<usize>> {
        let old = self.delegations.open_term(client, at, Instant::now());
        // On disk before anything is delegated: after a crash the next daemon must wait for this
        // client.
        let written = self.file.write(&self.delegations.clients());
        if written.is_err() {
            self.delegations.close_term(client, at);
        }
        written.map(|()| old)
    }

    /// Records that a connection has ended. `recalls` is its client, if it was a recall connection.
    pub(crate) fn close_connection(&mut self, at: usize, recalls: Option<ClientId>) {
        self.held_answers.retain(|answer| answer.to != at);
        let Some(client) = recalls.filter(|client| self.delegations.has_client(*client)) else {
            return;
        };
        self.delegations.close_term(client, at);
        if !self.delegations.has_client(client)
            && let Err(error) = self.file.write(&self.delegations.clients())
        {
            // The next daemon will wait in vain for this client, but no longer than a term.
            tracing::warn!(path = %self.file.path().display(), %error, "the list of clients is old");
        }
    }

    /// See [`Delegations::renew_term`].
    pub(crate) fn renew_term(&mut self, client: ClientId) {
        self.delegations.renew_term(client, Instant::now());
    }

    /// See [`Delegations::record_return`].
    pub(crate) fn record_return(&mut self, client: ClientId, id: u64) -> Vec<Ino> {
        self.delegations.record_return(client, id)
    }

    /// See [`Delegations::recall_directory`].
    pub(crate) fn recall_directory(&mut self, client: ClientId, dir: Ino) -> bool {
        self.delegations.recall_directory(client, dir, Instant::now())
    }

    /// See [`Delegations::may_hold_directory`].
    pub(crate) fn may_hold_directory(&self, client: ClientId, dir: Ino) -> bool {
        self.delegations.may_hold_directory(client, dir, Instant::now())
    }

    /// Examines a round. Answers that must wait are kept; those left in `round` may leave.
    pub(crate) fn process_round(&mut self, round: &mut Vec<RoundAnswer>) {
        if !self.delegations.has_clients() {
            return;
        }
        let mut moment = None;
        // Most rounds touch no delegated inode, and then read no clock.
        let mut now = || *moment.get_or_insert_with(Instant::now);
        let delegations = &mut self.delegations;
        self.held_answers.extend(round.extract_if(.., |answer| {
            let Some((ctx, call)) = &answer.request else { return false };
            // Recalls come before this answer's own delegation, and in the order of the round.
            for changed in &answer.touched.changed {
                if delegations.is_delegated(changed.ino) {
                    delegations.record_change(Some(ctx.client), *changed, now());
                }
            }
            if !must_wait(delegations, answer, call) {
                if delegations.has_client(ctx.client) {
                    answer.grant_delegations(delegations, now(), &mut AppliedInOrder);
                }
                return false;
            }
            true
        }));
    }

    /// Examines a round in which other nodes took part; see [`ServerRecalls::process_round`]. Also
    /// returns the messages to those nodes that may leave.
    pub(crate) fn process_spread_round(
        &mut self,
        round: &mut Vec<RoundAnswer>,
        outs: Vec<OutgoingMessage>,
        state: &mut impl CurrentState,
    ) -> Vec<OutgoingMessage> {
        if !self.delegations.has_clients() {
            return outs;
        }
        let (delegations, now) = (&mut self.delegations, Instant::now());
        let here =
            outs.iter().flat_map(|out| out.changed.iter().map(|changed| (out.client, *changed)));
        let answered = round.iter().filter_map(|answer| {
            let client = Some(answer.request.as_ref()?.0.client);
            Some(answer.touched.changed.iter().map(move |changed| (client, *changed)))
        });
        // All changes first: in which order they and the reads of this round happened is not known.
        for (client, changed) in here.chain(answered.flatten()) {
            if delegations.is_delegated(changed.ino) {
                delegations.record_change(client, changed, now);
            }
        }
        self.held_answers.extend(round.extract_if(.., |answer| {
            let Some((_, call)) = &answer.request else { return false };
            if must_wait(delegations, answer, call) {
                return true;
            }
            answer.grant_delegations(delegations, now, state);
            false
        }));
        // A vote or an outcome lets another node show the change. It waits as an answer would.
        let (held, free): (Vec<_>, Vec<_>) =
            outs.into_iter().partition(|out| must_hold(delegations, out));
        self.held_messages.extend(held);
        self.held_messages.truncate(HELD_MESSAGES_MAX);
        assert!(
            free.iter().all(|out| !must_hold(delegations, out)),
            "a message leaves before the recalls of its inodes"
        );
        free
    }

    /// Returns the messages to other nodes that need not wait any more.
    pub(crate) fn take_released_messages(&mut self) -> Vec<OutgoingMessage> {
        if self.held_messages.is_empty() {
            return Vec::new();
        }
        let delegations = &self.delegations;
        self.held_messages.extract_if(.., |out| !must_hold(delegations, out)).collect()
    }

    /// See [`Delegations::withhold_shards`]. Returns whether all of these delegations have been
    /// returned.
    pub(crate) fn withhold_shards(&mut self, block: (u16, u16)) -> bool {
        self.delegations.withhold_shards(block);
        self.delegations.is_withheld_returned()
    }

    /// See [`Delegations::stop_withholding`].
    pub(crate) fn stop_withholding(&mut self) {
        self.delegations.stop_withholding();
    }

    /// Returns the recall connections of all clients.
    pub(crate) fn connections(&self) -> Vec<usize> {
        self.delegations.connections()
    }

    /// See [`Delegations::take_recalls`].
    pub(crate) fn take_recalls(&mut self) -> Vec<Recall> {
        self.delegations.take_recalls()
    }

    /// Returns the answers that need not wait any more. They delegate the attributes in them that
    /// are still current.
    pub(crate) fn take_released(&mut self, state: &mut impl CurrentState) -> Vec<RoundAnswer> {
        if self.held_answers.is_empty() {
            return Vec::new();
        }
        let (delegations, now) = (&mut self.delegations, Instant::now());
        let free = |answer: &mut RoundAnswer| match &answer.request {
            Some((_, call)) if must_wait(delegations, answer, call) => false,
            _ => {
                answer.grant_delegations(delegations, now, state);
                true
            }
        };
        self.held_answers.extract_if(.., free).collect()
    }

    /// See [`Delegations::next_deadline`].
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.delegations.next_deadline()
    }

    /// See [`Delegations::expire_terms`].
    pub(crate) fn expire_terms(&mut self) -> Vec<usize> {
        self.delegations.expire_terms(Instant::now())
    }
}

fn must_hold(delegations: &Delegations, out: &OutgoingMessage) -> bool {
    out.changed.iter().any(|changed| delegations.is_recalled(&[changed.ino]))
        || delegations.is_recalled(&out.seen)
}

fn must_wait(delegations: &Delegations, answer: &RoundAnswer, call: &MetaCall) -> bool {
    // A repeated request gets its former answer. The recalls of its change may still be under way,
    // and its inodes are not known any more: so any recall holds the answer back.
    let again = answer.touched.seen.is_empty() && call.op.is_mutation() && answer.result.is_ok();
    match &answer.request {
        // The client gives its directory back when it has sent the creates that it holds back, so
        // their answers must not wait for that.
        Some((ctx, _)) if matches!(call.op, MetaOp::CreateNumbered { .. }) => {
            delegations.is_recalled_from_others(&answer.touched.seen, ctx.client)
        }
        _ => delegations.is_recalled(&answer.touched.seen) || again && delegations.has_recalls(),
    }
}

impl RoundAnswer {
    /// Delegates to the client the inodes that the answer shows, if that is allowed now and the
    /// attributes in the answer are current.
    fn grant_delegations(
        &mut self,
        delegations: &mut Delegations,
        now: Instant,
        state: &mut impl CurrentState,
    ) {
        let Some((ctx, call)) = &self.request else { return };
        assert_eq!(self.granted, None, "an answer grants its delegations twice");
        // A client that gets no list of changes forgets everything it has cached, so nothing is
        // delegated.
        if !delegations.has_client(ctx.client)
            || self.touched.changed.len() > DelegationGrant::CHANGED_MAX
        {
            return;
        }
        let changed = self.touched.changed.iter().map(|changed| changed.ino).collect();
        let mut granted = DelegationGrant { changed, ..DelegationGrant::default() };
        let [dir, reported] = delegable_attrs(&call.op, &self.result, self.touched.dir.as_deref());
        for (ino, attr) in [dir, reported].into_iter().flatten() {
            // While another client writes, the object has a newer size and newer times than these
            // attributes: no delegation.
            if !attr.maybe_written_elsewhere
                && state.is_current(attr)
                && delegations.delegate_inode(ctx.client, ino, is_dir(attr), now)
            {
                granted.delegated.push(ino);
            }
        }
        // What changes in a busy directory does not concern the path through it.
        granted.has_path = shown_directory(&self.result).is_some_and(|dir| {
            !granted.delegated.contains(&dir.ino)
                && state.is_current_path(dir)
                && delegations.delegate_path(ctx.client, dir.ino, now)
        });
        // Only if the answer shows that a name exists or not; other errors say nothing about the
        // partition.
        if matches!(self.result, Ok(_) | Err(Errno::ENOENT)) {
            let part = self.touched.part.take();
            granted.partition = part.filter(|part| {
                state.is_current_partition(part)
                    && delegations.delegate_inode(ctx.client, part.attr.ino, true, now)
            });
        }
        if let Ok(MetaReply::Entries { entries, .. }) = &self.result {
            let mut give = |attr: &Attr| {
                !attr.maybe_written_elsewhere
                    && state.is_current(attr)
                    && delegations.delegate_inode(ctx.client, attr.ino, is_dir(attr), now)
            };
            let given = entries.iter().map(|entry| entry.attr.as_ref().is_some_and(&mut give));
            granted.delegated_entries = given.collect();
        }
        granted.dir = self.touched.dir.clone().filter(|dir| granted.delegated.contains(&dir.ino));
        self.granted = Some(granted);
    }
}

fn is_dir(attr: &Attr) -> bool {
    attr.kind == InodeKind::Dir
}

/// Returns the attributes that an answer shows, if they are those of a directory.
fn shown_directory(result: &MetaResult) -> Option<&Attr> {
    match result {
        Ok(MetaReply::Attr(attr) | MetaReply::FirstPartition(attr)) => {
            Some(attr).filter(|attr| is_dir(attr))
        }
        _ => None,
    }
}

/// Returns the inodes that may be delegated with an answer: the directory whose entry it shows, and
/// the inode whose attributes it shows. The attributes beside them serve to check whether the inode
/// has changed since.
fn delegable_attrs<'a>(
    op: &MetaOp,
    result: &'a MetaResult,
    dir: Option<&'a Attr>,
) -> [Option<(Ino, &'a Attr)>; 2] {
    let reported = match result {
        Ok(
            MetaReply::Attr(attr)
            | MetaReply::Created { attr, .. }
            | MetaReply::Opened { attr, .. },
        ) => Some((attr.ino, attr)),
        Ok(MetaReply::OpenedInline { attr, .. }) => Some((attr.ino, &**attr)),
        Ok(
            MetaReply::Removed { .. }
            | MetaReply::Renamed { .. }
            | MetaReply::Referral(_)
            | MetaReply::Entries { .. },
        )
        | Err(Errno::ENOENT) => None,
        _ => return [None, None],
    };
    let dir = op.delegable_dir().and(dir).map(|attr| (attr.ino, attr));
    [dir, reported]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::touched::TouchedInodes;
    use tatami_meta::{ChangedInode, OperationContext};
    use tatami_wire::meta::{Bytes, DirEntry};
    use tatami_wire::partition::HashRange;
    use tatami_wire::transaction::{PeerMessage, Txid};
    use tatami_wire::{Cred, ExecutorId, InodeKind, NodeId, SetAttr, ShardId, Timestamp};

    const A: ClientId = ClientId([1; 16]);
    const B: ClientId = ClientId([2; 16]);
    const INO: Ino = Ino(7);

    /// All that answers show has changed since.
    struct Changed;

    impl CurrentState for Changed {
        fn is_current(&mut self, _: &Attr) -> bool {
            false
        }
        fn is_current_path(&mut self, _: &Attr) -> bool {
            false
        }
        fn is_current_partition(&mut self, _: &PartitionAttr) -> bool {
            false
        }
    }

    fn recalls(dir: &tempfile::TempDir) -> ServerRecalls {
        let file = HoldersFile::at_path(dir.path().join("holders"));
        let mut recalls = ServerRecalls::new(Duration::from_secs(600), file);
        recalls.open_connection(A, 0).expect("noted");
        recalls
    }

    fn attr() -> Attr {
        Attr::with_defaults(INO, InodeKind::File)
    }

    fn answer(client: ClientId, op: MetaOp, changed: Vec<Ino>) -> RoundAnswer {
        let ctx =
            OperationContext { now: Timestamp::default(), client, slot: 0, seq: 1, trusted: true };
        let call = MetaCall { shard: ShardId(0), cred: Cred::ROOT, op };
        let mut answer = RoundAnswer::new(5, 1, Ok(MetaReply::Attr(attr())), Some((ctx, call)));
        let changed = changed.into_iter().map(ChangedInode::of_all).collect();
        answer.touched = TouchedInodes { seen: vec![INO], changed, ..TouchedInodes::default() };
        answer
    }

    fn read_by(client: ClientId) -> RoundAnswer {
        answer(client, MetaOp::GetAttr { ino: INO }, Vec::new())
    }

    fn changed(client: ClientId) -> RoundAnswer {
        answer(client, MetaOp::SetAttr { ino: INO, set: SetAttr::default() }, vec![INO])
    }

    fn out(changed: &[Ino], seen: &[Ino]) -> OutgoingMessage {
        let txid =
            Txid { executor: ExecutorId::first_of_node(NodeId(1)), incarnation: 1, number: 1 };
        let changed = changed.iter().copied().map(ChangedInode::of_all).collect();
        let seen = seen.to_vec();
        let to = ExecutorId::first_of_node(NodeId(1));
        let message = PeerMessage::Prepared { txid };
        OutgoingMessage { changed, seen, ..OutgoingMessage::new(to, message) }
    }

    fn is_granted(answer: &RoundAnswer) -> bool {
        answer.granted.as_ref().is_some_and(|granted| granted.delegated == [INO])
    }

    fn give(recalls: &mut ServerRecalls) {
        let mut round = vec![read_by(A)];
        recalls.process_round(&mut round);
        assert!(is_granted(&round[0]));
    }

    #[test]
    fn a_message_that_lets_others_change_something_waits_for_the_recall() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut recalls = recalls(&dir);
        give(&mut recalls);
        let outs = vec![out(&[INO], &[]), out(&[], &[])];
        let left = recalls.process_spread_round(&mut Vec::new(), outs, &mut AppliedInOrder);
        assert_eq!(left, [out(&[], &[])], "what concerns nobody leaves");
        assert_eq!(recalls.take_released_messages(), []);
        let recall = recalls.take_recalls().remove(0);
        recalls.record_return(A, recall.id);
        assert_eq!(recalls.take_released_messages(), [out(&[INO], &[])]);
    }

    #[test]
    fn a_message_that_tells_of_a_change_waits_as_its_answer_does() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut recalls = recalls(&dir);
        give(&mut recalls);
        let mut round = vec![changed(B)];
        assert_eq!(
            recalls.process_spread_round(&mut round, vec![out(&[], &[INO])], &mut AppliedInOrder),
            []
        );
        assert!(round.is_empty());
        let recall = recalls.take_recalls().remove(0);
        recalls.record_return(A, recall.id);
        assert_eq!(recalls.take_released(&mut AppliedInOrder).len(), 1);
        assert_eq!(recalls.take_released_messages().len(), 1);
    }

    #[test]
    fn a_listing_delegates_what_it_tells_with_attributes() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut recalls = recalls(&dir);
        let part = Ino(9);
        let listed = || {
            let entry = |ino: Ino, attr| DirEntry {
                name: Bytes::from(b"name".to_vec()),
                ino,
                kind: InodeKind::File,
                cookie: ino.0,
                attr,
            };
            let entries = vec![entry(Ino(8), None), entry(INO, Some(attr()))];
            let op = MetaOp::ReadDir { dir: part, after: 0, limit: 100, plus: true };
            let mut answer = answer(A, op, Vec::new());
            answer.result = Ok(MetaReply::Entries { entries, end: true, parent: part, upto: 9 });
            answer.touched = TouchedInodes {
                seen: vec![part, INO],
                part: Some(Box::new(PartitionAttr {
                    attr: Attr { ino: part, ..attr() },
                    range: HashRange::ALL,
                })),
                ..TouchedInodes::default()
            };
            answer
        };
        let reported = |answer: &RoundAnswer| {
            let granted = answer.granted.as_ref().expect("granted");
            (
                granted.partition.as_ref().map(|part| part.attr.ino),
                granted.delegated_entries.is_delegated(0),
                granted.delegated_entries.is_delegated(1),
            )
        };
        let mut round = vec![listed()];
        recalls.process_round(&mut round);
        assert_eq!(reported(&round[0]), (Some(part), false, true));
        // With other nodes in the round, the partition may have changed meanwhile.
        let mut round = vec![listed(), listed()];
        let second = round.split_off(1);
        recalls.process_spread_round(&mut round, Vec::new(), &mut AppliedInOrder);
        assert_eq!(reported(&round[0]), (Some(part), false, true));
        round = second;
        recalls.process_spread_round(&mut round, Vec::new(), &mut Changed);
        assert_eq!(reported(&round[0]), (None, false, false));
        // An answer waits while an inode that it has listed is being recalled.
        let mut round = vec![changed(B), listed()];
        recalls.process_round(&mut round);
        assert!(round.is_empty());
    }

    #[test]
    fn what_is_not_so_any_more_is_not_delegated() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut recalls = recalls(&dir);
        // The client asked before a transaction that came in the same round.
        let mut round = vec![read_by(A)];
        let left = recalls.process_spread_round(&mut round, vec![out(&[INO], &[])], &mut Changed);
        assert_eq!((left.len(), round.len()), (1, 1));
        assert!(!is_granted(&round[0]));
    }

    #[test]
    fn the_client_of_a_transaction_keeps_its_delegation() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut recalls = recalls(&dir);
        let mut round = vec![read_by(A)];
        recalls.process_round(&mut round);
        assert!(is_granted(&round[0]));
        let own = OutgoingMessage { client: Some(A), ..out(&[INO], &[]) };
        let left = recalls.process_spread_round(&mut Vec::new(), vec![own], &mut Changed);
        assert_eq!((left.len(), recalls.take_recalls()), (1, Vec::new()));
        let left =
            recalls.process_spread_round(&mut Vec::new(), vec![out(&[INO], &[])], &mut Changed);
        assert_eq!((left.len(), recalls.take_recalls().len()), (0, 1));
    }
}
