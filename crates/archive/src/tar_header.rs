//! The header of a member: one block, in which each field has a fixed place.
//!
//! ```text
//!   0 name (100)      100 mode (8)     108 uid (8)      116 gid (8)     124 size (12)
//! 136 mtime (12)      148 checksum (8) 156 kind (1)     157 link (100)  257 magic (8)
//! 329 major (8)       337 minor (8)    345 prefix (155, only where the magic is "ustar\0")
//! ```
//!
//! Of GNU tar, a sparse file has the first four segments of its map from 386 on, a flag at 482, and
//! its size at 483.

use crate::archive_error::ArchiveError;

/// Bytes of a block: headers and data begin at multiples of it.
pub(crate) const BLOCK: usize = 512;

/// The fields of a header.
#[derive(Debug)]
pub(crate) struct TarHeader {
    /// With the prefix.
    pub(crate) name: Vec<u8>,
    pub(crate) link: Vec<u8>,
    /// The type flag.
    pub(crate) kind: u8,
    pub(crate) mode: u16,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) size: u64,
    /// In seconds.
    pub(crate) mtime: i64,
    pub(crate) device: (u32, u32),
}

/// Returns a number: octal digits, or bytes with the highest bit set in the first one.
pub(crate) fn parse_number(field: &[u8]) -> Option<i64> {
    let (first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        // Two's complement, of which the highest bit is the mark and the second one the sign.
        let sign = if first & 0x40 != 0 { -1_i128 } else { 0 };
        let mut value = (sign << 7) | i128::from(first & 0x7f);
        for byte in rest {
            // Beyond 64 bits only copies of the sign may follow.
            value = value.checked_mul(256)?.checked_add(i128::from(*byte))?;
        }
        return i64::try_from(value).ok();
    }
    let digits = field.iter().copied().skip_while(|byte| *byte == b' ');
    let mut value = 0_i64;
    for digit in digits.take_while(|byte| !matches!(*byte, b' ' | 0)) {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
        value = value.checked_mul(8)?.checked_add(i64::from(digit))?;
    }
    Some(value)
}

/// Returns the bytes before the first zero.
fn text_of(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Whether the checksum is right: the sum of all bytes, those of the checksum taken as blanks. Some
/// old programs added signed bytes.
fn has_right_checksum(block: &[u8; BLOCK]) -> bool {
    let Some(written) = parse_number(&block[148..156]) else { return false };
    let (mut sum, mut signed) = (0_i64, 0_i64);
    for (at, byte) in block.iter().enumerate() {
        let byte = if (148..156).contains(&at) { b' ' } else { *byte };
        sum += i64::from(byte);
        signed += i64::from(byte.cast_signed());
    }
    written == sum || written == signed
}

impl TarHeader {
    /// Parses the header that begins at byte `at` of the archive.
    ///
    /// # Errors
    /// The checksum, or a number.
    pub(crate) fn parse(block: &[u8; BLOCK], at: u64) -> Result<TarHeader, ArchiveError> {
        if !has_right_checksum(block) {
            return Err(ArchiveError::Checksum { at });
        }
        let number = |field: &'static str, from: usize, len: usize| {
            parse_number(&block[from..from + len]).ok_or(ArchiveError::Number { at, field })
        };
        let natural = |field: &'static str, from: usize, len: usize| {
            let number = number(field, from, len)?;
            u64::try_from(number).map_err(|_| ArchiveError::Number { at, field })
        };
        let device = |field: &'static str, from: usize| {
            let number = natural(field, from, 8)?;
            u32::try_from(number).map_err(|_| ArchiveError::Number { at, field })
        };
        let kind = block[156];
        let mut name = text_of(&block[..100]).to_vec();
        let prefix = text_of(&block[345..500]);
        if &block[257..263] == b"ustar\0" && !prefix.is_empty() {
            name = [prefix, b"/", &name].concat();
        }
        let has_device = matches!(kind, b'3' | b'4');
        Ok(TarHeader {
            name,
            link: text_of(&block[157..257]).to_vec(),
            kind,
            // Some programs add the bits of the kind.
            mode: (natural("mode", 100, 8)? & 0o7777) as u16,
            uid: natural("owner", 108, 8)?,
            gid: natural("group", 116, 8)?,
            size: natural("size", 124, 12)?,
            mtime: number("time", 136, 12)?,
            device: match has_device {
                true => (device("device", 329)?, device("device", 337)?),
                false => (0, 0),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        assert_eq!(parse_number(b"0000644\0"), Some(0o644));
        assert_eq!(parse_number(b"   644 \0"), Some(0o644));
        assert_eq!(parse_number(b"77777777777\0"), Some((1 << 33) - 1));
        assert_eq!(parse_number(b"\0\0\0"), Some(0));
        assert_eq!(parse_number(b"0009\0"), None);
        assert_eq!(parse_number(b"\x80\0\0\0\0\0\0\x02\0\0\0\0"), Some(1 << 33));
        assert_eq!(parse_number(&[0xff; 12]), Some(-1));
        assert_eq!(parse_number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\0"), Some(-256));
        assert_eq!(parse_number(b"\x80\0\0\x80\0\0\0\0\0\0\0\0"), None);
        assert_eq!(parse_number(&[0xbf; 40]), None);
    }
}
