//! Moves a file to where the policies of its directory want it: beside the inode, into a region, or
//! into a file of a disk.
//!
//! The copy is made while the file is in use. One request to the shard then makes it the file, if
//! no client could have changed the bytes since. A file with an object that another client has open
//! stays where it is.

use crate::relayout::{OpenForWriting, write_sparsely};
use crate::retry::Retry;
use crate::{Client, DataFile};
use std::sync::Arc;
use std::time::Duration;
use tatami_wire::admin::{AdminCall, AdminReply};
use tatami_wire::meta::{Bytes, DataState, MetaOp, MetaReply};
use tatami_wire::moves::{InlineTerms, MoveStart, MoveTarget, MovedBytes};
use tatami_wire::object::{ObjectEngine, ObjectOp, ObjectReply, REGION_MAX, RegionRoom};
use tatami_wire::policy::Policies;
use tatami_wire::{Access, Attr, Cap, Cred, Errno, Ino, InodeKind, NodeId, Piece};

/// Bytes that are copied at a time.
const CHUNK: u64 = 4 << 20;
/// How often a move is begun again because the file has changed meanwhile.
const ATTEMPTS: usize = 3;
/// The same for bytes beside an inode.
const INLINE_ATTEMPTS: usize = 100;

/// The place that the policies of a directory name for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyPlace {
    /// Beside the inode.
    Inode(InlineTerms),
    /// In a region, with this rule for earlier states.
    Region(u32),
    /// In a file of the disk.
    File,
}

impl PolicyPlace {
    /// Returns the place for a file of `size` bytes.
    pub fn for_size(policies: Policies, size: u64) -> PolicyPlace {
        let limit = policies.inline_limit();
        match policies.uses_regions() {
            leaves_to_region if limit > 0 && size <= u64::from(limit) => {
                PolicyPlace::Inode(InlineTerms { limit, leaves_to_region })
            }
            true if size <= REGION_MAX => PolicyPlace::Region(policies.version_rule().code()),
            _ => PolicyPlace::File,
        }
    }
}

/// Why a file stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftReason {
    /// A program has it open.
    Open,
    /// It has a piece for each process of an MPI program, or is striped.
    InPieces,
    /// The node has no region device, or cannot use it.
    NoDevice(NodeId),
    /// The region device of the node is full.
    DeviceFull(NodeId),
    /// It has earlier versions, which would end in its new place.
    HasVersions,
}

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyMove {
    /// It is there now.
    Moved(PolicyPlace),
    /// It was there already.
    Same,
    /// It stays where it is.
    Left(LeftReason),
}

/// Moves a file to where `policies` want it. With `dry_run`, only finds out where that is; whether
/// a program has the file open is not known then. While another client has the file open, waits for
/// `patience`. The caller must call [`Client::sync`] to be sure of the new place across a power
/// cut; without that, the file is whole there or in the old place.
///
/// # Errors
/// Those of opening it for reading and writing, and those of copying. The file is unchanged then.
pub fn move_to_policy(
    client: &Arc<Client>,
    cred: &Cred,
    attr: &Attr,
    policies: Policies,
    patience: Duration,
    dry_run: bool,
) -> Result<PolicyMove, Errno> {
    if attr.kind != InodeKind::File {
        return Err(Errno::EINVAL);
    }
    let file = MovingFile { client, cred, ino: attr.ino, policies, patience };
    let (mut attr, mut attempts) = (attr.clone(), 0);
    loop {
        let place = PolicyPlace::for_size(policies, attr.size);
        let moved = match file.find_obstacle(&attr, place)? {
            Some(found) => return Ok(found),
            None if dry_run && is_beside_inode(&attr, place) => return Ok(PolicyMove::Same),
            None if dry_run => return Ok(PolicyMove::Moved(place)),
            None => file.move_to(&attr, place),
        };
        match moved {
            // Its size has changed, or its place. Another one may be wanted.
            Err(Errno::EFBIG | Errno::EINVAL | Errno::ESTALE) if attempts < ATTEMPTS => {}
            Err(Errno::EBUSY) if attempts < ATTEMPTS => {}
            // Programs write beside the inode without an open that excludes the move.
            Err(Errno::EBUSY | Errno::ESTALE)
                if attr.layout.is_inline() && attempts < INLINE_ATTEMPTS => {}
            Err(Errno::EBUSY | Errno::ESTALE) => {
                return Ok(PolicyMove::Left(LeftReason::Open));
            }
            moved => return moved,
        }
        attempts += 1;
        attr = client.getattr(cred, attr.ino)?;
    }
}

