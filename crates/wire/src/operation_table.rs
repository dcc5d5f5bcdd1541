//! The table of metadata operations: one row an operation states its sender, its effect, its shard
//! and its entry. Node, shard and client ask this table alone.
//!
//! The table has no default row, so an operation without a row does not compile. A row that is open
//! to users says so: an operation that nobody opened to users is refused to them.

use crate::Ino;
use crate::batch::BatchOp;
use crate::meta::{Bytes, MetaOp};

/// The clients that may send an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationAccess {
    /// All clients. The shard checks the permissions of the user.
    Users,
    /// Nodes of the volume, and tools that prove that they have its key.
    Nodes,
}

/// Whether an operation changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationEffect {
    /// A repetition has no further effect.
    Reads,
    /// It must run only once: the shard stores the reply for a repetition.
    Changes,
}

impl OperationEffect {
    fn changes_if(changes: bool) -> OperationEffect {
        if changes { OperationEffect::Changes } else { OperationEffect::Reads }
    }
}

/// The shards that an operation concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationTarget {
    /// The owner shard of this inode.
    ShardOf(Ino),
    /// All shards of the executor that receives it. The inode selects one of them for the frame.
    AllShards(Ino),
}

/// The entry that an operation names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationEntry<'a> {
    /// None, or several.
    Unnamed,
    /// The entry of this directory that it looks up, creates or removes.
    Named(Ino, &'a Bytes),
    /// Entries of this directory with their attributes.
    ListedIn(Ino),
}

/// The row of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationTraits<'a> {
    /// The clients that may send it.
    pub access: OperationAccess,
    /// Whether it changes something.
    pub effect: OperationEffect,
    /// The shards that it concerns.
    pub target: OperationTarget,
    /// The entry that it names.
    pub entry: OperationEntry<'a>,
}

use OperationAccess::{Nodes, Users};
use OperationEffect::{Changes, Reads};
use OperationEntry::{ListedIn, Named, Unnamed};
use OperationTarget::{AllShards, ShardOf};

fn row<'a>(
    access: OperationAccess,
    effect: OperationEffect,
    target: OperationTarget,
    entry: OperationEntry<'a>,
) -> OperationTraits<'a> {
    OperationTraits { access, effect, target, entry }
}

/// Returns the first inode of the lists, which selects the shard.
fn first_of<'a>(mut inos: impl Iterator<Item = &'a Ino>) -> Ino {
    inos.next().copied().unwrap_or(Ino::ROOT)
}

