//! The creates that this client holds back, and the directories that it has exclusively for them.
//!
//! A create is held back until the first byte of the file, or until anything else needs the file.
//! The table knows what is held back; `held_creates` decides and sends.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use tatami_wire::meta::Bytes;
use tatami_wire::{Access, Attr, Cap, Cred, Errno, ExecutorId, Ino, hash};

/// Creates in a directory after which the client asks for the directory.
const ASK_AFTER: u32 = 3;
/// Most creates between two requests for a directory that others use, too.
const ASK_AFTER_MAX: u32 = 4096;
/// Most directories that are remembered.
const DIRECTORIES_MAX: usize = 4096;
/// Most creates that are held back at a time.
const FILES_MAX: usize = 256;

/// What has become of a create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldOutcome {
    /// It is held back.
    Waiting,
    /// The shard has made the file and has given this capability.
    Made(Cap),
    /// The shard has refused it, or did not answer.
    Failed(Errno),
}

/// A file whose create is held back.
#[derive(Debug)]
pub(crate) struct HeldFile {
    pub(crate) dir: Ino,
    pub(crate) name: Bytes,
    /// The attributes that programs see until then.
    pub(crate) attr: Attr,
    pub(crate) cred: Cred,
    /// Permission bits before the umask is applied.
    pub(crate) mode: u16,
    pub(crate) umask: u16,
    pub(crate) access: Access,
    /// Most bytes that can go along with the create.
    pub(crate) inline_limit: u32,
    /// Locked during the request, so that others wait for its outcome.
    pub(crate) outcome: Mutex<HeldOutcome>,
}

/// A directory that this client has exclusively.
#[derive(Clone, Debug)]
pub(crate) struct ExclusiveDirectory {
    /// The executor that recalls it.
    pub(crate) executor: ExecutorId,
    /// Counters of numbers that no file has yet.
    pub(crate) counters: Range<u64>,
    pub(crate) inline_limit: u32,
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

#[derive(Debug)]
struct HeldDirectory {
    exclusive: Option<ExclusiveDirectory>,
    files: HashMap<Bytes, Arc<HeldFile>>,
    /// Creates since the last request for the directory.
    creates: u32,
    /// The client asks after so many.
    ask_after: u32,
}

impl Default for HeldDirectory {
    fn default() -> HeldDirectory {
        HeldDirectory { exclusive: None, files: HashMap::new(), creates: 0, ask_after: ASK_AFTER }
    }
}

#[derive(Debug, Default)]
struct HeldTables {
    dirs: HashMap<Ino, HeldDirectory, hash::HashBuilder>,
    files: HashMap<Ino, Arc<HeldFile>, hash::HashBuilder>,
    /// Files that the front end has not opened yet. Another thread may have made them meanwhile, so
    /// they need not be among `files` any more.
    unopened: HashMap<Ino, Arc<HeldFile>, hash::HashBuilder>,
    /// Counts the events that end what replies in flight grant.
    events: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct HeldTable {
    tables: Mutex<HeldTables>,
    /// Exclusive directories and held creates: while it is 0, no request looks into the tables.
    in_use: AtomicUsize,
}

impl HeldTable {
    /// Whether nothing is held back and no directory is exclusive.
    pub(crate) fn is_unused(&self) -> bool {
        self.in_use.load(SeqCst) == 0
    }

    /// Counts a create in `dir` that was not held back. Returns whether the client should ask for
    /// the directory now.
    pub(crate) fn count_create(&self, dir: Ino) -> bool {
        let mut tables = self.tables.lock();
        if tables.dirs.len() >= DIRECTORIES_MAX && !tables.dirs.contains_key(&dir) {
            tables.dirs.retain(|_, known| known.exclusive.is_some() || !known.files.is_empty());
            if tables.dirs.len() >= DIRECTORIES_MAX {
                return false;
            }
        }
        let known = tables.dirs.entry(dir).or_default();
        known.creates = known.creates.saturating_add(1);
        let has_none = known.exclusive.as_ref().is_none_or(|have| have.counters.is_empty());
        let due = if known.exclusive.is_some() { 1 } else { known.ask_after };
        let asks = has_none && known.creates >= due;
        if asks {
            known.creates = 0;
        }
        asks
    }

    /// Returns a mark for [`HeldTable::store_grant`], before the request.
    pub(crate) fn mark_request(&self) -> u64 {
        self.tables.lock().events
    }

    /// Stores that the client has `dir` exclusively, unless a recall has come since the request.
    pub(crate) fn store_grant(&self, dir: Ino, grant: ExclusiveDirectory, mark: u64) {
        let mut tables = self.tables.lock();
        if tables.events != mark {
            return;
        }
        let Some(known) = tables.dirs.get_mut(&dir) else { return };
        if known.exclusive.replace(grant).is_none() {
            self.in_use.fetch_add(1, SeqCst);
        }
    }

