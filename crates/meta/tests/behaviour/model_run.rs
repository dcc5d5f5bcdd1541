//! The same random operations on a shard and on the model give the same answers, the same tree, and
//! a sound store in the end.

use crate::harness::*;
use crate::model::{Id, Model, View};
use proptest::prelude::*;
use std::collections::HashMap;
use tatami_wire::meta::{InodeTemplate, RenameMode};
use tatami_wire::{Access, Attr, Cred, Errno, Ino, InodeKind, SetAttr, SetTime, Timestamp};

/// Small numbers stand for inodes, names and users; both sides resolve them alike.
#[derive(Clone, Debug)]
enum Op {
    Lookup(u8, u8),
    GetAttr(u8),
    Make(u8, u8, u8, u16),
    Link(u8, u8, u8),
    Unlink(u8, u8),
    Rmdir(u8, u8),
    Rename(u8, u8, u8, u8, u8),
    Chmod(u8, u16),
    Chown(u8, Option<u32>, Option<u32>),
    Truncate(u8, u64),
    Utimens(u8, Option<i64>),
    Open(u8, bool, bool),
    List(u8),
    SetXattr(u8, u8, u8),
    RemoveXattr(u8, u8),
    GetXattr(u8, u8),
    Commit,
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    use Op::*;
    let n = any::<u8>;
    let mode = || prop_oneof![3 => Just(0o777u16), 1 => 0u16..0o10000, 1 => Just(0o1777), 1 => Just(0o2775), 1 => Just(0o6766), 1 => Just(0o2761)];
    let id = || proptest::option::weighted(0.6, 0u32..4);
    prop_oneof![
        2 => (n(), n()).prop_map(|(a, b)| Lookup(a, b)),
        1 => n().prop_map(GetAttr),
        8 => (n(), n(), n(), mode()).prop_map(|(a, b, c, d)| Make(a, b, c, d)),
        2 => (n(), n(), n()).prop_map(|(a, b, c)| Link(a, b, c)),
        3 => (n(), n()).prop_map(|(a, b)| Unlink(a, b)),
        2 => (n(), n()).prop_map(|(a, b)| Rmdir(a, b)),
        6 => (n(), n(), n(), n(), n()).prop_map(|(a, b, c, d, e)| Rename(a, b, c, d, e)),
        3 => (n(), mode()).prop_map(|(a, b)| Chmod(a, b)),
        3 => (n(), id(), id()).prop_map(|(a, b, c)| Chown(a, b, c)),
        2 => (n(), 0u64..10000).prop_map(|(a, b)| Truncate(a, b)),
        1 => (n(), proptest::option::of(0i64..100)).prop_map(|(a, b)| Utimens(a, b)),
        1 => (n(), any::<bool>(), any::<bool>()).prop_map(|(a, b, c)| Open(a, b, c)),
        1 => n().prop_map(List),
        1 => (n(), n(), n()).prop_map(|(a, b, c)| SetXattr(a, b, c)),
        1 => (n(), n()).prop_map(|(a, b)| RemoveXattr(a, b)),
        1 => (n(), n()).prop_map(|(a, b)| GetXattr(a, b)),
        2 => Just(Commit),
        1 => Just(Reopen),
    ]
}

fn cred(n: u8) -> Cred {
    match n % 5 {
        0 | 1 => Cred::ROOT,
        2 => member(1, &[2]),
        3 => user(2),
        _ => user(3),
    }
}

fn name_of(n: u8) -> &'static str {
    match n % 32 {
        0 => ".",
        1 => "..",
        2 => "",
        3 => "a/b",
        n => ["a", "b", "c", "d", "e"][usize::from(n) % 5],
    }
}

struct Run {
    shard: Option<Shard>,
    model: Model,
    inos: Vec<Ino>,
    ids: HashMap<Ino, Id>,
}

fn view(attr: &Attr) -> View {
    View {
        kind: attr.kind,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        times: (attr.atime.sec, attr.mtime.sec, attr.ctime.sec),
    }
}

impl Run {
    fn new() -> Run {
        let shard = Some(Shard::new());
        Run { shard, model: Model::new(1000), inos: vec![ROOT], ids: HashMap::from([(ROOT, 0)]) }
    }

