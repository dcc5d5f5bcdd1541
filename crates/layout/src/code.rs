//! Numbers in the encodings of views and tiles: seven bits a byte, lowest first
//! (LEB128); signed ones zigzag. One number has one encoding.

use thiserror::Error;

/// Why bytes are not an encoded view or an encoded list of tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end within a value.
    #[error("the record ends early")]
    Short,
    /// A number is longer than 64 bits or not in its shortest form.
    #[error("a number in the record is malformed")]
    Number,
    /// A kind of part, or a version, that this program does not know.
    #[error("the record has an unknown kind {0}")]
    Kind(u8),
    /// The numbers do not make a valid shape, view or tile.
    #[error("the record makes no sense: {0}")]
    Invalid(&'static str),
    /// Bytes follow after the end of the record.
    #[error("{0} bytes follow after the record")]
    Trailing(usize),
}

/// Appends `n`.
pub(crate) fn encode_number(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Appends the signed `n`.
pub(crate) fn encode_signed(out: &mut Vec<u8>, n: i64) {
    encode_number(out, ((n << 1) ^ (n >> 63)) as u64);
}

/// Takes one byte.
pub(crate) fn decode_byte(from: &mut &[u8]) -> Result<u8, DecodeError> {
    let (&first, rest) = from.split_first().ok_or(DecodeError::Short)?;
    *from = rest;
    Ok(first)
}

/// Takes a number that [`encode_number`] wrote.
pub(crate) fn decode_number(from: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut n = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = decode_byte(from)?;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return Err(DecodeError::Number);
        }
        n |= bits << shift;
        if byte < 0x80 {
            if byte == 0 && shift > 0 {
                return Err(DecodeError::Number);
            }
            return Ok(n);
        }
    }
    Err(DecodeError::Number)
}

/// Takes a number that [`encode_signed`] wrote.
pub(crate) fn decode_signed(from: &mut &[u8]) -> Result<i64, DecodeError> {
    let n = decode_number(from)?;
    Ok((n >> 1) as i64 ^ -((n & 1) as i64))
}

/// Takes the number of elements, each of which takes at least `each` bytes, so that the input
/// bounds the memory that is reserved for them.
pub(crate) fn decode_count(from: &mut &[u8], each: usize) -> Result<usize, DecodeError> {
    let n = decode_number(from)?;
    if n > (from.len() / each) as u64 {
        return Err(DecodeError::Short);
    }
    Ok(n as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(a: u64, b: i64, shift in 0u32..64) {
            let mut out = Vec::new();
            encode_number(&mut out, a >> shift);
            encode_signed(&mut out, b >> shift);
            let mut rest = &out[..];
            prop_assert_eq!(decode_number(&mut rest), Ok(a >> shift));
            prop_assert_eq!(decode_signed(&mut rest), Ok(b >> shift));
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn what_is_taken_is_what_would_be_put(bytes: [u8; 12]) {
            let mut rest = &bytes[..];
            if let Ok(n) = decode_number(&mut rest) {
                let mut out = Vec::new();
                encode_number(&mut out, n);
                prop_assert_eq!(&out[..], &bytes[..bytes.len() - rest.len()]);
            }
        }
    }
}