fn is_beside_inode(attr: &Attr, place: PolicyPlace) -> bool {
    attr.layout.is_inline() && matches!(place, PolicyPlace::Inode(_))
}

/// One attempt to move a file.
struct MovingFile<'a> {
    client: &'a Arc<Client>,
    cred: &'a Cred,
    ino: Ino,
    policies: Policies,
    patience: Duration,
}

impl MovingFile<'_> {
    /// Returns the result for a file that is there already, or that cannot move at all.
    fn find_obstacle(&self, attr: &Attr, place: PolicyPlace) -> Result<Option<PolicyMove>, Errno> {
        let layout = attr.layout;
        if layout.is_tiled() {
            return Ok(Some(PolicyMove::Left(LeftReason::InPieces)));
        }
        let numbered = layout.base().is_in_region();
        Ok(match place {
            PolicyPlace::Inode(_) => None,
            PolicyPlace::File if layout.is_inline() => None,
            // An object that is too large for a region is a file of the disk.
            PolicyPlace::File if !numbered || attr.size > REGION_MAX => Some(PolicyMove::Same),
            PolicyPlace::File => None,
            PolicyPlace::Region(rule) => {
                let node = self.choose_node(attr);
                // The object of a file without a byte need not exist yet.
                let is_new = numbered && attr.size == 0;
                let engine = match numbered {
                    true => self.client.find_engine(attr)?,
                    false => {
                        let device = self.client.find_region_room(node)?;
                        ObjectEngine { in_region: false, device }
                    }
                };
                let room = engine.device;
                match engine.in_region {
                    true if layout.base().version_rule() == rule => Some(PolicyMove::Same),
                    _ if room.total == 0 => Some(PolicyMove::Left(LeftReason::NoDevice(node))),
                    _ if is_new => Some(PolicyMove::Same),
                    _ if room.free < attr.size => {
                        Some(PolicyMove::Left(LeftReason::DeviceFull(node)))
                    }
                    _ => None,
                }
            }
        })
    }

    /// Returns the node of the new object: that of the old one, or one that may get new files.
    fn choose_node(&self, attr: &Attr) -> NodeId {
        let node = attr.layout.node();
        match self.client.map().is_serving(node) {
            true => node,
            false => self.client.new_layout().node(),
        }
    }

    fn move_to(&self, attr: &Attr, place: PolicyPlace) -> Result<PolicyMove, Errno> {
        let node = self.choose_node(attr);
        let target = match place {
            PolicyPlace::Inode(terms) => MoveTarget::Inode(terms),
            PolicyPlace::Region(rule) => MoveTarget::Object { node, region_rule: Some(rule) },
            PolicyPlace::File => MoveTarget::Object { node, region_rule: None },
        };
        if is_beside_inode(attr, place) {
            return match self.begin_move(target)? {
                MoveStart::Stays { changed: false } => Ok(PolicyMove::Same),
                MoveStart::Stays { changed: true } => Ok(PolicyMove::Moved(place)),
                // It has left the inode meanwhile.
                MoveStart::Copies { .. } => Err(Errno::ESTALE),
            };
        }
        let (_, cap) = self.client.open(self.cred, self.ino, Access::BOTH)?;
        let mut open = OpenForWriting { client: self.client.clone(), ino: self.ino, ended: false };
        let number = match self.begin_patiently(target) {
            Ok(MoveStart::Copies { number }) => number,
            Ok(MoveStart::Stays { .. }) => return Err(Errno::ESTALE),
            Err(Errno::EBUSY) => return Ok(PolicyMove::Left(LeftReason::Open)),
            Err(errno) => return Err(errno),
        };
        // From here on, the shard refuses the end of the move if the bytes could have changed.
        let now = self.client.getattr(self.cred, self.ino)?;
        if now.layout != attr.layout || PolicyPlace::for_size(self.policies, now.size) != place {
            return Err(Errno::ESTALE);
        }
        let source = self.client.open_data(&now, cap)?;
        // Earlier versions go along to a region that keeps some. Anywhere else they would end.
        let has_versions =
            now.layout.base().version_rule() > 0 && !source.list_versions()?.is_empty();
        let keeps_some = matches!(target, MoveTarget::Object { region_rule: Some(1..), .. });
        if has_versions && !keeps_some {
            return Ok(PolicyMove::Left(LeftReason::HasVersions));
        }
        let moved = match target {
            MoveTarget::Inode(terms) => {
                MovedBytes::Inode { terms, bytes: read_all(&source, &now)? }
            }
            MoveTarget::Object { region_rule, .. } => {
                let in_region = region_rule.is_some();
                let copy = CopyTarget { node, number, in_region, carries: has_versions };
                match self.copy_to_object(&source, &now, cap, copy)? {
                    Ok(state) => MovedBytes::Object { node, number, state },
                    Err(reason) => return Ok(PolicyMove::Left(reason)),
                }
            }
        };
        let op = MetaOp::FinishMove { ino: self.ino, moved };
        let MetaReply::Attr(_) = self.client.send_meta(&Cred::ROOT, op)? else {
            return Err(Errno::EPROTO);
        };
        // The shard has recorded the end of this open for writing, too, but not that of a file that
        // has left its inode.
        open.ended = !now.layout.is_inline();
        Ok(PolicyMove::Moved(place))
    }

    fn begin_move(&self, to: MoveTarget) -> Result<MoveStart, Errno> {
        let op = MetaOp::BeginMove { ino: self.ino, to };
        match self.client.send_meta(self.cred, op)? {
            MetaReply::MoveBegun(start) => Ok(start),
            _ => Err(Errno::EPROTO),
        }
    }

    fn begin_patiently(&self, to: MoveTarget) -> Result<MoveStart, Errno> {
        let mut retry = Retry::new(self.patience);
        loop {
            match self.begin_move(to) {
                // The shard sends no event when a client closes.
                Err(Errno::EBUSY) if retry.pause() => {}
                begun => return begun,
            }
        }
    }

    /// Copies the bytes to a new object. The inner error: the object is not where it should be.
    fn copy_to_object(
        &self,
        source: &DataFile,
        attr: &Attr,
        cap: Cap,
        copy: CopyTarget,
    ) -> Result<Result<DataState, LeftReason>, Errno> {
        let CopyTarget { node, number, in_region, carries } = copy;
        let object = self.client.open_object(self.ino, node, Piece::of_bytes(number), cap)?;
        let carried = if carries { object.carry_versions(source) } else { Ok(()) };
        let copied = carried.and_then(|()| copy_bytes(source, &object, attr, in_region));
        let copied = copied.and_then(|()| {
            // The copy must be on its disk before the shard refers to it: what was acknowledged by
            // fsync lies there from now on.
            let state = object.sync(false)?;
            let engine = match in_region {
                true => Some(object.find_engine()?),
                false => None,
            };
            Ok((state, engine))
        });
        match copied {
            Ok((state, engine)) if engine.is_none_or(|engine| engine.in_region) => {
                // The time of the last change is that of the file.
                Ok(Ok(DataState { mtime: attr.mtime, ..state.into() }))
            }
            other => {
                // The shard removes the object later; its space is given back at once.
                let _ = object.flush();
                if let Err(error) = object.truncate_unrecorded(0) {
                    tracing::debug!(ino = %self.ino, %error, "a copy is removed later");
                }
                match other {
                    Ok((_, Some(engine))) if engine.device.total == 0 => {
                        Ok(Err(LeftReason::NoDevice(node)))
                    }
                    Ok(_) => Ok(Err(LeftReason::DeviceFull(node))),
                    Err(errno) => Err(errno),
                }
            }
        }
    }
}

