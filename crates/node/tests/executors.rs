//! Nodes with several executors, as clients use them.

mod common;

use common::{Running, Session, Volume, eventually, key};
use std::collections::BTreeMap;
use std::sync::Arc;
use tatami_client::{Client, ClientOptions, fsck};
use tatami_wire::admin::AdminCall;
use tatami_wire::meta::{InodeTemplate, RenameMode};
use tatami_wire::{Cred, Errno, ExecutorId, Ino, Layout, NodeId, SHARDS_MAX, ShardId};

const ROOT: Ino = Ino::ROOT;
const ME: Cred = Cred::ROOT;

fn client(volume: &Volume) -> Arc<Client> {
    let mut options = ClientOptions::new(volume.unix(0));
    options.key = Some(key());
    Arc::new(Client::connect(options).expect("connects"))
}

fn executor(node: u16, index: u8) -> ExecutorId {
    ExecutorId { node: NodeId(node), index }
}

fn start(volume: &Volume) -> Vec<Running> {
    (0..volume.map.nodes.len() as u16).map(|node| volume.start(node)).collect()
}

fn dir(client: &Client, name: &str) -> Ino {
    client
        .create(&ME, ROOT, name.as_bytes(), InodeTemplate::Dir, 0o755, 0, true, None)
        .expect(name)
        .attr
        .ino
}

fn file(client: &Client, parent: Ino, name: &str) -> Ino {
    let new = InodeTemplate::File(Layout::whole(NodeId(0)));
    client.create(&ME, parent, name.as_bytes(), new, 0o644, 0, true, None).expect(name).attr.ino
}

fn rename(client: &Client, from: (Ino, &str), to: (Ino, &str)) -> Result<(), Errno> {
    let names = (from.1.as_bytes(), to.1.as_bytes());
    client.rename(&ME, from.0, names.0, to.0, names.1, RenameMode::Replace, false).map(drop)
}

/// A directory with its owner shard on each executor, and a file in each.
fn dirs(client: &Client) -> BTreeMap<ExecutorId, Ino> {
    let map = client.map();
    let all = map.first_shards().len();
    let mut found = BTreeMap::new();
    for n in 0.. {
        let ino = dir(client, &format!("d{n}"));
        let home = map.owner(ino.owner_shard()).expect("served");
        if found.len() < all && !found.contains_key(&home) {
            file(client, ino, "first");
            found.insert(home, ino);
        }
        if found.len() == all {
            break;
        }
    }
    found
}

fn assert_sound(client: &Arc<Client>) {
    let report = fsck::check_volume(client, false, &mut |_, _| {}).expect("a check");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// Orders a migration, and waits until the node reports its end.
fn give(client: &Client, (first, count): (u16, u16), to: ExecutorId) {
    let from = client.map().owner(ShardId(first)).expect("served").node;
    let order = AdminCall::MigrateShards { first, count, to };
    eventually("the shards are there", || {
        let _ = client.send_admin(from, order.clone());
        client.refresh_map();
        (first..first + count).all(|shard| client.map().owner(ShardId(shard)) == Some(to))
    });
}

#[test]
fn operations_over_all_executors_of_all_nodes() {
    let volume = Volume::spread_on(2, 3);
    let mut nodes = start(&volume);
    let status = Session::new(volume.unix(0), 1).status();
    assert_eq!((status.executors, status.shards), (3, SHARDS_MAX as u32 / 2));
    let client = client(&volume);
    let dirs = dirs(&client);
    assert_eq!(dirs.len(), 6);
    let cycle: Vec<_> = dirs.values().copied().collect();
    for (n, from) in cycle.iter().enumerate() {
        let (name, to) = (format!("f{n}"), cycle[(n + 1) % cycle.len()]);
        let ino = file(&client, *from, &name);
        client.link(&ME, ino, to, format!("l{n}").as_bytes()).expect("a link");
        assert_eq!(rename(&client, (*from, &name), (to, &name)), Ok(()));
        assert_eq!(client.getattr(&ME, ino).expect("stat").nlink, 2);
    }
    client.sync().expect("a sync");
    assert_sound(&client);
    // Each has a store of its own, which is found again.
    nodes.remove(0).stop();
    nodes.insert(0, volume.start(0));
    for (n, _) in cycle.iter().enumerate() {
        let to = cycle[(n + 1) % cycle.len()];
        assert!(client.lookup(&ME, to, format!("f{n}").as_bytes()).is_ok());
    }
    assert_sound(&client);
}

#[test]
fn shards_move_to_an_executor_that_did_not_run() {
    let volume = Volume::spread_on(2, 1);
    let mut nodes = start(&volume);
    let client = client(&volume);
    for n in 0..200 {
        file(&client, ROOT, &format!("f{n}"));
    }
    let dirs = dirs(&client);
    let status = |node| Session::new(volume.unix(node), 1).status();
    assert_eq!((status(0).executors, status(1).executors), (1, 1));
    give(&client, (0, 1024), executor(0, 2));
    give(&client, (2048, 1024), executor(1, 1));
    give(&client, (3072, 512), executor(0, 1));
    assert_eq!((status(0).executors, status(1).executors), (3, 2));
    for n in 0..200 {
        assert!(client.lookup(&ME, ROOT, format!("f{n}").as_bytes()).is_ok());
    }
    for dir in dirs.values() {
        assert_eq!(rename(&client, (*dir, "first"), (*dir, "second")), Ok(()));
        assert_eq!(rename(&client, (*dir, "second"), (ROOT, "third")), Ok(()));
    }
    assert_sound(&client);
    // They run from the beginning now, although the map with which the node starts does not have
    // them.
    nodes.remove(0).stop();
    nodes.insert(0, volume.start(0));
    assert_eq!(status(0).executors, 3);
    assert!(client.lookup(&ME, ROOT, b"f7").is_ok());
    // And back: executors that are left without shards stay, and answer.
    give(&client, (0, 1024), executor(0, 0));
    give(&client, (3072, 512), executor(1, 0));
    assert!(client.lookup(&ME, ROOT, b"f7").is_ok());
    assert_eq!(status(0).executors, 3);
    assert_sound(&client);
}
