//! Released formats: a volume and a container as each released format wrote them, opened by this
//! version.
//!
//! `tests/fixtures/format-N` has `volume.tar.xz` and `expected.txt`, the description of the tree.
//! The volume has four nodes with two executors each. Two daemons and all mounts were killed, the
//! other two daemons were stopped. This command writes the fixture of the next format, which is the
//! last one in [`RELEASED`]:
//!
//! ```text
//! cargo test -p tatami-tests --test e2e -- --ignored --exact format::write_the_fixture
//! ```
//!
//! A fixture of a released format never changes.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tatami_cluster::VolumeFile;
use tatami_layout::{Shape, View};
use tatami_tests::absent::directory_of_each;
use tatami_tests::command::{ask, program, run, shell, sources, tatami_bin};
use tatami_tests::files::{create, get, open, pick_mount, put};
use tatami_tests::job::{Job, NODES, SIZE, tiled_file};
use tatami_tests::model::pattern;
use tatami_tests::process::{self, pause};
use tatami_tests::{Cluster, Setup};
use tatami_tiled::{
    Buffer, CollectiveOpen, Environment, Flags, Hints, RankFile, begin_open, machine,
};

/// The released formats, and the one of the next release.
const RELEASED: [u32; 1] = [1];
/// Names in the directory that has split.
const NAMES: usize = 1500;
/// Bytes of the file that grew until its mount died.
const GROWN: usize = 40_000;
/// Ranks of the jobs that wrote the container, and bytes of a rank in each.
const RANKS: u32 = 2;
const PART: u64 = 4000;
/// Longest wait until the daemons have recovered the files of dead writers.
const PATIENCE: Duration = Duration::from_secs(300);
/// Two executors on each node, and a short lease.
const CONFIG: &str = "[volume]\nexecutors = 2\n[node]\nlease_sec = 5\n";

fn fixture_dir(format: u32) -> PathBuf {
    sources().join(format!("fixtures/format-{format}"))
}

/// Describes the tree of a mount: names, kinds, modes, owners, links, sizes, times, attributes and
/// contents. Of the large directory it has the number of names. The times of files that a mount
/// wrote at its death are left out, and the bytes of the dead job: they are recovered later.
fn describe_tree(mount: &Path) -> String {
    let script = r#"
        find . -mindepth 1 -path ./large -prune -o -printf '%P %y %m %U:%G %n %l\n' | LC_ALL=C sort
        find . -type f -not -path './large/*' -not -name dead -printf '%P %s bytes\n' | LC_ALL=C sort
        TZ=UTC find names -printf '%P %TF %TT\n' | LC_ALL=C sort
        find . -type f -not -path './large/*' -not -name dead -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
        getfattr -d -m user. names/file
        getfacl -n -p names/file names/dir
        echo "large: $(ls large | wc -l) names, $(ls large | sha256sum)"
        stat -c '%n %t,%T' names/device
    "#;
    run(&mut shell(mount, script)).out
}

fn assert_same(found: &str, expected: &str) {
    let missing: Vec<_> = expected.lines().filter(|line| !found.contains(line)).collect();
    assert!(found == expected, "missing: {missing:#?}\nfound:\n{found}");
}