/// The new object.
#[derive(Clone, Copy)]
struct CopyTarget {
    node: NodeId,
    number: u32,
    in_region: bool,
    /// Earlier versions go along.
    carries: bool,
}

/// Reads all bytes of a file that fit beside an inode.
fn read_all(source: &DataFile, attr: &Attr) -> Result<Bytes, Errno> {
    // At most the limit of bytes beside an inode, which the shard has checked.
    let mut bytes = vec![0; attr.size as usize];
    let mut got = 0;
    while got < bytes.len() {
        match source.read_at(&mut bytes[got..], got as u64)? {
            // What no object has are zeros.
            0 => break,
            n => got += n,
        }
    }
    Ok(Bytes::from(bytes))
}

fn copy_bytes(
    source: &DataFile,
    object: &DataFile,
    attr: &Attr,
    in_region: bool,
) -> Result<(), Errno> {
    let mut bytes = vec![0; CHUNK.min(attr.size) as usize];
    // A region is written as a whole. A file gets its length first, and holes where zeros are.
    if !in_region || attr.size == 0 {
        object.truncate_unrecorded(attr.size)?;
    }
    let mut offset = 0;
    while offset < attr.size {
        let bytes = &mut bytes[..CHUNK.min(attr.size - offset) as usize];
        let mut got = 0;
        while got < bytes.len() {
            match source.read_at(&mut bytes[got..], offset + got as u64)? {
                0 => break,
                n => got += n,
            }
        }
        bytes[got..].fill(0);
        match in_region {
            true if object.write_at(bytes, offset)? < bytes.len() => return Err(Errno::ENOSPC),
            true => {}
            false => write_sparsely(object, bytes, offset)?,
        }
        offset += bytes.len() as u64;
    }
    Ok(())
}

