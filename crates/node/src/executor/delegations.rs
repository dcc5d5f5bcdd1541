//! The delegations: which inodes are delegated to which clients, and which are being recalled.
//!
//! Pure bookkeeping: the executor supplies the time, sends the recalls, and holds answers back
//! while [`Delegations::is_recalled`] is true. An answer leaves when all clients with an older
//! state have given it back, or when their term is over. So no client sees a change before every
//! client that holds the state before it has dropped that state. No answer waits longer than a
//! term.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};
use tatami_meta::ChangedInode;
use tatami_wire::{ClientId, Ino, ShardId, hash};

/// Most inodes that are delegated at a time. Beyond that, no inode is delegated until some are
/// recalled or a holder leaves.
const DELEGATED_MAX: usize = 1 << 20;
/// An inode, or a directory with all its partitions, that is recalled a second time within this
/// time is not delegated for the same time: several clients work there, and recalls cost more than
/// they save. Each of the hundreds of partitions of a directory may be quiet while the directory is
/// not, so they count together.
const CONTENDED: Duration = Duration::from_secs(1);
/// Most inodes in one recall: they fit a frame.
const RECALL_MAX: usize = 32 * 1024;
/// Most recalled inodes that are remembered; at this number, the expired ones are removed.
const CONTENDED_SWEEP: usize = 4096;

/// Number of a holder: one term of one client, never used twice.
type HolderId = u32;

type IdMap<K, V> = HashMap<K, V, hash::HashBuilder>;

/// The holders of an inode. Few inodes have more than one.
#[derive(Debug)]
enum Holders {
    One(HolderId),
    Many(Vec<HolderId>),
}

impl Holders {
    fn add_holder(&mut self, holder: HolderId) {
        match self {
            Holders::One(one) if *one == holder => {}
            Holders::One(one) => *self = Holders::Many(vec![*one, holder]),
            Holders::Many(many) if many.contains(&holder) => {}
            Holders::Many(many) => many.push(holder),
        }
    }

    /// Drops the holders for which `is_kept` returns false, if there are several.
    fn keep_holders(&mut self, is_kept: impl Fn(HolderId) -> bool) {
        if let Holders::Many(many) = self {
            many.retain(|holder| is_kept(*holder));
        }
    }

    fn holder_ids(&self) -> &[HolderId] {
        match self {
            Holders::One(one) => std::slice::from_ref(one),
            Holders::Many(many) => many,
        }
    }
}

#[derive(Debug)]
struct Holder {
    client: ClientId,
    /// Its recall connection, by the executor's index.
    at: usize,
    last_alive: Instant,
    /// Recalls that the client has not answered.
    unanswered: BTreeMap<u64, Vec<Ino>>,
    /// Inodes to be named in the next recall.
    outbox: Vec<ChangedInode>,
}

/// A recall that is to be sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Recall {
    /// The connection that it goes to.
    pub(crate) at: usize,
    pub(crate) id: u64,
    pub(crate) inos: Vec<Ino>,
    /// Directories whose path delegations stay.
    pub(crate) entries: Vec<Ino>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Delegations {
    term: Duration,
    clients: IdMap<ClientId, HolderId>,
    holders: BTreeMap<HolderId, Holder>,
    last_holder: HolderId,
    last_recall: u64,
    delegated: IdMap<Ino, Holders>,
    /// The path delegations of directories. Each holder in `delegated` has one.
    paths: IdMap<Ino, Holders>,
    /// The holders that have not yet given an inode back.
    recalled: IdMap<Ino, Vec<HolderId>>,
    /// When an inode was recalled last, and until when it is not delegated again. By
    /// [`contended_key`].
    contended: IdMap<Ino, (Instant, Option<Instant>)>,
    /// Clients that may have delegations from before our start, or open files that they have not
    /// yet reported; and until when.
    former_clients: Option<(HashSet<ClientId>, Instant)>,
    /// No inode of these shards is delegated: the first shard, and their number.
    withheld: Option<(u16, u16)>,
}

impl Delegations {
    /// Makes an empty table. Only the clients `before` may have delegations, of a daemon that ran
    /// here until `now`.
    pub(crate) fn new(term: Duration, before: HashSet<ClientId>, now: Instant) -> Delegations {
        Delegations {
            term,
            clients: IdMap::default(),
            holders: BTreeMap::new(),
            last_holder: 0,
            last_recall: 0,
            delegated: IdMap::default(),
            paths: IdMap::default(),
            recalled: IdMap::default(),
            contended: IdMap::default(),
            former_clients: (!before.is_empty()).then(|| (before, now + term)),
            withheld: None,
        }
    }

