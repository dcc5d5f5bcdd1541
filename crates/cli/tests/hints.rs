//! Messages about obstacles that look like a stopped daemon; and connections of strangers, which
//! must not be an obstacle at all.

mod common;

use common::users::{OTHER, OWNER, Users};
use common::{Volume, tatami};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use tatami_cluster::KeyFile;
use tatami_skip::skip_test;

const NOTHING: [&str; 0] = [];

/// Returns the mount options in the kernel's mount table.
fn options_of(path: &std::path::Path) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("a table");
    let fields = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let line = table.lines().map(fields).find(|f| f[4] == path.to_str().expect("UTF-8"));
    line.expect("it is mounted")[5].split(',').map(str::to_owned).collect()
}

#[test]
fn a_volume_is_as_open_to_others_as_its_mount() {
    let Some(users) = Users::new() else { return };
    users.run(OWNER, "up", &["--no-mount"]).works();
    users.run(OWNER, "cp", &["/etc/hostname", ":/f"]).works();
    for verb in ["ls", "status", "cat"] {
        let path: &[&str] = if verb == "cat" { &[":/f"] } else { &[] };
        let said = users.run(OTHER, verb, path);
        let report = said.out.clone() + &said.err;
        assert_eq!(said.code, Some(3), "{said:#?}");
        for part in ["belongs to user 12345", "not open to others", "mount.allow_other = true"] {
            assert!(report.contains(part), "{verb}: no {part:?} in {report}");
        }
        assert!(!report.contains("to start stopped nodes"), "{report}");
    }
    // The mode of the socket alone does not grant access.
    users.set_mode(&users.volume().join("node0/socket"), 0o666);
    users.run(OTHER, "ls", &[]).fails(3, &["may not use this volume", "mount.allow_other"]);
    users.run(0, "cat", &[":/f"]).works();
    users.run(OWNER, "down", &[]).works();
    let mut open = users.command(OWNER, "up", &["--no-mount"]);
    let said: common::Said =
        open.env("TATAMI_MOUNT_ALLOW_OTHER", "true").output().expect("it runs").into();
    said.works();
    users.run(OTHER, "cat", &[":/f"]).works();
    users.run(OTHER, "rm", &[":/f"]).fails(1, &[]);
}

#[test]
fn the_superuser_uses_a_volume_of_another_user_and_does_not_trust_it() {
    let Some(users) = Users::new() else { return };
    users.run(OWNER, "up", &["--no-mount"]).works();
    for verb in ["up", "down"] {
        users.run(0, verb, &[]).fails(1, &["belongs to user 12345", "sudo -u '#12345'"]);
    }
    let mnt = users.path("mnt");
    std::fs::create_dir(&mnt).expect("made");
    let mnt_text = mnt.to_str().expect("UTF-8");
    users.run(0, "mount", &[mnt_text]).works();
    let options = options_of(&mnt);
    users.run(0, "umount", &[mnt_text]).works();
    assert!(options.contains(&"nosuid".into()) && options.contains(&"nodev".into()), "{options:?}");
    assert!(!users.volume().join("mount-logs").exists(), "nothing was written to it");
    users.run(0, "mount", &["-o", "suid,dev", mnt_text]).works();
    let options = options_of(&mnt);
    users.run(0, "umount", &[mnt_text]).works();
    assert!(!options.iter().any(|o| o == "nosuid" || o == "nodev"), "{options:?}");
}

#[test]
fn mounts_are_restricted_as_they_are_asked_to() {
    let volume = Volume::up(1);
    let mnt = volume.path("mnt");
    std::fs::create_dir(&mnt).expect("made");
    let mount = |options: &[&str]| {
        let args = options.iter().map(|o| o.as_ref()).chain([mnt.as_os_str()]);
        volume.run("mount", args).works();
        let found = options_of(&mnt);
        let run = std::process::Command::new(mnt.join("program")).status();
        volume.run("umount", [&mnt]).works();
        (found, run.map_err(|e| e.kind()))
    };
    std::fs::write(volume.path("program"), "#!/bin/sh\nexit 7\n").expect("written");
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(volume.path("program"), PermissionsExt::from_mode(0o755))
        .expect("set");
    let program = volume.path("program").display().to_string();
    volume.run("cp", ["-p", &program, ":/program"]).works();
    let (options, run) = mount(&["-o", "nosuid,nodev,noexec"]);
    for wanted in ["nosuid", "nodev", "noexec"] {
        assert!(options.iter().any(|o| o == wanted), "{options:?}");
    }
    assert_eq!(run.expect_err("not run"), std::io::ErrorKind::PermissionDenied);
    let (options, run) = mount(&[]);
    assert_eq!(run.expect("run").code(), Some(7));
    // For the superuser; other users mount with these two options only.
    if rustix::process::geteuid().is_root() {
        assert!(!options.iter().any(|o| ["nosuid", "nodev", "noexec"].contains(&o.as_str())));
    }
}

