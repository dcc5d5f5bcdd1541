//! Wrong input gets an error with the cause and the remedy.

mod common;

use common::{Said, Volume, tatami};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;

const NOTHING: [&str; 0] = [];

#[test]
fn an_unknown_key_is_named_with_file_line_and_near_matches() {
    let volume = Volume::new();
    let file = volume.path("tatami.toml");
    std::fs::write(&file, "[mount]\n\npassthrugh = false\n").expect("written");
    let line = format!("{}, line 3: unknown key `mount.passthrugh`", file.display());
    for verb in ["config", "up", "status"] {
        let said = volume.run(verb, NOTHING);
        said.fails(2, &[&line, "did you mean `mount.passthrough`?"]);
    }
    assert!(!volume.path("volume.toml").exists(), "nothing was made");
}

#[test]
fn a_value_out_of_range_is_refused_wherever_it_comes_from() {
    let volume = Volume::new();
    let said = volume.run("config", ["--client-patience-sec=-1"]);
    said.fails(2, &["--client-patience-sec", "0 to 86400 seconds"]);
    let mut command = volume.command("config", NOTHING);
    let said: Said = command.env("TATAMI_NODE_LEASE_SEC", "0").output().expect("runs").into();
    said.fails(2, &["TATAMI_NODE_LEASE_SEC", "1 to 86400 seconds"]);
    let mut command = volume.command("config", NOTHING);
    let said: Said = command.env("TATAMI_MOUNT_PASTHROUGH", "1").output().expect("runs").into();
    said.fails(2, &["TATAMI_MOUNT_PASTHROUGH", "did you mean `mount.passthrough`?"]);
    let said = volume.run("config", ["--config", "/nonexistent/tatami.toml"]);
    said.fails(2, &["/nonexistent/tatami.toml"]);
}

#[test]
fn a_directory_of_another_volume_is_refused() {
    let (ours, theirs) = (Volume::up(1), Volume::up(1));
    ours.run("down", NOTHING).works();
    theirs.run("down", NOTHING).works();
    let their_dir = theirs.path("node0");
    let said = tatami([
        "node".as_ref(),
        "run".as_ref(),
        "--node".as_ref(),
        "0".as_ref(),
        "--node-dir".as_ref(),
        their_dir.as_os_str(),
        "--volume-file".as_ref(),
        ours.path("volume.toml").as_os_str(),
    ]);
    said.fails(1, &["belongs to volume", their_dir.to_str().expect("UTF-8")]);
}

#[test]
fn a_newer_format_asks_for_an_upgrade_and_nothing_is_left_running() {
    let volume = Volume::up(2);
    volume.run("down", NOTHING).works();
    let file = volume.path("node1/FORMAT");
    let mut bytes = std::fs::read(&file).expect("there");
    bytes[8] = 9;
    std::fs::write(&file, bytes).expect("written");
    let said = volume.run("up", ["--no-mount"]);
    said.fails(1, &["node1 does not start", "format 9", "newer tatami; upgrade"]);
    assert!(volume.processes().is_empty(), "node0 was stopped again");
}

#[test]
fn foreign_files_are_left_alone() {
    let volume = Volume::new();
    std::fs::create_dir(volume.path("node0")).expect("made");
    std::fs::write(volume.path("node0/thesis.tex"), "precious").expect("written");
    volume
        .run("up", ["--no-mount"])
        .fails(1, &["thesis.tex", "choose an empty or a new directory"]);
    assert_eq!(std::fs::read(volume.path("node0/thesis.tex")).expect("there"), b"precious");
}

#[test]
fn two_daemons_on_one_directory_are_refused() {
    let volume = Volume::up(1);
    let pid = volume.pid(0).expect("it runs");
    let said = tatami([
        "node".as_ref(),
        "run".as_ref(),
        // As release 0.1.0 called it.
        "--dir".as_ref(),
        volume.path("node0").as_os_str(),
    ]);
    said.fails(1, &[&format!("process {pid}"), "uses it already"]);
    assert_eq!(volume.pid(0), Some(pid), "the first one does not mind");
}

