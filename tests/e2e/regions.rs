//! Small files in regions of the nodes' devices: the policy `engine=region`.

use crate::inline::rewrite_small_file;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use tatami_tests::command::{ask, run, shell};
use tatami_tests::files::{bytes_of, create, get, open, put, stat};
use tatami_tests::{Cluster, Setup};

/// The largest object of a region.
const REGION_MAX: usize = 4 << 20;

/// Returns a volume of two nodes with region devices, in which all files begin in regions.
fn start_on_regions() -> Cluster {
    let cluster = Setup::nodes(2).with_regions().start();
    cluster.tatami("set", &["--inline", "0", "--engine", "region", ":/"]);
    cluster
}

fn json_of(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect("JSON")
}

fn engine_of(cluster: &Cluster, path: &str) -> String {
    let said = json_of(&cluster.tatami("where", &["--json", path]).out);
    said["files"][0]["engine"].as_str().expect("it says so").to_owned()
}

/// Returns the files of the disk that node 0 has for objects.
fn object_files(cluster: &Cluster) -> usize {
    let objects = cluster.dir().join("node0/objects");
    let buckets = fs::read_dir(objects).expect("listed");
    buckets.map(|b| fs::read_dir(b.expect("read").path()).expect("listed").count()).sum()
}

fn device_of(cluster: &Cluster, node: u16) -> PathBuf {
    cluster.dir().join(format!("regions-node{node}"))
}

#[test]
fn a_small_file_in_a_region_is_a_file() {
    let cluster = start_on_regions();
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    rewrite_small_file(&one, &two, |file| file.sync_all().expect("fsync"));
    assert_eq!((engine_of(&cluster, ":/f"), object_files(&cluster)), ("region".to_owned(), 0));
    assert!(cluster.tatami("stat", &[":/f"]).out.contains("in a region of its device"));
    assert!(cluster.tatami("where", &[":/f"]).out.contains("a region of the node's device"));
    let said = json_of(&cluster.tatami("get", &["--json", ":/"]).out);
    assert_eq!(said["directories"][0]["policies"]["engine"], "region");
    run(&mut shell(&one, "ln f g && mv g h && chmod 600 h && test $(stat -c %h f) = 2"));
    let file = open(one.join("h"));
    run(&mut shell(&two, "rm f && rm h"));
    file.write_all_at(&[5; 9000], 0).expect("pwrite");
    assert!(bytes_of(&file) == [5; 9000]);
    drop(file);
    let script = "import mmap, os\n\
        f = os.open('m', os.O_RDWR | os.O_CREAT)\n\
        os.write(f, b'mapped bytes')\n\
        m = mmap.mmap(f, 12)\n\
        assert m[:6] == b'mapped'\n\
        m[:6] = b'MAPPED'\n\
        m.flush()\n\
        os.posix_fallocate(f, 0, 100)\n\
        assert os.fstat(f).st_size == 100 and os.pread(f, 200, 0)[:12] == b'MAPPED bytes'\n";
    put(cluster.dir().join("map.py"), script);
    run(&mut shell(&one, "python3 ../../map.py || python3 ../map.py"));
    assert_eq!(object_files(&cluster), 0);
    cluster.finish();
}

/// A file outgrows all regions while a reader on the other mount has it open. It is a file of the
/// disk then, and stays one when it is cut.
#[test]
fn a_file_grows_out_of_its_region_without_a_reader_noticing() {
    let cluster = start_on_regions();
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    put(one.join("f"), b"");
    let mut reader = File::open(two.join("f")).expect("open");
    let mut writer = OpenOptions::new().append(true).open(one.join("f")).expect("open");
    let mut expected = Vec::new();
    for part in 0..50u8 {
        let bytes = vec![part; 100_000 + usize::from(part)];
        writer.write_all(&bytes).expect("append");
        expected.extend(bytes);
        if part % 7 == 0 || expected.len() > REGION_MAX - 100_000 {
            let mut seen = Vec::new();
            reader.seek(SeekFrom::Start(0)).expect("seek");
            reader.read_to_end(&mut seen).expect("read");
            assert!(seen == expected, "{} bytes of {}", seen.len(), expected.len());
        }
    }
    assert!(expected.len() > REGION_MAX);
    assert_eq!(object_files(&cluster), 1);
    drop((reader, writer));
    assert!(get(two.join("f")) == expected && get(one.join("f")) == expected);
    run(&mut shell(&one, "truncate -s 10 f && echo more >> f"));
    assert_eq!(get(two.join("f")), [&expected[..10], b"more\n"].concat());
    // One write that is larger than any region.
    put(one.join("large"), vec![7; REGION_MAX + 1]);
    assert!(get(two.join("large")) == vec![7; REGION_MAX + 1]);
    run(&mut shell(&two, "rm f large"));
    cluster.finish();
}

