//! Real programs and libraries that write shared files by MPI-IO, unmodified. Each runs natively on
//! the local disk, and with the layer, into containers. Read back as one stream, every byte must be
//! the same. HDF5's own tools compare the contents, too.
//!
//! On hosts (`TATAMI_TEST_HOSTS`) the layer writes files of a volume instead, a rank on each host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tatami_tests::Cluster;
use tatami_tests::cluster_hosts::{ClusterHosts, are_hosts_wanted, skip_on_hosts};
use tatami_tests::command::{ask, program, run, sources, target_dir, tatami_bin};
use tatami_tests::files::{get, names};
use tatami_tests::mpi::{on_several_hosts, on_this_machine};
use tempfile::TempDir;

const RANKS: u32 = 4;
/// Why no test with MPICH runs on hosts.
const MPICH: &str = "MPICH 4.0.2 of Debian hangs in MPI_Finalize over TCP at times";

/// The layer on hosts.
const INSTALLED: &str = "/usr/local/bin/libtatami_mpi.so";
/// The marker of a container.
const MARKER: &str = ".tatami-container";

/// Returns the library that is preloaded before the MPI library.
fn layer() -> PathBuf {
    let path = match std::env::var_os("TATAMI_MPI_LIBRARY") {
        Some(path) => PathBuf::from(path),
        None => target_dir().join("mpi/libtatami_mpi.so"),
    };
    assert!(path.is_file(), "{} is not there: `make test` builds it first", path.display());
    path
}

fn source(name: &str) -> PathBuf {
    sources().join("e2e/mpi_programs").join(name)
}

fn example(name: &str) -> PathBuf {
    sources().parent().expect("the workspace").join("examples").join(name)
}

/// Returns Debian's directory of architecture-dependent files.
fn multiarch() -> String {
    run(&mut program("gcc -print-multiarch")).out.trim().to_owned()
}

/// Two folders for the same job.
struct Job {
    mpi: &'static str,
    base: TempDir,
    /// A volume with a node for each rank, on hosts.
    cluster: Option<Cluster>,
}

impl Job {
    fn new(mpi: &'static str) -> Job {
        let cluster = are_hosts_wanted().then(|| Cluster::start(RANKS as u16));
        let base = match &cluster {
            // A directory of the first host.
            Some(cluster) => tempfile::tempdir_in(cluster.dir().canonicalize().expect("it is")),
            None => tempfile::tempdir(),
        };
        let job = Job { mpi, base: base.expect("a temporary folder"), cluster };
        for folder in [job.native(), job.tiled()] {
            fs::create_dir(folder).expect("mkdir");
        }
        let library = |name: &str| target_dir().join("mpi").join(name);
        for name in ["libtatami_mpi.so", "libtatami_mpi_openmpi.so", "libtatami_io.so"] {
            job.install(&library(name));
        }
        job
    }

    fn hosts(&self) -> Option<&ClusterHosts> {
        self.cluster.as_ref().and_then(Cluster::hosts)
    }

    fn native(&self) -> PathBuf {
        self.base.path().join("native")
    }

    fn tiled(&self) -> PathBuf {
        match &self.cluster {
            Some(cluster) => cluster.mount(0).join("tiled"),
            None => self.base.path().join("tiled"),
        }
    }

    /// Returns the path of a file for the ranks: hosts get a copy.
    fn install(&self, file: &Path) -> PathBuf {
        let Some(hosts) = self.hosts() else { return file.to_owned() };
        hosts.bed().install_file(file);
        Path::new("/usr/local/bin").join(file.file_name().expect("a name"))
    }

    /// Compiles a C program, beside the two folders.
    fn compile(&self, from: &Path, line: &str) -> PathBuf {
        let to = self.base.path().join(from.file_stem().expect("a C file"));
        let mut command = program(&format!("mpicc.{} -O1 -o", self.mpi));
        run(command.arg(&to).arg(from).args(line.split_whitespace()));
        self.install(&to)
    }

