//! Programs with ranks on four hosts, and files of a site with four hosts: each MPI library here
//! with the other one there, each back end, and each way through login hosts. The long form of the
//! tests runs all of them, the short one a part that has each of them once.

use crate::another_site::{install_program, library_jobs};
use crate::two_sites::{DISK, LOGIN_WAYS, LoginWay, SiteBed, VOLUME};
use tatami_tests::command::sources;
use tatami_tests::mpi::{MPIS, ONE_AT_A_TIME, compiled};
use tatami_tests::seed::{root_seed, scale};

/// Hosts of each site with ranks or nodes.
const HOSTS: usize = 4;
/// Calls with random sizes of one job.
const CALLS: u32 = 6;

/// A job: the MPI library here, directory and back end there, and the way.
#[derive(Clone, Copy, Debug)]
struct BedCase {
    mpi: &'static str,
    dir: &'static str,
    backend: &'static str,
    way: LoginWay,
}

impl BedCase {
    fn variables(self, of_way: &str) -> String {
        format!("TATAMI_BACKEND={} {of_way}", self.backend)
    }
}

/// Returns the cases of the tests: all, or each MPI library with each back end, and each way.
fn choose_cases() -> Vec<BedCase> {
    let mut cases = Vec::new();
    for (way_at, way) in LOGIN_WAYS.into_iter().enumerate() {
        for (mpi_at, mpi) in MPIS.into_iter().enumerate() {
            let other = if mpi == "mpich" { "mpi:openmpi" } else { "mpi:mpich" };
            let back_ends = [(DISK, "posix"), (VOLUME, "volume"), (DISK, other)];
            for (at, (dir, backend)) in back_ends.into_iter().enumerate() {
                if scale() > 1 || (at + mpi_at) % LOGIN_WAYS.len() == way_at {
                    cases.push(BedCase { mpi, dir, backend, way });
                }
            }
        }
    }
    cases
}

fn start_bed() -> Option<SiteBed> {
    let sites = SiteBed::start(HOSTS, 1)?;
    sites.start_volume();
    Some(sites)
}

/// The volume there has a piece of a file on each node, and each mount shows the same bytes.
fn expect_pieces_everywhere(sites: &SiteBed, file: &str) {
    let nodes = format!("tatami where --json {file} | jq '.files[0].nodes | length'");
    assert_eq!(sites.io_host().run(&nodes).out.trim(), HOSTS.to_string(), "a piece on each node");
    let sums = sites.site_hosts().iter().map(|host| host.run(&format!("sha256sum < {file}")).out);
    let sums: std::collections::BTreeSet<String> = sums.collect();
    assert_eq!(sums.len(), 1, "{sums:?}");
}

/// All calls of the standard, and random views, types and calls: the file there has the bytes that
/// the same calls make on a local disk, and every rank reads the same.
#[test]
fn four_hosts_share_files_of_a_site_of_four_hosts() {
    let Some(sites) = start_bed() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    for (name, mpi) in ["semantics", "random_calls"].iter().flat_map(|n| MPIS.map(|m| (*n, m))) {
        sites.bed.install_file(&compiled(name, mpi));
    }
    let root = root_seed() % 1_000_000_000;
    for (seed, case) in (root..).zip(choose_cases()) {
        let BedCase { mpi, dir, .. } = case;
        let variables = case.variables(&sites.open_way(case.way));
        let bin = "/usr/local/bin";
        sites.run_job(mpi, dir, &variables, &format!("{bin}/semantics.{mpi} /site/semantics"));
        sites.expect_nothing_left(dir, "");
        let calls = format!("{bin}/random_calls.{mpi}");
        sites.first().run("rm -rf /srv/disk/*");
        sites.run_alone(
            mpi,
            &format!("{calls} /srv/disk/reference.dat {seed} {CALLS} /srv/disk/reference simple"),
        );
        let job = format!("{calls} /site/ours.dat {seed} {CALLS} /srv/disk/ours");
        sites.run_job(mpi, dir, &variables, &job);
        for (rank, host) in sites.compute_hosts().iter().enumerate() {
            let sum = |host: &tatami_tests::testbed::TestHost, name: &str| {
                host.run(&format!("sha256sum < /srv/disk/{name}.{rank}")).out
            };
            assert_eq!(sum(host, "ours"), sum(sites.first(), "reference"), "{case:?}: {rank}");
        }
        sites.first().run("cmp /srv/disk/reference.bytes /srv/disk/ours.bytes");
        sites.expect_same(&format!("{dir}/ours.dat"), "/srv/disk/reference.dat");
        if dir == VOLUME {
            expect_pieces_everywhere(&sites, &format!("{dir}/ours.dat"));
        }
        sites.expect_nothing_left(dir, "ours.dat");
        sites.io_host().run(&format!("rm {dir}/ours.dat"));
    }
    sites.io_host().run("tatami fsck");
}