/// In a region, holes are zeros. On the disk they are holes again.
#[test]
fn a_sparse_file_that_outgrows_its_region_has_its_holes_again() {
    let cluster = start_on_regions();
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    let file = create(one.join("f"));
    for offset in [0, 3 << 20, 64 << 20] {
        file.write_all_at(b"data", offset).expect("pwrite");
    }
    file.sync_all().expect("fsync");
    drop(file);
    let objects = cluster.dir().join("node0/objects");
    let buckets = fs::read_dir(objects).expect("listed").flatten();
    let files = buckets.flat_map(|bucket| fs::read_dir(bucket.path()).expect("listed").flatten());
    let blocks: Vec<_> = files.map(|file| stat(file.path()).blocks()).collect();
    assert!(blocks.len() == 1 && blocks[0] * 512 < 1 << 20, "{blocks:?} blocks");
    let bytes = get(two.join("f"));
    assert_eq!(bytes.len(), (64 << 20) + 4);
    for (at, part) in bytes.chunks(1 << 20).enumerate() {
        let has_data = [0, 3, 64].contains(&at);
        assert_eq!(part.starts_with(b"data"), has_data);
        assert!(part[if has_data { 4 } else { 0 }..].iter().all(|byte| *byte == 0));
    }
    cluster.finish();
}

/// Appends of two mounts go to one file, each as a whole.
#[test]
fn appends_of_two_mounts_are_whole() {
    let cluster = start_on_regions();
    put(cluster.mount(0).join("log"), b"");
    let write = |writer: u16| {
        let path = cluster.mount(writer % 2).join("log");
        std::thread::spawn(move || {
            let mut file = OpenOptions::new().append(true).open(path).expect("open");
            for n in 0..300 {
                let line = format!("{writer:3} {n:6} {:>50}\n", u32::from(writer) * 1000 + n);
                file.write_all(line.as_bytes()).expect("append");
            }
        })
    };
    let writers: Vec<_> = (0..4).map(write).collect();
    writers.into_iter().for_each(|writer| writer.join().expect("it wrote"));
    let text = String::from_utf8(get(cluster.mount(1).join("log"))).expect("text");
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 4 * 300);
    assert_eq!(engine_of(&cluster, ":/log"), "region");
    cluster.finish();
}

/// Daemons and mounts die under writers. What was acknowledged before is there.
#[test]
fn acknowledged_bytes_survive_the_death_of_all_daemons() {
    let cluster = start_on_regions();
    let mut written = 0;
    for round in 0..3u8 {
        for n in 0..150usize {
            let mount = cluster.mount((n % 2) as u16);
            let bytes = vec![round + n as u8; n * 61 + 1];
            put(mount.join(format!("{round}-{n}")), &bytes);
            // Some are written again, some grow, and some go.
            if n % 5 == 0 && round > 0 {
                put(mount.join(format!("0-{n}")), [bytes, vec![9; 5000]].concat());
            }
        }
        written += 150;
        for node in 0..2 {
            cluster.kill_node(node);
        }
        for node in 0..2 {
            cluster.start_node(node);
        }
        for n in (0..150usize).filter(|n| n % 5 > 0) {
            let bytes = get(cluster.mount(((n + 1) % 2) as u16).join(format!("{round}-{n}")));
            assert!(bytes == vec![round + n as u8; n * 61 + 1], "{round}-{n}");
        }
    }
    for n in (0..150).filter(|n| n % 5 == 0) {
        let bytes = get(cluster.mount(1).join(format!("0-{n}")));
        assert!(bytes == [vec![2 + n as u8; n * 61 + 1], vec![9; 5000]].concat(), "0-{n}");
    }
    assert_eq!(fs::read_dir(cluster.mount(0)).expect("listed").count(), written);
    run(&mut shell(&cluster.mount(1), "rm 1-*"));
    cluster.kill_node(0);
    cluster.start_node(0);
    cluster.finish();
}

