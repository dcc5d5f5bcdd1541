//! The records of an extended header: `length key=value`, each ended by a newline. The length
//! counts the whole record, so a value may have newlines of its own.

/// Most extended attributes of a member.
const XATTRS_MAX: usize = 1024;

/// A time of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberTime {
    /// Whole seconds since 1970-01-01 UTC, rounded down.
    pub sec: i64,
    /// Nanoseconds past `sec`, 0 to 999,999,999.
    pub nsec: u32,
}

/// What extended headers say of a member.
#[derive(Clone, Debug, Default)]
pub(crate) struct PaxRecords {
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) link: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    pub(crate) uid: Option<u64>,
    pub(crate) gid: Option<u64>,
    pub(crate) mtime: Option<MemberTime>,
    /// Extended attributes, in the order of the archive.
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) sparse: PaxSparse,
}

/// What extended headers say of a sparse file, in the three versions of GNU tar.
#[derive(Clone, Debug, Default)]
pub(crate) struct PaxSparse {
    /// The map lies before the bytes (version 1.0).
    pub(crate) has_map_in_data: bool,
    pub(crate) name: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    /// Offsets and lengths in turn (versions 0.0 and 0.1).
    pub(crate) map: Vec<u64>,
}

/// Returns a decimal number.
pub(crate) fn parse_decimal(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(text).ok().filter(|_| is_number)?;
    text.parse().ok()
}

/// Returns a time: seconds, perhaps negative, with a fraction.
fn parse_time(text: &[u8]) -> Option<MemberTime> {
    let (is_negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut parts = text.splitn(2, |byte| *byte == b'.');
    let sec = i64::try_from(parse_decimal(parts.next()?)?).ok()?;
    let fraction = parts.next().unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // Digits beyond nanoseconds are left out.
    let digits = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    let nsec = digits.fold(0, |value, digit| value * 10 + u32::from(digit - b'0'));
    Some(match (is_negative, nsec) {
        (false, nsec) => MemberTime { sec, nsec },
        (true, 0) => MemberTime { sec: -sec, nsec },
        (true, nsec) => MemberTime { sec: -sec - 1, nsec: 1_000_000_000 - nsec },
    })
}

impl PaxRecords {
    /// Adds the records of one extended header. `None` if they are malformed. Keys that are not
    /// known have no effect.
    pub(crate) fn add_records(&mut self, mut bytes: &[u8]) -> Option<()> {
        while !bytes.is_empty() {
            let blank = bytes.iter().position(|byte| *byte == b' ')?;
            let length = usize::try_from(parse_decimal(&bytes[..blank])?).ok()?;
            let record = bytes.get(blank + 1..length)?.strip_suffix(b"\n")?;
            let equals = record.iter().position(|byte| *byte == b'=')?;
            self.add_record(&record[..equals], &record[equals + 1..])?;
            bytes = &bytes[length..];
        }
        Some(())
    }

    fn add_record(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        // An empty value takes back that of a global header.
        let text = || Some(value.to_vec()).filter(|value| !value.is_empty());
        let number = || match value {
            b"" => Some(None),
            value => parse_decimal(value).map(Some),
        };
        match key {
            b"path" => self.path = text(),
            b"linkpath" => self.link = text(),
            b"size" => self.size = number()?,
            b"uid" => self.uid = number()?,
            b"gid" => self.gid = number()?,
            b"mtime" if value.is_empty() => self.mtime = None,
            b"mtime" => self.mtime = Some(parse_time(value)?),
            b"GNU.sparse.major" => self.sparse.has_map_in_data = value == b"1",
            b"GNU.sparse.name" => self.sparse.name = text(),
            b"GNU.sparse.realsize" | b"GNU.sparse.size" => self.sparse.size = number()?,
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                self.sparse.map.push(parse_decimal(value)?);
            }
            b"GNU.sparse.map" => {
                let numbers = value.split(|byte| *byte == b',').map(parse_decimal);
                self.sparse.map = numbers.collect::<Option<_>>()?;
            }
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.xattrs.retain(|(other, _)| other != name);
                    if self.xattrs.len() == XATTRS_MAX {
                        return None;
                    }
                    self.xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(text: &[u8]) -> Option<PaxRecords> {
        let mut records = PaxRecords::default();
        records.add_records(text).map(|()| records)
    }

    #[test]
    fn records_are_read_by_their_length() {
        let found = records(b"12 path=a=b\n24 SCHILY.xattr.u.v=\n\0\n\n").expect("records");
        assert_eq!(found.path.as_deref(), Some(&b"a=b"[..]));
        assert_eq!(found.xattrs, [(b"u.v".to_vec(), b"\n\0\n".to_vec())]);
        for wrong in [
            &b"12 path=a=b"[..],
            b"0 path=a\n",
            b"99999999999999999999 path=a\n",
            b"x path=a\n",
            b"11 path=ab\nx",
            b"8 size=x\n",
            b"3 \n",
            b"path",
        ] {
            assert!(records(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn times_have_nanoseconds_and_a_sign() {
        let time = |text: &str| parse_time(text.as_bytes()).map(|time| (time.sec, time.nsec));
        assert_eq!(time("981173106.789"), Some((981_173_106, 789_000_000)));
        assert_eq!(time("1.0000000019"), Some((1, 1)));
        assert_eq!(time("-1.25"), Some((-2, 750_000_000)));
        assert_eq!(time("-7"), Some((-7, 0)));
        assert_eq!(time("5."), Some((5, 0)));
        for wrong in ["", ".5", "1.x", "1e9", "--1", "99999999999999999999"] {
            assert_eq!(time(wrong), None, "{wrong}");
        }
    }
}
