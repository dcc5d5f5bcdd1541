//! Programs at the same addresses.
//!
//! A program's code lies at random addresses, and the CPU's branch predictor finds branches by
//! address. Servers on machines of their own each have a predictor. Here five processes of one
//! program take turns on one CPU, each with the same branches at other addresses. They evict each
//! other's entries from the predictor, which costs a fifth of their time. At the same addresses
//! they share the entries.

use std::ffi::{c_int, c_ulong};
use std::io;

/// While a value lives, started programs have no random addresses. Dropping it restores the
/// previous setting.
pub(super) struct SameAddresses(c_int);

impl SameAddresses {
    /// Turns random addresses off.
    ///
    /// # Errors
    /// `EPERM` in containers that do not allow it.
    pub(super) fn disable_randomization() -> io::Result<SameAddresses> {
        const ASK: c_ulong = 0xffff_ffff;
        let before = set_personality(ASK)?;
        set_personality(c_ulong::from(before as u32) | libc::ADDR_NO_RANDOMIZE as c_ulong)?;
        Ok(SameAddresses(before))
    }
}

impl Drop for SameAddresses {
    fn drop(&mut self) {
        // The same call succeeded a moment ago, so it succeeds now.
        let _ = set_personality(c_ulong::from(self.0 as u32));
    }
}

/// Sets the execution domain for programs that this thread starts, and returns the previous one.
fn set_personality(persona: c_ulong) -> io::Result<c_int> {
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
        let Ok(same) = SameAddresses::disable_randomization() else {
            return eprintln!("not allowed here");
        };
        let [one, two] = stacks();
        assert_eq!(one, two);
        drop(same);
        let [one, two] = stacks();
        assert_ne!(one, two);
    }
}
