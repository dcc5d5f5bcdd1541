//! The cache of metadata that shards have delegated to this client: lookups in it need no request.
//!
//! Two threads may receive replies about one inode in one order and store them in the other. So
//! each stored fact carries the moment at which its request was sent
//! ([`DelegationCache::begin_request`]). A fact is dropped if an event has touched its subject
//! since then: a recall, or a change by this client. Moments are numbers of one logical clock that
//! each such event advances. The last event of an inode or entry is kept by hash: two that share a
//! place cost at worst one more request.

use crate::cached_inode::{CachedInode, LooseName, NameMap};
use crate::kernel_table::{KernelCache, KernelTable, revoke_attrs};
use crate::lent_names::{KernelName, LentName, LentNames};
use crate::operation_effects::{
    CachedEntry, affected_inodes, entry_after, is_entry_name, keeps_path, operation_entries,
    recorded_write,
};
use crate::uptime::uptime;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tatami_wire::delegation::{DelegationGrant, PartitionAttr};
use tatami_wire::meta::{DirEntry, MetaOp, MetaReply, MetaResult};
use tatami_wire::{Attr, Errno, Ino, InodeKind, hash};

const CACHE_SHARDS: usize = 16;
/// Places for the last events, in each shard of the cache.
const EVENTS: usize = 512;
/// Most inodes and entries in the cache; beyond, the shards of the cache are emptied one after the
/// other.
const KNOWN_MAX: usize = 256 * 1024;
/// One part in `MARGIN` of each term stays unused, because clocks run at different speeds.
const MARGIN: u32 = 10;

/// Directories with at most this many cached names are checked for completeness with each name.
const COUNTED_MAX: usize = 64;
/// The client lists a directory, or a partition, with at most this many entries, to learn all of
/// its names.
const LISTED_MAX: u64 = 4096;
/// After this many requests for absent names a small directory is listed, and a large one after
/// one more for each `LISTED_PER_LOOKUP` entries: a listing must cost less than what it saves.
const LISTED_AFTER: u32 = 8;
const LISTED_PER_LOOKUP: u32 = 64;

struct CacheShard {
    kernel_table: KernelTable,
    inodes: HashMap<Ino, CachedInode, hash::HashBuilder>,
    /// Names in directories that are not delegated, see [`LooseName`].
    loose_names: HashMap<Ino, NameMap<LooseName>, hash::HashBuilder>,
    /// Changes by this client that are in flight in a directory, counted.
    changes_in_flight: HashMap<Ino, u32, hash::HashBuilder>,
    /// Moments of the last events, by hash.
    attrs: Box<[u64; EVENTS]>,
    names: Box<[u64; EVENTS]>,
    recalls: Box<[u64; EVENTS]>,
}

impl Default for CacheShard {
    fn default() -> CacheShard {
        let events = || Box::new([0; EVENTS]);
        let (attrs, names, recalls) = (events(), events(), events());
        CacheShard {
            kernel_table: KernelTable::default(),
            inodes: HashMap::default(),
            loose_names: HashMap::default(),
            changes_in_flight: HashMap::default(),
            attrs,
            names,
            recalls,
        }
    }
}

/// The moment at which a request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CacheMoment(u64);

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheTicket {
    at: CacheMoment,
    /// It counts as a change in flight.
    counts: bool,
}

/// Returns the reply to `op`, if the caches have it. `of` returns the delegation caches of the
/// executors that can have an inode: that of its owner shard, and that of its allocating shard
/// where these differ. `attr` returns its attributes.
pub(crate) fn answer_from_cache<'a>(
    op: &MetaOp,
    of: impl Fn(Ino) -> [Option<&'a DelegationCache>; 2],
    attr: impl Fn(Ino) -> Option<Attr>,
) -> Option<MetaResult> {
    match op {
        MetaOp::GetAttr { ino } => Some(Ok(MetaReply::Attr(attr(*ino)?))),
        MetaOp::Lookup { parent, name } | MetaOp::LookupEntry { parent, name } => {
            let known = of(*parent).into_iter().flatten();
            match known.into_iter().find_map(|known| known.cached_entry(*parent, name))? {
                CachedEntry::Is(ino) => match attr(ino) {
                    Some(attr) => Some(Ok(MetaReply::Attr(attr))),
                    None if matches!(op, MetaOp::LookupEntry { .. }) => {
                        Some(Ok(MetaReply::Referral(ino)))
                    }
                    None => None,
                },
                CachedEntry::Absent => Some(Err(Errno::ENOENT)),
                CachedEntry::Unknown => None,
            }
        }
        _ => None,
    }
}

