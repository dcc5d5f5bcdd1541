//! The Debian packages: their files, the units of systemd, and a volume that an administrator sets
//! up with them: its daemons run as services of a user of their own, and /etc/fstab mounts it.

use crate::hosts::{can_have_hosts, expect_refusal};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tatami_skip::skip_unavailable;
use tatami_tests::command::{program, run, shell, sources, target_dir, tatami_bin};
use tatami_tests::testbed::{HostBed, TestHost};

/// The names of the packages, and of those with their symbols.
const PACKAGES: [&str; 4] = ["tatami", "tatami-mpi", "tatami-dbgsym", "tatami-mpi-dbgsym"];

/// Files of the packages, with their modes; those of directories, too.
const FILES: [(&str, u32); 27] = [
    ("etc/tatami", 0o755),
    ("etc/tatami/tatami.toml", 0o644),
    ("lib/systemd/system/tatami-node@.service", 0o644),
    ("sbin/mount.tatami", 0o777),
    ("sbin/mount.fuse.tatami", 0o777),
    ("sbin/umount.fuse.tatami", 0o777),
    ("usr/bin/tatami", 0o755),
    ("usr/bin/tatami-bench", 0o755),
    ("usr/include/tatami_io.h", 0o644),
    ("usr/lib/sysusers.d/tatami.conf", 0o644),
    ("usr/lib/tatami/libtatami_io.so", 0o644),
    ("usr/lib/tatami/libtatami_mpi.so", 0o644),
    ("usr/lib/tatami/libtatami_preload.so", 0o644),
    ("usr/lib/tmpfiles.d/tatami.conf", 0o644),
    ("usr/share/bash-completion/completions/tatami", 0o644),
    ("usr/share/doc/tatami/changelog.gz", 0o644),
    ("usr/share/doc/tatami/changelog.Debian.gz", 0o644),
    ("usr/share/doc/tatami/copyright", 0o644),
    ("usr/share/doc/tatami/docs/operating/install.md", 0o644),
    ("usr/share/doc/tatami-mpi/copyright", 0o644),
    ("usr/share/fish/vendor_completions.d/tatami.fish", 0o644),
    ("usr/share/man/man1/tatami.1.gz", 0o644),
    ("usr/share/man/man1/tatami-bench.1.gz", 0o644),
    ("usr/share/man/man8/mount.tatami.8.gz", 0o644),
    ("usr/share/man/man8/umount.tatami.8.gz", 0o644),
    ("usr/share/man/man8/mount.fuse.tatami.8.gz", 0o777),
    ("usr/share/zsh/vendor-completions/_tatami", 0o644),
];

/// The directory with the packages. It is one of the build, and the next run makes it anew.
struct BuiltPackages {
    dir: PathBuf,
}

impl BuiltPackages {
    /// Builds the packages once, from the programs under test; `None` where the tools are missing.
    fn build_once() -> Option<&'static BuiltPackages> {
        static BUILT: OnceLock<Option<BuiltPackages>> = OnceLock::new();
        let built = BUILT.get_or_init(BuiltPackages::build).as_ref();
        if built.is_none() {
            skip_unavailable("debhelper is not there: scripts/packages.sh deb installs it");
        }
        built
    }

    fn build() -> Option<BuiltPackages> {
        if !Path::new("/usr/bin/dh").exists() || !Path::new("/usr/bin/dpkg-buildpackage").exists() {
            return None;
        }
        let dir = target_dir().join("packages-of-tests");
        let script = sources().join("../scripts/deb.sh");
        let tatami = tatami_bin();
        let binaries = tatami.parent().expect("programs lie in a directory");
        // Nobody installs these packages: to compress them well would take a minute.
        run(program("bash")
            .arg(script)
            .arg(&dir)
            .arg(binaries)
            .arg(target_dir().join("mpi"))
            .arg(dir.join("no-workloads"))
            .env("DEB_COMPRESSION", "-Zgzip -z1"));
        Some(BuiltPackages { dir })
    }

    fn file_of(&self, package: &str) -> PathBuf {
        let entries = fs::read_dir(&self.dir).expect("it is there").flatten();
        let prefix = format!("{package}_");
        let is_it = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with(&prefix) && name.ends_with("deb")
        };
        let found = entries.map(|entry| entry.path()).find(is_it);
        found.unwrap_or_else(|| panic!("there is no package {package}"))
    }

    /// Unpacks the packages, without those of symbols, below a directory.
    fn unpack(&self, root: &Path) {
        for package in &PACKAGES[..2] {
            run(program("dpkg-deb --extract").arg(self.file_of(package)).arg(root));
        }
    }
}