    /// Returns `mpirun` of `ranks` processes in one of the folders; with the layer in the other.
    fn mpirun(&self, folder: &Path, ranks: u32) -> Command {
        let line = format!("mpirun.{} -n {ranks}", self.mpi);
        let with_layer = folder == self.tiled();
        let mut command = match self.hosts() {
            None => program(&line),
            Some(hosts) => hosts.command(&line),
        };
        command.current_dir(folder);
        match self.hosts() {
            None => _ = on_this_machine(&mut command),
            Some(hosts) => {
                on_several_hosts(&mut command);
                if with_layer {
                    let names: Vec<_> =
                        hosts.bed().hosts().iter().map(|host| host.name()).collect();
                    command.args(["--map-by", "node", "--host", &names.join(",")]);
                }
            }
        }
        if with_layer {
            let layer = self.hosts().map_or_else(layer, |_| INSTALLED.into());
            command.arg("env").arg(format!("LD_PRELOAD={}", layer.display()));
            if self.cluster.is_none() {
                command.arg(format!("TATAMI_CONTAINER={}", folder.display()));
            }
        }
        command
    }

    /// Checks the volume, if there is one, and removes all.
    fn finish(self) {
        drop(self.base);
        if let Some(cluster) = self.cluster {
            cluster.finish();
        }
    }

    /// The same command in both folders.
    fn both(&self, add: impl Fn(&mut Command)) {
        for folder in [self.native(), self.tiled()] {
            let mut command = self.mpirun(&folder, RANKS);
            add(&mut command);
            run(&mut command);
        }
    }

    /// Returns the names of the containers in the folder with the layer. Each is read as one stream
    /// by MPI-IO, and made one plain file by `tatami relayout`: these bytes are the same.
    fn flatten(&self) -> Vec<String> {
        let tiled = self.tiled();
        let mut all = names(&tiled);
        match &self.cluster {
            None => all.retain(|name| tiled.join(name).join(MARKER).exists()),
            Some(cluster) => all.retain(|name| is_tiled(cluster, &tiled.join(name))),
        }
        let copy = self.compile(&source("copy.c"), "");
        let read = self.base.path().join("read");
        for name in &all {
            let file = tiled.join(name);
            run(self.mpirun(&tiled, 1).arg(&copy).arg(&file).arg(&read));
            let mut relayout = match &self.cluster {
                Some(cluster) => cluster.command("relayout"),
                None => program(&format!("{} relayout", tatami_bin().display())),
            };
            run(relayout.args(["--to", "whole"]).arg(&file));
            assert!(file.is_file(), "{} is one plain file", file.display());
            assert!(get(&file) == get(&read), "{name} is not what was read of it");
        }
        all
    }

    /// Checks that both folders have these files with the same bytes.
    fn same(&self, which: &[&str]) {
        for name in which {
            let (native, tiled) = (get(self.native().join(name)), get(self.tiled().join(name)));
            let place = native.iter().zip(&tiled).position(|(a, b)| a != b);
            assert!(
                native == tiled,
                "{name}: {} and {} bytes, first difference at {place:?}",
                native.len(),
                tiled.len()
            );
        }
    }
}

/// Returns whether the ranks have written a file of a volume to the disks of several hosts.
fn is_tiled(cluster: &Cluster, file: &Path) -> bool {
    let said = cluster.tatami("where --json", &[file.to_str().expect("UTF-8")]);
    let report: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    report["files"][0]["nodes"].as_array().is_some_and(|nodes| nodes.len() > 1)
}

fn says_all_is_right(command: &mut Command) {
    let said = run(command);
    assert!(said.out.contains("all values right"), "{}\n{}", said.out, said.err);
}

