//! Directories that one client has exclusively: operations of others wait until it has returned
//! them, and see all that it has made until then.

use crate::checking::{assert_sound, create, create_by};
use crate::cluster::{Cluster, LAYOUT, ROOT, name, number_of};
use crate::same::dir;
use tatami_wire::inline::FirstBytes;
use tatami_wire::meta::{InodeTemplate, MetaOp, MetaReply, MetaResult, RenameMode, XattrMode};
use tatami_wire::{Access, ClientId, Cred, Errno, Ino, Timestamp};

const HOLDER: u8 = 1;
const OTHER: u8 = 2;
/// The limit of bytes beside an inode.
const LIMIT: u32 = 4096;

fn client_id(client: u8) -> ClientId {
    ClientId([client; 16])
}

/// Returns a directory of node 1 that the holder has exclusively, its executor, and the numbers for
/// its files.
fn held_directory(cluster: &mut Cluster) -> (Ino, usize, Vec<Ino>) {
    let d = dir(cluster, ROOT, Some(1));
    let op = MetaOp::SetXattr {
        ino: d,
        name: name("user.tatami.inline"),
        value: name("4k"),
        mode: XattrMode::Set,
    };
    assert_eq!(cluster.call(HOLDER, &Cred::ROOT, op), Ok(MetaReply::Done));
    create(cluster, d, "first");
    cluster.quiet();
    let at = number_of(cluster.map.owner(d.owner_shard()).expect("it has an owner"));
    match hold(cluster, HOLDER, d) {
        Ok(MetaReply::DirectoryHeld {
            first, count: 8, inline_limit: LIMIT, mode: 0o755, ..
        }) => {
            let shard = d.owner_shard();
            (d, at, (first..first + 8).map(|n| Ino::new(shard, shard, n)).collect())
        }
        other => panic!("not held: {other:?}"),
    }
}

fn hold(cluster: &mut Cluster, client: u8, dir: Ino) -> MetaResult {
    cluster.call(client, &Cred::ROOT, MetaOp::HoldDirectory { dir, count: 8 })
}

fn numbered(parent: Ino, file: &str, ino: Ino, bytes: &[u8]) -> MetaOp {
    let first = match bytes {
        b"" => FirstBytes::None,
        bytes => FirstBytes::Beside(bytes.to_vec().into()),
    };
    numbered_with(parent, file, ino, first)
}

fn numbered_with(parent: Ino, file: &str, ino: Ino, first: FirstBytes) -> MetaOp {
    MetaOp::CreateNumbered {
        parent,
        name: name(file),
        ino,
        layout: LAYOUT,
        mode: 0o666,
        umask: 0o022,
        first,
        open: Access::BOTH,
        time: Timestamp::from_sec(0),
    }
}

fn made(result: MetaResult) -> (Ino, u64, u16) {
    match result {
        Ok(MetaReply::Created { attr, cap: Some(_), created: true }) => {
            (attr.ino, attr.size, attr.mode)
        }
        other => panic!("not made: {other:?}"),
    }
}

/// Runs `op` of the other client until it waits for the directory. Then the holder makes `file`,
/// and returns the directory. Returns the answer to `op`.
fn answer_after_return(
    cluster: &mut Cluster,
    (d, at): (Ino, usize),
    (file, ino): (&str, Ino),
    op: MetaOp,
) -> MetaResult {
    cluster.ask(OTHER, &Cred::ROOT, op.clone());
    let mut wanted = Vec::new();
    for _ in 0..200 {
        cluster.step();
        assert_eq!(cluster.answer(OTHER), None, "it does not wait: {op:?}");
        wanted.extend(cluster.meta(at).expect("it is up").take_wanted_directories());
    }
    assert!(wanted.contains(&(d, client_id(HOLDER))), "nobody learns that {op:?} waits");
    let one = cluster.call(HOLDER, &Cred::ROOT, numbered(d, file, ino, b"bytes"));
    assert_eq!(made(one), (ino, 5, 0o644));
    assert_eq!(cluster.answer(OTHER), None);
    cluster.meta(at).expect("it is up").end_exclusive(d, client_id(OTHER));
    cluster.step();
    assert_eq!(cluster.answer(OTHER), None, "nobody returns for another");
    cluster.meta(at).expect("it is up").end_exclusive(d, client_id(HOLDER));
    for _ in 0..60_000 {
        cluster.step();
        if let Some(answer) = cluster.answer(OTHER) {
            return answer;
        }
    }
    panic!("{op:?} waits for ever");
}

