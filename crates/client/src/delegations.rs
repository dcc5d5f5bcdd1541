//! The cache of metadata that shards have delegated to this client: lookups in it need no request.
//!
//! Two threads may receive replies about one inode in one order and store them in the other. So
//! each stored fact carries the moment at which its request was sent ([`Delegations::ask`]). A fact
//! is dropped if an event has touched its subject since then: a recall, or a change by this client.
//! Moments are numbers of one logical clock that each such event advances. The last event of an
//! inode or entry is kept by hash: two that share a place cost at worst one more request.

use crate::lent::{KernelCache, Lent, Owed, name_time};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tatami_wire::act::Act;
use tatami_wire::delegation::{Granted, PartTold};
use tatami_wire::meta::{Bytes, DirEntry, MetaOp, MetaReply, MetaResult};
use tatami_wire::{Attr, Errno, Ino, Kind, Timestamp, hash};

const SHARDS: usize = 16;
/// Places for the last events, in each shard of the cache.
const EVENTS: usize = 512;
/// Most inodes and entries in the cache; beyond, the shards of the cache are emptied one after the
/// other.
const KNOWN_MAX: usize = 256 * 1024;
/// One part in `MARGIN` of each term stays unused, because clocks run at different speeds.
const MARGIN: u32 = 10;

/// Directories with at most this many cached names are checked for completeness.
const COUNTED_MAX: usize = 64;

/// The inode that a name leads to, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Is(Ino),
    Absent,
    /// This client is changing the entry, in a directory whose other entries are all cached.
    Unknown,
}

/// The cached facts of an inode that is delegated to this client.
#[derive(Default)]
struct Known {
    attr: Option<Attr>,
    dir: Option<Box<Dir>>,
    /// Set if the inode is a partition of a split directory.
    part: Option<Arc<PartTold>>,
}

struct Dir {
    names: HashMap<Box<[u8]>, Name, hash::Build>,
    /// Names that are not in `names` are not in the directory.
    complete: bool,
    /// The time of the last change by another client, as far as known, by [`uptime`].
    since: Duration,
}

struct Shard {
    lent: Lent,
    known: HashMap<Ino, Known, hash::Build>,
    /// Changes by this client that are in flight in a directory, counted.
    busy: HashMap<Ino, u32, hash::Build>,
    /// Moments of the last events, by hash.
    attrs: Box<[u64; EVENTS]>,
    names: Box<[u64; EVENTS]>,
    recalls: Box<[u64; EVENTS]>,
}

impl Default for Shard {
    fn default() -> Shard {
        let events = || Box::new([0; EVENTS]);
        let (attrs, names, recalls) = (events(), events(), events());
        Shard {
            lent: Lent::default(),
            known: HashMap::default(),
            busy: HashMap::default(),
            attrs,
            names,
            recalls,
        }
    }
}

/// Returns the time since the machine was started. Unlike [`std::time::Instant`] it goes on while
/// the machine sleeps, as does the daemon's count of the term.
pub(crate) fn uptime() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// Converts a time that a node has reported to [`uptime`], or to some time later. As accurate as
/// the node's clock: it serves to guess how often a directory changes.
pub(crate) fn at(time: Timestamp) -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    // In whole seconds, less the one that may not be over.
    let ago = now.tv_sec.saturating_sub(time.sec).saturating_sub(1);
    uptime().saturating_sub(Duration::from_secs(u64::try_from(ago).unwrap_or_default()))
}

/// The moment at which a request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    at: Moment,
    /// It counts as a change in flight.
    counts: bool,
}

/// Returns the reply to `op`, if the caches have it. `of` returns the delegation caches of the
/// executors that can have an inode: that of its owner shard, and that of its allocating shard
/// where these differ. `attr` returns its attributes.
pub(crate) fn answer<'a>(
    op: &MetaOp,
    of: impl Fn(Ino) -> [Option<&'a Delegations>; 2],
    attr: impl Fn(Ino) -> Option<Attr>,
) -> Option<MetaResult> {
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
    /// Replies to requests that were sent before this moment do not count.
    since: AtomicU64,
    /// The end of the term, by [`uptime`] in microseconds: until then the cache may be used. 0
    /// while nothing is delegated.
    until: AtomicU64,
    /// Inodes and entries in the cache.
    size: AtomicUsize,
    /// The shard of the cache that is emptied next.
    victim: AtomicUsize,
    hasher: hash::Build,
    /// The kernel that caches some of it in turn.
    kernel: OnceLock<Arc<dyn KernelCache>>,
}