/// A node without its device, or with another one, says so. What has nothing to do with the device
/// goes on.
#[test]
fn a_device_that_is_missing_or_another_is_an_error_and_the_rest_goes_on() {
    let cluster = start_on_regions();
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    put(one.join("here"), b"on the device of node 0");
    put(two.join("there"), b"on the device of node 1");
    run(&mut shell(&one, "mkdir plain && setfattr -n user.tatami.engine -v file plain"));
    put(one.join("plain/file"), b"on a disk");
    let (device, away) = (device_of(&cluster, 0), cluster.dir().join("away"));
    let restart = || {
        run(cluster.command("node stop").arg("0"));
        cluster.start_node(0);
    };
    run(cluster.command("node stop").arg("0"));
    fs::rename(&device, &away).expect("moved");
    cluster.start_node(0);
    let trouble = cluster.status().to_string();
    assert!(trouble.contains("region device") && trouble.contains("cannot open it"), "{trouble}");
    let failed = |path: PathBuf| fs::read(path).err().and_then(|e| e.raw_os_error());
    assert_eq!(failed(two.join("here")), Some(libc::EIO));
    let write = |mut file: File| file.write_all(b"x").and_then(|()| file.sync_all());
    assert!(File::create(one.join("new")).and_then(write).is_err());
    run(&mut shell(&one, "rm -f new"));
    assert_eq!(get(one.join("there")), b"on the device of node 1");
    assert_eq!(get(two.join("plain/file")), b"on a disk");
    // An empty device is not taken for the one with the files.
    File::create(&device).and_then(|file| file.set_len(512 << 20)).expect("a sparse file");
    restart();
    let trouble = cluster.status().to_string();
    assert!(trouble.contains("it is empty, and this node had files on one"), "{trouble}");
    assert_eq!(failed(two.join("here")), Some(libc::EIO));
    // Nor is that of another node.
    run(cluster.command("node stop").arg("0"));
    fs::remove_file(&device).expect("removed");
    std::os::unix::fs::symlink(device_of(&cluster, 1), &device).expect("linked");
    cluster.start_node(0);
    let trouble = cluster.status().to_string();
    assert!(trouble.contains("it is in use"), "{trouble}");
    // With the device, all is there.
    run(cluster.command("node stop").arg("0"));
    fs::remove_file(&device).expect("removed");
    fs::rename(&away, &device).expect("moved back");
    cluster.start_node(0);
    assert_eq!(get(two.join("here")), b"on the device of node 0");
    put(one.join("new"), b"x");
    assert_eq!(get(two.join("new")), b"x");
    cluster.finish();
}

/// Files that were on a device that is lost for good are errors, and the node goes on with a new
/// device after `--accept-loss`.
#[test]
fn a_lost_device_can_be_given_up() {
    let cluster = start_on_regions();
    let one = cluster.mount(0);
    put(one.join("gone"), b"on the device");
    run(cluster.command("node stop").arg("0"));
    let device = device_of(&cluster, 0);
    File::create(&device).and_then(|file| file.set_len(512 << 20)).expect("a new sparse file");
    run(cluster.command("node start").args(["--accept-loss", "0"]));
    put(one.join("new"), b"on the new device");
    assert_eq!(get(cluster.mount(1).join("new")), b"on the new device");
    let read = fs::read(cluster.mount(1).join("gone"));
    assert_eq!(read.err().and_then(|e| e.raw_os_error()), Some(libc::EIO));
    let said = ask(cluster.command("fsck").arg("--lost"));
    assert!(said.out.contains("gone"), "{said:?}");
    run(&mut shell(&one, "rm gone"));
    cluster.finish();
}

