//! The rule by which earlier states of a file are kept: policy `versions`.
//!
//! The rule of a file is in the number of its object ([`Piece::version_rule`]), so the node that
//! has the object needs nothing else.

use crate::{Piece, Timestamp};
use std::fmt;

/// Most versions of one file.
pub const VERSIONS_MAX: u8 = 200;
/// Bits of an age in the code: unit and amount.
const AGE_BITS: u32 = 10;
/// Bits of the amount.
const AMOUNT_BITS: u32 = 8;

/// Units of ages, with their seconds.
const UNITS: [(char, i64); 4] = [('s', 1), ('m', 60), ('h', 3600), ('d', 24 * 3600)];

/// How many versions of a file are kept, and for how long. The number of versions is at most
/// [`VERSIONS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRule {
    count: u8,
    /// Amount and place in [`UNITS`]; amount 0 is no limit.
    age: (u8, u8),
}

impl VersionRule {
    /// Reads `COUNT` or `COUNT,AGE`, such as `10,7d`; `None` for a text that is no rule.
    pub fn parse(text: &str) -> Option<VersionRule> {
        let (count, age) = text.split_once(',').map_or((text, None), |(c, a)| (c, Some(a)));
        let number = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            digits.parse::<u8>().ok().filter(|_| plain)
        };
        let count = number(count).filter(|count| *count <= VERSIONS_MAX)?;
        let Some(age) = age else { return Some(VersionRule { count, age: (0, 0) }) };
        let unit = UNITS.iter().position(|(name, _)| age.ends_with(*name))?;
        let amount = number(&age[..age.len() - 1]).filter(|amount| *amount > 0 && count > 0)?;
        Some(VersionRule { count, age: (amount, unit as u8) })
    }

    /// Returns the rule as a number of [`Piece::RULE_BITS`] bits; 0 is the rule that keeps nothing.
    pub fn code(self) -> u32 {
        let (amount, unit) = self.age;
        u32::from(self.count) << AGE_BITS | u32::from(unit) << AMOUNT_BITS | u32::from(amount)
    }

    /// Reads what [`VersionRule::code`] returns. A number that is no rule keeps less.
    pub fn from_code(code: u32) -> VersionRule {
        let count = u8::try_from(code >> AGE_BITS).unwrap_or(VERSIONS_MAX).min(VERSIONS_MAX);
        let unit = (code >> AMOUNT_BITS) as u8 & 3;
        VersionRule { count, age: (code as u8, unit) }
    }

    /// Returns the rule of an object.
    pub fn of_object(piece: Piece) -> VersionRule {
        VersionRule::from_code(piece.version_rule())
    }

    /// Whether it keeps nothing.
    pub fn is_none(self) -> bool {
        self.count == 0
    }

    /// Returns the most versions that it keeps.
    pub fn max_count(self) -> usize {
        self.count.into()
    }

    /// Returns how long it keeps a version, in seconds; `None` for as long as there is room.
    pub fn max_age(self) -> Option<i64> {
        let (amount, unit) = self.age;
        (amount > 0).then(|| i64::from(amount) * UNITS[usize::from(unit & 3)].1)
    }

    /// Whether a version that is kept since `kept` is too old at `now`.
    pub fn is_expired(self, kept: Timestamp, now: Timestamp) -> bool {
        self.max_age().is_some_and(|age| kept.plus_sec(age) <= now)
    }

    /// Returns how many of these versions end, the oldest first. `kept` says since when each is
    /// kept, in order.
    pub fn count_ended(self, kept: &[Timestamp], now: Timestamp) -> usize {
        let surplus = kept.len().saturating_sub(self.max_count());
        let expired = kept.iter().rposition(|kept| self.is_expired(*kept, now));
        surplus.max(expired.map_or(0, |last| last + 1))
    }
}

impl fmt::Display for VersionRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.count)?;
        match self.age {
            (0, _) => Ok(()),
            (amount, unit) => write!(f, ",{amount}{}", UNITS[usize::from(unit & 3)].0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_read_as_written() {
        let age = |text| VersionRule::parse(text).expect(text).max_age();
        assert_eq!((age("10"), age("10,7d"), age("5,1s")), (None, Some(604_800), Some(1)));
        for text in ["0", "1", "200", "10,7d", "5,1s", "200,255h", "3,90m"] {
            let rule = VersionRule::parse(text).expect(text);
            assert_eq!(rule.to_string(), text);
            assert_eq!(VersionRule::from_code(rule.code()), rule);
            let piece = Piece::first_versioned(rule.code());
            assert_eq!(VersionRule::of_object(piece), rule);
        }
        for text in ["", "201", "-1", "+1", "1,", "1,7", "1,d", "1,0d", "1,256d", "0,7d", "1,7w"] {
            assert_eq!(VersionRule::parse(text), None, "{text}");
        }
        assert!(VersionRule::of_object(Piece::FIRST_REGION).is_none());
        assert!(VersionRule::of_object(Piece::BASE).is_none());
    }
}
