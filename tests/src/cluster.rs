//! A file system under test: real daemons and real mounts in a folder of their own, started and
//! stopped with the users' command.

use crate::cluster_hosts::{ClusterHosts, are_hosts_wanted};
use crate::command::{Said, as_user, ask, run, tatami_bin};
use crate::process::{self, kill_hard};
use crate::starter::Starter;
use crate::{evidence, seed};
use parking_lot::Mutex;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

/// Time after which a test counts as hung. Then its evidence is collected and its processes are
/// killed, so that waits for them end. Far above the time that any test needs on a slow machine.
const HUNG: Duration = Duration::from_secs(900);
/// How long the test then has to fail by itself before the process is aborted.
const HUNG_STILL: Duration = Duration::from_secs(60);

/// Bytes of a region device.
const REGIONS_LEN: u64 = 512 << 20;
/// Most nodes that a test adds to a volume with region devices.
const ADDED_NODES_MAX: u16 = 4;

/// How long a mount may be busy after its test has closed all files.
const BUSY: Duration = Duration::from_secs(300);

/// Work in the folder of a cluster before its first start.
pub type Preparation = Box<dyn Fn(&Path)>;

/// The setup of a cluster.
pub struct Setup {
    /// Daemons, each with a mount.
    pub nodes: u16,
    /// Lines of the configuration file.
    pub config: String,
    /// Prepares the folder before the first start, for example with a small
    /// disk in the place of a node's data directory.
    pub prepare: Option<Preparation>,
    /// Whether the kernel's requests may come over io_uring. By default half of the tests use it,
    /// where the kernel offers it: `scripts/test.sh` switches it on.
    pub io_uring: Option<bool>,
    /// Whether connections between nodes are encrypted. By default those of all tests are if
    /// `TATAMI_TEST_ENCRYPTION` is `tls`, and those of half of the tests, chosen by their names, if
    /// it is `half`.
    pub encryption: Option<bool>,
    /// The `tatami` of all daemons, mounts and commands; that of this build by default.
    pub program: Option<PathBuf>,
    /// Whether each node is on a host of its own: see `cluster_hosts`.
    pub on_hosts: bool,
    /// Whether each node has a region device, a sparse file: by default if `TATAMI_TEST_REGIONS` is
    /// set.
    pub regions: bool,
}

impl Setup {
    /// Returns a setup of `nodes` daemons with the default configuration.
    pub fn nodes(nodes: u16) -> Setup {
        Setup {
            nodes,
            config: String::new(),
            prepare: None,
            io_uring: None,
            encryption: None,
            program: None,
            on_hosts: are_hosts_wanted(),
            regions: std::env::var_os("TATAMI_TEST_REGIONS").is_some(),
        }
    }

    /// Gives each node a region device: a sparse file `regions-NODE` in the folder.
    pub fn with_regions(mut self) -> Setup {
        self.regions = true;
        self
    }

    /// Adds these lines to the configuration file.
    pub fn config(mut self, lines: &str) -> Setup {
        self.config = lines.to_owned();
        self
    }

    /// Lets every byte go through the mount process.
    pub fn without_passthrough(self) -> Setup {
        self.config("[mount]\npassthrough = false\n")
    }

    /// Lets the kernel's requests come over io_uring, if the kernel offers it.
    pub fn with_io_uring(mut self) -> Setup {
        self.io_uring = Some(true);
        self
    }

    /// Gives each node a host of its own, as `TATAMI_TEST_HOSTS=1` does for all tests.
    pub fn on_hosts(mut self) -> Setup {
        self.on_hosts = true;
        self
    }

    /// Encrypts the connections between nodes.
    pub fn with_encryption(mut self) -> Setup {
        self.encryption = Some(true);
        self
    }

    /// Starts daemons, mounts and commands with another `tatami`.
    pub fn with_program(mut self, program: &Path) -> Setup {
        self.program = Some(program.to_owned());
        self
    }

