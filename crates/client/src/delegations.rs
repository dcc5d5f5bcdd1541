//! What the shards have delegated to us: questions about names that need no
//! request.
//!
//! Two threads may be told of one inode in one order and note it in the other.
//! So everything that is noted carries the moment at which its question was asked
//! ([`Delegations::ask`]), and is dropped if something has happened since to what
//! it tells of: a recall, or a change of our own. Moments are numbers of one clock
//! that goes up with each such event; the last event of an inode or entry is kept
//! by hash, so that two that share a place are at worst asked again.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tatami_wire::act::Act;
use tatami_wire::delegation::Granted;
use tatami_wire::meta::{Bytes, MetaOp, MetaReply, MetaResult};
use tatami_wire::{Attr, Errno, Ino, Kind, hash};

const SHARDS: usize = 16;
/// Places for the last events, in each shard.
const EVENTS: usize = 512;
/// Most inodes and entries remembered; past it, a shard of them is forgotten.
const KNOWN_MAX: usize = 256 * 1024;
/// Of a term, this part is left unused, for clocks that do not run alike: one in so many.
const MARGIN: u32 = 10;

/// Directories with at most so many names known are looked at whether these are all.
const COUNTED_MAX: usize = 64;

/// Whether a name leads to an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Is(Ino),
    Absent,
    /// It is being changed by us, in a directory of which we know all the rest.
    Unknown,
}

/// What is known of an inode that is delegated to us.
#[derive(Default)]
struct Known {
    attr: Option<Attr>,
    dir: Option<Box<Dir>>,
}

#[derive(Default)]
struct Dir {
    names: HashMap<Box<[u8]>, Name, hash::Build>,
    /// Whatever is not in `names` is not in the directory.
    complete: bool,
}

struct Shard {
    known: HashMap<Ino, Known, hash::Build>,
    /// How many changes of ours are under way in a directory.
    busy: HashMap<Ino, u32, hash::Build>,
    /// Moments of the last events.
    attrs: Box<[u64; EVENTS]>,
    names: Box<[u64; EVENTS]>,
    recalls: Box<[u64; EVENTS]>,
}

impl Default for Shard {
    fn default() -> Shard {
        let events = || Box::new([0; EVENTS]);
        let (attrs, names, recalls) = (events(), events(), events());
        Shard { known: HashMap::default(), busy: HashMap::default(), attrs, names, recalls }
    }
}

/// Time since the machine was started. Unlike [`std::time::Instant`] it goes on
/// while the machine sleeps, as the term that the daemon counts does.
pub(crate) fn uptime() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// The moment at which a question was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

/// A question that is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    at: Moment,
    /// It counts as a change that is under way.
    counts: bool,
}

/// The answer to `op`, if it is known. `of` tells what the nodes have delegated to us that may have an
/// inode: the one of its home, and, where that is another, the one on which it was made.
pub(crate) fn answer<'a>(
    op: &MetaOp,
    of: impl Fn(Ino) -> [Option<&'a Delegations>; 2],
) -> Option<MetaResult> {
    let attr = |ino| of(ino).into_iter().flatten().find_map(|known| known.attr(ino));
    match op {
        MetaOp::GetAttr { ino } => Some(Ok(MetaReply::Attr(attr(*ino)?))),
        MetaOp::Lookup { parent, name } | MetaOp::Find { parent, name } => {
            let known = of(*parent).into_iter().flatten();
            match known.into_iter().find_map(|known| known.name(*parent, name))? {
                Name::Is(ino) => match attr(ino) {
                    Some(attr) => Some(Ok(MetaReply::Attr(attr))),
                    None if matches!(op, MetaOp::Find { .. }) => Some(Ok(MetaReply::Leads(ino))),
                    None => None,
                },
                Name::Absent => Some(Err(Errno::ENOENT)),
                Name::Unknown => None,
            }
        }
        _ => None,
    }
}

