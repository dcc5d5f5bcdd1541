//! Ranks of one open on one node: the first rank that needs descriptors requests those of all ranks
//! from the node's daemon, and passes them on.
//!
//! ```text
//! first rank to write        daemon of the node       other ranks of the node
//!   claims the open (table)
//!   ── OpenSeveral ────────────▶ opens, makes
//!   ◀─ descriptors of all ──────
//!   ── descriptors of each (SCM_RIGHTS) ─────────────────▶ inbox
//!                                                          find the claim at their first write,
//!                                                          take theirs from the inbox
//! ```
//!
//! The ranks agree on the requesting rank through a *claim table*: a page of memory that the lowest
//! rank of the node creates once for each group of processes, and sends to the others while they
//! open the file. A claim is one atomic step. The rank with the claim waits only for the daemon. A
//! rank that finds the claim taken waits for the claiming rank, at most for [`PATIENCE`]. After any
//! failure a rank sends its own request to the daemon. That request opens the same objects, so both
//! ways have the same result.

use super::claim_table::ClaimTable;
use super::inbox::{Delivery, DescriptorInbox, FILES, Subject, find_inbox};
use super::open_file::OpenVolumeFile;
use super::state::OwnRankPosition;
use std::fs::File;
use std::hash::Hasher;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tatami_wire::Piece;
use tatami_wire::object::OPEN_DESCRIPTORS_MAX;

/// How long a rank waits for the rank that has claimed the open. This is longer than the reply of a
/// healthy daemon takes, and shorter than the restart of a daemon. After one timeout a rank does
/// not wait again for ranks of this group.
const PATIENCE: Duration = Duration::from_secs(3);
/// Ranks whose descriptors fit into one request: two for each, and the rank table.
const BATCH: usize = (OPEN_DESCRIPTORS_MAX - 1) / 2;

/// A rank, and the number of its inbox.
type Neighbor = (u32, u64);

/// The ranks of an open on this node, as one of them knows them.
#[derive(Debug)]
pub(super) struct Neighbors {
    inbox: Arc<DescriptorInbox>,
    open: u64,
    rank: u32,
    /// In order of ranks, with this one.
    all: Vec<Neighbor>,
    group: u64,
    /// No descriptors are on their way to this rank: it has received them, or they were refused, or
    /// it requested those of all ranks.
    is_served: AtomicBool,
}

impl Neighbors {
    /// Finds the ranks `local` of this node by the inbox numbers of all ranks. `None` where no
    /// other rank has an inbox. The lowest rank sends the claim table to the others, if they do not
    /// have it.
    pub(super) fn meet(
        open: u64,
        rank: u32,
        local: impl Iterator<Item = u32>,
        inboxes: &[u64],
    ) -> Option<Neighbors> {
        let inbox = find_inbox(*inboxes.get(rank as usize)?)?;
        let number = |rank: u32| inboxes.get(rank as usize).copied().filter(|number| *number != 0);
        let all = local.filter_map(|rank| Some((rank, number(rank)?))).collect();
        Neighbors::among(inbox, open, rank, all)
    }

    fn among(
        inbox: Arc<DescriptorInbox>,
        open: u64,
        rank: u32,
        all: Vec<Neighbor>,
    ) -> Option<Neighbors> {
        if all.len() < 2 {
            return None;
        }
        let mut hasher = tatami_wire::hash::FastHasher::default();
        all.iter().for_each(|(_, number)| hasher.write_u64(*number));
        let group = hasher.finish();
        // Expect before any rank can write: descriptors that arrive for an unexpected rank are
        // closed.
        inbox.expect((open, rank));
        let is_served = AtomicBool::new(false);
        let neighbors = Neighbors { inbox, open, rank, all, group, is_served };
        if neighbors.all[0].0 == rank && neighbors.inbox.find_table(group).is_none() {
            neighbors.send_table();
        }
        Some(neighbors)
    }

    /// Creates the claim table of this group and sends it to all ranks. A rank that does not
    /// receive it sends its own requests.
    fn send_table(&self) {
        let Ok((table, file)) = ClaimTable::create() else { return };
        self.inbox.keep_table(self.group, Arc::new(table));
        for (_, number) in &self.all[1..] {
            let subject = Subject::Table { group: self.group };
            let _ = self.inbox.send(*number, subject, &[file.as_fd()]);
        }
    }

    /// Returns the descriptors of this rank: its piece, its journal and the rank table. `first` is
    /// the piece of rank 0. `None` where the rank must send its own request.
    pub(super) fn obtain(
        &self,
        volume: &OpenVolumeFile,
        first: u32,
        seat: OwnRankPosition,
    ) -> Option<[File; FILES]> {
        let ask = |pieces: &[Piece]| volume.make_all(pieces).ok();
        self.obtain_by(ask, first, Piece::of_bytes(seat.roll), PATIENCE)
    }

