//! Opens files, makes their descriptors native where the bytes are on this node, and reports their
//! state at the close.

use crate::closes;
use crate::inside::warn_once;
use crate::raw;
use crate::session::{Session, cred, session};
use crate::table::{self, DescriptorKind, LastNumber, ProgramFile, ReportMark};
use crate::walk::{
    DirPosition, EntryPlace, FoundInode, PathTarget, WalkEnd, WalkStart, find_from, follow_last,
    walk_path,
};
use std::ffi::{CString, c_int};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use tatami_client::{DataFile, stat_file};
use tatami_wire::meta::{DataState, InodeTemplate};
use tatami_wire::object::ObjectState;
use tatami_wire::{Access, Attr, Cap, Cred, Errno, Ino, InodeKind, SetAttr};

/// Begins the names of placeholders.
pub(crate) const PLACEHOLDER_NAME: &str = "tatami:";
/// Flags of open(2) that the kernel keeps for a descriptor.
const KEPT_FLAGS: c_int = libc::O_APPEND | libc::O_NONBLOCK;
/// Bits of a mode that a write removes.
const SUID: u16 = 0o6000;

/// The result of an open: a descriptor, or a path of the machine.
pub(crate) enum Opened {
    Descriptor(RawFd),
    Host(CString),
}

/// Returns the name of a placeholder.
fn placeholder_name(file: &ProgramFile) -> CString {
    let access = match (file.is_path, file.kind, file.access) {
        (true, ..) => "p",
        (_, InodeKind::Dir, _) => "d",
        (.., Access { read: true, write: true }) => "rw",
        (.., Access { write: true, .. }) => "w",
        _ => "r",
    };
    CString::new(format!("{PLACEHOLDER_NAME}{:x}:{access}", file.ino.0)).unwrap_or_default()
}

/// Makes a placeholder for an open file. Writes past this library fail with `EPERM`.
fn make_placeholder(file: &Arc<ProgramFile>, flags: c_int) -> Result<RawFd, Errno> {
    let name = placeholder_name(file);
    let close = if flags & libc::O_CLOEXEC != 0 { libc::MFD_CLOEXEC } else { 0 };
    let bits = (close | libc::MFD_ALLOW_SEALING) as usize;
    let fd = raw::call_int(libc::SYS_memfd_create, &[name.as_ptr() as usize, bits]);
    if fd < 0 {
        return Err(Errno(raw::errno()));
    }
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
    raw::call(libc::SYS_fcntl, &[fd as usize, libc::F_ADD_SEALS as usize, seals as usize]);
    if flags & KEPT_FLAGS != 0 {
        let kept = (flags & KEPT_FLAGS) as usize;
        raw::call(libc::SYS_fcntl, &[fd as usize, libc::F_SETFL as usize, kept]);
    }
    if let Err(e) = table::add_number(fd, file) {
        raw::call(libc::SYS_close, &[fd as usize]);
        return Err(e);
    }
    Ok(fd)
}

/// Checks the permission bits, as the shard does for requests about names.
pub(crate) fn may_access(attr: &Attr, user: &Cred, want: u16) -> bool {
    if user.is_root() {
        let any_x = attr.mode & 0o111 != 0 || attr.kind == InodeKind::Dir;
        return want & 1 == 0 || any_x;
    }
    let bits = if user.uid == attr.uid {
        attr.mode >> 6
    } else if user.in_group(attr.gid) {
        attr.mode >> 3
    } else {
        attr.mode
    };
    bits & want == want
}

