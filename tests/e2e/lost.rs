//! Lost bytes: the directory of a node, or single objects, are removed or truncated without the
//! daemons. A reader of lost bytes gets an error, and not a file that looks whole.

use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tatami_layout::{PieceTiles, View, journal};
use tatami_tests::command::ask;
use tatami_tests::files::{create, get, open, put, refused, stat};
use tatami_tests::job::{Job, NODES, SIZE, tiled_file};
use tatami_tests::model::pattern;
use tatami_tests::policies::skip_with_policies;
use tatami_tests::seed::scaled;
use tatami_tests::{Cluster, Setup, process};
use tatami_wire::tiles::PieceUpdate;
use tatami_wire::{Ino, NodeId, Piece};

const LEN: usize = 3_000_000;
const LEFT: usize = 1000;
/// Rounds of a writer that truncates a file beside its readers.
const ROUNDS: u64 = 300;
/// Exit code of fsck(8): faults were found and not repaired.
const WRONG: Option<i32> = Some(4);

/// Returns the backing files of all objects of an inode, on all nodes.
fn objects(cluster: &Cluster, ino: u64) -> Vec<PathBuf> {
    let bucket = format!("objects/{:02x}", ino & 0xff);
    let of_node = |node: u16| cluster.dir().join(format!("node{node}")).join(&bucket);
    let dirs = (0..cluster.nodes()).filter_map(|node| fs::read_dir(of_node(node)).ok());
    let all = dirs.flat_map(|dir| dir.map(|entry| entry.expect("reads").path()));
    let prefix = format!("{ino:016x}.");
    let is_its = |path: &PathBuf| {
        path.file_name().expect("a name").to_str().expect("text").starts_with(&prefix)
    };
    let mut found: Vec<_> = all.filter(is_its).collect();
    found.sort();
    found
}

/// Returns the one object of a whole file. A file that was just closed may still be a spare file.
fn object(cluster: &Cluster, path: &Path) -> PathBuf {
    let deadline = Instant::now() + Duration::from_secs(60);
    let found = loop {
        let found = objects(cluster, stat(path).ino());
        if !found.is_empty() || Instant::now() > deadline {
            break found;
        }
        process::pause();
    };
    assert_eq!(found.len(), 1, "{}", path.display());
    found.into_iter().next().expect("one")
}

fn cut(path: &Path, len: usize) {
    OpenOptions::new().write(true).open(path).expect("open").set_len(len as u64).expect("cut");
}

/// Applies `damage` while no daemon runs.
fn behind_their_back(cluster: &Cluster, damage: impl FnOnce()) {
    cluster.down();
    damage();
    cluster.up();
}

fn eio<T>(result: std::io::Result<T>) {
    assert_eq!(refused(result), libc::EIO);
}

/// Reads as many bytes as possible in pieces, until an error or the end.
fn read_on(path: &Path) -> (Vec<u8>, Option<i32>) {
    let (mut file, mut all, mut piece) = (open(path), Vec::new(), vec![0; 100]);
    loop {
        match file.read(&mut piece) {
            Ok(0) => return (all, None),
            Ok(n) => all.extend_from_slice(&piece[..n]),
            Err(e) => return (all, e.raw_os_error()),
        }
    }
}

fn run_fsck(cluster: &Cluster, options: &[&str]) -> (Option<i32>, Vec<Value>) {
    let said = ask(cluster.command("fsck").arg("--json").args(options));
    let report: Value = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"));
    (said.code, report["findings"].as_array().expect("a list").clone())
}

/// Waits until the check has `count` findings. The check skips files that a client has recently had
/// open for writing.
fn told_of(cluster: &Cluster, options: &[&str], count: usize) -> (Option<i32>, Vec<Value>) {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        let (code, findings) = run_fsck(cluster, options);
        if findings.len() == count {
            return (code, findings);
        }
        assert!(Instant::now() < end, "{findings:?}");
    }
}