    fn obtain_by(
        &self,
        ask: impl FnMut(&[Piece]) -> Option<Vec<File>>,
        first: u32,
        roll: Piece,
        patience: Duration,
    ) -> Option<[File; FILES]> {
        let table = self.inbox.find_table(self.group)?;
        // Relaxed: the flag only saves a wait, and a thread that misses it times out once more.
        if table.is_broken.load(Ordering::Relaxed) {
            return None;
        }
        if table.claim(self.open) {
            self.is_served.store(true, Ordering::Relaxed);
            return self.ask_for_all(ask, first, roll);
        }
        let delivery = self.inbox.await_files((self.open, self.rank), patience);
        // After a timeout the descriptors may still be on their way, so the rank does not count as
        // served. Then the drop collects and closes them.
        let is_over = !matches!(delivery, Delivery::Nothing);
        self.is_served.store(is_over, Ordering::Relaxed);
        if !is_over {
            table.is_broken.store(true, Ordering::Relaxed);
        }
        match delivery {
            Delivery::Files(files) => Some(files.map(File::from)),
            Delivery::Refused | Delivery::Nothing => None,
        }
    }

    /// Requests the descriptors of all ranks from the daemon, batch by batch, and sends each rank
    /// its own.
    fn ask_for_all(
        &self,
        mut ask: impl FnMut(&[Piece]) -> Option<Vec<File>>,
        first: u32,
        roll: Piece,
    ) -> Option<[File; FILES]> {
        let mut own = None;
        let mut is_refused = false;
        for batch in self.all.chunks(BATCH) {
            let mut pieces = vec![roll];
            for (rank, _) in batch {
                let number = first + rank;
                pieces.extend([Piece::of_bytes(number), Piece::of_journal(number)]);
            }
            let mut files = match is_refused {
                true => Vec::new(),
                false => {
                    ask(&pieces).filter(|files| files.len() == pieces.len()).unwrap_or_default()
                }
            };
            // After one refusal the daemon gets no further request, but all remaining ranks get a
            // refusal: they wait for it.
            is_refused = files.is_empty();
            let roll = if is_refused { None } else { Some(files.remove(0)) };
            let mut files = files.into_iter();
            for (rank, number) in batch {
                let files = match (files.next(), files.next(), &roll) {
                    (Some(bytes), Some(journal), Some(roll)) => Some((bytes, journal, roll)),
                    _ => None,
                };
                if *rank != self.rank {
                    self.pass(*rank, *number, files);
                } else if let Some((bytes, journal, roll)) = files {
                    own = roll.try_clone().ok().map(|roll| [bytes, journal, roll]);
                }
            }
        }
        own
    }

    /// Sends a rank its descriptors, or a refusal.
    fn pass(&self, rank: u32, number: u64, files: Option<(File, File, &File)>) {
        let open = self.open;
        let sent = files.is_some_and(|(bytes, journal, roll)| {
            let files = [bytes.as_fd(), journal.as_fd(), roll.as_fd()];
            self.inbox.send(number, Subject::Files { open, rank }, &files).is_ok()
        });
        if !sent {
            // A message without descriptors may succeed where one with descriptors fails. Without
            // either, the rank waits until its timeout ends.
            let _ = self.inbox.send(number, Subject::Refusal { open, rank }, &[]);
        }
    }
}

impl Drop for Neighbors {
    fn drop(&mut self) {
        let member = (self.open, self.rank);
        // A rank that wrote nothing was sent descriptors if another rank wrote. In the socket's
        // queue they would keep the objects on the disk after the file is removed.
        let is_sent = || {
            let table = self.inbox.find_table(self.group);
            table.is_some_and(|table| table.is_claimed(self.open))
        };
        if !self.is_served.load(Ordering::Relaxed) && is_sent() {
            let _ = self.inbox.await_files(member, Duration::ZERO);
        }
        self.inbox.forget(member);
    }
}

#[cfg(test)]
mod tests {
    use super::super::claim_table::TABLE;
    use super::*;
    use rustix::fs::MemfdFlags;
    use rustix::io::Errno;
    use rustix::process::geteuid;
    use rustix::thread::set_thread_res_uid;
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;
    use tatami_skip::skip_test;

    const OPEN: u64 = 0x1234_5678;
    const FIRST: u32 = 100;
    /// A timeout that no test reaches.
    const LONG: Duration = Duration::from_secs(600);
    const SHORT: Duration = Duration::from_millis(100);
    /// A user other than the user that runs the tests.
    const OTHER: u32 = 4001;

    fn roll() -> Piece {
        Piece::of_bytes(9)
    }

    fn inbox() -> Arc<DescriptorInbox> {
        let user = geteuid().as_raw();
        Arc::new(DescriptorInbox::new(std::process::id(), user).expect("an inbox"))
    }

