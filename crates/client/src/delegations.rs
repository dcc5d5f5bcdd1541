//! What the shards have delegated to us: questions about names that need no
//! request.
//!
//! Two threads may be told of one inode in one order and note it in the other.
//! So everything that is noted carries the moment at which its question was asked
//! ([`Delegations::ask`]), and is dropped if something has happened since to what
//! it tells of: a recall, or a change of our own. Moments are numbers of one clock
//! that goes up with each such event; the last event of an inode or entry is kept
//! by hash, so that two that share a place are at worst asked again.

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
/// Places for the last events, in each shard.
const EVENTS: usize = 512;
/// Most inodes and entries remembered; past it, a shard of them is forgotten, each in its turn.
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
    /// It is a partition of a directory that is in several.
    part: Option<Arc<PartTold>>,
}

struct Dir {
    names: HashMap<Box<[u8]>, Name, hash::Build>,
    /// Whatever is not in `names` is not in the directory.
    complete: bool,
    /// Since when nobody else has changed it, as far as we know, by [`uptime`].
    since: Duration,
}

struct Shard {
    lent: Lent,
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

/// Time since the machine was started. Unlike [`std::time::Instant`] it goes on
/// while the machine sleeps, as the term that the daemon counts does.
pub(crate) fn uptime() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// A time that a node has told, by [`uptime`], or some time later. As true as the node's clock: it helps to guess how
/// often a directory changes.
pub(crate) fn at(time: Timestamp) -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    // In whole seconds, less the one that may not be over.
    let ago = now.tv_sec.saturating_sub(time.sec).saturating_sub(1);
    uptime().saturating_sub(Duration::from_secs(u64::try_from(ago).unwrap_or_default()))
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

/// The answer to `op`, if it is known. `of` tells what the executors have delegated to us that may have an
/// inode: the one of its home, and, where that is another, the one on which it was made; `attr` tells its attributes.
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
    /// Nothing that was asked before counts.
    since: AtomicU64,
    /// Until when what is known may be used, by [`uptime`] in microseconds. 0 for
    /// not at all.
    until: AtomicU64,
    /// Inodes and entries remembered.
    size: AtomicUsize,
    /// Which shard is forgotten next.
    victim: AtomicUsize,
    hasher: hash::Build,
    /// To which some of it is lent.
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

    /// The recall connection has ended: nothing is delegated to us any more. Returns for how long the kernel still
    /// keeps names.
    pub(crate) fn end(&self) -> Duration {
        self.until.store(0, SeqCst);
        self.since.store(u64::MAX, SeqCst);
        self.forget_all();
        let mut owed = Owed::default();
        self.shards.iter().for_each(|shard| shard.lock().lent.take_all(&mut owed));
        owed.settle(self.kernel())
    }

    /// Who keeps what [`Delegations::lend_attr`] and [`Delegations::lend_name`] allow.
    pub(crate) fn lend_to(&self, kernel: &Arc<dyn KernelCache>) {
        self.kernel.get_or_init(|| kernel.clone());
    }

    fn kernel(&self) -> Option<&dyn KernelCache> {
        self.kernel.get().map(Arc::as_ref)
    }

    /// For how long the kernel may keep these attributes, if they are what is delegated to us. From then on it is told
    /// when they are not.
    pub(crate) fn lend_attr(&self, attr: &Attr) -> Option<Duration> {
        self.kernel()?;
        let now = uptime();
        let end = Duration::from_micros(self.until.load(SeqCst));
        let left = end.checked_sub(now)?;
        let mut shard = self.shard(attr.ino).lock();
        let known = shard.known.get(&attr.ino)?;
        let lends = known.attr.as_ref() == Some(attr);
        (lends && shard.lent.lend_attr(attr.ino, attr.ino, now, end)).then_some(left)
    }

    /// The same of attributes of `whole`, of which `told` is a partition.
    pub(crate) fn lend_part(&self, told: &PartTold, whole: Ino) -> Option<Duration> {
        self.kernel()?;
        let (now, part) = (uptime(), told.attr.ino);
        let end = Duration::from_micros(self.until.load(SeqCst));
        let left = end.checked_sub(now)?;
        let mut shard = self.shard(part).lock();
        let lends = shard.known.get(&part)?.part.as_deref() == Some(told);
        (lends && shard.lent.lend_attr(part, whole, now, end)).then_some(left)
    }