/// Ends the test when the check finds nothing. The kernel reports the close of a file in the
/// background. Until then a removed file with lost bytes exists, and the check reports it.
fn finish_when_sound(cluster: Cluster) {
    told_of(&cluster, &[], 0);
    cluster.finish();
}

/// Waits until the condition holds.
fn until(mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < end, "it does not come true");
    }
}

fn lost_bytes_are_errors(cluster: Cluster) {
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    fs::create_dir(a.join("dir")).expect("mkdir");
    let (gone, short) = (Path::new("dir/gone"), Path::new("dir/short"));
    let bytes = pattern(7, 0, LEN);
    for name in [gone, short, Path::new("dir/sound"), Path::new("dir/replaced")] {
        put(a.join(name), &bytes);
    }
    // Files that correctly have no byte, or holes.
    drop(create(a.join("dir/empty")));
    create(a.join("dir/sparse")).set_len(LEN as u64).expect("ftruncate");
    let grown = create(a.join("dir/grown"));
    grown.write_all_at(b"x", 10).expect("write");
    grown.set_len(LEN as u64).expect("ftruncate");
    drop(grown);
    let at: Vec<_> = [gone, short, Path::new("dir/replaced")]
        .iter()
        .map(|name| object(&cluster, &a.join(name)))
        .collect();
    behind_their_back(&cluster, || {
        fs::remove_file(&at[0]).expect("removed");
        cut(&at[1], LEFT);
        fs::remove_file(&at[2]).expect("removed");
    });

    for mount in [&a, &b] {
        assert_eq!(get(mount.join("dir/sound")), bytes);
        assert_eq!(get(mount.join("dir/empty")), b"");
        assert_eq!(get(mount.join("dir/sparse")), vec![0; LEN]);
        assert_eq!(get(mount.join("dir/grown")).len(), LEN);
        assert_eq!(read_on(&mount.join(gone)), (Vec::new(), Some(libc::EIO)));
        // The kernel may read more at a time than requested, and then gets none of it. The other
        // mount has recently had the file open for writing, and reports the close a moment later.
        until(|| {
            let (left, error) = read_on(&mount.join(short));
            assert!(left.len() <= LEFT && bytes.starts_with(&left), "{} bytes", left.len());
            error == Some(libc::EIO)
        });
        for name in [gone, short] {
            let path = mount.join(name);
            eio(fs::read(&path));
            eio(open(&path).read_exact_at(&mut [0; 10], LEN as u64 - 10));
            eio(fs::copy(&path, mount.join("copy")));
            // No operation makes the file look whole.
            eio(OpenOptions::new().append(true).open(&path).expect("open").write_all(b"more"));
            let file = OpenOptions::new().read(true).write(true).open(&path).expect("open");
            eio(file.write_all_at(b"more", 5));
            eio(file.set_len(LEN as u64 + 5));
            eio(file.set_len(LEN as u64 - 5));
            drop(file);
            assert_eq!(stat(&path).len(), LEN as u64);
        }
        fs::remove_file(mount.join("copy")).expect("unlink");
    }
    for name in [gone, short] {
        let path = format!(":/{}", name.display());
        // A file that a mount has recently had open for writing may still count as being written.
        let name = name.to_str().expect("text");
        until(|| {
            let cat = ask(cluster.command("cat").arg(&path));
            cat.code != Some(0) && cat.err.contains(name)
        });
        let target = cluster.dir().join("taken");
        let cp = ask(cluster.command("cp").arg(&path).arg(&target));
        assert!(cp.code != Some(0) && cp.err.contains(name), "{cp:?}");
    }
    is_reported_once(&cluster, stat(a.join(gone)).ino());

    // fsck names the files, and leaves them as they are.
    for options in [&["--repair"][..], &[], &["--lost"]] {
        let (code, findings) = told_of(&cluster, options, 3);
        assert_eq!(code, WRONG);
        let lost: Vec<_> = findings
            .iter()
            .map(|f| {
                (
                    f["path"].as_str(),
                    f["node"].as_str(),
                    f["left"].as_str().map(str::to_owned),
                    f["bytes"].as_str().map(str::to_owned),
                )
            })
            .collect();
        let node = Some("node0");
        for (path, left) in [("/dir/gone", 0), ("/dir/short", LEFT as u64), ("/dir/replaced", 0)] {
            assert!(
                lost.contains(&(Some(path), node, Some(left.to_string()), Some(LEN.to_string()))),
                "{findings:?}"
            );
        }
    }
    assert_eq!(read_on(&b.join(gone)).1, Some(libc::EIO));
    until(|| {
        let said = ask(cluster.command("fsck").arg("--lost"));
        said.out.contains("/dir/gone") && said.out.contains("node0")
    });

    // Rewritten, replaced, and truncated to the rest, they are ordinary files again.
    put(a.join(gone), b"anew");
    assert_eq!(get(b.join(gone)), b"anew");
    put(b.join("new"), &bytes);
    fs::rename(b.join("new"), b.join("dir/replaced")).expect("rename");
    assert_eq!(get(a.join("dir/replaced")), bytes);
    OpenOptions::new()
        .write(true)
        .open(b.join(short))
        .expect("open")
        .set_len(LEFT as u64)
        .expect("ftruncate");
    assert_eq!(get(a.join(short)), bytes[..LEFT]);
    OpenOptions::new()
        .append(true)
        .open(a.join(short))
        .expect("open")
        .write_all(b"x")
        .expect("write");
    assert_eq!(get(b.join(short)).len(), LEFT + 1);
    finish_when_sound(cluster);
}

