//! What one user may do to the mounts, daemons and background work of another one.

mod common;

use common::Said;
use common::users::{OTHER, OWNER, Users, let_users_mount};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Far below the wait for a mount process that is ending.
const AT_ONCE: Duration = Duration::from_secs(30);

/// Starts the owner's volume, open to other users, with a mount for all of them at `mnt`.
fn start_open_volume(users: &Users) -> Said {
    let config = "[mount]\nallow_other = true\n";
    std::fs::create_dir(users.volume()).expect("made");
    users.give("home/volume", OWNER);
    std::fs::write(users.volume().join("tatami.toml"), config).expect("written");
    users.give("home/volume/tatami.toml", OWNER);
    users.run(OWNER, "up", &["--no-mount"])
}

/// A mount of the owner's volume by any user; it ends with the value.
struct MountOf<'a> {
    users: &'a Users,
    path: String,
}

impl MountOf<'_> {
    /// Mounts as user `uid` at a new directory of that user.
    fn new<'a>(users: &'a Users, uid: u32, name: &str) -> MountOf<'a> {
        let path = users.path(name);
        std::fs::create_dir(&path).expect("made");
        users.give(name, uid);
        let path = path.to_str().expect("UTF-8").to_owned();
        users.run(uid, "mount", &["-o", "noallow_other", &path]).works();
        MountOf { users, path }
    }

    fn is_mounted(&self) -> bool {
        // The main thread of this process is in another mount namespace.
        let table = std::fs::read_to_string("/proc/thread-self/mountinfo").expect("a table");
        table.lines().any(|line| line.split(' ').nth(4) == Some(&self.path))
    }
}

impl Drop for MountOf<'_> {
    fn drop(&mut self) {
        self.users.run(0, "umount", &["--force", &self.path]);
    }
}

/// Returns users that may mount. `None` if the test cannot give them that right.
fn users_that_mount() -> Option<Users> {
    let users = Users::new()?;
    let scratch = users.path("scratch");
    std::fs::create_dir(&scratch).expect("made");
    let_users_mount(&scratch);
    Some(users)
}

#[test]
fn only_its_owner_and_the_superuser_end_a_mount() {
    let Some(users) = users_that_mount() else { return };
    start_open_volume(&users).works();
    let (root, other) = (MountOf::new(&users, 0, "root"), MountOf::new(&users, OTHER, "other"));
    for (mount, owner) in [(&root, "user root"), (&other, "user ttm12346")] {
        for flags in [&[][..], &["--force"]] {
            let begun = Instant::now();
            let said = users.run(OWNER, "umount", &[flags, &[&mount.path]].concat());
            assert!(begun.elapsed() < AT_ONCE, "{said:?}");
            said.fails(1, &["not permitted", "is a mount of", owner, "sudo tatami umount"]);
            assert!(mount.is_mounted(), "{}", mount.path);
        }
    }
    users.run(OTHER, "umount", &[&other.path]).works();
    assert!(root.is_mounted() && !other.is_mounted());
    let again = MountOf::new(&users, OTHER, "again");
    users.run(0, "umount", &[&again.path, &root.path]).works();
    assert!(!again.is_mounted() && !root.is_mounted());
    users.run(OWNER, "down", &[]).works();
}

#[test]
fn a_volume_that_others_have_mounted_is_not_stopped_by_accident() {
    let Some(users) = users_that_mount() else { return };
    start_open_volume(&users).works();
    let (root, other) = (MountOf::new(&users, 0, "root"), MountOf::new(&users, OTHER, "other"));
    let begun = Instant::now();
    let said = users.run(OWNER, "down", &[]);
    assert!(begun.elapsed() < AT_ONCE, "{said:?}");
    let parts = ["mounted by other users", "user root", "user ttm12346", "--force"];
    said.fails(1, &parts);
    users.run(OWNER, "ls", &[":/"]).works();
    let forced = users.run(OWNER, "down", &["--force"]);
    forced.works();
    assert_eq!(forced.err.matches("stays").count(), 2, "{forced:?}");
    assert!(root.is_mounted() && other.is_mounted());
    // The mounts go on when the volume is back.
    users.run(OWNER, "up", &["--no-mount"]).works();
    std::fs::metadata(&root.path).expect("stat through the mount");
    users.run(OTHER, "umount", &[&other.path]).works();
    users.run(0, "umount", &[&root.path]).works();
    users.run(OWNER, "down", &[]).works();
}