#[test]
fn others_wait_and_then_see_what_the_holder_has_made() {
    let mut cluster = Cluster::new(3, 16, 7);
    // From another executor: a participant waits as well.
    let elsewhere = dir(&mut cluster, ROOT, Some(2));
    create_by(&mut cluster, OTHER, elsewhere, "moving");
    let new = |name_: &str| name(name_);
    let node = InodeTemplate::File(LAYOUT);
    type Operation = Box<dyn Fn(Ino) -> MetaOp>;
    type Check = fn(MetaResult, Ino) -> bool;
    let cases: Vec<(Operation, Check)> = vec![
        (
            Box::new(move |d| MetaOp::Lookup { parent: d, name: new("new") }),
            |answer, ino| matches!(answer, Ok(MetaReply::Attr(attr)) if attr.ino == ino && attr.size == 5),
        ),
        (
            Box::new(|ino| MetaOp::GetAttr { ino }),
            |answer, _| matches!(answer, Ok(MetaReply::Attr(attr)) if attr.size == 2),
        ),
        (
            Box::new(|dir| MetaOp::ReadDir { dir, after: 0, limit: 10, plus: true }),
            |answer, ino| {
                let Ok(MetaReply::Entries { entries, .. }) = answer else { return false };
                entries.len() == 2 && entries.iter().any(|entry| entry.ino == ino)
            },
        ),
        (
            Box::new(move |parent| MetaOp::Create {
                parent,
                name: new("new"),
                node: node.clone(),
                mode: 0o644,
                umask: 0,
                exclusive: true,
                open: None,
            }),
            |answer, _| answer == Err(Errno::EEXIST),
        ),
        (
            Box::new(move |new_parent| MetaOp::Rename {
                parent: elsewhere,
                name: new("moving"),
                new_parent,
                new_name: new("new"),
                mode: RenameMode::NoReplace,
                keep: false,
            }),
            |answer, _| answer == Err(Errno::EEXIST),
        ),
        (
            Box::new(move |parent| MetaOp::Unlink { parent, name: new("new"), keep: false }),
            |answer, ino| answer == Ok(MetaReply::Removed { ino: Some(ino), last: true }),
        ),
    ];
    for (op, check) in cases {
        let (d, at, numbers) = held_directory(&mut cluster);
        let op = op(d);
        let answer = answer_after_return(&mut cluster, (d, at), ("new", numbers[3]), op.clone());
        assert!(check(answer.clone(), numbers[3]), "{op:?}: {answer:?}");
        cluster.quiet();
    }
    assert_sound(&mut cluster);
}

#[test]
fn a_directory_that_another_client_has_is_not_empty_by_mistake() {
    let mut cluster = Cluster::new(3, 16, 8);
    let (d, at, numbers) = held_directory(&mut cluster);
    let entries = cluster.call(
        HOLDER,
        &Cred::ROOT,
        MetaOp::Unlink { parent: d, name: name("first"), keep: false },
    );
    assert!(entries.is_ok());
    // The name of the directory is on another executor than its entries.
    let listed = cluster.call(
        HOLDER,
        &Cred::ROOT,
        MetaOp::ReadDir { dir: ROOT, after: 0, limit: 1000, plus: false },
    );
    let Ok(MetaReply::Entries { entries, .. }) = listed else { panic!("no listing") };
    let own = entries.into_iter().find(|entry| entry.ino == d).expect("it has a name");
    let op = MetaOp::Rmdir { parent: ROOT, name: own.name, keep: false };
    let answer = answer_after_return(&mut cluster, (d, at), ("new", numbers[0]), op);
    assert_eq!(answer, Err(Errno::ENOTEMPTY));
    assert_sound(&mut cluster);
}

