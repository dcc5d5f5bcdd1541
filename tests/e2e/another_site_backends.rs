//! The back ends of an I/O process at another site: system calls, the pieces of a volume's file,
//! and the MPI-IO of an MPI library there.

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
struct TwoSites {
    bed: HostBed,
}

/// Where files lie at the other site.
const DISK: &str = "/srv/data";
const VOLUME: &str = "/srv/volume";

impl TwoSites {
    fn start() -> Option<TwoSites> {
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

    fn line(&self, mpi: &str, dir: &str, backend: &str, line: &str) -> String {
        format!(
            "{SETTINGS} TATAMI_BACKEND={backend} TATAMI_SITES=/site=tatami://siteb{dir}; \
             tatami mpirun --launcher mpirun.{mpi} -n 3 {line}"
        )
    }

    /// Nothing of a job is left on the other site: no process, and no file but its data.
    fn expect_nothing_left(&self, dir: &str, files: &str) {
        let two = self.bed.host(1);
        two.run(
            "for i in $(seq 600); do pgrep -f '[t]atami gateway|[o]rted' || exit 0; sleep 0.1; \
             done; exit 1",
        );
        assert_eq!(two.run(&format!("ls -A {dir}")).out.trim(), files);
        assert_eq!(two.run("ls -A /dev/shm /tmp | grep -v -e : -e '^$' || true").out.trim(), "");
    }
}

/// Each back end of each MPI library here. The MPI library there is the other one.
fn back_ends(mpi: &str) -> [(&'static str, &'static str); 3] {
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
            one.run(&format!(
                "{SETTINGS}; rm -rf /srv/disk/*; mpirun.{mpi} -n 3 {program} \
                 /srv/disk/reference.dat {seed} 6 /srv/disk/reference simple"
            ));
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
