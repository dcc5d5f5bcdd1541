//! The policies of directories: how files that are made below them are kept.
//!
//! A policy is an extended attribute of a directory, `user.tatami.NAME`, so that `cp -a`, rsync and
//! tar carry it. A new directory has the policies of the one in which it is made. [`POLICIES`] has
//! all that are known, and a shard refuses any other name below `user.tatami.`.

use crate::version_rule::VersionRule;
use serde::{Deserialize, Serialize};

/// The start of the attribute name of every policy.
pub const POLICY_PREFIX: &str = "user.tatami.";
/// The largest limit of [`PolicyKind::Inline`], in bytes.
pub const INLINE_MAX: usize = 64 << 10;

/// A policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PolicyKind {
    /// Files up to so many bytes are kept beside their inode. 0: none.
    Inline,
    /// What keeps the bytes of new files: 0, files of the nodes' disks; 1, regions of devices.
    Engine,
    /// How many earlier states of a file are kept, and for how long: a
    /// [`VersionRule`](crate::version_rule::VersionRule). 0: none.
    Versions,
    /// Which node gets the bytes of a new file: 0, the one of the program that makes it; 1, the
    /// nodes in turn, by a hash of its name.
    Placement,
}

/// What is known of a policy.
#[derive(Debug)]
pub struct PolicyRow {
    /// The policy.
    pub kind: PolicyKind,
    /// Its name, behind [`POLICY_PREFIX`].
    pub name: &'static str,
    /// Its number in the inode's record.
    pub id: u8,
    /// The values that it can have, for messages.
    pub values: &'static str,
    /// Reads a value; `None` for a text that is none.
    pub parse: fn(&str) -> Option<u64>,
    /// Writes a value as [`PolicyRow::parse`] reads it.
    pub format: fn(u64) -> String,
}

/// All known policies, ordered by [`PolicyRow::id`]. A policy is added by a row.
pub const POLICIES: [PolicyRow; 4] = [
    PolicyRow {
        kind: PolicyKind::Inline,
        name: "inline",
        id: 1,
        values: "a size from 0 to 64k",
        parse: |text| parse_size(text).filter(|size| *size <= INLINE_MAX as u64),
        format: |value| value.to_string(),
    },
    PolicyRow {
        kind: PolicyKind::Engine,
        name: "engine",
        id: 2,
        values: "file or region",
        parse: |text| find_name(&ENGINES, text),
        format: |value| ENGINES.get(value as usize).copied().unwrap_or_default().to_owned(),
    },
    PolicyRow {
        kind: PolicyKind::Versions,
        name: "versions",
        id: 3,
        values: "a count from 0 to 200, and optionally an age, such as 10 or 10,7d",
        parse: |text| VersionRule::parse(text).map(|rule| rule.code().into()),
        format: |value| VersionRule::from_code(value as u32).to_string(),
    },
    PolicyRow {
        kind: PolicyKind::Placement,
        name: "placement",
        id: 4,
        values: "local-first or spread",
        parse: |text| find_name(&PLACEMENTS, text),
        format: |value| PLACEMENTS.get(value as usize).copied().unwrap_or_default().to_owned(),
    },
];

/// The values of [`PolicyKind::Engine`], in the order of their numbers.
pub const ENGINES: [&str; 2] = ["file", "region"];
/// The values of [`PolicyKind::Placement`], in the order of their numbers.
pub const PLACEMENTS: [&str; 2] = ["local-first", "spread"];

fn find_name(names: &[&str], text: &str) -> Option<u64> {
    names.iter().position(|name| *name == text).map(|at| at as u64)
}

/// Reads a number of bytes, with `k` for 1024 or without.
fn parse_size(text: &str) -> Option<u64> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse::<u64>().ok().filter(|_| plain)?.checked_mul(unit)
}

impl PolicyRow {
    /// Returns the name of the attribute.
    pub fn attribute(&self) -> String {
        format!("{POLICY_PREFIX}{}", self.name)
    }

