//! Check of a volume while it is in use (fsck): names against inodes, inodes against the objects on
//! all nodes.
//!
//! Each executor verifies the records of its own shards in one step, so nothing changes between two
//! looks there. Where several executors have shards, names are then compared with their inodes, in
//! number order, with a few words of memory for each directory. Each fault is repaired by one
//! transaction, which does nothing if a record is not as it was seen any more. (Partitions of
//! directories come before all that: an executor would take the entries of a partition with a lost
//! record for lost themselves.) Then inodes and objects are walked side by side, both in number
//! order, in bounded memory. They are listed one after the other, so a mismatch is only a
//! suspicion. It is checked again, one inode at a time. It is dropped when a client has the file
//! open for writing, when its objects wait for removal, or when all agrees now.

mod journals;
mod name_fault;
mod names;
mod objects;
mod partitions;
mod paths;
mod repair;
mod report;
mod scan;
mod state;

pub use report::{FINDINGS_MAX, FindingKind, FsckError, FsckFinding, FsckReport, LostBytes};

use crate::inode_scan::InodeScan;
use crate::{Client, Tiles};
use objects::{expected_objects, file_size, is_consistent, short_objects};
use scan::ObjectScan;
use state::Fsck;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tatami_wire::admin::{AdminCall, AdminReply};
use tatami_wire::meta::{MetaOp, MetaReply};
use tatami_wire::object::ObjectState;
use tatami_wire::{
    Access, Attr, Cred, Errno, ExecutorId, Ino, InodeKind, NodeId, Piece, SetAttr, SetTime, ShardId,
};

/// Inodes that an executor verifies in one request.
const CHECK_STEP: u32 = 16 * 1024;

/// What an executor is asked when all inodes are walked.
const LIST_INODES: &str = "list its inodes";

/// Times that a check starts again because shards have moved.
const ATTEMPTS: usize = 20;

