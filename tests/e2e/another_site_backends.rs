//! The back ends of an I/O process at another site: system calls, the pieces of a volume's file,
//! and the MPI-IO of an MPI library there.

use crate::another_site::install_program;
use crate::hosts::start_bed;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use tatami_tests::command::{program, run, sources, target_dir};
use tatami_tests::mpi::{MPIS, ONE_AT_A_TIME, compiled};
use tatami_tests::seed::{root_seed, scaled};
use tatami_tests::testbed::HostBed;

/// Variables of all jobs: they run as root, with more ranks than processors.
const SETTINGS: &str = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 \
    TATAMI_MPI_LIBRARY=/usr/local/bin/libtatami_mpi.so";

/// A site with programs and the layer, and one with two hosts that share a volume.
pub struct TwoSites {
    pub bed: HostBed,
}

/// Where files lie at the other site.
pub const DISK: &str = "/srv/data";
pub const VOLUME: &str = "/srv/volume";

impl TwoSites {
    pub fn start() -> Option<TwoSites> {
        let bed = start_bed(&["sitea", "siteb", "sitec"])?;
        let library = |name: &str| target_dir().join("mpi").join(name);
        let mut names = vec!["libtatami_mpi.so".to_owned(), "libtatami_io.so".to_owned()];
        names.extend(MPIS.map(|mpi| format!("libtatami_mpi_{mpi}.so")));
        names.extend(MPIS.map(|mpi| format!("libtatami_gateway_{mpi}.so")));
        let files: Vec<PathBuf> = names.iter().map(|name| library(name)).collect();
        files.iter().for_each(|file| bed.install_file(file));
        bed.host(0).run("mkdir /srv/disk");
        bed.host(1).run(&format!("mkdir {DISK}"));
        bed.host(1).run(&format!("tatami up --hosts siteb,sitec --mount {VOLUME}"));
        Some(TwoSites { bed })
    }

    /// Runs a program of `mpi` with three ranks. `/site` is a directory of the other site, which
    /// keeps the files there by `backend`.
    fn run_layered(&self, mpi: &str, dir: &str, backend: &str, line: &str) -> String {
        let said = self.bed.host(0).run(&self.line(mpi, dir, backend, line));
        format!("{}{}", said.out, said.err)
    }

    /// Returns the line of such a program.
    pub fn line(&self, mpi: &str, dir: &str, backend: &str, line: &str) -> String {
        format!(
            "{SETTINGS} TATAMI_BACKEND={backend} TATAMI_SITES=/site=tatami://siteb{dir}; \
             tatami mpirun --launcher mpirun.{mpi} -n 3 {line}"
        )
    }

    /// Runs a program with three ranks on an empty disk of its own.
    pub fn run_alone(&self, mpi: &str, line: &str) {
        let one = self.bed.host(0);
        one.run(&format!("{SETTINGS}; rm -rf /srv/disk/*; mpirun.{mpi} -n 3 {line}"));
    }

    /// Nothing of a job is left on the other site: no process, and no file but its data.
    pub fn expect_nothing_left(&self, dir: &str, files: &str) {
        let two = self.bed.host(1);
        two.run(
            "for i in $(seq 1100); do pgrep -f '[t]atami gateway|[o]rted' || exit 0; sleep 0.1; \
             done; exit 1",
        );
        assert_eq!(two.run(&format!("ls -A {dir}")).out.trim(), files);
        assert_eq!(two.run("ls -A /dev/shm /tmp | grep -v -e : -e '^$' || true").out.trim(), "");
    }
}

/// Each back end of each MPI library here. The MPI library there is the other one.
pub fn back_ends(mpi: &str) -> [(&'static str, &'static str); 3] {
    let other = if mpi == "mpich" { "mpi:openmpi" } else { "mpi:mpich" };
    [(DISK, "posix"), (VOLUME, "auto"), (DISK, other)]
}

#[test]
fn every_call_of_the_standard_works_on_each_back_end() {
    let Some(sites) = TwoSites::start() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    for mpi in MPIS {
        sites.bed.install_file(&compiled("semantics", mpi));
        for (dir, backend) in back_ends(mpi) {
            let program = format!("/usr/local/bin/semantics.{mpi} /site/semantics");
            sites.run_layered(mpi, dir, backend, &program);
            sites.expect_nothing_left(dir, "");
        }
    }
}

