//! A shard over a store that can fail, and short functions for requests to it.

use tatami_meta::store::faulty::FaultyStore;
use tatami_meta::{Meta, MetaConfig, OperationContext};
use tatami_wire::meta::{
    DataState, DirEntry, Finding, InodeTemplate, MetaOp, MetaReply, MetaResult, RenameMode,
    XattrMode,
};
use tatami_wire::{
    Access, Attr, Cap, ClientId, Cred, Errno, ExecutorId, Ino, Layout, NodeId, SetAttr, ShardMap,
    Timestamp, VolumeId, VolumeKey,
};

pub use crate::words::{name, scaled};

pub const ROOT: Ino = Ino::ROOT;
pub const A: ClientId = ClientId([0xa; 16]);
pub const B: ClientId = ClientId([0xb; 16]);
pub const LAYOUT: Layout = Layout::whole(NodeId(1));

pub fn config() -> MetaConfig {
    MetaConfig {
        executor: ExecutorId::first_of_node(NodeId(0)),
        map: ShardMap::with_one_shard(ExecutorId::first_of_node(NodeId(0))),
        volume: VolumeId([7; 16]),
        key: VolumeKey::new([9; 32]),
    }
}

pub fn user(uid: u32) -> Cred {
    Cred { uid, gid: uid, groups: vec![] }
}

pub fn member(uid: u32, groups: &[u32]) -> Cred {
    Cred { uid, gid: uid, groups: groups.to_vec() }
}

/// A shard, a clock that advances by a second with every operation, and the requesting client.
pub struct Shard {
    pub meta: Meta<FaultyStore>,
    pub now: i64,
    pub seq: u64,
    pub client: ClientId,
    pub cred: Cred,
}

impl Shard {
    /// Returns an empty shard; the superuser asks, from client A.
    pub fn new() -> Shard {
        Shard::over(FaultyStore::new())
    }

    pub fn over(store: FaultyStore) -> Shard {
        let meta = Meta::open(store, config(), Timestamp::from_sec(1000)).expect("opens");
        Shard { meta, now: 1000, seq: 0, client: A, cred: Cred::ROOT }
    }

    /// Closes and opens again, as after `kill -9`: uncommitted changes are lost.
    pub fn reopen(self) -> Shard {
        let mut store = self.meta.into_store();
        store.kill_process();
        let meta = Meta::open(store, config(), Timestamp::from_sec(self.now)).expect("opens");
        Shard { meta, ..self }
    }

    pub fn as_user(&mut self, cred: Cred) -> &mut Shard {
        self.cred = cred;
        self
    }

    pub fn as_root(&mut self) -> &mut Shard {
        self.as_user(Cred::ROOT)
    }

    pub fn as_client(&mut self, client: ClientId) -> &mut Shard {
        self.client = client;
        self
    }

    pub fn time(&self) -> Timestamp {
        Timestamp::from_sec(self.now)
    }

    pub fn context(&self) -> OperationContext {
        OperationContext {
            now: self.time(),
            client: self.client,
            slot: 0,
            seq: self.seq,
            trusted: true,
        }
    }

    pub fn apply(&mut self, op: MetaOp) -> MetaResult {
        self.now += 1;
        self.seq += 1;
        let ctx = self.context();
        self.meta.apply(&ctx, &self.cred.clone(), &op).into_result()
    }

    fn attr(&mut self, op: MetaOp) -> Result<Attr, Errno> {
        match self.apply(op)? {
            MetaReply::Attr(attr) => Ok(attr),
            other => panic!("not attributes: {other:?}"),
        }
    }

    fn done(&mut self, op: MetaOp) -> Result<(), Errno> {
        match self.apply(op)? {
            MetaReply::Done => Ok(()),
            other => panic!("not done: {other:?}"),
        }
    }

    fn bytes(&mut self, op: MetaOp) -> Result<Vec<u8>, Errno> {
        match self.apply(op)? {
            MetaReply::Bytes(bytes) => Ok(bytes.into_vec()),
            other => panic!("not bytes: {other:?}"),
        }
    }

    pub fn make(
        &mut self,
        parent: Ino,
        n: &str,
        node: InodeTemplate,
        mode: u16,
    ) -> Result<Attr, Errno> {
        let op = MetaOp::Create {
            parent,
            name: name(n),
            node,
            mode,
            umask: 0o022,
            exclusive: true,
            open: None,
        };
        match self.apply(op)? {
            MetaReply::Created { attr, created: true, .. } => Ok(attr),
            other => panic!("not created: {other:?}"),
        }
    }

