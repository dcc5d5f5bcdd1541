//! Directories whose entries are in several partitions. See [`tatami_wire::partition`].
//!
//! A partition is kept like a directory: an inode record under its number, with its own counts, times
//! and version, and a copy of what decides who may do what. So what concerns a name is
//! done in its partition as in any directory.

use super::Txn;
use crate::error::{Failure, Outcome};
use crate::inode::Inode;
use crate::keys;
use crate::store::Store;
use std::sync::Arc;
use tatami_wire::partition::Range;
use tatami_wire::{Attr, Errno, Ino};

/// A partition, or a directory that has all of its entries.
pub(crate) type Part = (Ino, Arc<Inode>);

impl<S: Store> Txn<'_, S> {
    /// The directory of a partition.
    pub fn whole(&self, part: Ino, inode: &Inode) -> Ino {
        if inode.is_part() { self.state.map().whole(part, inode.range.from) } else { part }
    }

    /// An inode that is meant by its own number, and not as a part of another one.
    ///
    /// # Errors
    /// As [`Txn::inode`]
    pub fn own_inode(&mut self, ino: Ino) -> Outcome<Arc<Inode>> {
        let inode = self.inode(ino)?;
        if inode.is_part() { Err(Errno::ESTALE.into()) } else { Ok(inode) }
    }

    /// Checks that the partition is the one that has the name.
    ///
    /// # Errors
    /// [`Failure::Parted`]
    pub fn in_place(&self, part: Ino, inode: &Inode, name: &[u8]) -> Outcome<()> {
        if !inode.is_parted() || inode.range.has(keys::name_hash(self.state.seed(), name)) {
            return Ok(());
        }
        Err(Failure::Parted(part, inode.range))
    }

    /// The partition that has the name, or will have it. `dir` is the directory, or the partition that
    /// somebody takes for it.
    ///
    /// # Errors
    /// As [`Txn::inode`]
    pub fn part_of(&mut self, dir: Ino, name: &[u8]) -> Outcome<Part> {
        self.part_with(dir, keys::name_hash(self.state.seed(), name))
    }

    /// As [`Txn::part_of`], of names with this hash.
    ///
    /// # Errors
    /// As [`Txn::inode`]
    pub fn part_with(&mut self, dir: Ino, hash: u64) -> Outcome<Part> {
        let mut part = dir;
        // Each step goes to a smaller range, but for one back to the beginning.
        for _ in 0..u64::BITS {
            let inode = match self.find(part)? {
                Some(inode) => inode,
                None if self.spread.is_none() => return Err(Errno::ESTALE.into()),
                None => match self.state.map().directory_of(part) {
                    whole if whole == part => return Err(Errno::ESTALE.into()),
                    whole => {
                        part = whole;
                        continue;
                    }
                },
            };
            if !inode.is_parted() || inode.range.has(hash) {
                return Ok((part, inode));
            }
            let map = self.state.map();
            let onward = map.onward(inode.range, hash);
            part = map.partition(map.whole(part, inode.range.from), onward.from);
        }
        Err(Errno::ESTALE.into())
    }

    /// All partitions of a directory but the first, which is itself.
    ///
    /// # Errors
    /// As [`Txn::inode`]
    pub fn other_parts(&mut self, dir: Ino, inode: &Inode) -> Outcome<Vec<Part>> {
        let mut all = Vec::new();
        let mut next = self.state.map().split_off(inode.range);
        while !next.is_empty() {
            let map = self.state.map().clone();
            let number = |range: &Range| map.partition(dir, range.from);
            let wanted: Vec<_> = next.iter().map(|range| keys::inode(number(range))).collect();
            self.need(&wanted.iter().collect::<Vec<_>>())?;
            let before = all.len();
            for range in &next {
                let part = number(range);
                all.push((part, self.inode(part)?));
            }
            let new = all[before..].iter();
            next = new.flat_map(|(_, inode)| map.split_off(inode.range)).collect();
        }
        Ok(all)
    }

    /// The attributes of an inode; of a directory, those of all its partitions together.
    ///
    /// # Errors
    /// As [`Txn::inode`]
    pub fn attr(&mut self, ino: Ino, inode: &Inode) -> Outcome<Attr> {
        let mut attr = inode.attr(ino);
        if !inode.is_parted() {
            return Ok(attr);
        }
        for (number, part) in self.other_parts(ino, inode)? {
            attr.add_part(&part.attr(number));
        }
        Ok(attr)
    }

    /// Whether a directory has no entry in any partition.
    ///
    /// # Errors
    /// As [`Txn::inode`]
    pub fn is_empty(&mut self, dir: Ino, inode: &Inode) -> Outcome<bool> {
        if inode.size > 0 || !inode.is_parted() {
            return Ok(inode.size == 0);
        }
        Ok(self.other_parts(dir, inode)?.iter().all(|(_, part)| part.size == 0))
    }

    /// Makes a directory without entries one that has no other partitions.
    ///
    /// # Errors
    /// As [`Txn::inode`]
    pub fn fold(&mut self, dir: Ino) -> Outcome<()> {
        let inode = self.inode(dir)?;
        if !inode.is_parted() {
            return Ok(());
        }
        for (part, _) in self.other_parts(dir, &inode)? {
            self.remove_part(part)?;
        }
        self.edit(dir)?.range = Range::ALL;
        Ok(())
    }

    /// Removes the record of a partition, which has no entry and is not the first one.
    ///
    /// # Errors
    /// As [`Txn::inode`]
    pub fn remove_part(&mut self, part: Ino) -> Outcome<()> {
        self.enter(part)?;
        self.inodes.iter_mut().filter(|(ino, _)| *ino == part).for_each(|(_, i)| *i = None);
        self.changed.push(part);
        Ok(())
    }

    /// Does to all other partitions what was done to the directory's own record, as far as `copy` says.
    ///
    /// # Errors
    /// As [`Txn::inode`]
    pub fn tell_parts(&mut self, dir: Ino, copy: impl Fn(&Inode, &mut Inode)) -> Outcome<()> {
        if !self.peek(dir, Inode::is_parted)? {
            return Ok(());
        }
        let inode = self.inode(dir)?;
        for (part, _) in self.other_parts(dir, &inode)? {
            copy(&inode, self.edit(part)?);
        }
        Ok(())
    }

    /// The directory of a partition.
    pub(super) fn directory_of(&mut self, part: Ino) -> Outcome<Ino> {
        let from = self.peek(part, |inode| inode.range.from)?;
        Ok(if from == 0 { part } else { self.state.map().whole(part, from) })
    }

    /// An entry was made in `part`, which leads to `ino`; that lay in another directory before, if it `moves`.
    pub(super) fn attached(&mut self, part: Ino, ino: Ino, moves: bool) -> Outcome<()> {
        self.bring_home(part);
        if let Some(spread) = &mut self.spread
            && moves
            && self.new != Some(ino)
        {
            spread.moved.push(ino);
        }
        let (entries, range) = self.peek(part, |inode| (inode.size, inode.range))?;
        if entries > self.state.split_above && self.state.map().spans_nodes(part, range) {
            self.grown = Some(part);
        }
        Ok(())
    }

    /// Adds the record of a new partition.
    pub fn add_part(&mut self, part: Ino, inode: Inode) {
        // The first one is an inode.
        self.inode_delta += i64::from(!inode.is_part());
        self.changed.push(part);
        self.inodes.push((part, Some(inode)));
    }
}
