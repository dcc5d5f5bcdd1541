//! Relayout of a file: to a whole file on one node, or to stripes over several.
//!
//! The client copies the bytes into objects that no file has yet. Then one request to the shard
//! replaces the file's objects by these, if no client could have changed the bytes since the copy
//! began. So readers see the same bytes at any time. A writer finds its bytes, or prevents the
//! replacement. The leftovers of a crash are garbage that the shard knows of.

use crate::retry::Retry;
use crate::{Client, DataFile};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tatami_layout::{PieceTiles, Stripes};
use tatami_wire::meta::{DataState, MetaOp, MetaReply};
use tatami_wire::object::ObjectState;
use tatami_wire::tiles::{NewPiece, RESERVE_PIECES_MAX, TilePage};
use tatami_wire::{Access, Attr, Cap, Cred, Errno, Ino, Layout, NodeId, Piece};

/// Bytes that are read at a time.
const CHUNK: u64 = 4 << 20;
/// Zero blocks of this many bytes are not written.
const BLOCK: usize = 4096;

/// The wanted layout of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayoutGoal {
    /// One object, on this node, or on the node of the base.
    Whole(Option<NodeId>),
    /// Stripes, dealt out to these nodes in turn.
    Striped {
        /// 1 to [`RESERVE_MAX`] - 1 nodes.
        nodes: Vec<NodeId>,
        /// Bytes of a stripe.
        unit: u64,
        /// The node of the base, which gets the bytes that a program appends; `None` keeps it.
        base: Option<NodeId>,
    },
}

/// A relayout in progress. If it is dropped before [`Relayout::commit_layout`], the file stays as
/// it is.
pub struct Relayout {
    open: OpenForWriting,
    attr: Attr,
    source: DataFile,
    /// Objects that get bytes, in order of their numbers: the pieces, or the one of a whole file.
    targets: Vec<RelayoutTarget>,
    /// `None` for a whole file.
    stripes: Option<Stripes>,
    /// Node and number of the new base.
    base: (NodeId, u32),
    stamp: u64,
    next: AtomicU64,
    failed: AtomicBool,
}

struct RelayoutTarget {
    node: NodeId,
    number: u32,
    data: DataFile,
}

/// The file's open for writing: as long as it lasts, the shard keeps the reserved objects.
pub(crate) struct OpenForWriting {
    pub(crate) client: Arc<Client>,
    pub(crate) ino: Ino,
    pub(crate) ended: bool,
}

impl Drop for OpenForWriting {
    fn drop(&mut self) {
        if !self.ended
            && let Err(error) = self.client.commit(&Cred::ROOT, self.ino, None, true)
        {
            tracing::warn!(ino = %self.ino, %error, "the end of a relayout was not told");
        }
    }
}