    /// How long a silent client keeps its delegations.
    pub(crate) fn term(&self) -> Duration {
        self.term
    }

    /// Returns until when no request may be answered, because clients may have delegations of the
    /// daemon before. `None` when all have come back, or their term is over.
    pub(crate) fn closed_until(&mut self, now: Instant) -> Option<Instant> {
        let (clients, until) = self.former_clients.as_ref()?;
        if clients.is_empty() || *until <= now {
            self.former_clients = None;
            return None;
        }
        Some(*until)
    }

    /// Whether no client can have a delegation from before our start.
    pub(crate) fn is_open(&self) -> bool {
        self.former_clients.is_none()
    }

    /// Returns all clients that have delegations, or may have them.
    pub(crate) fn clients(&self) -> Vec<ClientId> {
        let before = self.former_clients.iter().flat_map(|(clients, _)| clients);
        let away = before.filter(|client| !self.clients.contains_key(client));
        self.clients.keys().chain(away).copied().collect()
    }

    /// Whether any client has a recall connection.
    pub(crate) fn has_clients(&self) -> bool {
        !self.clients.is_empty()
    }

    /// Whether the client has a recall connection.
    pub(crate) fn has_client(&self, client: ClientId) -> bool {
        self.clients.contains_key(&client)
    }

    /// The client's recall connection.
    pub(crate) fn connection(&self, client: ClientId) -> Option<usize> {
        Some(self.holders.get(self.clients.get(&client)?)?.at)
    }

    /// The recall connections of all clients.
    pub(crate) fn connections(&self) -> Vec<usize> {
        self.holders.values().map(|holder| holder.at).collect()
    }

    /// Records that a client has opened its recall connection, and so has no delegations. Returns
    /// its former connection.
    pub(crate) fn open_term(&mut self, client: ClientId, at: usize, now: Instant) -> Option<usize> {
        let old = self.clients.get(&client).copied().and_then(|id| self.end_term(id));
        // A new number, so that all entries under the old one are void at once.
        self.last_holder += 1;
        let holder =
            Holder { client, at, last_alive: now, unanswered: BTreeMap::new(), outbox: Vec::new() };
        let before = self.holders.insert(self.last_holder, holder);
        assert!(before.is_none(), "the number of a holder is used twice");
        let before = self.clients.insert(client, self.last_holder);
        assert_eq!(before, None, "a client has two terms at a time");
        old
    }

    /// Records that the recall connection `at` of a client has ended. The client ends it only after
    /// it has dropped all delegations, or its machine is down: it has none now.
    pub(crate) fn close_term(&mut self, client: ClientId, at: usize) {
        if let Some(&id) = self.clients.get(&client)
            // A late end of an older connection must not end the new term.
            && self.holders.get(&id).is_some_and(|holder| holder.at == at)
        {
            self.end_term(id);
        }
    }

    fn end_term(&mut self, id: HolderId) -> Option<usize> {
        let holder = self.holders.remove(&id)?;
        let ended = self.clients.remove(&holder.client);
        assert_eq!(ended, Some(id), "a client has two terms at a time");
        // The entries in `delegated` stay until they are met: the number is never used again, so
        // they have no effect. They are swept out only when they take much room.
        self.recalled.retain(|_, waiting| {
            waiting.retain(|w| *w != id);
            !waiting.is_empty()
        });
        for delegated in [&mut self.delegated, &mut self.paths] {
            if self.holders.is_empty() {
                delegated.clear();
            } else if delegated.len() > DELEGATED_MAX / 2 {
                let holders = &self.holders;
                delegated
                    .retain(|_, held| held.holder_ids().iter().any(|h| holders.contains_key(h)));
            }
        }
        Some(holder.at)
    }

    /// Records that the client is alive. After a restart, the client has reported its open files
    /// before that.
    pub(crate) fn renew_term(&mut self, client: ClientId, now: Instant) {
        if let Some((before, _)) = &mut self.former_clients {
            before.remove(&client);
        }
        if let Some(id) = self.clients.get(&client)
            && let Some(holder) = self.holders.get_mut(id)
        {
            holder.last_alive = now;
        }
    }

