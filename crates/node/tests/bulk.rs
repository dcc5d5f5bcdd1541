//! Batches of operations, as a client sends them: to one node and to several, while directories
//! split and daemons are restarted.

mod common;

use common::{PATIENCE, Running, Session, Volume, eventually, key};
use std::collections::BTreeSet;
use std::sync::Arc;
use tatami_client::tree::VolumeTree;
use tatami_client::{Client, ClientOptions, CreateItem, FilledFile, RemovalEvent, UsageSum, fsck};
use tatami_wire::batch::BatchOp;
use tatami_wire::meta::{InodeTemplate, MetaOp, MetaReply, RenameMode, XattrMode};
use tatami_wire::{Access, Cred, Errno, Ino, Layout, NodeId, READDIR_MAX, SetAttr};

const ROOT: Ino = Ino::ROOT;
const ME: Cred = Cred::ROOT;
const FILE: InodeTemplate = InodeTemplate::File(Layout::whole(NodeId(0)));

fn client(volume: &Volume) -> Arc<Client> {
    let mut options = ClientOptions::new(volume.unix(0));
    options.key = Some(key());
    options.patience = PATIENCE;
    Arc::new(Client::connect(options).expect("connects"))
}

fn start(nodes: u16) -> (Volume, Vec<Running>, Arc<Client>) {
    let volume = Volume::spread(nodes);
    let running = (0..nodes).map(|node| volume.start(node)).collect();
    let client = client(&volume);
    (volume, running, client)
}

fn make(client: &Client, parent: Ino, name: &str, node: InodeTemplate) -> Ino {
    let made = client.create(&ME, parent, name.as_bytes(), node, 0o755, 0, true, None);
    made.unwrap_or_else(|e| panic!("{name}: {e}")).attr.ino
}

fn named(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}{n}")).collect()
}

fn bytes(names: &[String]) -> Vec<&[u8]> {
    names.iter().map(String::as_bytes).collect()
}

fn make_many(client: &Client, dir: Ino, names: &[String], node: InodeTemplate) -> Vec<Ino> {
    let new = names.iter().map(|name| CreateItem {
        name: name.clone().into(),
        node: node.clone(),
        mode: 0o755,
    });
    let made = client.create_many(&ME, dir, new.collect(), 0, true, None);
    made.into_iter().map(|made| made.expect("made").attr.ino).collect()
}

fn listed(client: &Client, dir: Ino) -> BTreeSet<Vec<u8>> {
    let (mut all, mut after) = (BTreeSet::new(), 0);
    loop {
        let listing = client.read_dir(&ME, dir, after, READDIR_MAX, false).expect("a listing");
        after = listing.entries.last().map_or(after, |entry| entry.cookie);
        for entry in listing.entries {
            assert!(all.insert(entry.name.into_vec()), "each once");
        }
        if listing.end {
            return all;
        }
    }
}