/// Checks the whole volume; with `repair`, also repairs faults where possible. `progress` gets the
/// numbers of inodes and objects checked so far.
///
/// Needs a trusted connection to every node: as the superuser, or as the user of the daemons, with
/// the volume's key.
///
/// # Errors
/// [`FsckError`] when a node or an executor cannot be asked: a partial check would prove nothing.
pub fn check_volume(
    client: &Arc<Client>,
    repair: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<FsckReport, FsckError> {
    let mut epoch = client.refresh_map();
    let mut mended = Vec::new();
    for _ in 0..ATTEMPTS {
        let report = FsckReport::default();
        let mut fsck = Fsck { client, repair, report, progress, lost: None };
        // Partitions first, see the module. Names before objects, because a repair of names may add
        // or remove inodes.
        fsck.check_partitions()?;
        for (shard, _) in client.map().first_shards() {
            fsck.verify_shard(shard)?;
        }
        fsck.check_names()?;
        fsck.check_objects()?;
        // Records that moved meanwhile were seen twice, or not at all.
        let before = std::mem::replace(&mut epoch, client.refresh_map());
        let mut report = fsck.report;
        if before == epoch {
            mended.append(&mut report.findings);
            report.more += mended.len().saturating_sub(FINDINGS_MAX) as u64;
            mended.truncate(FINDINGS_MAX);
            report.findings = mended;
            paths::add_paths(client, &mut report.findings);
            return Ok(report);
        }
        // These repairs are done, and the next check does not find them again.
        mended.extend(report.findings.into_iter().filter(|finding| finding.repaired));
        mended.truncate(FINDINGS_MAX);
    }
    let (node, what) =
        (client.home().unwrap_or(NodeId(0)), "keep its shards while they are checked");
    Err(FsckError::Node { node, what, errno: Errno::EAGAIN })
}

impl Fsck<'_> {
    fn request_shard(
        &self,
        shard: ShardId,
        what: &'static str,
        op: MetaOp,
    ) -> Result<MetaReply, FsckError> {
        let executor = self.shard_owner(shard);
        let reply = match op.is_for_all_shards() {
            true => self.client.request_executor(executor, &Cred::ROOT, op),
            false => self.client.send_meta(&Cred::ROOT, op),
        };
        reply.map_err(|errno| FsckError::Shard { shard, executor, what, errno })
    }

    /// Returns the executor that serves the shard, or one that surely exists.
    fn shard_owner(&self, shard: ShardId) -> ExecutorId {
        self.client.map().owner(shard).unwrap_or(ExecutorId::first_of_node(NodeId(0)))
    }

    fn shard_error(&self, shard: ShardId, what: &'static str, errno: Errno) -> FsckError {
        FsckError::Shard { shard, executor: self.shard_owner(shard), what, errno }
    }

    fn request_node(
        &self,
        node: NodeId,
        what: &'static str,
        call: AdminCall,
    ) -> Result<AdminReply, FsckError> {
        self.client.send_admin(node, call).map_err(|errno| FsckError::Node { node, what, errno })
    }

    fn record_node_finding(
        &mut self,
        wrong: FindingKind,
        ino: Ino,
        node: NodeId,
        what: String,
        repaired: bool,
    ) {
        let node = Some(node);
        self.record_finding(FsckFinding {
            wrong,
            ino,
            path: None,
            node,
            lost: None,
            journal: None,
            what,
            repaired,
        });
    }

    fn record_finding(&mut self, finding: FsckFinding) {
        if self.report.findings.len() < FINDINGS_MAX {
            self.report.findings.push(finding);
        } else {
            self.report.more += 1;
        }
    }

    /// Lets the executor of a shard verify its own records.
    fn verify_shard(&mut self, shard: ShardId) -> Result<(), FsckError> {
        const WHAT: &str = "verify its records";
        let mut next = Some(Ino::first_in_shard(shard));
        while let Some(after) = next {
            let op = MetaOp::Check { after, limit: CHECK_STEP, repair: self.repair };
            let MetaReply::Checked { findings, examined, next: following } =
                self.request_shard(shard, WHAT, op)?
            else {
                return Err(self.protocol_error(shard, WHAT));
            };
            self.report.inodes += examined;
            for f in findings {
                let (wrong, ino, what, repaired) = (FindingKind::Names, f.ino, f.what, f.repaired);
                self.record_finding(FsckFinding {
                    wrong,
                    ino,
                    path: None,
                    node: None,
                    lost: None,
                    journal: None,
                    what,
                    repaired,
                });
            }
            (self.progress)(self.report.inodes, self.report.objects);
            // The number must advance: otherwise a broken shard would be asked for ever.
            next = following.filter(|n| *n > after);
        }
        Ok(())
    }

    /// Returns whether several executors serve shards, or did. If not, the executor of all shards
    /// compares names with inodes by itself.
    fn has_several_executors(&self) -> bool {
        let map = self.client.map();
        map.first_shards().len() > 1 || map.moves.iter().any(|moves| *moves > 0)
    }

    fn protocol_error(&self, shard: ShardId, what: &'static str) -> FsckError {
        self.shard_error(shard, what, Errno::EPROTO)
    }

    /// Walks inodes and objects side by side, and checks mismatches again.
    fn check_objects(&mut self) -> Result<(), FsckError> {
        let mut nodes: Vec<ObjectScan> =
            self.client.map().members().map(|n| ObjectScan::for_node(n.id)).collect();
        let mut inodes: Vec<InodeScan> = self
            .client
            .map()
            .first_shards()
            .iter()
            .map(|(_, id)| InodeScan::for_executor(*id))
            .collect();
        loop {
            // The next inode number in any of the lists.
            let mut next: Option<Ino> = None;
            for inodes in &mut inodes {
                let executor = inodes.executor;
                let failed = |errno| FsckError::Executor { executor, what: LIST_INODES, errno };
                let at = inodes.peek_inode(self.client).map_err(failed)?.map(|attr| attr.ino);
                next = [next, at].into_iter().flatten().min();
            }
            for objects in &mut nodes {
                let at = objects.peek_object(self)?.map(|o| o.0);
                next = [next, at].into_iter().flatten().min();
            }
            let Some(ino) = next else { return Ok(()) };
            let attr = inodes.iter_mut().find_map(|inodes| inodes.take_inode(ino));
            let mut there = BTreeMap::new();
            for objects in &mut nodes {
                while let Some((found, piece, size)) = objects.peek_object(self)?
                    && found == ino
                {
                    objects.skip_object();
                    self.report.objects += 1;
                    there.insert((objects.node, piece), size);
                }
            }
            let tiles = self.read_tiles(attr.as_ref())?;
            if !is_consistent(attr.as_ref(), tiles.as_ref(), &there) {
                self.recheck_inode(ino, &there)?;
            }
            if let (Some(attr), Some(tiles)) = (&attr, &tiles) {
                self.check_journals(attr, tiles)?;
            }
            if self.report.objects.is_multiple_of(1024) {
                (self.progress)(self.report.inodes, self.report.objects);
            }
        }
    }

    /// Checks one inode a second time, with its objects as they are now.
    fn recheck_inode(
        &mut self,
        ino: Ino,
        seen: &BTreeMap<(NodeId, Piece), u64>,
    ) -> Result<(), FsckError> {
        // The version before and after shows whether a client changed the inode in between (a
        // double collect).
        let before = self.read_attr(ino)?;
        let tiles = self.read_tiles(before.as_ref())?;
        let mut places: BTreeSet<(NodeId, Piece)> = seen.keys().copied().collect();
        places.extend(
            before.iter().flat_map(|attr| expected_objects(attr, tiles.as_ref()).into_keys()),
        );
        let mut states = BTreeMap::new();
        for (node, piece) in places {
            // Before the state of the object is read: garbage may have been removed since.
            if self.has_changes_in_flight(node, ino)? {
                self.report.dispelled += 1;
                return Ok(());
            }
            let state = self.stat_object(node, ino, piece)?;
            if state.exists {
                states.insert((node, piece), state);
            }
        }
        let after = self.read_attr(ino)?;
        let sizes = states.iter().map(|(at, state)| (*at, state.size)).collect();
        if before.as_ref().map(|a| a.version) != after.as_ref().map(|a| a.version)
            || is_consistent(after.as_ref(), tiles.as_ref(), &sizes)
        {
            self.report.dispelled += 1;
            return Ok(());
        }
        match after {
            None => self.handle_missing_inode(ino, &states),
            Some(attr) => self.handle_mismatch(&attr, tiles.as_ref(), &states, &sizes),
        }
    }

    fn read_attr(&self, ino: Ino) -> Result<Option<Attr>, FsckError> {
        match self.client.getattr(&Cred::ROOT, ino) {
            Ok(attr) => Ok(Some(attr)),
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(None),
            // An object may bear the number of a shard that never existed.
            Err(_) if self.client.map().owner(ino.owner_shard()).is_none() => Ok(None),
            Err(errno) => Err(self.shard_error(ino.owner_shard(), "read an inode", errno)),
        }
    }

    /// Returns the tiles of a tiled file. Tiles that cannot be decoded are found by the shard's own
    /// check.
    fn read_tiles(&self, attr: Option<&Attr>) -> Result<Option<Tiles>, FsckError> {
        let Some(attr) = attr.filter(|a| a.kind == InodeKind::File && a.layout.is_tiled()) else {
            return Ok(None);
        };
        match self.client.fetch_tiles(attr.ino) {
            Ok(tiles) => Ok(Some(tiles)),
            Err(Errno::ESTALE | Errno::ENOENT | Errno::EIO | Errno::EBUSY) => Ok(None),
            Err(errno) => {
                Err(self.shard_error(attr.ino.owner_shard(), "tell the tiles of a file", errno))
            }
        }
    }

    fn has_changes_in_flight(&self, node: NodeId, ino: Ino) -> Result<bool, FsckError> {
        const WHAT: &str = "tell what is changing";
        if self.client.map().owner(ino.owner_shard()).is_none() {
            return Ok(false);
        }
        match self.request_shard(
            ino.owner_shard(),
            WHAT,
            MetaOp::ListInFlight { node, inos: vec![ino] },
        )? {
            MetaReply::InFlight(inos) => Ok(inos.contains(&ino)),
            _ => Err(self.protocol_error(ino.owner_shard(), WHAT)),
        }
    }

    fn stat_object(&self, node: NodeId, ino: Ino, piece: Piece) -> Result<ObjectState, FsckError> {
        const WHAT: &str = "look at an object";
        match self.request_node(node, WHAT, AdminCall::StatObject { ino, piece })? {
            AdminReply::Object(state) => Ok(state),
            _ => Err(FsckError::Node { node, what: WHAT, errno: Errno::EPROTO }),
        }
    }

    fn handle_missing_inode(
        &mut self,
        ino: Ino,
        states: &BTreeMap<(NodeId, Piece), ObjectState>,
    ) -> Result<(), FsckError> {
        let nodes: BTreeSet<NodeId> = states.keys().map(|(node, _)| *node).collect();
        for node in nodes {
            let size: u64 = states.iter().filter(|(at, _)| at.0 == node).map(|(_, s)| s.size).sum();
            let repaired = self.repair && self.remove_objects(node, ino)?;
            let what = format!("{size} bytes of an inode that does not exist");
            self.record_node_finding(FindingKind::NoInode, ino, node, what, repaired);
        }
        Ok(())
    }

    fn remove_objects(&self, node: NodeId, ino: Ino) -> Result<bool, FsckError> {
        self.request_node(node, "remove an object", AdminCall::RemoveObjects { ino }).map(|_| true)
    }

    fn remove_object(&self, node: NodeId, ino: Ino, piece: Piece) -> Result<bool, FsckError> {
        let call = AdminCall::RemoveObject { ino, piece };
        self.request_node(node, "remove an object", call).map(|_| true)
    }

    fn handle_mismatch(
        &mut self,
        attr: &Attr,
        tiles: Option<&Tiles>,
        states: &BTreeMap<(NodeId, Piece), ObjectState>,
        sizes: &BTreeMap<(NodeId, Piece), u64>,
    ) -> Result<(), FsckError> {
        let ino = attr.ino;
        let right = expected_objects(attr, tiles);
        let unknown = attr.kind == InodeKind::File && attr.layout.is_tiled() && tiles.is_none();
        if unknown {
            // Before the tiles are repaired, the right objects are not known.
            return Ok(());
        }
        for &(node, piece) in states.keys().filter(|at| !right.contains_key(at)) {
            let repaired = self.repair && self.remove_object(node, ino, piece)?;
            let what = "an object where its file has none".to_owned();
            self.record_node_finding(FindingKind::Misplaced, ino, node, what, repaired);
        }
        if attr.kind != InodeKind::File {
            return Ok(());
        }
        let lost: Vec<_> = short_objects(&right, sizes).collect();
        for &((node, piece), has, least) in &lost {
            let what = match (states.contains_key(&(node, piece)), piece == attr.layout.base()) {
                (true, true) => format!("of {least} bytes only {has} are there"),
                (false, true) => format!("the {least} bytes of the file are not there"),
                (_, false) => {
                    format!(
                        "{} of {least} bytes of piece {} are not there",
                        least - has,
                        piece.number()
                    )
                }
            };
            let (node, lost) = (Some(node), Some(LostBytes { piece, least, has }));
            let wrong = FindingKind::NoObject;
            self.record_finding(FsckFinding {
                wrong,
                ino,
                path: None,
                node,
                lost,
                journal: None,
                what,
                repaired: false,
            });
        }
        let size = file_size(attr, tiles, sizes);
        if size <= attr.size {
            return Ok(());
        }
        let what = format!("the inode says {} bytes, the objects hold {size}", attr.size);
        let node = right.first_key_value().map(|(at, _)| at.0);
        let repaired = self.repair && self.correct_size(attr, size)?;
        let wrong = FindingKind::Size;
        self.record_finding(FsckFinding {
            wrong,
            ino,
            path: None,
            node,
            lost: None,
            journal: None,
            what,
            repaired,
        });
        Ok(())
    }

    /// Corrects the size of an inode that is shorter than its objects: the bytes are valid. The
    /// correction is done as any client cuts a file, so that a client that opens the file at the
    /// same moment meets nothing unusual.
    fn correct_size(&self, attr: &Attr, size: u64) -> Result<bool, FsckError> {
        let cut = || {
            let (attr, cap) = self.client.open(&Cred::ROOT, attr.ino, Access::WRITE)?;
            let cut = self.client.open_data(&attr, cap).and_then(|data| data.truncate(size));
            let set = cut.and_then(|state| {
                let set = SetAttr {
                    size: Some(size),
                    blocks: Some(state.blocks),
                    changed: Some(state.changed),
                    mtime: Some(SetTime::At(attr.mtime)),
                    by_handle: true,
                    ..SetAttr::default()
                };
                self.client.setattr(&Cred::ROOT, attr.ino, set)
            });
            let closed = self.client.commit(&Cred::ROOT, attr.ino, None, true);
            set.and(closed)
        };
        let failed = |errno| self.shard_error(attr.ino.owner_shard(), "correct a size", errno);
        cut().map(|_| true).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::Layout;

    fn file(size: u64) -> Attr {
        Attr {
            size,
            layout: Layout::whole(NodeId(1)),
            ..Attr::with_defaults(Ino(7), InodeKind::File)
        }
    }

    fn fits(attr: Option<&Attr>, objects: &BTreeMap<(NodeId, Piece), u64>) -> bool {
        super::is_consistent(attr, None, objects)
    }

    #[test]
    fn an_inode_fits_its_objects_or_not() {
        let objects = |list: &[(u16, u32, u64)]| -> BTreeMap<(NodeId, Piece), u64> {
            list.iter().map(|(n, p, s)| ((NodeId(*n), Piece(*p)), *s)).collect()
        };
        let good = file(10);
        assert!(fits(Some(&good), &objects(&[(1, 0, 10)])));
        assert!(fits(Some(&file(0)), &objects(&[])), "no byte, no object");
        assert!(fits(Some(&file(0)), &objects(&[(1, 0, 0)])), "cut to nothing");
        assert!(!fits(Some(&good), &objects(&[])), "lost");
        assert!(!fits(Some(&good), &objects(&[(1, 0, 11)])), "longer");
        assert!(!fits(Some(&good), &objects(&[(1, 0, 9)])), "shorter");
        assert!(!fits(Some(&good), &objects(&[(1, 0, 10), (0, 0, 1)])), "on another node too");
        assert!(!fits(Some(&good), &objects(&[(1, 0, 10), (1, 1, 1)])), "a piece too many");
        assert!(fits(None, &objects(&[])));
        assert!(!fits(None, &objects(&[(1, 0, 0)])), "nobody's");
        let dir = Attr { kind: InodeKind::Dir, size: 3, ..file(0) };
        assert!(fits(Some(&dir), &objects(&[])));
        assert!(!fits(Some(&dir), &objects(&[(1, 0, 5)])));
    }
}