    /// Returns the row with this number.
    pub fn with_id(id: u8) -> Option<&'static PolicyRow> {
        POLICIES.iter().find(|row| row.id == id)
    }

    /// Returns the row of an attribute name: `None` for an attribute that is no policy, and
    /// `Some(None)` for a policy that is not known.
    pub fn of_attribute(name: &[u8]) -> Option<Option<&'static PolicyRow>> {
        let name = name.strip_prefix(POLICY_PREFIX.as_bytes())?;
        Some(POLICIES.iter().find(|row| row.name.as_bytes() == name))
    }

    fn place(kind: PolicyKind) -> usize {
        match kind {
            PolicyKind::Inline => 0,
            PolicyKind::Engine => 1,
            PolicyKind::Versions => 2,
            PolicyKind::Placement => 3,
        }
    }
}

/// The policies of one directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policies([Option<u64>; POLICIES.len()]);

impl Policies {
    /// Returns the value of a policy, if the directory has it.
    pub fn value_of(&self, kind: PolicyKind) -> Option<u64> {
        self.0[PolicyRow::place(kind)]
    }

    /// Sets or removes a policy.
    pub fn set_value(&mut self, kind: PolicyKind, value: Option<u64>) {
        self.0[PolicyRow::place(kind)] = value;
    }

    /// Whether the directory has no policy.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Returns the policies that the directory has.
    pub fn present(&self) -> impl Iterator<Item = (&'static PolicyRow, u64)> + use<> {
        let values = self.0;
        POLICIES.iter().filter_map(move |row| Some((row, values[PolicyRow::place(row.kind)]?)))
    }

    /// Whether new files lie in regions of devices.
    pub fn uses_regions(&self) -> bool {
        self.value_of(PolicyKind::Engine) == Some(1)
    }

    /// Whether new files go to all nodes, wherever the programs run that make them.
    pub fn spreads_files(&self) -> bool {
        self.value_of(PolicyKind::Placement) == Some(1)
    }

    /// Returns the rule by which new files keep earlier states.
    pub fn version_rule(&self) -> VersionRule {
        VersionRule::from_code(self.value_of(PolicyKind::Versions).unwrap_or(0) as u32)
    }

    /// Whether the policies go together: only files in regions keep earlier states.
    pub fn are_consistent(&self) -> bool {
        self.version_rule().is_none() || self.uses_regions() && self.inline_limit() == 0
    }

    /// Returns the limit of files that are kept beside their inode, in bytes.
    pub fn inline_limit(&self) -> u32 {
        let limit = self.value_of(PolicyKind::Inline).unwrap_or(0);
        limit.min(INLINE_MAX as u64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_the_order_of_their_numbers_and_values_read_as_written() {
        assert!(POLICIES.is_sorted_by(|a, b| a.id < b.id));
        for (at, row) in POLICIES.iter().enumerate() {
            assert_eq!(PolicyRow::place(row.kind), at);
            assert_eq!(PolicyRow::with_id(row.id).map(|found| found.kind), Some(row.kind));
            let found = PolicyRow::of_attribute(row.attribute().as_bytes());
            assert_eq!(found.flatten().map(|row| row.kind), Some(row.kind));
            assert_eq!((row.parse)(&(row.format)(0)), Some(0));
        }
    }

    #[test]
    fn what_is_no_value_and_no_policy_is_none() {
        let inline = POLICIES[0].parse;
        let good = [("0", 0), ("4096", 4096), ("4k", 4096), ("64K", 65_536), ("65536", 65_536)];
        for (text, value) in good {
            assert_eq!(inline(text), Some(value), "{text}");
        }
        for text in ["", "k", "-1", "+1", "65k", "65537", "4 k", "4kk", "99999999999999999999k"] {
            assert_eq!(inline(text), None, "{text}");
        }
        let engine = POLICIES[1].parse;
        assert_eq!((engine("file"), engine("region"), engine("tape")), (Some(0), Some(1), None));
        let placement = POLICIES[3].parse;
        let read = ["local-first", "spread", "far"].map(placement);
        assert_eq!(read, [Some(0), Some(1), None]);
        assert!(matches!(PolicyRow::of_attribute(b"user.tatami.colour"), Some(None)));
        assert!(PolicyRow::of_attribute(b"user.other").is_none());
    }
}