    fn inboxes(ranks: u32) -> Vec<Arc<DescriptorInbox>> {
        (0..ranks).map(|_| inbox()).collect()
    }

    /// Returns the view of each rank after all ranks have opened.
    fn meet_all(inboxes: &[Arc<DescriptorInbox>], open: u64) -> Vec<Neighbors> {
        let all: Vec<Neighbor> = (0..).zip(inboxes.iter().map(|inbox| inbox.number())).collect();
        let meet = |(rank, inbox): (u32, &Arc<DescriptorInbox>)| {
            Neighbors::among(inbox.clone(), open, rank, all.clone()).expect("there are others")
        };
        (0..).zip(inboxes).map(meet).collect()
    }

    /// A node's daemon; its files contain the number of their object.
    #[derive(Default)]
    struct Daemon {
        requests: AtomicUsize,
        most: AtomicUsize,
    }

    impl Daemon {
        fn open(&self, pieces: &[Piece]) -> Option<Vec<File>> {
            self.requests.fetch_add(1, Ordering::Relaxed);
            self.most.fetch_max(pieces.len(), Ordering::Relaxed);
            let open = |piece: &Piece| {
                let mut file = tempfile::tempfile().expect("a file");
                file.write_all(&piece.0.to_le_bytes()).expect("write");
                file
            };
            Some(pieces.iter().map(open).collect())
        }

        fn requests(&self) -> usize {
            self.requests.load(Ordering::Relaxed)
        }
    }