/// Opens a path.
///
/// # Errors
/// Those of open(2).
pub(crate) fn open_path(start: WalkStart, flags: c_int, mode: u32) -> Result<Opened, Errno> {
    if flags & libc::O_TMPFILE == libc::O_TMPFILE {
        return Err(Errno::EOPNOTSUPP);
    }
    let session = session()?;
    closes::send_old_closes(&session);
    let mut links = 0;
    let mut end = walk_path(&session, start, &mut links)?;
    if flags & libc::O_CREAT == 0 || flags & libc::O_PATH != 0 {
        let follow = flags & libc::O_NOFOLLOW == 0;
        return match find_from(&session, end, follow, links)? {
            PathTarget::Host(path) => Ok(Opened::Host(path)),
            PathTarget::Inode(found) => open_found(&session, &found, flags).map(Opened::Descriptor),
        };
    }
    loop {
        let place = match end {
            WalkEnd::Host(path) => return Ok(Opened::Host(path)),
            WalkEnd::Dir(_) => return Err(Errno::EISDIR),
            WalkEnd::Entry(place) => place,
        };
        if place.must_be_dir {
            return Err(Errno::EISDIR);
        }
        match create_file(&session, &place, flags, mode) {
            Err(Errno::EEXIST) if flags & libc::O_EXCL == 0 => {
                let attr = session.client.lookup(&cred(), place.dir.ino, &place.name)?;
                match attr.kind {
                    InodeKind::Symlink if flags & libc::O_NOFOLLOW == 0 => {
                        end = follow_last(&session, &place, attr.ino, &mut links)?;
                    }
                    InodeKind::Dir => return Err(Errno::EISDIR),
                    _ => {
                        let entry = Some((place.dir, place.name));
                        let found = FoundInode { attr, entry, position: None };
                        return open_found(&session, &found, flags).map(Opened::Descriptor);
                    }
                }
            }
            other => return other.map(Opened::Descriptor),
        }
    }
}

fn create_file(
    session: &Arc<Session>,
    place: &EntryPlace,
    flags: c_int,
    mode: u32,
) -> Result<RawFd, Errno> {
    let access = Access::from_open_flags(flags);
    let user = cred();
    let (mode, umask) = ((mode & 0o7777) as u16, crate::umask::current() as u16);
    let node = InodeTemplate::File(session.client.new_layout());
    let exclusive = flags & libc::O_EXCL != 0;
    let (dir, name) = (place.dir.ino, &place.name);
    let made =
        session.client.create(&user, dir, name, node, mode, umask, exclusive, Some(access))?;
    let (mut attr, mut cap) = (made.attr, made.cap.ok_or(Errno::EPROTO)?);
    if !made.created && access.write {
        // A close that was reported meanwhile would end this open.
        closes::withdraw_close(attr.ino);
        (attr, cap) = session.client.open(&Cred::ROOT, attr.ino, access)?;
    }
    let cut = !made.created && flags & libc::O_TRUNC != 0;
    let fd = attach_file(session, (attr, cap), flags, &place.dir, &place.name)?;
    if cut && let Some(file) = table::file_of(fd) {
        set_size(session, &file, 0).inspect_err(|_| _ = close_number(fd))?;
    }
    Ok(fd)
}

/// Opens an inode that was found by a path.
fn open_found(session: &Arc<Session>, found: &FoundInode, flags: c_int) -> Result<RawFd, Errno> {
    let FoundInode { attr, .. } = found;
    let position = found.as_position();
    let wants_dir = flags & libc::O_DIRECTORY != 0;
    if flags & libc::O_PATH != 0 {
        if wants_dir && attr.kind != InodeKind::Dir {
            return Err(Errno::ENOTDIR);
        }
        let mut file = ProgramFile::new(attr.ino, attr.kind, Access::NONE);
        (file.is_path, file.prefix, file.path) = (true, position.prefix, position.path);
        file.stays_virtual = AtomicBool::new(true);
        return make_placeholder(&Arc::new(file), flags);
    }
    let access = Access::from_open_flags(flags);
    match attr.kind {
        InodeKind::Dir => {
            if access.write || flags & libc::O_CREAT != 0 {
                return Err(Errno::EISDIR);
            }
            if !may_access(attr, &cred(), 4) {
                return Err(Errno::EACCES);
            }
            let mut file = ProgramFile::new(attr.ino, attr.kind, Access::NONE);
            (file.prefix, file.path) = (position.prefix, position.path);
            make_placeholder(&Arc::new(file), flags & !KEPT_FLAGS)
        }
        _ if wants_dir => Err(Errno::ENOTDIR),
        InodeKind::Symlink => Err(Errno::ELOOP),
        InodeKind::File => {
            let (dir, name) = found.entry.as_ref().ok_or(Errno::EIO)?;
            let cuts = flags & libc::O_TRUNC != 0;
            let opened = open_inode(session, attr.ino, access)?;
            let fd = attach_file(session, opened, flags, dir, name)?;
            if cuts
                && access.write
                && let Some(file) = table::file_of(fd)
            {
                set_size(session, &file, 0).inspect_err(|_| _ = close_number(fd))?;
            }
            Ok(fd)
        }
        InodeKind::Fifo | InodeKind::Socket | InodeKind::CharDev | InodeKind::BlockDev => {
            static SAID: AtomicBool = AtomicBool::new(false);
            warn_once(&SAID, "pipes, sockets and devices of a volume need a mount");
            Err(Errno::EOPNOTSUPP)
        }
    }
}