impl DataFile {
    /// Asks the node what keeps the object with the bytes.
    ///
    /// # Errors
    /// `EINVAL` for a file without one object; those of the node.
    pub(crate) fn find_engine(&self) -> Result<ObjectEngine, Errno> {
        let object = self.only_object().ok_or(Errno::EINVAL)?;
        match object.send_object_op(&ObjectOp::FindEngine, &mut [])?.0 {
            ObjectReply::Engine(engine) => Ok(engine),
            _ => Err(Errno::EPROTO),
        }
    }
}

impl Client {
    /// Asks the node of a file with one object what keeps it, and for the room of its device.
    ///
    /// # Errors
    /// Those of the node; `EIO` for an object on a device that cannot be used.
    pub fn find_engine(self: &Arc<Self>, attr: &Attr) -> Result<ObjectEngine, Errno> {
        // Without access to the bytes, any user may ask.
        let (_, cap) = self.open(&Cred::ROOT, attr.ino, Access::NONE)?;
        let layout = attr.layout;
        self.open_object(attr.ino, layout.node(), layout.base(), cap)?.find_engine()
    }

    /// Asks a node for the room of its region device.
    ///
    /// # Errors
    /// Those of the node; `EOPNOTSUPP` for an older release.
    pub fn find_region_room(&self, node: NodeId) -> Result<RegionRoom, Errno> {
        match self.send_admin(node, AdminCall::RegionRoom)? {
            AdminReply::RegionRoom(room) => Ok(room),
            _ => Err(Errno::EPROTO),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::policy::PolicyKind;

    #[test]
    fn policies_name_the_place_by_size() {
        let policies = |inline: Option<u64>, engine: Option<u64>| {
            let mut policies = Policies::default();
            policies.set_value(PolicyKind::Inline, inline);
            policies.set_value(PolicyKind::Engine, engine);
            policies
        };
        let place = |policies, size| PolicyPlace::for_size(policies, size);
        let both = policies(Some(4096), Some(1));
        let terms = InlineTerms { limit: 4096, leaves_to_region: true };
        assert_eq!(place(both, 0), PolicyPlace::Inode(terms));
        assert_eq!(place(both, 4096), PolicyPlace::Inode(terms));
        assert_eq!(place(both, 4097), PolicyPlace::Region(0));
        assert_eq!(place(both, REGION_MAX), PolicyPlace::Region(0));
        assert_eq!(place(both, REGION_MAX + 1), PolicyPlace::File);
        assert_eq!(place(policies(None, None), 0), PolicyPlace::File);
        assert_eq!(place(policies(Some(0), Some(0)), 1), PolicyPlace::File);
        assert_eq!(place(policies(None, Some(1)), 0), PolicyPlace::Region(0));
        let terms = InlineTerms { limit: 9, leaves_to_region: false };
        assert_eq!(place(policies(Some(9), None), 9), PolicyPlace::Inode(terms));
        assert_eq!(place(policies(Some(9), None), 10), PolicyPlace::File);
    }
}
