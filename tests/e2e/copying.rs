//! `tatami cp` as users of cp(1) expect it: no copy into itself, pipes, and sources that fail.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use tatami_tests::Cluster;
use tatami_tests::command::{Said, as_user, ask, copy_program, run, shell, tatami_bin};
use tatami_tests::files::{get, names, put};

/// An ordinary user.
const USER: u32 = 4021;

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Runs `tatami cp` with these arguments; it may fail.
fn run_copy(cluster: &Cluster, args: &[&str]) -> Said {
    ask(cluster.command("cp").args(args))
}

/// Runs a shell script in which `$T` is `tatami` and `$D` the volume's directory.
fn run_script(cluster: &Cluster, line: &str) -> Said {
    let mut command = shell(cluster.dir(), line);
    ask(command.env("T", tatami_bin()).env("TATAMI_DIR", cluster.dir()))
}

fn assert_fails(said: &Said, words: &[&str]) {
    assert_eq!(said.code, Some(1), "{said:?}");
    words.iter().for_each(|word| assert!(said.err.contains(word), "{word}: {said:?}"));
}

#[test]
fn no_directory_is_copied_into_itself() {
    let cluster = Cluster::start(2);
    let m = cluster.mount(0);
    fs::create_dir_all(m.join("d/inside/deep")).expect("made");
    put(m.join("d/file"), "bytes");
    std::os::unix::fs::symlink("d/inside", m.join("way")).expect("linked");
    let below = text(&m.join("d/inside")).to_owned();
    let whole = text(&m).to_owned();
    for (from, to) in [
        (":/d", ":/d"),
        (":/d", ":/d/inside"),
        (":/d", ":/d/new"),
        (":/d/", ":/way"),
        (":/d", ":/way/deep/new"),
        (":/", ":/d"),
        // Through a mount it is the same directory.
        (":/d", below.as_str()),
        (whole.as_str(), ":/d"),
    ] {
        assert_fails(&run_copy(&cluster, &["-r", from, to]), &["into itself", "outside"]);
    }
    assert_eq!(names(m.join("d")), ["file", "inside"]);
    assert_eq!(names(m.join("d/inside")), ["deep"]);
    // Beside it is not inside of it.
    cluster.tatami("cp", &["-r", ":/d", ":/dd"]);
    assert_eq!(get(m.join("dd/file")), b"bytes");
    cluster.finish();
}

#[test]
fn the_volume_itself_is_left_out_of_a_copy_into_it() {
    let cluster = Cluster::start(2);
    let (m, above) = (cluster.mount(0), tempfile::tempdir().expect("a directory"));
    let above = above.path();
    put(m.join("there"), "of the volume");
    fs::create_dir_all(above.join("sub/mnt")).expect("made");
    fs::create_dir(above.join("volume")).expect("made");
    put(above.join("mine"), "mine");
    // Another place where the volume is mounted, and its directory with the daemons' data.
    run(shell(above, "mount --bind \"$0\" sub/mnt && mount --bind \"$1\" volume")
        .arg(&m)
        .arg(cluster.dir()));
    let said = run_copy(&cluster, &["-r", text(above), ":/copy"]);
    let named = run_copy(&cluster, &["-r", text(&above.join("volume")), ":/named"]);
    run(&mut shell(above, "umount sub/mnt volume"));
    assert_eq!(said.code, Some(0), "{said:?}");
    for words in ["sub/mnt: left out, because it is a mount", "volume: left out, because it is the"]
    {
        assert!(said.err.contains(words), "{said:?}");
    }
    assert_eq!(get(m.join("copy/mine")), b"mine");
    assert_eq!(
        (names(m.join("copy")), names(m.join("copy/sub")).len()),
        (vec!["mine".to_owned(), "sub".to_owned()], 0)
    );
    assert_fails(&named, &["the directory of this volume"]);
    assert!(!m.join("named").exists());
    cluster.finish();
}