#[rustfmt::skip]
fn traits_of_operation(op: &MetaOp) -> OperationTraits<'_> {
    use MetaOp::*;
    match op {
        // Names.
        Lookup { parent, name }                => row(Users, Reads,   ShardOf(*parent), Named(*parent, name)),
        LookupEntry { parent, name }           => row(Users, Reads,   ShardOf(*parent), Named(*parent, name)),
        Create { parent, name, .. }            => row(Users, Changes, ShardOf(*parent), Named(*parent, name)),
        CreateFilled { parent, name, .. }      => row(Users, Changes, ShardOf(*parent), Named(*parent, name)),
        CreateNumbered { parent, name, .. }    => row(Nodes, Changes, ShardOf(*parent), Named(*parent, name)),
        HoldDirectory { dir, .. }              => row(Nodes, Reads,   ShardOf(*dir), Unnamed),
        Unlink { parent, name, .. }            => row(Users, Changes, ShardOf(*parent), Named(*parent, name)),
        Rmdir { parent, name, .. }             => row(Users, Changes, ShardOf(*parent), Named(*parent, name)),
        Link { parent, name, .. }              => row(Users, Changes, ShardOf(*parent), Named(*parent, name)),
        Rename { parent, .. }                  => row(Users, Changes, ShardOf(*parent), Unnamed),
        Tmpfile { parent, .. }                 => row(Users, Changes, ShardOf(*parent), Unnamed),
        ReadDir { dir, plus: true, .. }        => row(Users, Reads,   ShardOf(*dir), ListedIn(*dir)),
        ReadDir { dir, plus: false, .. }       => row(Users, Reads,   ShardOf(*dir), Unnamed),
        SumDir { dir, .. }                     => row(Users, Reads,   ShardOf(*dir), Unnamed),
        ClearDir { dir, .. }                   => row(Users, Changes, ShardOf(*dir), Unnamed),
        ListPartitions { dir }                 => row(Users, Reads,   ShardOf(*dir), Unnamed),

        // Inodes.
        GetAttr { ino } | GetOwnAttr { ino }   => row(Users, Reads,   ShardOf(*ino), Unnamed),
        SetAttr { ino, .. }                    => row(Users, Changes, ShardOf(*ino), Unnamed),
        Readlink { ino }                       => row(Users, Reads,   ShardOf(*ino), Unnamed),
        GetXattr { ino, .. }                   => row(Users, Reads,   ShardOf(*ino), Unnamed),
        ListXattr { ino }                      => row(Users, Reads,   ShardOf(*ino), Unnamed),
        SetXattr { ino, .. }                   => row(Users, Changes, ShardOf(*ino), Unnamed),
        RemoveXattr { ino, .. }                => row(Users, Changes, ShardOf(*ino), Unnamed),
        Locks { ino, .. }                      => row(Users, Reads,   ShardOf(*ino), Unnamed),
        Job { ino, .. }                        => row(Users, Changes, ShardOf(*ino), Unnamed),

        // Open files and their bytes.
        Open { ino, access, .. } =>
            row(Users, OperationEffect::changes_if(access.write), ShardOf(*ino), Unnamed),
        Commit { ino, .. }                     => row(Users, Changes, ShardOf(*ino), Unnamed),
        Release { ino }                        => row(Users, Changes, ShardOf(*ino), Unnamed),
        ReportClosed { inos, empty, read } =>
            row(Users, Changes, ShardOf(first_of(inos.iter().chain(empty).chain(read))), Unnamed),
        AddPieces { ino, .. }                  => row(Users, Changes, ShardOf(*ino), Unnamed),
        Publish { ino, .. }                    => row(Users, Changes, ShardOf(*ino), Unnamed),
        Reserve { ino, .. }                    => row(Users, Changes, ShardOf(*ino), Unnamed),
        Relayout { ino, .. }                   => row(Users, Changes, ShardOf(*ino), Unnamed),
        BeginMove { ino, .. }                  => row(Users, Changes, ShardOf(*ino), Unnamed),
        FinishMove { ino, .. }                 => row(Users, Changes, ShardOf(*ino), Unnamed),
        ListTiles { ino, .. }                  => row(Users, Reads,   ShardOf(*ino), Unnamed),
        Inline { ino, op, .. } =>
            row(Users, OperationEffect::changes_if(op.is_change()), ShardOf(*ino), Unnamed),
        ReadInline { ino }                     => row(Users, Reads,   ShardOf(*ino), Unnamed),

        // Several at once.
        Batch { operations } => {
            let changes = operations.iter().any(BatchOp::is_mutation);
            let first = operations.first().map_or(Ino::ROOT, BatchOp::target_inode);
            row(Users, OperationEffect::changes_if(changes), ShardOf(first), Unnamed)
        }

        // The volume.
        Sync                                   => row(Users, Reads,   AllShards(Ino::ROOT), Unnamed),
        SyncNames { .. }                       => row(Users, Reads,   AllShards(Ino::ROOT), Unnamed),
        StatVolume                             => row(Users, Reads,   AllShards(Ino::ROOT), Unnamed),

        // Housekeeping.
        ListGarbage { .. }                     => row(Nodes, Reads,   AllShards(Ino::ROOT), Unnamed),
        ReportGarbageRemoved { .. }            => row(Nodes, Changes, AllShards(Ino::ROOT), Unnamed),
        ListGarbagePieces { .. }               => row(Nodes, Reads,   AllShards(Ino::ROOT), Unnamed),
        ReportPiecesRemoved { .. }             => row(Nodes, Changes, AllShards(Ino::ROOT), Unnamed),
        ListClients                            => row(Nodes, Reads,   AllShards(Ino::ROOT), Unnamed),
        ExpireClient { .. }                    => row(Nodes, Changes, AllShards(Ino::ROOT), Unnamed),
        ListPendingRecovery { .. }             => row(Nodes, Reads,   AllShards(Ino::ROOT), Unnamed),
        SetRecoveredSize { ino, .. }           => row(Nodes, Changes, ShardOf(*ino), Unnamed),
        SplitPartition { partition, .. }       => row(Nodes, Changes, ShardOf(*partition), Unnamed),

        // Checks of the volume.
        ScanInodes { after, .. }               => row(Nodes, Reads,   AllShards(*after), Unnamed),
        ScanBackPointers { shard, .. }         => row(Nodes, Reads,   AllShards(Ino::first_in_shard(*shard)), Unnamed),
        ListEntriesOf { shard, .. }            => row(Nodes, Reads,   AllShards(Ino::first_in_shard(*shard)), Unnamed),
        ScanPartitions { shard, .. }           => row(Nodes, Reads,   AllShards(Ino::first_in_shard(*shard)), Unnamed),
        ListInFlight { inos, .. }              => row(Nodes, Reads,   ShardOf(first_of(inos.iter())), Unnamed),
        Check { after, repair, .. } =>
            row(Nodes, OperationEffect::changes_if(*repair), ShardOf(*after), Unnamed),
        Repair { ino, repair } =>
            row(Nodes, Changes, ShardOf(repair.target_partition().unwrap_or(*ino)), Unnamed),
    }
}