fn hdf5(mpi: &'static str) {
    if mpi == "mpich" && skip_on_hosts(MPICH) {
        return;
    }
    let job = Job::new(mpi);
    let line = format!("-I/usr/include/hdf5/{mpi} -L/usr/lib/{}/hdf5/{mpi} -lhdf5", multiarch());
    let shared = job.compile(&source("hdf5_shared.c"), &line);
    job.both(|command| {
        command.arg(&shared).args(["write", "shared.h5"]);
    });
    // Other processes, and another number of them.
    for ranks in [RANKS, 3] {
        let mut read = job.mpirun(&job.tiled(), ranks);
        says_all_is_right(read.arg(&shared).args(["read", "shared.h5"]));
    }
    assert_eq!(job.flatten(), ["shared.h5"]);
    job.same(&["shared.h5"]);
    let (native, tiled) = (job.native().join("shared.h5"), job.tiled().join("shared.h5"));
    run(program("h5diff").arg(&native).arg(&tiled));
    let dump = |file: &Path| {
        let folder = file.parent().expect("a folder");
        run(program("h5dump shared.h5").current_dir(folder)).out
    };
    assert!(dump(&native) == dump(&tiled), "h5dump tells of two different files");
    says_all_is_right(job.mpirun(&job.native(), 3).arg(&shared).arg("read").arg(&tiled));
    job.finish();
}

#[test]
fn hdf5_with_open_mpi_writes_the_same_file() {
    hdf5("openmpi");
}

#[test]
fn hdf5_with_mpich_writes_the_same_file() {
    hdf5("mpich");
}

#[test]
fn netcdf4_writes_the_same_file() {
    let job = Job::new("openmpi");
    let line = format!(
        "-I/usr/lib/{}/netcdf/mpi/include -I/usr/include/hdf5/openmpi -lnetcdf_mpi",
        multiarch()
    );
    let shared = job.compile(&source("netcdf4_shared.c"), &line);
    job.both(|command| {
        command.arg(&shared).args(["write", "shared.nc"]);
    });
    says_all_is_right(job.mpirun(&job.tiled(), RANKS).arg(&shared).args(["read", "shared.nc"]));
    assert_eq!(job.flatten(), ["shared.nc"]);
    job.same(&["shared.nc"]);
    let dump = |folder: &Path| run(program("ncdump shared.nc").current_dir(folder)).out;
    assert!(dump(&job.native()) == dump(&job.tiled()), "ncdump tells of two different files");
    job.finish();
}

/// PnetCDF inspects an existing file with open(2), for which a container is a directory. So it only
/// writes through the layer, and reads through the overlay and from the flattened file.
#[test]
fn pnetcdf_writes_the_same_file() {
    let job = Job::new("openmpi");
    let shared = job.compile(&example("pnetcdf_shared.c"), "-lpnetcdf");
    job.both(|command| {
        command.arg(&shared).args(["shared.nc", "300", "write"]);
    });
    // In a volume it is an ordinary file, as the end of this test reads it.
    if job.cluster.is_none() {
        let shown = job.base.path().join("shown");
        fs::create_dir(&shown).expect("mkdir");
        let mut overlay = program(&tatami_bin().display().to_string());
        run(overlay.args(["mount", "--overlay"]).arg(job.tiled()).arg(&shown));
        let mut read = job.mpirun(&job.native(), RANKS);
        let said = ask(read.arg(&shared).arg(shown.join("shared.nc")).args(["300", "read"]));
        run(program("umount -l").arg(&shown));
        assert!(said.out.contains("all values right"), "{said:?}");
    }
    assert_eq!(job.flatten(), ["shared.nc"]);
    job.same(&["shared.nc"]);
    let tiled = job.tiled().join("shared.nc");
    says_all_is_right(
        job.mpirun(&job.native(), RANKS).arg(&shared).arg(&tiled).args(["300", "read"]),
    );
    run(program("ncvalidator -q").arg(&tiled));
    run(program("ncmpidiff -q").arg(&tiled).arg(job.native().join("shared.nc")));
    job.finish();
}

#[test]
fn mpi4py_writes_the_same_file() {
    let job = Job::new("openmpi");
    let script = job.install(&source("mpi4py_shared.py"));
    for folder in [job.native(), job.tiled()] {
        let mut command = job.mpirun(&folder, RANKS);
        // Debian's own Python: its mpi4py is built for it.
        command.arg("/usr/bin/python3").arg(&script).arg("shared.dat");
        says_all_is_right(&mut command);
    }
    assert_eq!(job.flatten(), ["shared.dat"]);
    job.same(&["shared.dat"]);
    job.finish();
}

