//! Permissions: the mode, ACLs and ids are enforced, on the mount and without one.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use tatami_tests::Cluster;
use tatami_tests::command::{Said, as_user, ask, run, shell};
use tatami_tests::files::{get, put, stat};

/// Two ordinary users.
const ANNA: u32 = 4001;
const BERT: u32 = 4002;

fn one() -> (Cluster, PathBuf) {
    let cluster = Cluster::start(1);
    let mount = cluster.mount(0);
    (cluster, mount)
}

fn mode(path: impl AsRef<Path>, bits: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(bits)).expect("chmod");
}

/// Runs a shell script in `dir` as a user.
fn as_in(uid: u32, dir: &Path, script: &str) -> Said {
    ask(as_user(uid, "sh -c").arg(script).current_dir(dir))
}

fn may(uid: u32, dir: &Path, script: &str) {
    let said = as_in(uid, dir, script);
    assert!(said.code == Some(0), "user {uid} may: {script}\n{}{}", said.out, said.err);
}

fn may_not(uid: u32, dir: &Path, script: &str) {
    let said = as_in(uid, dir, script);
    assert!(said.code != Some(0), "user {uid} may not: {script}\n{}{}", said.out, said.err);
    let refusal = ["Permission denied", "Operation not permitted", "cannot open", "cannot create"];
    assert!(refusal.iter().any(|r| said.err.contains(r)), "{script}: {}", said.err);
}

#[test]
fn the_mode_is_enforced() {
    let (cluster, m) = one();
    put(m.join("private"), "secret");
    mode(m.join("private"), 0o600);
    chown(m.join("private"), Some(ANNA), Some(ANNA)).expect("chown");
    may(ANNA, &m, "cat private && echo more >> private");
    may_not(BERT, &m, "cat private");
    may_not(BERT, &m, "echo x > private");
    may_not(BERT, &m, "chmod 777 private");
    may_not(BERT, &m, "chown 4002 private");
    may_not(ANNA, &m, "chown 4002 private");
    may_not(ANNA, &m, "touch new");
    mode(m.join("private"), 0o640);
    chown(m.join("private"), Some(ANNA), Some(BERT)).expect("chown");
    may(BERT, &m, "cat private");
    may_not(BERT, &m, "echo x >> private");

    fs::create_dir(m.join("closed")).expect("mkdir");
    put(m.join("closed/f"), "");
    mode(m.join("closed/f"), 0o666);
    mode(m.join("closed"), 0o711);
    may(BERT, &m, "cat closed/f");
    may_not(BERT, &m, "ls closed");
    mode(m.join("closed"), 0o744);
    may(BERT, &m, "ls closed");
    may_not(BERT, &m, "cat closed/f");
    cluster.finish();
}

#[test]
fn supplementary_groups_count() {
    let (cluster, m) = one();
    put(m.join("f"), "for the group");
    chown(m.join("f"), Some(0), Some(777)).expect("chown");
    mode(m.join("f"), 0o640);
    let run_with = |groups: &str| {
        let mut command = tatami_tests::command::program("setpriv --reuid 4001 --regid 4001");
        command.args(["--groups", groups, "cat"]).arg(m.join("f"));
        ask(&mut command).code
    };
    assert_eq!(run_with("5,6,777,8"), Some(0));
    assert_eq!(run_with("5,6,8"), Some(1));
    cluster.finish();
}

#[test]
fn the_umask_and_the_creator_make_a_new_files_owner_and_mode() {
    let (cluster, m) = one();
    fs::create_dir(m.join("free")).expect("mkdir");
    mode(m.join("free"), 0o777);
    may(ANNA, &m, "umask 027; touch free/f; mkdir free/d; mkfifo free/p; ln -s x free/l");
    for (name, bits) in [("f", 0o640), ("d", 0o750), ("p", 0o640)] {
        let meta = stat(m.join("free").join(name));
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (ANNA, ANNA, bits), "{name}");
    }
    cluster.finish();
}

#[test]
fn sticky_directories_protect_names_of_others() {
    let (cluster, m) = one();
    fs::create_dir(m.join("tmp")).expect("mkdir");
    mode(m.join("tmp"), 0o1777);
    may(ANNA, &m, "echo a > tmp/anna; mkdir tmp/dir");
    may_not(BERT, &m, "rm -f tmp/anna");
    may_not(BERT, &m, "mv tmp/anna tmp/bert");
    may_not(BERT, &m, "rmdir tmp/dir");
    may(BERT, &m, "echo b > tmp/bert");
    may_not(BERT, &m, "mv -f tmp/bert tmp/anna");
    may(ANNA, &m, "mv tmp/anna tmp/renamed; rm tmp/renamed");
    cluster.finish();
}

#[test]
fn setgid_directories_hand_their_group_down() {
    let (cluster, m) = one();
    fs::create_dir(m.join("team")).expect("mkdir");
    chown(m.join("team"), Some(ANNA), Some(900)).expect("chown");
    mode(m.join("team"), 0o2777);
    may(BERT, &m, "touch team/f; mkdir team/d");
    assert_eq!(stat(m.join("team/f")).gid(), 900);
    let dir = stat(m.join("team/d"));
    assert_eq!((dir.gid(), dir.mode() & 0o2000), (900, 0o2000));
    cluster.finish();
}

