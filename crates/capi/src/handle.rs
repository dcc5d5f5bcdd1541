//! Files: `tio_begin` to `tio_close`.

// Each function's pointers come from the caller, as the header says; see the crate's documentation.
#![allow(clippy::missing_safety_doc, non_camel_case_types)]

use crate::guard::{CallFailure, last_error, run_counted, run_status};
use crate::shapes::{buffer_argument, shape_ref, tio_shape};
use crate::text;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::sync::Arc;
use tatami_layout::Shape;
use tatami_tiled::claim::{self, Claim};
use tatami_tiled::volume::{WaitReporter, set_wait_reporter};
use tatami_tiled::{
    Buffer, CollectiveOpen, Environment, Flags, OpenToken, RankFile, TiledError, file, machine,
    stat, volume,
};

const VERSION: u32 = 1;

/// `tio_file`: a rank's handle, and the bytes of its last seal.
pub struct tio_file {
    file: RankFile,
    sealed: Mutex<Vec<u8>>,
}

/// Returns the handle behind a pointer.
///
/// # Safety
/// NULL, or a handle that no thread closes meanwhile.
unsafe fn handle_ref<'a>(file: *const tio_file) -> Result<&'a tio_file, CallFailure> {
    // SAFETY: the caller's.
    unsafe { file.as_ref() }.ok_or(CallFailure::Argument("the file handle is NULL"))
}