/// A tree with inodes and names of every kind, and shared files.
fn make_tree(cluster: &Cluster) {
    let root = cluster.mount(0);
    let at = root.join("names");
    fs::create_dir(&at).expect("mkdir");
    put(at.join("file"), pattern(1, 0, 20_000));
    put(at.join("empty"), "");
    create(at.join("sparse")).set_len(5_000_000).expect("ftruncate");
    fs::hard_link(at.join("file"), at.join("link")).expect("link");
    symlink("../names/file", at.join("symlink")).expect("symlink");
    fs::create_dir(at.join("dir")).expect("mkdir");
    put(at.join("dir").join("n".repeat(255)), "a long name");
    run(&mut shell(&at, "mkfifo -m 640 fifo; mknod device c 1 3"));
    run(&mut shell(
        &at,
        "setfattr -n user.note -v 'an attribute' file; setfacl -m u:1234:r,g:56:rw file; \
         setfacl -d -m u:1234:rwx dir",
    ));
    fs::set_permissions(at.join("empty"), fs::Permissions::from_mode(0o4751)).expect("chmod");
    chown(at.join("link"), Some(1234), Some(56)).expect("chown");
    for name in directory_of_each(cluster, NODES) {
        put(root.join(&name).join("file"), name.as_os_str().as_encoded_bytes());
        // Another executor owns the other directory: the move is a transaction.
        fs::rename(root.join(&name).join("first"), at.join(&name)).expect("rename");
    }
    fs::create_dir(root.join("large")).expect("mkdir");
    let other = cluster.mount(1);
    for name in 0..NAMES {
        let mount = pick_mount([&root, &other], name, NAMES);
        let long = mount.join("names/dir").join("n".repeat(255));
        fs::hard_link(long, mount.join(format!("large/{name}"))).expect("link");
    }
    tiled_file(cluster, "tiled", &pattern(2, 0, SIZE));
    cluster.tatami("relayout", &["--to", "whole", ":/tiled"]);
    tiled_file(cluster, "published", &pattern(3, 0, SIZE));
    run(&mut shell(&at, "touch -d '2001-02-03 04:05:06.789 UTC' -h * dir/*"));
    run(&mut shell(&at, "touch -d '2001-02-03 04:05:06.789 UTC' dir ."));
}

/// A container with a job that ended and one that died.
fn make_container(path: &Path) {
    let flags = Flags::RDWR | Flags::CREATE;
    let hints = Hints::new([("tatami_container", "true")]);
    for (job, dies) in [(0, false), (1, true)] {
        let token = begin_open(&CollectiveOpen {
            path,
            flags,
            mode: 0o640,
            hints: &hints,
            environment: &Environment::default(),
            ranks: RANKS,
            machine: machine::machine_id(),
            nodes: &[],
        })
        .expect("begun");
        let byte = Shape::bytes(1).expect("shape");
        let ranks = (0..RANKS).map(|rank| {
            let file = RankFile::open(path, flags, &hints, rank, token.clone()).expect("open");
            let block = Shape::bytes(10).expect("shape");
            let shape = Shape::resized(0, 10 * i64::from(RANKS), &block).expect("shape");
            let start = job * PART * u64::from(RANKS) + 10 * u64::from(rank);
            file.set_view(View::new(start, 1, shape).expect("view"));
            let mut data = container_part(job, rank);
            file.write(0, &Buffer::from_slice(&mut data, &byte)).expect("written");
            file
        });
        let ranks: Vec<_> = ranks.collect();
        if !dies {
            let sealed: Vec<_> =
                ranks.iter().map(|file| file.seal_piece(false).expect("sealed")).collect();
            let sealed: Vec<&[u8]> = sealed.iter().map(Vec::as_slice).collect();
            ranks[0].publish_pieces(&sealed, true, true).expect("published");
        }
    }
}

/// The bytes of the container.
fn container_bytes() -> Vec<u8> {
    pattern(7, 0, 2 * PART as usize * RANKS as usize)
}

/// The bytes that a rank writes in one of the jobs: every second ten of a half.
fn container_part(job: u64, rank: u32) -> Vec<u8> {
    let half = PART as usize * RANKS as usize;
    let bytes = container_bytes();
    let tens = bytes[job as usize * half..][..half].chunks(10);
    tens.skip(rank as usize).step_by(RANKS as usize).flatten().copied().collect()
}