impl Relayout {
    /// Opens the file and reserves objects for it. Returns `None` where the file has the layout
    /// already, or has no byte and no named node to move to. While another client has it open for
    /// writing, waits for `patience`.
    ///
    /// # Errors
    /// Those of opening it for reading and writing, `EBUSY` when `patience` has passed, `ENOSPC`,
    /// `EINVAL` for nodes and stripes that are not possible.
    pub fn begin(
        client: &Arc<Client>,
        cred: &Cred,
        ino: Ino,
        goal: &RelayoutGoal,
        patience: Duration,
    ) -> Result<Option<Relayout>, Errno> {
        let stripes = match goal {
            RelayoutGoal::Whole(_) => None,
            RelayoutGoal::Striped { nodes, unit, .. } => {
                if nodes.len() >= RESERVE_PIECES_MAX {
                    return Err(Errno::EINVAL);
                }
                let stripes = Stripes::new(nodes.len() as u64, *unit);
                Some(stripes.map_err(|_| Errno::EINVAL)?)
            }
        };
        let (_, cap) = client.open(cred, ino, Access::BOTH)?;
        let open = OpenForWriting { client: client.clone(), ino, ended: false };
        let (page, layout) = client.fetch_pieces(ino)?;
        let size = client.getattr(cred, ino)?.size;
        // A file without a byte moves as a whole only: it has no stripes.
        let can_move = size > 0 || matches!(goal, RelayoutGoal::Whole(Some(_)));
        if !can_move || has_layout(goal, stripes, &page, layout, size) {
            return Ok(None);
        }
        let nodes = target_nodes(goal, stripes, layout, size);
        let (first, stamp) = reserve_objects(client, cred, ino, &nodes, patience)?;
        // From here on, a client that opens the file for writing takes the reservation away, and
        // the final request fails.
        let attr = client.getattr(cred, ino)?;
        // The layout may have changed before the reservation. Then the reserved numbers belong to
        // the wrong nodes.
        if target_nodes(goal, stripes, attr.layout, attr.size) != nodes {
            return Err(Errno::EBUSY);
        }
        let source = client.open_data(&attr, cap)?;
        // Only one object in a region keeps earlier states, and they must not be lost by the way.
        let keeps_versions = attr.layout.base().version_rule() > 0;
        if stripes.is_some() && keeps_versions && !source.list_versions()?.is_empty() {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut numbered: Vec<(NodeId, u32)> = nodes.iter().copied().zip(first..).collect();
        // The base has the last number. The base of a striped file gets no byte before a client
        // appends.
        let base = *numbered.last().ok_or(Errno::EINVAL)?;
        numbered.truncate(nodes.len() - usize::from(stripes.is_some()));
        let mut this = Relayout {
            open,
            source,
            targets: Vec::new(),
            stripes,
            base,
            // The stamps of tiles in the new pieces must exceed that of the reservation.
            stamp: stamp + 1,
            next: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            attr,
        };
        this.make_targets(&numbered, cap)?;
        Ok(Some(this))
    }

    fn make_targets(&mut self, numbered: &[(NodeId, u32)], cap: Cap) -> Result<(), Errno> {
        let client = &self.open.client;
        for (i, &(node, number)) in numbered.iter().enumerate() {
            let data = client.open_object(self.open.ino, node, Piece::of_bytes(number), cap)?;
            self.targets.push(RelayoutTarget { node, number, data });
            if self.keeps_versions() {
                self.targets[i].data.carry_versions(&self.source)?;
            }
            let size = self.attr.size;
            let len = self.stripes.map_or(size, |stripes| stripes.piece_len(i as u64, size));
            // Each object gets its full length first, because trailing zeros are not written.
            self.targets[i].data.truncate_unrecorded(len)?;
        }
        Ok(())
    }

    /// Whether the file keeps earlier states, which go along.
    fn keeps_versions(&self) -> bool {
        self.stripes.is_none() && self.attr.layout.base().version_rule() > 0
    }

    /// Returns the size of the file in bytes.
    pub fn size(&self) -> u64 {
        self.attr.size
    }

    /// Copies until nothing is left, or another caller has failed. Several threads may call it at
    /// the same time. `progress` gets the number of bytes copied.
    ///
    /// # Errors
    /// Those of reading and writing.
    pub fn copy_chunks(&self, progress: &dyn Fn(u64)) -> Result<(), Errno> {
        let size = self.attr.size;
        let mut bytes = vec![0; CHUNK.min(size) as usize];
        let mut parts: Vec<(u64, Vec<u8>)> = vec![(0, Vec::new()); self.targets.len()];
        while !self.failed.load(Ordering::Relaxed) {
            // Relaxed: each thread needs a chunk of its own, and no order between them. The joins
            // before `Relayout::commit_layout` order the copies before it.
            let offset = self.next.fetch_add(CHUNK, Ordering::Relaxed);
            if offset >= size {
                break;
            }
            let bytes = &mut bytes[..CHUNK.min(size - offset) as usize];
            let copied = self.source.read_at(bytes, offset).and_then(|got| {
                bytes[got..].fill(0);
                self.write_stripes(bytes, offset, &mut parts)
            });
            copied.inspect_err(|_| self.failed.store(true, Ordering::Relaxed))?;
            progress(bytes.len() as u64);
        }
        Ok(())
    }

    fn write_stripes(
        &self,
        bytes: &[u8],
        offset: u64,
        parts: &mut [(u64, Vec<u8>)],
    ) -> Result<(), Errno> {
        let Some(stripes) = self.stripes else {
            return write_sparsely(&self.targets[0].data, bytes, offset);
        };
        parts.iter_mut().for_each(|(_, part)| part.clear());
        let mut done = 0;
        while done < bytes.len() {
            let (number, at, run) = stripes.locate_offset(offset + done as u64);
            let end = bytes.len().min(done.saturating_add(run as usize));
            let (start, part) = &mut parts[number as usize];
            if part.is_empty() {
                *start = at;
            }
            part.extend_from_slice(&bytes[done..end]);
            done = end;
        }
        for (target, (at, part)) in self.targets.iter().zip(parts) {
            write_sparsely(&target.data, part, *at)?;
        }
        Ok(())
    }

    /// Makes the copy the file. All calls of [`Relayout::copy_chunks`] must have succeeded before.
    ///
    /// # Errors
    /// `EBUSY` where another client could have changed the file since the begin, `EIO` where the
    /// copy is not complete, and those of writing.
    pub fn commit_layout(mut self) -> Result<Attr, Errno> {
        if self.failed.load(Ordering::Relaxed) || self.next.load(Ordering::Relaxed) < self.size() {
            return Err(Errno::EIO);
        }
        // The copies must be on disk before the shard commits: after a power cut the file would
        // refer to objects without bytes.
        let mut states = Vec::with_capacity(self.targets.len());
        for target in &self.targets {
            states.push(target.data.sync(false)?);
        }
        let (pieces, base) = self.build_pieces(&states)?;
        let state = DataState { mtime: self.attr.mtime, ..DataState::from(base) };
        let ino = self.open.ino;
        let op = MetaOp::Relayout { ino, pieces, base: self.base, state };
        let MetaReply::Attr(attr) = self.open.client.send_meta(&Cred::ROOT, op)? else {
            return Err(Errno::EPROTO);
        };
        // The shard has recorded the end of this open for writing, too.
        self.open.ended = true;
        // But not of a file that has left its inode, which clients write meanwhile.
        if self.attr.layout.is_inline() {
            self.open.client.commit(&Cred::ROOT, ino, None, true)?;
        }
        // After the return, the caller relies on the new layout even across a power cut.
        self.open.client.sync()?;
        Ok(attr)
    }

    /// Returns the pieces, and the state of the base.
    fn build_pieces(&self, states: &[ObjectState]) -> Result<(Vec<NewPiece>, ObjectState), Errno> {
        let Some(stripes) = self.stripes else {
            let state = states.first().copied().ok_or(Errno::EIO)?;
            return Ok((Vec::new(), state));
        };
        let piece = |(i, (target, state)): (usize, (&RelayoutTarget, &ObjectState))| {
            let tiles = stripes.piece_tiles(i as u64, self.attr.size, self.stamp);
            let tiles = tiles.map_err(|_| Errno::EINVAL)?.encode().into();
            let (piece, node, blocks) = (target.number, target.node, state.blocks);
            Ok(NewPiece { piece, node, tiles, blocks })
        };
        let pieces = self.targets.iter().zip(states).enumerate().map(piece);
        Ok((pieces.collect::<Result<_, Errno>>()?, ObjectState::default()))
    }
}

impl Drop for Relayout {
    /// Frees the space at once; the shard removes the objects when it learns of the end.
    fn drop(&mut self) {
        if self.open.ended {
            return;
        }
        for target in &self.targets {
            // The copy is discarded, so a failed write does not matter.
            let _ = target.data.flush();
            if let Err(error) = target.data.truncate_unrecorded(0) {
                tracing::debug!(ino = %self.open.ino, %error, "a copy is removed later");
            }
        }
    }
}

impl Client {
    /// Returns the bytes of a stripe of a file that a relayout has striped; `None` for any other.
    ///
    /// # Errors
    /// Those of the shard.
    pub fn stripe_unit(&self, attr: &Attr) -> Result<Option<u64>, Errno> {
        if !attr.layout.is_tiled() {
            return Ok(None);
        }
        let (page, _) = self.fetch_pieces(attr.ino)?;
        let tiles = page.pieces.first().map(|piece| PieceTiles::decode(&piece.tiles));
        let Some(Ok(tiles)) = tiles else { return Ok(None) };
        let [view] = tiles.views() else { return Ok(None) };
        // The first piece sees one stripe of each round.
        let (unit, round) = (view.filetype_size(), view.filetype().extent().unsigned_abs());
        let stripes = round.checked_div(unit).and_then(|count| Stripes::new(count, unit).ok());
        let first = stripes.and_then(|stripes| stripes.piece_view(0).ok());
        Ok((first.as_ref() == Some(view)).then_some(unit))
    }

