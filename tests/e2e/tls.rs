//! Volumes whose connections between machines are encrypted: everything works as without, the wire
//! has no byte of a file, strangers are refused, and certificates are replaced under load.

use crate::hosts::{expect_refusal, start_bed};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair,
};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tatami_cluster::{CertificateEntry, CertificateFile, PrivateKeyText};
use tatami_tests::Setup;
use tatami_tests::command::{ask, run, shell, target_dir, tatami_bin};
use tatami_tests::files::{get, put};
use tatami_tests::mpi::{MPIS, ONE_AT_A_TIME, compiled, on_this_machine};
use tatami_tests::testbed::TestHost;

const DIR: &str = "/var/lib/tatami";
const HOUR: i64 = 3600;

/// Reads, writes, locks and renames go between the nodes of an encrypted volume, through mounts,
/// commands, a program without a mount, and MPI programs.
#[test]
fn all_ways_to_a_volume_are_encrypted_between_its_nodes() {
    let _turn = ONE_AT_A_TIME.lock();
    let cluster = Setup::nodes(2).with_encryption().start();
    let mode = fs::metadata(CertificateFile::path_in(cluster.dir())).expect("there").permissions();
    assert_eq!(mode.mode() & 0o7777, 0o600);
    let status = cluster.status();
    assert!(status["encryption"] == "tls" && status["healthy"] == true, "{status}");
    assert!(status["certificates_end"].is_u64(), "{status}");
    let said = cluster.tatami("status", &[]);
    assert!(said.out.contains("Encryption tls") && said.out.contains("valid for 36"), "{said:?}");

    let [one, two] = [cluster.mount(0), cluster.mount(1)];
    // Long enough for many records, and of a length that no buffer divides.
    let bytes: Vec<u8> = (0..9_000_001_u32).map(|at| (at / 3 % 253) as u8).collect();
    put(one.join("long"), &bytes);
    assert!(get(two.join("long")) == bytes, "read from the other node");
    run(&mut shell(&two, "cp long copy && cmp long copy && mv copy moved && cmp long moved"));
    run(&mut shell(&one, "for i in $(seq 300); do echo $i > f$i; done; sync; rm f1??"));
    run(&mut shell(&two, "test $(ls f* | wc -l) = 200 && test $(cat f250) = 250"));
    run(&mut shell(&one, "flock -x long true && : > locked"));
    let contended = "exec 9< locked; flock -x 9; (cd \"$1\" && ! flock -n -x locked true)";
    run(Command::new("bash").args(["-c", contended, "bash"]).arg(&two).current_dir(&one));
    let copied = cluster.tatami("cat", &[":/long"]);
    assert_eq!(copied.out.len(), String::from_utf8_lossy(&bytes).len(), "by a command");
    let mut program = cluster.command("run");
    let script = "cd /tatami-tls-test && cmp long moved && echo in > program && cat f2 >&2";
    run(program.args(["--at", "/tatami-tls-test", "--", "bash", "-c", script]));
    assert_eq!(get(two.join("program")), b"in\n");

    for mpi in MPIS {
        let mut command = Command::new(tatami_bin());
        command.args(["mpirun", "--launcher", &format!("mpirun.{mpi}"), "-n", "3", "sh", "-c"]);
        let spread = "cd \"$MOUNTS/node$((${OMPI_COMM_WORLD_RANK:-$PMI_RANK} % 2))\" && \
                      exec \"$0\" \"$PWD/semantics.$1\"";
        command.arg(spread).arg(compiled("semantics", mpi)).arg(mpi);
        command.env("TATAMI_MPI_LIBRARY", target_dir().join("mpi/libtatami_mpi.so"));
        command.env("MOUNTS", one.parent().expect("a folder of mounts"));
        run(on_this_machine(&mut command).stdin(Stdio::null()));
    }
    cluster.finish();
}

/// Records all packets that a host sends and receives, in a file.
const CAPTURE: &str = "import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
with open('/tmp/wire', 'wb', 0) as f:
    while True: f.write(s.recv(1 << 17))";

/// Writes and reads a file with a mark over the network, and returns how many packets had it.
fn count_marks(one: &TestHost, two: &TestHost) -> usize {
    two.run(&format!(
        "rm -f /tmp/wire; setsid python3 -c \"{CAPTURE}\" >/dev/null 2>&1 & \
                      echo $! > /tmp/capture; until test -e /tmp/wire; do sleep 0.01; done"
    ));
    two.run("seq -f 'a-mark-of-this-test-%g' 20000 > /mnt/tatami/a-mark-of-this-test");
    one.run("sha1sum < /mnt/tatami/a-mark-of-this-test > /tmp/sum");
    one.run("seq -f 'a-mark-of-this-test-%g' 20000 | sha1sum | cmp - /tmp/sum");
    one.run(
        "cat /mnt/tatami/a-mark-of-this-test >> /mnt/tatami/a-mark-of-this-test.2 && tatami cat :/a-mark-of-this-test | cmp - \
             /mnt/tatami/a-mark-of-this-test.2",
    );
    two.run("kill $(cat /tmp/capture)");
    let size: u64 = two.run("stat -c %s /tmp/wire").out.trim().parse().expect("a number");
    assert!(size > 400_000, "the capture has only {size} bytes");
    let found = two.run("grep -c a-mark-of-this-test /tmp/wire || true");
    found.out.trim().parse().expect("a number")
}

