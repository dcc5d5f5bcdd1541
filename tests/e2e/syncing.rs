//! Copies that are interrupted, continued and repeated: `tatami cp --update`, `sync` and `mv`.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tatami_tests::Cluster;
use tatami_tests::absent::Stopped;
use tatami_tests::command::{Said, as_user, ask, run, shell, tatami_bin};
use tatami_tests::files::{get, names, put, stat};
use tatami_tests::policies::skip_with_policies;
use tatami_tests::process::{pause, signal};

/// Directories, and files in each, of a tree that takes a while to copy.
const DIRS: usize = 12;
const FILES: usize = 400;
/// The exit code after Ctrl-C, as a shell reports it.
const INTERRUPTED: i32 = 130;

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn content_of(dir: usize, file: usize) -> Vec<u8> {
    format!("{dir}/{file} ").repeat(1500 + file).into_bytes()
}

fn make_tree(at: &Path) {
    for dir in 0..DIRS {
        let path = at.join(format!("d{dir}"));
        fs::create_dir_all(&path).expect("made");
        (0..FILES).for_each(|file| put(path.join(format!("f{file}")), content_of(dir, file)));
    }
}

/// Returns the number of files of [`make_tree`] in `at`. Each must be complete, and nothing else
/// may have a name there.
fn count_complete(at: &Path) -> usize {
    let mut complete = 0;
    for dir in 0..DIRS {
        let path = at.join(format!("d{dir}"));
        if !path.exists() {
            continue;
        }
        for name in names(&path) {
            let file = name.strip_prefix('f').and_then(|number| number.parse().ok());
            let file = file.unwrap_or_else(|| panic!("{name} is no name of the source"));
            assert_eq!(get(path.join(&name)), content_of(dir, file), "{dir}/{name} is incomplete");
            complete += 1;
        }
    }
    complete
}

fn start_copy(command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("started")
}

fn wait_for_end(child: Child) -> Said {
    let output = child.wait_with_output().expect("its output");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Said { out: text(&output.stdout), err: text(&output.stderr), code: output.status.code() }
}

/// Starts a copy, waits for the first files, and sends it a signal.
fn interrupt_copy(command: &mut Command, to: &Path, with: rustix::process::Signal) -> Said {
    let child = start_copy(command);
    // A file under a temporary name is no file yet.
    let is_there = |name: &String| name.starts_with('f');
    while !to.join("d0").is_dir() || !names(to.join("d0")).iter().any(is_there) {
        pause();
    }
    signal(child.id() as i32, with);
    wait_for_end(child)
}

#[test]
fn an_interrupted_copy_leaves_complete_files_and_is_continued() {
    use rustix::process::Signal;
    let cluster = Cluster::start(2);
    let (m, source) = (cluster.mount(1), cluster.dir().join("source"));
    make_tree(&source);
    cluster.tatami("cp", &["-r", text(&source), ":/original"]);
    let local = cluster.dir().join("local");
    for (name, from, there) in
        [("in", text(&source), m.join("in")), ("out", ":/original", local.join("out"))]
    {
        fs::create_dir_all(&local).expect("made");
        let to = if name == "in" { ":/in".to_owned() } else { text(&there).to_owned() };
        for how in [Signal::INT, Signal::KILL, Signal::TERM] {
            let said = interrupt_copy(cluster.command("cp").args(["-r", from, &to]), &there, how);
            let complete = match how {
                // A temporary file of this machine is left by a killed process only.
                Signal::KILL if name == "out" => {
                    run(&mut shell(&there, "find . -name '.f*' -type f -delete"));
                    count_complete(&there)
                }
                _ => count_complete(&there),
            };
            assert!(complete > 0, "{said:?}");
            if complete == DIRS * FILES {
                // It was faster than the signal; nothing to see here, but nothing is wrong.
                assert!(said.code == Some(0) || how == Signal::KILL, "{said:?}");
            } else if how == Signal::KILL {
                assert_eq!(said.code, None, "{said:?}");
            } else {
                assert_eq!(said.code, Some(INTERRUPTED), "{said:?}");
                assert!(
                    said.err.contains("interrupted") && said.err.contains("--update"),
                    "{said:?}"
                );
            }
            let inode = stat(there.join("d0/f0")).ino();
            cluster.tatami("cp", &["-r", "-T", "--update", from, &to]);
            assert_eq!(count_complete(&there), DIRS * FILES);
            assert_eq!(stat(there.join("d0/f0")).ino(), inode, "it was not copied again");
            cluster.tatami("rm", &["-rf", ":/in"]);
            fs::remove_dir_all(&local).expect("removed");
            fs::create_dir_all(&local).expect("made");
        }
    }
    cluster.fsck();
    cluster.finish();
}

