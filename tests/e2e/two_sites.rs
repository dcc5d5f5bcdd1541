//! Two sites of several hosts for the tests of files of another site. Compute hosts reach no host
//! of the other site; the login hosts of both sites see each other.

use crate::hosts::can_have_hosts;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use tatami_tests::command::{sources, target_dir};
use tatami_tests::mpi::{HOST_SETTINGS, MPIS, install_layer, launch_on_hosts, launch_on_one_host};
use tatami_tests::testbed::{BedNetworks, HostBed, TestHost};

/// Where the other site keeps files: on a plain disk, and on a volume of all its compute hosts.
pub const DISK: &str = "/srv/data";
pub const VOLUME: &str = "/srv/volume";

/// The login hosts through which a job goes. For the sides without one there are routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginWay {
    Near,
    Far,
    Both,
}

pub const LOGIN_WAYS: [LoginWay; 3] = [LoginWay::Near, LoginWay::Far, LoginWay::Both];

/// Steps of a job of large blocks, and the one before which it waits.
pub const STEPS: (usize, usize) = (6, 3);

/// A moment of a job of large blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockPhase {
    /// It waits in its writes.
    Writing,
    /// It goes on to write.
    WritingOn,
    /// It waits in its reads.
    Reading,
    /// It goes on to read.
    ReadingOn,
}

/// Two sites.
pub struct SiteBed {
    pub bed: HostBed,
    compute: usize,
    logins: usize,
}

impl SiteBed {
    /// Starts sites with so many compute hosts `a1`… and `b1`…, and so many login hosts `l1`… here
    /// and `f1`… there. The first host of each site has a directory for files.
    pub fn start(compute: usize, logins: usize) -> Option<SiteBed> {
        if !can_have_hosts() {
            return None;
        }
        let name = |letter: char| move |at: usize| format!("{letter}{at}");
        let names: Vec<String> = (1..=compute)
            .map(name('a'))
            .chain((1..=logins).map(name('l')))
            .chain((1..=logins).map(name('f')))
            .chain((1..=compute).map(name('b')))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let networks = BedNetworks::Sites { near: compute + logins, logins };
        let bed = HostBed::start_in(networks, &names);
        let built = target_dir().join("mpi");
        install_layer(&bed, &built);
        let gateways = MPIS.map(|mpi| built.join(format!("libtatami_gateway_{mpi}.so")));
        gateways.iter().for_each(|library: &PathBuf| bed.install_file(library));
        bed.install_file(&sources().join("e2e/mpi_programs/bulk_blocks.py"));
        bed.install_file(&sources().join("src/testbed/link.py"));
        let sites = SiteBed { bed, compute, logins };
        sites.compute_hosts().iter().for_each(|host| _ = host.run("mkdir /srv/disk"));
        sites.io_host().run(&format!("mkdir {DISK}"));
        Some(sites)
    }

    /// The compute hosts here.
    pub fn compute_hosts(&self) -> &[TestHost] {
        &self.bed.hosts()[..self.compute]
    }

    /// The host here on which jobs are started.
    pub fn first(&self) -> &TestHost {
        self.bed.host(0)
    }

    /// The number of a login host here.
    pub fn near_login(&self, at: usize) -> usize {
        self.compute + at
    }

    /// The number of a login host there.
    pub fn far_login(&self, at: usize) -> usize {
        self.compute + self.logins + at
    }

    /// The host there that is named in jobs.
    pub fn io_host(&self) -> &TestHost {
        self.bed.host(self.compute + 2 * self.logins)
    }

    /// The hosts there that can have a volume.
    pub fn site_hosts(&self) -> &[TestHost] {
        &self.bed.hosts()[self.compute + 2 * self.logins..]
    }

    /// Starts a volume there that has a node on each host.
    pub fn start_volume(&self) {
        let names: Vec<&str> = self.site_hosts().iter().map(TestHost::name).collect();
        self.io_host().run(&format!("tatami up --hosts {} --mount {VOLUME}", names.join(",")));
    }

