//! The removal of inodes: those that lost their last name, and those that clients keep.

use crate::error::MetaOutcome;
use crate::keepers;
use crate::keys::{self, tag};
use crate::operation::Txn;
use crate::store::Store;
use crate::tiled::{self, relayout};
use tatami_wire::{ClientId, Ino, Piece};

impl<S: Store> Txn<'_, S> {
    /// Decides on an inode that may have lost its last name (for a directory: that was removed). It
    /// stays if this client wants to keep it or others have it open; else it is removed. Returns
    /// whether it has no name left.
    pub fn release_unnamed(&mut self, ino: Ino, keep: bool) -> MetaOutcome<bool> {
        let client = self.ctx.client;
        let (named, dead) =
            self.inspect_inode(ino, |inode| (inode.nlink > 0, inode.is_unreferenced()))?;
        if named {
            return Ok(false);
        }
        // The requesting client has it open, and releases it later.
        if keep {
            self.keep_for_client(ino, client)?;
        } else if dead {
            self.remove_inode(ino)?;
        }
        Ok(true)
    }

    /// Records that `client` has handles on an inode that may lose, or has no, name.
    pub fn keep_for_client(&mut self, ino: Ino, client: ClientId) -> MetaOutcome<()> {
        self.keep_with_reason(ino, client, keepers::KEPT)
    }

    fn keep_with_reason(&mut self, ino: Ino, client: ClientId, why: &[u8]) -> MetaOutcome<()> {
        let key = keys::orphan(client, ino);
        let keepers = self.inspect_inode(ino, |inode| inode.keepers)?;
        let before = if keepers == 0 { None } else { self.get(&key)? };
        if before.is_none() {
            self.edit_hidden(ino)?.keepers += 1;
            // The keeper's record lies at the owner shard: the inode must lie there, too.
            self.relocate_to_owner(ino);
        }
        if before.is_none() || why == keepers::KEPT && before.as_deref() != Some(why) {
            self.put_record(key, why.to_vec());
        }
        Ok(())
    }

    /// Removes an inode that nothing holds, and all records that belong to it; its objects become
    /// garbage. If other clients have it open, it is kept for them instead.
    pub fn remove_inode(&mut self, ino: Ino) -> MetaOutcome<()> {
        let here = self.is_here(ino);
        if !here && !self.is_embedded(ino) {
            // Its owner shard removes it when the transaction is applied there.
            return Ok(());
        }
        let (attributes, writers) =
            self.inspect_inode(ino, |i| (i.xattr_list > 0, i.writers > 0))?;
        if writers || !self.state.opens.is_empty() {
            // POSIX: a file lives until its last close. The close or the expiry of these clients
            // removes it.
            let others = keepers::other_openers(self, ino, writers)?;
            for client in &others {
                self.keep_with_reason(ino, *client, keepers::KEPT_WHILE_OPEN)?;
            }
            if !others.is_empty() {
                return Ok(());
            }
        }
        let (unsettled, touched) = self.inspect_inode(ino, |i| (i.pending_recovery, i.touched))?;
        if attributes {
            self.delete_under(&keys::inode_prefix(tag::XATTR, ino))?;
        }
        if writers {
            self.delete_under(&keys::inode_prefix(tag::WRITER, ino))?;
        }
        if self.inspect_inode(ino, |i| i.layout.is_inline())? {
            self.delete_record(keys::inline_bytes(ino));
        }
        relayout::release_reserved(self, ino, None)?;
        if unsettled {
            self.delete_record(keys::pending_recovery(ino));
        }
        if self.inspect_inode(ino, |i| i.pieces)? {
            for node in tiled::remove_pieces(self, ino)? {
                self.add_garbage(node, keys::garbage_inode(node, ino));
            }
        }
        // An inode without any writer never had an object.
        if touched {
            let layout = self.inspect_inode(ino, |inode| inode.layout)?;
            for (node, piece) in layout.all_objects() {
                self.add_garbage(node, keys::garbage_inode(node, ino));
                if piece != Piece::BASE {
                    self.add_garbage(node, keys::dropped_object(node, ino, piece));
                }
            }
        }
        self.changed.push(ino);
        match self.inodes.iter_mut().find(|(i, _)| *i == ino) {
            Some((_, changed)) => *changed = None,
            None => self.inodes.push((ino, None)),
        }
        self.inode_delta -= i64::from(here);
        Ok(())
    }

    fn delete_under(&mut self, prefix: &[u8]) -> MetaOutcome<()> {
        // Bounded: attribute names of an inode fit a listing, and writers are clients.
        let old = self.list_keys(prefix, usize::MAX)?;
        self.writes.retain(|(key, _)| !key.starts_with(prefix));
        old.into_iter().for_each(|key| self.delete_record(key));
        Ok(())
    }
}