/// A pipe that says nothing more keeps a copy waiting: Ctrl-C ends it, and nothing has its name.
#[test]
fn an_interrupted_stream_leaves_nothing() {
    use std::io::Write;
    let cluster = Cluster::start(1);
    let m = cluster.mount(0);
    put(m.join("old"), "as it was");
    for to in [":/new", ":/old"] {
        for how in [rustix::process::Signal::INT, rustix::process::Signal::KILL] {
            let mut child = start_copy(cluster.command("cp").args(["-", to]));
            let mut pipe = child.stdin.take().expect("a pipe");
            // More than the pipe holds: when this returns, the copy has begun.
            pipe.write_all(&vec![b'x'; 4 << 20]).expect("written");
            signal(child.id() as i32, how);
            let said = wait_for_end(child);
            let code = (how == rustix::process::Signal::INT).then_some(INTERRUPTED);
            assert_eq!(said.code, code, "{said:?}");
            drop(pipe);
        }
    }
    assert_eq!(names(&m), ["old"]);
    assert_eq!(get(m.join("old")), b"as it was");
    cluster.finish();
}

#[test]
fn sync_copies_what_differs_and_nothing_else() {
    let cluster = Cluster::start(2);
    let (m, data) = (cluster.mount(0), cluster.dir().join("data"));
    fs::create_dir_all(data.join("sub")).expect("made");
    for name in ["same", "touched", "longer", "sub/deep"] {
        put(data.join(name), "bytes");
    }
    std::os::unix::fs::symlink("same", data.join("link")).expect("linked");
    fs::set_permissions(data.join("same"), fs::Permissions::from_mode(0o640)).expect("set");
    run(&mut shell(&data, "touch -d 2001-02-03T04:05:06.789 same sub"));
    // The first one makes the destination, with modes and times.
    let said = cluster.tatami("sync", &["-v", text(&data), ":/copy"]);
    assert!(said.out.contains("5 files copied"), "{said:?}");
    let copy = m.join("copy");
    for name in ["same", "sub"] {
        let (one, other) = (stat(data.join(name)), stat(copy.join(name)));
        assert_eq!(
            (one.mode(), one.mtime(), one.mtime_nsec()),
            (other.mode(), other.mtime(), other.mtime_nsec()),
            "{name}"
        );
    }
    let inodes = |of: &[&str]| of.iter().map(|n| stat(copy.join(n)).ino()).collect::<Vec<_>>();
    let before = inodes(&["same", "sub/deep"]);
    put(data.join("longer"), "more bytes");
    run(&mut shell(&data, "touch touched; echo new > new"));
    put(copy.join("extra"), "of the copy alone");
    fs::create_dir(copy.join("extras")).expect("made");
    put(copy.join("extras/f"), "of the copy alone");
    // A dry run changes nothing.
    let dry = cluster.tatami("sync", &["-n", "--delete", text(&data), ":/copy"]);
    let mut steps: Vec<_> = dry.out.lines().collect();
    assert!(steps.pop().is_some_and(|line| line.contains("would be: 3 files")), "{dry:?}");
    steps.sort_unstable();
    let from = |name: &str| format!("{} -> :/copy/{name}", data.join(name).display());
    let [longer, new, touched] = ["longer", "new", "touched"].map(from);
    assert_eq!(
        steps,
        [longer.as_str(), &new, &touched, "deleted :/copy/extra", "deleted :/copy/extras"]
    );
    assert_eq!(get(copy.join("longer")), b"bytes");
    let said = cluster.tatami("sync", &["-v", text(&data), ":/copy"]);
    assert!(said.out.contains("3 files copied"), "{said:?}");
    assert_eq!(
        names(&copy),
        ["extra", "extras", "link", "longer", "new", "same", "sub", "touched"]
    );
    assert_eq!(get(copy.join("longer")), b"more bytes");
    assert_eq!(before, inodes(&["same", "sub/deep"]));
    // The same size and time, other bytes.
    run(&mut shell(&data, "touch -r new stamp; echo NEW > new; touch -r stamp new; rm stamp"));
    let said = cluster.tatami("sync", &["-v", text(&data), ":/copy"]);
    assert!(said.out.contains("0 files copied"), "{said:?}");
    cluster.tatami("sync", &["--checksum", "--delete", text(&data), ":/copy"]);
    assert_eq!(get(copy.join("new")), b"NEW\n");
    run(shell(cluster.dir(), "diff -r data \"$0\"").arg(&copy));
    // And back, within the volume, and of one file.
    let back = cluster.dir().join("back");
    cluster.tatami("sync", &[":/copy", text(&back)]);
    cluster.tatami("sync", &[":/copy", ":/again"]);
    run(shell(cluster.dir(), "diff -r data back && diff -r data \"$0\"").arg(m.join("again")));
    cluster.tatami("sync", &[text(&data.join("new")), ":/one"]);
    assert_eq!(get(m.join("one")), b"NEW\n");
    // What is of another kind there is in the way, and goes only with --delete.
    fs::remove_file(data.join("new")).expect("removed");
    fs::create_dir(data.join("new")).expect("made");
    let said = ask(cluster.command("sync").args([text(&data), ":/copy"]));
    assert!(said.code == Some(1) && said.err.contains("--delete"), "{said:?}");
    cluster.tatami("sync", &["--delete", text(&data), ":/copy"]);
    assert!(copy.join("new").is_dir());
    cluster.finish();
}

