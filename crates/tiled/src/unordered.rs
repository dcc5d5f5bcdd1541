//! Accesses through a view whose bytes are not in file order: stretch by stretch, each in file
//! order.

use crate::engine::Engine;
use crate::error::{Result, TiledError};
use crate::memory::Buffer;
use rustix::io::Errno;
use std::path::Path;
use tatami_layout::{InFileOrder, MAX_OFFSET, ProgramView, Shape};

/// Memory of one access, through which stretches are copied.
#[derive(Default)]
struct StretchBuffers {
    stream: Vec<u8>,
    file: Vec<u8>,
}

impl StretchBuffers {
    /// Returns room for the bytes of a stretch in the order of the stream, and in file order.
    fn resize_for(&mut self, stretch: &InFileOrder) -> (&mut [u8], &mut [u8]) {
        self.stream.resize(stretch.stream_len() as usize, 0);
        self.file.resize(stretch.size() as usize, 0);
        (&mut self.stream, &mut self.file)
    }
}

/// Returns the next stretch of the bytes `stream .. stream + len` that lie before byte `end` of the
/// file.
fn next_stretch(
    operation: &'static str,
    path: &Path,
    view: &ProgramView,
    (stream, len): (u64, u64),
    end: u64,
) -> Result<InFileOrder> {
    view.in_file_order(stream, len, end)
        .map_err(|e| TiledError::with_detail(operation, path, Errno::INVAL, e.to_string()))
}

fn one_byte(path: &Path) -> Result<Shape> {
    Shape::bytes(1)
        .map_err(|e| TiledError::with_detail("access", path, Errno::INVAL, e.to_string()))
}

/// Writes all of `data` from stream position `stream` on. Of two bytes for one place the later
/// counts.
///
/// # Errors
/// Those of the engine; `EINVAL` for bytes before the file, `EFBIG` past its largest offset.
pub fn write_unordered(
    engine: &mut dyn Engine,
    view: &ProgramView,
    stream: u64,
    data: &Buffer<'_>,
    path: &Path,
) -> Result<()> {
    let (byte, mut room, mut done) = (one_byte(path)?, StretchBuffers::default(), 0);
    while done < data.len() {
        let rest = (stream + done, data.len() - done);
        let stretch = next_stretch("write", path, view, rest, MAX_OFFSET + 1)?;
        // The next byte lies past the largest offset of a file.
        if stretch.stream_len() == 0 {
            return Err(TiledError::new("write", path, Errno::FBIG));
        }
        let (from, to) = room.resize_for(&stretch);
        data.gather(done, from);
        stretch.sort_into_file_order(from, to);
        engine.write(stretch.view(), 0, &Buffer::from_slice(to, &byte))?;
        done += stretch.stream_len();
    }
    Ok(())
}

/// Fills `into` from stream position `stream` on, up to the first byte that lies past the end of
/// the file; returns the bytes read.
///
/// # Errors
/// Those of the engine; `EINVAL` for bytes before the file.
pub fn read_unordered(
    engine: &mut dyn Engine,
    view: &ProgramView,
    stream: u64,
    into: &mut Buffer<'_>,
    path: &Path,
) -> Result<u64> {
    let (byte, mut room, mut done) = (one_byte(path)?, StretchBuffers::default(), 0);
    let end = engine.file_size()?;
    while done < into.len() {
        let stretch = next_stretch("read", path, view, (stream + done, into.len() - done), end)?;
        let (to, from) = room.resize_for(&stretch);
        let got = engine.read(stretch.view(), 0, &mut Buffer::from_slice(from, &byte))? as usize;
        let reported = stretch.sort_into_stream_order(&from[..got], to);
        into.scatter(done, &to[..reported]);
        done += reported as u64;
        if reported == 0 {
            break;
        }
    }
    Ok(done)
}
