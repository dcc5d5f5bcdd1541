//! Extended attributes.

use crate::export::c_functions;
use crate::inside::{Outcome, route};
use crate::names::{PathAt, with_inode};
use crate::raw::{self, ProgramText, program_buffer, program_bytes};
use crate::session::{Session, cred, session};
use crate::table::file_of;
use libc::{AT_FDCWD, c_long};
use std::ffi::{c_char, c_int, c_void};
use tatami_wire::meta::XattrMode;
use tatami_wire::{Errno, Ino};

/// The file whose attributes are meant.
#[derive(Clone, Copy)]
enum XattrTarget {
    Path(ProgramText),
    Link(ProgramText),
    Descriptor(c_int),
}

impl XattrTarget {
    /// Runs `work` on the inode; `numbers` are the system calls for a path, a link and a
    /// descriptor, and `args` their arguments after the first one.
    fn run<T: crate::inside::FailedResult>(
        self,
        work: impl Fn(&Session, Ino) -> Result<T, Errno>,
        pass: impl FnOnce(usize, usize) -> T,
    ) -> T {
        let (which, own) = match self {
            XattrTarget::Path(text) => (0, text.argument()),
            XattrTarget::Link(text) => (1, text.argument()),
            XattrTarget::Descriptor(fd) => (2, fd as usize),
        };
        route(
            || match self {
                XattrTarget::Path(text) | XattrTarget::Link(text) => {
                    let at = PathAt { dirfd: AT_FDCWD, path: text.bytes() };
                    with_inode(at, which == 0, |session, attr| work(session, attr.ino))
                }
                XattrTarget::Descriptor(fd) => match file_of(fd) {
                    Some(file) => work(&*session()?, file.ino).map(Outcome::Done),
                    None => Ok(Outcome::Pass),
                },
            },
            |host| pass(which, host.map_or(own, |path| path.as_ptr() as usize)),
        )
    }
}

/// Copies a value to the program; without room, only its length counts.
fn give_value(value: &[u8], place: *mut c_void, len: usize) -> Result<isize, Errno> {
    if len == 0 {
        return Ok(value.len() as isize);
    }
    if value.len() > len {
        return Err(Errno::ERANGE);
    }
    program_buffer(place, value.len()).copy_from_slice(value);
    Ok(value.len() as isize)
}

const GET: [c_long; 3] = [libc::SYS_getxattr, libc::SYS_lgetxattr, libc::SYS_fgetxattr];
const SET: [c_long; 3] = [libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr];
const LIST: [c_long; 3] = [libc::SYS_listxattr, libc::SYS_llistxattr, libc::SYS_flistxattr];
const REMOVE: [c_long; 3] = [libc::SYS_removexattr, libc::SYS_lremovexattr, libc::SYS_fremovexattr];

fn get(target: XattrTarget, name: *const c_char, place: *mut c_void, len: usize) -> isize {
    let text = ProgramText(name);
    target.run(
        |session, ino| {
            let name = text.bytes().unwrap_or_default();
            match session.client.get_xattr(&cred(), ino, name) {
                Ok(value) => give_value(&value, place, len),
                // As with NFS: ls then does not ask for the labels of further files.
                Err(Errno::ENODATA) if name == b"security.selinux" => Err(Errno::EOPNOTSUPP),
                Err(e) => Err(e),
            }
        },
        |which, first| raw::call(GET[which], &[first, name as usize, place as usize, len]) as isize,
    )
}

fn set(
    target: XattrTarget,
    name: *const c_char,
    value: *const c_void,
    len: usize,
    flags: c_int,
) -> c_int {
    let text = ProgramText(name);
    target.run(
        |session, ino| {
            let mode = match flags {
                0 => XattrMode::Set,
                libc::XATTR_CREATE => XattrMode::Create,
                libc::XATTR_REPLACE => XattrMode::Replace,
                _ => return Err(Errno::EINVAL),
            };
            let (name, value) = (text.bytes().unwrap_or_default(), program_bytes(value, len));
            session.client.set_xattr(&cred(), ino, name, value, mode).map(|()| 0)
        },
        |which, first| {
            let args = [first, name as usize, value as usize, len, flags as usize];
            raw::call_int(SET[which], &args)
        },
    )
}

fn list(target: XattrTarget, place: *mut c_char, len: usize) -> isize {
    target.run(
        |session, ino| {
            let names = session.client.list_xattr(&cred(), ino)?;
            give_value(&names, place.cast(), len)
        },
        |which, first| raw::call(LIST[which], &[first, place as usize, len]) as isize,
    )
}

fn remove(target: XattrTarget, name: *const c_char) -> c_int {
    let text = ProgramText(name);
    target.run(
        |session, ino| {
            let name = text.bytes().unwrap_or_default();
            session.client.remove_xattr(&cred(), ino, name).map(|()| 0)
        },
        |which, first| raw::call_int(REMOVE[which], &[first, name as usize]),
    )
}

fn path(text: *const c_char) -> XattrTarget {
    XattrTarget::Path(ProgramText(text))
}

fn link(text: *const c_char) -> XattrTarget {
    XattrTarget::Link(ProgramText(text))
}

c_functions! {
    fn getxattr(p: *const c_char, name: *const c_char, place: *mut c_void, len: usize) -> isize {
        get(path(p), name, place, len)
    }
    fn lgetxattr(p: *const c_char, name: *const c_char, place: *mut c_void, len: usize) -> isize {
        get(link(p), name, place, len)
    }
    fn fgetxattr(fd: c_int, name: *const c_char, place: *mut c_void, len: usize) -> isize {
        get(XattrTarget::Descriptor(fd), name, place, len)
    }
    fn setxattr(
        p: *const c_char,
        name: *const c_char,
        value: *const c_void,
        len: usize,
        flags: c_int,
    ) -> c_int {
        set(path(p), name, value, len, flags)
    }
    fn lsetxattr(
        p: *const c_char,
        name: *const c_char,
        value: *const c_void,
        len: usize,
        flags: c_int,
    ) -> c_int {
        set(link(p), name, value, len, flags)
    }
    fn fsetxattr(
        fd: c_int,
        name: *const c_char,
        value: *const c_void,
        len: usize,
        flags: c_int,
    ) -> c_int {
        set(XattrTarget::Descriptor(fd), name, value, len, flags)
    }
    fn listxattr(p: *const c_char, place: *mut c_char, len: usize) -> isize {
        list(path(p), place, len)
    }
    fn llistxattr(p: *const c_char, place: *mut c_char, len: usize) -> isize {
        list(link(p), place, len)
    }
    fn flistxattr(fd: c_int, place: *mut c_char, len: usize) -> isize {
        list(XattrTarget::Descriptor(fd), place, len)
    }
    fn removexattr(p: *const c_char, name: *const c_char) -> c_int { remove(path(p), name) }
    fn lremovexattr(p: *const c_char, name: *const c_char) -> c_int { remove(link(p), name) }
    fn fremovexattr(fd: c_int, name: *const c_char) -> c_int {
        remove(XattrTarget::Descriptor(fd), name)
    }
}