fn is_sound(client: &Arc<Client>) {
    let report = fsck::check_volume(client, false, &mut |_, _| {}).expect("a check");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// Makes two clients change a directory with more than 1,024 entries, until it has split.
fn split_directory(clients: [&Client; 2], dir: Ino) {
    eventually("it is split", || {
        for client in clients {
            make(client, dir, "splits", FILE);
            client.unlink(&ME, dir, b"splits", false).expect("unlink");
        }
        partitions(clients[0], dir) == 16
    });
}

fn requests(volume: &Volume) -> u64 {
    let nodes = 0..volume.map.nodes.len() as u16;
    nodes
        .map(|node| Session::new(volume.unix(node), 0x70 + node as u8).status().meta_requests)
        .sum()
}

#[test]
fn many_names_are_made_found_and_removed() {
    for nodes in [1, 3] {
        let (volume, _nodes, client) = start(nodes);
        let dir = make(&client, ROOT, "dir", InodeTemplate::Dir);
        let names = named("f", 3000);
        let inos = make_many(&client, dir, &names, FILE);
        // A later reader sees them.
        let other = self::client(&volume);
        assert_eq!(listed(&other, dir).len(), names.len());
        let found = other.stat_many(&ME, dir, &bytes(&names));
        let found: Vec<_> = found.into_iter().map(|found| found.expect("found").ino).collect();
        assert_eq!(found, inos);
        let again = names.iter().map(|name| CreateItem {
            name: name.clone().into(),
            node: FILE,
            mode: 0o755,
        });
        let again: Vec<_> = again.collect();
        let refused = other.create_many(&ME, dir, again.clone(), 0, true, None);
        assert!(refused.iter().all(|made| *made == Err(Errno::EEXIST)));
        let opened =
            other.create_many(&ME, dir, again[..20].to_vec(), 0, false, Some(Access::WRITE));
        let mut commits = Vec::new();
        for (made, ino) in opened.into_iter().zip(&inos) {
            let made = made.expect("opened");
            assert_eq!((made.attr.ino, made.created), (*ino, false));
            assert_eq!(made.cap.map(|cap| cap.ino), Some(*ino));
            commits.push(BatchOp::Commit { ino: *ino, state: None, close: true });
        }
        assert!(other.run_batch(&ME, commits).iter().all(Result::is_ok));
        if nodes > 1 {
            split_directory([&client, &other], dir);
        }
        let some = [&names[..], &["nothing".to_owned()]].concat();
        let removed = client.remove_many(&ME, dir, &bytes(&some), false);
        assert_eq!(removed.last(), Some(&Err(Errno::ENOENT)));
        assert!(removed[..names.len()].iter().all(|removed| removed.is_ok_and(|r| r.last)));
        assert!(listed(&other, dir).is_empty());
        client.rmdir(&ME, ROOT, b"dir", false).expect("empty");
        is_sound(&client);
    }
}

fn partitions(client: &Client, dir: Ino) -> usize {
    match client.send_meta(&ME, MetaOp::ListPartitions { dir }) {
        Ok(MetaReply::Partitions(all)) => all.len(),
        other => panic!("no partitions: {other:?}"),
    }
}

/// Directories have owner shards on other nodes; files may have come from there.
#[test]
fn what_one_node_cannot_do_is_done_all_the_same() {
    let (_volume, _nodes, client) = start(3);
    let names = named("d", 60);
    let dirs = make_many(&client, ROOT, &names, InodeTemplate::Dir);
    // The first entry moves each of them to its owner shard.
    let operation = |dir: &Ino| BatchOp::Create {
        parent: *dir,
        name: b"first".to_vec().into(),
        node: FILE,
        mode: 0o644,
        umask: 0,
        exclusive: true,
        open: None,
    };
    let made = client.run_batch(&ME, dirs.iter().map(operation).collect());
    assert!(made.iter().all(|made| matches!(made, Ok(MetaReply::Created { created: true, .. }))));
    let found = client.stat_many(&ME, ROOT, &bytes(&names));
    for (dir, found) in dirs.iter().zip(found) {
        let attr = found.expect("found");
        assert_eq!((attr.ino, attr.size), (*dir, 1));
    }
    let removed = client.remove_many(&ME, ROOT, &bytes(&names), true);
    assert!(removed.iter().all(|removed| *removed == Err(Errno::ENOTEMPTY)));
    for (dir, n) in dirs.iter().zip(0..) {
        let to = format!("moved{n}");
        let (mode, name) = (RenameMode::Replace, b"first");
        client.rename(&ME, *dir, name, dirs[0], to.as_bytes(), mode, false).expect("rename");
    }
    let moved = named("moved", 60);
    assert!(client.stat_many(&ME, dirs[0], &bytes(&moved)).iter().all(Result::is_ok));
    let removed = client.remove_many(&ME, dirs[0], &bytes(&moved), false);
    assert!(removed.iter().all(|removed| removed.is_ok_and(|removed| removed.last)));
    let removed = client.remove_many(&ME, ROOT, &bytes(&names), true);
    assert!(removed.iter().all(Result::is_ok));
    is_sound(&client);
}

#[test]
fn many_names_cost_few_requests() {
    let (volume, _nodes, client) = start(3);
    let dir = make(&client, ROOT, "dir", InodeTemplate::Dir);
    make(&client, dir, "first", FILE);
    let mut round = 0;
    // One for each kind of operation: a request holds 1,024 of them. Housekeeping sends requests,
    // too, now and then.
    eventually("three requests", || {
        round += 1;
        let names = named(&format!("{round}-"), 900);
        let before = requests(&volume);
        make_many(&client, dir, &names, FILE);
        assert!(client.stat_many(&ME, dir, &bytes(&names)).iter().all(Result::is_ok));
        assert!(client.remove_many(&ME, dir, &bytes(&names), false).iter().all(Result::is_ok));
        requests(&volume) - before <= 3
    });
}

/// Several clients fill one directory, which splits, while daemons are restarted.
#[test]
fn daemons_may_die_while_many_names_are_made() {
    const CLIENTS: usize = 3;
    const NAMES: usize = 1500;
    let (volume, mut nodes, first) = start(3);
    let dir = make(&first, ROOT, "dir", InodeTemplate::Dir);
    std::thread::scope(|scope| {
        let makers: Vec<_> = (0..CLIENTS)
            .map(|c| {
                let client = client(&volume);
                scope.spawn(move || {
                    let names = named(&format!("{c}-"), NAMES);
                    for some in names.chunks(100) {
                        make_many(&client, dir, some, FILE);
                        let removed = client.remove_many(&ME, dir, &bytes(&some[..50]), false);
                        assert!(removed.iter().all(Result::is_ok), "each once: {removed:?}");
                    }
                })
            })
            .collect();
        for round in 0..3 {
            nodes.remove(0).stop();
            nodes.push(volume.start(round));
        }
        makers.into_iter().for_each(|maker| maker.join().expect("no panic"));
    });
    assert_eq!(listed(&first, dir).len(), CLIENTS * NAMES / 2);
    is_sound(&first);
}

/// Small files are made with their bytes while their directory splits, and daemons are restarted.
#[test]
fn daemons_may_die_while_files_are_made_with_their_bytes() {
    let (volume, mut nodes, client) = start(3);
    let dir = make(&client, ROOT, "dir", InodeTemplate::Dir);
    let attribute = b"user.tatami.inline";
    client.set_xattr(&ME, dir, attribute, b"4k", XattrMode::Set).expect("set");
    let content = |name: &str| format!("content of {name}").repeat(7).into_bytes();
    let fill = |client: &Client, names: &[String]| {
        let new = names.iter().map(|name| FilledFile {
            name: name.clone().into(),
            mode: 0o644,
            bytes: content(name),
            set: None,
        });
        client.create_filled_many(&ME, dir, new.collect(), 0)
    };
    let clients: Vec<_> = (0..3).map(|_| self::client(&volume)).collect();
    std::thread::scope(|scope| {
        let makers: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(number, client)| {
                scope.spawn(move || {
                    for round in 0..5 {
                        let names = named(&format!("c{number}-{round}-"), 400);
                        fill(client, &names).into_iter().for_each(|made| {
                            let attr = made.expect("made once");
                            assert!(attr.layout.is_inline());
                        });
                    }
                })
            })
            .collect();
        for round in 0..3 {
            nodes.remove(0).stop();
            nodes.push(volume.start(round));
        }
        makers.into_iter().for_each(|maker| maker.join().expect("no panic"));
    });
    let names: Vec<_> =
        (0..15).flat_map(|n| named(&format!("c{}-{}-", n % 3, n / 3), 400)).collect();
    let other = self::client(&volume);
    assert_eq!(listed(&other, dir).len(), names.len());
    let found = other.stat_many(&ME, dir, &bytes(&names)).into_iter();
    let found: Vec<_> = found.map(|attr| attr.map(|attr| (attr.ino, attr.size))).collect();
    let files: Vec<_> = found.into_iter().map(|file| file.expect("found")).collect();
    for (name, read) in names.iter().zip(other.read_inline_many(&ME, &files)) {
        assert_eq!(read.expect("read"), content(name));
    }
    let again = fill(&other, &names[..50]);
    assert!(again.into_iter().all(|made| made == Err(Errno::EEXIST)));
    is_sound(&client);
}