    /// For how long the kernel may keep that `name` leads to that inode, or to none.
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

    /// The kernel shall keep these attributes no longer, because what we know of them is not all.
    pub(crate) fn end_loan(&self, ino: Ino) {
        let given = self.shard(ino).lock().lent.take_attr(ino);
        if let (Some((shown, given)), Some(kernel)) = (given, self.kernel()) {
            kernel.forget_attr(shown, uptime().saturating_sub(given));
        }
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

    /// Forgets a shard, `own` where that is the one that is in use. What was noted last is mostly in others.
    fn make_room(&self, own: &mut Shard) {
        let next = self.victim.fetch_add(1, SeqCst) % SHARDS;
        match self.shards[next].try_lock() {
            Some(mut other) => self.clear(&mut other),
            None => self.clear(own),
        }
    }

    fn clear(&self, shard: &mut Shard) {
        let size: usize = shard.known.drain().map(|(_, known)| known.size()).sum();
        self.size.fetch_sub(size, SeqCst);
    }

    /// A shard of the namespace wants these back. When this returns, they are not used any more, but that the kernel
    /// keeps names for as long as is returned.
    pub(crate) fn recall(&self, inos: &[Ino]) -> Duration {
        let mut owed = Owed::default();
        for ino in inos {
            let mut shard = self.shard(*ino).lock();
            shard.lent.take(*ino, &mut owed);
            shard.recalls[self.event(*ino)] = self.tick();
            if let Some(known) = shard.known.remove(ino) {
                self.size.fetch_sub(known.size(), SeqCst);
            }
        }
        owed.settle(self.kernel())
    }

    /// The attributes, if they are known.
    pub(crate) fn attr(&self, ino: Ino) -> Option<Attr> {
        if !self.are_valid() {
            return None;
        }
        self.shard(ino).lock().known.get(&ino)?.attr.clone()
    }

    /// The partition with that number, if it is known.
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
        let Some(Known { attr: Some(attr), dir: Some(names), .. }) = shard.known.get_mut(&dir)
        else {
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
            (known.attr, known.part) = (None, None);
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
        if op.is_mutation() && self.kernel().is_some() {
            self.end_own(op, granted);
        }
        if let Some((dir, _)) = op.entry().filter(|_| self.are_on()) {
            self.count(dir);
        }
    }

    /// Of our own changes the kernel knows, but not that what it was told just before is older.
    fn end_own(&self, op: &MetaOp, granted: Option<&Granted>) {
        // Of attributes that are set, and of an inode whose name goes, it does.
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
        if let Some(part) = part {
            self.note_part(part, asked, own, !disturbed.contains(&part.attr.ino));
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
        if let (MetaOp::ReadDir { dir, .. }, Ok(MetaReply::Entries { entries, .. })) = (op, result)
        {
            self.note_listing(entries, delegated(*dir).then_some(*dir), asked, granted);
        }
    }

    /// Whether what was asked then is not delegated any more, or not by the connection that there is.
    fn is_past(&self, shard: &Shard, ino: Ino, asked: Moment) -> bool {
        self.since.load(SeqCst) > asked.0 || shard.recalls[self.event(ino)] > asked.0
    }

    /// Notes a partition, of which the entries are delegated; what it is like only if nothing has `disturbed` that. `own`
    /// is as for [`Delegations::note_attr`].
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

    /// Notes what a listing tells, with the names if the directory is delegated.
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

    /// Notes attributes; `own` is the moment against which our own changes count.
    fn note_attr(&self, attr: &Attr, asked: Moment, own: Moment, fresh: bool) {
        let mut shard = self.shard(attr.ino).lock();
        if self.is_past(&shard, attr.ino, asked) || shard.attrs[self.event(attr.ino)] > own.0 {
            return;
        }
        let known = self.enter(&mut shard, attr.ino);
        known.attr = Some(attr.clone());
        // Whoever makes a directory knows that it is empty.
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
mod tests;
