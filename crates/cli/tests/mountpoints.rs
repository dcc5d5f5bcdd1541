//! Mount points that `up` makes take no files without their mount; and who may create files in a
//! new volume.

mod common;

use common::users::{OTHER, OWNER, Users};
use common::{Said, Volume};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const NOTHING: [&str; 0] = [];

/// Whether a shell of this user can create the file. A shell is what an `echo > file` of users is.
fn can_create(uid: u32, file: &Path) -> bool {
    let mut command = std::process::Command::new("setpriv");
    let id = uid.to_string();
    command.args(["--clear-groups", "--reuid", &id, "--regid", &id, "sh", "-c", "echo x > \"$0\""]);
    let said: Said = command.arg(file).output().expect("setpriv runs").into();
    said.code == Some(0)
}

#[test]
fn no_mount_is_for_one_call() {
    let volume = Volume::mounted(2);
    let file = volume.path("mnt/node0/file");
    assert!(can_create(0, &file));
    volume.run("down", NOTHING).works();
    // The mount points that `up` made went with the mounts: nothing can be put there.
    assert!(!volume.path("mnt").exists());
    let said = volume.run("up", ["--no-mount"]);
    assert!(said.works().out.contains("not mounted"), "{said:?}");
    assert!(!can_create(0, &file));
    let said = volume.run("up", NOTHING);
    assert!(said.works().out.contains("mnt/node1"), "{said:?}");
    assert_eq!(std::fs::read(&file).expect("found again"), b"x\n");
    // `umount` and `mount` by hand do the same.
    let node0 = volume.path("mnt/node0");
    let node0 = node0.to_str().expect("UTF-8");
    volume.run("umount", [node0]).works();
    assert!(!can_create(0, &file));
    volume.run("mount", [node0]).works();
    assert_eq!(std::fs::read(&file).expect("found again"), b"x\n");
    volume.run("down", NOTHING).works();
}

#[test]
fn a_mount_point_that_was_there_stays_as_it_is() {
    let volume = Volume::new();
    let mnt = volume.path("mine");
    std::fs::create_dir(&mnt).expect("made");
    std::fs::set_permissions(&mnt, std::fs::Permissions::from_mode(0o751)).expect("set");
    volume.run("up", ["--mount", mnt.to_str().expect("UTF-8")]).works();
    volume.run("down", NOTHING).works();
    let mode = std::fs::metadata(&mnt).expect("it stays").permissions().mode();
    assert_eq!(mode & 0o7777, 0o751);
}

/// A mount that ends without `umount`, as by a crash of the machine.
#[test]
fn a_mount_point_is_closed_below_the_mount() {
    let Some(users) = Users::new() else { return };
    let mnt = users.path("mnt");
    std::fs::create_dir(&mnt).expect("made");
    std::os::unix::fs::chown(&mnt, Some(OWNER), Some(OWNER)).expect("owned");
    let below = mnt.join("below");
    let below_text = below.to_str().expect("UTF-8");
    let said = users.run(OWNER, "up", &["--mount", below_text, "--mount-allow-other", "false"]);
    if said.err.contains("fusermount") || said.err.contains("/dev/fuse") {
        return; // an ordinary user cannot mount here
    }
    said.works();
    assert!(can_create(OWNER, &below.join("file")));
    rustix::mount::unmount(&below, rustix::mount::UnmountFlags::DETACH).expect("unmounted");
    assert!(!can_create(OWNER, &below.join("file")), "the local disk takes it");
    users.run(OWNER, "up", &["--mount-allow-other", "false"]).works();
    assert!(can_create(OWNER, &below.join("other")));
    users.run(OWNER, "down", &[]).works();
    assert!(!below.exists() && mnt.exists());
}

#[test]
fn the_first_start_says_who_may_create_files() {
    if Users::new().is_none() {
        return;
    }
    let volume = Volume::new();
    let said = volume.run("up", ["--mount", volume.path("mnt").to_str().expect("UTF-8")]);
    std::fs::set_permissions(volume.dir(), std::fs::Permissions::from_mode(0o755)).expect("set");
    if !said.works().out.contains("only root") {
        assert!(!rustix::process::geteuid().is_root(), "{said:?}");
        return;
    }
    assert!(said.out.contains("--users"), "{said:?}");
    let file = volume.path("mnt/theirs");
    assert!(!can_create(OTHER, &file));
    let said = volume.run("up", ["--users"]);
    assert!(!said.works().out.contains("only root"), "{said:?}");
    assert!(can_create(OTHER, &file));
    // As in /tmp: others do not remove it.
    let mut remove = std::process::Command::new("setpriv");
    remove.args(["--clear-groups", "--reuid", "54321", "--regid", "54321", "rm", "-f"]).arg(&file);
    assert!(!remove.status().expect("it runs").success() && file.exists());
    volume.run("down", NOTHING).works();
    // A new volume says nothing of root when all users may use it.
    let open = Volume::new();
    let said = open.run("up", ["--users", "--no-mount"]);
    assert!(!said.works().out.contains("only root"), "{said:?}");
    let said = open.run("ls", ["-ld", ":/"]);
    assert!(said.works().out.starts_with("drwxrwxrwt"), "{said:?}");
}

/// A volume of one node is mounted at PATH, one of several nodes below it.
#[test]
fn nodes_that_are_added_are_not_mounted_inside_the_volume() {
    let volume = Volume::mounted(1);
    std::fs::write(volume.path("mnt/file"), "bytes").expect("written");
    volume.run("node add", ["--nodes", "1"]).works();
    let said = volume.run("up", NOTHING);
    assert!(said.works().err.contains("tatami umount"), "{said:?}");
    assert!(!volume.path("mnt/node1").exists());
    volume.run("umount", [volume.path("mnt").to_str().expect("UTF-8")]).works();
    volume.run("up", NOTHING).works();
    assert_eq!(std::fs::read(volume.path("mnt/node1/file")).expect("found"), b"bytes");
    volume.run("down", NOTHING).works();
    assert!(!volume.path("mnt").exists());
}