#[test]
fn the_wire_has_no_byte_of_a_file() {
    let Some(bed) = start_bed(&["n1", "n2"]) else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    one.run("tatami up --hosts n1,n2");
    assert!(count_marks(one, two) > 0, "the control: without encryption the wire has them");
    one.run(&format!("tatami down && rm -r {DIR}"));
    two.run(&format!("rm -r {DIR}"));
    one.run("tatami up --hosts n1,n2 --encryption tls");
    assert_eq!(count_marks(one, two), 0);
    for host in [one, two] {
        host.run(&format!("test $(stat -c %a {DIR}/certificates.toml) = 600"));
        // Each host has a certificate of its own.
        host.run("grep -A1 '^private_key' /var/lib/tatami/certificates.toml > /dev/null");
        // No argument and no environment has a private key.
        let key = format!("<(grep -m1 -A1 'BEGIN PRIVATE' {DIR}/certificates.toml | tail -1)");
        host.run(&format!("! cat /proc/*/cmdline /proc/*/environ 2>/dev/null | grep -qaf {key}"));
    }
    let own = |host: &TestHost| read_certificates(host).machine.expect("a machine").certificate;
    assert_ne!(own(one), own(two));
    one.run("tatami down");
}

fn read_certificates(host: &TestHost) -> CertificateFile {
    let text = host.run(&format!("cat {DIR}/certificates.toml")).out;
    CertificateFile::parse(&text).expect("certificates")
}

fn write_certificates(host: &TestHost, file: &CertificateFile) {
    let text = file.to_text().expect("text");
    let path = format!("{DIR}/certificates.toml");
    host.run(&format!(
        "cat > {path}.new <<'END'\n{text}END\nchmod 600 {path}.new\nmv {path}.new {path}"
    ));
}

/// Returns the file with another certificate of the machine, valid for a time relative to now. It
/// comes from the volume's authority, or from one that only calls itself so.
fn with_machine(good: &CertificateFile, is_false: bool, from: i64, to: i64) -> CertificateFile {
    let authority = &good.authorities[0];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs();
    let at = |offset: i64| now.checked_add_signed(offset).expect("a time");
    let date = |seconds| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    let mut issuer = CertificateParams::default();
    issuer.distinguished_name = DistinguishedName::new();
    let name = format!("Tatami volume {} since {}", good.volume, authority.begins);
    issuer.distinguished_name.push(DnType::CommonName, name);
    issuer.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let genuine = &authority.private_key.as_ref().expect("a key").0;
    let issuer_key = match is_false {
        true => KeyPair::generate().expect("a key"),
        false => KeyPair::from_pem(genuine).expect("a key"),
    };
    let name = CertificateFile::member_name(good.volume);
    let mut params = CertificateParams::new([name]).expect("a name");
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    (params.not_before, params.not_after) = (date(at(from)), date(at(to)));
    let key = KeyPair::generate().expect("a key");
    let made = params.signed_by(&key, &Issuer::new(issuer, issuer_key)).expect("a certificate");
    let machine = CertificateEntry {
        begins: at(from),
        ends: at(to),
        certificate: made.pem(),
        private_key: Some(PrivateKeyText(key.serialize_pem())),
    };
    CertificateFile { machine: Some(machine), ..good.clone() }
}