#[test]
fn pipes_and_standard_streams_are_read_and_written() {
    let cluster = Cluster::start(2);
    let m = cluster.mount(1);
    for line in [
        "echo bytes | $T cp - :/x",
        "echo bytes | $T cp /dev/stdin :/x",
        "bash -c '$T cp <(echo bytes) :/x'",
        "mkfifo pipe && { echo bytes > pipe & } && $T cp pipe :/x",
    ] {
        let said = run_script(&cluster, line);
        assert_eq!(
            (said.code, get(m.join("x"))),
            (Some(0), b"bytes\n".to_vec()),
            "{line}: {said:?}"
        );
        fs::remove_file(m.join("x")).expect("removed");
    }
    put(m.join("y"), "of the volume");
    let said = run_script(&cluster, "$T cp :/y - | tr a-z A-Z");
    assert_eq!((said.code, said.out.as_str()), (Some(0), "OF THE VOLUME"), "{said:?}");
    // As many bytes as fit no buffer.
    let said = run_script(
        &cluster,
        "seq 1000000 | tee sent | $T cp -p - :/many && $T cp :/many - | cmp - sent",
    );
    assert_eq!(said.code, Some(0), "{said:?}");
    // A reader that ends early is no failure to report: as after SIGPIPE.
    let said = run_script(&cluster, "$T cp :/many - | true");
    assert_eq!((said.code, said.err.as_str()), (Some(141), ""), "{said:?}");
    let said = run_script(&cluster, "$T cp -r - :/z");
    assert_eq!(said.code, Some(2), "{said:?}");
    cluster.finish();
}

#[test]
fn what_cannot_be_copied_is_named_and_the_rest_is_copied() {
    let cluster = Cluster::start(2);
    let (m, data) = (cluster.mount(0), cluster.dir().join("data"));
    fs::create_dir_all(data.join("sub")).expect("made");
    put(data.join("a"), "a");
    put(data.join("sub/b"), "b");
    run(&mut shell(&data, "mkfifo sub/pipe"));
    fs::create_dir(m.join("dst")).expect("made");
    let [a, b, missing] = ["a", "sub/b", "missing"].map(|name| data.join(name));
    assert_fails(
        &run_copy(&cluster, &[text(&a), text(&missing), text(&b), ":/dst"]),
        &["missing", "no such file"],
    );
    assert_eq!(names(m.join("dst")), ["a", "b"]);
    assert_fails(&run_copy(&cluster, &["-r", text(&data), ":/dst"]), &["pipe", "special"]);
    assert_eq!(names(m.join("dst/data/sub")), ["b"]);
    cluster.tatami("cp", &["-r", "--skip-special", text(&data), ":/skipped"]);
    // As in cp(1), the entries of `data/.` are copied and not the directory.
    for from in [data.join("."), data.join("sub/..")] {
        fs::create_dir(m.join("entries")).expect("made");
        cluster.tatami("cp", &["-r", "--skip-special", text(&from), ":/entries"]);
        assert_eq!(names(m.join("entries")), ["a", "sub"], "{from:?}");
        cluster.tatami("rm", &["-r", ":/entries"]);
    }
    cluster.finish();
}

/// An unreadable end of a pipe: no empty file with success.
#[test]
fn a_stream_that_fails_is_an_error() {
    let cluster = Cluster::start(1);
    let mut command = cluster.command("cp");
    command.args(["-", ":/x"]).stdin(Stdio::from(fs::File::open(cluster.dir()).expect("open")));
    let said = ask(&mut command);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("cannot read -"), "{said:?}");
    let full = ask(cluster.command("cp").args(["/dev/zero", "/dev/full"]));
    assert_eq!(full.code, Some(2), "one of them must be in the volume: {full:?}");
    put(cluster.mount(0).join("y"), "bytes");
    let full = run_script(&cluster, "$T cp :/y - > /dev/full");
    assert_eq!(full.code, Some(1), "{full:?}");
    assert!(Path::new("/dev/full").exists());
    cluster.finish();
}