fn open_inode(session: &Session, ino: Ino, access: Access) -> Result<(Attr, Cap), Errno> {
    if access.write {
        closes::withdraw_close(ino);
    }
    session.client.open(&cred(), ino, access)
}

fn attach_file(
    session: &Session,
    opened: (Attr, Cap),
    flags: c_int,
    dir: &DirPosition,
    name: &[u8],
) -> Result<RawFd, Errno> {
    let access = Access::from_open_flags(flags);
    let mut file = ProgramFile::new(opened.0.ino, InodeKind::File, access);
    file.path = crate::walk::join_volume(&dir.path, name);
    file.prefix = dir.prefix;
    if access.write {
        file.writer.store(session.generation, Relaxed);
    }
    *file.opened.get_mut() = Some(opened);
    make_placeholder(&Arc::new(file), flags)
}

/// Returns the bytes of an open file, for the present client.
///
/// # Errors
/// Those of an open by inode, for a file that another program opened.
pub(crate) fn data_of(session: &Session, file: &ProgramFile) -> Result<Arc<DataFile>, Errno> {
    let mut data = file.data.lock();
    if let Some((number, known)) = &*data
        && *number == session.generation
    {
        return Ok(known.clone());
    }
    let mut opened = file.opened.lock();
    let (attr, cap) = match opened.clone() {
        Some(opened) => opened,
        None => {
            let fresh = open_inode(session, file.ino, file.access)?;
            if file.access.write {
                file.writer.store(session.generation, Relaxed);
            }
            opened.insert(fresh).clone()
        }
    };
    let new = Arc::new(session.client.open_data(&attr, cap)?);
    if let Some((_, old)) = data.replace((session.generation, new.clone())) {
        // A drop would end writes of the parent process.
        std::mem::forget(old);
    }
    Ok(new)
}

/// Returns size and times of an object for comparisons.
fn mark_of(state: &ObjectState) -> ReportMark {
    ReportMark { size: state.size, mtime: state.mtime, changed: state.changed }
}

/// Returns the state of the file behind a native descriptor.
pub(crate) fn native_state(fd: RawFd) -> Result<ObjectState, Errno> {
    // SAFETY: the descriptor is open, and is not closed by this value.
    let borrowed = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
    stat_file(&borrowed)
}

/// Makes the descriptors of a file native, if its bytes are one file of this node's disk. Does
/// nothing for other files.
///
/// # Errors
/// Those of the open by inode.
pub(crate) fn make_native(session: &Session, file: &Arc<ProgramFile>) -> Result<(), Errno> {
    if file.is_native.load(Relaxed) || file.stays_virtual.load(Relaxed) {
        return Ok(());
    }
    let data = data_of(session, file)?;
    let Some((attr, _)) = file.opened.lock().clone() else { return Ok(()) };
    let stay = || file.stays_virtual.store(true, Relaxed);
    if !data.has_local_file() || file.access.write && attr.mode & SUID != 0 {
        stay();
        return Ok(());
    }
    let _position = file.position.lock();
    if file.is_native.load(Relaxed) {
        return Ok(());
    }
    // An object that had bytes is not made again: the bytes are lost, and each access reports that.
    let Some(object) = data.local_file(file.access.write && attr.size == 0)? else {
        if attr.size > 0 {
            stay();
        }
        return Ok(());
    };
    let state = stat_file(&object)?;
    let lacks_bytes = state.size < attr.size && data.is_lost(state.size)?;
    if lacks_bytes || file.access.write && data.check_changeable().is_err() {
        stay();
        return Ok(());
    }
    *file.mark.lock() = Some(mark_of(&state));
    let numbers = table::numbers_of(file);
    let Some(first) = numbers.first().copied() else { return Ok(()) };
    let source = object.as_raw_fd();
    let at = raw::call(libc::SYS_lseek, &[first as usize, 0, libc::SEEK_CUR as usize]);
    raw::call(libc::SYS_lseek, &[source as usize, at.max(0) as usize, libc::SEEK_SET as usize]);
    let flags = raw::call_int(libc::SYS_fcntl, &[first as usize, libc::F_GETFL as usize]);
    let kept = (flags & KEPT_FLAGS) as usize;
    raw::call(libc::SYS_fcntl, &[source as usize, libc::F_SETFL as usize, kept]);
    for fd in &numbers {
        let close = raw::call_int(libc::SYS_fcntl, &[*fd as usize, libc::F_GETFD as usize]);
        let close = if close & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
        raw::call(libc::SYS_dup3, &[source as usize, *fd as usize, close as usize]);
    }
    table::mark_native(file, &numbers);
    // The descriptor of the client is not needed any more: the kernel keeps the file.
    drop(object);
    data.set_local_file(None);
    Ok(())
}