    /// Records that the shard refuses the directory: for ever, or as long as others use it.
    pub(crate) fn record_refusal(&self, dir: Ino, for_ever: bool) {
        if let Some(known) = self.tables.lock().dirs.get_mut(&dir) {
            known.ask_after = match for_ever {
                true => u32::MAX,
                false => known.ask_after.saturating_mul(2).min(ASK_AFTER_MAX),
            };
        }
    }

    /// Holds a create back, if the client has the directory and `build` makes a file of the next
    /// number.
    pub(crate) fn add_file(
        &self,
        dir: Ino,
        build: impl FnOnce(Ino, &ExclusiveDirectory) -> Option<HeldFile>,
    ) -> Option<Arc<HeldFile>> {
        let mut tables = self.tables.lock();
        if tables.files.len() >= FILES_MAX || tables.unopened.len() >= FILES_MAX {
            return None;
        }
        let known = tables.dirs.get_mut(&dir)?;
        let exclusive = known.exclusive.as_mut()?;
        let counter = exclusive.counters.clone().next()?;
        let ino = Ino::new(dir.owner_shard(), dir.owner_shard(), counter);
        let file = Arc::new(build(ino, exclusive)?);
        exclusive.counters.next();
        known.files.insert(file.name.clone(), file.clone());
        tables.files.insert(ino, file.clone());
        tables.unopened.insert(ino, file.clone());
        self.in_use.fetch_add(1, SeqCst);
        Some(file)
    }

    /// Returns the file for the front end that has made it and opens it now, whether it is still
    /// held back or not.
    pub(crate) fn take_unopened(&self, ino: Ino) -> Option<Arc<HeldFile>> {
        self.tables.lock().unopened.remove(&ino)
    }

    /// Ends a create that is not held back any more.
    pub(crate) fn remove_file(&self, file: &HeldFile) {
        let mut tables = self.tables.lock();
        if tables.files.remove(&file.attr.ino).is_some() {
            self.in_use.fetch_sub(1, SeqCst);
        }
        if let Some(known) = tables.dirs.get_mut(&file.dir) {
            known.files.remove(&file.name);
        }
    }

    /// Returns the file with that number.
    pub(crate) fn find_file(&self, ino: Ino) -> Option<Arc<HeldFile>> {
        if self.is_unused() {
            return None;
        }
        self.tables.lock().files.get(&ino).cloned()
    }

    /// Returns the file with that name.
    pub(crate) fn find_named(&self, dir: Ino, name: &Bytes) -> Option<Arc<HeldFile>> {
        self.tables.lock().dirs.get(&dir)?.files.get(name).cloned()
    }

    /// Returns the files of a directory.
    pub(crate) fn list_files(&self, dir: Ino) -> Vec<Arc<HeldFile>> {
        let tables = self.tables.lock();
        tables.dirs.get(&dir).into_iter().flat_map(|known| known.files.values().cloned()).collect()
    }

    /// Returns all files.
    pub(crate) fn list_all(&self) -> Vec<Arc<HeldFile>> {
        self.tables.lock().files.values().cloned().collect()
    }

    /// Returns the files of directories that the client has no more.
    pub(crate) fn list_stranded(&self) -> Vec<Arc<HeldFile>> {
        if self.is_unused() {
            return Vec::new();
        }
        let tables = self.tables.lock();
        let lost = tables.dirs.values().filter(|known| known.exclusive.is_none());
        lost.flat_map(|known| known.files.values().cloned()).collect()
    }

    /// Records that the client has these directories no more, nor those of replies in flight.
    /// Returns their files.
    pub(crate) fn end_directories<'a>(
        &self,
        dirs: impl Iterator<Item = &'a Ino>,
    ) -> Vec<Arc<HeldFile>> {
        let mut tables = self.tables.lock();
        tables.events += 1;
        let mut files = Vec::new();
        for dir in dirs {
            let Some(known) = tables.dirs.get_mut(dir) else { continue };
            files.extend(known.files.values().cloned());
            if known.exclusive.take().is_some() {
                known.creates = 0;
                known.ask_after = known.ask_after.saturating_mul(2).min(ASK_AFTER_MAX);
                self.in_use.fetch_sub(1, SeqCst);
            }
        }
        files
    }

    /// Records that the client does not use the directory any more. Returns its files.
    pub(crate) fn end_directory(&self, dir: Ino) -> Vec<Arc<HeldFile>> {
        let mut tables = self.tables.lock();
        let Some(known) = tables.dirs.get_mut(&dir) else { return Vec::new() };
        if known.exclusive.take().is_some() {
            self.in_use.fetch_sub(1, SeqCst);
        }
        known.creates = 0;
        known.files.values().cloned().collect()
    }

