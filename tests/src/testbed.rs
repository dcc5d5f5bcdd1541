//! Machines for end-to-end tests: hosts that share nothing but a network.
//!
//! A host is a set of Linux namespaces: network, mount, PID, UTS and IPC. It has its own `/run`,
//! `/tmp`, `/var`, `/etc`, home directories, shared memory, host name, machine id and `sshd`. It
//! shares the kernel, its clock and the read-only rest of the file system with the other hosts. The
//! bridge between the hosts is in a network namespace of its own, so several test beds never meet.
//!
//! The first process of each host ends when the test's end of a pipe is closed. So nothing is left
//! after a test that failed or was killed.

use crate::command::{Said, ask, program, run, sources, tatami_bin};
use crate::seed::scale;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Longest time of a command on a host, in seconds.
const COMMAND_LIMIT: u64 = 120;
/// The same in the long form of the tests, which has waits of minutes.
const LONG_COMMAND_LIMIT: u64 = 900;
/// The ordinary user of each host, and its home directory.
const USER: (u32, &str) = (4011, "/srv/alice");

/// Programs that a test bed needs, and their Debian packages.
const NEEDED: [(&str, &str); 5] = [
    ("/usr/sbin/sshd", "openssh-server"),
    ("/usr/bin/ssh", "openssh-client"),
    ("/usr/bin/ssh-keygen", "openssh-client"),
    ("/bin/ip", "iproute2"),
    ("/usr/bin/nsenter", "util-linux"),
];

/// The networks of a test bed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BedNetworks {
    /// One, with IPv4.
    V4,
    /// One, with IPv6 alone.
    V6,
    /// Two with IPv4. The names of the hosts are those of the first; the last host is not in the
    /// second.
    Two,
    /// Two sites, each with a network of its own with IPv4. The last hosts of the first site and
    /// the first ones of the second are login hosts: they see each other in a third network.
    Sites {
        /// Hosts of the first site.
        near: usize,
        /// Login hosts of each site.
        logins: usize,
    },
}

/// The bridges of the switch, with the networks of the links to them.
const BRIDGES: [(&str, &str); 3] =
    [("bridge", "10.77.0"), ("second", "10.78.0"), ("third", "10.79.0")];

/// A process with pipes to its standard input and from its standard output.
struct PipedProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl PipedProcess {
    fn start(command: &mut Command) -> PipedProcess {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().expect("util-linux is installed");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it is a pipe"));
        PipedProcess { child, input, output }
    }

    fn await_line(&mut self, expected: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a pipe can be read");
        assert_eq!(line.trim_end(), expected, "a process of the test bed did not start");
    }

    fn write_line(&mut self, line: &str) {
        let input = self.input.as_mut().expect("it is open until the end");
        writeln!(input, "{line}").expect("the process reads");
    }

    /// Closes its input, and waits for its end.
    fn end(&mut self) {
        self.input = None;
        let _ = self.child.wait();
    }
}

/// Hosts on a network of their own. Dropping the value ends all of them.
pub struct HostBed {
    dir: PathBuf,
    networks: BedNetworks,
    switch: PipedProcess,
    hosts: Vec<TestHost>,
}

/// A host of a test bed.
pub struct TestHost {
    name: String,
    address: String,
    /// The bridge of its first link.
    bridge: &'static str,
    /// The bridge of its second link, and its address there.
    second: Option<(&'static str, String)>,
    /// Its end of the cable, in the switch.
    port: String,
    /// The process that waits for the first process of the host; `None` while it is off.
    process: Option<PipedProcess>,
    /// The first process of the host, as this process sees it.
    init: i32,
    /// Whether command lines are not printed.
    is_quiet: bool,
}

impl HostBed {
    /// Returns why no test bed can be made on this machine: it lacks a program.
    pub fn find_obstacle() -> Option<String> {
        let missing = NEEDED.iter().find(|(path, _)| !Path::new(path).is_file());
        missing.map(|(path, package)| format!("{path} is not there: install {package}"))
    }

    /// Starts hosts with these names, which see each other under them.
    ///
    /// # Panics
    /// If a host does not start.
    pub fn start(names: &[&str]) -> HostBed {
        HostBed::start_in(BedNetworks::V4, names)
    }

