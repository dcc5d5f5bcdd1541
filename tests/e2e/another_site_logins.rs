//! The processes of a host share their ssh logins to another site. The tests count the logins in
//! the log of sshd there.

use crate::hosts::start_bed;
use crate::two_sites::{DISK, LoginWay, SiteBed};
use tatami_tests::seed::scale;
use tatami_tests::testbed::TestHost;

/// Sessions that sshd allows for one login, by default.
const SESSIONS: usize = 10;
/// Where root has the sockets of shared logins.
const SOCKETS: &str = "/tmp/tatami-logins-0";

/// Programs on a host that read the same file of another site, and wait with their sessions open.
struct Readers<'a> {
    host: &'a TestHost,
    /// The other site, and the file there.
    site: &'a TestHost,
    file: String,
    /// Bytes that each has read when it waits.
    before: u32,
    started: usize,
}

impl<'a> Readers<'a> {
    fn new(host: &'a TestHost, site: &'a TestHost, dir: &str, before: u32) -> Readers<'a> {
        host.run("rm -rf /srv/readers; mkdir /srv/readers");
        site.run(&format!("mkdir -p {dir}; head -c 6M /dev/urandom > {dir}/f"));
        Readers { host, site, file: format!("{dir}/f"), before, started: 0 }
    }

    /// Starts so many more at once, and waits until all have read the first bytes.
    fn start_more(&mut self, count: usize, variables: &str) {
        let (first, last) = (self.started + 1, self.started + count);
        let (site, file, before) = (self.site.name(), &self.file, self.before);
        self.host.run(&format!(
            "export {variables}; cd /srv/readers; for i in $(seq {first} {last}); do
             setsid bash -c 'tatami cat {site}:{file} 2>error.$0 | {{ head -c {before}; touch open.$0
               until [ -e go ]; do sleep 0.1; done; cat; }} | sha256sum >sum.$0' \
               $i </dev/null >/dev/null 2>&1 &
             done"
        ));
        self.started = last;
        self.await_files("open", last);
    }

    fn await_files(&self, name: &str, count: usize) {
        self.host.run(&format!(
            "cd /srv/readers; for i in $(seq 1000); do
             [ $(find . -name '{name}.*' -size {} | wc -l) != {count} ] || exit 0; sleep 0.1; done
             tail error.* >&2; exit 1",
            if name == "sum" { "+0" } else { "0" }
        ));
    }

    /// Lets all read the rest, and checks what they have read. `killed` of them have ended before.
    fn finish(self, killed: usize) {
        self.host.run("touch /srv/readers/go");
        self.await_files("sum", self.started);
        let sum = self.site.run(&format!("sha256sum <{}", self.file)).out;
        let line = format!("cat /srv/readers/sum.* | grep -cxF '{}'", sum.trim());
        let right: usize = self.host.run(&line).out.trim().parse().expect("a number");
        assert_eq!(right, self.started - killed);
    }
}

/// No ssh and no socket is left on a host after its programs.
fn expect_nothing_left(host: &TestHost) {
    host.run(&format!(
        "for i in $(seq 1000); do pgrep -x ssh >/dev/null || break; sleep 0.1; done
         if pgrep -ax ssh >&2; then exit 1; fi; [ ! -d {SOCKETS} ] || test -z \"$(find {SOCKETS} -type s)\""
    ));
}

/// Returns how many logins sshd of a host has accepted.
fn count_logins(host: &TestHost) -> usize {
    let said = host.run("grep -c 'Accepted publickey' /var/log/sshd.log || true");
    said.out.trim().parse().expect("a number")
}

/// Starts sshd of a host anew, with one more option. Its sessions go on.
fn restart_sshd(host: &TestHost, option: &str) {
    host.run(&format!(
        "listener=$(pgrep -o -x sshd); kill $listener
         while [ -e /proc/$listener ]; do sleep 0.02; done
         /usr/sbin/sshd -f /etc/ssh/bed_config -E /var/log/sshd.log -o {option}
         until (exec 3<>/dev/tcp/127.0.0.1/22) 2>/dev/null; do sleep 0.02; done"
    ));
}

