//! The view that a program sets: any filetype, each copy one extent after the other, even if copies
//! overlap.
//!
//! A [`View`] is in file order and shows no byte twice; tiles and the index rely on that. Some
//! programs set other views: with Open MPI the extent of a structure counts the explicit bounds of
//! its parts only, and may be shorter than the data. HDF5 and PnetCDF make such types, and access
//! the first copy alone. So:
//!
//! - An access within the first copy goes through a [`View`] of that copy: one tile, as under any
//!   other view.
//! - Any other access through such a view is cut into stretches, and each stretch is put into file
//!   order ([`ProgramView::in_file_order`]). Of bytes that are written twice the later one in the
//!   stream counts.

use crate::shape::Shape;
use crate::shape_node::{BlockOrder, ShapeBody, ShapeNode};
use crate::view::{MAX_OFFSET, View, ViewError, place_of_byte};

/// Runs of the file that one stretch has at most.
const PARTS_MAX: usize = 1 << 12;
/// Bytes that one stretch has at most.
const BYTES_MAX: u64 = 4 << 20;

/// A file view as a program sets it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ProgramView {
    disp: u64,
    etype: u64,
    /// No byte of it lies before its displacement 0.
    filetype: Shape,
    /// The same view, or that of the first copy alone.
    view: Option<View>,
    /// Stream bytes that are accessed through `view`.
    direct_len: u64,
}

/// A stretch of a [`ProgramView`], brought into file order.
#[derive(Clone, Debug)]
pub struct InFileOrder {
    view: View,
    size: u64,
    len: u64,
    parts: Vec<ProgramPart>,
}

/// Bytes that are contiguous in the stream and in the file.
#[derive(Clone, Copy, Debug)]
struct ProgramPart {
    /// File offset; then the place in file order.
    at: u64,
    len: u64,
}

impl From<View> for ProgramView {
    fn from(view: View) -> ProgramView {
        let (disp, etype, filetype) = (view.disp(), view.etype_size(), view.filetype().clone());
        ProgramView { disp, etype, filetype, view: Some(view), direct_len: u64::MAX }
    }
}

impl ProgramView {
    /// The view of `MPI_File_set_view`: copies of `filetype`, one extent after the other, from byte
    /// `disp` of the file on. `etype_size` is in bytes; it may be 0 for a filetype without data.
    ///
    /// # Errors
    ///
    /// A filetype that is no multiple of the etype, whose displacements decrease, or whose first
    /// copy begins outside of the file. Later copies may lie anywhere.
    pub fn new(disp: u64, etype_size: u64, filetype: Shape) -> Result<ProgramView, ViewError> {
        let size = filetype.size();
        if size > 0 && (etype_size == 0 || !size.is_multiple_of(etype_size)) {
            return Err(ViewError::Etype { filetype: size, etype: etype_size });
        }
        let order = filetype.body.kind.facts().order;
        if order == BlockOrder::Mixed {
            return Err(ViewError::Decreasing);
        }
        let first = i128::from(disp) + i128::from(filetype.true_lb());
        let first = u64::try_from(first).ok().filter(|first| *first.max(&disp) <= MAX_OFFSET);
        let first = first.ok_or(ViewError::Outside)?;
        let (disp, filetype) = match filetype.true_lb() < 0 {
            true => (first, shift_to_zero(&filetype)?),
            false => (disp, filetype),
        };
        let (view, direct) = match View::new(disp, etype_size, filetype.clone()) {
            Ok(view) => (Some(view), u64::MAX),
            Err(ViewError::Disorder) if order == BlockOrder::Apart => {
                (single_copy_view(disp, etype_size, &filetype), size)
            }
            Err(ViewError::Disorder) => (None, 0),
            Err(error) => return Err(error),
        };
        Ok(ProgramView { disp, etype: etype_size, filetype, view, direct_len: direct })
    }

    /// Bytes of the etype.
    pub fn etype_size(&self) -> u64 {
        self.etype
    }