    /// As [`HostBed::start`], with these networks.
    ///
    /// # Panics
    /// If a host does not start.
    pub fn start_in(networks: BedNetworks, names: &[&str]) -> HostBed {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let base = std::env::var_os("TATAMI_TEST_DIR").map_or("/tmp".into(), PathBuf::from);
        let dir = base.join(format!("tatami-bed-{}-{count}", std::process::id()));
        fs::create_dir_all(dir.join("bin")).expect("a directory for the test bed");
        // The switch is the first part: it removes the directory even if this process is killed.
        let script = sources().join("src/testbed/switch.sh");
        let mut switch = program("unshare --net bash");
        let switch = PipedProcess::start(switch.arg(script).arg(&dir));
        let mut bed = HostBed { dir, networks, switch, hosts: Vec::new() };
        bed.switch.await_line("ready");
        for (bridge, _) in &BRIDGES[1..networks.count_bridges()] {
            bed.run_in_switch(&format!(
                "ip link add name {bridge} type bridge && ip link set {bridge} up"
            ));
        }
        bed.lay_out(names);
        for (at, name) in names.iter().enumerate() {
            bed.hosts.push(TestHost {
                name: (*name).to_owned(),
                address: networks.address_of(at),
                bridge: networks.bridge_of(at),
                second: networks.second_link_of(at, names.len()),
                port: format!("port{at}"),
                process: None,
                init: 0,
                is_quiet: false,
            });
        }
        // In two steps, so that the hosts start side by side.
        (0..names.len()).for_each(|at| bed.begin_boot(at));
        (0..names.len()).for_each(|at| bed.finish_boot(at));
        bed
    }

    /// Makes the files that all hosts get a copy of: keys, addresses, programs.
    fn lay_out(&self, names: &[&str]) {
        let keys = self.dir.join("keys");
        fs::create_dir(&keys).expect("a directory for the test bed");
        for name in names.iter().chain(&["user"]) {
            let mut keygen = program("ssh-keygen -q -t ed25519 -N");
            run(keygen.args(["", "-C", name, "-f"]).arg(keys.join(name)));
        }
        let (mut hosts, mut known) = (String::new(), String::new());
        for (at, name) in names.iter().enumerate() {
            let public = fs::read_to_string(keys.join(format!("{name}.pub"))).expect("a key");
            let address = self.networks.known_address_of(at, names.len());
            hosts += &format!("{address} {name}\n");
            known += &format!("{name},{address} {public}");
        }
        fs::write(self.dir.join("hosts"), hosts).expect("a file of the test bed");
        fs::write(self.dir.join("known_hosts"), known).expect("a file of the test bed");
        for name in ["tatami", "libtatami_preload.so"] {
            let from = tatami_bin().with_file_name(name);
            self.install_file(&from);
        }
    }

    /// Lets all hosts have a file as `/usr/local/bin/NAME`. They do not see the directory of the
    /// sources where that lies in a home directory or in `/tmp`.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn install_file(&self, file: &Path) {
        let bin = self.dir.join("bin");
        // A link costs no space; across file systems only a copy is possible.
        if ask(program("cp --link").arg(file).arg(&bin)).code != Some(0) {
            run(program("cp").arg(file).arg(&bin));
        }
    }

    fn begin_boot(&mut self, at: usize) {
        let script = sources().join("src/testbed/host.sh");
        let mut host = program("unshare --net --mount --pid --uts --ipc --fork --kill-child bash");
        host.arg(script).arg(&self.dir).arg(&self.hosts[at].name);
        self.hosts[at].process = Some(PipedProcess::start(&mut host));
    }

    fn finish_boot(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        let process = host.process.as_mut().expect("it was started");
        process.await_line("made");
        let outer = process.child.id();
        let children = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children"));
        let children = children.expect("unshare waits for its child");
        host.init = children.trim().parse().expect("unshare has one child");
        self.switch.write_line(&host.init.to_string());
        let (port, init, bridge) = (host.port.clone(), host.init, host.bridge);
        // A machine keeps it over a restart, and the others have cached it.
        let hardware = format!("02:00:00:77:{:02x}:{:02x}", at >> 8, at & 0xff);
        self.run_in_switch(&format!(
            "ip link add {port} type veth peer name eth0 address {hardware} netns {init} &&
             ip link set {port} master {bridge} up"
        ));
        let mut addresses = self.networks.with_prefix(&self.hosts[at].address);
        if let Some((bridge, address)) = &self.hosts[at].second {
            self.run_in_switch(&format!(
                "ip link add {port}b type veth peer name eth1 netns {init} &&
                 ip link set {port}b master {bridge} up"
            ));
            addresses += &format!(" {address}/24");
        }
        let host = &mut self.hosts[at];
        let process = host.process.as_mut().expect("it was started");
        process.write_line(&addresses);
        process.await_line("ready");
    }