    pub fn file(&mut self, parent: Ino, n: &str) -> Attr {
        self.make(parent, n, InodeTemplate::File(LAYOUT), 0o666).expect("file")
    }

    pub fn dir(&mut self, parent: Ino, n: &str) -> Attr {
        self.make(parent, n, InodeTemplate::Dir, 0o777).expect("directory")
    }

    pub fn create_open(
        &mut self,
        parent: Ino,
        n: &str,
        open: Access,
    ) -> Result<(Attr, Option<Cap>, bool), Errno> {
        let op = MetaOp::Create {
            parent,
            name: name(n),
            node: InodeTemplate::File(LAYOUT),
            mode: 0o666,
            umask: 0o022,
            exclusive: false,
            open: Some(open),
        };
        match self.apply(op)? {
            MetaReply::Created { attr, cap, created } => Ok((attr, cap, created)),
            other => panic!("not created: {other:?}"),
        }
    }

    pub fn tmpfile(&mut self, parent: Ino) -> Result<Attr, Errno> {
        let op =
            MetaOp::Tmpfile { parent, layout: LAYOUT, mode: 0o600, umask: 0, open: Access::BOTH };
        match self.apply(op)? {
            MetaReply::Created { attr, cap: Some(_), created: true } => Ok(attr),
            other => panic!("not created: {other:?}"),
        }
    }

    pub fn lookup(&mut self, parent: Ino, n: &str) -> Result<Attr, Errno> {
        self.attr(MetaOp::Lookup { parent, name: name(n) })
    }

    pub fn getattr(&mut self, ino: Ino) -> Result<Attr, Errno> {
        self.attr(MetaOp::GetAttr { ino })
    }

    pub fn setattr(&mut self, ino: Ino, set: SetAttr) -> Result<Attr, Errno> {
        self.attr(MetaOp::SetAttr { ino, set })
    }

    pub fn chmod(&mut self, ino: Ino, mode: u16) -> Result<Attr, Errno> {
        self.setattr(ino, SetAttr { mode: Some(mode), ..SetAttr::default() })
    }

    pub fn chown(&mut self, ino: Ino, uid: Option<u32>, gid: Option<u32>) -> Result<Attr, Errno> {
        self.setattr(ino, SetAttr { uid, gid, ..SetAttr::default() })
    }

    pub fn open(&mut self, ino: Ino, access: Access) -> Result<(Attr, Cap), Errno> {
        self.opening(ino, access, false)
    }

    pub fn open_noted(&mut self, ino: Ino, access: Access) -> Result<(Attr, Cap), Errno> {
        self.opening(ino, access, true)
    }

    fn opening(&mut self, ino: Ino, access: Access, noted: bool) -> Result<(Attr, Cap), Errno> {
        match self.apply(MetaOp::Open { ino, access, registered: noted })? {
            MetaReply::Opened { attr, cap } => Ok((attr, cap)),
            other => panic!("not opened: {other:?}"),
        }
    }

    pub fn commit(&mut self, ino: Ino, size: Option<u64>, close: bool) -> Result<Attr, Errno> {
        let mtime = Timestamp::from_sec(self.now);
        let state =
            size.map(|size| DataState { size, blocks: size.div_ceil(512), mtime, changed: mtime });
        self.attr(MetaOp::Commit { ino, state, close })
    }

    fn removed(&mut self, op: MetaOp) -> Result<(Option<Ino>, bool), Errno> {
        match self.apply(op)? {
            MetaReply::Removed { ino, last } | MetaReply::Renamed { ino, last, .. } => {
                Ok((ino, last))
            }
            other => panic!("not removed: {other:?}"),
        }
    }

    pub fn unlink(
        &mut self,
        parent: Ino,
        n: &str,
        keep: bool,
    ) -> Result<(Option<Ino>, bool), Errno> {
        self.removed(MetaOp::Unlink { parent, name: name(n), keep })
    }

    pub fn rmdir(
        &mut self,
        parent: Ino,
        n: &str,
        keep: bool,
    ) -> Result<(Option<Ino>, bool), Errno> {
        self.removed(MetaOp::Rmdir { parent, name: name(n), keep })
    }

    pub fn rename(
        &mut self,
        from: (Ino, &str),
        to: (Ino, &str),
        mode: RenameMode,
    ) -> Result<(Option<Ino>, bool), Errno> {
        self.removed(MetaOp::Rename {
            parent: from.0,
            name: name(from.1),
            new_parent: to.0,
            new_name: name(to.1),
            mode,
            keep: false,
        })
    }

    pub fn link(&mut self, ino: Ino, parent: Ino, n: &str) -> Result<Attr, Errno> {
        self.attr(MetaOp::Link { ino, parent, name: name(n) })
    }