    /// The view through which the stream bytes `stream .. stream + len` may be accessed as they
    /// are; `None` where the caller must first bring them into file order.
    pub fn direct_view(&self, stream: u64, len: u64) -> Option<&View> {
        let fits = self.direct_len == u64::MAX || stream.saturating_add(len) <= self.direct_len;
        self.view.as_ref().filter(|_| fits)
    }

    /// The file offset of byte `stream`; `u64::MAX` when that lies outside of the file, or the view
    /// shows nothing.
    pub fn offset_of(&self, stream: u64) -> u64 {
        if let Some(view) = self.direct_view(stream, 1) {
            return view.offset_of(stream);
        }
        let size = self.filetype.size();
        let at = self.copy_offset(stream / size)
            + i128::from(self.body().disp)
            + i128::from(place_of_byte(&self.body().kind, stream % size));
        u64::try_from(at).ok().filter(|at| *at <= MAX_OFFSET).unwrap_or(u64::MAX)
    }

    /// The stream position behind the last byte that lies before `offset` of the file. Where copies
    /// do not follow one another in the file, but go back or stay in place, only the first one
    /// counts.
    pub fn stream_before(&self, offset: u64) -> u64 {
        if let Some(view) = self.direct_view(0, u64::MAX) {
            return view.stream_before(offset).0;
        }
        let offset = i128::from(offset.min(MAX_OFFSET + 1));
        let (size, extent) = (self.filetype.size(), i128::from(self.filetype.extent()));
        // The last copy that begins before.
        let way = offset - 1 - self.copy_offset(0) - i128::from(self.filetype.true_lb());
        if way < 0 {
            return 0;
        }
        let copy = if extent > 0 { u64::try_from(way / extent).unwrap_or(u64::MAX) } else { 0 };
        let below = offset - self.copy_offset(copy) - i128::from(self.body().disp);
        let data =
            i64::try_from(below).map_or(size, |below| data_before_limit(&self.body().kind, below));
        copy.saturating_mul(size).saturating_add(data)
    }

    /// Brings stream bytes from `stream` on into file order: at most `len`, at most one stretch,
    /// and only up to the first one that lies at or past byte `end` of the file.
    ///
    /// # Errors
    ///
    /// [`ViewError::Outside`] where one of these bytes lies before the file.
    pub fn in_file_order(&self, stream: u64, len: u64, end: u64) -> Result<InFileOrder, ViewError> {
        let size = self.filetype.size();
        let end = i128::from(end.min(MAX_OFFSET + 1));
        let (mut parts, mut done): (Vec<ProgramPart>, u64) = (Vec::new(), 0);
        let len = len.min(BYTES_MAX).min(u64::MAX - stream);
        'copies: while size > 0 && done < len {
            let (copy, from) = ((stream + done) / size, (stream + done) % size);
            let copy = self.copy_offset(copy);
            for (disp, block) in self.filetype.blocks(from, (len - done).min(size - from)) {
                let at = copy + i128::from(disp);
                let inside = (end - at).clamp(0, i128::from(block)) as u64;
                if inside > 0 {
                    let at = u64::try_from(at).map_err(|_| ViewError::Outside)?;
                    parts.push(ProgramPart { at, len: inside });
                    done += inside;
                }
                if inside < block || parts.len() >= PARTS_MAX {
                    break 'copies;
                }
            }
        }
        InFileOrder::from_parts(parts, done)
    }

    fn body(&self) -> &ShapeBody {
        &self.filetype.body
    }

    /// The file offset of displacement 0 of a copy.
    fn copy_offset(&self, copy: u64) -> i128 {
        i128::from(self.disp) + i128::from(copy) * i128::from(self.filetype.extent())
    }
}