/// Makes all placeholders native that can be.
pub(crate) fn make_all_native() {
    let files = table::list_files();
    let is_candidate = |file: &ProgramFile| {
        file.kind == InodeKind::File && !file.is_path && !file.is_native.load(Relaxed)
    };
    if !files.iter().any(|(_, file)| is_candidate(file)) {
        return;
    }
    let Ok(session) = session() else { return };
    for (_, file) in files.iter().filter(|(_, file)| is_candidate(file)) {
        // A file that stays virtual reports its error at the next access.
        let _ = make_native(&session, file);
    }
}

/// Gives a standard stream functions of this library.
static STREAM_ADOPTER: OnceLock<fn(RawFd)> = OnceLock::new();

/// Sets the function that gives the standard stream of a number functions of this library.
pub(crate) fn set_stream_adopter(adopt: fn(RawFd)) {
    _ = STREAM_ADOPTER.set(adopt);
}

/// Makes a number native if it can be. The standard streams write past this library, so the stream
/// of a placeholder with such a number gets functions of this library.
pub(crate) fn settle_number(fd: RawFd) {
    if table::kind_of(fd) != DescriptorKind::Placeholder {
        return;
    }
    let Some(file) = table::file_of(fd) else { return };
    if file.kind == InodeKind::File
        && !file.is_path
        && let Ok(session) = session()
    {
        // A file that stays virtual reports its error at the next access.
        let _ = make_native(&session, &file);
    }
    if fd <= libc::STDERR_FILENO
        && table::kind_of(fd) == DescriptorKind::Placeholder
        && let Some(adopt) = STREAM_ADOPTER.get()
    {
        adopt(fd);
    }
}

/// Returns the present state of a file's bytes, through one of its descriptors.
pub(crate) fn current_state(
    session: &Session,
    fd: RawFd,
    file: &ProgramFile,
) -> Result<ObjectState, Errno> {
    match file.is_native.load(Relaxed) {
        true => native_state(fd),
        false => data_of(session, file)?.stat(),
    }
}

/// Reports the state of a file to the shard if it has changed. With `close`, also that this process
/// does not write any more.
///
/// # Errors
/// Those of writes that had not reached their node, and of the shard.
pub(crate) fn report_state(fd: RawFd, file: &ProgramFile, close: bool) -> Result<(), Errno> {
    if !file.access.write {
        return Ok(());
    }
    let native = if file.is_native.load(Relaxed) { Some(native_state(fd)?) } else { None };
    let changed = match &native {
        Some(state) => *file.mark.lock() != Some(mark_of(state)),
        None => file.wrote.load(Relaxed),
    };
    let closes = close && file.is_registered();
    if !changed && !closes {
        return Ok(());
    }
    let session = session()?;
    let ino = file.ino;
    if !changed {
        // Nothing was written, or all was reported or recorded.
        let is_recorded = file.is_recorded();
        let was_empty =
            native.is_none() && !is_recorded && file.opened.lock().as_ref().is_some_and(is_empty);
        file.writer.store(0, Relaxed);
        if is_recorded || was_empty {
            closes::add_close(&session, ino, was_empty);
            return Ok(());
        }
        return session.client.report_closed(vec![ino], Vec::new(), Vec::new());
    }
    let mut flushed = Ok(());
    let state = match native {
        Some(state) => state,
        None => {
            let data = data_of(&session, file)?;
            flushed = data.flush();
            data.stat()?
        }
    };
    if closes {
        file.writer.store(0, Relaxed);
    }
    let committed = session.client.commit(&Cred::ROOT, ino, Some(DataState::from(state)), closes);
    match committed {
        // The file was removed, and the state with it.
        Ok(_) | Err(Errno::ESTALE | Errno::ENOENT) => {}
        Err(e) => return Err(e),
    }
    if native.is_some() {
        *file.mark.lock() = Some(mark_of(&state));
    }
    file.wrote.store(false, Relaxed);
    flushed
}