#[test]
fn packages_have_their_files_and_leave_the_symbols_to_others() {
    let Some(built) = BuiltPackages::build_once() else { return };
    let root = tempfile::tempdir().expect("a directory");
    built.unpack(root.path());
    for (name, mode) in FILES {
        let meta = root.path().join(name).symlink_metadata();
        let meta = meta.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(format!("{:o}", meta.mode() & 0o7777), format!("{mode:o}"), "{name}");
    }
    let all = run(program("find -printf").arg("%P %m %y\n").current_dir(root.path())).out;
    for line in all.lines().filter(|line| !line.ends_with(" l")) {
        let mode = line.rsplit(' ').nth(1).expect("three fields");
        assert!(["755", "644"].contains(&mode), "{line}");
    }
    let links = ["sbin/mount.tatami", "sbin/mount.fuse.tatami", "sbin/umount.fuse.tatami"];
    for link in links {
        let target = fs::read_link(root.path().join(link)).expect("it is a link");
        assert_eq!(target, Path::new("/usr/bin/tatami"), "{link}");
    }
    let conffiles = run(program("dpkg-deb --info").arg(built.file_of("tatami")).arg("conffiles"));
    assert_eq!(conffiles.out.trim(), "/etc/tatami/tatami.toml");
    let depends =
        |package| run(program("dpkg-deb --field").arg(built.file_of(package)).arg("Depends")).out;
    assert!(depends("tatami").contains("libc6 (>="), "{}", depends("tatami"));
    // Either MPI library will do, so none of them is needed.
    let mpi = depends("tatami-mpi");
    assert!(mpi.contains("tatami (=") && !mpi.contains("libopenmpi"), "{mpi}");

    let symbols = tempfile::tempdir().expect("a directory");
    run(program("dpkg-deb --extract").arg(built.file_of("tatami-dbgsym")).arg(symbols.path()));
    for name in ["usr/bin/tatami", "usr/lib/tatami/libtatami_preload.so"] {
        let path = root.path().join(name);
        let sections = run(program("readelf --wide --section-headers").arg(&path)).out;
        assert!(sections.contains(".gnu_debuglink") && !sections.contains(".debug_info"), "{name}");
        let notes = run(program("readelf --notes").arg(&path)).out;
        let id = notes.split("Build ID: ").nth(1).expect("a build id");
        let (dir, file) = id.lines().next().expect("a line").split_at(2);
        let split = format!("usr/lib/debug/.build-id/{dir}/{file}.debug");
        let split = symbols.path().join(split);
        let sections = run(program("readelf --wide --section-headers").arg(&split)).out;
        assert!(sections.contains(".debug_line"), "{name}: {}", split.display());
    }
}

#[test]
fn packages_keep_the_policy_of_debian() {
    let Some(built) = BuiltPackages::build_once() else { return };
    if !Path::new("/usr/bin/lintian").exists() {
        return skip_unavailable("lintian is not there: scripts/packages.sh deb installs it");
    }
    let mut lintian = program("lintian --allow-root --fail-on error");
    let said = run(lintian.args(PACKAGES[..2].iter().map(|package| built.file_of(package))));
    println!("{}", said.out);
}

