//! Real mounts of a volume of two nodes, both in this process. They need root and `/dev/fuse`.
//! Without these, the tests are skipped.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use tatami_client::{Client, ClientOptions, Endpoint};
use tatami_mount::{Mount, MountError, MountOptions, Passthrough, UnmountError};
use tatami_node::{NodeDaemon, NodeOptions, StopHandle};
use tatami_skip::skip_test;
use tatami_wire::admin::{ClusterMap, NodeInfo, NodeState};
use tatami_wire::{ExecutorId, NodeId, VolumeId, VolumeKey};

fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        skip_test("mounting takes root and /dev/fuse");
    }
    can
}

/// Two nodes, with the means to end them.
struct Volume {
    dir: tempfile::TempDir,
    map: ClusterMap,
    nodes: Vec<(StopHandle, Option<JoinHandle<()>>)>,
}

fn key() -> VolumeKey {
    VolumeKey::new([3; 32])
}

impl Volume {
    fn start() -> Volume {
        let dir = tempfile::tempdir().expect("a directory");
        let node = |i: u16| {
            // A port that was free a moment ago. The kernel hands ports out in rotation.
            let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
            NodeInfo {
                id: NodeId(i),
                state: NodeState::Serving,
                name: format!("node{i}"),
                address: free.local_addr().expect("it is bound").to_string(),
                moved: 0,
                socket: dir.path().join(format!("{i}/socket")).display().to_string(),
            }
        };
        let map = ClusterMap {
            volume: VolumeId([1; 16]),
            name: "test".into(),
            epoch: 1,
            nodes: vec![node(0), node(1)],
            shards: vec![ExecutorId::first_of_node(NodeId(0))],
            moves: vec![0],
        };
        let nodes = map.nodes.iter().map(|n| {
            let place = dir.path().join(n.id.to_string());
            fs::create_dir_all(&place).expect("a directory");
            let options = NodeOptions::new(place, map.clone(), n.id, key());
            let node = NodeDaemon::start(options).unwrap_or_else(|e| panic!("{e}"));
            let stop = node.stop_handle();
            let thread = std::thread::spawn(move || node.run().unwrap_or_else(|e| panic!("{e}")));
            (stop, Some(thread))
        });
        let nodes = nodes.collect();
        Volume { dir, map, nodes }
    }

    fn mountpoint(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::create_dir_all(&path).expect("a directory");
        path
    }

    fn client(&self, node: usize) -> Arc<Client> {
        let socket = PathBuf::from(&self.map.nodes[node].socket);
        let options =
            ClientOptions { key: Some(key()), ..ClientOptions::new(Endpoint::Unix(socket)) };
        Arc::new(Client::connect(options).unwrap_or_else(|e| panic!("{e}")))
    }

    fn mount(&self, node: usize, passthrough: Passthrough) -> (Mount, PathBuf) {
        let path = self.mountpoint(&format!("mount{node}"));
        let options = MountOptions { passthrough, ..MountOptions::new(&path) };
        let mount = Mount::start(self.client(node), &options).unwrap_or_else(|e| panic!("{e}"));
        (mount, path)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        for (stop, thread) in &mut self.nodes {
            stop.stop();
            if let Some(thread) = thread.take() {
                thread.join().expect("the node ends well");
            }
        }
    }
}

#[test]
fn names_bytes_and_sizes_are_the_same_on_two_mounts() {
    if !can_mount() {
        return;
    }
    for passthrough in [Passthrough::Auto, Passthrough::Off] {
        let volume = Volume::start();
        let (first, a) = volume.mount(0, passthrough);
        let (second, b) = volume.mount(1, passthrough);
        // The two locations of files that are created here: on the local and on the remote node.
        for (here, there) in [(&a, &b), (&b, &a)] {
            fs::create_dir(here.join("dir")).expect("mkdir");
            fs::write(here.join("dir/file"), b"some bytes").expect("write");
            assert_eq!(fs::read(there.join("dir/file")).expect("read"), b"some bytes");
            let file = OpenOptions::new().write(true).open(there.join("dir/file")).expect("open");
            file.write_all_at(b"more", 100).expect("write");
            assert_eq!(file.metadata().expect("fstat").len(), 104);
            drop(file);
            assert_eq!(fs::metadata(here.join("dir/file")).expect("stat").len(), 104);
            let all = fs::read(here.join("dir/file")).expect("read");
            assert_eq!((&all[..10], &all[100..]), (&b"some bytes"[..], &b"more"[..]));
            fs::remove_dir_all(there.join("dir")).expect("rm -r");
            assert!(!here.join("dir").exists());
        }
        first.stop().expect("unmount");
        second.stop().expect("unmount");
    }
}

#[test]
fn a_file_that_is_removed_while_open_stays_until_it_is_closed() {
    if !can_mount() {
        return;
    }
    let volume = Volume::start();
    let (mount, path) = volume.mount(1, Passthrough::Auto);
    let name = path.join("file");
    fs::write(&name, b"old").expect("write");
    let mut file = OpenOptions::new().read(true).write(true).open(&name).expect("open");
    fs::write(path.join("new"), b"new").expect("write");
    fs::rename(path.join("new"), &name).expect("rename");
    file.write_all_at(b"still here", 0).expect("write");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    assert_eq!(text, "still here");
    let stat = file.metadata().expect("fstat");
    assert_eq!((stat.nlink(), stat.len()), (0, 10));
    assert_eq!(fs::read(&name).expect("read"), b"new");
    drop(file);
    mount.stop().expect("unmount");
}

#[test]
fn a_mount_in_use_is_not_unmounted() {
    if !can_mount() {
        return;
    }
    let volume = Volume::start();
    let (mount, path) = volume.mount(0, Passthrough::Auto);
    let file = File::create(path.join("file")).expect("create");
    assert!(matches!(mount.stop(), Err(UnmountError::Busy { .. })));
    (&file).write_all(b"it goes on").expect("write");
    let again = Mount::start(volume.client(0), &MountOptions::new(&path));
    assert!(matches!(again.err(), Some(MountError::AlreadyMounted { .. })));
    drop(file);
    mount.stop().expect("unmount");
    assert_eq!(fs::read_dir(&path).expect("the directory below").count(), 0);
}

#[test]
fn what_is_open_when_a_mount_ends_is_told() {
    if !can_mount() {
        return;
    }
    let volume = Volume::start();
    let (first, a) = volume.mount(0, Passthrough::Auto);
    let (second, b) = volume.mount(1, Passthrough::Auto);
    let file = File::create(a.join("file")).expect("create");
    (&file).write_all(b"not closed").expect("write");
    // Dropping a mount unmounts it although it is in use.
    drop(first);
    assert_eq!(fs::read(b.join("file")).expect("read"), b"not closed");
    drop(file);
    second.stop().expect("unmount");
}