    /// Does this work in the folder before the first start.
    pub fn prepare(mut self, what: impl Fn(&Path) + 'static) -> Setup {
        self.prepare = Some(Box::new(what));
        self
    }

    /// Starts the cluster.
    pub fn start(self) -> Cluster {
        Cluster::start_with(self)
    }
}

/// A running file system. [`Cluster::finish`] checks it and stops it. If the value is dropped
/// without (the test failed), it leaves evidence and no process.
pub struct Cluster {
    test: String,
    dir: PathBuf,
    program: PathBuf,
    nodes: u16,
    seed: u64,
    plain: bool,
    io_uring: bool,
    encryption: bool,
    regions: bool,
    starter: Mutex<Starter>,
    finished: bool,
    /// Whether `up` has created the volume.
    created: AtomicBool,
    places: Places,
    watchdog: Option<Sender<()>>,
    /// The last part: it ends what the others use.
    hosts: Option<ClusterHosts>,
}

/// What belongs to a cluster outside of this process.
#[derive(Clone)]
struct Places {
    dir: PathBuf,
    /// The directories with logs: of each host, or the one of this machine.
    logs: Vec<PathBuf>,
    /// The directories with the mounts.
    mounts: Vec<PathBuf>,
    /// The command `tatami`.
    tatami: PathBuf,
}

impl Places {
    fn of(dir: &Path, hosts: Option<&ClusterHosts>, nodes: u16) -> Places {
        let of_all = |of: &dyn Fn(u16) -> PathBuf| (0..nodes).map(of).collect();
        let (logs, mounts) = match hosts {
            Some(hosts) => {
                (of_all(&|node| hosts.dir_of(node)), of_all(&|node| hosts.mounts_of(node)))
            }
            None => (vec![dir.to_owned()], vec![dir.join("mnt")]),
        };
        let tatami = hosts.map_or_else(tatami_bin, ClusterHosts::program);
        Places { dir: dir.to_owned(), logs, mounts, tatami }
    }

    fn collect_evidence(&self, test: &str) -> PathBuf {
        evidence::collect(test, &self.dir, &self.logs, &self.tatami)
    }

    /// Returns the mounts of the nodes.
    fn find_mounts(&self) -> Vec<PathBuf> {
        let mut found: Vec<_> =
            self.mounts.iter().flat_map(|dir| process::mounts_below(dir)).collect();
        // On hosts, the directories are mounts themselves.
        found.retain(|mount| !self.mounts.contains(mount));
        found
    }
}

impl Cluster {
    /// Starts `nodes` daemons, each with a mount, as `tatami up` does.
    ///
    /// # Panics
    /// If they do not start.
    pub fn start(nodes: u16) -> Cluster {
        Cluster::start_with(Setup::nodes(nodes))
    }

