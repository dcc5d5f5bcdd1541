//! Sizes as people write them: `4k`, `1m`, `2g`, in powers of 1,024, as IOR does.

/// Reads a number of bytes with an optional suffix k, m, g or t (either case, powers of 1,024).
///
/// # Errors
/// A sentence that names the accepted forms.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (digits, shift) = match text.char_indices().last() {
        Some((at, c)) => match c.to_ascii_lowercase() {
            'k' => (&text[..at], 10),
            'm' => (&text[..at], 20),
            'g' => (&text[..at], 30),
            't' => (&text[..at], 40),
            _ => (text, 0),
        },
        None => (text, 0),
    };
    let bad =
        || format!("'{text}' is not a size: write a number, or one with k, m, g or t, such as 4k");
    let number: u64 = digits.parse().map_err(|_| bad())?;
    number
        .checked_mul(1 << shift)
        .filter(|bytes| *bytes <= i64::MAX as u64)
        .ok_or_else(|| format!("'{text}' is more bytes than a file can have"))
}

/// Writes a number of bytes with the largest suffix that keeps it whole.
pub fn format_size(bytes: u64) -> String {
    for (shift, suffix) in [(40, "t"), (30, "g"), (20, "m"), (10, "k")] {
        if bytes != 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{suffix}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("4k"), Ok(4096));
        assert_eq!(parse(" 1M "), Ok(1 << 20));
        assert_eq!(parse("2g"), Ok(2 << 30));
        assert_eq!(parse("1t"), Ok(1 << 40));
    }

    #[test]
    fn what_is_no_size_is_refused_with_a_hint() {
        for text in ["", "k", "-1", "1kk", "1.5m", "4 k x", "é"] {
            assert!(parse(text).unwrap_err().contains("not a size"), "{text}");
        }
        assert!(parse("9999999999t").unwrap_err().contains("more bytes"));
        assert!(parse("8388608t").unwrap_err().contains("more bytes"));
    }

    proptest! {
        #[test]
        fn reads_what_it_prints(bytes in 0..=i64::MAX as u64) {
            prop_assert_eq!(parse(&format_size(bytes)), Ok(bytes));
        }
    }
}