#[test]
fn a_port_in_use_is_named_and_nothing_is_left_running() {
    let volume = Volume::up(2);
    let address = volume.address(1);
    volume.run("down", NOTHING).works();
    let _other = TcpListener::bind(&address).expect("the port is free");
    let said = volume.run("up", ["--no-mount"]);
    said.fails(1, &["node1 does not start", &address, "another program uses this port"]);
    assert!(volume.processes().is_empty());
}

#[test]
fn a_busy_mount_is_named_with_its_users() {
    let volume = Volume::mounted(1);
    let mnt = volume.path("mnt");
    let file = std::fs::File::create(mnt.join("f")).expect("created");
    let me = format!("(process {})", std::process::id());
    let said = volume.run("down", NOTHING);
    said.fails(1, &["in use", &me, "/mnt/f open", "--force"]);
    assert!(volume.pid(0).is_some(), "nothing was stopped");
    let path = mnt.to_str().expect("UTF-8");
    tatami(["umount", path]).fails(1, &["busy", &me]);
    drop(file);
    tatami(["umount", path]).works();
    tatami(["umount", path]).fails(1, &["no volume is mounted on"]);
    volume.run("down", NOTHING).works();
}

#[test]
fn a_busy_volume_can_be_forced_down() {
    let volume = Volume::mounted(2);
    let _file = std::fs::File::create(volume.path("mnt/node1/f")).expect("created");
    volume.run("down", ["--force"]).works();
    assert!(volume.processes().is_empty());
    assert!(volume.mounts().is_empty());
}

#[test]
fn a_mount_point_that_is_missing_or_taken_is_named() {
    let volume = Volume::up(1);
    let missing = volume.path("missing");
    let missing = missing.to_str().expect("UTF-8");
    volume.run("mount", [missing]).fails(1, &[missing, &format!("mkdir -p {missing}")]);
    volume.run("mount", ["/proc"]).fails(1, &["proc file system"]);
    let file = volume.path("file");
    std::fs::write(&file, "x").expect("written");
    volume.run("mount", [file]).fails(1, &["not a directory"]);
    std::fs::create_dir(missing).expect("made");
    volume.run("mount", [missing]).works();
    volume.run("mount", [missing]).fails(1, &["mounted on", "tatami umount"]);
    volume.run("mount", ["-o", "nonsense", missing]).fails(2, &["nonsense", "--help"]);
    tatami(["umount", missing]).works();
    tatami(["umount", "/proc"]).fails(1, &["proc"]);
}

#[test]
fn a_daemon_that_is_not_there_is_named_with_what_to_do() {
    let volume = Volume::up(1);
    volume.run("down", NOTHING).works();
    let socket = volume.path("node0/socket");
    let start = format!("tatami up --dir {}", volume.dir().display());
    for (verb, args) in [("ls", &[":/"][..]), ("cat", &[":/f"]), ("df", &[])] {
        volume.run(verb, args).fails(3, &[socket.to_str().expect("UTF-8"), &start]);
    }
    let said = volume.run("status", NOTHING);
    said.fails(3, &[]);
    assert!(said.out.contains("down") && said.out.contains(&start), "{said:?}");
    volume.run("fsck", NOTHING).fails(8, &[&start]);
}

#[test]
fn a_directory_without_a_volume_is_told() {
    let volume = Volume::new();
    for verb in ["status", "ls", "down", "mount"] {
        let args: &[&str] = if verb == "mount" { &["/mnt"] } else { &[] };
        volume.run(verb, args).fails(3, &["there is no volume in", "tatami up"]);
    }
    tatami(["status", "--dir", "/nonexistent/x"]).fails(3, &["/nonexistent/x", "No such file"]);
}