/// The libraries that programs use write the same files there as on a local disk, and read them.
#[test]
fn libraries_of_four_hosts_write_the_same_files() {
    let Some(sites) = start_bed() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let jobs = library_jobs();
    for (at, (mpi, source, flags, write, read)) in jobs.into_iter().enumerate() {
        install_program(&sites.bed, source, mpi, &flags);
        let line = |words: &str, file: &str| {
            format!("/usr/local/bin/{source}.{mpi} {}", words.replace("FILE", file))
        };
        sites.run_alone(mpi, &line(write, "/srv/disk/shared"));
        let cases = choose_cases().into_iter().filter(|case| case.mpi == mpi).enumerate();
        for (_, case) in cases.filter(|(number, _)| scale() > 1 || at % 3 == *number) {
            let dir = case.dir;
            let variables = case.variables(&sites.open_way(case.way));
            sites.run_job(mpi, dir, &variables, &line(write, "/site/shared"));
            sites.expect_same(&format!("{dir}/shared"), "/srv/disk/shared");
            let said = sites.run_job(mpi, dir, &variables, &line(read, "/site/shared"));
            assert!(said.contains("all values right"), "{source}, {case:?}: {said}");
            sites.expect_nothing_left(dir, "shared");
            sites.io_host().run(&format!("rm {dir}/shared"));
        }
        sites.first().run("rm /srv/disk/shared");
    }
}

/// mpi4py and LAMMPS, as far as Debian has them: with Open MPI.
#[test]
fn programs_of_four_hosts_write_the_same_files() {
    let Some(sites) = start_bed() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let (one, mpi) = (sites.first(), "openmpi");
    sites.bed.install_file(&sources().join("e2e/mpi_programs/mpi4py_shared.py"));
    sites.bed.install_file(&sources().parent().expect("the workspace").join("examples/in.melt"));
    let python = "/usr/bin/python3 /usr/local/bin/mpi4py_shared.py";
    // The script names the files of the dumps, and restart files begin with fwrite(3).
    let lammps = |dir: &str| {
        let script = format!("/restart/d; s,melt[.](dump|atom),{dir}/&,");
        for host in sites.compute_hosts() {
            host.run(&format!("sed -E '{script}' /usr/local/bin/in.melt > /srv/disk/in"));
        }
        "lmp -in /srv/disk/in -log none -screen none -var edge 5 -var steps 100".to_owned()
    };
    sites.run_alone(mpi, &format!("{python} /srv/disk/python"));
    sites.run_alone(mpi, &lammps("/srv/disk"));
    let dumps = ["melt.atom.mpiio", "melt.dump.mpiio"];
    let cases: Vec<BedCase> = choose_cases().into_iter().filter(|c| c.mpi == mpi).collect();
    for (at, case) in cases.into_iter().enumerate() {
        let dir = case.dir;
        let variables = case.variables(&sites.open_way(case.way));
        if scale() > 1 || at != 2 {
            sites.run_job(mpi, dir, &variables, &format!("{python} /site/python"));
            sites.expect_same(&format!("{dir}/python"), "/srv/disk/python");
            sites.io_host().run(&format!("rm {dir}/python"));
        }
        if scale() > 1 || at == 2 {
            sites.run_job(mpi, dir, &variables, &lammps("/site"));
            for name in dumps {
                one.run(&format!("test -s /srv/disk/{name}"));
                sites.expect_same(&format!("{dir}/{name}"), &format!("/srv/disk/{name}"));
            }
            sites.io_host().run(&format!("rm {dir}/melt.*"));
        }
        sites.expect_nothing_left(dir, "");
    }
}
