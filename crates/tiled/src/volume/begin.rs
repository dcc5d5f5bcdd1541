//! The beginning of an open of a volume's file, by rank 0.

use super::open_file::{LookedUpFile, OpenVolumeFile};
use super::session::{VolumeSession, WriteHold};
use crate::begun::BegunOpens;
use crate::collective_open::CollectiveOpen;
use crate::error::{DaemonErrorContext, ErrorContext, Result, TiledError};
use crate::flags::Flags;
use crate::machine;
use crate::token::{OpenToken, OpenedVolumeFile};
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use std::path::Path;
use tatami_wire::{Access, Cred, NodeId};

/// Files that this process has begun to open and not opened yet; their pieces are open until then.
pub(super) static BEGUN: BegunOpens<BegunVolumeOpen> = BegunOpens::new();

/// The state of rank 0 for an open that it has begun.
pub(super) struct BegunVolumeOpen {
    pub(super) volume: OpenVolumeFile,
    /// Keeps the file open for writing; `None` for a reader.
    pub(super) held: Option<WriteHold>,
}

/// Creates the file if requested, checks that it may be opened, and assigns each rank a piece on
/// its node. Adds to the token what the other ranks must know.
///
/// # Errors
/// As for open(2); `EXDEV` for a rank without a mount of the volume.
pub fn begin_volume_open(
    open: &CollectiveOpen<'_>,
    real: &Path,
    linked: bool,
    mut token: OpenToken,
) -> Result<OpenToken> {
    // The creator may open a new file whatever its mode, as with open(2).
    let is_new = create_file(real, open.flags, open.mode)?;
    let found = LookedUpFile::look_up(real, if is_new { Flags::default() } else { open.flags })?;
    let (ino, session) = (found.ino, found.session.clone());
    (token.id, token.stamp) = (ino.0, machine::now());
    let mut table = None;
    let (held, cap, homes) = if open.flags.can_write() {
        table = open.hints.spread.then_some(session.node);
        let wanted = match table {
            Some(table) => spread_pieces(open.ranks, &session, table),
            None => plan_pieces(open, &session, real)?,
        };
        let homes = wanted.iter().take(open.ranks as usize).map(|(node, _)| *node).collect();
        token.nodes = wanted.len() as u32 - open.ranks;
        let (held, cap) = WriteHold::new(&session, ino).daemon_context("open", real)?;
        let made = session.client.add_pieces(&Cred::ROOT, ino, wanted);
        let (first, stamp) = made.daemon_context("open", real)?;
        // The first epoch must be later than each stamp that the shard has issued for the file.
        (token.first, token.stamp) = (first, token.stamp.max(stamp.saturating_add(1)));
        (Some(held), cap, homes)
    } else {
        let opened = session.client.open(&Cred::ROOT, ino, Access::READ);
        (None, opened.daemon_context("open", real)?.1, Vec::new())
    };
    let client = session.client.id();
    token.volume = Some(OpenedVolumeFile { cap, client, linked, table, rank_nodes: homes });
    let volume = OpenVolumeFile::new(found, real, cap);
    BEGUN.keep_open(token.open, BegunVolumeOpen { volume, held });
    Ok(token)
}

/// Returns a piece for each rank on its node, then one for each node, which is its rank table.
fn plan_pieces(
    open: &CollectiveOpen<'_>,
    session: &VolumeSession,
    path: &Path,
) -> Result<Vec<(NodeId, u32)>> {
    let known = session.client.map().nodes.len();
    let mut wanted = Vec::with_capacity(open.ranks as usize);
    for rank in 0..open.ranks as usize {
        // Without a list there is one process, or all processes run on this node.
        let own = u32::from(session.node.0) + 1;
        let node = open.nodes.get(rank).copied().unwrap_or(own);
        if node == 0 || node as usize > known {
            let why = format!("rank {rank} has no mount of the volume at this path");
            return Err(TiledError::with_detail("open", path, Errno::XDEV, why));
        }
        wanted.push((session.client.serving_node(NodeId((node - 1) as u16)), 1));
    }
    for node in distinct_nodes(wanted.iter().map(|(node, _)| *node)) {
        wanted.push((node, 1));
    }
    Ok(wanted)
}

/// Returns a piece for each rank on the nodes in turn, from this node on, and one on this node,
/// where all ranks are: their rank table.
fn spread_pieces(ranks: u32, session: &VolumeSession, own: NodeId) -> Vec<(NodeId, u32)> {
    let map = session.client.map();
    let serving = map.nodes.iter().map(|info| info.id).filter(|id| map.is_serving(*id));
    let mut nodes: Vec<NodeId> = serving.collect();
    match nodes.iter().position(|node| *node == own) {
        Some(at) => nodes.rotate_left(at),
        None => nodes.insert(0, session.client.serving_node(own)),
    }
    let of_ranks = nodes.iter().cycle().take(ranks as usize);
    of_ranks.chain([&own]).map(|node| (*node, 1)).collect()
}

/// Returns the distinct nodes in the order of their first appearance.
pub(super) fn distinct_nodes(nodes: impl Iterator<Item = NodeId>) -> Vec<NodeId> {
    let mut seen = std::collections::HashSet::new();
    nodes.filter(|node| seen.insert(*node)).collect()
}

/// Creates the file if requested, and returns whether it did. The file is not opened: an opened
/// file may get an object of its own.
fn create_file(path: &Path, flags: Flags, mode: u32) -> Result<bool> {
    if !flags.contains(Flags::CREATE) {
        return Ok(false);
    }
    let mode = Mode::from_raw_mode(mode);
    match rustix::fs::mknodat(rustix::fs::CWD, path, FileType::RegularFile, mode, 0) {
        Err(Errno::EXIST) if !flags.contains(Flags::EXCL) => Ok(false),
        other => other.context("create", path).map(|()| true),
    }
}
