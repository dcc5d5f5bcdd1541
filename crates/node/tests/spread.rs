//! A volume whose shards are distributed to several nodes, as a client uses it.

mod common;

use common::{PATIENCE, Running, Session, Volume, eventually, key};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tatami_client::tree::VolumeTree;
use tatami_client::{Client, ClientOptions, fsck};
use tatami_wire::meta::{InodeTemplate, MetaOp, MetaReply, RenameMode};
use tatami_wire::{
    Access, Attr, Cred, Errno, ExecutorId, Ino, InodeKind, Layout, NodeId, READDIR_MAX, SHARDS_MAX,
    SetAttr, ShardId, ShardMap,
};

const ROOT: Ino = Ino::ROOT;
const ME: Cred = Cred::ROOT;

fn client_with(volume: &Volume, patience: Duration) -> Arc<Client> {
    let mut options = ClientOptions::new(volume.unix(0));
    options.key = Some(key());
    options.patience = patience;
    Arc::new(Client::connect(options).expect("connects"))
}

fn client(volume: &Volume) -> Arc<Client> {
    client_with(volume, PATIENCE)
}

fn start(nodes: u16) -> (Volume, Vec<Running>, Arc<Client>) {
    let volume = Volume::spread(nodes);
    let running = (0..nodes).map(|node| volume.start(node)).collect();
    let client = client(&volume);
    (volume, running, client)
}

fn make(client: &Client, parent: Ino, name: &str, node: InodeTemplate) -> Attr {
    client
        .create(&ME, parent, name.as_bytes(), node, 0o755, 0, true, None)
        .unwrap_or_else(|e| panic!("{name}: {e}"))
        .attr
}

fn file(client: &Client, parent: Ino, name: &str) -> Attr {
    make(client, parent, name, InodeTemplate::File(Layout::whole(NodeId(0))))
}

/// Makes a directory of the root whose owner shard is on that node, with a file in it: so the
/// directory is no longer embedded.
fn dir_on(client: &Client, node: u16) -> (Ino, String) {
    for n in 0.. {
        let name = format!("on{node}-{n}");
        let ino = make(client, ROOT, &name, InodeTemplate::Dir).ino;
        if client.map().owner(ino.owner_shard()) == Some(ExecutorId::first_of_node(NodeId(node))) {
            file(client, ino, "first");
            return (ino, name);
        }
        client.rmdir(&ME, ROOT, name.as_bytes(), false).expect("rmdir");
    }
    unreachable!("there is no end of numbers")
}

fn rename(client: &Client, from: (Ino, &str), to: (Ino, &str)) -> Result<(), Errno> {
    let (old, new) = (from.1.as_bytes(), to.1.as_bytes());
    client.rename(&ME, from.0, old, to.0, new, RenameMode::Replace, false).map(drop)
}

/// Returns the numbers of name requests, and of messages between nodes, of all nodes since their
/// start.
fn counts(volume: &Volume) -> (u64, u64) {
    let statuses = (0..volume.map.nodes.len() as u16)
        .map(|node| Session::new(volume.unix(node), 0x70 + node as u8).status());
    statuses.fold((0, 0), |sum, s| (sum.0 + s.meta_requests, sum.1 + s.peer_messages))
}

#[test]
fn names_and_inodes_of_all_nodes_are_one_tree() {
    let (_volume, _nodes, client) = start(3);
    let dirs: Vec<_> = (0..3).map(|node| dir_on(&client, node).0).collect();
    for (i, from) in dirs.iter().enumerate() {
        for (j, to) in dirs.iter().enumerate() {
            let name = format!("{i}-{j}");
            let attr = file(&client, *from, &name);
            rename(&client, (*from, &name), (*to, "moved")).expect("rename");
            client.link(&ME, attr.ino, *from, name.as_bytes()).expect("link");
            let found = client.lookup(&ME, *to, b"moved").expect("lookup");
            assert_eq!((found.ino, found.nlink), (attr.ino, 2));
            // A directory moves with its content.
            let sub = make(&client, *from, "sub", InodeTemplate::Dir).ino;
            file(&client, sub, "below");
            if i != j {
                rename(&client, (*from, "sub"), (*to, "sub")).expect("rename of a directory");
            }
            assert_eq!(client.lookup(&ME, *to, b"sub").expect("lookup").ino, sub);
            assert_eq!(client.lookup(&ME, sub, b"..").expect("lookup").ino, *to);
            assert_eq!(client.rmdir(&ME, *to, b"sub", false), Err(Errno::ENOTEMPTY));
            client.unlink(&ME, sub, b"below", false).expect("unlink");
            client.rmdir(&ME, *to, b"sub", false).expect("rmdir");
            let removed = client.unlink(&ME, *to, b"moved", false).expect("unlink");
            assert_eq!((removed.ino, removed.last), (Some(attr.ino), false));
        }
    }
    // The root, the directories and their content.
    assert_eq!(client.statfs().inodes, 1 + 3 + 3 + 9);
    for dir in &dirs {
        let listed = client.read_dir(&ME, *dir, 0, READDIR_MAX, false).expect("a listing");
        assert!(listed.end);
        assert_eq!(listed.entries.len(), 4);
    }
    client.sync().expect("sync");
}