#[test]
fn the_superuser_stops_a_volume_with_the_mounts_of_all_users() {
    let Some(users) = users_that_mount() else { return };
    std::fs::create_dir(users.volume()).expect("made");
    users.give("home", 0);
    users.run(0, "up", &["--no-mount"]).works();
    let other = MountOf::new(&users, OTHER, "other");
    // The message names a program of another user that uses the mount.
    let mut command = Command::new("sh");
    command.args(["-c", "cd \"$0\" && echo there && read line", &other.path]);
    command.uid(OTHER).gid(OTHER).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = command.spawn().expect("sh runs");
    let mut line = [0; 6];
    program.stdout.as_mut().expect("piped").read_exact(&mut line).expect("it is there");
    users.run(0, "down", &[]).fails(1, &["in use", &format!("(process {})", program.id())]);
    drop(program.stdin.take());
    program.wait().expect("it ends");
    let said = users.run(0, "down", &[]);
    said.works();
    assert!(said.out.contains("1 mounts and 1 daemons"), "{said:?}");
    assert!(!other.is_mounted());
}

/// Starts a relayout in the background as user `uid` and returns its process number, when it has
/// ended.
fn relayout_in_background(users: &Users, uid: u32, path: &str) -> i64 {
    let said = users.run(uid, "relayout", &["--background", "--to", "striped", path]);
    let words = said.works().out.clone();
    let pid: i64 = words.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a number");
    loop {
        let report = users.run(uid, "relayout", &["--status", "--json"]).works().json();
        let all = report["relayouts"].as_array().expect("a list").clone();
        let own = all.into_iter().rfind(|one| one["pid"] == pid).expect("its own note");
        assert_eq!(own["user"], uid, "{own}");
        if own["state"] != "running" {
            // Not all may read the file. The note of a failure names it, too.
            assert_ne!(own["state"], "died", "{own}");
            return pid;
        }
        std::thread::yield_now();
    }
}

#[test]
fn background_work_is_shown_to_its_user_and_the_superuser() {
    let Some(users) = Users::new() else { return };
    start_open_volume(&users).works();
    let all = [0, OWNER, OTHER];
    let pids = all.map(|uid| {
        let path = format!(":/secret-of-{uid}");
        users.run(OWNER, "cp", &["/etc/hostname", &path]).works();
        relayout_in_background(&users, uid, &path)
    });
    for (uid, pid) in all.into_iter().zip(pids) {
        let text = users.run(uid, "relayout", &["--status"]).works().out.clone();
        for other in all {
            let shown = text.contains(&format!("secret-of-{other}"));
            assert_eq!(shown, uid == 0 || uid == other, "{uid} looks for {other}: {text}");
        }
        assert!(text.contains(&format!("process {pid}, ")), "{text}");
    }
    let text = users.run(0, "relayout", &["--status"]).works().out.clone();
    assert!(text.contains(&format!("of user {OTHER}, :/secret")), "{text}");
    // Neither the notes nor their directories are for others.
    for place in ["/run/tatami", &format!("/tmp/tatami-{OWNER}")] {
        let dir = Path::new(place).join("relayout");
        let mode = |path: &Path| std::fs::metadata(path).expect("there").mode() & 0o077;
        assert_eq!(mode(&dir), 0, "{}", dir.display());
        for note in std::fs::read_dir(&dir).expect("a list").flatten() {
            let named = std::fs::read_to_string(note.path()).expect("text").contains("secret-of");
            assert!(!named || mode(&note.path()) == 0, "{:?}", note.path());
        }
    }
    users.run(OWNER, "down", &[]).works();
}

#[test]
fn what_is_no_mount_point_is_named_with_the_mount_point() {
    let volume = common::Volume::mounted(1);
    let inside = volume.path("mnt/dir");
    std::fs::create_dir(&inside).expect("made");
    let mnt = volume.path("mnt").display().to_string();
    for path in [inside.as_path(), &inside.join("missing")] {
        let said = volume.run("umount", [path]);
        said.fails(1, &["no volume is mounted on", "lies in the mount", "tatami umount"]);
        assert!(said.err.trim_end().ends_with(&format!("tatami umount {mnt}")), "{said:?}");
    }
    let said = volume.run("umount", ["/"]);
    said.fails(1, &["not of Tatami", "tatami status"]);
    assert!(!said.err.contains("umount /\n") && !said.err.trim_end().ends_with('/'), "{said:?}");
    volume.run("umount", ["/nowhere/at/all"]).fails(1, &["no volume is mounted"]);
    assert!(Path::new(&mnt).join("dir").exists());
}