    fn start_with(setup: Setup) -> Cluster {
        // libtest names the thread after the test.
        let test = std::thread::current().name().unwrap_or("test").to_owned();
        let base = std::env::var_os("TATAMI_TEST_DIR").map_or("/tmp".into(), PathBuf::from);
        let short: String = test.rsplit("::").next().unwrap_or(&test).chars().take(24).collect();
        // The path of a UNIX socket has at most 107 bytes.
        let dir = base.join(format!("tatami-{}-{short}", std::process::id()));
        // The tests themselves run on the disk below: they must expect nothing that a local disk
        // does not do.
        let plain = std::env::var_os("TATAMI_TEST_PLAIN").is_some();
        let wanted = setup.on_hosts && !plain;
        // A host can write to its /tmp, and not to all places of the machine.
        let mut dir =
            if wanted { Path::new("/tmp").join(dir.file_name().expect("a name")) } else { dir };
        // Tests of two modules may have one name.
        while wanted && dir.symlink_metadata().is_ok() {
            dir.as_mut_os_string().push("-");
        }
        let hosts = wanted.then(|| ClusterHosts::start(&dir, setup.nodes));
        fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        // Other users need access to the mounts below.
        let open = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        fs::set_permissions(&dir, open).expect("a folder just made can be opened up");
        if !setup.config.is_empty() {
            fs::write(dir.join("tatami.toml"), &setup.config)
                .expect("the configuration is written");
        }
        if let Some(prepare) = setup.prepare {
            assert!(hosts.is_none(), "what a test prepares is on one machine: skip it on hosts");
            prepare(&dir);
        }
        // A test that names devices itself has those.
        let regions = setup.regions && !setup.config.contains("region_device");
        if regions {
            for node in 0..setup.nodes + ADDED_NODES_MAX {
                let device = File::create(dir.join(format!("regions-node{node}")));
                device.and_then(|file| file.set_len(REGIONS_LEN)).expect("a sparse file");
            }
        }
        let places = Places::of(&dir, hosts.as_ref(), setup.nodes);
        let watchdog = Some(watch(test.clone(), places.clone()));
        let seed = seed::root_seed();
        let nodes = setup.nodes;
        let starter = Mutex::new(Starter::new(&dir));
        // By the name, so that a test does the same each time.
        let of_name = test.bytes().fold(0u8, u8::wrapping_add);
        let io_uring = setup.io_uring.unwrap_or(of_name.is_multiple_of(2));
        // Another half than that of io_uring: so all four combinations occur.
        let by_setting = match std::env::var("TATAMI_TEST_ENCRYPTION").as_deref() {
            Ok("tls") => true,
            Ok("half") => (of_name / 2).is_multiple_of(2),
            _ => false,
        };
        let encryption = setup.encryption.unwrap_or(by_setting);
        let cluster = Cluster {
            test,
            dir,
            program: setup.program.unwrap_or_else(|| places.tatami.clone()),
            nodes,
            seed,
            plain,
            io_uring,
            encryption,
            regions: regions && !wanted,
            starter,
            finished: false,
            created: AtomicBool::new(false),
            hosts,
            places,
            watchdog,
        };
        cluster.up();
        cluster
    }

    /// Starts the daemons and mounts that are not running.
    pub fn up(&self) {
        let nodes = self.nodes.to_string();
        let mount = self.dir.join("mnt");
        if self.plain {
            fs::create_dir_all(&mount).expect("a folder in the place of all mounts");
            return;
        }
        let mut command = self.command("up");
        match &self.hosts {
            None => _ = command.args(["--nodes", &nodes]).arg("--mount").arg(mount),
            Some(_) if self.created.load(Ordering::Relaxed) => {}
            Some(hosts) => _ = command.args(hosts.arguments_of_up()),
        }
        run(&mut command);
        let is_new = !self.created.swap(true, Ordering::Relaxed);
        // Any test runs also on a volume with policies: `TATAMI_TEST_POLICIES="--inline 4k"`.
        if let (true, Ok(policies)) = (is_new, std::env::var("TATAMI_TEST_POLICIES")) {
            run(self.command("set").args(policies.split_whitespace()).arg(":/"));
        }
    }

    /// Runs `tatami down`. A program that another test of this process starts at the same moment
    /// has copies of all descriptors of this process until its exec, and keeps a mount busy for
    /// that time. So a busy mount is tried again.
    ///
    /// # Panics
    /// If that fails; for a busy mount only after minutes.
    pub fn down(&self) {
        let start = Instant::now();
        loop {
            let said = ask(&mut self.command("down"));
            if said.code == Some(0) {
                return;
            }
            let busy = said.err.contains("is in use") || said.err.contains("is busy");
            assert!(busy && start.elapsed() < BUSY, "down: {:?}\n{}", said.code, said.err);
            println!("down once more: {}", said.err);
            process::pause();
        }
    }