    /// Delegates `ino` to `client`, if that is allowed now. Returns whether it did. A directory is
    /// delegated with its path.
    pub(crate) fn delegate_inode(
        &mut self,
        client: ClientId,
        ino: Ino,
        is_dir: bool,
        now: Instant,
    ) -> bool {
        let contended = self.contended.get(&contended_key(ino));
        if contended.is_some_and(|(_, until)| until.is_some_and(|u| now < u)) {
            return false;
        }
        if is_dir && !self.delegate_path(client, ino, now) {
            return false;
        }
        let Some(id) = self.find_grantee(client, ino, now) else { return false };
        add_holder(&mut self.delegated, ino, id, &self.holders)
    }

    /// Delegates the path of directory `ino` to `client`, if that is allowed now. Returns whether
    /// it did. Changes of entries do not recall it, so a busy directory has it, too.
    pub(crate) fn delegate_path(&mut self, client: ClientId, ino: Ino, now: Instant) -> bool {
        let Some(id) = self.find_grantee(client, ino, now) else { return false };
        add_holder(&mut self.paths, ino, id, &self.holders)
    }

    /// Returns the number of the client, if `ino` may be delegated to it now.
    fn find_grantee(&self, client: ClientId, ino: Ino, now: Instant) -> Option<HolderId> {
        let &id = self.clients.get(&client)?;
        // A silent client counts its term from its last sign of life. A delegation now would be
        // void on its side at once.
        let silent = self.holders.get(&id).is_none_or(|h| h.last_alive + self.term <= now);
        // While a recall is under way a new grant could not be distinguished from the old one.
        (!silent && !self.recalled.contains_key(&ino) && !self.is_withheld(ino)).then_some(id)
    }

    /// Whether any client has, or may have, a delegation of `ino`.
    pub(crate) fn is_delegated(&self, ino: Ino) -> bool {
        self.delegated.contains_key(&ino) || self.paths.contains_key(&ino)
    }

    /// Records a change by `client`, or by a daemon: all other clients must give back what it
    /// concerns.
    pub(crate) fn record_change(
        &mut self,
        client: Option<ClientId>,
        changed: ChangedInode,
        now: Instant,
    ) {
        let ChangedInode { ino, keeps_path, recalls_own } = changed;
        let own = client.and_then(|client| self.clients.get(&client).copied());
        let spared = own.filter(|_| !recalls_own);
        let others = take_other_holders(&mut self.delegated, ino, spared, &self.holders);
        let mut walkers = Vec::new();
        if !keeps_path {
            walkers = take_other_holders(&mut self.paths, ino, spared, &self.holders);
            walkers.retain(|id| !others.contains(id));
        }
        if others.is_empty() && walkers.is_empty() {
            return;
        }
        for id in others.iter().chain(&walkers) {
            if let Some(holder) = self.holders.get_mut(id) {
                holder.outbox.push(changed);
            }
        }
        // Recalls of paths do not count: they are rare, and say nothing about the entries. Nor does
        // what a daemon or the holder itself has changed.
        if client.is_some() && others.iter().any(|id| Some(*id) != own) {
            self.record_contention(ino, now);
        }
        // From here on `is_recalled` holds back every answer that depends on `ino`.
        self.recalled.entry(ino).or_default().extend(others.into_iter().chain(walkers));
    }

    /// Recalls directory `dir` from a client that has it exclusively, because another client needs
    /// it. Returns false if the client has no recall connection: then it has nothing any more.
    pub(crate) fn recall_directory(&mut self, client: ClientId, dir: Ino, now: Instant) -> bool {
        let Some(&id) = self.clients.get(&client) else { return false };
        let Some(holder) = self.holders.get_mut(&id) else { return false };
        let waiting = self.recalled.entry(dir).or_default();
        if waiting.contains(&id) {
            return true;
        }
        waiting.push(id);
        holder.outbox.push(ChangedInode { ino: dir, keeps_path: true, recalls_own: false });
        if let Some(held) = self.delegated.get_mut(&dir) {
            match held {
                Holders::One(one) if *one == id => drop(self.delegated.remove(&dir)),
                Holders::One(_) => {}
                Holders::Many(many) => many.retain(|holder| *holder != id),
            }
        }
        self.record_contention(dir, now);
        true
    }

    /// Whether the client may have directory `dir` exclusively: it has not been recalled just now.
    pub(crate) fn may_hold_directory(&self, client: ClientId, dir: Ino, now: Instant) -> bool {
        let contended = self.contended.get(&contended_key(dir));
        self.find_grantee(client, dir, now).is_some()
            && contended.is_none_or(|(last, _)| *last + CONTENDED <= now)
    }