/// Random views, types and calls: the file there is byte for byte the one that the same calls make
/// on a local disk, and every rank reads the same. On the volume each node has pieces of it.
#[test]
fn random_calls_leave_the_same_bytes_on_each_back_end() {
    let Some(sites) = TwoSites::start() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let (one, two, root) = (sites.bed.host(0), sites.bed.host(1), root_seed() % 1_000_000_000);
    for mpi in MPIS {
        sites.bed.install_file(&compiled("random_calls", mpi));
        let program = format!("/usr/local/bin/random_calls.{mpi}");
        for (round, (dir, backend)) in (0..scaled(1)).flat_map(|r| back_ends(mpi).map(|b| (r, b))) {
            let seed = root + round;
            let files = format!("/srv/disk/reference.dat {seed} 6 /srv/disk/reference simple");
            sites.run_alone(mpi, &format!("{program} {files}"));
            let job = format!("{program} /site/ours.dat {seed} 6 /srv/disk/ours");
            sites.run_layered(mpi, dir, backend, &job);
            for part in ["0", "1", "2", "bytes"] {
                one.run(&format!("cmp /srv/disk/reference.{part} /srv/disk/ours.{part}"));
            }
            one.run(&format!("ssh siteb cat {dir}/ours.dat | cmp - /srv/disk/reference.dat"));
            if dir == VOLUME {
                // The mount of another host shows the same bytes.
                one.run(&format!("ssh sitec cat {dir}/ours.dat | cmp - /srv/disk/reference.dat"));
                let nodes =
                    format!("tatami where --json {dir}/ours.dat | jq '.files[0].nodes | length'");
                assert_eq!(two.run(&nodes).out.trim(), "2", "a piece on each node");
            }
            sites.expect_nothing_left(dir, "ours.dat");
            two.run(&format!("rm {dir}/ours.dat"));
        }
    }
    two.run("tatami fsck");
}

/// The libraries that programs use write the same file by each back end, and read it from there.
#[test]
fn libraries_write_the_same_files_by_each_back_end() {
    let Some(sites) = TwoSites::start() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let (one, two) = (sites.bed.host(0), sites.bed.host(1));
    let multiarch = run(&mut program("gcc -print-multiarch")).out.trim().to_owned();
    let hdf5 = format!("-I/usr/include/hdf5/openmpi -L/usr/lib/{multiarch}/hdf5/openmpi -lhdf5");
    let jobs = [
        ("hdf5_shared", hdf5.as_str(), "write FILE", "read FILE"),
        ("pnetcdf_shared", "-lpnetcdf", "FILE 300 write", "FILE 300 read"),
    ];
    for (source, flags, write, read) in jobs {
        install_program(&sites.bed, source, "openmpi", flags);
        let job = |words: &str, file: &str| {
            format!("/usr/local/bin/{source}.openmpi {}", words.replace("FILE", file))
        };
        let native = job(write, "/srv/disk/shared");
        one.run(&format!("{SETTINGS}; mpirun.openmpi -n 3 {native}"));
        for (dir, backend) in back_ends("openmpi") {
            sites.run_layered("openmpi", dir, backend, &job(write, "/site/shared"));
            one.run(&format!("ssh siteb cat {dir}/shared | cmp - /srv/disk/shared"));
            let said = sites.run_layered("openmpi", dir, backend, &job(read, "/site/shared"));
            assert!(said.contains("all values right"), "{source} by {backend}: {said}");
            sites.expect_nothing_left(dir, "shared");
            two.run(&format!("rm {dir}/shared"));
        }
    }
}