#[test]
#[ignore = "writes the fixture of a new format"]
fn write_the_fixture() {
    let place = fixture_dir(RELEASED[RELEASED.len() - 1]);
    let cluster = Setup::nodes(NODES).config(CONFIG).start();
    make_tree(&cluster);
    make_container(&cluster.dir().join("container"));
    let root = cluster.mount(1);
    let job = Job::create(&cluster, "dead");
    job.write_unpublished(&pattern(4, 0, SIZE));
    let unlinked = create(root.join("unlinked"));
    put(root.join("unlinked"), pattern(5, 0, 10_000));
    fs::remove_file(root.join("unlinked")).expect("unlink");
    let grown = create(root.join("grown"));
    std::io::Write::write_all(&mut &grown, &pattern(6, 0, GROWN)).expect("written");
    // Everything is in a log or an object when the daemons die.
    run(&mut program("sync"));
    let expected = describe_tree(&root);
    for node in 0..2 {
        cluster.kill_node(node);
    }
    for node in 0..NODES {
        cluster.kill_mount(node);
    }
    drop((unlinked, grown));
    run(cluster.command("down").arg("--force"));
    drop(job);
    // Holes take no space in the archive. Sockets and logs of the daemons are no formats.
    fs::create_dir_all(&place).expect("mkdir");
    let script = r#"
        find . -type f -size +1M -exec fallocate -d {} \;
        tar -S -c --sort=name --owner=0 --group=0 --numeric-owner \
            --exclude=./mnt --exclude=socket --exclude='*/log' --exclude=./run . | xz -9 > "$0"
    "#;
    run(shell(cluster.dir(), script).arg(place.join("volume.tar.xz")));
    put(place.join("expected.txt"), expected);
    cluster.up();
    cluster.finish();
}

/// Unpacks a fixture in the folder of a cluster. The volume file names the folder in which the
/// volume was made, and ports that may be in use on this machine: the nodes get others.
fn unpack(format: u32, dir: &Path) {
    let archive = fixture_dir(format).join("volume.tar.xz");
    run(program("tar -xJpf").arg(archive).arg("-C").arg(dir));
    let path = dir.join("volume.toml");
    let mut volume = VolumeFile::load(&path).expect("a volume of the format");
    let sockets: Vec<_> = volume
        .nodes
        .iter()
        .map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("a free port"))
        .collect();
    for (node, socket) in volume.nodes.iter_mut().zip(&sockets) {
        node.address = socket.local_addr().expect("an address").to_string();
        node.dir = dir.join(&node.name);
        node.socket = node.dir.join("socket");
    }
    volume.save(&path).expect("saved");
}

#[test]
fn each_released_format_is_read() {
    for format in RELEASED {
        let cluster = Setup::nodes(NODES).prepare(move |dir| unpack(format, dir)).start();
        let expected = String::from_utf8(get(fixture_dir(format).join("expected.txt")));
        let expected = expected.expect("text");
        // The files of dead writers have their bytes once the leases of the writers are over.
        let start = Instant::now();
        for node in 0..NODES {
            while describe_tree(&cluster.mount(node)) != expected && start.elapsed() < PATIENCE {
                pause();
            }
            assert_same(&describe_tree(&cluster.mount(node)), &expected);
        }
        let root = cluster.mount(1);
        let size = || fs::metadata(root.join("dead")).expect("stat").size();
        while size() < SIZE as u64 && start.elapsed() < PATIENCE {
            pause();
        }
        assert!(get(root.join("dead")) == pattern(4, 0, SIZE));
        assert!(get(root.join("grown")) == pattern(6, 0, GROWN));
        cluster.fsck();

        let container = cluster.dir().join("container");
        let tatami = |words: &[&str]| {
            let said = ask(std::process::Command::new(tatami_bin()).args(words).arg(&container));
            assert_eq!(said.code, Some(0), "{words:?}: {said:?}");
            said.out
        };
        let json: serde_json::Value =
            serde_json::from_str(&tatami(&["recover", "--json"])).expect("JSON");
        let dead = &json["files"][0]["recovered"][0];
        assert_eq!((dead["writers"].as_u64(), dead["lost"].as_str()), (Some(2), Some("0")));
        tatami(&["relayout"]);
        assert!(get(&container) == container_bytes());

        // The volume goes on, with what this version adds to it.
        put(root.join("new"), "new");
        open(root.join("grown")).set_len(10).expect("ftruncate");
        fs::rename(root.join("names/link"), root.join("large/0")).expect("rename");
        cluster.down();
        cluster.up();
        assert_eq!(get(root.join("new")), b"new");
        assert_eq!(fs::metadata(root.join("grown")).expect("stat").size(), 10);
        assert_eq!(get(root.join("large/0")), pattern(1, 0, 20_000));
        assert!(process::processes_of(cluster.dir()).len() >= 2 * usize::from(NODES));
        cluster.finish();
    }
}