    /// Returns whether a file has an object on one of `nodes`, or would get its first byte there.
    /// The base of a file over several nodes counts, too: it gets the bytes that a program appends.
    ///
    /// # Errors
    /// Those of the shard.
    pub fn has_object_on(&self, attr: &Attr, nodes: &[NodeId]) -> Result<bool, Errno> {
        if attr.layout.is_inline() {
            return Ok(false);
        }
        // Most files have one object: the attributes name its node, without a request.
        if !attr.layout.is_tiled() || nodes.contains(&attr.layout.node()) {
            return Ok(nodes.contains(&attr.layout.node()));
        }
        let (page, layout) = self.fetch_pieces(attr.ino)?;
        let mut used = page.pieces.iter().map(|piece| piece.node).chain([layout.node()]);
        Ok(used.any(|node| nodes.contains(&node)))
    }
}

/// Returns the nodes of the objects to reserve: those of pieces that get bytes, then that of the
/// base.
fn target_nodes(
    goal: &RelayoutGoal,
    stripes: Option<Stripes>,
    layout: Layout,
    size: u64,
) -> Vec<NodeId> {
    match goal {
        RelayoutGoal::Whole(node) => vec![node.unwrap_or(layout.node())],
        RelayoutGoal::Striped { nodes, base, .. } => {
            let used =
                |i: usize| stripes.is_some_and(|stripes| stripes.piece_len(i as u64, size) > 0);
            let used = nodes.iter().enumerate().filter(|(i, _)| used(*i)).map(|(_, node)| *node);
            used.chain([base.unwrap_or(layout.node())]).collect()
        }
    }
}

fn reserve_objects(
    client: &Client,
    cred: &Cred,
    ino: Ino,
    nodes: &[NodeId],
    patience: Duration,
) -> Result<(u32, u64), Errno> {
    let mut retry = Retry::new(patience);
    loop {
        let op = MetaOp::Reserve { ino, nodes: nodes.to_vec() };
        match client.send_meta(cred, op) {
            Ok(MetaReply::Pieces { first, stamp }) => return Ok((first, stamp)),
            Ok(_) => return Err(Errno::EPROTO),
            // The shard sends no event when a writer closes.
            Err(Errno::EBUSY) if retry.pause() => {}
            Err(e) => return Err(e),
        }
    }
}

/// Returns whether a file has the wanted layout already.
fn has_layout(
    goal: &RelayoutGoal,
    stripes: Option<Stripes>,
    page: &TilePage,
    layout: Layout,
    size: u64,
) -> bool {
    let (RelayoutGoal::Striped { nodes, base, .. }, Some(stripes)) = (goal, stripes) else {
        let node = if let RelayoutGoal::Whole(Some(node)) = goal { *node } else { layout.node() };
        // Bytes beside the inode are whole, and on no node that was named.
        let is_there = !layout.is_inline() || matches!(goal, RelayoutGoal::Whole(None));
        return !layout.is_tiled() && layout.node() == node && is_there;
    };
    let used: Vec<NodeId> = target_nodes(goal, Some(stripes), layout, size);
    let is_stripe = |number: usize, tiles: &[u8]| {
        let (Ok(tiles), Ok(view)) = (PieceTiles::decode(tiles), stripes.piece_view(number as u64))
        else {
            return false;
        };
        let len = stripes.piece_len(number as u64, size);
        tiles.views() == [view]
            && matches!(tiles.tiles(), [tile] if (tile.start, tile.at, tile.len) == (0, 0, len))
    };
    debug_assert!(used.len() <= nodes.len() + 1);
    layout.is_tiled()
        && base.is_none_or(|base| base == layout.node())
        && page.cuts.is_empty()
        && page.pieces.len() + 1 == used.len()
        && page
            .pieces
            .iter()
            .zip(&used)
            .enumerate()
            .all(|(i, (piece, node))| piece.node == *node && is_stripe(i, &piece.tiles))
}

/// Writes `bytes` to a new object, and leaves out blocks of zeros: unwritten bytes read as zeros.
pub(crate) fn write_sparsely(to: &DataFile, bytes: &[u8], at: u64) -> Result<(), Errno> {
    let is_zero = |from: usize| {
        let block = &bytes[from..bytes.len().min(from + BLOCK)];
        block.iter().all(|byte| *byte == 0)
    };
    let mut start = 0;
    while start < bytes.len() {
        if is_zero(start) {
            start += BLOCK;
            continue;
        }
        let mut end = start + BLOCK;
        while end < bytes.len() && !is_zero(end) {
            end += BLOCK;
        }
        let run = &bytes[start..end.min(bytes.len())];
        if to.write_at(run, at + start as u64)? < run.len() {
            return Err(Errno::ENOSPC);
        }
        start = end;
    }
    Ok(())
}