/// A host with an expired or false certificate, or with none, is refused in words that say why,
/// and is a member again once it has the right one.
#[test]
fn a_host_without_the_right_certificate_is_refused() {
    let Some(bed) = start_bed(&["n1", "n2"]) else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    one.run("tatami up --hosts n1,n2 --no-mount --encryption tls");
    one.run("tatami status");
    let good = read_certificates(one);

    write_certificates(one, &with_machine(&good, false, -9 * HOUR, -2 * HOUR));
    let said = expect_refusal_in_status(one, "it has expired or is not valid yet by the clock");
    assert!(said.contains("rotate-certificates"), "{said}");
    let said =
        expect_refusal_in_status(two, "the certificate of the other side expired 2 hours ago");
    assert!(said.contains("rotate-certificates"), "{said}");
    expect_refusal_in_status(one, "its certificates have expired");
    write_certificates(one, &with_machine(&good, true, -HOUR, 100 * 24 * HOUR));
    expect_refusal_in_status(one, "it comes from another authority");
    expect_refusal_in_status(two, "comes from another authority than this volume's");
    write_certificates(one, &with_machine(&good, false, -HOUR, 20 * 24 * HOUR));
    expect_refusal_in_status(two, "days: make new ones: tatami volume rotate-certificates");

    // Another volume's file is recognized before any connection.
    one.run(
        "tatami up --no-mount --encryption tls --dir /srv/other && tatami down --dir /srv/other",
    );
    one.run(&format!("cp -p /srv/other/certificates.toml {DIR}/certificates.toml"));
    expect_refusal(one, "tatami ls :/", &["they are those of volume", "rotate-certificates"]);
    write_certificates(one, &good);
    one.run("tatami status");

    // A side whose map knows nothing of encryption.
    one.run(&format!(
        "cd {DIR} && cp volume.toml good && grep -v ^encryption good | sed '$d' > volume.toml"
    ));
    expect_refusal_in_status(one, "the daemon has volume.encryption = tls, and this side has none");
    one.run(&format!("mv {DIR}/good {DIR}/volume.toml && tatami status && tatami fsck"));
    two.run("grep -q 'connection dropped in the handshake' /var/lib/tatami/node1/log");
    one.run("tatami down");
    for host in bed.hosts() {
        host.run("! pgrep tatami");
    }
}

/// Runs `tatami status`, which must report a trouble with these words.
fn expect_refusal_in_status(host: &TestHost, words: &str) -> String {
    let said = host.ask("tatami status");
    let all = format!("{}{}", said.out, said.err).replace('\n', " ");
    let flat = all.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.code == Some(3) && flat.contains(words), "no {words:?} in {said:?}");
    flat
}

/// New certificates reach all hosts while programs work, and no connection fails for it.
#[test]
fn certificates_are_rotated_under_load_on_all_hosts() {
    let Some(bed) = start_bed(&["n1", "n2", "n3"]) else { return };
    let one = bed.host(0);
    one.run("tatami up --hosts n1,n2 --encryption tls");
    one.run("mkdir /mnt/tatami/shared && echo here > /mnt/tatami/shared/file");
    let pids = "pgrep -x 'tatami-node|tatami-mount' | sort";
    let before = [0, 1].map(|at| bed.host(at).run(pids).out);
    // Commands make new connections all the time, and mounts use theirs.
    let load = "i=0; while test ! -e /tmp/stop; do i=$((i+1)); \
                tatami ls :/shared >/dev/null && tatami cat :/shared/file >/dev/null && \
                tatami cp /etc/hostname :/shared/of-$(hostname) && \
                echo $i > /mnt/tatami/shared/$(hostname)-$((i%7)) && cat /mnt/tatami/shared/* >/dev/null \
                || { echo failed in round $i >&2; exit 1; }; echo $i > /tmp/rounds; done";
    for at in [0, 1] {
        let line = format!("setsid sh -c '{load}' >/tmp/load.log 2>&1 & echo $! > /tmp/load.pid");
        bed.host(at).run(&line);
    }
    let await_rounds = |host: &TestHost| {
        host.run(
            "until test -s /tmp/rounds; do test -d /proc/$(cat /tmp/load.pid) || exit 1; sleep \
             0.05; done; n=$(cat /tmp/rounds); until test \"$(cat /tmp/rounds)\" -gt $((n+2)); do \
             test -d /proc/$(cat /tmp/load.pid) || { cat /tmp/load.log >&2; exit 1; }; sleep 0.05; \
             done 2>/dev/null",
        );
    };
    let authorities = |host: &TestHost| read_certificates(host).authorities;
    let mut last = authorities(bed.host(0));
    for from in [1, 0] {
        [0, 1].iter().for_each(|at| await_rounds(bed.host(*at)));
        let said = bed.host(from).run("tatami volume rotate-certificates");
        assert!(said.out.contains("has new certificates"), "{said:?}");
        [0, 1].iter().for_each(|at| await_rounds(bed.host(*at)));
        let [a, b] = [0, 1].map(|at| authorities(bed.host(at)));
        assert!(a == b && a.len() == 1 && a != last, "all hosts have the new one alone");
        last = a;
    }
    for at in [0, 1] {
        let host = bed.host(at);
        host.run("touch /tmp/stop; while test -d /proc/$(cat /tmp/load.pid); do sleep 0.05; done");
        assert_eq!(host.run("cat /tmp/load.log").out, "", "{}", host.name());
        assert_eq!(host.run(pids).out, before[at], "no process was restarted");
        host.run("tatami status");
    }

    // A host that is away stops the rotation before it begins to count.
    bed.unplug(1);
    let away = "tatami volume rotate-certificates --dir /var/lib/tatami";
    expect_refusal(bed.host(0), away, &["n2: ssh does not reach", "still accepted"]);
    assert_eq!(authorities(bed.host(0)), last);
    bed.plug_in(1);
    bed.host(0).run("tatami volume rotate-certificates && tatami status");

    // A new host gets the authority, and makes its own certificate.
    bed.host(0).run("tatami node add n3");
    bed.host(2).run("test $(cat /mnt/tatami/shared/file) = here && tatami status");
    assert_eq!(authorities(bed.host(2)), authorities(bed.host(0)));
    // One that has missed a rotation gets it with the next `up`, and none goes back.
    write_certificates(
        bed.host(2),
        &CertificateFile {
            authorities: last.clone(),
            ..with_machine(
                &CertificateFile { authorities: last, ..read_certificates(bed.host(2)) },
                false,
                -HOUR,
                200 * 24 * HOUR,
            )
        },
    );
    expect_refusal_in_status(bed.host(0), "another authority");
    let newer = "its certificates are newer than those of the machine";
    let said = bed.host(2).ask("tatami up");
    assert!(said.err.contains(newer), "{said:?}");
    bed.host(0).run("tatami up && tatami status");
    assert_eq!(authorities(bed.host(2)), authorities(bed.host(0)));
    bed.host(0).run("tatami down");
}