    fn run_in_switch(&self, script: &str) {
        let mut enter = program("nsenter --net --target");
        run(enter.arg(self.switch.child.id().to_string()).args(["sh", "-ec", script]));
    }

    /// Returns the host with this number.
    pub fn host(&self, at: usize) -> &TestHost {
        &self.hosts[at]
    }

    /// Returns all hosts.
    pub fn hosts(&self) -> &[TestHost] {
        &self.hosts
    }

    /// Prints no command lines of the hosts any more, for a program that people read. A command
    /// that fails still shows its output.
    pub fn hide_commands(&mut self) {
        self.hosts.iter_mut().for_each(|host| host.is_quiet = true);
    }

    /// Returns the directory of the test bed, which no host sees.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Ends all processes of a host at once. Its disk keeps what was written.
    pub fn cut_power(&mut self, at: usize) {
        self.hosts[at].end_processes();
        // The kernel removes them, too, but at some later time.
        let port = &self.hosts[at].port;
        self.run_in_switch(&format!("for p in {port} {port}b; do ip link delete $p || true; done"));
    }

    /// Starts a host again after a power cut.
    pub fn boot(&mut self, at: usize) {
        assert!(self.hosts[at].process.is_none(), "{} runs", self.hosts[at].name);
        self.begin_boot(at);
        self.finish_boot(at);
    }

    /// Takes the link of a host down: no other host reaches it.
    pub fn unplug(&self, at: usize) {
        self.run_in_switch(&format!("ip link set {} down", self.hosts[at].port));
    }

    /// Limits what passes to and from a host to this rate, in the words of tc(8); `None`: no limit.
    pub fn limit_rate(&self, at: usize, rate: Option<&str>) {
        let host = &self.hosts[at];
        // The end in the switch shapes what the host receives, its own end what it sends.
        let line = |device: &str| match rate {
            Some(rate) => format!(
                "tc qdisc replace dev {device} root tbf rate {rate} burst 128k latency 50ms"
            ),
            None => format!("tc qdisc delete dev {device} root 2>/dev/null || true"),
        };
        self.run_in_switch(&line(&host.port));
        run(&mut host.command(&line("eth0")));
    }

    /// Takes the link of a host up again.
    pub fn plug_in(&self, at: usize) {
        self.run_in_switch(&format!("ip link set {} up", self.hosts[at].port));
    }
}

impl Drop for HostBed {
    fn drop(&mut self) {
        // All end side by side: the kernel takes a while for the namespaces of each.
        let all = self.hosts.iter_mut().filter_map(|host| host.process.as_mut());
        all.for_each(|process| process.input = None);
        self.hosts.iter_mut().for_each(TestHost::end_processes);
        // The switch removes the directory.
        self.switch.end();
    }
}

impl BedNetworks {
    /// Returns the address of the host with this number.
    fn address_of(self, at: usize) -> String {
        match self {
            BedNetworks::V4 | BedNetworks::Two => format!("10.77.0.{}", at + 1),
            BedNetworks::V6 => format!("fd00:77::{}", at + 1),
            BedNetworks::Sites { near, .. } if at < near => format!("10.77.0.{}", at + 1),
            BedNetworks::Sites { near, .. } => format!("10.78.0.{}", at - near + 1),
        }
    }

    fn count_bridges(self) -> usize {
        match self {
            BedNetworks::V4 | BedNetworks::V6 => 1,
            BedNetworks::Two => 2,
            BedNetworks::Sites { .. } => BRIDGES.len(),
        }
    }