/// The rows of the operations that a batch may contain: those of the single operations.
#[rustfmt::skip]
fn traits_of_batch_operation(op: &BatchOp) -> OperationTraits<'_> {
    use BatchOp::*;
    match op {
        LookupEntry { parent, name }           => row(Users, Reads,   ShardOf(*parent), Named(*parent, name)),
        Create { parent, name, .. }            => row(Users, Changes, ShardOf(*parent), Named(*parent, name)),
        CreateFilled { parent, name, .. }      => row(Users, Changes, ShardOf(*parent), Named(*parent, name)),
        Unlink { parent, name, .. }            => row(Users, Changes, ShardOf(*parent), Named(*parent, name)),
        Rmdir { parent, name, .. }             => row(Users, Changes, ShardOf(*parent), Named(*parent, name)),
        Link { parent, name, .. }              => row(Users, Changes, ShardOf(*parent), Named(*parent, name)),
        Tmpfile { parent, .. }                 => row(Users, Changes, ShardOf(*parent), Unnamed),
        GetAttr { ino }                        => row(Users, Reads,   ShardOf(*ino), Unnamed),
        SetAttr { ino, .. }                    => row(Users, Changes, ShardOf(*ino), Unnamed),
        Commit { ino, .. }                     => row(Users, Changes, ShardOf(*ino), Unnamed),
        ReadInline { ino }                     => row(Users, Reads,   ShardOf(*ino), Unnamed),
    }
}

impl<'a> OperationTraits<'a> {
    fn target_inode(&self) -> Ino {
        let (ShardOf(ino) | AllShards(ino)) = self.target;
        ino
    }

    fn named_entry(&self) -> Option<(Ino, &'a Bytes)> {
        match self.entry {
            Named(dir, name) => Some((dir, name)),
            Unnamed | ListedIn(_) => None,
        }
    }
}