/// A daemon that systemd has started has a copy of the certificates, and takes new ones without a
/// restart.
#[test]
fn a_daemon_with_a_copy_of_the_certificates_gets_the_new_ones() {
    let Some(bed) = start_bed(&["n1", "n2"]) else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    one.run("tatami up --hosts n1,n2 --encryption tls --no-mount && tatami mkdir :/dir");
    // As the unit starts it: the copy never changes.
    two.run(
        "tatami node stop n2 && mkdir -m 700 /srv/copy && cd /var/lib/tatami &&
         cp -p key certificates.toml /srv/copy",
    );
    two.run(
        "setsid tatami node run --volume-file /var/lib/tatami/volume.toml --node n2 \
         --key-file /srv/copy/key </dev/null >/tmp/node.log 2>&1 &",
    );
    two.run("until tatami status; do sleep 0.05; done");
    let pid = two.run("pgrep -x tatami-node").out;
    for from in [one, two, one] {
        from.run("tatami volume rotate-certificates");
        for host in [one, two] {
            host.run("tatami status && tatami ls :/ | grep dir && tatami fsck");
        }
    }
    // Certificates that came by another way are given to it by `up`.
    let old = read_certificates(two);
    one.run("tatami volume rotate-certificates");
    let new = read_certificates(two);
    write_certificates(two, &old);
    two.run("tatami up --here --no-mount");
    expect_refusal_in_status(one, "another authority");
    write_certificates(two, &new);
    two.run("tatami up --here --no-mount");
    one.run("tatami status");
    two.run("! grep 'are not used' /tmp/node.log");
    assert_eq!(two.run("pgrep -x tatami-node").out, pid, "it was not restarted");
    one.run("tatami down");
}

/// A volume on one machine rotates, too, and one without encryption has nothing to rotate.
#[test]
fn one_machine_rotates_and_a_plain_volume_refuses() {
    let cluster = Setup::nodes(2).with_encryption().start();
    let one = cluster.mount(0);
    put(one.join("file"), b"before");
    let path = CertificateFile::path_in(cluster.dir());
    let old = CertificateFile::load(&path).expect("certificates");
    cluster.tatami("volume rotate-certificates", &[]);
    let new = CertificateFile::load(&path).expect("certificates");
    assert!(old.authorities != new.authorities && new.authorities.len() == 1);
    assert_eq!(get(cluster.mount(1).join("file")), b"before");
    // Damaged certificates are a trouble; a rotation makes new ones.
    fs::write(&path, "rubbish").expect("written");
    let said = ask(&mut cluster.command("status"));
    assert!(said.code == Some(3) && said.out.contains("it has no checksum"), "{said:?}");
    cluster.tatami("volume rotate-certificates", &[]);
    cluster.tatami("status", &[]);
    let wrong = ask(cluster.command("up").args(["--encryption", "none"]));
    assert!(wrong.code == Some(2) && wrong.err.contains("has encryption tls"), "{wrong:?}");
    cluster.finish();

    let mut plain = Setup::nodes(1);
    plain.encryption = Some(false);
    let plain = plain.start();
    let said = ask(&mut plain.command("volume rotate-certificates"));
    assert!(said.code == Some(2) && said.err.contains("encryption none"), "{said:?}");
    plain.finish();
}