    fn bridge_of(self, at: usize) -> &'static str {
        let is_second = matches!(self, BedNetworks::Sites { near, .. } if at >= near);
        BRIDGES[usize::from(is_second)].0
    }

    /// Returns the bridge of the second link of host `at` of so many, and its address there.
    fn second_link_of(self, at: usize, count: usize) -> Option<(&'static str, String)> {
        let (is_there, bridge) = match self {
            BedNetworks::V4 | BedNetworks::V6 => (false, 0),
            BedNetworks::Two => (at + 1 < count, 1),
            BedNetworks::Sites { near, logins } => {
                ((near - logins..near + logins).contains(&at), 2)
            }
        };
        let (bridge, network) = BRIDGES[bridge];
        is_there.then(|| (bridge, format!("{network}.{}", at + 1)))
    }

    /// Returns the address under which the other hosts know a host. The login hosts of the second
    /// site are those of the network between the sites.
    fn known_address_of(self, at: usize, count: usize) -> String {
        let is_second = self.bridge_of(at) != BRIDGES[0].0;
        let second = self.second_link_of(at, count).filter(|_| is_second);
        second.map_or_else(|| self.address_of(at), |(_, address)| address)
    }

    /// Returns the address with the length of the prefix of its network.
    fn with_prefix(self, address: &str) -> String {
        format!("{address}/{}", if self == BedNetworks::V6 { 64 } else { 24 })
    }
}

impl TestHost {
    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its address on the network of the test bed.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns its first process, as this process sees it.
    pub fn init(&self) -> i32 {
        self.init
    }

    /// Returns the path of one of its namespaces, such as `net`.
    pub fn namespace(&self, kind: &str) -> PathBuf {
        format!("/proc/{}/ns/{kind}", self.init).into()
    }

    /// Returns a command line that root runs on this host, as after a login.
    pub fn command(&self, line: &str) -> Command {
        self.command_as(0, "/root", line)
    }

    /// Returns a command line that the ordinary user runs on this host.
    pub fn user_command(&self, line: &str) -> Command {
        self.command_as(USER.0, USER.1, line)
    }

    fn command_as(&self, user: u32, home: &str, line: &str) -> Command {
        assert!(self.process.is_some(), "{} is off", self.name);
        let mut command = program("nsenter --net --mount --pid --uts --ipc --wd=/ --target");
        let limit = if scale() > 1 { LONG_COMMAND_LIMIT } else { COMMAND_LIMIT };
        command.arg(self.init.to_string()).args(["timeout", "-k", "5", &limit.to_string()]);
        if user != 0 {
            let id = user.to_string();
            command.args(["setpriv", "--clear-groups", "--reuid", &id, "--regid", &id]);
        }
        command.args(["bash", "-euo", "pipefail", "-c", &format!("cd; {line}")]).env_clear();
        command.env("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("HOME", home).env("LC_ALL", "C.UTF-8");
        command
    }

    /// Runs a command line as root, which must be a success.
    pub fn run(&self, line: &str) -> Said {
        self.time_command(line, run)
    }

    /// Unmounts, once no process that is ending has a file there open.
    ///
    /// # Panics
    /// If one still has after a minute.
    pub fn unmount(&self, path: &str) {
        self.run(&format!(
            "for i in $(seq 600); do umount {path} 2>/dev/null && exit 0; sleep 0.1; done; \
             umount {path}"
        ));
    }

    /// Runs a command line as root.
    pub fn ask(&self, line: &str) -> Said {
        self.time_command(line, ask)
    }

    fn time_command(&self, line: &str, run: impl FnOnce(&mut Command) -> Said) -> Said {
        let start = Instant::now();
        let said = run(&mut self.command(line));
        if !self.is_quiet {
            println!("{} {:.2} s: {line}", self.name, start.elapsed().as_secs_f64());
        }
        said
    }

    /// Sets the clock of this host for programs that start from now on: so many seconds ahead of
    /// the others, or behind. The kernel's times of local files stay right. Only for x86-64.
    ///
    /// # Panics
    /// If the clock cannot be set.
    pub fn set_clock(&self, bed: &HostBed, ahead: i64) {
        let library = bed.dir.join("bin/clock.so");
        if !library.exists() {
            let source = sources().join("src/testbed/clock.c");
            run(program("gcc -O1 -shared -fPIC -o").arg(&library).arg(source));
        }
        self.run(&format!(
            "echo {ahead} > /etc/clock; echo /usr/local/bin/clock.so > /etc/ld.so.preload"
        ));
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let before = now() as i64 + ahead;
        let there: i64 = self.run("date +%s").out.trim().parse().expect("a number");
        assert!((before..=now() as i64 + ahead).contains(&there), "{there} is not {ahead} s off");
    }

    /// Ends all processes of the host, and waits until they are gone: its first process ends with
    /// its input, and the kernel kills the others of its PID namespace.
    fn end_processes(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.end();
        }
    }
}