    fn s(&mut self) -> &mut Shard {
        self.shard.as_mut().expect("there between steps")
    }

    /// Returns the n-th of all inodes there ever were, on both sides. Prefers directories, since
    /// most operations begin with one.
    fn pick(&self, n: u8) -> (Ino, Id) {
        let dirs: Vec<Id> = (0..self.inos.len())
            .filter(|id| {
                self.model.nodes[*id].kind == InodeKind::Dir && self.model.nodes[*id].alive
            })
            .collect();
        let id = if n.is_multiple_of(4) {
            usize::from(n / 4) % self.inos.len()
        } else {
            dirs[usize::from(n) % dirs.len()]
        };
        (self.inos[id], id)
    }

    /// Compares answers that are attributes.
    fn same(&mut self, ours: Result<Attr, Errno>, model: Result<Id, Errno>) {
        match (ours, model) {
            (Ok(attr), Ok(id)) => {
                if id == self.inos.len() {
                    self.inos.push(attr.ino);
                    self.ids.insert(attr.ino, id);
                }
                assert_eq!(self.ids.get(&attr.ino), Some(&id), "another inode");
                assert_eq!(view(&attr), self.model.view(id));
            }
            (ours, model) => assert_eq!(ours.err(), model.err()),
        }
    }

    fn same_removal(
        &mut self,
        ours: Result<(Option<Ino>, bool), Errno>,
        model: Result<Option<(Id, bool)>, Errno>,
    ) {
        let model = model.map(|removed| match removed {
            Some((id, last)) => (Some(self.inos[id]), last),
            None => (None, false),
        });
        assert_eq!(ours, model);
    }

