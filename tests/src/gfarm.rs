//! A Gfarm file system of its own (Debian's gfmd, gfsd and gfarm2fs) on addresses of this machine:
//! one metadata server, two file-system nodes, and one mount for each of two simulated machines. It
//! is set up as `config-gfarm -S -b none` and `config-gfsd -S` do, without their questions.
//! Everything lies in one directory and ends with it.

use crate::command::{ask, program, run, tail};
use crate::process::{pause, unmount_all};
use rustix::process::{Pid, Signal};
use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longest wait until a daemon answers.
const PATIENCE: Duration = Duration::from_secs(120);

/// The options with which a mount shows the writes of another one at once (docs/reference/mpi.md).
const COHERENT: &str =
    "unbuffered,direct_io,big_writes,gfs_stat_timeout=0,attr_timeout=0,entry_timeout=0";

/// The file system. Dropping it ends it.
pub struct Gfarm {
    dir: TempDir,
    daemons: Vec<Child>,
}

/// Returns a port that is free on this address.
fn free_port(address: &str) -> u16 {
    let listener = TcpListener::bind((address, 0)).expect("a port of the loopback network");
    listener.local_addr().expect("a bound address").port()
}

impl Gfarm {
    /// Starts the file system, and returns when the mounts can be used.
    ///
    /// # Panics
    /// If a daemon does not start, with its output.
    pub fn start() -> Gfarm {
        let dir = tempfile::tempdir().expect("a directory for the test");
        let mut gfarm = Gfarm { dir, daemons: Vec::new() };
        gfarm.configure();
        run(&mut gfarm.command("gfkey -f -p 31536000"));
        let conf = gfarm.path("gfmd.conf");
        gfarm.daemon("gfmd", program("gfmd -d -f").arg(conf));
        gfarm.until("gfmd answers", |gfarm| ask(&mut gfarm.command("gfls -d /")).code == Some(0));
        for address in ["127.0.0.2", "127.0.0.3"] {
            let (port, spool) = (free_port(address), gfarm.path(address));
            fs::create_dir(&spool).expect("a directory for the test");
            let line = format!("gfhost -c -a x86_64-linux -n 1 -p {port} {address}");
            run(&mut gfarm.command(&line));
            let mut gfsd = program(&format!("gfsd -d -h {address} -l {address} -f"));
            gfsd.arg(gfarm.path("gfsd.conf")).arg("-r").arg(spool);
            gfarm.daemon(address, &mut gfsd);
        }
        gfarm.until("both nodes are known", |gfarm| {
            let said = ask(&mut gfarm.command("gfdf"));
            said.out.contains("127.0.0.2") && said.out.contains("127.0.0.3")
        });
        for machine in 0..2 {
            let at = gfarm.mount(machine);
            fs::create_dir(&at).expect("a directory for the test");
            let mut mount = gfarm.command("gfarm2fs -f -o");
            mount.arg(COHERENT).arg(&at);
            gfarm.daemon(&format!("mount{machine}"), &mut mount);
            gfarm
                .until("it is mounted", |_| ask(program("mountpoint -q").arg(&at)).code == Some(0));
        }
        fs::create_dir(gfarm.path("here")).expect("a directory for the test");
        gfarm
    }

    fn configure(&self) {
        let user = run(&mut program("id -un")).out.trim().to_owned();
        let (key, users) = (self.path("key"), self.path("users"));
        let client = format!(
            "metadb_server_host 127.0.0.1\nmetadb_server_port {}\n\
             auth enable sharedsecret *\nshared_key_file {}\nsockopt keepalive\n",
            free_port("127.0.0.1"),
            key.display()
        );
        let mapped = format!("{client}local_user_map {}\n", users.display());
        fs::write(&users, format!("_gfarmfs {user}\n_gfarmmd {user}\n")).expect("a file");
        fs::write(self.path("client.conf"), &client).expect("a file");
        fs::write(self.path("gfsd.conf"), &mapped).expect("a file");
        fs::write(self.path("gfmd.conf"), format!("{mapped}admin_user {user}\n")).expect("a file");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the mount of one of the two machines.
    pub fn mount(&self, machine: usize) -> PathBuf {
        self.path(&format!("m{machine}"))
    }

    /// Returns the path at which each rank has the mount of its own machine.
    pub fn here(&self) -> PathBuf {
        self.path("here")
    }

    /// Returns a directory of the local disk.
    pub fn local(&self) -> &Path {
        self.dir.path()
    }

    /// Returns a command of Gfarm.
    pub fn command(&self, line: &str) -> Command {
        let mut command = program(line);
        command.env("GFARM_CONFIG_FILE", self.path("client.conf"));
        command
    }

    /// Begins the command line of a rank: even ones run on machine 0, the others on machine 1, with
    /// the machine's mount at [`Gfarm::here`].
    pub fn on_its_machine(&self, command: &mut Command) {
        let script = "r=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; mount --bind \"$0/m$((r % 2))\" \"$0/here\"; exec \"$@\"";
        command.args(["unshare", "--mount", "sh", "-ec", script]).arg(self.dir.path());
    }

    /// Starts a daemon in a process group of its own: gfsd has a process for each client.
    fn daemon(&mut self, name: &str, command: &mut Command) {
        let log = fs::File::create(self.path(&format!("{name}.log"))).expect("a file");
        let also = log.try_clone().expect("a descriptor");
        command.stdin(Stdio::null()).stdout(log).stderr(also).process_group(0);
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("{name}: {error}: `make test` installs what the tests need");
        });
        self.daemons.push(child);
    }

    fn until(&mut self, what: &str, done: impl Fn(&Gfarm) -> bool) {
        let start = Instant::now();
        while !done(self) {
            let ended = self.daemons.iter_mut().any(|d| !matches!(d.try_wait(), Ok(None)));
            assert!(!ended && start.elapsed() < PATIENCE, "waiting until {what}:\n{}", self.logs());
            pause();
        }
    }

    /// Returns the ends of all logs.
    pub fn logs(&self) -> String {
        let mut all = String::new();
        for entry in fs::read_dir(self.dir.path()).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|e| e == "log") {
                let text = fs::read(entry.path()).unwrap_or_default();
                let text = String::from_utf8_lossy(&text).into_owned();
                all += &format!("--- {}\n{}\n", entry.path().display(), tail(&text));
            }
        }
        all
    }
}

impl Drop for Gfarm {
    fn drop(&mut self) {
        unmount_all(self.dir.path());
        for daemon in self.daemons.iter_mut().rev() {
            // The daemon's number names this group until wait(2) has returned.
            if let Some(group) = Pid::from_raw(daemon.id() as i32) {
                let _ = rustix::process::kill_process_group(group, Signal::KILL);
            }
            let _ = daemon.wait();
        }
    }
}