    fn object(file: &File) -> Piece {
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, 0).expect("read");
        Piece(u32::from_le_bytes(bytes))
    }

    fn assert_own(rank: u32, files: Option<[File; FILES]>) {
        let files = files.unwrap_or_else(|| panic!("rank {rank} has to ask by itself"));
        let number = FIRST + rank;
        let expected = [Piece::of_bytes(number), Piece::of_journal(number), roll()];
        assert_eq!(files.each_ref().map(object), expected, "rank {rank}");
    }

    #[test]
    fn ranks_of_a_node_cost_one_request_whoever_comes_first() {
        let (daemon, inboxes) = (Daemon::default(), inboxes(5));
        for (open, order) in [(OPEN, [0, 1, 2, 3, 4]), (7, [4, 2, 0, 3, 1]), (8, [2, 1, 0, 4, 3])] {
            let before = daemon.requests();
            let all = meet_all(&inboxes, open);
            for rank in order {
                let ask = |pieces: &[Piece]| daemon.open(pieces);
                assert_own(rank, all[rank as usize].obtain_by(ask, FIRST, roll(), LONG));
            }
            assert_eq!(daemon.requests() - before, 1);
        }
    }

    #[test]
    fn ranks_that_come_at_once_cost_one_request() {
        let (daemon, inboxes) = (Daemon::default(), inboxes(16));
        for open in 1..20 {
            let all = meet_all(&inboxes, open);
            let before = daemon.requests();
            std::thread::scope(|scope| {
                for neighbors in &all {
                    let ask = |pieces: &[Piece]| daemon.open(pieces);
                    scope.spawn(move || {
                        assert_own(neighbors.rank, neighbors.obtain_by(ask, FIRST, roll(), LONG));
                    });
                }
            });
            assert_eq!(daemon.requests() - before, 1, "open {open}");
        }
    }

    #[test]
    fn many_ranks_are_served_in_batches() {
        let ranks = 2 * BATCH as u32 + 3;
        let (daemon, inboxes) = (Daemon::default(), inboxes(ranks));
        let all = meet_all(&inboxes, OPEN);
        for rank in (0..ranks).rev() {
            let ask = |pieces: &[Piece]| daemon.open(pieces);
            assert_own(rank, all[rank as usize].obtain_by(ask, FIRST, roll(), LONG));
        }
        assert_eq!(daemon.requests(), 3);
        assert!(daemon.most.load(Ordering::Relaxed) <= OPEN_DESCRIPTORS_MAX);
    }

    #[test]
    fn a_rank_that_is_refused_asks_by_itself_at_once() {
        let inboxes = inboxes(3);
        let all = meet_all(&inboxes, OPEN);
        for neighbors in &all {
            let began = Instant::now();
            assert!(neighbors.obtain_by(|_| None, FIRST, roll(), LONG).is_none());
            assert!(began.elapsed() < LONG / 2);
        }
    }

    #[test]
    fn a_rank_that_dies_with_the_claim_is_waited_for_once() {
        let inboxes = inboxes(3);
        let all = meet_all(&inboxes, OPEN);
        let table = inboxes[0].find_table(all[0].group).expect("a table");
        assert!(table.claim(OPEN), "and then it dies");
        let began = Instant::now();
        assert!(all[1].obtain_by(|_| panic!("not claimed"), FIRST, roll(), SHORT).is_none());
        assert!(began.elapsed() >= SHORT);
        // Late descriptors are closed with the handle, and no later open waits.
        drop(all);
        let all = meet_all(&inboxes, OPEN + 1);
        assert!(all[0].obtain_by(|_| None, FIRST, roll(), LONG).is_none());
        assert!(all[1].obtain_by(|_| panic!("broken"), FIRST, roll(), LONG).is_none());
    }

    #[test]
    fn a_dead_neighbor_delays_nobody() {
        let (daemon, mut inboxes) = (Daemon::default(), inboxes(4));
        let mut all = meet_all(&inboxes, OPEN);
        drop((all.remove(2), inboxes.remove(2)));
        for neighbors in &all {
            let ask = |pieces: &[Piece]| daemon.open(pieces);
            assert_own(neighbors.rank, neighbors.obtain_by(ask, FIRST, roll(), LONG));
        }
        assert_eq!(daemon.requests(), 1);
    }

    #[test]
    fn a_rank_that_writes_nothing_keeps_no_object() {
        let inboxes = inboxes(2);
        let all = meet_all(&inboxes, OPEN);
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        let ask = |pieces: &[Piece]| {
            let file = || File::from(OwnedFd::from(reader.try_clone().expect("a descriptor")));
            Some(pieces.iter().map(|_| file()).collect())
        };
        drop(all[0].obtain_by(ask, FIRST, roll(), LONG).expect("descriptors"));
        drop(reader);
        assert!(writer.write_all(b"x").is_ok(), "they are on their way");
        drop(all);
        let error = writer.write_all(b"x").expect_err("nobody has them any more");
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn descriptors_of_another_open_are_not_taken() {
        let (daemon, inboxes) = (Daemon::default(), inboxes(2));
        let all = meet_all(&inboxes, OPEN);
        let files = daemon.open(&[roll(); FILES]).expect("files");
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        for subject in [Subject::Files { open: 5, rank: 1 }, Subject::Files { open: OPEN, rank: 0 }]
        {
            inboxes[0].send(inboxes[1].number(), subject, &files).expect("sent");
        }
        for rank in [0, 1] {
            let ask = |pieces: &[Piece]| daemon.open(pieces);
            assert_own(rank, all[rank as usize].obtain_by(ask, FIRST, roll(), LONG));
        }
    }

    /// Runs `act` in a thread of another user; skips it without root.
    fn as_other(act: impl FnOnce() + Send) {
        if !geteuid().is_root() {
            return skip_test("only root can play another user");
        }
        let other = rustix::process::Uid::from_raw(OTHER);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                set_thread_res_uid(other, other, other).expect("another user");
                act();
            });
        });
    }

    #[test]
    fn another_user_gets_nothing_and_gives_nothing() {
        let (own, files) = (inboxes(2), Daemon::default().open(&[roll(); FILES]).expect("files"));
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let subject = Subject::Files { open: OPEN, rank: 1 };
        own[1].expect((OPEN, 1));
        as_other(|| {
            // An inbox of that user, under the number that another rank has sent.
            let theirs = DescriptorInbox::new(std::process::id(), OTHER).expect("an inbox");
            let to = own[1].number();
            assert_eq!(theirs.send(to, subject, &files), Err(Errno::PERM), "it sees who we are");
            assert_eq!(own[0].send(theirs.number(), subject, &files), Err(Errno::PERM));
            // A sender that does not check the user.
            let blind = DescriptorInbox::new(std::process::id(), 0).expect("an inbox");
            assert_eq!(blind.send(to, subject, &files), Ok(()), "nobody has read it yet");
        });
        let delivery = own[1].await_files((OPEN, 1), SHORT);
        assert!(matches!(delivery, Delivery::Nothing), "{delivery:?}");
        own[0].send(own[1].number(), subject, &files).expect("sent");
        let delivery = own[1].await_files((OPEN, 1), LONG);
        assert!(matches!(delivery, Delivery::Files(_)), "{delivery:?}");
    }

    #[test]
    fn only_sealed_memory_is_a_claim_table() {
        let (table, file) = ClaimTable::create().expect("a table");
        let same = ClaimTable::open(file).expect("the same");
        assert!(table.claim(OPEN) && !same.claim(OPEN) && same.is_claimed(OPEN));
        let open = rustix::fs::memfd_create("open", MemfdFlags::CLOEXEC).expect("memory");
        rustix::fs::ftruncate(&open, TABLE as u64).expect("ftruncate");
        assert_eq!(ClaimTable::open(open).err(), Some(Errno::INVAL));
        let file = tempfile::tempfile().expect("a file");
        assert!(ClaimTable::open(file.into()).is_err());
    }
}
