//! A store that fails on request, for the crash tests.
//!
//! It keeps two maps: one that readers see, and one that a power cut leaves. Commits wait in
//! between until they are synced.

use super::{Change, MemoryStore, PairVisitor, Store, StoreError};

const PATH: &str = "faulty store";

/// The way a commit or sync is to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// The disk reports `EIO`. The store is poisoned.
    Io,
    /// The disk is full: nothing is written, the store goes on.
    Full,
    /// As `Io`, but the batch had reached the disk: after a reopen it is there.
    IoAfterWrite,
    /// As `Io`, and half of the batch had reached the disk. Readers see that half until the store
    /// is opened again, which drops it: batches are atomic.
    Torn,
}

/// A [`MemoryStore`] with a disk that can fail and lose power.
#[derive(Clone, Debug, Default)]
pub struct FaultyStore {
    visible: MemoryStore,
    durable: MemoryStore,
    pending: Vec<Vec<Change>>,
    commits: u64,
    commit_faults: Vec<(u64, StoreFault)>,
    sync_fault: bool,
    full: bool,
    poisoned: Option<&'static str>,
    /// The map that readers saw before a batch was torn.
    whole: Option<MemoryStore>,
}

impl FaultyStore {
    /// Returns an empty store without faults.
    pub fn new() -> FaultyStore {
        FaultyStore::default()
    }

    /// Lets the `n`-th commit from now (0 is the next) fail.
    pub fn fail_commit(&mut self, n: u64, fault: StoreFault) {
        self.commit_faults.push((self.commits + n, fault));
    }

    /// Lets the next sync fail.
    pub fn fail_sync(&mut self) {
        self.sync_fault = true;
    }

    /// Sets whether [`Store::has_room`] returns false.
    pub fn set_full(&mut self, full: bool) {
        self.full = full;
    }

    /// Simulates a power cut: all synced commits are there, and of the commits since then exactly
    /// the first `kept`. A disk may have written some of them, always a prefix, because they go to
    /// one log.
    pub fn power_cut(&mut self, kept: usize) {
        let kept = kept.min(self.pending.len());
        for batch in self.pending.drain(..).take(kept) {
            batch.iter().for_each(|change| self.durable.apply_change(change));
        }
        self.reset_faults();
        self.visible = self.durable.clone();
    }

    /// Simulates the death of the process: all commits are there.
    pub fn kill_process(&mut self) {
        self.reset_faults();
    }

    /// Returns the number of commits that a power cut could lose.
    pub fn unsynced_commits(&self) -> usize {
        self.pending.len()
    }

    /// Returns the map that readers see.
    pub fn visible(&self) -> &MemoryStore {
        &self.visible
    }

    /// Changes one pair past all checks, as a broken disk or program would.
    pub fn corrupt_pair(&mut self, change: &Change) {
        self.visible.apply_change(change);
        self.durable.apply_change(change);
    }

    fn reset_faults(&mut self) {
        if let Some(whole) = self.whole.take() {
            self.visible = whole;
        }
        self.poisoned = None;
        self.commit_faults.clear();
        self.sync_fault = false;
    }

    fn write_batch(&mut self, batch: &[Change]) {
        batch.iter().for_each(|change| self.visible.apply_change(change));
        self.pending.push(batch.to_vec());
    }

    fn check_poisoned(&self) -> Result<(), StoreError> {
        match self.poisoned {
            Some(op) => Err(StoreError::Poisoned { path: PATH.into(), op }),
            None => Ok(()),
        }
    }

    fn io_error(op: &'static str) -> StoreError {
        let source = std::io::Error::from_raw_os_error(tatami_wire::Errno::EIO.0);
        StoreError::Io { path: PATH.into(), op, source }
    }
}

impl Store for FaultyStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.visible.get(key)
    }

    fn scan(
        &self,
        from: &[u8],
        prefix: &[u8],
        visit: &mut PairVisitor<'_>,
    ) -> Result<(), StoreError> {
        self.visible.scan(from, prefix, visit)
    }

    fn commit(&mut self, batch: &[Change]) -> Result<(), StoreError> {
        self.check_poisoned()?;
        let n = self.commits;
        self.commits += 1;
        match self.commit_faults.iter().find(|(at, _)| *at == n).map(|(_, fault)| *fault) {
            None => self.write_batch(batch),
            Some(StoreFault::Full) => return Err(StoreError::Full { path: PATH.into() }),
            Some(fault) => {
                self.poisoned = Some("commit");
                match fault {
                    StoreFault::IoAfterWrite => self.write_batch(batch),
                    StoreFault::Torn => {
                        self.whole = Some(self.visible.clone());
                        let half = &batch[..batch.len() / 2];
                        half.iter().for_each(|change| self.visible.apply_change(change));
                    }
                    StoreFault::Io | StoreFault::Full => {}
                }
                return Err(FaultyStore::io_error("commit"));
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.check_poisoned()?;
        if self.sync_fault {
            self.poisoned = Some("sync");
            return Err(FaultyStore::io_error("sync"));
        }
        for batch in self.pending.drain(..) {
            batch.iter().for_each(|change| self.durable.apply_change(change));
        }
        Ok(())
    }

    fn has_room(&mut self) -> bool {
        !self.full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str) -> Vec<Change> {
        vec![(key.as_bytes().to_vec(), Some(vec![1]))]
    }

    #[test]
    fn a_power_cut_keeps_what_was_synced_and_a_prefix_of_the_rest() {
        let mut store = FaultyStore::new();
        store.commit(&put("a")).expect("commit");
        store.sync().expect("sync");
        store.commit(&put("b")).expect("commit");
        store.commit(&put("c")).expect("commit");
        store.power_cut(1);
        let left: Vec<_> = store.visible().iter().map(|(k, _)| k.to_vec()).collect();
        assert_eq!(left, [b"a", b"b"]);
    }

    #[test]
    fn faults_come_when_told_and_poison_unless_the_disk_is_full() {
        let mut store = FaultyStore::new();
        store.fail_commit(0, StoreFault::Full);
        store.fail_commit(2, StoreFault::IoAfterWrite);
        assert!(matches!(store.commit(&put("a")), Err(StoreError::Full { .. })));
        store.commit(&put("b")).expect("a full disk does no harm");
        assert!(matches!(store.commit(&put("c")), Err(StoreError::Io { .. })));
        assert!(matches!(store.commit(&put("d")), Err(StoreError::Poisoned { .. })));
        assert!(matches!(store.sync(), Err(StoreError::Poisoned { .. })));
        store.kill_process();
        assert!(store.get(b"c").expect("get").is_some(), "the batch had reached the disk");
        store.fail_commit(0, StoreFault::Torn);
        let both = [put("e"), put("f")].concat();
        assert!(matches!(store.commit(&both), Err(StoreError::Io { .. })));
        assert!(store.get(b"e").expect("get").is_some(), "torn");
        store.kill_process();
        assert!(store.get(b"e").expect("get").is_none(), "dropped when opened again");
    }
}