#[test]
fn the_holder_goes_on_and_numbers_are_used_once() {
    let mut cluster = Cluster::new(3, 16, 9);
    let (d, at, numbers) = held_directory(&mut cluster);
    let mut call = |op| cluster.call(HOLDER, &Cred::ROOT, op);
    assert_eq!(made(call(numbered(d, "a", numbers[0], b"abc"))), (numbers[0], 3, 0o644));
    assert_eq!(made(call(numbered(d, "b", numbers[1], b""))), (numbers[1], 0, 0o644));
    assert!(matches!(call(MetaOp::ReadInline { ino: numbers[0] }), Ok(MetaReply::Inline(_))));
    assert!(
        matches!(call(MetaOp::GetAttr { ino: d }), Ok(MetaReply::Attr(attr)) if attr.size == 3)
    );
    let shard = d.owner_shard();
    let other = ROOT.owner_shard();
    for (file, ino, bytes, errno) in [
        ("c", numbers[0], 1, Errno::ESTALE),
        ("a", numbers[2], 1, Errno::EEXIST),
        ("c", Ino::new(shard, shard, numbers[7].counter() + 1_000_000), 1, Errno::EINVAL),
        ("c", Ino::new(other, other, 2), 1, Errno::ESTALE),
        ("c", numbers[2], LIMIT as usize + 1, Errno::EXDEV),
    ] {
        let refused = call(numbered(d, file, ino, &vec![7; bytes]));
        assert_eq!(refused, Err(errno), "{file} {ino}");
    }
    // With more bytes than may lie beside an inode, a file has an object at once.
    let large = call(numbered_with(d, "large", numbers[2], FirstBytes::TooMany));
    let Ok(MetaReply::Created { attr, cap: Some(_), created: true }) = large else {
        panic!("not made: {large:?}");
    };
    assert_eq!((attr.ino, attr.size, attr.layout), (numbers[2], 0, LAYOUT));
    // The file is as old as the client says, but not older than the last change of its directory,
    // nor younger than the request.
    let MetaReply::Attr(before) = call(MetaOp::GetAttr { ino: d }).expect("it is there") else {
        panic!("attributes");
    };
    let mut born = |file, ino, time| {
        let mut op = numbered(d, file, ino, b"");
        let MetaOp::CreateNumbered { time: birth, .. } = &mut op else { unreachable!() };
        *birth = time;
        match call(op) {
            Ok(MetaReply::Created { attr, .. }) => Ok(attr.btime),
            Ok(other) => panic!("not made: {other:?}"),
            Err(errno) => Err(errno),
        }
    };
    assert_eq!(born("old", numbers[3], Timestamp::from_sec(0)), Ok(before.ctime));
    let now = born("young", numbers[4], Timestamp::from_sec(i64::MAX)).expect("made");
    assert!(now > before.ctime && now.sec < i64::MAX, "{now:?}");
    let none = Timestamp { sec: 0, nsec: 1_000_000_000 };
    assert_eq!(born("none", numbers[5], none), Err(Errno::EINVAL));
    // More numbers, and no number twice.
    let Ok(MetaReply::DirectoryHeld { first, .. }) = hold(&mut cluster, HOLDER, d) else {
        panic!("it has the directory");
    };
    assert!(first > numbers[7].counter());
    let found = create(&mut cluster, d, "plain");
    assert!(found.counter() >= first + 8 && !numbers.contains(&found));
    // A client that ends returns everything, and so does a daemon that starts.
    let meta = cluster.meta(at).expect("it is up");
    assert_eq!(meta.exclusive_holder(d), Some(client_id(HOLDER)));
    assert_eq!(meta.list_exclusive(shard.0, 1), [(d, client_id(HOLDER))]);
    meta.end_exclusive_of(client_id(OTHER));
    assert_eq!(meta.exclusive_holder(d), Some(client_id(HOLDER)));
    meta.end_exclusive_of(client_id(HOLDER));
    assert_eq!(meta.exclusive_holder(d), None);
    assert!(hold(&mut cluster, OTHER, d).is_ok());
    cluster.kill(at, 20);
    let again = cluster.call(HOLDER, &Cred::ROOT, MetaOp::GetAttr { ino: d });
    assert!(again.is_ok(), "{again:?}");
    assert_sound(&mut cluster);
}

#[test]
fn not_every_directory_is_held() {
    let mut cluster = Cluster::new(3, 16, 10);
    let plain = dir(&mut cluster, ROOT, Some(1));
    create(&mut cluster, plain, "first");
    assert_eq!(hold(&mut cluster, HOLDER, plain), Err(Errno::EOPNOTSUPP), "no policy");
    let (d, at, _) = held_directory(&mut cluster);
    cluster.meta(at).expect("it is up").end_exclusive_of(client_id(HOLDER));
    let user = Cred { uid: 7, gid: 7, groups: Vec::new() };
    let of_user = cluster.call(OTHER, &user, MetaOp::HoldDirectory { dir: d, count: 1 });
    assert_eq!(of_user, Err(Errno::EACCES));
    for count in [0, u32::MAX] {
        let op = MetaOp::HoldDirectory { dir: d, count };
        assert_eq!(cluster.call(OTHER, &Cred::ROOT, op), Err(Errno::EINVAL));
    }
    // Files get its group then, which depends on their user.
    let set = tatami_wire::SetAttr { mode: Some(0o2755), ..Default::default() };
    assert!(cluster.call(OTHER, &Cred::ROOT, MetaOp::SetAttr { ino: d, set }).is_ok());
    assert_eq!(hold(&mut cluster, HOLDER, d), Err(Errno::EOPNOTSUPP));
}