/// Each mount reports a file once, with the place of the lost bytes.
fn is_reported_once(cluster: &Cluster, ino: u64) {
    let logs = fs::read_dir(cluster.dir().join("mount-logs")).expect("logs of mounts");
    let mut report = 0;
    for log in logs {
        let text = fs::read_to_string(log.expect("reads").path()).expect("a log");
        let lines: Vec<_> = text
            .lines()
            .filter(|line| line.contains("bytes of a file are lost"))
            .filter(|line| line.contains(&format!("ino={}", Ino(ino))))
            .collect();
        assert!(lines.len() <= 1, "{lines:?}");
        report += lines
            .iter()
            .filter(|line| line.contains("node=0") && line.contains("object=0"))
            .count();
    }
    assert_eq!(report, 2, "one line each");
}

#[test]
fn lost_bytes_are_errors_on_every_way() {
    if skip_with_policies("it damages the files of objects, which regions have not") {
        return;
    }
    lost_bytes_are_errors(Cluster::start(2));
}

#[test]
fn lost_bytes_are_errors_without_passthrough() {
    if skip_with_policies("it damages the files of objects, which regions have not") {
        return;
    }
    lost_bytes_are_errors(Setup::nodes(2).without_passthrough().start());
}

/// A file is truncated, written and lengthened on one mount. Readers must not report that as a
/// loss.
fn cuts_are_no_loss(cluster: Cluster) {
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    for writer in [&a, &b] {
        put(a.join("file"), pattern(3, 0, 100_000));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers: Vec<_> = [&a, &b, &a, &b]
                .map(|mount| {
                    let done = &done;
                    scope.spawn(move || {
                        let held = open(mount.join("file"));
                        let mut reads = 0u64;
                        while !done.load(Ordering::Relaxed) {
                            held.read_at(&mut vec![0; 300_000], 0).expect("an open file reads");
                            fs::read(mount.join("file")).expect("it reads");
                            reads += 1;
                        }
                        reads
                    })
                })
                .into();
            for round in 0..scaled(ROUNDS) {
                let path = writer.join("file");
                let flags = OpenOptions::new().write(true).truncate(round % 2 == 0).open(&path);
                let file = flags.expect("open");
                file.write_all_at(&pattern(5, 0, 50_000), 0).expect("write");
                file.set_len(10).expect("ftruncate");
                file.set_len(200_000).expect("ftruncate");
                drop(file);
                if round % 3 == 0 {
                    OpenOptions::new()
                        .append(true)
                        .open(&path)
                        .expect("open")
                        .write_all(b"x")
                        .expect("append");
                    fs::File::options()
                        .write(true)
                        .open(&path)
                        .expect("open")
                        .set_len(30)
                        .expect("cut");
                }
            }
            done.store(true, Ordering::Relaxed);
            for reader in readers {
                assert!(reader.join().expect("a reader does not panic") > 0);
            }
        });
        for mount in [&a, &b] {
            let said = fs::read_dir(cluster.dir().join("mount-logs")).expect("logs");
            for log in said {
                let text = fs::read_to_string(log.expect("reads").path()).expect("a log");
                assert!(!text.contains("are lost"), "{}: {text}", mount.display());
            }
        }
    }
    finish_when_sound(cluster);
}