    /// Whether one of `inos` is being recalled from another client than `client`.
    pub(crate) fn is_recalled_from_others(&self, inos: &[Ino], client: ClientId) -> bool {
        let own = self.clients.get(&client);
        inos.iter()
            .filter_map(|ino| self.recalled.get(ino))
            .any(|waiting| waiting.iter().any(|holder| Some(holder) != own))
    }

    fn record_contention(&mut self, ino: Ino, now: Instant) {
        if self.contended.len() >= CONTENDED_SWEEP {
            self.contended.retain(|_, (last, _)| *last + CONTENDED * 2 > now);
        }
        let key = contended_key(ino);
        let last = self.contended.get(&key).map(|(last, _)| *last);
        // One change of all partitions at one moment counts once.
        let again = last.is_some_and(|last| last < now && last + CONTENDED > now);
        if again || last != Some(now) && self.contended.len() < CONTENDED_SWEEP {
            self.contended.insert(key, (now, again.then_some(now + CONTENDED)));
        }
    }

    fn is_withheld(&self, ino: Ino) -> bool {
        // A directory may lie on its allocating shard as well as on its owner shard.
        self.withheld.is_some_and(|block| is_in_block(block, ino))
    }

    /// Recalls all delegations of inodes of these shards, and grants no new ones.
    pub(crate) fn withhold_shards(&mut self, block: (u16, u16)) {
        // The caller repeats the call in every round until all are returned; the recalls go out
        // once.
        if self.withheld.replace(block) == Some(block) {
            return;
        }
        let delegated = self.delegated.extract_if(|ino, _| is_in_block(block, *ino));
        let paths = self.paths.extract_if(|ino, _| is_in_block(block, *ino));
        // A holder of a directory has both. An earlier recall that is still under way does not
        // count: it may leave the path with the holder.
        let mut recalled: IdMap<Ino, Vec<HolderId>> = IdMap::default();
        for (ino, held) in delegated.chain(paths) {
            let ids = recalled.entry(ino).or_default();
            let present = held.holder_ids().iter().filter(|id| self.holders.contains_key(id));
            ids.extend(present);
            ids.sort_unstable();
            ids.dedup();
        }
        for (ino, ids) in recalled.into_iter().filter(|(_, ids)| !ids.is_empty()) {
            for id in &ids {
                if let Some(holder) = self.holders.get_mut(id) {
                    holder.outbox.push(ChangedInode::of_all(ino));
                }
            }
            self.recalled.entry(ino).or_default().extend(ids);
        }
    }

    /// Whether all recalled delegations of the withheld shards have been returned.
    pub(crate) fn is_withheld_returned(&self) -> bool {
        !self.recalled.keys().any(|ino| self.is_withheld(*ino))
    }

    /// Allows delegations of the withheld shards again.
    pub(crate) fn stop_withholding(&mut self) {
        self.withheld = None;
    }

    /// Returns the recalls that must be sent.
    pub(crate) fn take_recalls(&mut self) -> Vec<Recall> {
        if self.recalled.is_empty() {
            return Vec::new();
        }
        let mut recalls = Vec::new();
        for holder in self.holders.values_mut().filter(|holder| !holder.outbox.is_empty()) {
            for recalled in std::mem::take(&mut holder.outbox).chunks(RECALL_MAX) {
                self.last_recall += 1;
                let named = recalled.iter().map(|recalled| recalled.ino).collect();
                // Before it is sent: the recall counts as unanswered from the moment the client
                // could see it.
                let before = holder.unanswered.insert(self.last_recall, named);
                assert!(before.is_none(), "the number of a recall is used twice");
                let select = |keeps_path: bool| {
                    let selected = recalled.iter().filter(|some| some.keeps_path == keeps_path);
                    selected.map(|some| some.ino).collect()
                };
                let (inos, entries) = (select(false), select(true));
                recalls.push(Recall { at: holder.at, id: self.last_recall, inos, entries });
            }
        }
        recalls
    }

    /// Records that the client has given back the inodes of recall `id`. Returns those that it does
    /// not have any more.
    pub(crate) fn record_return(&mut self, client: ClientId, id: u64) -> Vec<Ino> {
        let mut returned = Vec::new();
        let Some(&holder_id) = self.clients.get(&client) else { return returned };
        let Some(holder) = self.holders.get_mut(&holder_id) else { return returned };
        for ino in holder.unanswered.remove(&id).unwrap_or_default() {
            // A later recall may name the same inode, if it was delegated again in between.
            let again = |inos: &Vec<Ino>| inos.contains(&ino);
            if holder.outbox.iter().any(|some| some.ino == ino)
                || holder.unanswered.values().any(again)
            {
                continue;
            }
            returned.push(ino);
            if let Some(waiting) = self.recalled.get_mut(&ino) {
                waiting.retain(|w| *w != holder_id);
                if waiting.is_empty() {
                    self.recalled.remove(&ino);
                }
            }
        }
        returned
    }

