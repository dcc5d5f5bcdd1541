//! POSIX access control lists (POSIX 1003.1e draft 17, acl(5)): their form in
//! extended attributes, their rules at chmod and create, and the permission check.
//!
//! The rules are those of the Linux kernel's `fs/posix_acl.c`, so that a volume
//! decides as a local disk does.

use crate::record::{DamagedRecord, RecordReader};
use tatami_wire::{Cred, Errno};

/// Most entries of one list.
pub(crate) const ACL_MAX: usize = 512;

/// The subject of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AclSubject {
    Owner,
    User(u32),
    OwningGroup,
    Group(u32),
    Mask,
    Other,
}

/// One entry: a subject and its permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AclEntry {
    pub who: AclSubject,
    /// 4 read, 2 write, 1 execute or search.
    pub perm: u8,
}

/// A valid list: owner, users, owning group, groups, mask (if there is a user or group), other, in
/// this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl(Vec<AclEntry>);

const XATTR_VERSION: u32 = 2;
const NO_ID: u32 = u32::MAX;

impl AclSubject {
    fn to_tag(self) -> (u16, u32) {
        match self {
            AclSubject::Owner => (0x01, NO_ID),
            AclSubject::User(id) => (0x02, id),
            AclSubject::OwningGroup => (0x04, NO_ID),
            AclSubject::Group(id) => (0x08, id),
            AclSubject::Mask => (0x10, NO_ID),
            AclSubject::Other => (0x20, NO_ID),
        }
    }

    fn from_tag(tag: u16, id: u32) -> Option<AclSubject> {
        Some(match tag {
            0x01 => AclSubject::Owner,
            0x02 if id != NO_ID => AclSubject::User(id),
            0x04 => AclSubject::OwningGroup,
            0x08 if id != NO_ID => AclSubject::Group(id),
            0x10 => AclSubject::Mask,
            0x20 => AclSubject::Other,
            _ => return None,
        })
    }

    fn sort_rank(self) -> u8 {
        match self {
            AclSubject::Owner => 0,
            AclSubject::User(_) => 1,
            AclSubject::OwningGroup => 2,
            AclSubject::Group(_) => 3,
            AclSubject::Mask => 4,
            AclSubject::Other => 5,
        }
    }
}

impl Acl {
    /// Checks the order and number of entries.
    fn new(entries: Vec<AclEntry>) -> Option<Acl> {
        let count = |rank| entries.iter().filter(|e| e.who.sort_rank() == rank).count();
        let sorted = entries.is_sorted_by_key(|e| e.who.sort_rank());
        let named = count(1) + count(3) > 0;
        let ok = sorted
            && entries.iter().all(|e| e.perm <= 7)
            && entries.len() <= ACL_MAX
            && count(0) == 1
            && count(2) == 1
            && count(5) == 1
            && (count(4) == 1 || count(4) == 0 && !named);
        ok.then_some(Acl(entries))
    }

