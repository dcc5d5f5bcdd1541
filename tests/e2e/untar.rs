//! `tatami untar`: archives of tar(1) and of attackers, unpacked without a mount.

use rustix::process::Signal;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tatami_tests::Cluster;
use tatami_tests::command::{ask, program, run, shell, wide_number};
use tatami_tests::files::{get, names, put, stat};
use tatami_tests::process::{pause, signal};
use tatami_tests::request_count::expect_requests;

/// An ordinary user.
const USER: u32 = 4023;

/// Returns a directory of the test beside the volume.
fn work_dir(cluster: &Cluster) -> PathBuf {
    let work = cluster.dir().join("work");
    fs::create_dir(&work).expect("made");
    work
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Makes an archive by a script of Python with the functions `add` and `end`.
fn craft(work: &Path, name: &str, members: &str) -> PathBuf {
    let script = format!(
        r#"
import io, sys, tarfile
tar = tarfile.open(sys.argv[1], 'w', format=tarfile.PAX_FORMAT)
def add(name, type=tarfile.REGTYPE, data=b'', link='', mode=0o644, mtime=1000000000, **pax):
    member = tarfile.TarInfo(name)
    member.type, member.size, member.linkname = type, len(data), link
    member.mode, member.mtime, member.pax_headers = mode, mtime, pax
    tar.addfile(member, io.BytesIO(data))
DIR, SYM, HARD, FIFO = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE
{members}
tar.close()
"#
    );
    let archive = work.join(name);
    run(program("python3 -c").arg(script).arg(&archive));
    archive
}

/// Prints what tar restores of each entry below the present directory, but the sizes of
/// directories. Times are in nanoseconds with `%.9Y`-like precision of find(1).
const LISTING: &str = "find . -mindepth 1 \\( -type d -printf '%P %y %m %T@ %U %G\\n' \\) -o \
     -printf '%P %y %m %n %s %T@ %U %G %l\\n' | sort";

/// A tree with all that tar knows, in both formats of GNU tar, is as tar itself unpacks it, in
/// objects and beside the inodes.
#[test]
fn an_archive_is_unpacked_as_by_tar() {
    let cluster = Cluster::start(2);
    let work = work_dir(&cluster);
    let script = "mkdir -p t/d/sub t/empty t/locked && cd t && \
        for i in $(seq 20); do echo \"content of $i\" > d/f$i; done && : > nothing && \
        head -c 300000 /dev/urandom > large && head -c 70000 /dev/urandom > middle && \
        truncate -s 3M hole && printf x | dd of=hole bs=1 seek=1000000 conv=notrunc status=none && \
        truncate -s 2000 small-hole && printf y | dd of=small-hole bs=1 seek=900 conv=notrunc \
            status=none && \
        ln -s d/f1 link && ln -s /nowhere dangling && ln d/f2 hard && ln link hard-link && \
        mkfifo pipe && long=$(printf 'n%.0s' $(seq 200)) && mkdir -p $long/$long && \
        echo deep > $long/$long/file && ln -s $long/$long/file long-link && \
        chmod 4751 d/f7 && chown 5001:5002 d/f7 d/f8 && chmod 4751 d/f7 && chmod 400 d/f9 && \
        echo in > locked/in && touch -d '2001-02-03 04:05:06.123456789' d/f3 link d/sub d && \
        touch -h -d '1999-12-31 23:59:59.5' link && touch -d '1960-05-06 07:08:09' d/f4 && \
        setfattr -n user.note -v $'two\\nlines' d/f5 && chmod 555 locked && chmod 1777 empty";
    run(&mut shell(&work, script));
    let wanted = run(&mut shell(&work.join("t"), LISTING)).out;
    // The old format has whole seconds.
    run(&mut shell(
        &work,
        "tar --format=gnu -S -cf gnu.tar -C t . && \
         tar --format=posix --xattrs -S -cf posix.tar -C t . && \
         tar --format=posix --sparse-version=0.1 -S -cf posix01.tar -C t . && \
         mkdir by-tar && tar -xpf gnu.tar -C by-tar",
    ));
    let wanted_gnu = run(&mut shell(&work.join("by-tar"), LISTING)).out;
    for policy in ["0", "4k"] {
        cluster.tatami("set", &["--inline", policy, "--engine", "file", ":/"]);
        for format in ["gnu", "posix", "posix01"] {
            let name = format!("{format}-{policy}");
            let archive = work.join(format!("{format}.tar"));
            // The second time, it replaces what is there.
            for _ in 0..2 {
                cluster.tatami("untar", &[text(&archive), &format!(":/{name}")]);
            }
            let there = cluster.mount(1).join(&name);
            let got = run(&mut shell(&there, LISTING)).out;
            let wanted = if format == "gnu" { &wanted_gnu } else { &wanted };
            for (got, wanted) in got.lines().zip(wanted.lines()) {
                assert_eq!(got, wanted, "{name}");
            }
            assert_eq!(got.lines().count(), wanted.lines().count(), "{name}");
            let compared = format!("diff -r --no-dereference {} . -x pipe", text(&work.join("t")));
            run(&mut shell(&there, &compared));
            if policy == "0" {
                assert!(stat(there.join("hole")).blocks() < 1000, "{name}: the hole is one");
            }
            if format == "posix" {
                let line = "test \"$(getfattr -n user.note --only-values d/f5)\" = $'two\\nlines'";
                run(&mut shell(&there, line));
            }
        }
    }
    cluster.finish();
}

/// Policies in an archive hold for the files below. Small files are made by few requests.
#[test]
fn small_members_share_requests() {
    const FILES: usize = 2000;
    let cluster = Cluster::start(2);
    let work = work_dir(&cluster);
    for (policy, most) in [("0", 200), ("4k", 70)] {
        let members = format!(
            "add('t', DIR, mode=0o755, **{{'SCHILY.xattr.user.tatami.inline': '{policy}'}})\n\
             for n in range({FILES}):\n    \
                 if n % 200 == 0: add(f't/d{{n // 200}}', DIR, mode=0o755)\n    \
                 add(f't/d{{n // 200}}/f{{n}}', data=b'%1000d' % n)"
        );
        let archive = craft(&work, &format!("{policy}.tar"), &members);
        expect_requests(&cluster, policy, most, |round| {
            cluster.tatami("untar", &[text(&archive), &format!(":/{policy}-{round}")]);
        });
        let there = cluster.mount(1).join(format!("{policy}-0/t"));
        for n in (0..FILES).step_by(97) {
            let path = there.join(format!("d{}/f{n}", n / 200));
            assert_eq!(get(&path), format!("{n:1000}").into_bytes());
            let place = cluster.tatami("where", &[text(&path)]).out;
            assert_eq!(place.contains("beside the inode"), policy == "4k", "{place}");
        }
    }
    cluster.finish();
}

/// No member and no link leads out of the directory. What comes before such a member is unpacked.
#[test]
fn no_member_leaves_the_directory() {
    let cluster = Cluster::start(1);
    let (work, mount) = (work_dir(&cluster), cluster.mount(0));
    run(&mut shell(
        &mount,
        "mkdir outside && echo secret > outside/file && chmod 600 outside/file",
    ));
    run(&mut shell(&mount, "ln -s ../outside in-the-way"));
    let before = run(&mut shell(&mount.join("outside"), LISTING)).out;
    let cases = [
        ("absolute", "add('/abs', data=b'x')", "absolute"),
        ("upwards", "add('../outside/up', data=b'x')", "leads out"),
        ("inside-up", "add('good/../../outside/up', data=b'x')", "leads out"),
        ("dir-up", "add('..', DIR, mode=0o777)", "leads out"),
        ("below-link", "add('l', SYM, link='../outside'); add('l/up', data=b'x')", "link l"),
        (
            "below-deep-link",
            "add('a', DIR); add('a/l', SYM, link='/outside'); add('a/l/b/up', data=b'x')",
            "link a/l",
        ),
        ("dir-is-link", "add('l', SYM, link='../outside'); add('l', DIR, mode=0o777)", "link l"),
        ("hard-up", "add('h', HARD, link='../outside/file')", "leads out"),
        ("hard-absolute", "add('h', HARD, link='/outside/file')", "absolute"),
        (
            "hard-behind-link",
            "add('l', SYM, link='../outside'); add('h', HARD, link='l/file')",
            "link l",
        ),
    ];
    for (name, members, why) in cases {
        let members = format!("add('good', data=b'good')\n{members}\nadd('after', data=b'x')");
        let archive = craft(&work, name, &members);
        let said = ask(cluster.command("untar").args([text(&archive), &format!(":/{name}")]));
        assert!(said.code == Some(1) && said.err.contains(why), "{name}: {said:?}");
        assert!(said.err.contains("refused") && said.err.contains("unpacked"), "{said:?}");
        assert_eq!(get(mount.join(name).join("good")), b"good", "{name}");
        assert!(!names(mount.join(name)).contains(&"after".to_owned()), "{name}");
    }
    // A link in the directory from before, and a file in the place of a link.
    let archive = craft(&work, "in-the-way", "add('in-the-way/up', data=b'x')");
    let said = ask(cluster.command("untar").args([text(&archive), ":/"]));
    assert!(said.code == Some(1) && said.err.contains("in-the-way"), "{said:?}");
    let members = "add('l', SYM, link='../outside/file'); add('l', data=b'mine', mode=0o666)\n\
                   add('m', SYM, link='../outside/file'); add('n', HARD, link='m')\n\
                   add('n', data=b'mine', mode=0o666)";
    let archive = craft(&work, "through", members);
    cluster.tatami("untar", &[text(&archive), ":/through"]);
    assert_eq!(get(mount.join("through/l")), b"mine");
    assert_eq!(get(mount.join("through/n")), b"mine");
    assert_eq!(run(&mut shell(&mount.join("outside"), LISTING)).out, before);
    assert!(!mount.join("up").exists() && !mount.join("abs").exists());
    cluster.finish();
}

/// A member that cannot be unpacked is named. What is in its place keeps its attributes, and the
/// others are unpacked.
#[test]
fn only_unpacked_members_get_attributes() {
    let cluster = Cluster::start(1);
    let (work, mount) = (work_dir(&cluster), cluster.mount(0));
    run(&mut shell(&mount, "mkdir -m 777 d && mkdir d/dir && echo x > d/file && mkfifo d/pipe"));
    run(&mut shell(&mount, &format!("chown {USER} d/dir d/file && touch -d 2001-02-03 d/*")));
    let before = run(&mut shell(&mount, "stat -c '%n %F %a %u %Y' d/*")).out;
    let members = "add('dir', data=b'x', mode=0o777); add('dir', SYM, link='file')\n\
                   add('file', DIR, mode=0o777); add('file/below', data=b'x')\n\
                   add('null', tarfile.CHRTYPE); add('gone', HARD, link='none')\n\
                   add('suid', data=b'x', mode=0o6755)\n\
                   add('ro', data=b'x', mode=0o444, **{'SCHILY.xattr.user.a': 'b'})\n\
                   add('trusted', data=b'x', **{'SCHILY.xattr.trusted.a': 'b'})";
    let archive = craft(&work, "t.tar", members);
    fs::set_permissions(&work, PermissionsExt::from_mode(0o755)).expect("chmod");
    let said = ask(cluster.command_as(USER, "untar").args(["--json", text(&archive), ":/d"]));
    assert_eq!(said.code, Some(1), "{said:?}");
    for name in ["dir", "file/", "file/below", "null", "gone"] {
        assert!(
            said.err.contains(&format!("cannot unpack {name}: "))
                || said.err.contains(&format!("{name}: ")),
            "{name}: {said:?}"
        );
    }
    let report: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(report["failed"], 6, "{report}");
    assert_eq!((&report["files"], &report["members"]), (&3.into(), &3.into()), "{report}");
    assert_eq!(wide_number(&report["bytes"]), 3);
    let made = stat(mount.join("d/suid"));
    assert_eq!((made.mode() & 0o7777, made.uid(), made.mtime()), (0o755, USER, 1_000_000_000));
    let made = stat(mount.join("d/ro"));
    assert_eq!((made.mode() & 0o7777, made.mtime()), (0o444, 1_000_000_000));
    run(&mut shell(&mount, "test \"$(getfattr -n user.a --only-values d/ro)\" = b"));
    run(&mut shell(&mount, "rm d/suid d/ro d/trusted"));
    assert_eq!(run(&mut shell(&mount, "stat -c '%n %F %a %u %Y' d/*")).out, before);
    cluster.finish();
}

/// An archive that ends early, has a wrong checksum or is compressed is an error, which says how
/// many members were unpacked. These are whole.
#[test]
fn a_damaged_archive_is_an_error() {
    let cluster = Cluster::start(1);
    let (work, mount) = (work_dir(&cluster), cluster.mount(0));
    let archive = craft(&work, "t.tar", "for n in range(3): add(f'f{n}', data=b'x' * 600)");
    let whole = get(&archive);
    // Each member has a header and two blocks, and the end has two blocks.
    let members_of = |end: usize| (end / 1536).min(3);
    let cuts = [0, 1, 511, 512, 513, 1112, 1535, 1536, 2600, 3072, 4000, 4608, 4609, 5000];
    for (n, end) in cuts.into_iter().enumerate() {
        let cut = work.join("cut.tar");
        put(&cut, &whole[..end]);
        let said = ask(cluster.command("untar").args([text(&cut), &format!(":/c{n}")]));
        assert!(said.code == Some(1) && said.err.contains("cut off"), "{end}: {said:?}");
        let there = names(mount.join(format!("c{n}")));
        // All bytes of the last member may be there, and only zeros after them be missing.
        let least = members_of(end);
        assert!((least..=least + 1).contains(&there.len()), "{end}: {there:?}");
        let count = match there.len() {
            1 => "1 member was unpacked".to_owned(),
            count => format!("{count} members were unpacked"),
        };
        assert!(said.err.contains(&count), "{end}: {said:?}");
        for name in there {
            assert_eq!(get(mount.join(format!("c{n}/{name}"))), [b'x'; 600]);
        }
    }
    let mut changed = whole.clone();
    changed[1536 + 150] ^= 1;
    put(work.join("changed.tar"), &changed);
    let line = [text(&work.join("changed.tar")).to_owned(), ":/changed".to_owned()];
    let said = ask(cluster.command("untar").args(&line));
    assert!(said.code == Some(1) && said.err.contains("checksum"), "{said:?}");
    assert!(said.err.contains("byte 1536") && said.err.contains("1 member was"), "{said:?}");
    run(&mut shell(&work, "gzip -k t.tar"));
    let said = ask(cluster.command("untar").args([text(&work.join("t.tar.gz")), ":/gz"]));
    assert!(said.code == Some(1) && said.err.contains("gzip -dc"), "{said:?}");
    let mut unzip = program("gzip -dc").arg(work.join("t.tar.gz")).stdout(Stdio::piped()).spawn();
    let pipe = unzip.as_mut().expect("gzip").stdout.take().expect("a pipe");
    run(cluster.command("untar").args(["-", ":/gz"]).stdin(pipe));
    assert!(unzip.expect("gzip").wait().expect("it ends").success());
    assert_eq!(names(mount.join("gz")), ["f0", "f1", "f2"]);
    for (line, code) in [
        (&["t", "local"][..], 2),
        (&["/nowhere/t.tar", ":/x"], 1),
        (&[text(&work), ":/x"], 1),
        (&[text(&archive), ":/gz/f0"], 1),
        (&[text(&archive), ":/none/dir"], 1),
    ] {
        let said = ask(cluster.command("untar").args(line));
        assert_eq!(said.code, Some(code), "{line:?}: {said:?}");
    }
    cluster.finish();
}

/// A large file needs no memory for its bytes, from a pipe and from an archive in the volume.
#[test]
fn large_members_are_streams() {
    const SIZE: usize = 96 << 20;
    const MEMORY_MAX: u64 = 64 << 20;
    let cluster = Cluster::start(1);
    let (work, mount) = (work_dir(&cluster), cluster.mount(0));
    let members = format!("add('large', data=bytes(range(256)) * ({SIZE} // 256))");
    let archive = craft(&work, "t.tar", &members);
    run(&mut shell(&mount, &format!("cp {} archive.tar", text(&archive))));
    let script = "import resource, subprocess, sys\n\
                  assert subprocess.call(sys.argv[1:]) == 0\n\
                  print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";
    for (from, to) in [("-", ":/one"), (":/archive.tar", ":/two")] {
        let untar = cluster.command("untar");
        let mut command = program("python3 -c");
        command.arg(script).arg(untar.get_program()).args(untar.get_args()).args([from, to]);
        let envs = untar.get_envs().filter_map(|(key, value)| Some((key, value?)));
        command.envs(envs).stdin(File::open(&archive).expect("open"));
        let said = run(&mut command);
        let peak: u64 = said.out.trim().parse::<u64>().expect("a number") << 10;
        assert!(peak < MEMORY_MAX, "{from}: {peak} bytes of memory");
        let path = mount.join(&to[2..]).join("large");
        assert_eq!(stat(&path).len(), SIZE as u64);
        run(&mut shell(&work, &format!("tar xOf t.tar | cmp - {}", text(&path))));
    }
    cluster.finish();
}

/// Ctrl-C while the archive is slow: members that are complete may be there, and no other.
#[test]
fn an_interrupted_command_leaves_no_part_of_a_file() {
    let cluster = Cluster::start(1);
    let (work, mount) = (work_dir(&cluster), cluster.mount(0));
    let members = "add('d', DIR, mode=0o750); add('d/large', data=b'x' * 3000000)";
    let archive = craft(&work, "t.tar", members);
    for (name, number) in [("INT", Signal::INT), ("TERM", Signal::TERM)] {
        let mut command: Command = cluster.command("untar");
        command.args(["-v", "-", &format!(":/{name}")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("started");
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(&get(&archive)[..2_000_000]).expect("written");
        // The directory is there, so the signals are caught and the file is under way.
        let begun = Instant::now();
        while !mount.join(name).join("d").exists() {
            assert!(begun.elapsed() < Duration::from_secs(120), "the directory is made");
            pause();
        }
        signal(child.id().try_into().expect("a pid"), number);
        let ended = child.wait_with_output().expect("it ends");
        let err = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.code() == Some(130), "{ended:?}");
        assert!(err.contains("1 member was unpacked; no file is incomplete"), "{err}");
        assert_eq!(String::from_utf8_lossy(&ended.stdout), "d/\n");
        assert!(names(mount.join(name).join("d")).is_empty(), "no part of the file");
        drop(input);
        let dir = stat(mount.join(name).join("d"));
        assert_eq!((dir.mode() & 0o7777, dir.mtime()), (0o750, 1_000_000_000));
    }
    let said = cluster.tatami("untar", &["-v", text(&archive), ":/INT"]);
    assert_eq!(said.out, "d/\nd/large\n");
    assert_eq!(stat(mount.join("INT/d/large")).len(), 3_000_000);
    cluster.finish();
}