#[test]
fn a_file_that_is_cut_beside_its_readers_is_not_lost() {
    cuts_are_no_loss(Cluster::start(2));
}

#[test]
fn the_same_without_passthrough() {
    cuts_are_no_loss(Setup::nodes(2).without_passthrough().start());
}

#[test]
fn lost_bytes_of_a_tiled_file_are_errors() {
    if skip_with_policies("it damages the files of objects, which regions have not") {
        return;
    }
    let cluster = Cluster::start(NODES);
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    // Tiles over a file that was whole before: below and behind them are bytes of the base.
    let before = pattern(9, 0, SIZE + 5000);
    put(a.join("over"), &before);
    let ino = stat(a.join("over")).ino();
    let job = Job::open(&cluster, Ino(ino));
    let (part, _) = job.write_rank(1, &pattern(1, 0, SIZE));
    job.publish(vec![part]);
    job.close();
    let over = get(b.join("over"));
    assert_eq!(over.len(), before.len());
    tiled_file(&cluster, "all", &pattern(2, 0, SIZE));
    let all = stat(a.join("all")).ino();
    // Bytes that a mount writes go to the pieces; the file does not get a base.
    let file = OpenOptions::new().write(true).open(a.join("all")).expect("open");
    file.write_all_at(b"in place", 77).expect("write");
    drop(file);
    let whole = get(b.join("all"));
    assert_eq!(&whole[77..85], b"in place");

    let base = |path: &PathBuf| path.to_str().expect("text").ends_with(".00000000");
    let of_over: Vec<_> = objects(&cluster, ino);
    let piece = objects(&cluster, all)
        .into_iter()
        .find(|path| !base(path) && fs::metadata(path).expect("there").len() > 0);
    behind_their_back(&cluster, || {
        fs::remove_file(of_over.iter().find(|path| base(path)).expect("a base")).expect("removed");
        fs::remove_file(piece.as_ref().expect("a piece")).expect("removed");
    });
    for mount in [&a, &b] {
        let path = mount.join("over");
        eio(fs::read(&path));
        eio(open(&path).read_exact_at(&mut [0; 10], 0));
        eio(open(&path).read_exact_at(&mut [0; 10], SIZE as u64 + 10));
        let mut tile = [0; 10];
        open(&path).read_exact_at(&mut tile, 1000).expect("what a tile has is there");
        assert_eq!(tile, over[1000..1010]);
        eio(OpenOptions::new().append(true).open(&path).expect("open").write_all(b"more"));
        eio(fs::read(mount.join("all")));
    }
    let (code, findings) = told_of(&cluster, &["--repair"], 2);
    let lost = |path: &str| {
        findings.iter().any(|f| f["path"] == path && f["kind"] == "inode-without-object")
    };
    assert!(code == WRONG && lost("/over") && lost("/all"), "{findings:?}");
    for name in ["over", "all"] {
        put(a.join(name), "anew");
        assert_eq!(get(b.join(name)), b"anew");
    }
    finish_when_sound(cluster);
}

