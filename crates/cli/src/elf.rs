//! Looks at programs without running them.

use std::io::Read;
use std::path::Path;

/// Longest first line of a script that the kernel reads, in bytes.
const INTERPRETER_MAX: u64 = 256;

/// Returns the interpreter of a script; `None` for other programs.
pub fn read_interpreter(path: &Path) -> Option<String> {
    let mut start = Vec::new();
    std::fs::File::open(path).ok()?.take(INTERPRETER_MAX).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    Some(crate::term::escape_name(line.trim_ascii()))
}

/// Returns whether an ELF file names a dynamic linker.
pub fn is_dynamic(program: &Path) -> bool {
    let Ok(bytes) = std::fs::read(program) else { return false };
    program_headers(&bytes).is_some_and(|types| types.contains(&PT_INTERP))
}

/// The program header that names the dynamic linker (elf(5)).
const PT_INTERP: u32 = 3;

/// Returns the types of the program headers of a 64-bit ELF file in this machine's byte order.
fn program_headers(bytes: &[u8]) -> Option<Vec<u32>> {
    let word = |at: usize, len: usize| -> Option<u64> {
        let field = bytes.get(at..at.checked_add(len)?)?;
        Some(field.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    if bytes.get(..5)? != b"\x7fELF\x02" {
        return None;
    }
    let (start, size, count) = (word(32, 8)?, word(54, 2)?, word(56, 2)?);
    (0..count)
        .map(|i| {
            let at = start.checked_add(i.checked_mul(size)?)?;
            Some(word(usize::try_from(at).ok()?, 4)? as u32)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_programs_have_no_headers() {
        assert_eq!(program_headers(b"#!/bin/sh\n"), None);
        assert_eq!(program_headers(b"\x7fELF\x02"), None);
        let own = std::fs::read("/proc/self/exe").expect("this test");
        assert!(program_headers(&own).is_some_and(|types| types.contains(&PT_INTERP)));
        let mut cut = own;
        cut.truncate(60);
        cut[56] = 255;
        assert_eq!(program_headers(&cut), None);
    }
}