impl Default for Delegations {
    fn default() -> Delegations {
        Delegations {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            clock: AtomicU64::new(1),
            since: AtomicU64::new(u64::MAX),
            until: AtomicU64::new(0),
            size: AtomicUsize::new(0),
            victim: AtomicUsize::new(0),
            hasher: hash::Build::default(),
            kernel: OnceLock::new(),
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

    /// Returns whether replies may be stored.
    pub(crate) fn are_on(&self) -> bool {
        self.until.load(SeqCst) > 0
    }

    fn are_valid(&self) -> bool {
        let until = self.until.load(SeqCst);
        until > 0 && uptime().as_micros() < u128::from(until)
    }

    /// Begins a recall connection; nothing is delegated yet.
    pub(crate) fn begin(&self) {
        // The new session of the server knows nothing of earlier grants: replies to earlier
        // requests must not be stored under it.
        self.since.store(self.tick(), SeqCst);
    }

    /// Extends the term from `from`, by [`uptime`].
    pub(crate) fn extend(&self, from: Duration, term: Duration) {
        let end = from + (term - term / MARGIN);
        // Terms overlap, and a late reply to an older message must not shorten the term.
        self.until.fetch_max(end.as_micros() as u64, SeqCst);
    }

    /// Ends the recall connection: nothing is delegated any more. Returns for how long the kernel
    /// still caches names.
    pub(crate) fn end(&self) -> Duration {
        // Before the cache is emptied: from here on no thread stores a reply, so none can slip in
        // after a shard was emptied.
        self.until.store(0, SeqCst);
        self.since.store(u64::MAX, SeqCst);
        self.forget_all();
        let mut owed = Owed::default();
        self.shards.iter().for_each(|shard| shard.lock().lent.take_all(&mut owed));
        owed.settle(self.kernel())
    }

    /// Sets the kernel that caches the facts that [`Delegations::lend_attr`] and
    /// [`Delegations::lend_name`] allow.
    pub(crate) fn lend_to(&self, kernel: &Arc<dyn KernelCache>) {
        self.kernel.get_or_init(|| kernel.clone());
    }

    fn kernel(&self) -> Option<&dyn KernelCache> {
        self.kernel.get().map(Arc::as_ref)
    }

    /// Returns for how long the kernel may cache these attributes, if they are delegated. From then
    /// on the client revokes them when they change.
    pub(crate) fn lend_attr(&self, attr: &Attr) -> Option<Duration> {
        self.kernel()?;
        let now = uptime();
        let end = Duration::from_micros(self.until.load(SeqCst));
        let left = end.checked_sub(now)?;
        // The check and the note for the kernel are one step under this lock: a recall comes before
        // both and the check fails, or after both and revokes the kernel's copy.
        let mut shard = self.shard(attr.ino).lock();
        let known = shard.known.get(&attr.ino)?;
        let lends = known.attr.as_ref() == Some(attr);
        (lends && shard.lent.lend_attr(attr.ino, attr.ino, now, end)).then_some(left)
    }

    /// As [`Delegations::lend_attr`], for attributes of `whole`, of which `told` is a partition.
    pub(crate) fn lend_part(&self, told: &PartTold, whole: Ino) -> Option<Duration> {
        self.kernel()?;
        let (now, part) = (uptime(), told.attr.ino);
        let end = Duration::from_micros(self.until.load(SeqCst));
        let left = end.checked_sub(now)?;
        let mut shard = self.shard(part).lock();
        let lends = shard.known.get(&part)?.part.as_deref() == Some(told);
        (lends && shard.lent.lend_attr(part, whole, now, end)).then_some(left)
    }

    /// Returns for how long the kernel may cache that `name` leads to that inode, or to none.
    pub(crate) fn lend_name(&self, dir: Ino, name: &[u8], to: Option<Ino>) -> Option<Duration> {
        self.kernel()?;
        let now = uptime();
        let end = Duration::from_micros(self.until.load(SeqCst));
        let mut shard = self.shard(dir).lock();
        let known = shard.known.get(&dir)?.dir.as_ref()?;
        let absent = known.complete && is_plain(name);
        let leads_to = known.names.get(name).copied().or(absent.then_some(Name::Absent))?;
        let time = name_time(now.saturating_sub(known.since))?;
        let lends = leads_to == to.map_or(Name::Absent, Name::Is) && now + time < end;
        (lends && shard.lent.lend_name(dir, now, time)).then_some(time)
    }

    /// Makes the kernel drop these attributes, because this client does not know all of them.
    pub(crate) fn end_loan(&self, ino: Ino) {
        let given = self.shard(ino).lock().lent.take_attr(ino);
        if let (Some((shown, given)), Some(kernel)) = (given, self.kernel()) {
            // Without the lock: the kernel may first have to finish an operation that needs this
            // cache.
            kernel.forget_attr(shown, uptime().saturating_sub(given));
        }
    }

    /// Forgets everything, after a change of unknown effect.
    pub(crate) fn forget(&self) {
        let now = self.tick();
        // The value for an ended connection stays: until the next one begins, no reply counts,
        // whenever its request was sent.
        let _ = self
            .since
            .fetch_update(SeqCst, SeqCst, |since| (since != u64::MAX).then_some(since.max(now)));
        self.forget_all();
    }

    fn forget_all(&self) {
        self.shards.iter().for_each(|shard| self.clear(&mut shard.lock()));
    }

    /// Empties one shard of the cache, `own` where the victim is locked. The most recent facts are
    /// mostly in others.
    fn make_room(&self, own: &mut Shard) {
        let next = self.victim.fetch_add(1, SeqCst) % SHARDS;
        // The caller holds the lock of `own`. To wait for a second shard would allow a deadlock
        // between two threads.
        match self.shards[next].try_lock() {
            Some(mut other) => self.clear(&mut other),
            None => self.clear(own),
        }
    }

    fn clear(&self, shard: &mut Shard) {
        let size: usize = shard.known.drain().map(|(_, known)| known.size()).sum();
        self.size.fetch_sub(size, SeqCst);
    }

    /// Handles a recall of these inodes. When this returns, the cache does not use them any more;
    /// the kernel may use names for the returned time.
    pub(crate) fn recall(&self, inos: &[Ino]) -> Duration {
        let mut owed = Owed::default();
        for ino in inos {
            let mut shard = self.shard(*ino).lock();
            // The kernel's part first, and all under one lock: see `Delegations::lend_attr`.
            shard.lent.take(*ino, &mut owed);
            // The event stops replies that are in flight: their requests were sent before the
            // recall.
            shard.recalls[self.event(*ino)] = self.tick();
            if let Some(known) = shard.known.remove(ino) {
                self.size.fetch_sub(known.size(), SeqCst);
            }
        }
        // Without a lock, because the kernel may first have to finish an operation that needs this
        // cache.
        owed.settle(self.kernel())
    }

    /// Returns the attributes, if they are cached.
    pub(crate) fn attr(&self, ino: Ino) -> Option<Attr> {
        if !self.are_valid() {
            return None;
        }
        self.shard(ino).lock().known.get(&ino)?.attr.clone()
    }

    /// Returns the partition with that number, if it is cached.
    pub(crate) fn part(&self, part: Ino) -> Option<Arc<PartTold>> {
        if !self.are_valid() {
            return None;
        }
        self.shard(part).lock().known.get(&part)?.part.clone()
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

    /// Must be called before `op` is sent. A change makes the facts that it concerns unknown until
    /// its reply is stored.
    pub(crate) fn ask(&self, op: &MetaOp) -> Asked {
        let counts = op.is_mutation() && self.are_on();
        if counts {
            for (dir, name) in entries(op) {
                // Counted before the change is sent: meanwhile a directory cannot become complete
                // by the count of its names.
                *self.shard(dir).lock().busy.entry(dir).or_default() += 1;
                // No request is later than `u64::MAX`, so this only records the event.
                self.name_changes(dir, name, Moment(u64::MAX));
            }
            for ino in foreseen(op) {
                self.attr_changes(ino, Moment(u64::MAX));
            }
            self.recall_cleared(op);
        }
        // After the events, so that the reply to this request counts.
        Asked { at: Moment(self.tick()), counts }
    }

    /// The names that a clear of a directory removes are not known before, so the whole directory
    /// is dropped.
    fn recall_cleared(&self, op: &MetaOp) {
        if let MetaOp::Clear { dir, .. } = op {
            self.recall(&[*dir]);
        }
    }

    /// Ends a change in flight in a directory.
    fn is_over(&self, dir: Ino) {
        let mut shard = self.shard(dir).lock();
        if let Some(busy) = shard.busy.get_mut(&dir) {
            *busy -= 1;
            if *busy == 0 {
                shard.busy.remove(&dir);
            }
        }
    }

    /// Marks a directory as complete if the cache has as many names as the directory has entries.
    fn count(&self, dir: Ino) {
        let mut shard = self.shard(dir).lock();
        let busy = shard.busy.contains_key(&dir);
        let Some(Known { attr: Some(attr), dir: Some(names), .. }) = shard.known.get_mut(&dir)
        else {
            return;
        };
        // With a change in flight, the count of entries and the names may be from different
        // moments.
        if busy || names.complete || names.names.len() > COUNTED_MAX {
            return;
        }
        let known = names.names.values().filter(|name| matches!(name, Name::Is(_))).count();
        names.complete = known as u64 == attr.size;
    }

    /// Records an event of the attributes of `ino`. Returns whether there was none since `asked`.
    fn attr_changes(&self, ino: Ino, asked: Moment) -> bool {
        let mut shard = self.shard(ino).lock();
        let last = std::mem::replace(&mut shard.attrs[self.event(ino)], self.tick());
        if let Some(known) = shard.known.get_mut(&ino) {
            (known.attr, known.part) = (None, None);
        }
        last < asked.0
    }

    /// Records an event of the entry. Returns whether there was none since `asked`.
    fn name_changes(&self, dir: Ino, name: &[u8], asked: Moment) -> bool {
        let mut shard = self.shard(dir).lock();
        let last = std::mem::replace(&mut shard.names[self.name_event(dir, name)], self.tick());
        self.put_name(&mut shard, dir, name, Name::Unknown);
        last < asked.0
    }

    /// Stores the facts in the reply to `op`, which was sent at `asked`. `granted` came with the
    /// reply; a change without it may have any effect.
    pub(crate) fn learn(
        &self,
        op: &MetaOp,
        asked: Asked,
        result: Result<&MetaReply, Errno>,
        granted: Option<&Granted>,
    ) {
        // First, so that a directory can become complete with this reply.
        if asked.counts {
            entries(op).for_each(|(dir, _)| self.is_over(dir));
            self.recall_cleared(op);
        }
        self.take_in(op, asked.at, result, granted);
        if op.is_mutation() && self.kernel().is_some() {
            self.end_own(op, granted);
        }
        if let Some((dir, _)) = op.entry().filter(|_| self.are_on()) {
            self.count(dir);
        }
    }

    /// Revokes the kernel's copies after a change by this client. The kernel knows of the change,
    /// but not that attributes that it got just before are older.
    fn end_own(&self, op: &MetaOp, granted: Option<&Granted>) {
        // The kernel updates its copy itself for attributes that are set, and for an inode that
        // loses its name.
        if matches!(op, MetaOp::SetAttr { .. }) {
            return;
        }
        let changed = granted.into_iter().flat_map(|granted| granted.changed.iter().copied());
        let is_removal = matches!(op, MetaOp::Unlink { .. } | MetaOp::Rmdir { .. });
        foreseen(op).chain(changed.filter(|_| !is_removal)).for_each(|ino| self.end_loan(ino));
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
        // The effect of a change without grants is unknown: the reply may have been lost, or come
        // from a shard that does not track this client.
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
        let part = granted.part.as_deref();
        let delegated = |ino: Ino| {
            granted.delegated.contains(&ino) || part.is_some_and(|part| part.attr.ino == ino)
        };
        let mut disturbed = Vec::new();
        if op.is_mutation() {
            // Requests that were sent meanwhile may have been answered from before the change.
            // The foreseen inodes come first, each once.
            let mut changed: Vec<Ino> = foreseen(op).collect();
            changed.extend(granted.changed.iter().filter(|ino| foreseen(op).all(|f| f != **ino)));
            disturbed.extend(changed.into_iter().filter(|ino| !self.attr_changes(*ino, asked)));
        }
        // A fact from this client's own change counts against events up to now, its own event
        // included.
        let own = Moment(self.tick());
        let own = if op.is_mutation() { own } else { asked };
        let attrs = [told, granted.dir.as_deref()].into_iter().flatten();
        for attr in attrs.filter(|attr| delegated(attr.ino) && !disturbed.contains(&attr.ino)) {
            let fresh = matches!(result, Ok(MetaReply::Created { created: true, .. }))
                && told.is_some_and(|told| told.ino == attr.ino);
            self.note_attr(attr, asked, own, fresh);
        }
        if let Some(part) = part {
            self.note_part(part, asked, own, !disturbed.contains(&part.attr.ino));
        }
        for (dir, name) in entries(op).filter(|_| op.is_mutation()) {
            // The event also when nothing is stored: an older lookup in flight must not bring the
            // old entry back.
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
        if let (MetaOp::ReadDir { dir, .. }, Ok(MetaReply::Entries { entries, .. })) = (op, result)
        {
            self.note_listing(entries, delegated(*dir).then_some(*dir), asked, granted);
        }
    }

    /// Returns whether the fact was recalled since `asked`, or belongs to an earlier connection.
    fn is_past(&self, shard: &Shard, ino: Ino, asked: Moment) -> bool {
        self.since.load(SeqCst) > asked.0 || shard.recalls[self.event(ino)] > asked.0
    }

    /// Stores a partition, whose entries are delegated; its attributes only if they are sure, that
    /// is if no event has touched them. `own` is as for [`Delegations::note_attr`].
    fn note_part(&self, told: &PartTold, asked: Moment, own: Moment, is_sure: bool) {
        let part = told.attr.ino;
        let mut shard = self.shard(part).lock();
        if self.is_past(&shard, part, asked) {
            return;
        }
        let is_sure = is_sure && shard.attrs[self.event(part)] <= own.0;
        let known = self.enter(&mut shard, part);
        known.dir.get_or_insert_with(|| Dir::since(at(told.attr.ctime)));
        if is_sure {
            known.part = Some(Arc::new(told.clone()));
        }
    }

    /// Stores a listing, with the names if the directory is delegated.
    fn note_listing(
        &self,
        entries: &[DirEntry],
        dir: Option<Ino>,
        asked: Moment,
        granted: &Granted,
    ) {
        for (n, entry) in entries.iter().enumerate() {
            if let Some(dir) = dir {
                self.note_name(dir, &entry.name, Name::Is(entry.ino), asked, asked);
            }
            if let Some(attr) = entry.attr.as_ref().filter(|_| granted.listed.has(n)) {
                self.note_attr(attr, asked, asked, false);
            }
        }
    }

    /// Stores attributes; changes by this client after `own` make them outdated.
    fn note_attr(&self, attr: &Attr, asked: Moment, own: Moment, fresh: bool) {
        let mut shard = self.shard(attr.ino).lock();
        if self.is_past(&shard, attr.ino, asked) || shard.attrs[self.event(attr.ino)] > own.0 {
            return;
        }
        let known = self.enter(&mut shard, attr.ino);
        known.attr = Some(attr.clone());
        // A directory that this client has just made is empty, so all its names are known.
        if fresh && attr.kind == Kind::Dir {
            known.dir.get_or_insert_with(|| Dir::since(uptime())).complete = true;
        }
    }

    fn note_name(&self, dir: Ino, name: &[u8], leads_to: Name, asked: Moment, own: Moment) {
        let mut shard = self.shard(dir).lock();
        if self.is_past(&shard, dir, asked)
            || shard.names[self.name_event(dir, name)] > own.0
            || !is_plain(name)
        {
            return;
        }
        let known = self.enter(&mut shard, dir);
        if known.dir.is_none() {
            known.dir =
                Some(Dir::since(known.attr.as_ref().map_or_else(uptime, |attr| at(attr.ctime))));
        }
        self.put_name(&mut shard, dir, name, leads_to);
    }

    fn enter<'a>(&self, shard: &'a mut Shard, ino: Ino) -> &'a mut Known {
        if self.size.load(SeqCst) >= KNOWN_MAX {
            self.make_room(shard);
        }
        shard.known.entry(ino).or_insert_with(|| {
            self.size.fetch_add(1, SeqCst);
            Known::default()
        })
    }

    /// Stores a name in a directory that is in the cache.
    fn put_name(&self, shard: &mut Shard, dir: Ino, name: &[u8], leads_to: Name) {
        let Some(dir) = shard.known.get_mut(&dir).and_then(|known| known.dir.as_mut()) else {
            return;
        };
        let before = dir.names.len();
        match leads_to {
            // In a complete directory, no record means the same.
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

impl Dir {
    fn since(since: Duration) -> Box<Dir> {
        Box::new(Dir { names: HashMap::default(), complete: false, since })
    }
}

impl Known {
    fn size(&self) -> usize {
        1 + self.dir.as_ref().map_or(0, |dir| dir.names.len())
    }
}

/// Returns the entries that an operation concerns.
fn entries(op: &MetaOp) -> impl Iterator<Item = (Ino, &Bytes)> {
    let few = match op {
        MetaOp::Rename { parent, name, new_parent, new_name, .. } => {
            [Some((*parent, name)), Some((*new_parent, new_name))]
        }
        other => [other.entry(), None],
    };
    few.into_iter().flatten().chain(acts(op).iter().filter_map(Act::entry))
}

/// Returns the operations of a batch.
fn acts(op: &MetaOp) -> &[Act] {
    match op {
        MetaOp::Acts { acts } => acts,
        _ => &[],
    }
}

/// Returns the inodes whose attributes a change surely concerns.
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

/// Returns the entry after the operation, as the reply shows it.
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

/// Returns whether a directory stores a name as an entry.
fn is_plain(name: &[u8]) -> bool {
    name != b"." && name != b".." && name.len() <= tatami_wire::NAME_MAX
}

#[cfg(test)]
mod tests;