fn is_empty(opened: &(Attr, Cap)) -> bool {
    opened.0.size == 0
}

/// Changes the size of an open file.
///
/// # Errors
/// Those of ftruncate(2).
pub(crate) fn set_size(session: &Session, file: &ProgramFile, size: u64) -> Result<(), Errno> {
    if !file.access.write {
        return Err(Errno::EINVAL);
    }
    let attr = cut_data(session, &*data_of(session, file)?, file.ino, size)?;
    if let Some((opened, _)) = &mut *file.opened.lock() {
        *opened = attr;
    }
    Ok(())
}

/// Cuts or extends the bytes of a file, and then the inode: an object is never shorter than its
/// inode says.
pub(crate) fn cut_data(
    session: &Session,
    data: &DataFile,
    ino: Ino,
    size: u64,
) -> Result<Attr, Errno> {
    let now = data.truncate(size)?;
    let set = SetAttr {
        size: Some(size),
        blocks: Some(now.blocks),
        changed: Some(now.changed),
        by_handle: true,
        ..SetAttr::default()
    };
    session.client.setattr(&Cred::ROOT, ino, set)
}

/// Ends one number of an open file, which may be the last one. The number itself stays open for the
/// caller to close, so that the state of its file can be read.
///
/// # Errors
/// Those of [`report_state`].
pub(crate) fn end_number(fd: RawFd) -> Result<(), Errno> {
    let Some((file, last)) = table::remove_number(fd) else { return Ok(()) };
    crate::lock_ends::end_process_locks(&file);
    let Some(LastNumber { is_last_writer, is_kept }) = last else { return Ok(()) };
    crate::lock_ends::end_file_locks(&file);
    let reported = report_state(fd, &file, is_last_writer);
    end_changes(&file);
    if is_kept && let Ok(session) = session() {
        let _ = session.client.release_inode(file.ino);
    }
    reported
}

/// Ends the changes of a file that keeps versions. What a parent process has written does not
/// concern this one.
fn end_changes(file: &ProgramFile) {
    let Some((generation, data)) = file.data.lock().clone() else { return };
    if session().is_ok_and(|session| session.generation == generation) {
        data.end_changes();
    }
}

/// Closes a descriptor of the volume.
///
/// # Errors
/// As [`end_number`].
pub(crate) fn close_number(fd: RawFd) -> Result<(), Errno> {
    let ended = end_number(fd);
    raw::call(libc::SYS_close, &[fd as usize]);
    ended
}

/// Reports the state of all files: the process ends, or another program takes its place. With
/// `close`, as if all were closed.
pub(crate) fn report_all(close: bool) {
    let mut reported: Vec<Ino> = Vec::new();
    let files = table::list_files();
    for (fd, file) in files.iter().filter(|(_, file)| file.access.write) {
        // The shard counts a client once for each inode: only the last report closes.
        let others = files.iter().filter(|(_, o)| o.ino == file.ino && o.access.write).count();
        reported.push(file.ino);
        let is_last = reported.iter().filter(|ino| **ino == file.ino).count() == others;
        // The program cannot learn of the error any more.
        let _ = report_state(*fd, file, close && is_last);
        if close {
            end_changes(file);
        }
    }
    closes::send_closes();
}

/// Opens the file of a descriptor once more.
///
/// # Errors
/// Those of open(2).
pub(crate) fn reopen(fd: RawFd, flags: c_int) -> Result<RawFd, Errno> {
    let Some(file) = table::file_of(fd) else { return Err(Errno::ENOENT) };
    let session = session()?;
    let attr = session.client.getattr(&cred(), file.ino)?;
    let cut = file.path.iter().rposition(|b| *b == b'/').unwrap_or(0);
    let (path, prefix) = (file.path[..cut].to_vec(), file.prefix);
    let dir = DirPosition { ino: file.ino, path, prefix, above: None };
    let name = file.path.get(cut + 1..).unwrap_or_default().to_vec();
    open_found(&session, &FoundInode { attr, entry: Some((dir, name)), position: None }, flags)
}