#[test]
fn a_file_that_is_copied_over_keeps_what_it_was() {
    let cluster = Cluster::start(2);
    let (m, new) = (cluster.mount(0), cluster.dir().join("new"));
    put(&new, "new bytes");
    fs::set_permissions(&new, fs::Permissions::from_mode(0o777)).expect("set");
    let local = cluster.dir().join("local");
    fs::create_dir(&local).expect("made");
    cluster.tatami("cp", &[text(&new), ":/source"]);
    for (at, from, to) in [
        (m, text(&new), ":/".to_owned()),
        (local.clone(), ":/source", format!("{}/", text(&local))),
    ] {
        for name in ["plain", "twice", "owned", "target"] {
            put(at.join(name), "old");
            fs::set_permissions(at.join(name), fs::Permissions::from_mode(0o640)).expect("set");
        }
        fs::hard_link(at.join("twice"), at.join("other")).expect("linked");
        std::os::unix::fs::chown(at.join("owned"), Some(12), Some(34)).expect("owned");
        std::os::unix::fs::symlink("target", at.join("link")).expect("linked");
        for name in ["plain", "twice", "owned", "link"] {
            cluster.tatami("cp", &[from, &format!("{to}{name}")]);
        }
        for name in ["plain", "twice", "other", "owned", "target"] {
            assert_eq!(get(at.join(name)), b"new bytes", "{name}");
            assert_eq!(stat(at.join(name)).mode() & 0o7777, 0o640, "{name}");
        }
        assert!(at.join("link").is_symlink());
        assert_eq!((stat(at.join("owned")).uid(), stat(at.join("owned")).gid()), (12, 34));
        assert_eq!(stat(at.join("twice")).ino(), stat(at.join("other")).ino());
        // Left alone where the user says so.
        put(at.join("plain"), "older");
        cluster.tatami("cp", &["--no-clobber", from, &format!("{to}plain")]);
        assert_eq!(get(at.join("plain")), b"older");
        // A file without permission to write is not replaced behind its owner's back.
        fs::create_dir(at.join("theirs")).expect("made");
        put(at.join("theirs/f"), "old");
        run(&mut shell(&at, "chown -R 4001:4001 theirs; chmod 444 theirs/f"));
        let mut command = as_user(4001, &format!("{} cp", text(&tatami_bin())));
        command.env("TATAMI_DIR", cluster.dir()).args([from, &format!("{to}theirs/f")]);
        let said = ask(&mut command);
        assert!(said.code == Some(1) && said.err.contains("permission"), "{said:?}");
        assert_eq!(get(at.join("theirs/f")), b"old");
    }
    cluster.finish();
}