    /// Returns the seed of this test's random choices.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the folder of the file system: configuration, data directories, logs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u16 {
        self.nodes
    }

    /// Returns the path of a node's mount.
    pub fn mount(&self, node: u16) -> PathBuf {
        assert!(node < self.nodes, "the cluster has {} nodes", self.nodes);
        if let Some(hosts) = &self.hosts {
            return hosts.mount_point(node);
        }
        match self.nodes {
            1 => self.dir.join("mnt"),
            _ if self.plain => self.dir.join("mnt"),
            _ => self.dir.join("mnt").join(format!("node{node}")),
        }
    }

    /// Returns the command `tatami VERB --dir …`, to which the caller adds arguments.
    pub fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(self.program());
        command.args(verb.split_whitespace()).arg("--dir").arg(&self.dir);
        command.env("TATAMI_MOUNT_IO_URING", self.io_uring.to_string());
        command.env("TATAMI_VOLUME_ENCRYPTION", if self.encryption { "tls" } else { "none" });
        if self.regions {
            command.env("TATAMI_NODE_REGION_DEVICE", self.dir.join("regions-{node}"));
        }
        command.stdin(std::process::Stdio::null()).env("LC_ALL", "C");
        command
    }

    /// As [`Cluster::command`], of another user: `uid` and the group of the same number.
    pub fn command_as(&self, uid: u32, verb: &str) -> Command {
        let mut command = self.command(verb);
        match &self.hosts {
            // Root alone gets to a host, and becomes the user there.
            Some(_) => _ = command.env("TATAMI_TEST_USER", uid.to_string()),
            None => command = as_user_of(uid, &command),
        }
        command
    }

    /// Returns the number here of a process that a command on a node's host knows as `pid`.
    ///
    /// # Panics
    /// If the host has no such process.
    pub fn pid_outside(&self, node: u16, pid: i32) -> i32 {
        self.hosts.as_ref().map_or(pid, |hosts| hosts.pid_outside(node, pid))
    }

    /// Returns the program `tatami` for this cluster. On hosts it is one that root alone can run.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Returns the hosts, if each node has one of its own.
    pub fn hosts(&self) -> Option<&ClusterHosts> {
        self.hosts.as_ref()
    }

    /// Returns the directories with logs of mounts.
    pub fn mount_logs(&self) -> Vec<PathBuf> {
        self.places.logs.iter().map(|dir| dir.join("mount-logs")).collect()
    }

    /// Runs `tatami VERB --dir … ARGS`, which must succeed.
    pub fn tatami(&self, verb: &str, args: &[&str]) -> Said {
        run(self.command(verb).args(args))
    }

    /// Runs `tatami status --json`.
    pub fn status(&self) -> serde_json::Value {
        let said = ask(self.command("status").arg("--json"));
        serde_json::from_str(&said.out)
            .unwrap_or_else(|e| panic!("status --json: {e}\n{}\n{}", said.out, said.err))
    }

    /// Returns the process number of a daemon.
    pub fn node_pid(&self, node: u16) -> i32 {
        self.find(&["node", "run"], node)
    }

    /// Returns the process number of a node's mount.
    pub fn mount_pid(&self, node: u16) -> i32 {
        self.find(&["mount"], node)
    }

    /// Finds the one process of this cluster with arguments that start with `verb`, and with an
    /// argument that ends in the name of the node, or on its host.
    fn find(&self, verb: &[&str], node: u16) -> i32 {
        let last = format!("node{node}");
        let is_of_node = |pid: i32, words: &[&str]| match &self.hosts {
            Some(hosts) => hosts.has_process(node, pid),
            None => words.iter().any(|w| w.rsplit('/').next() == Some(&last)),
        };
        let pids = process::processes_of(&self.dir);
        let matching = |pid: &&i32| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<&str> = line.split('\0').skip(1).collect();
            words.starts_with(verb) && is_of_node(**pid, &words)
        };
        let found: Vec<i32> = pids.iter().filter(matching).copied().collect();
        match found[..] {
            [pid] => pid,
            _ => panic!("tatami {} of {last}: processes {found:?} of {pids:?}", verb.join(" ")),
        }
    }

    /// Kills a daemon with SIGKILL.
    pub fn kill_node(&self, node: u16) {
        kill_hard(self.node_pid(node));
    }

    /// Starts a daemon that is down; returns when it is ready.
    pub fn start_node(&self, node: u16) {
        self.starter.lock().start(&self.program, node);
    }

    /// Uses another `tatami` from now on. What runs stays as it is.
    pub fn set_program(&mut self, program: &Path) {
        self.program = program.to_owned();
    }

    /// Kills a mount process with SIGKILL. Its mount stays, and answers with errors.
    pub fn kill_mount(&self, node: u16) {
        kill_hard(self.mount_pid(node));
    }

    /// Mounts a node's mount again, in place of a dead one.
    pub fn start_mount(&self, node: u16) {
        let point = self.mount(node);
        process::unmount_all(&point);
        self.up();
        assert!(process::mounts_below(&point).len() == 1, "node {node} is not mounted");
    }

    /// Runs `tatami fsck`, which must find nothing.
    ///
    /// # Panics
    /// With its findings.
    pub fn fsck(&self) {
        if self.plain {
            return;
        }
        let said = ask(&mut self.command("fsck"));
        assert!(
            said.code == Some(0),
            "fsck ended with {:?}\n{}\n{}",
            said.code,
            said.out,
            said.err
        );
    }

    /// Checks the file system, stops it and removes its folder.
    ///
    /// # Panics
    /// If `fsck` finds anything, or if anything is left after `tatami down`.
    pub fn finish(mut self) {
        self.fsck();
        if !self.plain {
            self.down();
        }
        let left = process::processes_of(&self.dir);
        assert!(left.is_empty(), "tatami down left processes {left:?}");
        let left = self.places.find_mounts();
        assert!(left.is_empty(), "tatami down left mounts {left:?}");
        self.finished = true;
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !self.finished {
            let place = self.places.collect_evidence(&self.test);
            let _ = fs::write(place.join("seed.txt"), format!("TATAMI_SEED={}\n", self.seed));
        }
        drop(self.watchdog.take());
        sweep(&self.places);
        if self.hosts.is_some() {
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            eprintln!("{}: {error}", self.dir.display());
        }
    }
}