/// Installs the packages on a host: over its /usr, and into its own /etc.
fn install_on(bed: &HostBed, at: usize, built: &BuiltPackages) {
    let host = bed.host(at);
    // The host sees it as /srv/package.
    let root = bed.dir().join(host.name()).join("srv/package");
    fs::create_dir(&root).expect("a directory of the host");
    built.unpack(&root);
    // /sbin and /lib are links to /usr on Debian.
    run(&mut shell(&root, "cp -a sbin usr && cp -a lib usr && rm -r sbin lib"));
    host.run("mount -t overlay -o lowerdir=/srv/package/usr:/usr overlay /usr && hash -r");
    host.run("cp -a /srv/package/etc/tatami /etc && which tatami | grep -x /usr/bin/tatami");
    host.run("cmp /usr/bin/tatami /srv/package/usr/bin/tatami");
    host.run("systemd-sysusers tatami.conf && getent passwd tatami");
}

/// Starts the daemon of volume `scratch` on a host as systemd would: by the lines of the unit, with
/// a copy of the key, and ready when it says so. systemd gives the key to the user of the service
/// where the file system has no access control lists.
fn start_service(host: &TestHost, key_has_list: bool) {
    let credentials = "/run/credentials/tatami-node@scratch.service";
    let unit = host.run("cat /usr/lib/systemd/system/tatami-node@.service").out;
    let line_of = |key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(key)).expect("a line");
        line.replace("%i", "scratch").replace("${CREDENTIALS_DIRECTORY}", credentials)
    };
    host.run(&line_of("ExecStartPre=+"));
    host.run(&format!(
        "mkdir -p {credentials} && cd {credentials} && rm -f key && cat /etc/tatami/scratch/key > key"
    ));
    let (owner, mode) = if key_has_list { ("root:root", "0440") } else { ("tatami", "0400") };
    host.run(&format!("cd {credentials} && chown {owner} key && chmod {mode} key"));
    if key_has_list {
        host.run(&format!(
            "setfacl -m u:tatami:r-x {credentials} && setfacl -m u:tatami:r {credentials}/key"
        ));
    } else {
        host.run(&format!("chown tatami {credentials}"));
    }
    host.run(&format!("chmod 0500 {credentials}; chmod g+rx {credentials}"));
    let start = line_of("ExecStart=");
    let restrict = "setpriv --reuid tatami --regid tatami --clear-groups --no-new-privs \
                    --bounding-set -all --inh-caps -all";
    // The socket is there before the daemon starts.
    let notified = "import socket, subprocess, sys, os
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.bind('/run/notify'); s.settimeout(100)
os.chmod('/run/notify', 0o666)
subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
  stderr=open('/var/log/tatami-node', 'a'), start_new_session=True)
print(s.recv(4096).decode())";
    let said = host.ask(&format!(
        "rm -f /run/notify; umask 077; NOTIFY_SOCKET=/run/notify CREDENTIALS_DIRECTORY={credentials} \
         python3 -c \"{notified}\" {restrict} {start} || cat /var/log/tatami-node >&2"
    ));
    assert!(said.out.contains("READY=1"), "{said:?}");
    let users = "ps -o user= -p $(pgrep -f '^/usr/bin/tatami node run')";
    assert_eq!(host.run(users).out.trim(), "tatami");
}

/// Starts hosts with the packages; `None` where this machine cannot have them.
fn start_installed(names: &[&str]) -> Option<HostBed> {
    if !can_have_hosts() {
        return None;
    }
    if !Path::new("/usr/bin/systemd-analyze").exists() {
        skip_unavailable("systemd is not there: scripts/packages.sh deb installs it");
        return None;
    }
    let built = BuiltPackages::build_once()?;
    let bed = HostBed::start(names);
    (0..names.len()).for_each(|at| install_on(&bed, at, built));
    Some(bed)
}

/// Returns the system calls of a set of systemd, which may have other sets in it. Any other name is
/// that of a call.
fn calls_of_set(host: &TestHost, name: &str) -> Vec<String> {
    if !name.starts_with('@') {
        return vec![name.to_owned()];
    }
    let said = host.run(&format!("systemd-analyze syscall-filter --no-pager {name}"));
    let words = said.out.lines().skip(1).map(str::trim).filter(|word| !word.starts_with('#'));
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.into_iter().flat_map(|word| calls_of_set(host, word)).collect()
}