#[test]
fn setuid_bits_go_with_a_write_and_a_change_of_owner() {
    let cluster = Cluster::start(2);
    let m = cluster.mount(0);
    // Also for a file with its bytes on the other node.
    for (name, creator) in [("local", 0), ("remote", 1)] {
        put(cluster.mount(creator).join(name), "x");
        chown(m.join(name), Some(ANNA), Some(ANNA)).expect("chown");
        let set = |bits| mode(m.join(name), bits);
        let bits = || stat(m.join(name)).mode() & 0o7777;
        set(0o6777);
        may(BERT, &m, &format!("echo more >> {name}"));
        assert_eq!(bits(), 0o777, "{name}: after a write by another");
        set(0o6777);
        may(BERT, &m, &format!("truncate -s 1 {name}"));
        assert_eq!(bits(), 0o777, "{name}: after a truncation by another");
        set(0o6755);
        chown(m.join(name), Some(BERT), None).expect("chown");
        assert_eq!(bits() & 0o4000, 0, "{name}: after a change of owner");
    }
    cluster.finish();
}

#[test]
fn acls_are_enforced_and_inherited() {
    let (cluster, m) = one();
    put(m.join("f"), "guarded");
    mode(m.join("f"), 0o600);
    run(&mut shell(&m, "setfacl -m u:4001:r f"));
    may(ANNA, &m, "cat f");
    may_not(ANNA, &m, "echo x >> f");
    may_not(BERT, &m, "cat f");
    // The mask limits the permissions of the entries.
    run(&mut shell(&m, "setfacl -m u:4001:rw,m::r f"));
    may_not(ANNA, &m, "echo x >> f");
    run(&mut shell(&m, "setfacl -m g:4002:rw,m::rw f"));
    may(BERT, &m, "echo x >> f");
    let shown = run(&mut shell(&m, "getfacl -cn f")).out;
    for entry in ["user:4001:rw-", "group:4002:rw-", "mask::rw-", "other::---"] {
        assert!(shown.contains(entry), "{shown}");
    }
    assert_eq!(stat(m.join("f")).mode() & 0o070, 0o060, "the group bits show the mask");

    run(&mut shell(
        &m,
        "mkdir d; chmod 755 d; setfacl -d -m u:4001:rwx,o::- d; umask 0; touch d/f; mkdir d/d",
    ));
    let shown = run(&mut shell(&m, "getfacl -cn d/f d/d")).out;
    assert_eq!(shown.matches("user:4001:rwx").count(), 3, "{shown}");
    may(ANNA, &m, "echo x >> d/f");
    may_not(BERT, &m, "cat d/f");
    run(&mut shell(&m, "setfacl -b f; chmod 644 f"));
    may(BERT, &m, "cat f");
    run(&mut shell(&m, "cp -p --attributes-only d/f copy; getfacl -cn copy | grep -q user:4001"));
    cluster.finish();
}

#[test]
fn acls_hold_on_every_mount() {
    let cluster = Cluster::start(2);
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    put(a.join("f"), "guarded");
    mode(a.join("f"), 0o600);
    may_not(ANNA, &b, "cat f");
    run(&mut shell(&a, "setfacl -m u:4001:r f"));
    may(ANNA, &b, "cat f");
    run(&mut shell(&b, "setfacl -b f"));
    may_not(ANNA, &a, "cat f");
    cluster.finish();
}

#[test]
fn permission_is_enforced_without_a_mount_too() {
    let (cluster, m) = one();
    put(m.join("secret"), "nobody else's");
    mode(m.join("secret"), 0o600);
    put(m.join("public"), "everybody's");
    let tatami = |uid, verb: &str, path: &str| {
        let mut command =
            as_user(uid, tatami_tests::command::tatami_bin().to_str().expect("UTF-8"));
        command.args([verb, "--dir"]).arg(cluster.dir()).arg(path);
        ask(&mut command)
    };
    let said = tatami(ANNA, "cat", ":/public");
    assert_eq!((said.out.as_str(), said.code), ("everybody's", Some(0)), "{}", said.err);
    let said = tatami(ANNA, "cat", ":/secret");
    assert!(said.code != Some(0) && said.out.is_empty(), "{}", said.out);
    assert!(said.err.to_lowercase().contains("permission denied"), "{}", said.err);
    let said = tatami(ANNA, "rm", ":/public");
    assert!(said.code != Some(0), "removed without permission");
    assert_eq!(get(m.join("public")), b"everybody's");
    // Ordinary users may not stop the daemons.
    let mut command = as_user(ANNA, tatami_tests::command::tatami_bin().to_str().expect("UTF-8"));
    let said = ask(command.args(["down", "--dir"]).arg(cluster.dir()));
    assert!(said.code != Some(0), "a stranger stopped the daemons: {}", said.out);
    assert_eq!(get(m.join("public")), b"everybody's");
    cluster.finish();
}

#[test]
fn objects_and_keys_are_not_for_other_users() {
    let (cluster, m) = one();
    put(m.join("secret"), "bytes on disk");
    mode(m.join("secret"), 0o600);
    may_not(ANNA, cluster.dir(), "cat key");
    let said = as_in(ANNA, cluster.dir(), "grep -r 'bytes on disk' node0/objects");
    assert!(!said.out.contains("bytes on disk") && said.code != Some(0), "{}", said.out);
    cluster.finish();
}