    /// Makes the routes for a way, and returns the variables of its jobs.
    pub fn open_way(&self, way: LoginWay) -> String {
        let (near, far) = (self.near_login(0), self.far_login(0));
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        let shut = "ip route flush proto 99";
        self.bed.hosts().iter().for_each(|host| _ = host.run(shut));
        let route = |host: &TestHost, network: &str, by: String| {
            host.run(&format!("ip route add {network}.0/24 via {by} proto 99"));
        };
        let address = |at: usize| self.bed.host(at).address().to_owned();
        let between = |at: usize| format!("10.79.0.{}", at + 1);
        match way {
            LoginWay::Near => {
                // The login hosts here reach all hosts there.
                self.bed.host(far).run(forward);
                for at in 0..self.logins {
                    route(self.bed.host(near + at), "10.78.0", between(far));
                }
                for host in self.site_hosts() {
                    route(host, "10.79.0", address(far));
                }
            }
            LoginWay::Far => {
                // The compute hosts here reach the login hosts there.
                self.bed.host(near).run(forward);
                for at in 0..self.logins {
                    route(self.bed.host(far + at), "10.77.0", between(near));
                }
                for host in self.compute_hosts() {
                    route(host, "10.79.0", address(near));
                }
            }
            LoginWay::Both => {}
        }
        let site = self.io_host();
        let direct = format!("ssh -o BatchMode=yes -o ConnectTimeout=5 {} true", site.name());
        assert!(self.first().ask(&direct).code != Some(0), "there is a route");
        let list = |letter: char| {
            let names: Vec<String> = (1..=self.logins).map(|at| format!("{letter}{at}")).collect();
            names.join(",")
        };
        match way {
            LoginWay::Near => format!("TATAMI_ROUTER={}", list('l')),
            LoginWay::Far => format!("TATAMI_SITE_ROUTER={}", list('f')),
            LoginWay::Both => {
                format!("TATAMI_ROUTER={} TATAMI_SITE_ROUTER={}", list('l'), list('f'))
            }
        }
    }

    /// Returns the line of a job with a rank on each compute host. `/site` is the directory `dir`
    /// there.
    pub fn job_line(&self, mpi: &str, dir: &str, variables: &str, program: &str) -> String {
        let names: Vec<&str> = self.compute_hosts().iter().map(TestHost::name).collect();
        let (site, launcher) = (self.io_host().name(), launch_on_hosts(mpi, &names));
        format!(
            "{HOST_SETTINGS} export TATAMI_MPI_VERBOSE=1 TATAMI_SITES=/site=tatami://{site}{dir} \
             {variables}; {launcher} {program}"
        )
    }

    /// Runs such a job; returns what it says.
    pub fn run_job(&self, mpi: &str, dir: &str, variables: &str, program: &str) -> String {
        let said = self.first().run(&self.job_line(mpi, dir, variables, program));
        format!("{}{}", said.out, said.err)
    }

    /// Returns the line of a job that moves large blocks, and waits before step `pause` of its
    /// writes and of its reads.
    pub fn blocks_line(&self, dir: &str, variables: &str, steps: usize, pause: usize) -> String {
        self.compute_hosts().iter().for_each(|host| _ = host.run("rm -f /srv/go-*"));
        let job = "/usr/bin/python3 /usr/local/bin/bulk_blocks.py /site/bulk";
        self.job_line("openmpi", dir, variables, &format!("{job} {steps} {pause}"))
    }