impl MetaOp {
    /// Returns the row of the operation.
    pub fn traits(&self) -> OperationTraits<'_> {
        traits_of_operation(self)
    }

    /// Checks whether the operation changes something, and so must run only once.
    pub fn is_mutation(&self) -> bool {
        self.traits().effect == Changes
    }

    /// Checks whether ordinary users may send the operation.
    pub fn is_for_users(&self) -> bool {
        self.traits().access == Users
    }

    /// Checks whether the operation concerns all shards of the executor that receives it.
    pub fn is_for_all_shards(&self) -> bool {
        matches!(self.traits().target, AllShards(_))
    }

    /// Returns the directory and name of the one entry that the operation looks up, creates or
    /// removes. `None` for operations on no entry, or on two.
    pub fn named_entry(&self) -> Option<(Ino, &Bytes)> {
        self.traits().named_entry()
    }

    /// Returns the directory that may be delegated with the reply. This is the directory of
    /// [`MetaOp::named_entry`], or the directory of a listing with attributes, because clients
    /// often request these one by one next.
    pub fn delegable_dir(&self) -> Option<Ino> {
        match self.traits().entry {
            Named(dir, _) | ListedIn(dir) => Some(dir),
            Unnamed => None,
        }
    }

    /// Returns the inode that selects the owner shard for the request.
    pub fn target_inode(&self) -> Ino {
        self.traits().target_inode()
    }
}

impl BatchOp {
    /// Checks whether the operation changes something.
    pub fn is_mutation(&self) -> bool {
        traits_of_batch_operation(self).effect == Changes
    }

    /// Returns the inode that selects the owner shard for the request.
    pub fn target_inode(&self) -> Ino {
        traits_of_batch_operation(self).target_inode()
    }

    /// Returns the directory and name of the entry that the operation looks up, creates or removes.
    pub fn named_entry(&self) -> Option<(Ino, &Bytes)> {
        traits_of_batch_operation(self).named_entry()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SetAttr;
    use crate::meta::InodeTemplate;

    #[test]
    fn a_batch_operation_has_the_row_of_the_single_operation() {
        let (parent, ino) = (Ino(7), Ino(8));
        let name = || Bytes::from(b"name".to_vec());
        let node = InodeTemplate::Dir;
        let operations = [
            BatchOp::LookupEntry { parent, name: name() },
            BatchOp::GetAttr { ino },
            BatchOp::SetAttr { ino, set: SetAttr::default() },
            BatchOp::Create {
                parent,
                name: name(),
                node,
                mode: 0,
                umask: 0,
                exclusive: true,
                open: None,
            },
            BatchOp::Commit { ino, state: None, close: true },
            BatchOp::Unlink { parent, name: name(), keep: false },
            BatchOp::Rmdir { parent, name: name(), keep: false },
            BatchOp::Tmpfile {
                parent,
                name: name(),
                layout: crate::Layout::whole(crate::NodeId(0)),
                mode: 0,
                umask: 0,
                open: crate::Access::WRITE,
            },
            BatchOp::Link { ino, parent, name: name() },
            BatchOp::CreateFilled {
                parent,
                name: name(),
                layout: crate::Layout::whole(crate::NodeId(0)),
                mode: 0,
                umask: 0,
                bytes: name(),
                set: None,
            },
            BatchOp::ReadInline { ino },
        ];
        for operation in operations {
            let single = MetaOp::from(operation.clone());
            assert_eq!(traits_of_batch_operation(&operation), single.traits(), "{operation:?}");
        }
    }

    #[test]
    fn a_batch_changes_something_if_one_of_its_operations_does() {
        let read = BatchOp::GetAttr { ino: Ino(9) };
        let write = BatchOp::Commit { ino: Ino(8), state: None, close: true };
        let batch = |operations: &[BatchOp]| MetaOp::Batch { operations: operations.to_vec() };
        assert!(!batch(&[read.clone(), read.clone()]).is_mutation());
        assert!(batch(&[read.clone(), write]).is_mutation());
        assert_eq!(batch(&[read]).target_inode(), Ino(9));
    }
}