/// See the module.
pub(crate) struct DelegationCache {
    shards: Vec<Mutex<CacheShard>>,
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
    hasher: hash::HashBuilder,
    /// The kernel that caches some of it in turn.
    kernel: OnceLock<Arc<dyn KernelCache>>,
    /// The names of delegated directories that this kernel caches. Locked last.
    lent_names: Mutex<LentNames>,
}

impl Default for DelegationCache {
    fn default() -> DelegationCache {
        DelegationCache {
            shards: (0..CACHE_SHARDS).map(|_| Mutex::default()).collect(),
            clock: AtomicU64::new(1),
            since: AtomicU64::new(u64::MAX),
            until: AtomicU64::new(0),
            size: AtomicUsize::new(0),
            victim: AtomicUsize::new(0),
            hasher: hash::HashBuilder::default(),
            kernel: OnceLock::new(),
            lent_names: Mutex::default(),
        }
    }
}

impl DelegationCache {
    fn hash_key(&self, of: impl Hash) -> usize {
        self.hasher.hash_one(of) as usize
    }

    fn shard_of_inode(&self, ino: Ino) -> &Mutex<CacheShard> {
        &self.shards[self.hash_key(ino) % CACHE_SHARDS]
    }

    fn attr_event_index(&self, ino: Ino) -> usize {
        self.hash_key(ino) / CACHE_SHARDS % EVENTS
    }

    fn entry_event_index(&self, dir: Ino, name: &[u8]) -> usize {
        self.hash_key((dir, name)) % EVENTS
    }