/// A program is told which back end it has, and one that is not there is refused with the cause.
/// Room for a file of more than 32 MiB changes no byte of it.
#[test]
fn the_back_end_in_force_is_reported_and_a_missing_one_is_refused() {
    let Some(sites) = TwoSites::start() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let two = sites.bed.host(1);
    for mpi in MPIS {
        install_program(&sites.bed, "site_backend", mpi, "");
        let open = |dir: &str, environment: &str, wish: &str| {
            let line = format!("/usr/local/bin/site_backend.{mpi} /site/f {wish} 36");
            sites.run_layered(mpi, dir, environment, &line)
        };
        for (dir, environment, wish, backend) in [
            (DISK, "", "-", "posix"),
            (DISK, "volume", "posix", "posix"),
            (DISK, "mpi:openmpi", "-", "mpi:openmpi"),
            (DISK, "", "mpi:mpich", "mpi:mpich"),
            (VOLUME, "", "-", "volume"),
            (VOLUME, "", "posix", "posix"),
        ] {
            let said = open(dir, environment, wish);
            for line in
                ["tatami_site=siteb", &format!("tatami_backend={backend}"), "0 bytes are wrong"]
            {
                assert!(said.lines().any(|said| said == line), "{line}: {said}");
            }
            sites.expect_nothing_left(dir, "f");
            two.run(&format!("rm {dir}/f"));
        }
        let refused = |environment: &str, wish: &str, why: &[&str]| {
            let said = open(DISK, environment, wish);
            for words in ["refused"].iter().chain(why) {
                assert!(said.contains(words), "{wish}: {words:?} is missing in {said}");
            }
            sites.expect_nothing_left(DISK, "");
        };
        refused("", "volume", &["siteb: open /srv/data/f", "no mount of a volume"]);
        refused("", "gpfs", &["\"gpfs\" is no tatami_backend"]);
        refused("gpfs", "-", &["\"gpfs\" is no tatami_backend"]);
        let library = "/usr/local/bin/libtatami_gateway_openmpi.so";
        two.run(&format!("mount --bind /dev/null {library}"));
        refused("", "mpi:openmpi", &["tatami_backend is mpi", "openmpi is not installed there"]);
        two.unmount(library);
        two.run(&format!("echo x > /mnt/x; mount --bind /mnt/x {library}"));
        refused("", "mpi:openmpi", &["siteb: open /srv/data/f", "too short"]);
        two.unmount(library);
        two.run("rm /mnt/x");
    }
}

/// An MPI library that wants its processes to be started by its launcher gets them so.
#[test]
fn a_launcher_of_the_other_site_starts_the_io_process() {
    let Some(sites) = TwoSites::start() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let two = sites.bed.host(1);
    install_program(&sites.bed, "site_backend", "mpich", "");
    for mpi in MPIS {
        two.run(&format!(
            "cat > ~/.bashrc <<'END'
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export TATAMI_GATEWAY_LAUNCHER='mpirun.{mpi} -n 1'
END"
        ));
        let job = format!("/usr/local/bin/site_backend.mpich /site/f mpi:{mpi} 36");
        let said = sites.run_layered("mpich", DISK, "", &job);
        assert!(said.contains(&format!("tatami_backend=mpi:{mpi}")), "{said}");
        assert!(said.contains("0 bytes are wrong"), "{said}");
        sites.expect_nothing_left(DISK, "f");
        two.run(&format!("rm {DISK}/f ~/.bashrc"));
    }
}

/// A job that is killed leaves no process on the other site. A rank of a file of a volume that
/// loses its I/O process is told so. The bytes up to then are in the file.
#[test]
fn a_killed_job_or_io_process_leaves_nothing_behind() {
    let Some(sites) = TwoSites::start() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    sites.bed.install_file(&sources().join("e2e/mpi_programs/steady.py"));
    let (one, two) = (sites.bed.host(0), sites.bed.host(1));
    let steady = "/usr/bin/python3 /usr/local/bin/steady.py /site/steady 100000";
    for (dir, backend, victim) in [
        (VOLUME, "volume", "job"),
        (DISK, "mpi:openmpi", "job"),
        (DISK, "mpi:mpich", "job"),
        (VOLUME, "volume", "I/O processes"),
    ] {
        let mut job = one.command(&sites.line("openmpi", dir, backend, steady));
        let mut job = job.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
        let mut lines = BufReader::new(job.stdout.take().expect("a pipe")).lines();
        while !matches!(lines.next(), Some(Ok(line)) if line == "step 12") {}
        match victim {
            "job" => _ = one.run("pkill -KILL -f '[s]teady.py'"),
            _ => _ = two.run("pkill -KILL -xf 'tatami gateway'"),
        }
        lines.for_each(drop);
        let said = job.wait_with_output().expect("ended");
        assert!(!said.status.success(), "{victim}");
        let errors = String::from_utf8_lossy(&said.stderr);
        let names_loss = errors.contains("siteb: the connection ended while the file was written");
        assert_eq!(names_loss, victim != "job", "{errors}");
        sites.expect_nothing_left(dir, "steady");
        // No byte that the program writes is zero, and all had synced after step 7.
        let synced = 8 * 3 * 32_768;
        let count = format!("head -c {synced} {dir}/steady | tr -d '\\000' | wc -c");
        assert_eq!(two.run(&count).out.trim(), synced.to_string(), "{backend}");
        two.run(&format!("rm {dir}/steady"));
    }
    two.run("tatami fsck");
}