    /// Whether any inode is being recalled.
    pub(crate) fn has_recalls(&self) -> bool {
        !self.recalled.is_empty()
    }

    /// Whether one of `inos` is being recalled: answers that depend on it must wait.
    pub(crate) fn is_recalled(&self, inos: &[Ino]) -> bool {
        !self.recalled.is_empty() && inos.iter().any(|ino| self.recalled.contains_key(ino))
    }

    /// Returns when the term of the next client with an unanswered recall ends.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        if self.recalled.is_empty() {
            return None;
        }
        let owing = self.holders.values().filter(|holder| holder.owes_answer());
        let first = owing.map(|holder| holder.last_alive + self.term).min();
        // Otherwise the answers that wait for the recall would wait for ever.
        assert!(first.is_some(), "no client owes a recall that is under way");
        first
    }

    /// Ends the terms of clients that have unanswered recalls and were silent for too long. Returns
    /// their recall connections, which the caller must close: a slow client learns in this way that
    /// its delegations are void.
    pub(crate) fn expire_terms(&mut self, now: Instant) -> Vec<usize> {
        let late = |(id, holder): (&HolderId, &Holder)| {
            (holder.owes_answer() && holder.last_alive + self.term <= now).then_some(*id)
        };
        let late: Vec<_> = self.holders.iter().filter_map(late).collect();
        late.into_iter().filter_map(|id| self.end_term(id)).collect()
    }
}

/// Records that holder `id` has a delegation of `ino`. Returns false if there are too many.
fn add_holder(
    delegated: &mut IdMap<Ino, Holders>,
    ino: Ino,
    id: HolderId,
    holders: &BTreeMap<HolderId, Holder>,
) -> bool {
    let full = delegated.len() >= DELEGATED_MAX;
    match delegated.entry(ino) {
        std::collections::hash_map::Entry::Occupied(mut held) => {
            // Holders that have ended stay until here: the end of a client costs little.
            held.get_mut().keep_holders(|holder| holders.contains_key(&holder));
            held.get_mut().add_holder(id);
        }
        std::collections::hash_map::Entry::Vacant(_) if full => return false,
        std::collections::hash_map::Entry::Vacant(free) => {
            free.insert(Holders::One(id));
        }
    }
    true
}

/// Ends the delegations of `ino` but for that of `own`. Returns their holders that are there.
fn take_other_holders(
    delegated: &mut IdMap<Ino, Holders>,
    ino: Ino,
    own: Option<HolderId>,
    holders: &BTreeMap<HolderId, Holder>,
) -> Vec<HolderId> {
    let Some(held) = delegated.get_mut(&ino) else { return Vec::new() };
    let ids = held.holder_ids().iter().copied();
    let others = ids.filter(|id| Some(*id) != own && holders.contains_key(id)).collect();
    // The client that made the change has the new state with its answer, and keeps its delegation.
    match own.filter(|id| held.holder_ids().contains(id)) {
        Some(id) => *held = Holders::One(id),
        None => drop(delegated.remove(&ino)),
    }
    others
}

/// Returns a number that an inode shares with its partitions only. They differ in the owner shard.
fn contended_key(ino: Ino) -> Ino {
    Ino::new(ShardId(0), ino.allocating_shard(), ino.counter())
}

fn is_in_block((first, count): (u16, u16), ino: Ino) -> bool {
    [ino.owner_shard(), ino.allocating_shard()]
        .iter()
        .any(|shard| shard.0 >= first && shard.0 - first < count)
}