    /// Records that the client has no directory of that executor any more.
    pub(crate) fn end_executor(&self, executor: ExecutorId) {
        let mut tables = self.tables.lock();
        tables.events += 1;
        for known in tables.dirs.values_mut() {
            if known.exclusive.take_if(|have| have.executor == executor).is_some() {
                self.in_use.fetch_sub(1, SeqCst);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::{InodeKind, NodeId};

    const DIR: Ino = Ino(5);
    const HERE: ExecutorId = ExecutorId { node: NodeId(0), index: 0 };

    fn grant(counters: Range<u64>) -> ExclusiveDirectory {
        let (mode, uid, gid) = (0o755, 0, 0);
        ExclusiveDirectory { executor: HERE, counters, inline_limit: 4096, mode, uid, gid }
    }

    fn file(name: &str) -> impl FnOnce(Ino, &ExclusiveDirectory) -> Option<HeldFile> {
        let name = Bytes::from(name.as_bytes());
        |ino, have: &ExclusiveDirectory| {
            Some(HeldFile {
                dir: DIR,
                name,
                attr: Attr::with_defaults(ino, InodeKind::File),
                cred: Cred::ROOT,
                mode: 0o644,
                umask: 0,
                access: Access::BOTH,
                inline_limit: have.inline_limit,
                outcome: Mutex::new(HeldOutcome::Waiting),
            })
        }
    }

    fn ask(table: &HeldTable) -> u32 {
        (1..=2 * ASK_AFTER_MAX).find(|_| table.count_create(DIR)).expect("it asks at last")
    }

    #[test]
    fn numbers_are_given_once_and_then_asked_for_again() {
        let table = HeldTable::default();
        assert_eq!(ask(&table), ASK_AFTER);
        assert!(table.add_file(DIR, file("a")).is_none(), "nothing is granted");
        table.store_grant(DIR, grant(7..9), table.mark_request());
        let inos = ["a", "b"].map(|name| table.add_file(DIR, file(name)).expect("held").attr.ino);
        assert_eq!(inos.map(Ino::counter), [7, 8]);
        assert!(table.add_file(DIR, file("c")).is_none(), "no number is left");
        assert!(table.count_create(DIR), "it asks at once");
        table.store_grant(DIR, grant(20..21), table.mark_request());
        assert_eq!(table.add_file(DIR, file("c")).map(|file| file.attr.ino.counter()), Some(20));
        assert_eq!((table.list_files(DIR).len(), table.list_all().len()), (3, 3));
        for file in table.list_all() {
            table.remove_file(&file);
            table.remove_file(&file);
            // Its open finds the outcome, also when another thread has made it before.
            assert!(table.take_unopened(file.attr.ino).is_some());
            assert!(table.take_unopened(file.attr.ino).is_none());
        }
        assert!(!table.is_unused(), "the directory is still exclusive");
        assert!(table.end_directories([DIR].iter()).is_empty());
        assert!(table.is_unused());
    }

    #[test]
    fn a_recall_ends_what_a_reply_in_flight_grants() {
        let table = HeldTable::default();
        ask(&table);
        let mark = table.mark_request();
        table.end_directories([Ino(77)].iter());
        table.store_grant(DIR, grant(7..9), mark);
        assert!(table.add_file(DIR, file("a")).is_none());
        assert!(table.is_unused());
    }

    #[test]
    fn a_recalled_directory_gives_up_its_files_and_is_asked_for_later() {
        let table = HeldTable::default();
        ask(&table);
        table.store_grant(DIR, grant(7..9), table.mark_request());
        let held = table.add_file(DIR, file("a")).expect("held");
        assert!(table.list_stranded().is_empty());
        assert_eq!(table.end_directories([DIR].iter()).len(), 1);
        assert!(table.add_file(DIR, file("b")).is_none());
        assert_eq!(table.list_stranded().len(), 1, "it is still held back");
        assert_eq!(ask(&table), 2 * ASK_AFTER);
        table.record_refusal(DIR, false);
        assert_eq!(ask(&table), 4 * ASK_AFTER);
        table.remove_file(&held);
        assert!(table.is_unused());
    }

    #[test]
    fn the_end_of_a_connection_strands_the_files_of_its_executor() {
        let table = HeldTable::default();
        ask(&table);
        table.store_grant(DIR, grant(7..9), table.mark_request());
        table.add_file(DIR, file("a")).expect("held");
        table.end_executor(ExecutorId { index: 1, ..HERE });
        assert!(table.list_stranded().is_empty());
        table.end_executor(HERE);
        assert_eq!(table.list_stranded().len(), 1);
        assert!(table.find_file(table.list_all()[0].attr.ino).is_some());
        assert!(table.find_named(DIR, &Bytes::from(b"a".as_slice())).is_some());
    }
}