/// See the module.
pub(crate) struct Delegations {
    shards: Vec<Mutex<Shard>>,
    clock: AtomicU64,
    /// Nothing that was asked before counts.
    since: AtomicU64,
    /// Until when what is known may be used, by [`uptime`] in microseconds. 0 for
    /// not at all.
    until: AtomicU64,
    /// Inodes and entries remembered.
    size: AtomicUsize,
    hasher: hash::Build,
}

impl Default for Delegations {
    fn default() -> Delegations {
        Delegations {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            clock: AtomicU64::new(1),
            since: AtomicU64::new(u64::MAX),
            until: AtomicU64::new(0),
            size: AtomicUsize::new(0),
            hasher: hash::Build::default(),
        }
    }
}

impl Delegations {
    fn place(&self, of: impl Hash) -> usize {
        self.hasher.hash_one(of) as usize
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[self.place(ino) % SHARDS]
    }

    fn event(&self, ino: Ino) -> usize {
        self.place(ino) / SHARDS % EVENTS
    }

    fn name_event(&self, dir: Ino, name: &[u8]) -> usize {
        self.place((dir, name)) % EVENTS
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst) + 1
    }

    /// Whether anything may be noted.
    pub(crate) fn are_on(&self) -> bool {
        self.until.load(SeqCst) > 0
    }

    fn are_valid(&self) -> bool {
        let until = self.until.load(SeqCst);
        until > 0 && uptime().as_micros() < u128::from(until)
    }

    /// A recall connection has begun; nothing is delegated yet.
    pub(crate) fn begin(&self) {
        self.since.store(self.tick(), SeqCst);
    }

    /// Our term has begun anew at `from`, by [`uptime`].
    pub(crate) fn extend(&self, from: Duration, term: Duration) {
        let end = from + (term - term / MARGIN);
        self.until.fetch_max(end.as_micros() as u64, SeqCst);
    }

    /// The recall connection has ended: nothing is delegated to us any more.
    pub(crate) fn end(&self) {
        self.until.store(0, SeqCst);
        self.since.store(u64::MAX, SeqCst);
        self.forget_all();
    }

    /// Something was changed and it is not known what.
    pub(crate) fn forget(&self) {
        let now = self.tick();
        // Past the end of a connection nothing counts, whenever it was asked.
        let _ = self
            .since
            .fetch_update(SeqCst, SeqCst, |since| (since != u64::MAX).then_some(since.max(now)));
        self.forget_all();
    }

    fn forget_all(&self) {
        self.shards.iter().for_each(|shard| self.clear(&mut shard.lock()));
    }

    fn clear(&self, shard: &mut Shard) {
        let size: usize = shard.known.drain().map(|(_, known)| known.size()).sum();
        self.size.fetch_sub(size, SeqCst);
    }

    /// A shard of the namespace wants these back. When this returns, they are
    /// not used any more.
    pub(crate) fn recall(&self, inos: &[Ino]) {
        for ino in inos {
            let mut shard = self.shard(*ino).lock();
            shard.recalls[self.event(*ino)] = self.tick();
            if let Some(known) = shard.known.remove(ino) {
                self.size.fetch_sub(known.size(), SeqCst);
            }
        }
    }

    fn attr(&self, ino: Ino) -> Option<Attr> {
        if !self.are_valid() {
            return None;
        }
        self.shard(ino).lock().known.get(&ino)?.attr.clone()
    }

    fn name(&self, dir: Ino, name: &[u8]) -> Option<Name> {
        if !self.are_valid() {
            return None;
        }
        let shard = self.shard(dir).lock();
        let dir = shard.known.get(&dir)?.dir.as_ref()?;
        let absent = dir.complete && is_plain(name);
        dir.names.get(name).copied().or(absent.then_some(Name::Absent))
    }

    /// To be called before `op` is sent. A change makes what it concerns unknown
    /// until it is learnt.
    pub(crate) fn ask(&self, op: &MetaOp) -> Asked {
        let counts = op.is_mutation() && self.are_on();
        if counts {
            for (dir, name) in entries(op) {
                *self.shard(dir).lock().busy.entry(dir).or_default() += 1;
                self.name_changes(dir, name, Moment(u64::MAX));
            }
            for ino in foreseen(op) {
                self.attr_changes(ino, Moment(u64::MAX));
            }
            self.recall_cleared(op);
        }
        Asked { at: Moment(self.tick()), counts }
    }

    /// Which names a directory loses that is cleared, nobody knows before.
    fn recall_cleared(&self, op: &MetaOp) {
        if let MetaOp::Clear { dir, .. } = op {
            self.recall(&[*dir]);
        }
    }

    /// A change in a directory is not under way any more.
    fn is_over(&self, dir: Ino) {
        let mut shard = self.shard(dir).lock();
        if let Some(busy) = shard.busy.get_mut(&dir) {
            *busy -= 1;
            if *busy == 0 {
                shard.busy.remove(&dir);
            }
        }
    }

    /// Whoever knows as many names as a directory has, knows all.
    fn count(&self, dir: Ino) {
        let mut shard = self.shard(dir).lock();
        let busy = shard.busy.contains_key(&dir);
        let Some(Known { attr: Some(attr), dir: Some(names) }) = shard.known.get_mut(&dir) else {
            return;
        };
        if busy || names.complete || names.names.len() > COUNTED_MAX {
            return;
        }
        let known = names.names.values().filter(|name| matches!(name, Name::Is(_))).count();
        names.complete = known as u64 == attr.size;
    }

    /// An event for the attributes of `ino`. Whether there was none since `asked`.
    fn attr_changes(&self, ino: Ino, asked: Moment) -> bool {
        let mut shard = self.shard(ino).lock();
        let last = std::mem::replace(&mut shard.attrs[self.event(ino)], self.tick());
        if let Some(known) = shard.known.get_mut(&ino) {
            known.attr = None;
        }
        last < asked.0
    }

    /// An event for the entry. Whether there was none since `asked`.
    fn name_changes(&self, dir: Ino, name: &[u8], asked: Moment) -> bool {
        let mut shard = self.shard(dir).lock();
        let last = std::mem::replace(&mut shard.names[self.name_event(dir, name)], self.tick());
        self.put_name(&mut shard, dir, name, Name::Unknown);
        last < asked.0
    }

    /// Notes what the answer to `op`, which was asked at `asked`, tells. `granted`
    /// is what came with it; a change about which nothing came may be any.
    pub(crate) fn learn(
        &self,
        op: &MetaOp,
        asked: Asked,
        result: Result<&MetaReply, Errno>,
        granted: Option<&Granted>,
    ) {
        if asked.counts {
            entries(op).for_each(|(dir, _)| self.is_over(dir));
            self.recall_cleared(op);
        }
        self.take_in(op, asked.at, result, granted);
        if let Some((dir, _)) = op.entry().filter(|_| self.are_on()) {
            self.count(dir);
        }
    }

    fn take_in(
        &self,
        op: &MetaOp,
        asked: Moment,
        result: Result<&MetaReply, Errno>,
        granted: Option<&Granted>,
    ) {
        if !self.are_on() {
            return;
        }
        let Some(granted) = granted else {
            if op.is_mutation() {
                self.forget();
            }
            return;
        };
        let told = match result {
            Ok(
                MetaReply::Attr(attr)
                | MetaReply::Created { attr, .. }
                | MetaReply::Opened { attr, .. },
            ) => Some(attr),
            _ => None,
        };
        let delegated = |ino: Ino| granted.delegated.contains(&ino);
        let mut disturbed = Vec::new();
        if op.is_mutation() {
            // What was asked meanwhile may have been answered from before the change.
            let mut changed: Vec<Ino> = foreseen(op).collect();
            changed.extend(granted.changed.iter().filter(|ino| foreseen(op).all(|f| f != **ino)));
            disturbed.extend(changed.into_iter().filter(|ino| !self.attr_changes(*ino, asked)));
        }
        let own = Moment(self.tick());
        let own = if op.is_mutation() { own } else { asked };
        let attrs = [told, granted.dir.as_deref()].into_iter().flatten();
        for attr in attrs.filter(|attr| delegated(attr.ino) && !disturbed.contains(&attr.ino)) {
            let fresh = matches!(result, Ok(MetaReply::Created { created: true, .. }))
                && told.is_some_and(|told| told.ino == attr.ino);
            self.note_attr(attr, asked, own, fresh);
        }
        for (dir, name) in entries(op).filter(|_| op.is_mutation()) {
            if self.name_changes(dir, name, asked)
                && delegated(dir)
                && let Some(leads_to) = leads_to(op, result)
            {
                self.note_name(dir, name, leads_to, asked, Moment(self.tick()));
            }
        }
        if let (MetaOp::Lookup { parent, name } | MetaOp::Find { parent, name }, Some(leads_to)) =
            (op, leads_to(op, result))
            && delegated(*parent)
        {
            self.note_name(*parent, name, leads_to, asked, asked);
        }
    }

    /// Notes attributes; `own` is the moment against which our own changes count.
    fn note_attr(&self, attr: &Attr, asked: Moment, own: Moment, fresh: bool) {
        let mut shard = self.shard(attr.ino).lock();
        let at = self.event(attr.ino);
        if self.since.load(SeqCst) > asked.0
            || shard.recalls[at] > asked.0
            || shard.attrs[at] > own.0
        {
            return;
        }
        let known = self.enter(&mut shard, attr.ino);
        known.attr = Some(attr.clone());
        // Whoever makes a directory knows that it is empty.
        if fresh && attr.kind == Kind::Dir {
            known.dir.get_or_insert_default().complete = true;
        }
    }

    fn note_name(&self, dir: Ino, name: &[u8], leads_to: Name, asked: Moment, own: Moment) {
        let mut shard = self.shard(dir).lock();
        if self.since.load(SeqCst) > asked.0
            || shard.recalls[self.event(dir)] > asked.0
            || shard.names[self.name_event(dir, name)] > own.0
            || !is_plain(name)
        {
            return;
        }
        self.enter(&mut shard, dir).dir.get_or_insert_default();
        self.put_name(&mut shard, dir, name, leads_to);
    }

    fn enter<'a>(&self, shard: &'a mut Shard, ino: Ino) -> &'a mut Known {
        if self.size.load(SeqCst) >= KNOWN_MAX {
            self.clear(shard);
        }
        shard.known.entry(ino).or_insert_with(|| {
            self.size.fetch_add(1, SeqCst);
            Known::default()
        })
    }

    /// Notes a name in a directory that is known.
    fn put_name(&self, shard: &mut Shard, dir: Ino, name: &[u8], leads_to: Name) {
        let Some(dir) = shard.known.get_mut(&dir).and_then(|known| known.dir.as_mut()) else {
            return;
        };
        let before = dir.names.len();
        match leads_to {
            // The same as not to be noted.
            Name::Absent if dir.complete => drop(dir.names.remove(name)),
            Name::Unknown if !dir.complete => drop(dir.names.remove(name)),
            other => drop(dir.names.insert(name.into(), other)),
        }
        match dir.names.len().checked_sub(before) {
            Some(more) => self.size.fetch_add(more, SeqCst),
            None => self.size.fetch_sub(1, SeqCst),
        };
    }
}