#[test]
fn names_have_255_bytes_at_most() {
    let volume = Volume::up(1);
    let good = format!(":/{}", "n".repeat(255));
    let bad = format!(":/{}", "n".repeat(256));
    volume.run("mkdir", [&good]).works();
    volume.run("mkdir", [&bad]).fails(1, &["name too long", "255 bytes"]);
    volume.run("stat", [&bad]).fails(1, &["name too long"]);
    volume.run("stat", [format!(":{}", "/n".repeat(2049))]).fails(1, &["name too long", "4096"]);
}

#[test]
fn a_path_through_a_loop_of_links_ends_in_an_error() {
    let volume = Volume::up(1);
    let links = volume.path("links");
    std::fs::create_dir(&links).expect("made");
    std::os::unix::fs::symlink("b", links.join("a")).expect("linked");
    std::os::unix::fs::symlink("a", links.join("b")).expect("linked");
    volume.run("cp", ["-r", links.to_str().expect("UTF-8"), ":/"]).works();
    for verb in ["cat", "where", "ls"] {
        let said = volume.run(verb, [":/links/a/x"]);
        said.fails(1, &[":/links/a/x", "too many symbolic links", "circle"]);
    }
}

#[test]
fn a_client_of_another_version_is_told_ours() {
    let volume = Volume::up(1);
    let mut stream = TcpStream::connect(volume.address(0)).expect("connected");
    stream.write_all(b"TATAMI\r\n\x02\x00\x00\x00").expect("sent");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer[..8], b"TATAMI\r\n");
    let theirs = u32::from_le_bytes(answer[8..].try_into().expect("four bytes"));
    assert_eq!(theirs, tatami_wire::PROTOCOL_VERSION);
    volume.run("status", NOTHING).works();
}

#[test]
fn a_daemon_of_another_version_is_told_to_the_user() {
    let volume = Volume::up(1);
    volume.run("down", NOTHING).works();
    let listener = UnixListener::bind(volume.path("node0/socket")).expect("bound");
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut hello = [0; 12];
        stream.read_exact(&mut hello).expect("its greeting");
        let mut answer = [0; 63];
        answer[..8].copy_from_slice(b"TATAMI\r\n");
        answer[8] = 77;
        stream.write_all(&answer).expect("sent");
    });
    let said = volume.run("ls", [":/"]);
    said.fails(3, &["protocol version 77, this one 3 to 4", "upgrade the older side"]);
    server.join().expect("the server is done");
}

#[test]
fn garbage_on_the_port_harms_nobody() {
    let volume = Volume::up(1);
    let address = volume.address(0);
    let mut noise = Vec::new();
    for i in 0u32..5000 {
        noise.push((i.wrapping_mul(2_654_435_761) >> 24) as u8);
    }
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &noise, b"", b"TATAMI\r\n", &[0xff; 64]] {
        let mut stream = TcpStream::connect(&address).expect("connected");
        // The daemon may close the connection before all bytes are sent.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.len() < 1024, "it answers garbage with {} bytes", rest.len());
    }
    volume.run("status", NOTHING).works();
    volume.run("mkdir", [":/still-works"]).works();
}

#[test]
fn another_number_of_nodes_is_refused() {
    let volume = Volume::up(2);
    let said = volume.run("up", ["--no-mount", "--nodes", "3"]);
    said.fails(2, &["has 2 nodes, not 3", "start it as it is"]);
    volume.run("up", ["--no-mount", "--nodes", "2"]).works();
    volume.run("up", ["--no-mount", "--nodes", "0"]).fails(2, &["--nodes"]);
    volume.run("node start", ["7"]).fails(2, &["no node \"7\"", "node0, node1"]);
}

#[test]
fn wrong_numbers_of_executors_are_refused() {
    let volume = Volume::new();
    for wrong in ["0", "65"] {
        volume.run("up", ["--no-mount", "--executors", wrong]).fails(2, &["--executors"]);
    }
    let many = ["--no-mount", "--nodes", "65", "--executors", "64"];
    volume.run("up", many).fails(2, &["more than the 4096 shards", "at most --executors 63"]);
    assert!(!volume.path("volume.toml").exists());
    volume.run("up", ["--no-mount", "--executors", "2"]).works();
    let said = volume.run("up", ["--no-mount", "--executors", "3"]);
    said.fails(2, &["has 2 executors a node, not 3", "node rebalance", "--executors 3"]);
    volume.run("up", ["--no-mount", "--executors", "2"]).works();
    for verb in ["node rebalance", "node add"] {
        volume.run(verb, ["--executors", "0"]).fails(2, &["--executors"]);
    }
    volume.run("node add", ["--no-rebalance", "--executors", "2"]).fails(2, &["--no-rebalance"]);
}