/// Stores a result.
///
/// # Safety
/// NULL, or room for a `T`.
unsafe fn store_result<T>(to: *mut T, value: T) -> Result<i32, CallFailure> {
    if to.is_null() {
        return Err(CallFailure::Argument("there is no room for the result"));
    }
    // SAFETY: the caller's.
    unsafe { to.write(value) };
    Ok(0)
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn tio_version() -> u32 {
    VERSION
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn tio_error() -> *const c_char {
    last_error()
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn tio_report_waits(report: Option<extern "C" fn(*const c_char)>) {
    let to_c = |report: extern "C" fn(*const c_char)| -> WaitReporter {
        Arc::new(move |why: &str| {
            let text = CString::new(why.replace('\0', " ")).unwrap_or_default();
            report(text.as_ptr());
        })
    };
    set_wait_reporter(report.map(to_c));
}

/// The result of [`tio_claims`] for a file of a volume that is named by a link.
const CLAIMED_LINK: c_int = 2;
/// The result of [`tio_claims`] for a file of another site.
const CLAIMED_REMOTE: c_int = 3;

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_claims(
    path: *const c_char,
    flags: c_int,
    hints: *const *const c_char,
) -> c_int {
    run_status(|| {
        // SAFETY: the caller's.
        let (path, hints) = unsafe { (text::path_argument(path)?, text::hints_argument(hints)) };
        let claim = file::claim_path(path, Flags(flags as u32), &hints, &Environment::read())?;
        Ok(match claim {
            Claim::NotOurs => 0,
            Claim::Volume { linked: true, .. } => CLAIMED_LINK,
            Claim::Remote(_) => CLAIMED_REMOTE,
            _ => 1,
        })
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_node(
    path: *const c_char,
    claim: c_int,
    node: *mut u32,
    inbox: *mut u64,
) -> c_int {
    run_status(|| {
        // SAFETY: the caller's.
        let path = unsafe { text::path_argument(path) }?;
        let (has_claimed, path) = (file::has_claimed(path), claim::without_prefix(path).0);
        let number = match claim {
            // No volume of this site.
            CLAIMED_REMOTE => None,
            _ => volume::node_of(path, claim == CLAIMED_LINK, has_claimed),
        };
        if !inbox.is_null() {
            let own = number.map_or(0, |_| volume::inbox_number());
            // SAFETY: the caller's.
            unsafe { store_result(inbox, own) }?;
        }
        let number = number.unwrap_or_else(machine::machine_id);
        // SAFETY: the caller's.
        unsafe { store_result(node, number) }
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_begin(
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
    hints: *const *const c_char,
    ranks: u32,
    nodes: *const u32,
    token: *mut c_void,
    token_len: *mut usize,
) -> c_int {
    run_status(|| {
        // SAFETY: the caller's.
        let (path, hints) = unsafe { (text::path_argument(path)?, text::hints_argument(hints)) };
        let nodes: &[u32] = match nodes.is_null() {
            true => &[],
            // SAFETY: the caller passes a number for each rank.
            false => unsafe { std::slice::from_raw_parts(nodes, ranks as usize) },
        };
        let begin = CollectiveOpen {
            path,
            flags: Flags(flags as u32),
            mode,
            hints: &hints,
            environment: &Environment::read(),
            ranks,
            machine: common_machine(nodes),
            nodes,
        };
        // SAFETY: the caller's.
        let room = unsafe { token_len.as_ref() }.copied().unwrap_or(0);
        if token.is_null() || room < tatami_tiled::token::TOKEN_MAX {
            return Err(CallFailure::Argument("there is no room for the token"));
        }
        let bytes = tatami_tiled::begin_open(&begin)?.encode();
        // SAFETY: a token is shorter than TOKEN_MAX, for which there is room.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), token.cast(), bytes.len()) };
        // SAFETY: the caller's.
        unsafe { store_result(token_len, bytes.len()) }
    })
}

/// Returns the number of this machine if all ranks are on it, else 0. The caller is rank 0. Ranks
/// with one mount of a volume are on one machine.
fn common_machine(nodes: &[u32]) -> u32 {
    let is_one = nodes.iter().all(|node| Some(node) == nodes.first());
    if is_one { machine::machine_id() } else { 0 }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_open(
    path: *const c_char,
    flags: c_int,
    hints: *const *const c_char,
    rank: u32,
    token: *const c_void,
    token_len: usize,
    inboxes: *const u64,
    out: *mut *mut tio_file,
) -> c_int {
    run_status(|| {
        // SAFETY: the caller's.
        let (path, hints) = unsafe { (text::path_argument(path)?, text::hints_argument(hints)) };
        if token.is_null() || out.is_null() {
            return Err(CallFailure::Argument("there is no token, or no room for the handle"));
        }
        // SAFETY: the caller's.
        let token = unsafe { std::slice::from_raw_parts(token.cast::<u8>(), token_len) };
        let token = OpenToken::decode(token, path)?;
        let inboxes: &[u64] = match inboxes.is_null() {
            true => &[],
            // SAFETY: the caller passes a number for each rank of the open. The token has the
            // number of ranks.
            false => unsafe { std::slice::from_raw_parts(inboxes, token.ranks as usize) },
        };
        let file = RankFile::open_among(path, Flags(flags as u32), &hints, rank, token, inboxes)?;
        let sealed = Mutex::new(Vec::new());
        // SAFETY: the caller's.
        unsafe { store_result(out, Box::into_raw(Box::new(tio_file { file, sealed }))) }
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_stamp(file: *mut tio_file) -> u64 {
    // SAFETY: the caller's.
    let stamp = run_counted(|| Ok(unsafe { handle_ref(file) }?.file.next_stamp() as i64));
    u64::try_from(stamp).unwrap_or(0)
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_epoch(file: *mut tio_file, stamp: u64) -> c_int {
    // SAFETY: the caller's.
    run_status(|| Ok(unsafe { handle_ref(file) }?.file.begin_epoch(stamp).map(|()| 0)?))
}

/// Returns the filetype of a view.
///
/// # Safety
/// As for [`get`].
unsafe fn filetype_argument(shape: *const tio_shape) -> Result<Shape, CallFailure> {
    // SAFETY: the caller's.
    unsafe { shape_ref(shape) }.cloned().ok_or(CallFailure::Argument("the filetype is NULL"))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_view_check(
    disp: u64,
    etype_size: u64,
    shape: *const tio_shape,
) -> c_int {
    run_status(|| {
        // SAFETY: the caller's.
        let filetype = unsafe { filetype_argument(shape) }?;
        tatami_tiled::file::make_view(Path::new("a file"), disp, etype_size, filetype)?;
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_view(
    file: *mut tio_file,
    disp: u64,
    etype_size: u64,
    shape: *const tio_shape,
) -> c_int {
    run_status(|| {
        // SAFETY: the caller's.
        let (file, filetype) = unsafe { (&handle_ref(file)?.file, filetype_argument(shape)?) };
        let view = tatami_tiled::file::make_view(file.path(), disp, etype_size, filetype)?;
        file.set_view(view);
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_write(
    file: *mut tio_file,
    stream: u64,
    buf: *const c_void,
    n: u64,
    mem: *const tio_shape,
) -> i64 {
    run_counted(|| {
        // SAFETY: the caller's; a write only reads the buffer.
        let (file, data) = unsafe {
            (&handle_ref(file)?.file, buffer_argument(buf.cast_mut(), n, shape_ref(mem))?)
        };
        Ok(file.write(stream, &data)? as i64)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_read(
    file: *mut tio_file,
    stream: u64,
    buf: *mut c_void,
    n: u64,
    mem: *const tio_shape,
) -> i64 {
    run_counted(|| {
        // SAFETY: the caller's.
        let (file, mut into): (_, Buffer<'_>) =
            unsafe { (&handle_ref(file)?.file, buffer_argument(buf, n, shape_ref(mem))?) };
        Ok(file.read(stream, &mut into)? as i64)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_offset_of(file: *mut tio_file, stream: u64, out: *mut u64) -> c_int {
    // SAFETY: the caller's.
    run_status(|| unsafe { store_result(out, handle_ref(file)?.file.offset_of(stream)) })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_stream_at_end(file: *mut tio_file, out: *mut u64) -> c_int {
    // SAFETY: the caller's.
    run_status(|| unsafe { store_result(out, handle_ref(file)?.file.stream_at_end()?) })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_size(file: *mut tio_file, out: *mut u64) -> c_int {
    // SAFETY: the caller's.
    run_status(|| unsafe { store_result(out, handle_ref(file)?.file.file_size()?) })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_set_size(file: *mut tio_file, size: u64) -> c_int {
    // SAFETY: the caller's.
    run_status(|| Ok(unsafe { handle_ref(file) }?.file.set_size(size).map(|()| 0)?))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_preallocate(file: *mut tio_file, size: u64) -> c_int {
    // SAFETY: the caller's.
    run_status(|| Ok(unsafe { handle_ref(file) }?.file.preallocate(size).map(|()| 0)?))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_seal(
    file: *mut tio_file,
    durable: c_int,
    bytes: *mut *const c_void,
    len: *mut usize,
) -> c_int {
    run_status(|| {
        // SAFETY: the caller's.
        let handle = unsafe { handle_ref(file) }?;
        let new = handle.file.seal_piece(durable != 0)?;
        let mut sealed = handle.sealed.lock();
        *sealed = new;
        // SAFETY: the caller's; the vector stays as it is until the next seal.
        unsafe { store_result(bytes, sealed.as_ptr().cast())? };
        // SAFETY: the caller's.
        unsafe { store_result(len, sealed.len()) }
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_publish(
    file: *mut tio_file,
    n: u32,
    bytes: *const *const c_void,
    lens: *const usize,
    durable: c_int,
    closing: c_int,
) -> c_int {
    run_status(|| {
        // SAFETY: the caller's.
        let file = &unsafe { handle_ref(file) }?.file;
        let n = n as usize;
        if n > 0 && (bytes.is_null() || lens.is_null()) {
            return Err(CallFailure::Argument("what the ranks sealed is NULL"));
        }
        let mut sealed: Vec<&[u8]> = Vec::with_capacity(n);
        for rank in 0..n {
            // SAFETY: the caller's: an entry for each rank.
            let (at, len) = unsafe { (*bytes.add(rank), *lens.add(rank)) };
            sealed.push(match len == 0 || at.is_null() {
                true => &[],
                // SAFETY: the caller's.
                false => unsafe { std::slice::from_raw_parts(at.cast(), len) },
            });
        }
        file.publish_pieces(&sealed, durable != 0, closing != 0)?;
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_sealed(file: *mut tio_file, published: c_int) -> c_int {
    run_status(|| {
        // SAFETY: the caller's.
        let handle = unsafe { handle_ref(file) }?;
        if published == 0 {
            handle.file.mark_published();
        }
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_close(file: *mut tio_file) -> c_int {
    run_status(|| {
        if file.is_null() {
            return Err(CallFailure::Argument("the file handle is NULL"));
        }
        // SAFETY: it came from Box::into_raw, and the caller gives it back.
        drop(unsafe { Box::from_raw(file) });
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_set_atomic(file: *mut tio_file, on: c_int) -> c_int {
    run_status(|| {
        // SAFETY: the caller's.
        unsafe { handle_ref(file) }?.file.set_atomic(on != 0);
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_lock(file: *mut tio_file) -> c_int {
    // SAFETY: the caller's.
    run_status(|| Ok(unsafe { handle_ref(file) }?.file.lock().map(|()| 0)?))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_unlock(file: *mut tio_file) -> c_int {
    // SAFETY: the caller's.
    run_status(|| Ok(unsafe { handle_ref(file) }?.file.unlock().map(|()| 0)?))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_shared_add(
    file: *mut tio_file,
    delta: i64,
    before: *mut i64,
) -> c_int {
    // SAFETY: the caller's.
    run_status(|| unsafe { store_result(before, handle_ref(file)?.file.shared_add(delta)?) })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_shared_set(file: *mut tio_file, value: i64) -> c_int {
    // SAFETY: the caller's.
    run_status(|| Ok(unsafe { handle_ref(file) }?.file.shared_set(value).map(|()| 0)?))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_hints(file: *mut tio_file, buf: *mut c_char, len: usize) -> c_int {
    run_status(|| {
        // SAFETY: the caller's.
        let lines = unsafe { handle_ref(file) }?.file.hint_lines();
        if !buf.is_null() && len > 0 {
            let fits = lines.len().min(len - 1);
            // SAFETY: the caller's: `len` bytes.
            unsafe {
                std::ptr::copy_nonoverlapping(lines.as_ptr().cast(), buf, fits);
                buf.add(fits).write(0);
            }
        }
        Ok(lines.len() as i32)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_delete(path: *const c_char) -> c_int {
    // SAFETY: the caller's.
    run_status(|| Ok(file::delete_file(unsafe { text::path_argument(path) }?).map(|()| 0)?))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_look(path: *const c_char, hints: *const *const c_char) -> c_int {
    run_status(|| {
        // SAFETY: the caller's.
        let (path, hints) = unsafe { (text::path_argument(path)?, text::hints_argument(hints)) };
        match file::look_at_file(path, &hints, &Environment::read())? {
            Some(copy) => Ok(copy.into_raw_fd()),
            None => Err(TiledError::new("look at", path, Errno::REMOTE).into()),
        }
    })
}

/// `tio_stat`: the attributes of a file, shown as one ordinary file.
#[repr(C)]
pub struct tio_stat {
    size: u64,
    mode: u32,
    container: u32,
    mtime_sec: i64,
    mtime_nsec: i64,
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_stat_path(path: *const c_char, out: *mut tio_stat) -> c_int {
    run_status(|| {
        // SAFETY: the caller's.
        let found = stat::stat_file(unsafe { text::path_argument(path) }?)?;
        let stat = tio_stat {
            size: found.size,
            mode: found.mode,
            container: u32::from(found.container),
            mtime_sec: found.modified.0,
            mtime_nsec: found.modified.1,
        };
        // SAFETY: the caller's.
        unsafe { store_result(out, stat) }
    })
}