#[test]
fn new_files_go_to_the_node_that_is_named() {
    let cluster = Cluster::start(3);
    let data = cluster.dir().join("data");
    fs::create_dir(&data).expect("made");
    // More than any policy keeps beside an inode.
    put(data.join("f"), [7; 70_000]);
    for (verb, args, to) in [
        ("cp", vec!["-r", "--node", "2", text(&data)], ":/copied"),
        ("sync", vec!["--node", "node2", text(&data)], ":/synced"),
        ("mv", vec!["--node", "2", text(&data)], ":/moved"),
    ] {
        cluster.tatami(verb, &[args.as_slice(), &[to]].concat());
        let found = cluster.tatami("stat", &[&format!("{to}/f")]);
        assert!(found.out.contains("stored  node2"), "{found:?}");
    }
    let said = run_copy(&cluster, &["--node", "7", "/etc/hostname", ":/x"]);
    assert!(said.code == Some(2) && said.err.contains("node0, node1"), "{said:?}");
    cluster.finish();
}

/// Advice names the directory of a volume that is not the default one.
#[test]
fn advice_leads_to_the_volume_in_use() {
    let cluster = Cluster::start(2);
    put(cluster.mount(1).join("f"), [7; 70_000]);
    cluster.kill_node(1);
    let mut command = cluster.command("cat");
    let said = ask(command.args(["--client-patience-sec", "1", ":/f"]));
    assert_eq!(said.code, Some(3), "{said:?}");
    let advice = format!("tatami status --dir {}", cluster.dir().display());
    assert!(said.err.contains(&advice), "{said:?}");
    cluster.up();
    cluster.finish();
}

/// What holds for root holds for an ordinary user: one directory of the volume belongs to that
/// user.
#[test]
fn an_ordinary_user_copies_as_root_does() {
    let cluster = Cluster::start(2);
    let mine = cluster.mount(0).join("mine");
    fs::create_dir(&mine).expect("made");
    std::os::unix::fs::chown(&mine, Some(USER), Some(USER)).expect("owned");
    let place = tempfile::Builder::new().prefix("ttu").tempdir_in("/tmp").expect("a directory");
    std::os::unix::fs::chown(place.path(), Some(USER), Some(USER)).expect("owned");
    copy_program(tatami_bin(), place.path().join("tatami"));
    let user = |line: &str| {
        let mut command = as_user(USER, "bash -euo pipefail -c");
        command.arg(line).current_dir(place.path()).env("TATAMI_DIR", cluster.dir());
        ask(command.env("T", "./tatami"))
    };
    let works = |line: &str| {
        let said = user(line);
        assert_eq!(said.code, Some(0), "{line}: {said:?}");
        said.out
    };
    works("mkdir -p d/sub; echo bytes > d/sub/f; echo hidden > d/.h; $T cp -r d :/mine");
    let said = user("$T cp -r :/mine/d :/mine/d/sub/new");
    assert!(said.code == Some(1) && said.err.contains("into itself"), "{said:?}");
    works("echo stream | $T cp - :/mine/s && test \"$($T cat :/mine/s)\" = stream");
    works("mkfifo d/pipe; $T cp -r --skip-special d/. :/mine/again; rm d/pipe");
    let said = user("$T cp -r d missing :/mine");
    assert!(said.code == Some(1) && said.err.contains("missing"), "{said:?}");
    works("echo more > d/more; $T sync d :/mine/d; $T sync :/mine/d out; diff -r d out");
    assert_eq!(works("$T ls -A :/mine/d"), ".h\nmore\nsub\n");
    works("$T mv :/mine/d :/mine/e; $T mv :/mine/e back; diff -r d back");
    works(
        "truncate -s 1G sparse; $T cp sparse :/mine/sparse; test $($T du -s :/mine/sparse | cut -f1) -lt 1024",
    );
    works("$T rm -r :/mine/again; test \"$($T ls :/mine)\" = \"$(printf 's\\nsparse')\"");
    // What belongs to others is refused, and left as it is.
    put(cluster.mount(0).join("theirs"), "root's");
    let said = user("$T cp d/more :/theirs");
    assert!(said.code == Some(1) && said.err.contains("permission denied"), "{said:?}");
    let said = user("$T mv :/theirs :/mine/");
    assert!(said.code == Some(1), "{said:?}");
    assert_eq!(get(cluster.mount(0).join("theirs")), b"root's");
    cluster.finish();
}