/// A tree with directories on all nodes, one of them split if there is another client, and links.
fn plant(client: &Client, other: Option<&Client>, top: Ino) -> UsageSum {
    let names = named("f", 2500);
    // A directory that one client makes does not split.
    let (before, after) = names.split_at(1100);
    make_many(client, top, before, FILE);
    other.into_iter().for_each(|other| split_directory([client, other], top));
    make_many(client, top, after, FILE);
    let dirs = make_many(client, top, &named("d", 20), InodeTemplate::Dir);
    for (n, dir) in dirs.iter().enumerate().skip(5) {
        make_many(client, *dir, &named("f", n), FILE);
        let below = make(client, *dir, "below", InodeTemplate::Dir);
        let ino = make(client, below, "one", FILE);
        client.link(&ME, ino, *dir, b"two").expect("link");
        client.link(&ME, ino, top, format!("three{n}").as_bytes()).expect("link");
    }
    UsageSum { files: 2500 + (5..20).sum::<u64>() + 15, dirs: 1 + 20 + 15, size: 0, blocks: 0 }
}

#[test]
fn a_tree_is_added_up_and_removed() {
    for nodes in [1, 3] {
        let (volume, _nodes, client) = start(nodes);
        let top = make(&client, ROOT, "top", InodeTemplate::Dir);
        let other = (nodes > 1).then(|| self::client(&volume));
        let planted = plant(&client, other.as_deref(), top);
        let tree = VolumeTree::new(client.clone(), ME);
        let usage = tree.sum_usage(b"/top", &mut |_| {}).expect("a sum");
        assert_eq!(usage.failed, []);
        let (paths, used): (Vec<_>, Vec<_>) = usage.paths.into_iter().unzip();
        assert_eq!(used.last(), Some(&planted));
        assert_eq!(paths.len() as u64, planted.dirs);
        let at = |path: &[u8]| paths.iter().position(|p| p == path).expect("it is told of");
        assert!(at(b"/top/d7/below") < at(b"/top/d7"), "what is below comes first");
        let before = requests(&volume);
        let mut removed = 0;
        let done = tree.remove_all(b"/top", false, &mut |step| match step {
            RemovalEvent::Many(more) => removed += more,
            RemovalEvent::Path(_) => panic!("nobody wants to know"),
            RemovalEvent::Failed(path, e) => panic!("{}: {e}", String::from_utf8_lossy(path)),
        });
        assert_eq!(done, Ok(()));
        // Each file of several names has three.
        assert_eq!(removed, planted.files + planted.dirs + 2 * 15);
        // One for each directory, and 13 more. Files that were made before a directory split are
        // removed one by one, which makes 1,400 on three nodes.
        let usual = if nodes == 1 { planted.dirs + 13 } else { 1400 };
        let cost = requests(&volume) - before;
        assert!(cost <= usual * 6 / 5, "{cost} requests on {nodes} nodes");
        assert_eq!(client.lookup(&ME, ROOT, b"top"), Err(Errno::ENOENT));
        eventually("nothing is left", || client.statfs().inodes == 1);
        is_sound(&client);
    }
}