impl Known {
    fn size(&self) -> usize {
        1 + self.dir.as_ref().map_or(0, |dir| dir.names.len())
    }
}

/// The entries that an operation concerns.
fn entries(op: &MetaOp) -> impl Iterator<Item = (Ino, &Bytes)> {
    let few = match op {
        MetaOp::Rename { parent, name, new_parent, new_name, .. } => {
            [Some((*parent, name)), Some((*new_parent, new_name))]
        }
        other => [other.entry(), None],
    };
    few.into_iter().flatten().chain(acts(op).iter().filter_map(Act::entry))
}

/// The acts of which an operation consists.
fn acts(op: &MetaOp) -> &[Act] {
    match op {
        MetaOp::Acts { acts } => acts,
        _ => &[],
    }
}

/// The inodes whose attributes a change surely concerns.
fn foreseen(op: &MetaOp) -> impl Iterator<Item = Ino> {
    let inos = match op {
        // Nothing that attributes show.
        MetaOp::Closed { .. } => [None, None],
        MetaOp::Rename { new_parent, .. } => [Some(op.target()), Some(*new_parent)],
        MetaOp::Link { ino, .. } => [Some(op.target()), Some(*ino)],
        _ => [Some(op.target()), None],
    };
    inos.into_iter().flatten().chain(acts(op).iter().skip(1).map(Act::target))
}