#[test]
fn mounting_for_others_without_permission_is_told() {
    let Some(users) = Users::new() else { return };
    users.run(OWNER, "up", &["--no-mount"]).works();
    // The mount helper on a machine where the administrator has not allowed `allow_other`.
    let bin = users.path("bin");
    std::fs::create_dir(&bin).expect("made");
    let text = "#!/bin/sh\necho \"fusermount3: option allow_other \
                only allowed if 'user_allow_other' is set in /etc/fuse.conf\" >&2\nexit 1\n";
    std::fs::write(users.path("helper"), text).expect("written");
    common::copy_program(&users.path("helper"), &bin.join("fusermount3"));
    users.set_mode(&bin.join("fusermount3"), 0o755);
    std::fs::create_dir(users.path("home/mnt")).expect("made");
    users.give("home/mnt", OWNER);
    let mnt = users.path("home/mnt");
    let mut mount = users.command(OWNER, "mount", &["-o", "allow_other", mnt.to_str().unwrap()]);
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let said: common::Said = mount.env("PATH", path).output().expect("it runs").into();
    said.fails(1, &["user_allow_other", "/etc/fuse.conf", "-o noallow_other"]);
    assert!(!said.err.contains("is fuse3 installed"), "{said:#?}");
}

#[test]
fn a_socket_that_is_gone_is_told_and_the_advice_helps() {
    let volume = Volume::up(1);
    std::fs::remove_file(volume.path("node0/socket")).expect("removed");
    let parts = ["is missing, although its port", "tatami node stop --force", "node0"];
    volume.run("ls", NOTHING).fails(3, &parts);
    volume.run("up", ["--no-mount"]).fails(3, &parts);
    let said = volume.run("status", NOTHING);
    assert_eq!(said.code, Some(3));
    assert!(parts.iter().all(|part| said.out.contains(part)), "{said:#?}");
    volume.run("node stop", ["--force", "node0"]).works();
    volume.run("up", ["--no-mount"]).works();
    volume.run("ls", NOTHING).works();
}

#[test]
fn a_node_of_another_machine_is_not_started_here() {
    let volume = Volume::up(1);
    // The volume as another machine has it: its files, without the directory of the node.
    let there = Volume::new();
    std::fs::copy(volume.path("key"), there.path("key")).expect("copied");
    let map = std::fs::read_to_string(volume.path("volume.toml")).expect("text");
    let elsewhere = volume.dir().join("elsewhere");
    let old = volume.path("node0");
    let (map, _) = map.split_once("# checksum").expect("its last line");
    let map = map.replace(old.to_str().unwrap(), elsewhere.to_str().unwrap());
    std::fs::write(there.path("copied.toml"), &map).expect("written");
    std::fs::rename(there.path("copied.toml"), there.path("volume.toml")).expect("renamed");
    let machine = std::fs::read_to_string(volume.path("machine.toml")).expect("text");
    assert!(machine.contains("nodes = [0]"), "{machine}");
    let machine = machine.replace("nodes = [0]", "nodes = []");
    std::fs::write(there.path("machine.toml"), machine).expect("written");
    there.run("ls", NOTHING).works();
    volume.run("down", NOTHING).works();
    for verb in ["status", "ls"] {
        let said = there.run(verb, NOTHING);
        let report = said.out.clone() + &said.err;
        assert_eq!(said.code, Some(3), "{said:#?}");
        assert!(report.contains("on another machine") && report.contains("127.0.0.1"), "{report}");
        let here = format!("tatami up --dir {}", there.dir().display());
        assert!(!report.contains(&here), "{report}");
    }
    let said = volume.run("status", NOTHING);
    assert!(said.out.contains(&format!("tatami up --dir {}", volume.dir().display())), "{said:#?}");
    std::fs::remove_file(there.path("volume.toml")).expect("removed");
}