/// When the device is full, new small files are files of the disk.
#[test]
fn a_full_device_sends_new_files_to_the_disk() {
    let small = |dir: &std::path::Path| {
        let device = File::create(dir.join("small-node0"));
        device.and_then(|file| file.set_len(64 << 20)).expect("a sparse file");
    };
    let cluster =
        Setup::nodes(1).config("[node]\nregion_device = \"small-{node}\"\n").prepare(small).start();
    let device = cluster.dir().join("small-{node}");
    let said = ask(cluster.command("node add").args(["--region-device", "x", "--nodes", "2"]));
    assert!(said.code == Some(2) && said.err.contains("{node}"), "{said:?} {device:?}");
    cluster.tatami("set", &["--inline", "0", "--engine", "region", ":/"]);
    let one = cluster.mount(0);
    for n in 0..900u32 {
        put(one.join(n.to_string()), vec![n as u8; 60_000 + n as usize]);
    }
    assert!(object_files(&cluster) > 20, "{} files", object_files(&cluster));
    let trouble = cluster.status().to_string();
    assert!(trouble.contains("nearly full"), "{trouble}");
    let is_whole = |n: u32| get(one.join(n.to_string())) == vec![n as u8; 60_000 + n as usize];
    assert!((0..900).all(is_whole));
    run(&mut shell(&one, "seq 0 2 899 | xargs rm"));
    cluster.kill_node(0);
    cluster.start_node(0);
    assert!((0..900).filter(|n| n % 2 == 1).all(is_whole));
    cluster.finish();
}

/// Nodes come with a device and are emptied, trees are copied, and a file moves from node to node.
#[test]
fn commands_work_on_files_in_regions() {
    let cluster = start_on_regions();
    let one = cluster.mount(0);
    let work = cluster.dir().join("work");
    fs::create_dir(&work).expect("made");
    run(&mut shell(&work, "mkdir t && echo a > t/a && head -c 50000 /dev/urandom > t/b"));
    let path = |name: &str| work.join(name).to_str().expect("UTF-8").to_owned();
    cluster.tatami("cp", &["-r", &path("t"), ":/t"]);
    cluster.tatami("cp", &["-r", ":/t", &path("back")]);
    run(&mut shell(&work, "diff -r t back"));
    assert_eq!(engine_of(&cluster, ":/t/b"), "region");
    cluster.tatami("relayout", &["--to", "whole", "--on", "node1", ":/t/b"]);
    assert_eq!(engine_of(&cluster, ":/t/b"), "region");
    assert!(get(one.join("t/b")) == get(work.join("t/b")));
    cluster.tatami("relayout", &["--to", "striped", ":/t/a"]);
    assert_eq!(
        (engine_of(&cluster, ":/t/a"), get(one.join("t/a"))),
        ("file".into(), b"a\n".into())
    );
    // Both policies: beside the inode first, then in a region.
    cluster.tatami("set", &["--inline", "1k", "--engine", "region", ":/t"]);
    put(one.join("t/c"), b"small");
    assert_eq!(engine_of(&cluster, ":/t/c"), "inline");
    put(one.join("t/c"), vec![3; 3000]);
    assert_eq!(engine_of(&cluster, ":/t/c"), "region");
    assert!(get(cluster.mount(1).join("t/c")) == vec![3; 3000]);
    // Room for more than a region, in a file that was empty and beside its inode.
    run(&mut shell(&one, "fallocate -l 8M t/d && test $(stat -c %s t/d) = 8388608"));
    assert_eq!(stat(cluster.mount(1).join("t/d")).len(), 8 << 20);
    let third = cluster.dir().join("third-{node}");
    let device = File::create(cluster.dir().join("third-node2"));
    device.and_then(|file| file.set_len(64 << 20)).expect("a sparse file");
    cluster.tatami("node add", &["--region-device", third.to_str().expect("UTF-8")]);
    cluster.tatami("relayout", &["--to", "whole", "--on", "node2", ":/t/c"]);
    assert!(cluster.dir().join("node2/regions/device").exists());
    assert!(get(one.join("t/c")) == vec![3; 3000]);
    cluster.finish();
}
