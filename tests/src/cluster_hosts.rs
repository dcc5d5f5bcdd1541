//! A cluster with each node on a host of its own: `TATAMI_TEST_HOSTS=1` starts the clusters of the
//! end-to-end tests so. The test itself stays outside of the hosts and reaches their files by name.
//!
//! All hosts have the volume in one directory, `/tmp/NAME`. Outside, the link of the same name
//! leads to that of the first host. There, links lead to the directories of the other nodes. So
//! `/tmp/NAME/nodeN` is the data directory of node N in the test, too.
//!
//! The mount points are in a directory that the host and the test both have mounted, as peers:
//! what one of them mounts or unmounts there, the other has or loses, too. So the test sees the
//! mounts themselves. Hosts are no peers of each other.

use crate::command::{program, sources};
use crate::testbed::HostBed;
use rustix::fs::CWD;
use rustix::mount::{
    MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount_bind, mount_change, move_mount,
    open_tree,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The mount point on each host, in the directory that the test sees, too.
const POINT: &str = "here";

/// Returns whether clusters are started on hosts.
pub fn are_hosts_wanted() -> bool {
    std::env::var_os("TATAMI_TEST_HOSTS").is_some_and(|value| value == "1")
}

/// Skips the calling test where clusters are started on hosts: the reason says what it needs of one
/// machine. Other than [`skip_test`](tatami_skip::skip_test), this never fails: the test runs
/// without the flag.
pub fn skip_on_hosts(reason: &str) -> bool {
    if are_hosts_wanted() {
        tatami_skip::skip_unavailable(&format!("on hosts: {reason}"));
    }
    are_hosts_wanted()
}

/// The hosts of a cluster. Dropping the value ends them.
pub struct ClusterHosts {
    /// The directory of the volume on each host, and a link outside.
    place: PathBuf,
    /// The network that this thread was in.
    network: File,
    bed: HostBed,
}

impl ClusterHosts {
    /// Starts a host for each node, and moves this thread to the network of the first: its
    /// connections, and those of its children, start there.
    ///
    /// # Panics
    /// If a host does not start.
    pub(crate) fn start(place: &Path, nodes: u16) -> ClusterHosts {
        if let Some(obstacle) = HostBed::find_obstacle() {
            panic!("TATAMI_TEST_HOSTS is set, and {obstacle}");
        }
        let names: Vec<String> = (0..nodes).map(|node| format!("node{node}")).collect();
        let bed = HostBed::start(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let network = File::open("/proc/thread-self/ns/net").expect("proc has it");
        let hosts = ClusterHosts { place: place.to_owned(), network, bed };
        (0..nodes).for_each(|node| hosts.share_mounts(node));
        symlink(hosts.dir_of(0), place).expect("no other test has this name");
        for node in 1..nodes {
            let name = format!("node{node}");
            symlink(hosts.dir_of(node).join(&name), place.join(&name)).expect("a link");
        }
        let pids: Vec<String> =
            hosts.bed.hosts().iter().map(|host| host.init().to_string() + "\n").collect();
        fs::write(hosts.bed.dir().join("processes"), pids.concat()).expect("a file");
        fs::write(hosts.bed.dir().join("volume"), place.as_os_str().as_encoded_bytes())
            .expect("a file");
        let bin = hosts.bed.dir().join("outside");
        fs::create_dir(&bin).expect("a directory");
        for name in ["tatami", "run"] {
            symlink(sources().join("src/testbed/outside.sh"), bin.join(name)).expect("a link");
        }
        join_network(&File::open(hosts.bed.host(0).namespace("net")).expect("a namespace"));
        hosts
    }

    /// Makes the directory of the volume on a host, with its part that the test sees mounts in.
    fn share_mounts(&self, node: u16) {
        let shared = self.dir_of(node).join("mnt");
        fs::create_dir_all(&shared).expect("a directory of the host");
        // Programs of several hosts find their mount by the number of their node.
        symlink(POINT, shared.join(format!("node{node}"))).expect("a link");
        let here = self.mounts_of(node);
        fs::create_dir(&here).expect("a directory");
        mount_bind(&shared, &here).expect("root may");
        // A copy of a shared mount is its peer.
        mount_change(&here, MountPropagationFlags::SHARED).expect("root may");
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let peer = open_tree(CWD, &here, flags).expect("root may");
        let namespace = self.bed.host(usize::from(node)).namespace("mnt");
        let namespace = File::open(namespace).expect("the host has one");
        let there = self.place.join("mnt");
        let mount = || {
            // SAFETY: this thread has no file descriptors of its own afterwards.
            unsafe { unshare_unsafe(UnshareFlags::FS) }.expect("a thread may");
            let kind = Some(LinkNameSpaceType::Mount);
            move_into_link_name_space(namespace.as_fd(), kind).expect("root may");
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            move_mount(&peer, "", CWD, &there, flags).expect("root may");
        };
        // A thread that ends with this: it cannot leave the namespace.
        std::thread::scope(|scope| scope.spawn(mount).join().expect("no panic"));
    }

    /// Returns the directory of the volume on a host, as this process sees it.
    pub(crate) fn dir_of(&self, node: u16) -> PathBuf {
        let name = self.place.strip_prefix("/").expect("absolute");
        self.bed.dir().join(format!("node{node}")).join(name)
    }

    /// Returns the directory with the mount point of a node, as this process sees it. The name is
    /// short: tests make sockets below it, whose paths have at most 107 bytes.
    pub(crate) fn mounts_of(&self, node: u16) -> PathBuf {
        self.bed.dir().join(node.to_string())
    }

    /// Returns the mount point of a node, as this process sees it.
    pub(crate) fn mount_point(&self, node: u16) -> PathBuf {
        self.mounts_of(node).join(POINT)
    }

    /// Returns the program that runs `tatami` on a host: on that with a path among the arguments,
    /// or with the current directory, by default on the first.
    pub(crate) fn program(&self) -> PathBuf {
        self.bed.dir().join("outside/tatami")
    }

    /// Returns a command line that root runs on a host. It may have paths of hosts as this process
    /// sees them: the last one says on which host it runs.
    pub fn command(&self, line: &str) -> Command {
        let mut command = program(&self.bed.dir().join("outside/run").display().to_string());
        command.args(line.split_whitespace());
        command
    }

    /// Returns the arguments of `tatami up` that start the volume.
    pub(crate) fn arguments_of_up(&self) -> Vec<String> {
        let names: Vec<&str> = self.bed.hosts().iter().map(|host| host.name()).collect();
        let mount = self.place.join("mnt").join(POINT).display().to_string();
        vec!["--hosts".to_owned(), names.join(","), "--mount".to_owned(), mount]
    }

    /// Returns whether a process is one of this host.
    pub(crate) fn has_process(&self, node: u16, pid: i32) -> bool {
        let of = |path: PathBuf| fs::read_link(path).ok();
        let ours = of(self.bed.host(usize::from(node)).namespace("pid"));
        ours.is_some() && of(format!("/proc/{pid}/ns/pid").into()) == ours
    }

    /// Returns the number here of a process that has the number `pid` on a host.
    pub(crate) fn pid_outside(&self, node: u16, pid: i32) -> i32 {
        let last = format!("\t{pid}");
        let all = fs::read_dir("/proc").expect("it is mounted").flatten();
        let mut numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let is_it = |outside: &i32| {
            let status = fs::read_to_string(format!("/proc/{outside}/status")).unwrap_or_default();
            let line = status.lines().find(|line| line.starts_with("NSpid:"));
            line.is_some_and(|line| line.ends_with(&last)) && self.has_process(node, *outside)
        };
        numbers.find(is_it).unwrap_or_else(|| panic!("node {node} has no process {pid}"))
    }

    /// Returns the hosts.
    pub fn bed(&self) -> &HostBed {
        &self.bed
    }
}

impl Drop for ClusterHosts {
    fn drop(&mut self) {
        join_network(&self.network);
        if let Err(error) = fs::remove_file(&self.place) {
            eprintln!("{}: {error}", self.place.display());
        }
    }
}

/// Moves this thread to another network.
fn join_network(network: &File) {
    let kind = Some(LinkNameSpaceType::Network);
    move_into_link_name_space(network.as_fd(), kind).expect("root may");
}