#[test]
fn a_crowd_at_the_door_keeps_no_mount_out_and_hides_no_wrong_key() {
    const CROWD: usize = 300;
    let volume = Volume::up(1);
    let (address, socket) = (volume.address(0), volume.path("node0/socket"));
    let mnt = volume.path("mnt");
    std::fs::create_dir(&mnt).expect("made");
    // Dropped connections come again: there is a new crowd for each command.
    let crowd = || {
        let tcp = (0..CROWD).map(|_| TcpStream::connect(&address).expect("connected"));
        let unix = (0..CROWD).map(|_| UnixStream::connect(&socket).expect("connected"));
        (tcp.collect::<Vec<_>>(), unix.collect::<Vec<_>>())
    };
    let here = crowd();
    volume.run("mount", [&mnt]).works();
    drop(here);
    let here = crowd();
    std::fs::write(mnt.join("file"), "here").expect("written");
    volume.run("status", NOTHING).works();
    // A client with another key.
    let stranger = Volume::new();
    let map = std::fs::read_to_string(volume.path("volume.toml")).expect("text");
    let (map, _) = map.split_once("# checksum").expect("its last line");
    let map = map.replace("/node0", "/not-here");
    std::fs::write(stranger.path("volume.toml"), map).expect("written");
    KeyFile::create(&stranger.path("key")).expect("made");
    stranger.run("ls", NOTHING).fails(3, &["key"]);
    std::fs::remove_file(stranger.path("volume.toml")).expect("removed");
    drop(here);
    let said = volume.run("status", ["--json"]);
    let away = &said.works().json()["nodes"][0]["turned_away"];
    assert!(away["wrong_key"].as_u64() >= Some(1), "{away}");
    assert!(volume.run("status", NOTHING).works().out.contains("with a wrong key"));
    let log = std::fs::read_to_string(volume.path("node0/log")).expect("a log");
    assert!(log.contains("the key does not fit"), "{log}");
    volume.run("umount", [&mnt]).works();
    // The error of this command is not that of a stopped daemon.
    tatami(["ls", "--dir", "/nowhere/at/all"]).fails(3, &["there is no volume"]);
}

#[test]
fn a_copy_of_a_mount_in_another_namespace_does_not_keep_it() {
    use std::io::Read;
    use std::process::{Command, Stdio};
    if !rustix::process::geteuid().is_root() {
        return skip_test("only root can copy mounts");
    }
    let volume = Volume::mounted(1);
    std::fs::write(volume.path("mnt/file"), "kept").expect("written");
    let elsewhere = |script: &str| {
        let mut child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"])
            .arg(volume.path("mnt"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare runs");
        let mut line = [0; 3];
        child.stdout.as_mut().expect("piped").read_exact(&mut line).expect("it is there");
        child
    };
    let end = |mut child: std::process::Child| {
        drop(child.stdin.take());
        let mut text = String::new();
        child.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
        child.wait().expect("it ends");
        text
    };
    // A process that uses the mount keeps it busy.
    let user = elsewhere("exec 3< \"$1/file\"; echo up; read line");
    let said = volume.run("down", NOTHING);
    said.fails(1, &["in use", &format!("(process {})", user.id()), "open", "namespace"]);
    end(user);
    // A process with an unused copy does not.
    let holder = elsewhere("echo up; read line; ls \"$1\" 2>&1");
    let said = volume.run("down", NOTHING);
    let pid = holder.id();
    let report = end(holder);
    said.works();
    let parts = ["copied into mount namespaces", &format!("(process {pid})")];
    assert!(parts.iter().all(|part| said.err.contains(part)), "{said:#?}");
    // The mount point goes with the mount, in the other namespace, too.
    assert!(report.contains("No such file"), "{report}");
    assert!(volume.processes().is_empty());
    volume.run("up", NOTHING).works();
    assert_eq!(std::fs::read(volume.path("mnt/file")).expect("there"), b"kept");
}