/// The journal of a dead writer has a flipped bit before records that are whole. The check reports
/// the journal with the path. A repair must not turn the bytes of its tiles into zeros.
#[test]
fn a_damaged_journal_is_named_by_the_check_and_left_by_a_repair() {
    // The pieces of the job count as open until this lease has ended.
    let cluster = Setup::nodes(NODES).config("[node]\nlease_sec = 2\n").start();
    let job = Job::create(&cluster, "f");
    let bytes = pattern(5, 0, SIZE);
    job.write_unpublished(&bytes);
    assert_eq!(run_fsck(&cluster, &[]), (Some(0), Vec::new()));
    let object = Piece::of_journal(job.first + 1);
    let name = format!("{:016x}.{:08x}", job.ino.0, object.0);
    let path = objects(&cluster, job.ino.0).into_iter().find(|path| path.ends_with(&name));
    let path = path.expect("a journal");
    // The stamp of the first tile.
    let mut words = fs::read(&path).expect("read");
    let tile = words.chunks(8).position(|word| word[..2] == [2, 8]).expect("a tile");
    words[tile * 8 + 17] ^= 4;
    fs::write(&path, words).expect("written");

    let is_named = |(code, findings): (Option<i32>, Vec<Value>)| {
        assert_eq!((code, findings.len()), (WRONG, 1), "{findings:?}");
        let finding = &findings[0];
        let facts = ["kind", "path", "node", "repaired"].map(|key| finding[key].clone());
        let right: [Value; 4] =
            ["damaged-journal".into(), "/f".into(), "node1".into(), false.into()];
        assert_eq!(facts, right, "{finding}");
        assert_eq!(finding["object"], object.0, "{finding}");
        let text = |key: &str| finding[key].as_str().expect("a text").to_owned();
        let (what, advice) = (text("what"), text("advice"));
        assert!(what.contains(&name) && what.contains("damaged at byte"), "{what}");
        assert!(
            advice.contains("tatami recover --accept-loss") && advice.ends_with(":/f"),
            "{advice}"
        );
    };
    is_named(run_fsck(&cluster, &[]));
    // The writer dies, and no process recovers its piece.
    drop(job);
    until(|| {
        let said = ask(cluster.command("recover").args(["--json", "--wait", "1", ":/f"]));
        said.code == Some(3)
    });
    is_named(run_fsck(&cluster, &[]));
    is_named(run_fsck(&cluster, &["--lost"]));
    is_named(run_fsck(&cluster, &["--repair"]));
    let said = ask(&mut cluster.command("fsck"));
    assert!(said.out.contains("/f on node1") && said.out.contains("--accept-loss"), "{said:?}");
    assert!(!said.out.contains("fsck --repair"), "a repair is no way: {said:?}");
    cluster.down();
    is_named(run_fsck(&cluster, &["--offline"]));
    is_named(run_fsck(&cluster, &["--offline", "--repair"]));
    cluster.up();
    cluster.tatami("recover", &["--accept-loss", ":/f"]);
    assert_eq!(run_fsck(&cluster, &[]), (Some(0), Vec::new()));
    let left = get(cluster.mount(2).join("f"));
    let is_kept = |(left, right): (&u8, &u8)| left == right || *left == 0;
    assert!(left != bytes && left.iter().zip(&bytes).all(is_kept));
    finish_when_sound(cluster);
}

