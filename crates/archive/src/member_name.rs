//! Names of members, as parts of a path below the directory in which an archive is unpacked.

/// Most bytes of one part of a name.
const PART_MAX: usize = 255;
/// Most bytes of a name.
const NAME_MAX: usize = 4096;

/// Why a name is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberNameFault {
    /// The name begins with `/`.
    #[error("its name is absolute")]
    Absolute,
    /// A part of the name is `..`.
    #[error("its name leads out of the directory by ..")]
    Parent,
    /// The name, or a part of it, is too long for a file system.
    #[error("its name is too long")]
    TooLong,
    /// The name has a zero byte.
    #[error("its name has a zero byte")]
    Zero,
}

/// Returns the parts of a name, without those that are empty or `.`: none for the directory itself.
///
/// # Errors
/// The name leads out of the directory, or no file can have it.
pub fn split_member_name(name: &[u8]) -> Result<Vec<&[u8]>, MemberNameFault> {
    if name.first() == Some(&b'/') {
        return Err(MemberNameFault::Absolute);
    }
    if name.contains(&0) {
        return Err(MemberNameFault::Zero);
    }
    let parts = name.split(|byte| *byte == b'/');
    let parts: Vec<&[u8]> = parts.filter(|part| !matches!(*part, b"" | b".")).collect();
    if parts.contains(&&b".."[..]) {
        return Err(MemberNameFault::Parent);
    }
    if name.len() > NAME_MAX || parts.iter().any(|part| part.len() > PART_MAX) {
        return Err(MemberNameFault::TooLong);
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_out_are_refused() {
        let split = |name: &str| {
            let parts = split_member_name(name.as_bytes());
            parts.map(|parts| parts.iter().map(|part| part.to_vec()).collect::<Vec<_>>())
        };
        assert_eq!(split("a//./b/"), Ok(vec![b"a".to_vec(), b"b".to_vec()]));
        assert_eq!(split("./"), Ok(Vec::new()));
        assert_eq!(split("...a"), Ok(vec![b"...a".to_vec()]));
        assert_eq!(split("/etc/passwd"), Err(MemberNameFault::Absolute));
        for name in ["..", "a/../b", "a/..", "../a"] {
            assert_eq!(split(name), Err(MemberNameFault::Parent), "{name}");
        }
        assert_eq!(split(&"n".repeat(256)), Err(MemberNameFault::TooLong));
        assert_eq!(split(&"a/".repeat(3000)), Err(MemberNameFault::TooLong));
        assert_eq!(split("a\0b"), Err(MemberNameFault::Zero));
    }
}