#[test]
fn holes_stay_holes() {
    let cluster = Cluster::start(2);
    let (m, sparse) = (cluster.mount(1), cluster.dir().join("sparse"));
    let file = fs::File::create(&sparse).expect("made");
    for at in [3 << 20, 100 << 20] {
        file.write_all_at(b"data", at).expect("written");
    }
    file.set_len(300 << 20).expect("extended");
    cluster.tatami("cp", &[text(&sparse), ":/in"]);
    fs::create_dir(cluster.dir().join("tree")).expect("made");
    fs::rename(&sparse, cluster.dir().join("tree/f")).expect("moved");
    cluster.tatami("cp", &["-r", text(&cluster.dir().join("tree")), ":/tree"]);
    cluster.tatami("cp", &[":/in", ":/within"]);
    let out = cluster.dir().join("out");
    cluster.tatami("cp", &[":/tree/f", text(&out)]);
    for copy in [m.join("in"), m.join("tree/f"), m.join("within"), out] {
        let found = stat(&copy);
        assert_eq!(found.size(), 300 << 20, "{copy:?}");
        assert!(found.blocks() * 512 < 1 << 20, "{copy:?} takes {} blocks", found.blocks());
        run(shell(cluster.dir(), "cmp tree/f \"$0\"").arg(&copy));
    }
    cluster.finish();
}

#[test]
fn mv_renames_within_the_volume_and_moves_across() {
    let cluster = Cluster::start(2);
    let (m, here) = (cluster.mount(0), cluster.dir().join("here"));
    fs::create_dir_all(here.join("tree/sub")).expect("made");
    put(here.join("tree/sub/f"), "bytes");
    fs::set_permissions(here.join("tree/sub/f"), fs::Permissions::from_mode(0o400)).expect("set");
    for name in ["a", "b", "c"] {
        put(m.join(name), name);
    }
    fs::create_dir(m.join("dir")).expect("made");
    let inode = stat(m.join("a")).ino();
    cluster.tatami("mv", &[":/a", ":/A"]);
    assert_eq!((stat(m.join("A")).ino(), m.join("a").exists()), (inode, false));
    let said = cluster.tatami("mv", &["-v", ":/A", ":/b", ":/dir"]);
    assert_eq!(said.out, ":/A -> :/dir/A\n:/b -> :/dir/b\n");
    // A missing source does not stop the others.
    let said = ask(cluster.command("mv").args([":/missing", ":/c", ":/dir"]));
    assert!(said.code == Some(1) && said.err.contains("missing"), "{said:?}");
    assert_eq!(names(m.join("dir")), ["A", "b", "c"]);
    put(m.join("new"), "new");
    cluster.tatami("mv", &["-n", ":/new", ":/dir/b"]);
    assert_eq!((get(m.join("dir/b")), get(m.join("new"))), (b"b".to_vec(), b"new".to_vec()));
    cluster.tatami("mv", &[":/new", ":/dir/b"]);
    assert_eq!(get(m.join("dir/b")), b"new");
    let said = ask(cluster.command("mv").args([":/dir", ":/dir/below"]));
    assert_eq!(said.code, Some(1), "{said:?}");
    // Across: the original goes when all of it is there.
    cluster.tatami("mv", &[text(&here.join("tree")), ":/dir"]);
    assert!(names(&here).is_empty());
    assert_eq!(stat(m.join("dir/tree/sub/f")).mode() & 0o7777, 0o400);
    cluster.tatami("mv", &[":/dir/tree", text(&here)]);
    assert_eq!(get(here.join("tree/sub/f")), b"bytes");
    assert!(!m.join("dir/tree").exists());
    run(&mut shell(&here, "mkfifo tree/pipe"));
    let said = ask(cluster.command("mv").args([text(&here.join("tree")), ":/dir"]));
    assert!(said.code == Some(1) && said.err.contains("pipe"), "{said:?}");
    assert!(here.join("tree/sub/f").exists(), "what was not copied whole stays");
    cluster.finish();
}