/// A writer syncs some of its tiles, and goes on. A power cut then leaves a hole in its journal. No
/// sync had promised those bytes, so the file is recovered without a request. The same hole on a
/// machine that was not restarted is damage.
#[test]
fn what_a_power_cut_took_of_a_journal_is_no_damage() {
    const TILES: u64 = 40;
    const SYNCED: u64 = 10;
    const BYTES: usize = 100;
    // Irregular offsets, so that each write is a tile.
    let offset = |tile: u64| (tile * 1000 + tile * tile * 37 % 501) as usize;
    let cluster = Setup::nodes(NODES).config("[node]\nlease_sec = 2\n").start();
    let job = Job::create(&cluster, "f");
    let (client, node, piece) = (&job.clients[1], NodeId(1), job.first + 1);
    let object = |piece| client.open_object(job.ino, node, piece, job.cap).expect("an object");
    let bytes = pattern(6, 0, TILES as usize * BYTES);
    let data = object(Piece::of_bytes(piece));
    assert_eq!(data.write_at(&bytes, 0), Ok(bytes.len()));
    let mut tiles = PieceTiles::new(1);
    let view = tiles.add_view(&View::all_bytes()).expect("added");
    for tile in 0..TILES {
        let (stamp, len) = (job.stamp + 1 + tile, BYTES as u64);
        tiles.append(stamp, view, offset(tile) as u64, len, tile * len).expect("appended");
        if tile + 1 == SYNCED {
            let blocks = data.stat().expect("stat").blocks;
            job.publish(vec![PieceUpdate {
                piece,
                tiles: tiles.encode().into(),
                blocks,
                close: false,
            }]);
            client.sync().expect("synced");
        }
    }
    let told_all = journal::encode(&tiles);
    let file = object(Piece::of_journal(piece));
    assert_eq!(file.write_at(&told_all, 0), Ok(told_all.len()));
    file.flush().expect("flushed");
    let name = format!("{:016x}.{:08x}", job.ino.0, Piece::of_journal(piece).0);
    let path = objects(&cluster, job.ino.0).into_iter().find(|path| path.ends_with(&name));
    let on_disk = OpenOptions::new().write(true).open(path.expect("a journal")).expect("open");
    on_disk.write_all_at(&[0; 512], 512).expect("a hole");
    let (code, findings) = run_fsck(&cluster, &[]);
    assert_eq!((code, &findings[0]["kind"]), (WRONG, &"damaged-journal".into()), "{findings:?}");
    // The journal's last change is older than the start of the machine.
    let before = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    on_disk.set_modified(before).expect("older");
    assert_eq!(run_fsck(&cluster, &[]), (Some(0), Vec::new()));
    drop(file);
    drop(data);
    drop(job);
    let said = cluster.tatami("recover", &[":/f"]);
    assert!(said.out.contains("bytes are there"), "{}", said.out);
    let left = get(cluster.mount(2).join("f"));
    assert_eq!(left.len(), offset(TILES - 1) + BYTES);
    let mut lost = Vec::new();
    for tile in 0..TILES {
        let (at, from) = (offset(tile), tile as usize * BYTES);
        match left[at..at + BYTES] == bytes[from..from + BYTES] {
            true => {}
            false => {
                assert!(left[at..at + BYTES].iter().all(|byte| *byte == 0), "tile {tile}");
                lost.push(tile);
            }
        }
    }
    assert!(!lost.is_empty() && lost.len() <= 9, "{lost:?}");
    assert!(lost.iter().all(|tile| *tile >= SYNCED), "{lost:?}");
    assert_eq!(run_fsck(&cluster, &[]), (Some(0), Vec::new()));
    let logs = (0..NODES).map(|node| cluster.dir().join(format!("node{node}/log")));
    let logs: String = logs.map(|log| fs::read_to_string(log).expect("a log")).collect();
    assert!(logs.contains("a power cut has taken"), "the loss is told");
    finish_when_sound(cluster);
}