#[test]
fn what_cannot_be_removed_is_told_and_the_rest_is_removed() {
    let (_volume, _nodes, client) = start(2);
    let user = Cred { uid: 7, gid: 7, groups: Vec::new() };
    let top = make(&client, ROOT, "top", InodeTemplate::Dir);
    let own = |ino: Ino, mode| {
        let set = SetAttr { uid: Some(7), mode: Some(mode), ..SetAttr::default() };
        client.setattr(&ME, ino, set).expect("chown");
    };
    let dirs = make_many(&client, top, &named("d", 4), InodeTemplate::Dir);
    for dir in &dirs {
        make_many(&client, *dir, &named("f", 10), FILE);
    }
    // One may be read and not written, one may be written and not read.
    own(top, 0o755);
    own(dirs[0], 0o755);
    own(dirs[2], 0o300);
    own(dirs[3], 0o755);
    let tree = VolumeTree::new(client.clone(), user);
    let mut failed = BTreeSet::new();
    let done = tree.remove_all(b"/top", true, &mut |step| {
        if let RemovalEvent::Failed(path, e) = step {
            failed.insert((String::from_utf8_lossy(path).into_owned(), e.0));
        }
    });
    assert_eq!(done, Err(Errno::EACCES));
    let files = (0..10).map(|n| (format!("/top/d1/f{n}"), Errno::EACCES.0));
    let expected: BTreeSet<_> = files.chain([("/top/d2".to_owned(), Errno::EACCES.0)]).collect();
    assert_eq!(failed, expected);
    let left = [b"d1".to_vec(), b"d2".to_vec()];
    assert_eq!(listed(&client, top), BTreeSet::from(left));
    assert_eq!((listed(&client, dirs[1]).len(), listed(&client, dirs[2]).len()), (10, 10));
    let usage = tree.sum_usage(b"/top", &mut |_| {}).expect("a sum");
    assert_eq!(usage.failed, [(b"/top/d2".to_vec(), Errno::EACCES)]);
    is_sound(&client);
}

/// One client fills the tree while another removes it: the tree is removed, or the directory that
/// stays is reported.
#[test]
fn a_tree_in_which_others_work_is_removed_or_told() {
    let (volume, _nodes, client) = start(2);
    let top = make(&client, ROOT, "top", InodeTemplate::Dir);
    let other = self::client(&volume);
    std::thread::scope(|scope| {
        let filler = scope.spawn(move || {
            for n in 0..2000 {
                let name = format!("f{n}");
                match other.create(&ME, top, name.as_bytes(), FILE, 0o644, 0, true, None) {
                    Ok(_) => {}
                    Err(Errno::ESTALE | Errno::ENOENT) => return,
                    Err(e) => panic!("{name}: {e}"),
                }
            }
        });
        let tree = VolumeTree::new(client.clone(), ME);
        let mut reported = BTreeSet::new();
        while let Err(e) = tree.remove_all(b"/top", false, &mut |step| {
            if let RemovalEvent::Failed(path, e) = step {
                reported.insert((path.to_vec(), e.0));
            }
        }) {
            assert_eq!(e, Errno::ENOTEMPTY);
            assert_eq!(reported, BTreeSet::from([(b"/top".to_vec(), Errno::ENOTEMPTY.0)]));
        }
        filler.join().expect("no panic");
    });
    assert_eq!(client.lookup(&ME, ROOT, b"top"), Err(Errno::ENOENT));
    is_sound(&client);
}