    fn step(&mut self, who: u8, op: &Op) {
        let cred = cred(who);
        self.s().as_user(cred.clone());
        self.model.cred = cred;
        // The shard's clock advances with the operation.
        self.model.now = self.s().now + 1;
        match *op {
            Op::Lookup(d, n) => {
                let (ino, id) = self.pick(d);
                let ours = self.s().lookup(ino, name_of(n));
                let model = self.model.lookup(id, name_of(n));
                self.same(ours, model);
            }
            Op::GetAttr(i) => {
                let (ino, id) = self.pick(i);
                let ours = self.s().getattr(ino);
                let model = self.model.getattr(id);
                self.same(ours, model);
            }
            Op::Make(d, n, kind, mode) => {
                let (ino, id) = self.pick(d);
                let (node, kind) = match kind % 8 {
                    0..3 => (InodeTemplate::Dir, InodeKind::Dir),
                    3..6 => (InodeTemplate::File(LAYOUT), InodeKind::File),
                    6 => (InodeTemplate::Symlink(name("target")), InodeKind::Symlink),
                    _ => (InodeTemplate::BlockDev(5), InodeKind::BlockDev),
                };
                let ours = self.s().make(ino, name_of(n), node, mode);
                let model = self.model.make(id, name_of(n), kind, mode, 0o022);
                self.same(ours, model);
            }
            Op::Link(i, d, n) => {
                let ((ino, id), (dir, dir_id)) = (self.pick(i), self.pick(d));
                let ours = self.s().link(ino, dir, name_of(n));
                let model = self.model.link(id, dir_id, name_of(n));
                self.same(ours, model);
            }
            Op::Unlink(d, n) => {
                let (ino, id) = self.pick(d);
                let ours = self.s().unlink(ino, name_of(n), false);
                let model = self.model.unlink(id, name_of(n)).map(Some);
                self.same_removal(ours, model);
            }
            Op::Rmdir(d, n) => {
                let (ino, id) = self.pick(d);
                let ours = self.s().rmdir(ino, name_of(n), false);
                let model = self.model.rmdir(id, name_of(n)).map(Some);
                self.same_removal(ours, model);
            }
            Op::Rename(d, a, e, b, mode) => {
                let ((from, from_id), (to, to_id)) = (self.pick(d), self.pick(e));
                let mode = match mode % 6 {
                    0 => RenameMode::NoReplace,
                    1 | 2 => RenameMode::Exchange,
                    _ => RenameMode::Replace,
                };
                let ours = self.s().rename((from, name_of(a)), (to, name_of(b)), mode);
                let model = self.model.rename((from_id, name_of(a)), (to_id, name_of(b)), mode);
                self.same_removal(ours, model);
            }
            Op::Chmod(i, mode) => {
                let (ino, id) = self.pick(i);
                let ours = self.s().chmod(ino, mode);
                let model = self.model.chmod(id, mode);
                self.same(ours, model);
            }
            Op::Chown(i, uid, gid) => {
                let (ino, id) = self.pick(i);
                let ours = self.s().chown(ino, uid, gid);
                let model = self.model.chown(id, uid, gid);
                self.same(ours, model);
            }
            Op::Truncate(i, size) => {
                let (ino, id) = self.pick(i);
                let ours =
                    self.s().setattr(ino, SetAttr { size: Some(size), ..SetAttr::default() });
                let model = self.model.truncate(id, size);
                self.same(ours, model);
            }
            Op::Utimens(i, time) => {
                let (ino, id) = self.pick(i);
                let set = time.map_or(SetTime::Now, |t| SetTime::At(Timestamp::from_sec(t)));
                let both = SetAttr { atime: Some(set), mtime: Some(set), ..SetAttr::default() };
                let ours = self.s().setattr(ino, both);
                let model = self.model.utimens(id, time);
                self.same(ours, model);
            }
            Op::Open(i, read, write) => {
                let (ino, id) = self.pick(i);
                let ours = self.s().open(ino, Access { read, write }).map(|(attr, _)| attr);
                let model = self.model.open(id, read, write);
                self.same(ours, model);
            }
            Op::List(d) => {
                let (ino, id) = self.pick(d);
                let ours = self.s().page(ino, 0, 1000, false);
                let ours = ours.map(|(entries, ..)| {
                    let text = |n: &[u8]| String::from_utf8_lossy(n).into_owned();
                    let mut names: Vec<_> = entries.iter().map(|e| text(&e.name)).collect();
                    names.sort();
                    names
                });
                assert_eq!(ours, self.model.list(id));
            }
            Op::SetXattr(i, n, v) => {
                let (ino, id) = self.pick(i);
                let n = format!("user.{}", n % 3);
                let ours = self.s().setxattr(ino, &n, &[v]);
                assert_eq!(ours, self.model.setxattr(id, &n, &[v]));
            }
            Op::RemoveXattr(i, n) => {
                let (ino, id) = self.pick(i);
                let n = format!("user.{}", n % 3);
                let ours = self.s().removexattr(ino, &n);
                assert_eq!(ours, self.model.removexattr(id, &n));
            }
            Op::GetXattr(i, n) => {
                let (ino, id) = self.pick(i);
                let n = format!("user.{}", n % 3);
                let ours = self.s().getxattr(ino, &n);
                assert_eq!(ours, self.model.getxattr(id, &n));
            }
            Op::Commit => self.s().meta.commit().expect("memory does not fail"),
            Op::Reopen => {
                self.s().meta.commit().expect("memory does not fail");
                self.shard = self.shard.take().map(Shard::reopen);
            }
        }
    }

    /// Compares the whole trees.
    fn finish(&mut self) {
        self.s().as_root();
        for id in 0..self.inos.len() {
            let ino = self.inos[id];
            match self.s().getattr(ino) {
                Ok(attr) => assert_eq!(view(&attr), self.model.view(id)),
                Err(e) => assert_eq!((e, self.model.nodes[id].alive), (Errno::ESTALE, false)),
            }
        }
        let alive = self.model.nodes.iter().filter(|n| n.alive).count();
        assert_eq!(self.s().meta.inode_count(), alive as u64);
        self.s().assert_sound();
    }
}

proptest! {
    #![proptest_config(scaled(3000))]

    #[test]
    fn a_shard_answers_as_the_model(ops in proptest::collection::vec((any::<u8>(), op()), 1..100)) {
        let mut run = Run::new();
        // All users may write to the root, so that their operations succeed.
        run.step(0, &Op::Chmod(0, 0o777));
        for (who, op) in &ops {
            run.step(*who, op);
        }
        run.finish();
    }
}