impl InFileOrder {
    fn from_parts(mut parts: Vec<ProgramPart>, len: u64) -> Result<InFileOrder, ViewError> {
        let mut sorted: Vec<ProgramPart> = parts.clone();
        sorted.sort_unstable_by_key(|part| part.at);
        // Runs that touch or overlap become one, so that the view of the stretch shows no byte
        // twice.
        sorted.dedup_by(|next, last| {
            let joins = next.at <= last.at + last.len;
            if joins {
                last.len = last.len.max(next.at + next.len - last.at);
            }
            joins
        });
        let mut starts = Vec::with_capacity(sorted.len());
        let mut size = 0;
        for run in &sorted {
            starts.push(size);
            size += run.len;
        }
        for part in &mut parts {
            let run = sorted.partition_point(|run| run.at <= part.at) - 1;
            part.at = starts[run] + (part.at - sorted[run].at);
        }
        let disp = sorted.first().map_or(0, |run| run.at);
        let blocks: Vec<(u64, i64)> =
            sorted.iter().map(|run| (run.len, (run.at - disp) as i64)).collect();
        let shape = Shape::bytes(1).and_then(|byte| Shape::hindexed(&blocks, &byte));
        // The runs are apart and within the file, so the first copy of their shape always makes a
        // view.
        let view = shape
            .ok()
            .and_then(|shape| single_copy_view(disp, 1, &shape))
            .ok_or(ViewError::Outside)?;
        Ok(InFileOrder { view, size, len, parts })
    }

    /// A view whose first [`InFileOrder::size`] bytes are those of the stretch, in file order.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Bytes of the file, each counted once.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of the stream.
    pub fn stream_len(&self) -> u64 {
        self.len
    }

    /// Puts the bytes of the stream into file order: `stream` has [`InFileOrder::stream_len`]
    /// bytes, `file` has [`InFileOrder::size`]. Of two bytes for one place the later one counts.
    pub fn sort_into_file_order(&self, stream: &[u8], file: &mut [u8]) {
        let mut from = 0;
        for part in &self.parts {
            let len = part.len as usize;
            file[part.at as usize..][..len].copy_from_slice(&stream[from..][..len]);
            from += len;
        }
    }

    /// Reverses [`InFileOrder::sort_into_file_order`]. `file` may end early; returns how many bytes
    /// of the stream were filled.
    pub fn sort_into_stream_order(&self, file: &[u8], stream: &mut [u8]) -> usize {
        let mut to = 0;
        for part in &self.parts {
            let len = part.len as usize;
            let there = file.get(part.at as usize..).map_or(0, |rest| rest.len().min(len));
            if there > 0 {
                stream[to..][..there].copy_from_slice(&file[part.at as usize..][..there]);
                to += there;
            }
            if there < len {
                break;
            }
        }
        to
    }
}

/// Returns the same filetype with its lowest byte at displacement 0.
fn shift_to_zero(filetype: &Shape) -> Result<Shape, ViewError> {
    let by = filetype.true_lb().checked_neg().ok_or(ViewError::Outside)?;
    let body = filetype.body.shift_by(by);
    body.and_then(|body| Shape::from_body(0, filetype.extent(), body))
        .map_err(|_| ViewError::Outside)
}

/// Returns the view of the first copy of a filetype whose blocks are apart. A byte lies between it
/// and the next copy, so that no such view is the default view, whose writes are ordered by another
/// rule. `None` where that does not fit into a file.
fn single_copy_view(disp: u64, etype: u64, filetype: &Shape) -> Option<View> {
    let extent = filetype.true_extent().checked_add(1)?;
    View::new(disp, etype, Shape::resized(0, extent, filetype).ok()?).ok()
}

/// Counts the bytes of a part's data up to and including the last one that lies before place
/// `limit`.
fn data_before_limit(kind: &ShapeNode, limit: i64) -> u64 {
    let (mut kind, mut limit, mut before) = (kind, limit, 0);
    loop {
        match kind {
            ShapeNode::Run(len) => return before + (limit.max(0) as u64).min(*len),
            ShapeNode::Vector(v) => {
                // The blocks of a view's filetype do not go back.
                let copies = v.count - 1;
                let copy = match (limit - 1).checked_div(v.stride) {
                    Some(copy) => (copy.max(0) as u64).min(copies),
                    None => copies,
                };
                before += copy * v.child.size();
                limit -= copy as i64 * v.stride;
                kind = &v.child;
            }
            ShapeNode::List(l) => {
                let part = l.parts.partition_point(|part| part.disp < limit).saturating_sub(1);
                before += l.parts[part].start;
                limit -= l.parts[part].disp;
                kind = &l.parts[part].kind;
            }
        }
    }
}
