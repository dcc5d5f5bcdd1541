//! Programs at the same addresses.
//!
//! A program's code lies at random addresses, which the CPU's branch predictor knows branches by. Servers on machines of
//! their own each have a predictor. Five processes of one program that take turns on one CPU, each with the same branches at other
//! addresses, forget each other's, which costs a fifth of their time; at the same addresses they remember for each other.

use std::ffi::{c_int, c_ulong};
use std::io;

/// What is started while it lives has no random addresses. Dropping it restores what was.
pub(super) struct SameAddresses(c_int);

impl SameAddresses {
    /// Begins.
    ///
    /// # Errors
    /// `EPERM` in containers that do not allow it.
    pub(super) fn begin() -> io::Result<SameAddresses> {
        const ASK: c_ulong = 0xffff_ffff;
        let before = personality(ASK)?;
        personality(c_ulong::from(before as u32) | libc::ADDR_NO_RANDOMIZE as c_ulong)?;
        Ok(SameAddresses(before))
    }
}

impl Drop for SameAddresses {
    fn drop(&mut self) {
        // It was allowed a moment ago.
        let _ = personality(c_ulong::from(self.0 as u32));
    }
}

/// Sets how programs of this thread are started, and returns what it was.
fn personality(persona: c_ulong) -> io::Result<c_int> {
    // SAFETY: a number goes in and a number comes out; no memory is touched.
    match unsafe { libc::personality(persona) } {
        -1 => Err(io::Error::last_os_error()),
        before => Ok(before),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn stacks() -> [Vec<u8>; 2] {
        [(); 2].map(|()| {
            let said = Command::new("grep").args(["stack", "/proc/self/maps"]).output();
            said.expect("grep runs").stdout
        })
    }

    #[test]
    fn what_is_started_meanwhile_has_no_random_addresses() {
        let Ok(same) = SameAddresses::begin() else {
            return eprintln!("not allowed here");
        };
        let [one, two] = stacks();
        assert_eq!(one, two);
        drop(same);
        let [one, two] = stacks();
        assert_ne!(one, two);
    }
}