#[test]
fn an_ordinary_user_is_told_what_is_possible() {
    let Some(users) = Users::new() else { return };
    start_open_volume(&users).works();
    // A volume of the superuser, on a path that all users trust.
    let roots = users.path("roots");
    let of_root = |uid: u32, verb: &str, args: &[&str]| -> Said {
        let mut command = Command::new(users.path("tatami"));
        command.args(verb.split(' ')).arg("--dir").arg(&roots).args(args);
        command.env("HOME", users.path("home")).env_remove("TATAMI_DIR").uid(uid).gid(uid);
        command.output().expect("it runs").into()
    };
    of_root(0, "up", &["--no-mount"]).works();
    let owner = "belongs to user root";
    let parts = ["not permitted", owner, "ask user root", "tatami up --dir DIR"];
    for (verb, args) in [
        ("up", &[][..]),
        ("down", &["--force"]),
        ("node start", &["0"]),
        ("node stop", &["0"]),
        ("node add", &[]),
        ("node drain", &["0"]),
        ("node rebalance", &[]),
        ("node forget", &["--lost", "0"]),
    ] {
        of_root(OTHER, verb, args).fails(1, &parts);
        // This one is in the home of its owner, so that others do not even trust the path.
        let said = users.run(OTHER, verb, args);
        said.fails(1, &[&format!("ask user {OWNER}"), "--dir DIR"]);
        assert!(!said.err.contains("sudo"), "{said:?}");
    }
    for args in [&[][..], &["--offline"]] {
        let said = of_root(OTHER, "fsck", args);
        said.fails(8, &["not permitted", owner]);
        assert!(!said.err.contains("tatami down"), "{said:?}");
    }
    let mut run = Command::new(users.path("tatami"));
    run.args(["node", "run", "--node-dir"]).arg(roots.join("node0"));
    let said: Said = run.uid(OTHER).gid(OTHER).output().expect("it runs").into();
    said.fails(1, &["key", owner]);
    // What is open to all works.
    of_root(OTHER, "ls", &[]).works();
    of_root(0, "down", &[]).works();
    users.run(OWNER, "down", &[]).works();
    // No advice to make a volume where this user cannot, or where other files are.
    let of = |uid: u32, verb: &str, dir: &str| -> Said {
        let mut command = Command::new(users.path("tatami"));
        command.args([verb, "--dir", dir]).env("HOME", users.path("home")).env_remove("TATAMI_DIR");
        command.uid(uid).gid(uid).output().expect("it runs").into()
    };
    for (uid, dir) in [(OTHER, "/etc"), (0, "/etc"), (OTHER, "/sys/none"), (OTHER, "/none")] {
        let said = of(uid, "status", dir);
        said.fails(3, &[&format!("there is no volume in {dir}"), "--dir DIR"]);
        assert!(!said.err.contains(&format!("tatami up --dir {dir}")), "{said:?}");
    }
    let empty = users.path("home").join("empty");
    std::fs::create_dir(&empty).expect("made");
    let empty = empty.display().to_string();
    of(0, "status", &empty).fails(3, &[&format!("make one: tatami up --dir {empty}")]);
    of(OTHER, "up", "/etc").fails(1, &["Permission denied", "a directory of your own"]);
    for verb in ["status", "ls"] {
        of(OTHER, verb, "/etc/passwd").fails(2, &["/etc/passwd is not a directory", "--dir DIR"]);
    }
}

#[test]
fn no_volume_lies_in_a_mount() {
    let volume = common::Volume::mounted(1);
    let (mnt, new) = (volume.path("mnt"), volume.path("mnt/new"));
    std::fs::create_dir(volume.path("mnt/there")).expect("made");
    for dir in [&mnt, &new, &volume.path("mnt/there"), &volume.path("mnt/there/deep/er")] {
        let dir = dir.to_str().expect("UTF-8");
        let said = common::tatami(["up", "--no-mount", "--dir", dir]);
        said.fails(2, &["cannot keep its data", "a mount of Tatami", "on a local disk"]);
        let said = common::tatami(["status", "--dir", dir]);
        let right = format!("--dir {};", volume.dir().display());
        said.fails(3, &["there is no volume in", "lies in the mount", &right]);
        assert!(!said.err.contains("tatami up"), "{said:?}");
    }
    assert_eq!(std::fs::read_dir(&mnt).expect("a list").count(), 1, "nothing was made");
}