    pub fn readlink(&mut self, ino: Ino) -> Result<Vec<u8>, Errno> {
        self.bytes(MetaOp::Readlink { ino })
    }

    pub fn page(
        &mut self,
        dir: Ino,
        after: u64,
        limit: u32,
        plus: bool,
    ) -> Result<(Vec<DirEntry>, bool, Ino), Errno> {
        match self.apply(MetaOp::ReadDir { dir, after, limit, plus })? {
            MetaReply::Entries { entries, end, parent, .. } => Ok((entries, end, parent)),
            other => panic!("not entries: {other:?}"),
        }
    }

    /// Returns all names of a directory, sorted.
    pub fn names(&mut self, dir: Ino) -> Vec<String> {
        let mut names = Vec::new();
        let mut after = 0;
        loop {
            let (entries, end, _) = self.page(dir, after, 7, false).expect("listing");
            after = entries.last().map_or(after, |e| e.cookie);
            names.extend(entries.iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()));
            if end {
                names.sort();
                return names;
            }
        }
    }

    pub fn getxattr(&mut self, ino: Ino, n: &str) -> Result<Vec<u8>, Errno> {
        self.bytes(MetaOp::GetXattr { ino, name: name(n) })
    }

    pub fn setxattr(&mut self, ino: Ino, n: &str, value: &[u8]) -> Result<(), Errno> {
        self.setxattr_mode(ino, n, value, XattrMode::Set)
    }

    pub fn setxattr_mode(
        &mut self,
        ino: Ino,
        n: &str,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        self.done(MetaOp::SetXattr { ino, name: name(n), value: name(value), mode })
    }

    /// Returns the names of the attributes.
    pub fn listxattr(&mut self, ino: Ino) -> Result<Vec<String>, Errno> {
        let list = self.bytes(MetaOp::ListXattr { ino })?;
        let names = list.split_inclusive(|b| *b == 0);
        Ok(names.map(|n| String::from_utf8_lossy(&n[..n.len() - 1]).into_owned()).collect())
    }

    pub fn removexattr(&mut self, ino: Ino, n: &str) -> Result<(), Errno> {
        self.done(MetaOp::RemoveXattr { ino, name: name(n) })
    }

    pub fn release(&mut self, ino: Ino) -> Result<(), Errno> {
        self.done(MetaOp::Release { ino })
    }

    pub fn expire(&mut self, client: ClientId) -> Result<(), Errno> {
        self.done(MetaOp::ExpireClient { client })
    }

    pub fn clients(&mut self) -> Vec<ClientId> {
        match self.apply(MetaOp::ListClients) {
            Ok(MetaReply::Clients(clients)) => clients,
            other => panic!("not clients: {other:?}"),
        }
    }

    pub fn garbage(&mut self, node: u16) -> Vec<Ino> {
        match self.apply(MetaOp::ListGarbage { node: NodeId(node), limit: 100 }) {
            Ok(MetaReply::Garbage(inos)) => inos,
            other => panic!("not garbage: {other:?}"),
        }
    }

    pub fn garbage_done(&mut self, node: u16, inos: Vec<Ino>) -> Result<(), Errno> {
        self.done(MetaOp::ReportGarbageRemoved { node: NodeId(node), inos })
    }

    pub fn unsettled(&mut self) -> Vec<Ino> {
        match self.apply(MetaOp::ListPendingRecovery { limit: 100 }) {
            Ok(MetaReply::PendingRecovery(attrs)) => attrs.iter().map(|a| a.ino).collect(),
            other => panic!("not unsettled: {other:?}"),
        }
    }

    pub fn settle(&mut self, ino: Ino, size: u64) -> Result<(), Errno> {
        let state = Some(DataState { size, blocks: 8, mtime: self.time(), changed: self.time() });
        self.done(MetaOp::SetRecoveredSize { ino, state })
    }

    /// Runs a whole check, `step` inodes at a time.
    pub fn check(&mut self, step: u32, repair: bool) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut after = Ino(0);
        loop {
            match self.apply(MetaOp::Check { after, limit: step, repair }) {
                Ok(MetaReply::Checked { findings, next, .. }) => {
                    found.extend(findings);
                    match next {
                        Some(next) => after = next,
                        None => return found,
                    }
                }
                other => panic!("not checked: {other:?}"),
            }
        }
    }

    /// Asserts that the records agree.
    pub fn assert_sound(&mut self) {
        let findings = self.as_root().check(1000, false);
        assert!(findings.is_empty(), "{findings:#?}");
    }
}