#[test]
fn the_unit_is_valid_and_grants_little() {
    let Some(bed) = start_installed(&["n1"]) else { return };
    let host = bed.host(0);
    host.run("mkdir -p /etc/tatami/scratch");
    let said =
        host.run("systemd-analyze verify tatami-node@scratch.service 2>&1 | grep tatami || true");
    assert_eq!(said.out, "", "systemd has no complaint about the unit");
    let unit = "/usr/lib/systemd/system/tatami-node@.service";
    let said = host.run(&format!(
        "cp {unit} /tmp/tatami-node@scratch.service && systemd-analyze security --offline=true \
         --threshold=25 --no-pager /tmp/tatami-node@scratch.service"
    ));
    println!("{}", said.out);

    // No call of the daemon is outside of the sets that the unit allows.
    host.run("tatami up --dir /srv/volume --no-mount && tatami down --dir /srv/volume");
    host.run("rmdir /etc/tatami/scratch && ln -s /srv/volume /etc/tatami/scratch");
    host.run(
        "strace -f -qq -o /tmp/trace tatami node run --volume-file /etc/tatami/scratch/volume.toml \
         </dev/null >/tmp/log 2>&1 & 
         until tatami ls --dir /etc/tatami/scratch :/ 2>/dev/null; do sleep 0.1; done
         echo x | tatami cp --dir /srv/volume - :/x && mkdir -p /mnt/v
         tatami mount --dir /srv/volume /mnt/v && cp -r /etc/ssh /mnt/v && ls -lR /mnt/v >/dev/null
         rm -r /mnt/v/ssh && umount /mnt/v && tatami fsck --dir /srv/volume
         tatami node stop --dir /srv/volume node0 && wait",
    );
    let used = host.run("sed -nE 's/^[0-9]+ +([a-z0-9_]+)\\(.*/\\1/p' /tmp/trace | sort -u").out;
    let mut allowed = BTreeSet::new();
    for line in host.run(&format!("grep ^SystemCallFilter= {unit}")).out.lines() {
        let words = line.trim_start_matches("SystemCallFilter=");
        let (words, is_allowed) = match words.strip_prefix('~') {
            Some(words) => (words, false),
            None => (words, true),
        };
        let calls = words.split(' ').flat_map(|word| calls_of_set(host, word));
        if is_allowed {
            allowed.extend(calls);
        } else {
            calls.for_each(|call| _ = allowed.remove(&call));
        }
    }
    let outside: Vec<_> = used.lines().filter(|call| !allowed.contains(*call)).collect();
    assert!(used.lines().count() > 20, "{used}");
    assert_eq!(outside, Vec::<&str>::new(), "calls that the unit refuses");
}

