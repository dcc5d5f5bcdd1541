//! Files that other users have planted: the superuser's `tatami` refuses to use them and reports
//! why.

mod common;

use common::users::{OWNER, Users};
use common::{Said, Volume};
use std::os::unix::fs::{chown, lchown, symlink};
use std::path::Path;
use tatami_skip::skip_test;

const NOTHING: [&str; 0] = [];

/// A remedy must not advise to take over the planted file.
#[track_caller]
fn is_refused(said: &Said, parts: &[&str]) {
    said.fails(1, parts);
    let advice = ["chown", "chmod"].iter().find(|word| said.err.contains(**word));
    assert!(advice.is_none(), "{said:#?}");
}

fn up(dir: &Path) -> Said {
    common::tatami(["up".as_ref(), "--no-mount".as_ref(), "--dir".as_ref(), dir.as_os_str()])
}

#[test]
fn a_directory_of_another_user_is_refused() {
    let Some(users) = Users::new() else { return };
    let home = users.path("home");
    for dir in [home.clone(), home.join("new"), home.join("new/deep")] {
        is_refused(&up(&dir), &["belongs to user 12345"]);
    }
    assert_eq!(std::fs::read_dir(&home).expect("listed").count(), 0, "nothing was made there");
    // A link of that user, also to a directory of ours.
    let (ours, link) = (users.path("ours"), users.path("link"));
    std::fs::create_dir(&ours).expect("made");
    symlink(&ours, &link).expect("linked");
    lchown(&link, Some(OWNER), Some(OWNER)).expect("given away");
    is_refused(&up(&link), &["belongs to user 12345"]);
    let link = users.path("to-home");
    symlink(&home, &link).expect("linked");
    is_refused(&up(&link), &["belongs to user 12345"]);
    assert_eq!(std::fs::read_dir(&ours).expect("listed").count(), 0);
    // A directory where all users may write belongs to no one user.
    users.set_mode(&ours, 0o1777);
    is_refused(&up(&ours), &["can write to"]);
    symlink(&home, ours.join("planted")).expect("linked");
    is_refused(&up(&ours.join("planted/volume")), &["symbolic link"]);
}

#[test]
fn links_that_were_planted_in_a_volume_are_not_followed() {
    let volume = Volume::up(1);
    volume.run("down", NOTHING).works();
    let victim = volume.path("victim");
    std::fs::write(&victim, "kept").expect("written");
    for name in [".lock", "node0/log", "node0/lock", "node0/FORMAT", "key"] {
        let place = volume.path(name);
        let aside = volume.path("aside");
        std::fs::rename(&place, &aside).expect("it is there");
        symlink(&victim, &place).expect("planted");
        is_refused(&volume.run("up", ["--no-mount"]), &["symbolic link"]);
        assert_eq!(std::fs::read(&victim).expect("there"), b"kept", "{name}");
        std::fs::rename(&aside, &place).expect("put back");
    }
    for name in ["node0/objects", "node0/meta"] {
        let (place, aside) = (volume.path(name), volume.path("aside"));
        std::fs::rename(&place, &aside).expect("it is there");
        symlink(&aside, &place).expect("planted");
        is_refused(&volume.run("up", ["--no-mount"]), &["symbolic link"]);
        std::fs::remove_file(&place).expect("removed");
        std::fs::rename(&aside, &place).expect("put back");
    }
    // Logs of mounts, and temporary files that are renamed into place.
    std::fs::create_dir_all(volume.path("mount-logs")).expect("made");
    std::fs::create_dir(volume.path("mnt")).expect("made");
    let log = volume.path("mnt").display().to_string().replace('/', "-2f") + ".log";
    symlink(&victim, volume.path("mount-logs").join(log)).expect("planted");
    for name in ["last-up.toml", "volume.toml", "node0/pid"] {
        symlink(&victim, volume.path(&format!("{name}.tmp"))).expect("planted");
    }
    let mount = volume.path("mnt").display().to_string();
    is_refused(&volume.run("up", ["--mount", &mount]), &["symbolic link"]);
    assert_eq!(std::fs::read(&victim).expect("there"), b"kept");
    volume.run("up", ["--no-mount"]).works();
    assert_eq!(std::fs::read(&victim).expect("there"), b"kept");
}

#[test]
fn a_planted_key_is_not_used_and_not_made_ones_own() {
    if !rustix::process::geteuid().is_root() {
        return skip_test("only root can give files away");
    }
    let volume = Volume::up(1);
    volume.run("down", NOTHING).works();
    chown(volume.path("key"), Some(OWNER), None).expect("given away");
    is_refused(&volume.run("up", ["--no-mount"]), &["key", "user 12345", "may have put it there"]);
    chown(volume.path("key"), Some(0), None).expect("taken back");
    // The same at the first start.
    let fresh = Volume::new();
    std::fs::copy(volume.path("key"), fresh.path("key")).expect("copied");
    chown(fresh.path("key"), Some(OWNER), None).expect("given away");
    is_refused(&fresh.run("up", ["--no-mount"]), &["user 12345", "may have put it there"]);
    volume.run("up", ["--no-mount"]).works();
}

#[test]
fn the_quick_start_takes_no_folder_of_others() {
    let Some(users) = Users::new() else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/quickstart.sh");
    let start = |dir: &Path| -> Said {
        let mut command = std::process::Command::new(&script);
        // The script would find no compiler either: it checks the folder first.
        command.env_clear().env("PATH", "/usr/bin:/bin").env("TATAMI_QUICKSTART_DIR", dir);
        command.output().expect("it runs").into()
    };
    let (ours, link) = (users.path("ours"), users.path("link"));
    std::fs::create_dir(&ours).expect("made");
    symlink(&ours, &link).expect("linked");
    is_refused(&start(&users.path("home")), &["belongs to somebody else"]);
    is_refused(&start(&link), &["symbolic link"]);
    users.set_mode(&ours, 0o777);
    is_refused(&start(&ours), &["others can write"]);
    assert_eq!(std::fs::read_dir(&ours).expect("listed").count(), 0);
}