#[test]
fn too_long_a_directory_is_told_before_anything_is_made() {
    let volume = Volume::new();
    let deep = volume.path(&"d".repeat(120));
    let said = tatami(["up".as_ref(), "--no-mount".as_ref(), "--dir".as_ref(), deep.as_os_str()]);
    said.fails(2, &["at most 107 bytes", "shorter"]);
    assert!(!deep.join("volume.toml").exists());
}

#[test]
fn an_address_that_nobody_can_connect_to_is_refused() {
    let volume = Volume::new();
    let said = volume.run("up", ["--no-mount", "--node-listen", "0.0.0.0"]);
    said.fails(2, &["0.0.0.0 means every address"]);
    let said = volume.run("up", ["--no-mount", "--node-listen", "192.0.2.1"]);
    said.fails(1, &["no free port on 192.0.2.1"]);
    assert!(!volume.path("volume.toml").exists());
}

#[test]
fn the_key_is_nobody_elses_and_never_printed() {
    use std::os::unix::fs::PermissionsExt;
    let volume = Volume::new();
    let said = volume.run("up", ["--no-mount", "--log", "trace"]);
    let key_file = volume.path("key");
    let key = std::fs::read_to_string(&key_file).expect("there");
    let mode = key_file.metadata().expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut texts = vec![said.works().out.clone(), said.err.clone()];
    for verb in ["status", "config", "node list"] {
        texts.push(volume.run(verb, ["--log", "trace"]).out);
    }
    texts.push(std::fs::read_to_string(volume.path("node0/log")).expect("a log"));
    for pid in volume.processes() {
        texts.push(std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default());
    }
    let digits = key.split_whitespace().next().expect("its digits");
    assert!(texts.iter().all(|text| !text.contains(digits)), "the key was printed");
    std::fs::set_permissions(&key_file, PermissionsExt::from_mode(0o644)).expect("set");
    volume.run("down", NOTHING).works();
    volume.run("up", ["--no-mount"]).fails(1, &["chmod 600"]);
}

#[test]
fn a_mount_that_fails_takes_the_others_and_the_daemons_down_again() {
    let volume = Volume::new();
    std::fs::create_dir(volume.path("mnt")).expect("made");
    std::fs::write(volume.path("mnt/node1"), "in the way").expect("written");
    let mnt = volume.path("mnt");
    let said = volume.run("up", ["-n", "3", "--mount", mnt.to_str().expect("UTF-8")]);
    said.fails(1, &["cannot make the mount point", "mnt/node1"]);
    assert!(volume.mounts().is_empty() && volume.processes().is_empty());
    std::fs::remove_file(volume.path("mnt/node1")).expect("removed");
    volume.run("up", NOTHING).works();
    assert_eq!(volume.mounts().len(), 3);
}

#[test]
fn a_data_directory_that_is_missing_is_not_made_anew() {
    let volume = Volume::up(2);
    volume.run("cp", ["/etc/passwd", ":/kept"]).works();
    volume.run("down", NOTHING).works();
    let (there, away) = (volume.path("node0"), volume.path("away"));
    std::fs::rename(&there, &away).expect("moved");
    for _ in 0..2 {
        let said = volume.run("up", ["--no-mount"]);
        said.fails(1, &["the data of node0 is not there", "mount the disk"]);
        assert!(!there.exists() && volume.processes().is_empty());
    }
    std::fs::rename(&away, &there).expect("moved");
    volume.run("up", ["--no-mount"]).works();
    volume.run("cat", [":/kept"]).works();
}
