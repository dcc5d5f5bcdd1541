//! mmap(2). The kernel maps a file of this node's disk; of any other file the program gets a copy.

use crate::export::c_functions;
use crate::inside::{Outcome, route, warn_once};
use crate::raw;
use crate::table::{DescriptorKind, kind_of};
use crate::transfer::on_virtual;
use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicBool;
use tatami_wire::Errno;

fn map(
    address: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let pass = || {
        let (prot, flags) = (prot as usize, flags as usize);
        let args = [address as usize, len, prot, flags, fd as usize, offset as usize];
        raw::call(libc::SYS_mmap, &args) as isize
    };
    if flags & libc::MAP_ANONYMOUS != 0 || kind_of(fd) != DescriptorKind::Placeholder {
        return pass() as *mut c_void;
    }
    let mapped: isize = route(
        || {
            let copied = on_virtual(fd, |file| {
                let is_shared = flags & libc::MAP_PRIVATE == 0;
                if is_shared && prot & libc::PROT_WRITE != 0 {
                    static SAID: AtomicBool = AtomicBool::new(false);
                    warn_once(
                        &SAID,
                        "a file that is not on this node's disk cannot be mapped for shared writes",
                    );
                    return Err(Errno::ENODEV);
                }
                file.map_copy(address as usize, len, prot, flags, offset)
            })?;
            Ok(match copied {
                Outcome::Done(address) => Outcome::Done(address as isize),
                Outcome::Pass => Outcome::Pass,
                Outcome::PassAt(path) => Outcome::PassAt(path),
            })
        },
        |_| pass(),
    );
    mapped as *mut c_void
}

c_functions! {
    fn mmap(
        address: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64,
    ) -> *mut c_void {
        map(address, len, prot, flags, fd, offset)
    }
    fn mmap64(
        address: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64,
    ) -> *mut c_void {
        map(address, len, prot, flags, fd, offset)
    }
}