/// As cp(1): a file that cannot be read is named, and the others are copied.
#[test]
fn one_bad_file_does_not_stop_the_others() {
    let cluster = Cluster::start(2);
    let m = cluster.mount(0);
    let data = tempfile::tempdir().expect("a directory");
    fs::set_permissions(data.path(), fs::Permissions::from_mode(0o755)).expect("set");
    for dir in ["a", "b"] {
        fs::create_dir(data.path().join(dir)).expect("made");
        (0..3).for_each(|n| put(data.path().join(format!("{dir}/f{n}")), "bytes"));
    }
    let secret = fs::Permissions::from_mode(0o000);
    fs::set_permissions(data.path().join("a/f1"), secret.clone()).expect("set");
    fs::create_dir(data.path().join("closed")).expect("made");
    fs::set_permissions(data.path().join("closed"), secret).expect("set");
    fs::create_dir(m.join("mine")).expect("made");
    std::os::unix::fs::chown(m.join("mine"), Some(4001), Some(4001)).expect("owned");
    let mut command = as_user(4001, &format!("{} cp -r", text(&tatami_bin())));
    command.env("TATAMI_DIR", cluster.dir()).args([text(data.path()), ":/mine/copy"]);
    let said = ask(&mut command);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("a/f1") && said.err.contains("closed"), "{said:?}");
    assert_eq!(names(m.join("mine/copy/a")), ["f0", "f2"]);
    assert_eq!(names(m.join("mine/copy/b")), ["f0", "f1", "f2"]);
    cluster.finish();
}

/// A copy waits for a silent node for a minute, or here for ten. Ctrl-C ends that.
#[test]
fn a_copy_that_waits_for_a_node_can_be_interrupted() {
    if skip_with_policies("its bytes must be on another node than their inode") {
        return;
    }
    let cluster = Cluster::start(2);
    put(cluster.mount(1).join("far"), "bytes");
    let stopped = Stopped::new(cluster.node_pid(1));
    let out = cluster.dir().join("out");
    let mut command = cluster.command("cp");
    let child = start_copy(command.args(["--client-patience-sec", "600", ":/far", text(&out)]));
    // Bit 2 of the caught signals is SIGINT: it is caught before the first file.
    let caught = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id()));
        let status = status.unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    };
    while caught() & 0b10 == 0 {
        pause();
    }
    signal(child.id() as i32, rustix::process::Signal::INT);
    let began = std::time::Instant::now();
    let said = wait_for_end(child);
    assert_eq!(said.code, Some(INTERRUPTED), "{said:?}");
    assert!(began.elapsed().as_secs() < 300, "it waited for the node");
    drop(stopped);
    assert!(!out.exists());
    assert_eq!(get(cluster.mount(0).join("far")), b"bytes");
    cluster.finish();
}
