//! Real parallel jobs, unmodified, from Debian's packages: four MPI ranks, one
//! on each node's mount, write shared files. Every byte must be the same as
//! from the same run on local disk.

use parking_lot::Mutex;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tatami_tests::Cluster;
use tatami_tests::command::{program, run, sources, tatami_bin};
use tatami_tests::files::{get, names};

const RANKS: u16 = 4;

/// One job at a time. A rank sees its node's mount in a mount namespace of its own. Where mounts
/// are private, as in a container, that namespace keeps all mounts busy that exist when it begins,
/// also those of another test.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Returns `mpirun` of `RANKS` processes on this machine, as root, without a remote shell.
fn mpirun(folder: &Path) -> Command {
    let mut command = program("mpirun --allow-run-as-root --oversubscribe");
    command.args(["-n", &RANKS.to_string()]).current_dir(folder);
    command
        .env("OMPI_MCA_plm_rsh_agent", "")
        .env("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
    command
}

/// Does the same, with each rank in `folder` of its own node's mount, which it sees at the path
/// where the others see theirs.
fn on_all_nodes(cluster: &Cluster, folder: &str) -> Command {
    let mut command = mpirun(cluster.dir());
    command.arg(tatami_bin()).args(["exec", "--node", "rank", "--dir"]).arg(cluster.dir());
    command.args(["--", "sh", "-c", "cd \"$0\" && exec \"$@\""]);
    command.arg(cluster.dir().join("mnt").join(folder));
    command
}

fn example(name: &str) -> PathBuf {
    sources().parent().expect("the workspace").join("examples").join(name)
}

/// Compares all files in two folders, and returns their number.
fn same_files(local: &Path, volume: &Path) -> usize {
    let all = names(local);
    assert_eq!(names(volume), all, "names in {}", volume.display());
    for name in &all {
        let (here, there) = (get(local.join(name)), get(volume.join(name)));
        let place = here.iter().zip(&there).position(|(a, b)| a != b);
        assert!(
            here == there,
            "{name}: {} and {} bytes, first difference at {place:?}",
            here.len(),
            there.len()
        );
    }
    all.len()
}

/// LAMMPS melts its crystal and writes dumps and restart files with MPI-IO.
#[test]
fn lammps_writes_the_same_files_as_on_local_disk() {
    let _turn = ONE_AT_A_TIME.lock();
    let cluster = Cluster::start(RANKS);
    let local = cluster.dir().join("local");
    fs::create_dir(&local).expect("mkdir");
    fs::create_dir(cluster.mount(0).join("run")).expect("mkdir");
    let lammps = |mut command: Command| {
        command.arg("lmp").arg("-in").arg(example("in.melt"));
        // The log has times; everything else is the same in every run.
        run(command.args(["-log", "none", "-screen", "none"]));
    };
    lammps(mpirun(&local));
    lammps(on_all_nodes(&cluster, "run"));
    for node in 0..RANKS {
        assert_eq!(same_files(&local, &cluster.mount(node).join("run")), 4);
    }
    // A restart file that was written in parallel starts a run, on all nodes.
    let restart = cluster.dir().join("in.restart");
    fs::write(
        &restart,
        "read_restart melt.restart.200.mpiio\npair_style lj/cut 2.5\npair_coeff 1 1 1.0 1.0 2.5\n\
         fix 1 all nve\nthermo 10\nrun 50\n",
    )
    .expect("an input file");
    let mut again = on_all_nodes(&cluster, "run");
    again.arg("lmp").arg("-in").arg(&restart).args(["-log", "none"]);
    let said = run(&mut again);
    assert!(said.out.contains("Loop time"), "{}", said.out);
    cluster.finish();
}

/// One netCDF file, written by four ranks through PnetCDF, read back, checked by the tools of
/// PnetCDF and netCDF, and equal to the one on local disk.
#[test]
fn pnetcdf_writes_the_same_file_as_on_local_disk() {
    let _turn = ONE_AT_A_TIME.lock();
    let cluster = Cluster::start(RANKS);
    let local = cluster.dir().join("local");
    fs::create_dir(&local).expect("mkdir");
    let job = cluster.dir().join("pnetcdf_shared");
    run(program("mpicc -O1 -o").arg(&job).arg(example("pnetcdf_shared.c")).arg("-lpnetcdf"));
    let rows = "700";
    run(mpirun(&local).arg(&job).args(["shared.nc", rows]));
    fs::create_dir(cluster.mount(2).join("run")).expect("mkdir");
    let said = run(on_all_nodes(&cluster, "run").arg(&job).args(["shared.nc", rows]));
    assert!(said.out.contains("all values right"), "{}", said.out);
    for node in 0..RANKS {
        let folder = cluster.mount(node).join("run");
        assert_eq!(same_files(&local, &folder), 1);
        run(program("ncvalidator -q shared.nc").current_dir(&folder));
        let dump = |folder: &Path| run(program("ncdump shared.nc").current_dir(folder)).out;
        assert!(dump(&folder) == dump(&local), "ncdump on node {node}");
        run(program("ncmpidiff -q shared.nc").arg(local.join("shared.nc")).current_dir(&folder));
    }
    // Written again over the old one, by other aggregators' caches.
    run(on_all_nodes(&cluster, "run").arg(&job).args(["shared.nc", "300"]));
    run(mpirun(&local).arg(&job).args(["shared.nc", "300"]));
    assert_eq!(same_files(&local, &cluster.mount(3).join("run")), 1);
    cluster.finish();
}