#[test]
fn a_listing_with_attributes_has_those_of_other_nodes() {
    let (_volume, _nodes, client) = start(2);
    let (dir, name) = dir_on(&client, 1);
    let attr = file(&client, ROOT, "f");
    rename(&client, (ROOT, "f"), (dir, "f")).expect("rename");
    let tree = VolumeTree::new(client.clone(), ME);
    for path in ["/", &format!("/{name}")] {
        let listed = tree.read_dir(path.as_bytes(), true).expect("a listing");
        assert!(listed.iter().all(|entry| entry.attr.as_ref().map(|a| a.ino) == Some(entry.ino)));
    }
    // Creating an existing file opens it, wherever it is.
    let node = InodeTemplate::File(Layout::whole(NodeId(0)));
    let open = Some(Access::BOTH);
    let found = client.create(&ME, dir, b"f", node, 0o644, 0, false, open).expect("opened");
    assert!(!found.created);
    assert_eq!((found.attr.ino, found.cap.map(|cap| cap.ino)), (attr.ino, Some(attr.ino)));
    client.commit(&ME, attr.ino, None, true).expect("closed");
    assert_eq!(client.lookup(&ME, dir, b"f").expect("lookup").kind, InodeKind::File);
}

/// An operation on a directory and its files is one request to one node, without the others.
#[test]
fn work_in_a_directory_is_one_request_each() {
    const FILES: u64 = 200;
    let (volume, _nodes, client) = start(4);
    for node in 0..4 {
        let (dir, _) = dir_on(&client, node);
        let mut round = 0;
        // Housekeeping sends requests, too, now and then.
        eventually("one request for each", || {
            round += 1;
            let name = |i: u64| format!("{round}-{i}");
            let mut cheap = true;
            let mut step = |each: &mut dyn FnMut(u64)| {
                let before = counts(&volume);
                (0..FILES).for_each(&mut *each);
                let after = counts(&volume);
                let cost = (after.0 - before.0, after.1 - before.1);
                assert!(cost.0 >= FILES, "{cost:?}");
                cheap &= cost.0 < FILES * 11 / 10 && cost.1 == 0;
            };
            step(&mut |i| {
                file(&client, dir, &name(i));
            });
            step(&mut |i| {
                client.lookup(&ME, dir, name(i).as_bytes()).expect("lookup");
            });
            step(&mut |i| {
                client.unlink(&ME, dir, name(i).as_bytes(), false).expect("unlink");
            });
            step(&mut |i| {
                make(&client, dir, &name(i), InodeTemplate::Dir);
            });
            step(&mut |i| {
                client.lookup(&ME, dir, name(i).as_bytes()).expect("lookup");
            });
            step(&mut |i| {
                client.rmdir(&ME, dir, name(i).as_bytes(), false).expect("rmdir");
            });
            cheap
        });
    }
}

/// Returns the number of entries of each partition of a directory.
fn partitions(client: &Client, dir: Ino) -> Vec<u64> {
    match client.send_meta(&ME, MetaOp::ListPartitions { dir }) {
        Ok(MetaReply::Partitions(all)) => all.iter().map(|part| part.entries).collect(),
        other => panic!("no partitions: {other:?}"),
    }
}