/// What the answer says of the entry.
fn leads_to(op: &MetaOp, result: Result<&MetaReply, Errno>) -> Option<Name> {
    match (op, result) {
        (
            MetaOp::Lookup { .. } | MetaOp::Find { .. } | MetaOp::Link { .. },
            Ok(MetaReply::Attr(attr)),
        )
        | (MetaOp::Create { .. }, Ok(MetaReply::Created { attr, .. })) => Some(Name::Is(attr.ino)),
        (MetaOp::Find { .. }, Ok(MetaReply::Leads(ino))) => Some(Name::Is(*ino)),
        (MetaOp::Unlink { .. } | MetaOp::Rmdir { .. }, Ok(_)) => Some(Name::Absent),
        (
            MetaOp::Lookup { .. }
            | MetaOp::Find { .. }
            | MetaOp::Unlink { .. }
            | MetaOp::Rmdir { .. },
            Err(Errno::ENOENT),
        ) => Some(Name::Absent),
        _ => None,
    }
}

/// Whether a name is one that a directory holds as an entry.
fn is_plain(name: &[u8]) -> bool {
    name != b"." && name != b".." && name.len() <= tatami_wire::NAME_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::{Layout, NodeId, Timestamp};

    const TERM: Duration = Duration::from_secs(600);
    const DIR: Ino = Ino(1);

    fn attr(ino: Ino, kind: Kind, version: u64) -> Attr {
        let t = Timestamp::default();
        Attr {
            ino,
            kind,
            mode: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
            version,
            layout: Layout::Whole { node: NodeId(0) },
            has_acl: false,
        }
    }

    impl Delegations {
        fn answer(&self, op: &MetaOp) -> Option<MetaResult> {
            super::answer(op, |_| [Some(self), None])
        }
    }

    fn create(n: u64) -> MetaOp {
        MetaOp::Create {
            parent: DIR,
            name: name(n),
            node: tatami_wire::meta::NewNode::Fifo,
            mode: 0,
            umask: 0,
            exclusive: true,
            open: None,
        }
    }

    fn on() -> Delegations {
        let delegations = Delegations::default();
        delegations.begin();
        delegations.extend(uptime(), TERM);
        delegations
    }

    fn name(n: u64) -> Bytes {
        Bytes::from(n.to_string().into_bytes())
    }

    fn lookup(n: u64) -> MetaOp {
        MetaOp::Lookup { parent: DIR, name: name(n) }
    }

    fn unlink(n: u64) -> MetaOp {
        MetaOp::Unlink { parent: DIR, name: name(n), keep: false }
    }

    fn get(ino: Ino) -> MetaOp {
        MetaOp::GetAttr { ino }
    }

    fn granted(changed: &[Ino], delegated: &[Ino], dir: Option<Attr>) -> Granted {
        Granted { changed: changed.to_vec(), delegated: delegated.to_vec(), dir: dir.map(Box::new) }
    }

    fn found(ino: Ino) -> MetaReply {
        MetaReply::Attr(attr(ino, Kind::File, 1))
    }

    #[test]
    fn what_is_delegated_needs_no_question() {
        let d = on();
        let asked = d.ask(&lookup(5));
        d.learn(&lookup(5), asked, Ok(&found(Ino(5))), Some(&granted(&[], &[DIR, Ino(5)], None)));
        assert_eq!(d.answer(&lookup(5)), Some(Ok(found(Ino(5)))));
        assert_eq!(d.answer(&get(Ino(5))), Some(Ok(found(Ino(5)))));
        assert_eq!(d.answer(&lookup(6)), None);
        let asked = d.ask(&lookup(6));
        d.learn(&lookup(6), asked, Err(Errno::ENOENT), Some(&granted(&[], &[DIR], None)));
        assert_eq!(d.answer(&lookup(6)), Some(Err(Errno::ENOENT)));
        // What was not delegated is not kept.
        let asked = d.ask(&lookup(7));
        d.learn(&lookup(7), asked, Ok(&found(Ino(7))), Some(&granted(&[], &[], None)));
        assert_eq!((d.answer(&lookup(7)), d.answer(&get(Ino(7)))), (None, None));
        d.recall(&[Ino(5)]);
        assert_eq!((d.answer(&lookup(5)), d.answer(&get(Ino(5)))), (None, None));
        assert_eq!(d.answer(&lookup(6)), Some(Err(Errno::ENOENT)));
        d.end();
        assert_eq!(d.answer(&lookup(6)), None);
    }

    #[test]
    fn an_answer_from_before_a_recall_is_not_kept() {
        let d = on();
        let asked = d.ask(&get(Ino(5)));
        d.recall(&[Ino(5)]);
        d.learn(&get(Ino(5)), asked, Ok(&found(Ino(5))), Some(&granted(&[], &[Ino(5)], None)));
        assert_eq!(d.answer(&get(Ino(5))), None);
        // Nor one of an earlier connection.
        let asked = d.ask(&get(Ino(5)));
        d.end();
        d.begin();
        d.extend(uptime(), TERM);
        d.learn(&get(Ino(5)), asked, Ok(&found(Ino(5))), Some(&granted(&[], &[Ino(5)], None)));
        assert_eq!(d.answer(&get(Ino(5))), None);
    }

    #[test]
    fn a_term_ends() {
        let d = Delegations::default();
        d.begin();
        let (begin, term) = (uptime(), Duration::from_millis(1));
        d.extend(begin, term);
        let asked = d.ask(&get(Ino(5)));
        d.learn(&get(Ino(5)), asked, Ok(&found(Ino(5))), Some(&granted(&[], &[Ino(5)], None)));
        while uptime() < begin + term {
            std::hint::spin_loop();
        }
        assert_eq!(d.answer(&get(Ino(5))), None);
    }

    #[test]
    fn a_new_directory_is_known_as_a_whole() {
        let d = on();
        let mkdir = MetaOp::Create {
            parent: Ino(9),
            name: name(0),
            node: tatami_wire::meta::NewNode::Dir,
            mode: 0o755,
            umask: 0,
            exclusive: true,
            open: None,
        };
        let asked = d.ask(&mkdir);
        let made = MetaReply::Created { attr: attr(DIR, Kind::Dir, 1), cap: None, created: true };
        let dir = Some(attr(Ino(9), Kind::Dir, 2));
        let with = granted(&[Ino(9), DIR], &[Ino(9), DIR], dir.clone());
        d.learn(&mkdir, asked, Ok(&made), Some(&with));
        assert_eq!(d.answer(&lookup(5)), Some(Err(Errno::ENOENT)));
        assert_eq!(d.answer(&get(Ino(9))), dir.map(|dir| Ok(MetaReply::Attr(dir))));
        // While a name is being made, only the shard knows.
        let asked = d.ask(&unlink(5));
        assert_eq!(d.answer(&lookup(5)), None);
        assert_eq!(d.answer(&lookup(6)), Some(Err(Errno::ENOENT)));
        d.learn(&unlink(5), asked, Err(Errno::ENOENT), Some(&granted(&[], &[DIR], None)));
        assert_eq!(d.answer(&lookup(5)), Some(Err(Errno::ENOENT)));
    }

    #[test]
    fn who_knows_as_many_names_as_there_are_knows_all() {
        let d = on();
        let dir = |size, version| Some(Attr { size, ..attr(DIR, Kind::Dir, version) });
        let made = |n| {
            let attr = attr(Ino(n), Kind::Fifo, 1);
            MetaReply::Created { attr, cap: None, created: true }
        };
        let told = |size, version| granted(&[DIR], &[DIR], dir(size, version));
        // While another name is being made, nothing is known of it.
        let (first, other) = (d.ask(&create(1)), d.ask(&create(2)));
        d.learn(&create(1), first, Ok(&made(1)), Some(&told(1, 1)));
        assert_eq!((d.answer(&lookup(2)), d.answer(&lookup(3))), (None, None));
        d.learn(&create(2), other, Ok(&made(2)), Some(&told(2, 2)));
        let third = d.ask(&create(3));
        d.learn(&create(3), third, Ok(&made(3)), Some(&told(3, 3)));
        assert_eq!(d.answer(&lookup(4)), Some(Err(Errno::ENOENT)));
        let asked = d.ask(&create(4));
        assert_eq!(d.answer(&lookup(4)), None);
        d.learn(&create(4), asked, Err(Errno::ENOSPC), Some(&granted(&[], &[], None)));
        d.recall(&[DIR]);
        // Somebody else has made a name that we do not know.
        let asked = d.ask(&create(5));
        d.learn(&create(5), asked, Ok(&made(5)), Some(&told(5, 5)));
        assert_eq!(d.answer(&lookup(6)), None);
    }

    #[test]
    fn an_inode_elsewhere_is_known_by_another_node() {
        let (here, there) = (on(), on());
        let of = |ino: Ino| [Some(if ino == DIR { &here } else { &there }), None];
        let find = MetaOp::Find { parent: DIR, name: name(5) };
        let asked = here.ask(&find);
        let leads = MetaReply::Leads(Ino(5));
        here.learn(&find, asked, Ok(&leads), Some(&granted(&[], &[DIR], None)));
        assert_eq!(answer(&find, of), Some(Ok(leads)));
        assert_eq!(answer(&lookup(5), of), None);
        let asked = there.ask(&get(Ino(5)));
        let with = granted(&[], &[Ino(5)], None);
        there.learn(&get(Ino(5)), asked, Ok(&found(Ino(5))), Some(&with));
        assert_eq!(answer(&find, of), Some(Ok(found(Ino(5)))));
    }

    #[test]
    fn a_change_of_unknown_effect_ends_all_knowledge() {
        let d = on();
        let asked = d.ask(&get(Ino(5)));
        d.learn(&get(Ino(5)), asked, Ok(&found(Ino(5))), Some(&granted(&[], &[Ino(5)], None)));
        let asked = d.ask(&unlink(3));
        d.learn(&unlink(3), asked, Err(Errno::EHOSTDOWN), None);
        assert_eq!(d.answer(&get(Ino(5))), None);
    }

    /// Threads of one client and another client, in any order, against a shard
    /// that applies requests one by one. What is answered without the shard must be what
    /// it would say, but for names that a thread is just changing.
    #[test]
    fn no_interleaving_leaves_something_old() {
        use proptest::prelude::*;
        #[derive(Clone, Debug)]
        enum Step {
            /// Thread `.0` asks: 0 to look up, 1 to make, 2 to remove name `.2`.
            Ask(usize, u8, u64),
            /// The shard applies what thread `.0` has asked.
            Apply(usize),
            /// Its answer comes in.
            Learn(usize),
            /// Somebody else makes or removes a name, and the recall comes in.
            Other(u64),
        }
        struct Call {
            op: MetaOp,
            asked: Asked,
            answer: Option<(MetaResult, Granted)>,
        }
        let step = prop_oneof![
            3 => (0..3usize, 0..3u8, 0..2u64).prop_map(|(t, k, n)| Step::Ask(t, k, n)),
            3 => (0..3usize).prop_map(Step::Apply),
            3 => (0..3usize).prop_map(Step::Learn),
            1 => (0..2u64).prop_map(Step::Other),
        ];
        proptest!(ProptestConfig::with_cases(2000), |(
            steps in proptest::collection::vec(step, 1..40)
        )| {
            let d = on();
            let mut entries: HashMap<u64, Ino> = HashMap::new();
            let (mut next, mut version) = (100u64, 1u64);
            let mut threads: Vec<Option<Call>> = vec![None, None, None];
            for step in steps {
                match step {
                    Step::Ask(t, kind, n) if threads[t].is_none() => {
                        let op = match kind {
                            0 => lookup(n),
                            1 => create(n),
                            _ => unlink(n),
                        };
                        let asked = d.ask(&op);
                        threads[t] = Some(Call { op, asked, answer: None });
                    }
                    Step::Apply(t) => {
                        let Some(call) = threads[t].as_mut().filter(|c| c.answer.is_none()) else {
                            continue;
                        };
                        let n: u64 = std::str::from_utf8(call.op.entry().expect("one").1)
                            .expect("digits").parse().expect("digits");
                        let there = entries.get(&n).copied();
                        let mut changed = Vec::new();
                        let result = match (&call.op, there) {
                            (MetaOp::Lookup { .. }, Some(ino)) => Ok(found(ino)),
                            (MetaOp::Create { .. }, None) => {
                                next += 1;
                                entries.insert(n, Ino(next));
                                changed = vec![DIR, Ino(next)];
                                let attr = attr(Ino(next), Kind::File, 1);
                                Ok(MetaReply::Created { attr, cap: None, created: true })
                            }
                            (MetaOp::Create { .. }, Some(_)) => Err(Errno::EEXIST),
                            (MetaOp::Unlink { .. }, Some(ino)) => {
                                entries.remove(&n);
                                changed = vec![DIR, ino];
                                Ok(MetaReply::Removed { ino: Some(ino), last: true })
                            }
                            (_, _) => Err(Errno::ENOENT),
                        };
                        version += changed.len() as u64;
                        let size = entries.len() as u64;
                        let dir = Some(Attr { size, ..attr(DIR, Kind::Dir, version) });
                        let dir = dir.filter(|_| !changed.is_empty());
                        let mut to = vec![DIR];
                        to.extend(match &result {
                            Ok(MetaReply::Attr(a) | MetaReply::Created { attr: a, .. }) => Some(a.ino),
                            _ => None,
                        });
                        call.answer = Some((result, granted(&changed, &to, dir)));
                    }
                    Step::Learn(t) => {
                        if threads[t].as_ref().is_none_or(|call| call.answer.is_none()) {
                            continue;
                        }
                        let Some(Call { op, asked, answer: Some((result, granted)) }) =
                            threads[t].take() else { continue };
                        d.learn(&op, asked, result.as_ref().map_err(|e| *e), Some(&granted));
                    }
                    Step::Other(n) => {
                        match entries.remove(&n) {
                            Some(ino) => d.recall(&[DIR, ino]),
                            None => {
                                next += 1;
                                entries.insert(n, Ino(next));
                                d.recall(&[DIR]);
                            }
                        }
                        version += 1;
                    }
                    Step::Ask(..) => {}
                }
                // A name that no thread is changing must be answered as the shard would.
                for n in 0..2 {
                    let busy = |c: &Call| c.op.is_mutation() && c.op.entry() == lookup(n).entry();
                    if threads.iter().flatten().any(busy) {
                        continue;
                    }
                    match d.answer(&lookup(n)) {
                        Some(Ok(MetaReply::Attr(a))) => {
                            prop_assert_eq!(Some(a.ino), entries.get(&n).copied());
                        }
                        Some(Err(_)) => prop_assert!(!entries.contains_key(&n)),
                        _ => {}
                    }
                }
                if !threads.iter().flatten().any(|c| c.op.is_mutation())
                    && let Some(Ok(MetaReply::Attr(a))) = d.answer(&get(DIR))
                {
                    prop_assert_eq!(a.version, version);
                }
            }
        });
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let d = on();
        for n in 0..(KNOWN_MAX as u64 * 2) {
            let op = lookup(n);
            let asked = d.ask(&op);
            let ino = Ino(1000 + n);
            d.learn(&op, asked, Ok(&found(ino)), Some(&granted(&[], &[DIR, ino], None)));
        }
        let held: usize = d
            .shards
            .iter()
            .flat_map(|s| s.lock().known.values().map(Known::size).collect::<Vec<_>>())
            .sum();
        assert_eq!(held, d.size.load(SeqCst));
        assert!(held <= KNOWN_MAX + SHARDS);
    }
}