    fn next_moment(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst) + 1
    }

    /// Returns whether replies may be stored.
    pub(crate) fn is_enabled(&self) -> bool {
        self.until.load(SeqCst) > 0
    }

    fn is_valid(&self) -> bool {
        let until = self.until.load(SeqCst);
        until > 0 && uptime().as_micros() < u128::from(until)
    }

    /// Begins a recall connection; nothing is delegated yet.
    pub(crate) fn begin_connection(&self) {
        // The new session of the server knows nothing of earlier grants: replies to earlier
        // requests must not be stored under it.
        self.since.store(self.next_moment(), SeqCst);
    }

    /// Extends the term from `from`, by [`uptime`].
    pub(crate) fn extend_term(&self, from: Duration, term: Duration) {
        let end = from + (term - term / MARGIN);
        // Terms overlap, and a late reply to an older message must not shorten the term.
        self.until.fetch_max(end.as_micros() as u64, SeqCst);
    }

    /// Ends the recall connection: nothing is delegated any more. Returns the names that the kernel
    /// still caches.
    pub(crate) fn end_connection(&self) -> Vec<LentName> {
        // Before the cache is emptied: from here on no thread stores a reply, so none can slip in
        // after a shard was emptied.
        self.until.store(0, SeqCst);
        self.since.store(u64::MAX, SeqCst);
        self.clear_all_shards();
        let mut attrs = Vec::new();
        self.shards.iter().for_each(|shard| attrs.extend(shard.lock().kernel_table.take_all()));
        revoke_attrs(attrs, self.kernel());
        self.lent_names.lock().take_all_names(uptime())
    }

    /// Sets the kernel that caches the facts that [`DelegationCache::grant_attr_timeout`] and
    /// [`DelegationCache::grant_name_timeout`] allow.
    pub(crate) fn set_kernel(&self, kernel: &Arc<dyn KernelCache>) {
        self.kernel.get_or_init(|| kernel.clone());
    }

    /// Returns the kernel that caches facts, if there is one.
    pub(crate) fn kernel(&self) -> Option<&dyn KernelCache> {
        self.kernel.get().map(Arc::as_ref)
    }

    /// Returns for how long the kernel may cache these attributes, if they are delegated. From then
    /// on the client revokes them when they change.
    pub(crate) fn grant_attr_timeout(&self, attr: &Attr) -> Option<Duration> {
        self.kernel()?;
        let now = uptime();
        let end = Duration::from_micros(self.until.load(SeqCst));
        let left = end.checked_sub(now)?;
        // The check and the note for the kernel are one step under this lock: a recall comes before
        // both and the check fails, or after both and revokes the kernel's copy.
        let mut shard = self.shard_of_inode(attr.ino).lock();
        let known = shard.inodes.get(&attr.ino)?;
        let lends = known.attr.as_ref() == Some(attr);
        (lends && shard.kernel_table.record_attr(attr.ino, attr.ino, now, end)).then_some(left)
    }

    /// As [`DelegationCache::grant_attr_timeout`], for a file whose create is held back.
    pub(crate) fn grant_held_timeout(&self, ino: Ino) -> Option<Duration> {
        self.kernel()?;
        let now = uptime();
        let end = Duration::from_micros(self.until.load(SeqCst));
        let left = end.checked_sub(now)?;
        let mut shard = self.shard_of_inode(ino).lock();
        shard.kernel_table.record_attr(ino, ino, now, end).then_some(left)
    }

    /// As [`DelegationCache::grant_attr_timeout`], for attributes of `whole`, of which `told` is a
    /// partition.
    pub(crate) fn grant_partition_timeout(
        &self,
        reported: &PartitionAttr,
        whole: Ino,
    ) -> Option<Duration> {
        self.kernel()?;
        let (now, part) = (uptime(), reported.attr.ino);
        let end = Duration::from_micros(self.until.load(SeqCst));
        let left = end.checked_sub(now)?;
        let mut shard = self.shard_of_inode(part).lock();
        let lends = shard.inodes.get(&part)?.part.as_deref() == Some(reported);
        (lends && shard.kernel_table.record_attr(part, whole, now, end)).then_some(left)
    }

    /// As [`DelegationCache::grant_attr_timeout`], for a directory that others are changing. The
    /// client holds its path delegation. Size and times in `attr` expire at `sum_end`.
    pub(crate) fn grant_path_timeout(&self, attr: &Attr, sum_end: Duration) -> Option<Duration> {
        self.kernel()?;
        let (now, term_end) = (uptime(), Duration::from_micros(self.until.load(SeqCst)));
        let end = term_end.min(sum_end);
        let left = end.checked_sub(now)?;
        let mut shard = self.shard_of_inode(attr.ino).lock();
        let known = shard.inodes.get(&attr.ino)?.busy_path()?;
        let walked = |dir: &Attr| (dir.mode, dir.uid, dir.gid, dir.xattr_class);
        let lends = walked(known) == walked(attr);
        (lends && shard.kernel_table.record_attr(attr.ino, attr.ino, now, end)).then_some(left)
    }

    /// Returns for how long the kernel may cache that this name leads to directory `ino`, if the
    /// directory is delegated. The caller must then check that the name still does, and else call
    /// [`DelegationCache::mark_moved`]: a rename by this client is no event of `ino`.
    pub(crate) fn grant_name_timeout(&self, ino: Ino, name: KernelName) -> Option<Duration> {
        self.kernel().filter(|kernel| kernel.can_expire_names())?;
        let (now, end) = (uptime(), Duration::from_micros(self.until.load(SeqCst)));
        // The check and the record are one step under this lock, as in `grant_attr_timeout`.
        let shard = self.shard_of_inode(ino).lock();
        // A delegation of the entries alone would not tell of a rename.
        shard.inodes.get(&ino)?.path.as_ref()?;
        self.lent_names.lock().lend_name(ino, name, now, end)
    }

    /// See [`LentNames::begin_change`].
    pub(crate) fn begin_name_change(&self, parents: &[Ino], names: &[KernelName]) -> Vec<Ino> {
        self.lent_names.lock().begin_change(parents, names)
    }

    /// Ends a change, see [`LentNames::end_change`]. The kernel drops names in the background:
    /// `further` are places to which it may have moved them.
    pub(crate) fn end_name_change(&self, busy: &[Ino], further: &[KernelName]) {
        let mut overdue = self.lent_names.lock().end_change(busy);
        if let Some(kernel) = self.kernel()
            && !overdue.is_empty()
        {
            overdue.extend_from_slice(further);
            kernel.expire_names(overdue, Box::new(drop));
        }
    }

    /// Records that a rename by this client may move the entry with that name.
    pub(crate) fn mark_moved(&self, name: &KernelName) {
        self.lent_names.lock().mark_moved(name);
    }

    /// Returns whether the name leads to `ino`, as far as this cache knows.
    pub(crate) fn leads_to(&self, dir: Ino, name: &[u8], ino: Ino) -> bool {
        self.cached_entry(dir, name) == Some(CachedEntry::Is(ino))
    }

    /// Makes the kernel drop these attributes, because this client does not know all of them.
    pub(crate) fn revoke_attr_timeout(&self, ino: Ino) {
        let given = self.shard_of_inode(ino).lock().kernel_table.take_attr(ino);
        if let (Some((shown, given)), Some(kernel)) = (given, self.kernel()) {
            // Without the lock: the kernel may first have to finish an operation that needs this
            // cache.
            kernel.invalidate_attr(shown, uptime().saturating_sub(given));
        }
    }

    /// Forgets everything, after a change of unknown effect.
    pub(crate) fn invalidate_all(&self) {
        let now = self.next_moment();
        // The value for an ended connection stays: until the next one begins, no reply counts,
        // whenever its request was sent.
        let _ = self
            .since
            .fetch_update(SeqCst, SeqCst, |since| (since != u64::MAX).then_some(since.max(now)));
        self.clear_all_shards();
    }

    fn clear_all_shards(&self) {
        self.shards.iter().for_each(|shard| self.clear_shard(&mut shard.lock()));
    }

    /// Empties one shard of the cache, `own` where the victim is locked. The most recent facts are
    /// mostly in others.
    fn evict_shard(&self, own: &mut CacheShard) {
        let next = self.victim.fetch_add(1, SeqCst) % CACHE_SHARDS;
        // The caller holds the lock of `own`. To wait for a second shard would allow a deadlock
        // between two threads.
        match self.shards[next].try_lock() {
            Some(mut other) => self.clear_shard(&mut other),
            None => self.clear_shard(own),
        }
    }

    fn clear_shard(&self, shard: &mut CacheShard) {
        let size: usize = shard.inodes.drain().map(|(_, known)| known.count_records()).sum();
        let loose: usize = shard.loose_names.drain().map(|(_, names)| names.len()).sum();
        self.size.fetch_sub(size + loose, SeqCst);
    }

    /// Handles a recall of these inodes, and of the `entries` of further ones, which keep their
    /// path. When this returns, the cache does not use them any more. Returns the names of them
    /// that the kernel may still use.
    pub(crate) fn handle_recall(&self, inos: &[Ino], entries: &[Ino]) -> Vec<LentName> {
        let (mut attrs, mut names, now) = (Vec::new(), Vec::new(), uptime());
        for ino in inos {
            attrs.extend(self.forget_inode(*ino));
            // After that, so that no name is lent any more, under the lock of the cache's shard.
            names.extend(self.lent_names.lock().take_name(*ino, now));
        }
        attrs.extend(entries.iter().filter_map(|dir| self.forget_entries(*dir)));
        // Without a lock, because the kernel may first have to finish an operation that needs this
        // cache.
        revoke_attrs(attrs, self.kernel());
        names
    }

    /// As [`DelegationCache::forget_inode`], of a directory that keeps its path.
    fn forget_entries(&self, dir: Ino) -> Option<(Ino, Duration)> {
        let mut shard = self.shard_of_inode(dir).lock();
        let attr = shard.kernel_table.take_attr(dir);
        shard.recalls[self.attr_event_index(dir)] = self.next_moment();
        if let Some(known) = shard.inodes.get_mut(&dir) {
            let before = known.count_records();
            (known.attr, known.part, known.dir) = (None, None, None);
            self.size.fetch_sub(before - known.count_records(), SeqCst);
        }
        attr
    }

    /// Drops all facts of the inode, and the replies that are in flight. Returns the attributes
    /// that the kernel must drop, see [`revoke_attrs`].
    fn forget_inode(&self, ino: Ino) -> Option<(Ino, Duration)> {
        let mut shard = self.shard_of_inode(ino).lock();
        // The kernel's part first, and all under one lock: see
        // `DelegationCache::grant_attr_timeout`.
        let attr = shard.kernel_table.take_attr(ino);
        // The event stops replies that are in flight: their requests were sent before.
        shard.recalls[self.attr_event_index(ino)] = self.next_moment();
        if let Some(known) = shard.inodes.remove(&ino) {
            self.size.fetch_sub(known.count_records(), SeqCst);
        }
        attr
    }

    /// Returns the attributes, if they are cached.
    pub(crate) fn cached_attr(&self, ino: Ino) -> Option<Attr> {
        if !self.is_valid() {
            return None;
        }
        self.shard_of_inode(ino).lock().inodes.get(&ino)?.attr.clone()
    }

    /// Returns the cached attributes of a directory that others are changing. Of these, only mode,
    /// owner and ACL are sure.
    pub(crate) fn cached_busy_path(&self, dir: Ino) -> Option<Attr> {
        if !self.is_valid() {
            return None;
        }
        self.shard_of_inode(dir).lock().inodes.get(&dir)?.busy_path().cloned()
    }

    /// Returns the partition with that number, if it is cached.
    pub(crate) fn cached_partition(&self, part: Ino) -> Option<Arc<PartitionAttr>> {
        if !self.is_valid() {
            return None;
        }
        self.shard_of_inode(part).lock().inodes.get(&part)?.part.clone()
    }

    fn cached_entry(&self, dir: Ino, name: &[u8]) -> Option<CachedEntry> {
        if !self.is_valid() {
            return None;
        }
        let shard = self.shard_of_inode(dir).lock();
        if let Some(entries) = shard.inodes.get(&dir).and_then(|known| known.dir.as_ref()) {
            let absent = entries.complete && is_entry_name(name);
            let found = entries.names.get(name).copied();
            if let Some(found) = found.or(absent.then_some(CachedEntry::Absent)) {
                return Some(found);
            }
        }
        let loose = *shard.loose_names.get(&dir)?.get(name)?;
        // Without the lock: the inode may be in any shard of the cache.
        drop(shard);
        self.holds_since(loose).then_some(CachedEntry::Is(loose.leads_to))
    }

    /// Returns whether there is surely no such name in the directory.
    pub(crate) fn knows_absent(&self, dir: Ino, name: &[u8]) -> bool {
        is_entry_name(name) && self.cached_entry(dir, name) == Some(CachedEntry::Absent)
    }

    /// Returns whether the delegation that covers the name was held until now.
    fn holds_since(&self, name: LooseName) -> bool {
        let shard = self.shard_of_inode(name.leads_to).lock();
        shard.inodes.get(&name.leads_to).is_some_and(|known| known.since == name.since)
    }

    /// Must be called before `op` is sent. A change makes the facts that it concerns unknown until
    /// its reply is stored.
    pub(crate) fn begin_request(&self, op: &MetaOp) -> CacheTicket {
        let counts = op.is_mutation() && self.is_enabled();
        if counts {
            for (dir, name) in operation_entries(op) {
                // Counted before the change is sent: meanwhile a directory cannot become complete
                // by the count of its names.
                *self.shard_of_inode(dir).lock().changes_in_flight.entry(dir).or_default() += 1;
                // No request is later than `u64::MAX`, so this only records the event.
                self.record_entry_event(dir, name, CacheMoment(u64::MAX));
            }
            for ino in affected_inodes(op) {
                self.record_attr_event(ino, op, CacheMoment(u64::MAX));
            }
            self.drop_cleared_directory(op);
        }
        // After the events, so that the reply to this request counts.
        CacheTicket { at: CacheMoment(self.next_moment()), counts }
    }

    /// The names that a clear of a directory removes are not known before, so the whole directory
    /// is dropped.
    fn drop_cleared_directory(&self, op: &MetaOp) {
        if let MetaOp::ClearDir { dir, .. } = op {
            // The directory keeps its own name, so the record of that stays.
            revoke_attrs(Vec::from_iter(self.forget_inode(*dir)), self.kernel());
            if let Some(names) = self.shard_of_inode(*dir).lock().loose_names.remove(dir) {
                self.size.fetch_sub(names.len(), SeqCst);
            }
        }
    }

    /// Ends a change in flight in a directory.
    fn end_change(&self, dir: Ino) {
        let mut shard = self.shard_of_inode(dir).lock();
        if let Some(busy) = shard.changes_in_flight.get_mut(&dir) {
            *busy -= 1;
            if *busy == 0 {
                shard.changes_in_flight.remove(&dir);
            }
        }
    }

    /// Marks a directory, or a partition, as complete if the cache has as many names as it has
    /// entries. One with more than `names_max` cached names is not checked.
    pub(crate) fn detect_complete_directory(&self, dir: Ino, names_max: usize) {
        let mut shard = self.shard_of_inode(dir).lock();
        let busy = shard.changes_in_flight.contains_key(&dir);
        let Some(known) = shard.inodes.get_mut(&dir) else { return };
        let (Some(size), Some(names)) = (known.entry_count(), known.dir.as_mut()) else { return };
        // With a change in flight, the count of entries and the names may be from different
        // moments.
        if busy || names.complete || names.names.len() > names_max {
            return;
        }
        let known = names.names.values().filter(|name| matches!(name, CachedEntry::Is(_))).count();
        names.complete = known as u64 == size;
    }

    /// Returns whether a listing of the directory, or partition, would save requests: this client
    /// has often asked for names that are not there, and its entries are delegated. The count
    /// begins again then.
    pub(crate) fn should_list(&self, dir: Ino) -> bool {
        let mut shard = self.shard_of_inode(dir).lock();
        let Some(known) = shard.inodes.get_mut(&dir) else { return false };
        let (Some(size), Some(names)) = (known.entry_count(), known.dir.as_mut()) else {
            return false;
        };
        let wanted = LISTED_AFTER + size.min(LISTED_MAX) as u32 / LISTED_PER_LOOKUP;
        let should = !names.complete && size <= LISTED_MAX && names.absent_lookups >= wanted;
        if should {
            names.absent_lookups = 0;
        }
        should
    }

    /// Records an event of the attributes of `ino`, by the change `op`. Returns whether there was
    /// none since `asked`.
    fn record_attr_event(&self, ino: Ino, op: &MetaOp, asked: CacheMoment) -> bool {
        let mut shard = self.shard_of_inode(ino).lock();
        let last =
            std::mem::replace(&mut shard.attrs[self.attr_event_index(ino)], self.next_moment());
        if let Some(known) = shard.inodes.get_mut(&ino) {
            match asked {
                CacheMoment(u64::MAX) => known.begin_attr_change(op),
                _ => known.end_attr_change(op),
            }
            if !keeps_path(op, ino) {
                known.path = None;
            }
        }
        last < asked.0
    }

    /// Records an event of the entry. Returns whether there was none since `asked`.
    fn record_entry_event(&self, dir: Ino, name: &[u8], asked: CacheMoment) -> bool {
        let mut shard = self.shard_of_inode(dir).lock();
        let last = std::mem::replace(
            &mut shard.names[self.entry_event_index(dir, name)],
            self.next_moment(),
        );
        self.store_entry(&mut shard, dir, name, CachedEntry::Unknown);
        if let Some(names) = shard.loose_names.get_mut(&dir)
            && names.remove(name).is_some()
        {
            self.size.fetch_sub(1, SeqCst);
            if names.is_empty() {
                shard.loose_names.remove(&dir);
            }
        }
        last < asked.0
    }

    /// Stores the facts in the reply to `op`, which was sent at `asked`. `granted` came with the
    /// reply; a change without it may have any effect.
    pub(crate) fn finish_request(
        &self,
        op: &MetaOp,
        asked: CacheTicket,
        result: Result<&MetaReply, Errno>,
        granted: Option<&DelegationGrant>,
    ) {
        // First, so that a directory can become complete with this reply.
        if asked.counts {
            operation_entries(op).for_each(|(dir, _)| self.end_change(dir));
            self.drop_cleared_directory(op);
        }
        self.store_reply(op, asked.at, result, granted);
        if op.is_mutation() && self.kernel().is_some() {
            self.revoke_changed_attrs(op, granted);
        }
        if let Some((dir, _)) = op.named_entry().filter(|_| self.is_enabled()) {
            self.detect_complete_directory(dir, COUNTED_MAX);
        }
    }

    /// Revokes the kernel's copies after a change by this client. The kernel knows of the change,
    /// but not that attributes that it got just before are older.
    fn revoke_changed_attrs(&self, op: &MetaOp, granted: Option<&DelegationGrant>) {
        // The kernel updates its copy itself for attributes that are set, and for an inode that
        // loses its name.
        if matches!(op, MetaOp::SetAttr { .. }) {
            return;
        }
        let changed = granted.into_iter().flat_map(|granted| granted.changed.iter().copied());
        let is_removal = matches!(op, MetaOp::Unlink { .. } | MetaOp::Rmdir { .. });
        affected_inodes(op)
            .chain(changed.filter(|_| !is_removal))
            .for_each(|ino| self.revoke_attr_timeout(ino));
    }

    fn store_reply(
        &self,
        op: &MetaOp,
        asked: CacheMoment,
        result: Result<&MetaReply, Errno>,
        granted: Option<&DelegationGrant>,
    ) {
        if !self.is_enabled() {
            return;
        }
        // The effect of a change without grants is unknown: the reply may have been lost, or come
        // from a shard that does not track this client.
        let Some(granted) = granted else {
            if op.is_mutation() {
                self.invalidate_all();
            }
            return;
        };
        let reported = match result {
            Ok(
                MetaReply::Attr(attr)
                | MetaReply::Created { attr, .. }
                | MetaReply::Opened { attr, .. },
            ) => Some(attr),
            Ok(MetaReply::OpenedInline { attr, .. }) => Some(&**attr),
            _ => None,
        };
        let part = granted.partition.as_deref();
        let delegated = |ino: Ino| {
            granted.delegated.contains(&ino) || part.is_some_and(|part| part.attr.ino == ino)
        };
        let mut disturbed = Vec::new();
        if op.is_mutation() {
            // Requests that were sent meanwhile may have been answered from before the change.
            // The foreseen inodes come first, each once.
            let mut changed: Vec<Ino> = affected_inodes(op).collect();
            changed.extend(
                granted.changed.iter().filter(|ino| affected_inodes(op).all(|f| f != **ino)),
            );
            disturbed
                .extend(changed.into_iter().filter(|ino| !self.record_attr_event(*ino, op, asked)));
        }
        // A fact from this client's own change counts against events up to now, its own event
        // included.
        let own = CacheMoment(self.next_moment());
        let own = if op.is_mutation() { own } else { asked };
        if let Some((ino, state)) = recorded_write(op, result).filter(|w| !disturbed.contains(&w.0))
        {
            let mut shard = self.shard_of_inode(ino).lock();
            let written = shard.inodes.get_mut(&ino).and_then(|i| i.take_attr_after_write(state));
            drop(shard);
            // The shard has spared the delegation of the client that writes.
            written.iter().for_each(|attr| self.cache_attr(attr, asked, own, false));
        }
        let attrs = [reported, granted.dir.as_deref()].into_iter().flatten();
        for attr in attrs.filter(|attr| delegated(attr.ino) && !disturbed.contains(&attr.ino)) {
            let fresh = matches!(result, Ok(MetaReply::Created { created: true, .. }))
                && reported.is_some_and(|reported| reported.ino == attr.ino);
            self.cache_attr(attr, asked, own, fresh);
        }
        if let Ok(MetaReply::Attr(dir) | MetaReply::FirstPartition(dir)) = result
            && granted.has_path
            && !disturbed.contains(&dir.ino)
        {
            self.cache_path(dir, asked, own);
        }
        if let Some(part) = part {
            self.cache_partition(part, asked, own, !disturbed.contains(&part.attr.ino));
        }
        for (dir, name) in operation_entries(op).filter(|_| op.is_mutation()) {
            // The event also when nothing is stored: an older lookup in flight must not bring the
            // old entry back.
            if self.record_entry_event(dir, name, asked)
                && let Some(leads_to) = entry_after(op, result)
            {
                let own = CacheMoment(self.next_moment());
                self.cache_found(dir, name, leads_to, &delegated, asked, own);
            }
        }
        if let (
            MetaOp::Lookup { parent, name } | MetaOp::LookupEntry { parent, name },
            Some(leads_to),
        ) = (op, entry_after(op, result))
        {
            self.cache_found(*parent, name, leads_to, &delegated, asked, asked);
            if leads_to == CachedEntry::Absent {
                self.count_absent_lookup(*parent);
            }
        }
        if let (MetaOp::ReadDir { dir, .. }, Ok(MetaReply::Entries { entries, .. })) = (op, result)
        {
            self.cache_listing(entries, delegated(*dir).then_some(*dir), asked, granted);
        }
    }

    /// Stores where a name leads, as part of its directory or, if that is not delegated, with the
    /// inode that it leads to.
    fn cache_found(
        &self,
        dir: Ino,
        name: &[u8],
        leads_to: CachedEntry,
        delegated: &impl Fn(Ino) -> bool,
        asked: CacheMoment,
        own: CacheMoment,
    ) {
        match leads_to {
            _ if delegated(dir) => self.cache_entry(dir, name, leads_to, asked, own),
            CachedEntry::Is(ino) if delegated(ino) => {
                self.cache_loose_name(dir, name, ino, asked, own);
            }
            _ => {}
        }
    }

    /// Stores a name in a directory that is not delegated, from a reply that delegated the inode
    /// that it leads to.
    fn cache_loose_name(
        &self,
        dir: Ino,
        name: &[u8],
        leads_to: Ino,
        asked: CacheMoment,
        own: CacheMoment,
    ) {
        let since = {
            let shard = self.shard_of_inode(leads_to).lock();
            // After a recall since then, the inode may be delegated again under another name.
            if self.is_outdated(&shard, leads_to, asked) {
                return;
            }
            let Some(known) = shard.inodes.get(&leads_to) else { return };
            known.since
        };
        let mut shard = self.shard_of_inode(dir).lock();
        if self.is_outdated(&shard, dir, asked)
            || shard.names[self.entry_event_index(dir, name)] > own.0
            || !is_entry_name(name)
        {
            return;
        }
        if self.size.load(SeqCst) >= KNOWN_MAX {
            self.evict_shard(&mut shard);
        }
        let names = shard.loose_names.entry(dir).or_default();
        if names.insert(name.into(), LooseName { leads_to, since }).is_none() {
            self.size.fetch_add(1, SeqCst);
        }
    }

    fn count_absent_lookup(&self, dir: Ino) {
        let mut shard = self.shard_of_inode(dir).lock();
        if let Some(names) = shard.inodes.get_mut(&dir).and_then(|known| known.dir.as_mut()) {
            names.absent_lookups = names.absent_lookups.saturating_add(1);
        }
    }

    /// Returns whether the fact was recalled since `asked`, or belongs to an earlier connection.
    fn is_outdated(&self, shard: &CacheShard, ino: Ino, asked: CacheMoment) -> bool {
        self.since.load(SeqCst) > asked.0 || shard.recalls[self.attr_event_index(ino)] > asked.0
    }

    /// Stores a partition, whose entries are delegated; its attributes only if they are sure, that
    /// is if no event has touched them. `own` is as for [`DelegationCache::cache_attr`].
    fn cache_partition(
        &self,
        reported: &PartitionAttr,
        asked: CacheMoment,
        own: CacheMoment,
        is_sure: bool,
    ) {
        let part = reported.attr.ino;
        let mut shard = self.shard_of_inode(part).lock();
        if self.is_outdated(&shard, part, asked) {
            return;
        }
        let is_sure = is_sure && shard.attrs[self.attr_event_index(part)] <= own.0;
        let known = self.enter_inode(&mut shard, part);
        known.dir.get_or_insert_default();
        if is_sure {
            known.part = Some(Arc::new(reported.clone()));
            // The first partition has the number and the attributes of the directory.
            if reported.range.from == 0 {
                (known.path, known.is_busy) = (Some(Box::new(reported.attr.clone())), false);
            }
        }
    }

    /// Stores a listing, with the names if the directory is delegated.
    fn cache_listing(
        &self,
        entries: &[DirEntry],
        dir: Option<Ino>,
        asked: CacheMoment,
        granted: &DelegationGrant,
    ) {
        for (n, entry) in entries.iter().enumerate() {
            if let Some(dir) = dir {
                self.cache_entry(dir, &entry.name, CachedEntry::Is(entry.ino), asked, asked);
            }
            if let Some(attr) =
                entry.attr.as_ref().filter(|_| granted.delegated_entries.is_delegated(n))
            {
                self.cache_attr(attr, asked, asked, false);
            }
        }
    }

    /// Stores attributes; changes by this client after `own` make them outdated.
    fn cache_attr(&self, attr: &Attr, asked: CacheMoment, own: CacheMoment, fresh: bool) {
        let mut shard = self.shard_of_inode(attr.ino).lock();
        if self.is_outdated(&shard, attr.ino, asked)
            || shard.attrs[self.attr_event_index(attr.ino)] > own.0
        {
            return;
        }
        let known = self.enter_inode(&mut shard, attr.ino);
        known.attr = Some(attr.clone());
        if attr.kind == InodeKind::Dir {
            (known.path, known.is_busy) = (Some(Box::new(attr.clone())), false);
        }
        // A directory that this client has just made is empty, so all its names are known.
        if fresh && attr.kind == InodeKind::Dir {
            known.dir.get_or_insert_default().complete = true;
        }
    }

    /// Stores the path of a directory; changes by this client after `own` make it outdated.
    fn cache_path(&self, dir: &Attr, asked: CacheMoment, own: CacheMoment) {
        let mut shard = self.shard_of_inode(dir.ino).lock();
        if self.is_outdated(&shard, dir.ino, asked)
            || shard.attrs[self.attr_event_index(dir.ino)] > own.0
        {
            return;
        }
        let known = self.enter_inode(&mut shard, dir.ino);
        (known.path, known.is_busy) = (Some(Box::new(dir.clone())), true);
    }

    fn cache_entry(
        &self,
        dir: Ino,
        name: &[u8],
        leads_to: CachedEntry,
        asked: CacheMoment,
        own: CacheMoment,
    ) {
        let mut shard = self.shard_of_inode(dir).lock();
        if self.is_outdated(&shard, dir, asked)
            || shard.names[self.entry_event_index(dir, name)] > own.0
            || !is_entry_name(name)
        {
            return;
        }
        let known = self.enter_inode(&mut shard, dir);
        known.dir.get_or_insert_default();
        self.store_entry(&mut shard, dir, name, leads_to);
    }

    fn enter_inode<'a>(&self, shard: &'a mut CacheShard, ino: Ino) -> &'a mut CachedInode {
        if self.size.load(SeqCst) >= KNOWN_MAX {
            self.evict_shard(shard);
        }
        shard.inodes.entry(ino).or_insert_with(|| {
            self.size.fetch_add(1, SeqCst);
            CachedInode { since: self.next_moment(), ..CachedInode::default() }
        })
    }

    /// Stores a name in a directory that is in the cache.
    fn store_entry(&self, shard: &mut CacheShard, dir: Ino, name: &[u8], leads_to: CachedEntry) {
        let Some(dir) = shard.inodes.get_mut(&dir).and_then(|known| known.dir.as_mut()) else {
            return;
        };
        let before = dir.names.len();
        match leads_to {
            // In a complete directory, no record means the same.
            CachedEntry::Absent if dir.complete => drop(dir.names.remove(name)),
            CachedEntry::Unknown if !dir.complete => drop(dir.names.remove(name)),
            other => drop(dir.names.insert(name.into(), other)),
        }
        match dir.names.len().checked_sub(before) {
            Some(more) => self.size.fetch_add(more, SeqCst),
            None => self.size.fetch_sub(1, SeqCst),
        };
    }
}

#[cfg(test)]
mod tests;