    /// Runs such a job, and `work` at its moments. Every byte must be right, here and there.
    pub fn run_blocks(
        &mut self,
        dir: &str,
        variables: &str,
        mut work: impl FnMut(&mut SiteBed, BlockPhase),
    ) {
        let (steps, pause) = STEPS;
        let mut job = self.first().command(&self.blocks_line(dir, variables, steps, pause));
        let mut job = job.stdout(Stdio::piped()).spawn().expect("started");
        let mut lines = BufReader::new(job.stdout.take().expect("a pipe")).lines();
        let mut said = String::new();
        while let Some(Ok(line)) = lines.next() {
            let phases = match line.as_str() {
                "writing" => Some((BlockPhase::Writing, BlockPhase::WritingOn)),
                "reading" => Some((BlockPhase::Reading, BlockPhase::ReadingOn)),
                _ => None,
            };
            if let Some((before, behind)) = phases {
                work(self, before);
                for host in self.compute_hosts() {
                    host.run(&format!("touch /srv/go-{line}"));
                }
                work(self, behind);
            }
            said += &format!("{line}\n");
        }
        let ended = job.wait().expect("it ends");
        assert!(ended.success() && said.contains("all values right"), "{variables}: {said}");
        let blocks = steps * self.compute;
        let check = format!("python3 /usr/local/bin/bulk_blocks.py check {dir}/bulk {blocks}");
        self.io_host().run(&check);
    }

    /// Lets all packets between the sites pass a bad link on the first login host here, with these
    /// options of `link.py`. The compute hosts of both sites see each other then.
    pub fn start_bad_link(&self, options: &str) {
        let (near, far) = (self.near_login(0), self.far_login(0));
        let address = |at: usize| self.bed.host(at).address().to_owned();
        let route = |host: &TestHost, network: &str, by: &str| {
            host.run(&format!("ip route replace {network}.0/24 via {by}"));
        };
        for host in self.compute_hosts() {
            route(host, "10.78.0", &address(near));
        }
        for host in self.site_hosts() {
            route(host, "10.77.0", &address(far));
        }
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        self.bed.host(far).run(forward);
        route(self.bed.host(far), "10.77.0", &format!("10.79.0.{}", near + 1));
        let link = self.bed.host(near);
        link.run(forward);
        route(link, "10.78.0", &format!("10.79.0.{}", far + 1));
        link.run(&format!(
            "[ ! -e /srv/pid ] || kill $(cat /srv/pid); until ! ip link show tun0 2>/dev/null; do sleep 0.05; done; \
             setsid /usr/local/bin/link.py {options} </dev/null >/srv/link.log 2>&1 & \
             echo $! > /srv/pid; \
             until ip link set tun0 up 2>/dev/null; do sleep 0.05; done; \
             for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done; \
             for p in 100 200 201; do ip rule del pref $p 2>/dev/null || true; done; \
             ip rule add pref 100 iif tun0 lookup main; ip rule add pref 200 iif eth0 lookup 101; \
             ip rule add pref 201 iif eth1 lookup 101; ip route replace default dev tun0 table 101"
        ));
    }

    /// Runs the program with as many ranks on the first host, with its own disk.
    pub fn run_alone(&self, mpi: &str, program: &str) {
        let alone = launch_on_one_host(mpi, self.compute);
        self.first().run(&format!("{HOST_SETTINGS} {alone} {program}"));
    }

    /// Compares a file there with one of the first host here.
    pub fn expect_same(&self, there: &str, here: &str) {
        // The first host has no way there, but the test has.
        let sum = |host: &TestHost, path: &str| host.run(&format!("sha256sum < {path}")).out;
        assert_eq!(sum(self.io_host(), there), sum(self.first(), here), "{there} and {here}");
    }

    /// No process of a job is left on any host, nothing listens for one, and the other site has
    /// these files in `dir`.
    pub fn expect_nothing_left(&self, dir: &str, files: &str) {
        for host in self.bed.hosts() {
            host.run(
                "for i in $(seq 1300); do \
                 pgrep -f '[t]atami (gateway|relay)' >/dev/null || exit 0; sleep 0.1; done; \
                 pgrep -af tatami >&2; exit 1",
            );
        }
        // A launcher that was killed leaves its own files on the compute hosts.
        for host in &self.bed.hosts()[self.compute..] {
            host.run("test -z \"$(ls -A /tmp)\"");
        }
        assert_eq!(self.io_host().run(&format!("ls -A {dir}")).out.trim(), files);
    }
}