/// The way of the page on installing: make the volume, give it a name, start its services, and let
/// /etc/fstab mount it.
#[test]
fn services_of_a_user_of_their_own_serve_a_volume_that_fstab_mounts() {
    let Some(bed) = start_installed(&["n1", "n2", "n3"]) else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    one.run("tatami up --hosts n1,n2 --dir /srv/volume --no-mount --users");
    one.run("echo early | tatami cp --dir /srv/volume - :/early && tatami down --dir /srv/volume");
    for host in bed.hosts() {
        host.run("mkdir /mnt/tatami");
        host.run("echo 'scratch /mnt/tatami tatami defaults,_netdev,nosuid 0 0' >> /etc/fstab");
    }
    let name_volume = "ln -s /srv/volume /etc/tatami/scratch && ln -s scratch /etc/tatami/default";
    [one, two].iter().for_each(|host| _ = host.run(name_volume));
    start_service(one, false);
    start_service(two, true);
    // A machine that comes later: its first daemon is root's.
    one.run("tatami node add --no-mount n3");
    let three = bed.host(2);
    three.run("tatami down --here --dir /srv/volume");
    three.run(name_volume);
    start_service(three, false);
    for host in bed.hosts() {
        host.run("mount -a && mountpoint /mnt/tatami && grep '^scratch /mnt/tatami' /proc/mounts");
        // The line is mounted, so nothing is left to do.
        host.run("mount -a && test $(grep -c ' /mnt/tatami ' /proc/mounts) = 1");
        host.run("test $(cat /mnt/tatami/early) = early && tatami status && tatami fsck");
        host.run("echo $(hostname) > /mnt/tatami/$(hostname)");
        let owners = host.run("find /srv/volume/node* -printf '%u\\n' | sort -u").out;
        assert_eq!(owners, "tatami\n", "data belong to the user of the service");
        host.run("test $(stat -c %U:%a /srv/volume/key) = root:600");
    }
    one.run(
        "cd /mnt/tatami && cat n1 n2 && head -c 3000000 /dev/urandom > big && md5sum big > sum",
    );
    two.run("cd /mnt/tatami && md5sum -c sum");
    // Users are themselves: the daemon decides by their numbers, and not by its own user.
    let alice = |line: &str| run(&mut one.user_command(line));
    alice("echo mine > /mnt/tatami/alice && test $(stat -c %u /mnt/tatami/alice) = 4011");
    alice("! rm -f /mnt/tatami/n1 2>/dev/null && tatami ls :/ | grep alice && tatami cat :/n2");
    one.run("test $(stat -c %u /mnt/tatami/alice) = 4011 && chmod 600 /mnt/tatami/n1");
    alice("! cat /mnt/tatami/n1 2>/dev/null && ! tatami cat :/n1 2>/dev/null");

    // A remount changes what the kernel keeps.
    one.run("mount -o remount,ro /mnt/tatami && ! touch /mnt/tatami/x 2>/dev/null");
    one.run("mount -o remount,rw /mnt/tatami && touch /mnt/tatami/x");
    one.run("grep '^scratch /mnt/tatami fuse.tatami rw,nosuid,' /proc/mounts");
    // umount waits for written data. The process of the mount ends a moment later.
    one.run("echo late > /mnt/tatami/late; umount /mnt/tatami");
    two.run("test $(cat /mnt/tatami/late) = late");
    one.run("while pgrep tatami-mount; do sleep 0.1; done");
    one.run("mount /mnt/tatami && (cd /mnt/tatami && ! umount /mnt/tatami 2>/dev/null)");
    one.run("cd / && umount /mnt/tatami && mount -t tatami -o ro,node=n2 /srv/volume /mnt/tatami");
    one.run("grep '^/srv/volume /mnt/tatami fuse.tatami ro,' /proc/mounts && umount /mnt/tatami");
    let tatami = "mount -t tatami";
    expect_refusal(one, &format!("{tatami} -o rx scratch /mnt/tatami"), &["unknown mount option"]);
    expect_refusal(
        one,
        &format!("{tatami} other /mnt/tatami"),
        &["no volume other in /etc/tatami"],
    );
    expect_refusal(one, &format!("{tatami} scratch /mnt/none"), &["/mnt/none"]);
    one.run("mount -f -t tatami scratch /mnt/tatami && ! mountpoint -q /mnt/tatami");
    one.run("mount -t tatami -s -o rx scratch /mnt/tatami && umount /mnt/tatami");

    // root does not run the daemon of another user.
    one.run("tatami node stop n1");
    let service = ["belong to user tatami", "systemctl start tatami-node@scratch"];
    expect_refusal(one, "tatami node start n1", &service);
    expect_refusal(one, "tatami up --here --no-mount", &service);
    start_service(one, true);
    expect_refusal(one, "tatami node chown root", &["the daemon of n1 runs"]);
    one.run("mount /mnt/tatami && cd /mnt/tatami && md5sum -c sum");
    one.run("umount /mnt/tatami && tatami node stop n1 && tatami node chown root");
    one.run("tatami node start n1 && tatami cat :/late && tatami node stop n1");
    let owner = one.run("find /srv/volume/node* /srv/volume/made -printf '%u\\n' | sort -u").out;
    assert_eq!(owner, "root\n");
}