/// Ten processes need one login, and a killed one gives its place to the next. More processes need
/// more logins. All of it is private, and gone at the end.
#[test]
fn processes_of_a_host_share_logins() {
    let Some(bed) = start_bed(&["sitea", "siteb"]) else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    restart_sshd(two, "MaxStartups=10:30:100");
    let mut readers = Readers::new(one, two, DISK, 1 << 16);
    readers.start_more(SESSIONS, "");
    assert_eq!(count_logins(two), 1);
    assert_eq!(one.run(&format!("stat -c '%a %U' {SOCKETS}")).out, "700 root\n");
    let others = format!("find {SOCKETS} -mindepth 1 -perm /077");
    assert_eq!(one.run(&others).out, "", "files that others may use");
    // The place of a process that is killed is free when its session has ended.
    one.run("pkill -KILL -o -xf 'tatami cat siteb:/srv/data/f'");
    let sessions = SESSIONS - 1;
    two.run(&format!(
        "for i in $(seq 1000); do [ $(pgrep -cxf 'tatami gateway') != {sessions} ] || exit 0
         sleep 0.1; done; exit 1"
    ));
    readers.start_more(1, "");
    assert_eq!(count_logins(two), 1);
    let many = if scale() > 1 { 64 } else { 12 };
    readers.start_more(many - SESSIONS, "");
    assert_eq!(count_logins(two), many.div_ceil(SESSIONS));
    readers.finish(1);
    expect_nothing_left(one);
}

/// An ssh with the login of several processes is killed. The next process logs in anew, and so do
/// those that had their sessions through it.
#[test]
fn a_login_that_ends_is_made_again() {
    let Some(bed) = start_bed(&["sitea", "siteb"]) else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    let mut readers = Readers::new(one, two, DISK, 1 << 16);
    readers.start_more(3, "");
    assert_eq!(count_logins(two), 1);
    one.run(&format!("pkill -KILL -f '^ssh: {SOCKETS}/'; find {SOCKETS} -type s | grep -q ."));
    readers.start_more(1, "");
    assert_eq!(count_logins(two), 2);
    if scale() > 1 {
        // It says nothing for more than half a minute: its sshd stands still.
        let stopped = two.run("pgrep -n -xf 'sshd: root@notty'").out;
        two.run(&format!("kill -STOP {stopped}"));
        readers.start_more(2, "");
        // Each has a login of its own, and the next one begins a shared login.
        assert_eq!(count_logins(two), 4);
        readers.start_more(2, "");
        assert_eq!(count_logins(two), 5);
        two.run(&format!("kill -CONT {stopped}"));
    }
    readers.finish(0);
    expect_nothing_left(one);
}

/// `TATAMI_LOGINS=own`, an sshd with one session for each login, and the user's own arrangement.
#[test]
fn logins_are_not_shared_where_a_setting_forbids_it() {
    let Some(bed) = start_bed(&["sitea", "siteb"]) else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    let said = one.ask("TATAMI_LOGINS=off tatami ls siteb:/srv");
    assert!(said.code != Some(0) && said.err.contains("TATAMI_LOGINS: \"off\""), "{said:?}");
    let count = 6;
    let mut readers = Readers::new(one, two, DISK, 1 << 16);
    readers.start_more(count, "TATAMI_LOGINS=own");
    assert_eq!(count_logins(two), count);
    one.run(&format!("test ! -e {SOCKETS}"));
    readers.finish(0);

    one.run(
        "printf 'Host siteb\\n ControlMaster auto\\n ControlPath ~/.ssh/of-user\\n' >~/.ssh/config",
    );
    let mut readers = Readers::new(one, two, DISK, 1 << 16);
    readers.start_more(1, "");
    one.run(&format!("test -S ~/.ssh/of-user; test ! -e {SOCKETS}"));
    readers.finish(0);
    one.run("rm ~/.ssh/config");

    restart_sshd(two, "MaxSessions=1");
    let before = count_logins(two);
    let mut readers = Readers::new(one, two, DISK, 1 << 16);
    readers.start_more(count, "");
    assert_eq!(count_logins(two) - before, count);
    readers.finish(0);
    expect_nothing_left(one);
}

/// Sessions, relays and the logins that pass through a login host share its logins as well.
#[test]
fn logins_at_login_hosts_are_shared() {
    let Some(sites) = SiteBed::start(1, 1) else { return };
    let variables = sites.open_way(LoginWay::Both);
    let hosts = [sites.near_login(0), sites.far_login(0)].map(|at| sites.bed.host(at));
    let count = 12;
    // A process has its data connections when it has read so much.
    let mut readers = Readers::new(sites.first(), sites.io_host(), DISK, 4 << 20);
    readers.start_more(count, &format!("TATAMI_STREAMS=1 {variables}"));
    for host in hosts {
        let relays = host.run("pgrep -cxf 'tatami relay'").out;
        assert_eq!(relays.trim(), count.to_string(), "relays on {}", host.name());
    }
    for host in hosts.into_iter().chain([sites.io_host()]) {
        assert_eq!(count_logins(host), count.div_ceil(SESSIONS), "logins at {}", host.name());
    }
    readers.finish(0);
    sites.expect_nothing_left(DISK, "f");
    expect_nothing_left(sites.first());
}