impl Holder {
    fn owes_answer(&self) -> bool {
        !self.unanswered.is_empty() || !self.outbox.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Duration = Duration::from_secs(5);
    const A: ClientId = ClientId([1; 16]);
    const B: ClientId = ClientId([2; 16]);
    const C: ClientId = ClientId([3; 16]);

    fn with(clients: &[ClientId], now: Instant) -> Delegations {
        let mut delegations = Delegations::new(TERM, HashSet::new(), now);
        for (at, client) in clients.iter().enumerate() {
            assert_eq!(delegations.open_term(*client, at, now), None);
        }
        delegations
    }

    #[test]
    fn a_change_waits_for_those_who_were_told_otherwise() {
        let now = Instant::now();
        let mut d = with(&[A, B], now);
        assert!(
            d.delegate_inode(A, Ino(7), false, now)
                && d.delegate_inode(B, Ino(7), false, now)
                && d.delegate_inode(B, Ino(8), false, now)
        );
        assert!(!d.delegate_inode(C, Ino(7), false, now), "it has no recall connection");
        // A client's own change does not recall its own delegation.
        d.record_change(Some(B), ChangedInode::of_all(Ino(8)), now);
        assert!(!d.has_recalls());
        d.record_change(Some(C), ChangedInode::of_all(Ino(7)), now);
        d.record_change(Some(C), ChangedInode::of_all(Ino(8)), now);
        assert!(d.is_recalled(&[Ino(1), Ino(7)]) && !d.is_recalled(&[Ino(9)]));
        assert!(!d.delegate_inode(A, Ino(7), false, now), "it is being recalled");
        let recalls = d.take_recalls();
        let named: Vec<_> = recalls.iter().map(|r| (r.at, r.inos.clone())).collect();
        assert_eq!(named, [(0, vec![Ino(7)]), (1, vec![Ino(7), Ino(8)])]);
        assert_eq!(d.take_recalls(), []);
        d.record_return(A, recalls[0].id);
        assert!(d.is_recalled(&[Ino(7)]), "B has it still");
        d.record_return(A, recalls[1].id);
        assert!(d.is_recalled(&[Ino(7)]), "nobody answers for another");
        d.record_return(B, recalls[1].id);
        assert!(!d.has_recalls());
        assert_eq!(d.next_deadline(), None);
        // Its own change recalls what goes to another executor.
        assert!(d.delegate_inode(B, Ino(9), true, now));
        d.record_change(
            Some(B),
            ChangedInode { recalls_own: true, ..ChangedInode::of_all(Ino(9)) },
            now,
        );
        assert!(d.is_recalled(&[Ino(9)]));
    }

    #[test]
    fn a_path_outlives_changes_of_entries() {
        let now = Instant::now();
        let mut d = with(&[A, B], now);
        assert!(d.delegate_inode(A, Ino(7), true, now) && d.delegate_path(B, Ino(7), now));
        d.record_change(
            Some(C),
            ChangedInode { keeps_path: true, ..ChangedInode::of_all(Ino(7)) },
            now,
        );
        let named = |recalls: &[Recall]| {
            let one = |recall: &Recall| (recall.at, recall.inos.clone(), recall.entries.clone());
            recalls.iter().map(one).collect::<Vec<_>>()
        };
        let first = d.take_recalls();
        assert_eq!(named(&first), [(0, vec![], vec![Ino(7)])], "B knows no entry");
        assert!(!d.delegate_path(B, Ino(7), now), "it is being recalled");
        d.record_change(Some(B), ChangedInode::of_all(Ino(7)), now);
        let second = d.take_recalls();
        assert_eq!(named(&second), [(0, vec![Ino(7)], vec![])]);
        d.record_return(A, first[0].id);
        assert!(d.is_recalled(&[Ino(7)]), "the second one is not answered");
        d.record_return(A, second[0].id);
        assert!(!d.has_recalls());
        // One recall is no contention of the entries, and none of the path.
        assert!(d.delegate_inode(A, Ino(7), true, now));
        // A shard that moves takes all along.
        assert!(d.delegate_path(B, Ino(7), now));
        d.withhold_shards((Ino(7).owner_shard().0, 1));
        let recalls = d.take_recalls();
        assert_eq!(named(&recalls), [(0, vec![Ino(7)], vec![]), (1, vec![Ino(7)], vec![])]);
        assert!(!d.delegate_path(A, Ino(7), now));
        d.record_return(A, recalls[0].id);
        d.record_return(B, recalls[1].id);
        assert!(d.withheld.is_some() && d.is_withheld_returned());
    }

    #[test]
    fn what_several_change_is_not_given_for_a_while() {
        let start = Instant::now();
        let now = start + CONTENDED / 2;
        let mut d = with(&[A, B], start);
        for now in [start, now] {
            assert!(d.delegate_inode(A, Ino(7), false, now), "once is no contention");
            d.record_change(Some(B), ChangedInode::of_all(Ino(7)), now);
            let recalls = d.take_recalls();
            d.record_return(A, recalls[0].id);
        }
        assert!(
            !d.delegate_inode(A, Ino(7), false, now) && !d.delegate_inode(B, Ino(7), false, now)
        );
        assert!(d.delegate_inode(B, Ino(7), false, now + CONTENDED));
        // What a daemon changes, or the holder through another executor, says nothing about others.
        let through = ChangedInode { recalls_own: true, ..ChangedInode::of_all(Ino(8)) };
        for _ in 0..3 {
            assert!(
                d.delegate_inode(A, Ino(8), false, now) && d.delegate_inode(A, Ino(9), false, now)
            );
            d.record_change(Some(A), through, now);
            d.record_change(None, ChangedInode::of_all(Ino(9)), now);
            let recalls = d.take_recalls();
            assert_eq!(recalls[0].inos, [Ino(8), Ino(9)]);
            d.record_return(A, recalls[0].id);
        }
    }

    #[test]
    fn who_is_silent_or_leaves_holds_nobody_up() {
        let now = Instant::now();
        let mut d = with(&[A, B], now);
        assert!(d.delegate_inode(A, Ino(7), false, now) && d.delegate_inode(B, Ino(7), false, now));
        d.record_change(Some(C), ChangedInode::of_all(Ino(7)), now);
        d.take_recalls();
        d.close_term(B, 0);
        assert!(d.has_client(B), "that was another connection");
        d.close_term(B, 1);
        assert!(!d.has_client(B) && d.is_recalled(&[Ino(7)]));
        d.renew_term(A, now + TERM / 2);
        assert_eq!(d.next_deadline(), Some(now + TERM / 2 + TERM));
        assert_eq!(d.expire_terms(now + TERM), []);
        assert_eq!(d.expire_terms(now + TERM / 2 + TERM), [0]);
        assert!(!d.has_recalls() && !d.has_client(A));
    }

    #[test]
    fn a_client_that_comes_back_holds_nothing() {
        let now = Instant::now();
        let mut d = with(&[A], now);
        assert!(d.delegate_inode(A, Ino(7), false, now));
        d.record_change(Some(B), ChangedInode::of_all(Ino(7)), now);
        let recall = d.take_recalls().remove(0);
        assert_eq!(d.open_term(A, 5, now), Some(0));
        assert!(!d.has_recalls());
        d.record_return(A, recall.id);
        d.record_change(Some(B), ChangedInode::of_all(Ino(7)), now);
        assert!(!d.has_recalls());
    }

    #[test]
    fn the_silent_are_given_nothing() {
        let now = Instant::now();
        let mut d = with(&[A], now);
        assert!(!d.delegate_inode(A, Ino(7), false, now + TERM));
        d.renew_term(A, now + TERM);
        assert!(d.delegate_inode(A, Ino(7), false, now + TERM));
    }

    #[test]
    fn after_a_start_all_wait_for_those_from_before() {
        let now = Instant::now();
        let mut d = Delegations::new(TERM, HashSet::from([A, B]), now);
        assert_eq!(d.closed_until(now), Some(now + TERM));
        d.open_term(A, 0, now);
        d.open_term(B, 1, now);
        assert_eq!(d.closed_until(now), Some(now + TERM), "they have not said what they have open");
        d.renew_term(A, now);
        assert_eq!(d.closed_until(now), Some(now + TERM));
        assert_eq!(d.clients().len(), 2);
        d.renew_term(B, now);
        assert_eq!(d.closed_until(now), None);
        let mut d = Delegations::new(TERM, HashSet::from([A]), now);
        assert_eq!(d.closed_until(now + TERM), None, "its term is over");
        assert_eq!(Delegations::new(TERM, HashSet::new(), now).closed_until(now), None);
    }

    #[test]
    fn partitions_of_a_directory_are_contended_together() {
        let now = Instant::now();
        let later = now + CONTENDED / 2;
        let part = |owner| Ino::new(ShardId(owner), ShardId(3), 9);
        let mut d = with(&[A, B], now);
        let give = |d: &mut Delegations, at| {
            [0, 1, 2]
                .map(|n| d.delegate_inode(A, part(n), false, at))
                .into_iter()
                .all(|given| given)
        };
        let change = |d: &mut Delegations, parts: &[u16], at| {
            parts.iter().for_each(|n| d.record_change(Some(B), ChangedInode::of_all(part(*n)), at));
            d.take_recalls().iter().for_each(|recall| drop(d.record_return(A, recall.id)));
        };
        assert!(give(&mut d, now));
        change(&mut d, &[0, 1], now);
        assert!(give(&mut d, now), "a change of several partitions is one change");
        change(&mut d, &[2], later);
        assert!(!d.delegate_inode(A, part(0), false, later), "the second one within a second");
        let other = Ino::new(ShardId(0), ShardId(3), 10);
        assert!(d.delegate_inode(A, other, false, later));
        assert!(give(&mut d, later + CONTENDED));
    }

    /// Checks random histories against a model that knows which client has which state.
    #[test]
    fn no_change_is_let_out_before_its_recalls_are_answered() {
        use proptest::prelude::*;
        #[derive(Clone, Debug)]
        enum Step {
            Give(u8, u64, bool),
            Change(u8, u64, bool),
            /// Another client needs a directory that this one has exclusively.
            Want(u8, u64),
            /// The shard of all inodes is about to move.
            Withhold,
            Answer(u8),
            Reopen(u8),
        }
        let step = prop_oneof![
            (0..3u8, 0..3u64, any::<bool>()).prop_map(|(c, i, path)| Step::Give(c, i, path)),
            (0..3u8, 0..3u64, any::<bool>()).prop_map(|(c, i, keep)| Step::Change(c, i, keep)),
            (0..3u8, 1..3u64).prop_map(|(c, i)| Step::Want(c, i)),
            Just(Step::Withhold),
            (0..3u8).prop_map(Step::Answer),
            (0..3u8).prop_map(Step::Reopen),
        ];
        proptest!(|(steps in proptest::collection::vec(step, 1..60))| {
                   let mut now = Instant::now();
                   let clients = [A, B, C];
                   let mut d = with(&clients, now);
                   // The delegations that each client believes to have, those of paths, and the
                   // recalls that it must answer. Inode 0 is a file.
                   let (mut holds, mut paths) = (vec![HashSet::new(); 3], vec![HashSet::new(); 3]);
                   let mut inbox: Vec<Vec<Recall>> = vec![Vec::new(), Vec::new(), Vec::new()];
                   for step in steps {
                       now += CONTENDED;
                       clients.iter().for_each(|c| d.renew_term(*c, now));
                       match step {
                           Step::Give(c, i, true) if i > 0 => {
                               if d.delegate_path(clients[c as usize], Ino(i), now) {
                                   paths[c as usize].insert(Ino(i));
                               }
                           }
                           Step::Give(c, i, _) => {
                               if d.delegate_inode(clients[c as usize], Ino(i), i > 0, now) {
                                   holds[c as usize].insert(Ino(i));
                                   paths[c as usize].extend((i > 0).then_some(Ino(i)));
                               }
                           }
                           Step::Change(c, i, keep) => {
                               let changed = ChangedInode {
        keeps_path: keep && i > 0, ..ChangedInode::of_all(Ino(i)) };
                               d.record_change(Some(clients[c as usize]), changed, now);
                               for recall in d.take_recalls() {
                                   let of = recall.at % 3;
                                   inbox[of].push(recall);
                               }
                               let others = (0..3).filter(|o| *o != c as usize);
                               let believes = |o: &usize| {
                                   let path = !changed.keeps_path && paths[*o].contains(&Ino(i));
                                   path || holds[*o].contains(&Ino(i))
                               };
                               for other in others.filter(believes) {
                                   prop_assert!(d.is_recalled(&[Ino(i)]), "{other} believes it");
                               }
                           }
                           Step::Want(c, i) => {
                               prop_assert!(d.recall_directory(clients[c as usize], Ino(i), now));
                               for recall in d.take_recalls() {
                                   inbox[recall.at % 3].push(recall);
                               }
                           }
                           Step::Withhold => {
                               d.withhold_shards((0, 1));
                               for recall in d.take_recalls() {
                                   inbox[recall.at % 3].push(recall);
                               }
                           }
                           Step::Answer(c) => {
                               if !inbox[c as usize].is_empty() {
                                   let recall = inbox[c as usize].remove(0);
                                   for ino in recall.inos.iter().chain(&recall.entries) {
                                       holds[c as usize].remove(ino);
                                   }
                                   recall.inos.iter().for_each(|i| { paths[c as usize].remove(i); });
                                   d.record_return(clients[c as usize], recall.id);
                               }
                           }
                           Step::Reopen(c) => {
                               holds[c as usize].clear();
                               paths[c as usize].clear();
                               inbox[c as usize].clear();
                               d.open_term(clients[c as usize], c as usize + 3, now);
                           }
                       }
                       let owed = inbox.iter().flatten().count();
                       prop_assert_eq!(d.has_recalls(), owed > 0);
                       if d.withheld.is_some() && d.is_withheld_returned() {
                           prop_assert!(holds.iter().chain(&paths).all(HashSet::is_empty));
                           d.stop_withholding();
                       }
                   }
               });
    }
}