#[test]
fn a_large_directory_is_on_several_nodes() {
    const FILES: usize = 1300;
    let (volume, _nodes, client) = start(3);
    let (dir, name) = dir_on(&client, 1);
    let other = self::client(&volume);
    assert_eq!(other.lookup(&ME, dir, b"first").expect("lookup").kind, InodeKind::File);
    for n in 0..FILES {
        let client = if n % 2 == 0 { &client } else { &other };
        file(client, dir, &format!("file{n}"));
    }
    eventually("it is split", || partitions(&client, dir).len() == 16);
    assert_eq!(partitions(&client, dir).iter().sum::<u64>() as usize, FILES + 1);
    file(&client, dir, "one more");
    // A client that does not know of the split.
    let third = self::client(&volume);
    for client in [&client, &other, &third] {
        let all =
            VolumeTree::new(client.clone(), ME).read_dir(name.as_bytes(), true).expect("a listing");
        let names: BTreeSet<_> = all.iter().map(|entry| &entry.name).collect();
        assert_eq!((all.len(), names.len()), (FILES + 2, FILES + 2), "each once");
        assert!(all.iter().all(|entry| entry.attr.as_ref().map(|a| a.ino) == Some(entry.ino)));
        let attr = client.getattr(&ME, dir).expect("getattr");
        assert_eq!((attr.ino, attr.size, attr.nlink), (dir, FILES as u64 + 2, 2));
        for n in (0..FILES).step_by(7) {
            let found = client.lookup(&ME, dir, format!("file{n}").as_bytes());
            assert!(found.is_ok(), "file{n}: {found:?}");
        }
        assert_eq!(client.lookup(&ME, dir, b"nothing"), Err(Errno::ENOENT));
    }
    for n in 0..10 {
        let (from, to) = (format!("file{n}"), format!("moved{n}"));
        rename(&other, (dir, &from), (dir, &to)).expect("rename");
        assert_eq!(client.lookup(&ME, dir, from.as_bytes()), Err(Errno::ENOENT));
        assert_eq!(client.lookup(&ME, dir, to.as_bytes()).expect("lookup").nlink, 1);
    }
    let report = fsck::check_volume(&client, false, &mut |_, _| {}).expect("a check");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    let user = Cred { uid: 7, gid: 7, groups: Vec::new() };
    let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    client.setattr(&ME, dir, set).expect("chmod");
    for n in 10..60 {
        let found = third.lookup(&user, dir, format!("file{n}").as_bytes());
        assert_eq!(found, Err(Errno::EACCES));
    }
    assert_eq!(third.rmdir(&ME, ROOT, name.as_bytes(), false), Err(Errno::ENOTEMPTY));
    let all =
        VolumeTree::new(client.clone(), ME).read_dir(name.as_bytes(), false).expect("a listing");
    for (n, entry) in all.iter().enumerate() {
        let client = [&client, &other, &third][n % 3];
        client.unlink(&ME, dir, &entry.name, false).expect("unlink");
    }
    client.rmdir(&ME, ROOT, name.as_bytes(), false).expect("rmdir");
    assert_eq!(other.lookup(&ME, dir, b"file3"), Err(Errno::ESTALE));
    eventually("nothing is left", || client.statfs().inodes == 1);
    let report = fsck::check_volume(&client, false, &mut |_, _| {}).expect("a check");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// A node corrects a client with an old map, and the client then asks the right node.
#[test]
fn an_old_map_is_corrected() {
    let mut volume = Volume::spread(2);
    let spread = volume.map.shards.clone();
    volume.map.shards = vec![ExecutorId::first_of_node(NodeId(0)); SHARDS_MAX];
    let nodes: Vec<_> = (0..2).map(|node| volume.start(node)).collect();
    let client = client(&volume);
    file(&client, ROOT, "f");
    assert_eq!(client.map().epoch, 1);
    drop(nodes);
    // The shards that move are still empty.
    volume.map.moves = spread.iter().map(|at| u32::from(at.node.0)).collect();
    (volume.map.shards, volume.map.epoch) = (spread, 2);
    let _nodes: Vec<_> = (0..2).map(|node| volume.start(node)).collect();
    assert!(client.lookup(&ME, ROOT, b"f").is_ok());
    for n in 0.. {
        let dir = make(&client, ROOT, &format!("d{n}"), InodeTemplate::Dir).ino;
        file(&client, dir, "below");
        assert_eq!(client.getattr(&ME, dir).expect("stat").size, 1);
        if volume.map.owner(dir.owner_shard()) == Some(ExecutorId::first_of_node(NodeId(1))) {
            break;
        }
    }
    let map = client.map();
    assert!(map.epoch > 1 && map.shards == volume.map.shards && map.moves == volume.map.moves);
}

/// While a node is away, operations that do not concern it go on; the others wait and then succeed.
#[test]
fn a_node_that_is_away_holds_up_only_what_concerns_it() {
    let (volume, mut nodes, client) = start(3);
    let dirs: Vec<_> = (0..3).map(|node| dir_on(&client, node).0).collect();
    nodes.pop().expect("three").stop();
    for i in 0..20 {
        let name = format!("f{i}");
        file(&client, dirs[0], &name);
        rename(&client, (dirs[0], &name), (dirs[1], &name)).expect("rename");
    }
    let hasty = client_with(&volume, Duration::from_secs(1));
    assert_eq!(rename(&hasty, (dirs[1], "f0"), (dirs[2], "f0")), Err(Errno::EHOSTDOWN));
    assert_eq!(hasty.lookup(&ME, dirs[2], b"first"), Err(Errno::EHOSTDOWN));
    let moving = std::thread::spawn({
        let (client, dirs) = (client.clone(), dirs.clone());
        move || rename(&client, (dirs[1], "f1"), (dirs[2], "f1"))
    });
    nodes.push(volume.start(2));
    assert_eq!(moving.join().expect("no panic"), Ok(()));
    // The one that was given up is done or not, but not half.
    let found = |dir| client.lookup(&ME, dir, b"f0").map(|attr| attr.ino);
    eventually("the file is in one place", || found(dirs[1]).is_ok() != found(dirs[2]).is_ok());
}

/// Several clients move the same files around, through all nodes at once, while nodes are
/// restarted.
#[test]
fn many_clients_move_the_same_files() {
    const FILES: usize = 6;
    const CLIENTS: usize = 4;
    const MOVES: usize = 60;
    let (volume, mut nodes, first) = start(3);
    let dirs: Vec<_> = (0..3).map(|node| dir_on(&first, node).0).collect();
    let name = |i: usize| format!("f{i}");
    let inos: BTreeSet<_> = (0..FILES).map(|i| file(&first, dirs[i % 3], &name(i)).ino).collect();
    let clients: Vec<_> = (0..CLIENTS).map(|_| client(&volume)).collect();
    std::thread::scope(|scope| {
        let movers: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(c, client)| {
                let dirs = &dirs;
                scope.spawn(move || {
                    let mut moved = 0;
                    for step in 0..MOVES {
                        let (i, from, to) = ((c + step) % FILES, step % 3, (step / 3 + c) % 3);
                        match rename(client, (dirs[from], &name(i)), (dirs[to], &name(i))) {
                            Ok(()) => moved += 1,
                            Err(Errno::ENOENT) => {}
                            Err(e) => panic!("a move fails: {e}"),
                        }
                    }
                    moved
                })
            })
            .collect();
        for round in 0..3 {
            nodes.remove(0).stop();
            nodes.push(volume.start(round));
        }
        let moved: usize = movers.into_iter().map(|mover| mover.join().expect("no panic")).sum();
        assert!(moved > 0);
    });
    let mut left = BTreeSet::new();
    for dir in &dirs {
        for entry in first.read_dir(&ME, *dir, 0, READDIR_MAX, false).expect("a listing").entries {
            assert_eq!(first.getattr(&ME, entry.ino).expect("stat").nlink, 1);
            assert!(left.insert(entry.ino), "a file is in two places");
        }
    }
    assert!(left.is_superset(&inos), "files are lost");
    assert_eq!(left.len(), FILES + 3);
}

#[test]
fn shards_are_where_the_map_says() {
    let (volume, _nodes, client) = start(2);
    let all = [0, 1].map(|node| ExecutorId::first_of_node(NodeId(node)));
    let map = ShardMap::with_even_blocks(1, SHARDS_MAX, &all).expect("a power of two");
    let shards = |node| Session::new(volume.unix(node), 1).status().shards;
    assert_eq!((shards(0), shards(1)), (2048, 2048));
    let (dir, _) = dir_on(&client, 1);
    assert_eq!(map.owner(dir.owner_shard()), Some(ExecutorId::first_of_node(NodeId(1))));
    assert_eq!(map.owner(ShardId(0)), Some(ExecutorId::first_of_node(NodeId(0))));
}