    /// Decodes the value of a `system.posix_acl_…` attribute. `None` is an empty list, which stands
    /// for "no list".
    ///
    /// # Errors
    /// `EOPNOTSUPP` for another version, `E2BIG` past [`ACL_MAX`] entries, `EINVAL` for any other
    /// invalid list.
    pub fn from_xattr(value: &[u8]) -> Result<Option<Acl>, Errno> {
        let (version, mut rest) = value.split_first_chunk().ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*version) != XATTR_VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        if rest.is_empty() {
            return Ok(None);
        }
        if rest.len() > ACL_MAX * 8 {
            return Err(Errno::E2BIG);
        }
        let mut entries = Vec::with_capacity(rest.len() / 8);
        while let Some((e, tail)) = rest.split_first_chunk::<8>() {
            let tag = u16::from_le_bytes([e[0], e[1]]);
            let perm = u16::from_le_bytes([e[2], e[3]]);
            let id = u32::from_le_bytes([e[4], e[5], e[6], e[7]]);
            let who = AclSubject::from_tag(tag, id).ok_or(Errno::EINVAL)?;
            let perm = u8::try_from(perm).map_err(|_| Errno::EINVAL)?;
            entries.push(AclEntry { who, perm });
            rest = tail;
        }
        if !rest.is_empty() {
            return Err(Errno::EINVAL);
        }
        Acl::new(entries).map(Some).ok_or(Errno::EINVAL)
    }

    /// Returns the value of a `system.posix_acl_…` attribute.
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 + 8 * self.0.len());
        out.extend_from_slice(&XATTR_VERSION.to_le_bytes());
        for e in &self.0 {
            let (tag, id) = e.who.to_tag();
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&u16::from(e.perm).to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
        }
        out
    }

    /// Appends the list to an inode record: a count, then 6 bytes an entry.
    pub fn encode(list: Option<&Acl>, out: &mut Vec<u8>) {
        let entries = list.map_or(&[][..], |acl| &acl.0);
        out.extend_from_slice(&(entries.len() as u16).to_le_bytes());
        for e in entries {
            let (tag, id) = e.who.to_tag();
            out.extend_from_slice(&[tag as u8, e.perm]);
            out.extend_from_slice(&id.to_le_bytes());
        }
    }

    /// Decodes the bytes of [`Acl::encode`].
    pub fn decode(r: &mut RecordReader<'_>) -> Result<Option<Acl>, DamagedRecord> {
        let len = usize::from(r.read_u16()?);
        if len == 0 {
            return Ok(None);
        }
        let mut bytes = r.read_bytes(6 * len)?;
        let mut entries = Vec::with_capacity(len);
        while let Some((e, tail)) = bytes.split_first_chunk::<6>() {
            let id = u32::from_le_bytes([e[2], e[3], e[4], e[5]]);
            let who = AclSubject::from_tag(u16::from(e[0]), id)
                .ok_or(DamagedRecord("access control list"))?;
            entries.push(AclEntry { who, perm: e[1] });
            bytes = tail;
        }
        Acl::new(entries).map(Some).ok_or(DamagedRecord("access control list"))
    }

    fn has_mask(&self) -> bool {
        self.0.iter().any(|e| e.who == AclSubject::Mask)
    }

    /// Returns whether the nine permission bits are equivalent to the list.
    pub fn is_plain_mode(&self) -> bool {
        self.0.iter().all(|e| {
            matches!(e.who, AclSubject::Owner | AclSubject::OwningGroup | AclSubject::Other)
        })
    }

    /// Returns the nine permission bits that go with the list: the group's are the mask's, if there
    /// is a mask.
    pub fn to_mode(&self) -> u16 {
        let mut mode = 0;
        let has_mask = self.has_mask();
        for e in &self.0 {
            let perm = u16::from(e.perm);
            match e.who {
                AclSubject::Owner => mode |= perm << 6,
                AclSubject::OwningGroup if !has_mask => mode |= perm << 3,
                AclSubject::Mask => mode |= perm << 3,
                AclSubject::Other => mode |= perm,
                _ => {}
            }
        }
        mode
    }

    /// Returns the list after chmod(2) to `mode`.
    pub fn with_mode(&self, mode: u16) -> Acl {
        let has_mask = self.has_mask();
        let mut acl = self.clone();
        for e in &mut acl.0 {
            match e.who {
                AclSubject::Owner => e.perm = (mode >> 6 & 7) as u8,
                AclSubject::OwningGroup if !has_mask => e.perm = (mode >> 3 & 7) as u8,
                AclSubject::Mask => e.perm = (mode >> 3 & 7) as u8,
                AclSubject::Other => e.perm = (mode & 7) as u8,
                _ => {}
            }
        }
        acl
    }

    /// Returns the permission bits and the access list that a new inode made with `mode` inherits
    /// from the default list `self` of its directory. There is no list if the bits are equivalent
    /// to it.
    pub fn inherit_mode(&self, mode: u16) -> (u16, Option<Acl>) {
        let has_mask = self.has_mask();
        let mut acl = self.clone();
        for e in &mut acl.0 {
            match e.who {
                AclSubject::Owner => e.perm &= (mode >> 6 & 7) as u8,
                AclSubject::OwningGroup if !has_mask => e.perm &= (mode >> 3 & 7) as u8,
                AclSubject::Mask => e.perm &= (mode >> 3 & 7) as u8,
                AclSubject::Other => e.perm &= (mode & 7) as u8,
                _ => {}
            }
        }
        let mode = acl.to_mode();
        (mode, if acl.is_plain_mode() { None } else { Some(acl) })
    }

    /// Returns whether `cred`, which is neither the superuser nor the owner, has all permissions in
    /// `want` (4, 2, 1 as in a mode) for an inode of group `gid`.
    pub fn is_allowed(&self, cred: &Cred, gid: u32, want: u8) -> bool {
        let mask = self.0.iter().find(|e| e.who == AclSubject::Mask).map_or(7, |e| e.perm);
        let user = |e: &&AclEntry| e.who == AclSubject::User(cred.uid);
        if let Some(e) = self.0.iter().find(user) {
            // An entry of the user decides alone: group entries are not consulted (acl(5)).
            return e.perm & mask & want == want;
        }
        let mut in_a_group = false;
        for e in &self.0 {
            let member = match e.who {
                AclSubject::OwningGroup => cred.in_group(gid),
                AclSubject::Group(id) => cred.in_group(id),
                _ => false,
            };
            in_a_group |= member;
            if member && e.perm & want == want {
                return mask & want == want;
            }
        }
        !in_a_group && self.0.iter().any(|e| e.who == AclSubject::Other && e.perm & want == want)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(who: AclSubject, perm: u8) -> AclEntry {
        AclEntry { who, perm }
    }

    /// rwx for the owner, `user` for user 7, `group` for the group, `mask`, nothing for others.
    pub(crate) fn acl_for_user_7(user: u8, group: u8, mask: u8) -> Acl {
        Acl::new(vec![
            entry(AclSubject::Owner, 7),
            entry(AclSubject::User(7), user),
            entry(AclSubject::OwningGroup, group),
            entry(AclSubject::Mask, mask),
            entry(AclSubject::Other, 0),
        ])
        .expect("valid")
    }

    fn cred(uid: u32, gid: u32) -> Cred {
        Cred { uid, gid, groups: vec![] }
    }

    #[test]
    fn the_kernels_form_is_read_and_written() {
        let acl = acl_for_user_7(6, 4, 6);
        assert_eq!(Acl::from_xattr(&acl.to_xattr()), Ok(Some(acl.clone())));
        let mut bytes = Vec::new();
        bytes.push(1);
        Acl::encode(Some(&acl), &mut bytes);
        let mut r = RecordReader::new(&bytes, 1, "test").expect("version");
        assert_eq!(Acl::decode(&mut r), Ok(Some(acl)));
        assert_eq!(Acl::from_xattr(&[2, 0, 0, 0]), Ok(None));
        assert_eq!(Acl::from_xattr(&[3, 0, 0, 0]), Err(Errno::EOPNOTSUPP));
        assert_eq!(Acl::from_xattr(&[2, 0, 0]), Err(Errno::EINVAL));
    }

    #[test]
    fn a_list_needs_its_parts_in_order() {
        let minimal = vec![
            entry(AclSubject::Owner, 7),
            entry(AclSubject::OwningGroup, 5),
            entry(AclSubject::Other, 0),
        ];
        assert!(Acl::new(minimal.clone()).is_some());
        assert!(Acl::new(minimal[..2].to_vec()).is_none(), "no other");
        assert!(Acl::new(minimal.iter().rev().copied().collect()).is_none(), "wrong order");
        let mut named = minimal.clone();
        named.insert(1, entry(AclSubject::User(3), 7));
        assert!(Acl::new(named).is_none(), "a named user needs a mask");
        let mut loud = minimal;
        loud[0].perm = 8;
        assert!(Acl::new(loud).is_none());
    }

    #[test]
    fn the_mask_bounds_all_but_owner_and_other() {
        let acl = acl_for_user_7(7, 7, 4);
        assert!(acl.is_allowed(&cred(7, 100), 5, 4));
        assert!(!acl.is_allowed(&cred(7, 100), 5, 2));
        assert!(acl.is_allowed(&cred(8, 5), 5, 4));
        assert!(!acl.is_allowed(&cred(8, 5), 5, 2));
        assert!(!acl.is_allowed(&cred(8, 6), 5, 4), "others have nothing");
    }

    #[test]
    fn chmod_moves_the_mask_not_the_group() {
        let acl = acl_for_user_7(7, 5, 7).with_mode(0o640);
        assert_eq!(acl.to_mode(), 0o640);
        assert!(acl.0.contains(&entry(AclSubject::OwningGroup, 5)));
        assert!(acl.0.contains(&entry(AclSubject::Mask, 4)));
    }

    #[test]
    fn a_default_list_replaces_the_umask() {
        let (mode, acl) = acl_for_user_7(7, 5, 7).inherit_mode(0o666);
        assert_eq!(mode, 0o660);
        assert!(acl.expect("not just a mode").0.contains(&entry(AclSubject::Mask, 6)));
        let plain = Acl::new(vec![
            entry(AclSubject::Owner, 7),
            entry(AclSubject::OwningGroup, 5),
            entry(AclSubject::Other, 4),
        ])
        .expect("valid");
        assert_eq!(plain.inherit_mode(0o777), (0o754, None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_list_or_are_not(value in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Acl::from_xattr(&value);
            let mut with_version = vec![2, 0, 0, 0];
            with_version.extend_from_slice(&value);
            if let Ok(Some(acl)) = Acl::from_xattr(&with_version) {
                prop_assert_eq!(Acl::from_xattr(&acl.to_xattr()), Ok(Some(acl)));
            }
        }

        #[test]
        fn a_list_that_is_a_mode_decides_as_the_mode(mode in 0u16..0o1000, uid in 0u32..3, gid in 0u32..3, want in 0u8..8) {
            let bits = |shift: u16| (mode >> shift & 7) as u8;
            let acl = Acl::new(vec![
                entry(AclSubject::Owner, bits(6)), entry(AclSubject::OwningGroup, bits(3)), entry(AclSubject::Other, bits(0)),
            ]).expect("valid");
            prop_assert_eq!(acl.to_mode(), mode);
            let class = if gid == 1 { bits(3) } else { bits(0) };
            prop_assert_eq!(acl.is_allowed(&cred(uid, gid), 1, want), class & want == want);
        }
    }
}