#[test]
fn programs_hear_of_lost_bytes() {
    if skip_with_policies("it damages the files of objects, which regions have not") {
        return;
    }
    let cluster = Cluster::start(1);
    let a = cluster.mount(0);
    put(a.join("file"), pattern(7, 0, LEN));
    let at = object(&cluster, &a.join("file"));
    behind_their_back(&cluster, || cut(&at, LEFT));
    for program in ["cat", "md5sum"] {
        let said = ask(Command::new(program).arg(a.join("file")).env("LC_ALL", "C"));
        assert!(said.code != Some(0) && said.err.contains("Input/output error"), "{said:?}");
    }
    let said =
        ask(Command::new("cp").arg(a.join("file")).arg(cluster.dir().join("x")).env("LC_ALL", "C"));
    assert!(said.code != Some(0), "{said:?}");
    fs::remove_file(a.join("file")).expect("unlink");
    finish_when_sound(cluster);
}

#[test]
fn a_node_that_began_empty_says_so_until_it_is_settled() {
    if skip_with_policies("it damages the files of objects, which regions have not") {
        return;
    }
    // A node with shards would lose them, too.
    let cluster = Setup::nodes(2).config("[volume]\nshards = \"0\"\n").start();
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    put(a.join("here"), "here");
    put(b.join("there"), "there");
    assert_eq!(cluster.status()["healthy"], true);
    cluster.down();
    fs::remove_dir_all(cluster.dir().join("node1")).expect("removed");
    let up = ask(cluster.command("up").args(["--nodes", "2"]));
    assert!(up.code != Some(0) && up.err.contains("node start --empty"), "{up:?}");
    cluster.tatami("node start", &["--empty", "node1"]);
    cluster.up();
    let lost = |status: &Value| status["nodes"][1]["lost_since"].as_u64();
    let is_told = |report: bool| {
        let status = cluster.status();
        assert_eq!(
            (status["healthy"] == false, lost(&status).is_some()),
            (report, report),
            "{status}"
        );
        let said = ask(&mut cluster.command("status"));
        assert_eq!(said.out.contains("is degraded"), report, "{said:?}");
        assert_eq!(said.out.contains("node forget --lost node1"), report, "{said:?}");
    };
    is_told(true);
    cluster.kill_node(1);
    cluster.start_node(1);
    is_told(true);
    assert_eq!(get(b.join("here")), b"here");
    eio(fs::read(a.join("there")));
    eio(fs::read(b.join("there")));
    let said = ask(cluster.command("node forget").arg("node1"));
    assert_eq!(said.code, Some(2), "it must be said what is forgotten: {said:?}");
    cluster.tatami("node forget", &["--lost", "node1"]);
    is_told(false);
    cluster.kill_node(1);
    cluster.start_node(1);
    is_told(false);
    eio(fs::read(a.join("there")));
    fs::remove_file(a.join("there")).expect("unlink");
    finish_when_sound(cluster);
}

#[test]
fn a_stopped_volume_is_checked() {
    if skip_with_policies("it damages the files of objects, which regions have not") {
        return;
    }
    let cluster = Cluster::start(2);
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    fs::create_dir(a.join("dir")).expect("mkdir");
    put(b.join("dir/file"), pattern(7, 0, LEN));
    let at = object(&cluster, &b.join("dir/file"));
    let running = ask(cluster.command("fsck").arg("--offline"));
    assert!(running.code == Some(8) && running.err.contains("is running"), "{running:?}");
    cluster.down();
    let stopped = ask(&mut cluster.command("fsck"));
    assert!(stopped.code == Some(8) && stopped.err.contains("fsck --offline"), "{stopped:?}");
    assert_eq!(run_fsck(&cluster, &["--offline"]), (Some(0), Vec::new()));
    cut(&at, LEFT);
    let (code, findings) = run_fsck(&cluster, &["--offline", "--repair"]);
    assert!(code == WRONG && findings[0]["path"] == "/dir/file", "{findings:?}");
    cluster.up();
    eio(fs::read(a.join("dir/file")));
    fs::remove_file(a.join("dir/file")).expect("unlink");
    finish_when_sound(cluster);
}