/// Returns the same command line with the same variables, of another user.
fn as_user_of(uid: u32, command: &Command) -> Command {
    let program = command.get_program().to_str().expect("a path in UTF-8");
    let mut other = as_user(uid, program);
    other.args(command.get_args());
    other.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    other
}

/// Ends every process and mount of a cluster.
fn sweep(places: &Places) {
    let all = || places.mounts.iter().chain([&places.dir]);
    all().flat_map(|dir| process::mounts_below(dir)).for_each(|path| process::abort_mount(&path));
    process::processes_of(&places.dir).into_iter().for_each(kill_hard);
    all().for_each(|dir| process::unmount_all(dir));
}

/// Starts the watch over one test; it ends when the sender is dropped.
fn watch(test: String, places: Places) -> Sender<()> {
    let (sender, receiver) = mpsc::channel();
    let body = move || {
        let limit = HUNG * u32::try_from(seed::scale()).unwrap_or(u32::MAX);
        if receiver.recv_timeout(limit) != Err(mpsc::RecvTimeoutError::Timeout) {
            return;
        }
        eprintln!("{test} hangs: no end after {} s", limit.as_secs());
        places.collect_evidence(&test);
        sweep(&places);
        if receiver.recv_timeout(HUNG_STILL) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("{test} hangs still, with its processes and mounts gone");
            std::process::abort();
        }
    };
    std::thread::Builder::new()
        .name("watchdog".into())
        .spawn(body)
        .expect("a thread can be started");
    sender
}