/// LAMMPS dumps all steps into one file. It writes the first part of its restart files with fwrite:
/// these are ordinary files before MPI-IO opens them, and stay so.
#[test]
fn lammps_writes_the_same_files() {
    let job = Job::new("openmpi");
    let input = job.install(&example("in.melt"));
    job.both(|command| {
        command.arg("lmp").arg("-in").arg(&input);
        command
            .args(["-log", "none", "-screen", "none", "-var", "edge", "6", "-var", "steps", "100"]);
    });
    let tiled = job.flatten();
    for name in ["melt.atom.mpiio", "melt.dump.mpiio"] {
        assert!(tiled.iter().any(|t| t == name), "{name} is no container: {tiled:?}");
    }
    let all = names(job.native());
    assert_eq!(names(job.tiled()), all);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_eq!(all.len(), 3, "{all:?}");
    job.same(&all);
    job.finish();
}

/// ABINIT computes two hydrogen atoms; its wave functions are written by MPI-IO.
#[test]
fn abinit_writes_the_same_wave_functions() {
    let job = Job::new("openmpi");
    for folder in [job.native(), job.tiled()] {
        fs::copy(source("hydrogen.abi"), folder.join("hydrogen.abi")).expect("the input");
        let mut command = job.mpirun(&folder, RANKS);
        let said = run(command.args(["abinit", "hydrogen.abi"]));
        assert!(said.out.contains("hydrogeno_WFK with iomode: IO_MODE_MPI"), "{}", said.out);
    }
    job.flatten();
    job.same(&["hydrogeno_WFK", "hydrogeno_DEN"]);
    job.finish();
}

/// The programs of `mpi-bench` verify the bytes that they read; plain read(2) verifies the bytes
/// that they write.
fn workloads(mpi: &'static str) {
    if mpi == "mpich" && skip_on_hosts(MPICH) {
        return;
    }
    let job = Job::new(mpi);
    let programs = job.base.path().join("programs");
    let folder = sources().parent().expect("the workspace").join("mpi-bench");
    let mut make = program("make --silent CFLAGS=-O1");
    run(make
        .arg("-C")
        .arg(folder)
        .arg(format!("OUT={}", programs.display()))
        .arg(format!("MPIS={mpi}")));
    // MPI promises nothing about holes, and MPICH's data sieving does not leave them empty.
    let (tile, hole) = (24, 64);
    let hpio = (1000 * 4 - 1) * hole + tile;
    let holes = format!("--size {hpio} --data {tile} --period {hole} --any-holes");
    for (line, check) in [
        ("ior --block 64k --transfer 16k --segments 5", "--size 1310720"),
        ("ior --block 6k --transfer 6k --segments 50 --view --strided --shift 1", "--size 1228800"),
        ("ior --block 64k --transfer 16k --segments 5 --view --collective", "--size 1310720"),
        ("hpio --pattern nc-nc --count 1000 --size 24 --spacing 40", &holes),
        ("hpio --pattern nc-nc --count 1000 --size 24 --spacing 40 --collective", &holes),
        ("hpio --pattern nc-c --count 1000 --size 24 --spacing 40", "--size 96000"),
        ("btio --class S --dumps 3 --mode full", "--size 207360"),
        ("btio --class S --dumps 3 --mode simple", "--size 207360"),
        ("btio_f shared S 3", "--size 207360"),
    ] {
        let (name, args) = line.split_once(' ').expect("a program and its arguments");
        let file = job.install(&programs.join(mpi).join(name));
        job.both(|command| {
            command.arg(&file).args(args.split(' '));
            if name != "btio_f" {
                command.args(["--file", "shared"]);
            }
        });
        assert_eq!(job.flatten(), ["shared"], "{line}");
        for folder in [job.native(), job.tiled()] {
            let mut command = Command::new(programs.join("check"));
            command.args(["--file", "shared"]).args(check.split(' '));
            run(command.current_dir(&folder));
            fs::remove_file(folder.join("shared")).expect("it can go");
        }
    }
    job.finish();
}

#[test]
fn workloads_with_open_mpi_write_what_read_verifies() {
    workloads("openmpi");
}

#[test]
fn workloads_with_mpich_write_what_read_verifies() {
    workloads("mpich");
}
