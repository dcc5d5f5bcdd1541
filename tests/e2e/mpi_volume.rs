//! MPI programs with shared files in a volume; each rank uses the mount of its node. The layer
//! gives each rank a piece on that node's disk, and all mounts show one ordinary file.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tatami_layout::PieceTiles;
use tatami_tests::command::{as_user, ask, program, run, sources, target_dir, tatami_bin};
use tatami_tests::files::{get, names, put, stat};
use tatami_tests::job::client;
use tatami_tests::model::pattern;
use tatami_tests::mpi::{MPIS, ONE_AT_A_TIME, compiled, on_this_machine};
use tatami_tests::policies::skip_with_policies;
use tatami_tests::process::kill_hard;
use tatami_tests::seed::{Rng, root_seed, scaled};
use tatami_tests::{Cluster, Setup};
use tatami_wire::Ino;
use tempfile::TempDir;

const NODES: u16 = 4;
/// An ordinary user.
const ANNA: u32 = 4001;
/// Bytes of a block of the program `endless`.
const BLOCK: u64 = 1000;

/// Returns `mpirun` with the layer. In the program's arguments, which the caller appends, `@`
/// stands for the mount of the rank's node. Ranks are assigned to the nodes in turn.
fn layered(cluster: &Cluster, mpi: &str, ranks: u64, program: &str) -> Command {
    launch(cluster, mpi, ranks, &compiled(program, mpi))
}

/// Does the same for any program.
fn launch(cluster: &Cluster, mpi: &str, ranks: u64, program: &Path) -> Command {
    let mut command = Command::new(tatami_bin());
    command.args(["mpirun", "--launcher", &format!("mpirun.{mpi}"), "-n", &ranks.to_string()]);
    command.args(["sh", "-c", SPREAD, "sh"]).arg(program);
    command.env("TATAMI_MPI_LIBRARY", target_dir().join("mpi/libtatami_mpi.so"));
    command.env("MOUNTS", cluster.mount(0).parent().expect("a folder of mounts"));
    command.env("NODES", cluster.nodes().to_string());
    on_this_machine(&mut command).stdin(Stdio::null());
    command
}

/// Does the same job as an ordinary user without rights to the volume.
fn as_anna(command: &Command) -> Command {
    let mut job = as_user(ANNA, "");
    job.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => job.env(name, value),
            None => job.env_remove(name),
        };
    }
    job.env("HOME", "/tmp");
    job
}

/// Replaces each `@` by the rank's mount, changes to that directory, and executes the program.
const SPREAD: &str = r#"
mount=$MOUNTS/node$((${OMPI_COMM_WORLD_RANK:-$PMI_RANK} % NODES))
cd "$mount"
for argument do
    shift
    case $argument in @*) argument=$mount${argument#@} ;; esac
    set -- "$@" "$argument"
done
exec "$@"
"#;

/// Returns the numbers of the nodes with the first bytes of a file of the cluster, by `tatami
/// where`.
fn nodes_of(cluster: &Cluster, path: &Path) -> Vec<u64> {
    let said = cluster.tatami("where", &["--json", path.to_str().expect("UTF-8")]);
    let report: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    let nodes = report["files"][0]["nodes"].as_array().expect("nodes");
    nodes.iter().map(|node| node["node"].as_u64().expect("a number")).collect()
}

#[allow(clippy::disallowed_methods)] // the program writes on its own, without an event
fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// Chapter 14 of the standard, call by call, with ranks on one node and on several.
#[test]
fn calls_do_what_the_standard_says() {
    let _turn = ONE_AT_A_TIME.lock();
    for nodes in [1, NODES] {
        // With one node, the second mount stays unused.
        let cluster = Cluster::start(nodes.max(2));
        for mpi in MPIS {
            let mut command = layered(&cluster, mpi, 3, "semantics");
            command.env("NODES", nodes.to_string());
            run(command.arg(format!("@/semantics.{mpi}")));
        }
        cluster.finish();
    }
}

/// File types whose bounds are not those of their data, and whose copies overlap; with ranks on
/// several nodes and on one.
#[test]
fn file_types_may_overlap_their_copies() {
    let _turn = ONE_AT_A_TIME.lock();
    let cluster = Cluster::start(2);
    let dir = tempfile::tempdir().expect("a directory");
    for mpi in MPIS {
        let plain = dir.path().join(mpi);
        let mut reference = layered(&cluster, mpi, 3, "filetypes");
        reference.env("TATAMI_PLAIN", dir.path());
        run(reference.arg(&plain));
        for nodes in [1, 2] {
            let name = format!("filetypes.{mpi}.{nodes}");
            let mut command = layered(&cluster, mpi, 3, "filetypes");
            command.env("NODES", nodes.to_string());
            let said = run(command.arg(format!("@/{name}")));
            assert!(said.out.contains("all values right"), "{mpi}: {}", said.out);
            for node in 0..2 {
                let same = get(cluster.mount(node).join(&name)) == get(&plain);
                assert!(same, "{mpi}: other bytes on the mount of node {node}");
            }
        }
    }
    cluster.finish();
}

/// Random types, views and calls: the results of each call and every byte of the file are as in a
/// container.
#[test]
fn random_calls_do_what_they_do_in_a_container() {
    let _turn = ONE_AT_A_TIME.lock();
    let cluster = Cluster::start(NODES);
    let root = root_seed() % 1_000_000_000;
    for mpi in MPIS {
        for round in 0..scaled(3) {
            let (ranks, seed) = (1 + (root + round) % 5, (root + round).to_string());
            let dir = tempfile::tempdir().expect("a directory");
            let at = |name: &str| dir.path().join(name);
            let mut reference = layered(&cluster, mpi, ranks, "random_calls");
            reference.env("TATAMI_CONTAINER", dir.path());
            run(reference.arg(at("reference.dat")).args([&seed, "6"]).arg(at("reference")));
            let mut ours = layered(&cluster, mpi, ranks, "random_calls");
            run(ours.arg("@/ours.dat").args([&seed, "6"]).arg(at("ours")));
            for part in (0..ranks).map(|r| r.to_string()).chain(["bytes".to_owned()]) {
                let expected = get(at(&format!("reference.{part}")));
                let got = get(at(&format!("ours.{part}")));
                let from = expected.iter().zip(&got).position(|(a, b)| a != b);
                let job = format!("{mpi}, {ranks} ranks, seed {seed}");
                assert!(expected == got, "{job}: {part} differs from byte {from:?} on");
            }
            let whole = get(at("ours.bytes"));
            for node in 0..NODES {
                let file = cluster.mount(node).join("ours.dat");
                assert!(get(&file) == whole, "{mpi}, seed {seed}: on the mount of node {node}");
            }
            fs::remove_file(cluster.mount(1).join("ours.dat")).expect("unlink");
        }
    }
    cluster.finish();
}

/// Threads of each rank share a handle, and open and close their own.
#[test]
fn threads_may_call_at_any_time() {
    let _turn = ONE_AT_A_TIME.lock();
    let cluster = Cluster::start(2);
    for mpi in MPIS {
        run(layered(&cluster, mpi, 2, "threads").arg(format!("@/{mpi}")));
        assert_eq!(nodes_of(&cluster, &cluster.mount(0).join(mpi)), [0, 1]);
    }
    cluster.finish();
}

/// Returns the byte that `endless` writes at an offset.
fn byte_at(at: u64) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 13) as u8
}

fn block_at(at: u64) -> Vec<u8> {
    (at..at + BLOCK).map(byte_at).collect()
}

/// Returns the process of a rank of `endless`, and the number of blocks that it has reported as
/// written.
fn read_progress(log: &Path, rank: u64) -> Option<(i32, u64)> {
    let bytes = fs::read(log.with_extension(rank.to_string())).ok()?;
    let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect();
    match words[..] {
        [process, blocks] if process != 0 => Some((process as i32, blocks)),
        _ => None,
    }
}

/// Checks that all bytes exist that the ranks reported as written. Returns a sentence where one is
/// missing.
fn missing(file: &Path, log: &Path, ranks: u64) -> Result<(), String> {
    let file = fs::File::open(file).map_err(|e| e.to_string())?;
    let mut bytes = vec![0; BLOCK as usize];
    for rank in 0..ranks {
        let (_, blocks) = read_progress(log, rank).ok_or("a rank has not begun")?;
        for k in 0..blocks {
            let at = (k * ranks + rank) * BLOCK;
            file.read_exact_at(&mut bytes, at).map_err(|e| format!("block {k} of {rank}: {e}"))?;
            if bytes != block_at(at) {
                return Err(format!("block {k} of {blocks} of rank {rank}"));
            }
        }
    }
    Ok(())
}

/// Runs `endless` with a log in `dir`; returns when all ranks have written some blocks.
fn endless(cluster: &Cluster, mpi: &str, ranks: u64, log: &Path, arguments: [&str; 4]) -> Child {
    for rank in 0..ranks {
        let _ = fs::remove_file(log.with_extension(rank.to_string()));
    }
    let [file, blocks, how, sync] = arguments;
    let mut command = layered(cluster, mpi, ranks, "endless");
    command.arg(format!("@/{file}")).arg(log).args([blocks, how, sync]);
    let child = command.spawn().expect("mpirun");
    let start = Instant::now();
    while !(0..ranks).all(|rank| read_progress(log, rank).is_some_and(|(_, blocks)| blocks > 10)) {
        assert!(start.elapsed() < Duration::from_secs(120), "the ranks do not begin");
        pause(10);
    }
    child
}

/// Ranks die at any moment. One lease after their death every mount has the bytes of each write
/// that had returned.
#[test]
fn what_killed_ranks_have_written_is_there() {
    let _turn = ONE_AT_A_TIME.lock();
    let cluster = Setup::nodes(NODES).config("[node]\nlease_sec = 2\n").start();
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("log");
    let mut random = Rng::with_seed(cluster.seed());
    for round in 0..scaled(4) {
        let (mpi, how) = (MPIS[random.usize(0..2)], ["view", "bytes"][round as usize % 2]);
        let (ranks, sync) = (random.u64(2..6), ["0", "500"][random.usize(0..2)]);
        let name = format!("f{round}");
        let mut child = endless(&cluster, mpi, ranks, &log, [&name, "20000", how, sync]);
        pause(random.u64(0..300));
        let mut processes: Vec<i32> = (0..ranks)
            .filter_map(|rank| read_progress(&log, rank))
            .map(|(process, _)| process)
            .collect();
        random.shuffle(&mut processes);
        for process in processes {
            kill_hard(process);
            pause(random.u64(0..3));
        }
        let _ = child.wait();
        let file = cluster.mount((round % u64::from(NODES)) as u16).join(&name);
        let start = Instant::now();
        while let Err(what) = missing(&file, &log, ranks) {
            let job = format!("{mpi}, {ranks} ranks, {how}, sync {sync}");
            assert!(start.elapsed() < Duration::from_secs(60), "{job}: {what} is not there");
            pause(100);
        }
    }
    cluster.finish();
}

/// A daemon dies and is restarted. The ranks of its node go on, and the whole file is there.
#[test]
fn ranks_go_on_when_a_daemon_dies() {
    let _turn = ONE_AT_A_TIME.lock();
    let cluster = Cluster::start(NODES);
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("log");
    for (node, mpi) in [(1, MPIS[0]), (0, MPIS[1])] {
        let how = ["view", "bytes"][usize::from(node)];
        let mut child = endless(&cluster, mpi, 4, &log, [mpi, "20000", how, "1000"]);
        cluster.kill_node(node);
        pause(100);
        cluster.start_node(node);
        assert!(child.wait().expect("mpirun").success(), "the program failed");
        let file = cluster.mount(2).join(mpi);
        assert_eq!(missing(&file, &log, 4), Ok(()));
        assert_eq!(stat(&file).len(), 80_000 * BLOCK);
        assert_eq!(nodes_of(&cluster, &file), [0, 1, 2, 3]);
    }
    cluster.finish();
}

/// A file that was ordinary before keeps the bytes that no rank overwrites. Other programs write
/// the file in between. After an open without writes it is unchanged.
#[test]
fn ordinary_programs_and_jobs_take_turns() {
    let _turn = ONE_AT_A_TIME.lock();
    let cluster = Cluster::start(NODES);
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("log");
    let on = |node: u16| cluster.mount(node).join("f");
    let mut bytes = pattern(1, 0, 500_000);
    put(on(2), &bytes);
    let job = |blocks: &str, ranks: u64, mpi: &str| {
        let mut command = layered(&cluster, mpi, ranks, "endless");
        run(command.arg("@/f").arg(&log).args([blocks, "view", "0"]));
    };
    job("0", 4, MPIS[0]);
    assert_eq!(nodes_of(&cluster, &on(0)), [2], "nobody wrote");
    for (round, mpi) in MPIS.into_iter().enumerate() {
        let (blocks, ranks) = (20 + round as u64, 3);
        job(&blocks.to_string(), ranks, mpi);
        let written = blocks * ranks * BLOCK;
        for (at, byte) in bytes.iter_mut().enumerate().take(written as usize) {
            *byte = byte_at(at as u64);
        }
        for node in 0..NODES {
            assert!(get(on(node)) == bytes, "round {round}, on the mount of node {node}");
        }
        let file = fs::OpenOptions::new().write(true).open(on(3)).expect("open");
        let new = pattern(2, 0, 30_000);
        file.write_all_at(&new, 15_000).expect("write");
        file.set_len(400_000 + round as u64).expect("ftruncate");
        drop(file);
        bytes[15_000..45_000].copy_from_slice(&new);
        bytes.resize(400_000 + round, 0);
        for node in 0..NODES {
            assert!(get(on(node)) == bytes, "changed, on the mount of node {node}");
        }
    }
    cluster.finish();
}

/// A user without access to the volume's key is served natively, too, with that user's own
/// permissions.
#[test]
fn ordinary_users_run_jobs_and_are_judged_as_themselves() {
    let _turn = ONE_AT_A_TIME.lock();
    let cluster = Cluster::start(NODES);
    let dir = tempfile::tempdir().expect("a directory");
    let mode = |path: &Path, bits| {
        fs::set_permissions(path, fs::Permissions::from_mode(bits)).expect("chmod");
    };
    mode(dir.path(), 0o777);
    let on = |node: u16, name: &str| cluster.mount(node).join("run").join(name);
    fs::create_dir(on(0, "")).expect("mkdir");
    mode(&on(0, ""), 0o777);
    // The ranks write logs of their own.
    let (log, hers) = (dir.path().join("log"), dir.path().join("hers"));
    let job = |mpi: &str, log: &Path, name: &str| {
        let mut command = layered(&cluster, mpi, 4, "endless");
        command.arg(format!("@/run/{name}")).arg(log).args(["300", "bytes", "100"]);
        command
    };
    let (copy, out) = (
        Pair::compile("openmpi", &sources().join("e2e/mpi_programs/copy.c"), ""),
        dir.path().join("copy"),
    );
    let reader = |name: &str| {
        let mut command = launch(&cluster, "openmpi", 1, &copy);
        as_anna(command.arg(format!("@/run/{name}")).arg(&out))
    };
    for mpi in MPIS {
        run(&mut as_anna(layered(&cluster, mpi, 3, "semantics").arg("@/run/semantics")));
        run(&mut as_anna(&job(mpi, &hers, mpi)));
        assert_eq!(nodes_of(&cluster, &on(0, mpi)), [0, 1, 2, 3], "written natively");
        assert_eq!(missing(&on(1, mpi), &hers, 4), Ok(()));
        assert_eq!(stat(on(2, mpi)).uid(), ANNA);
        run(&mut reader(mpi));
        assert!(get(&out) == get(on(3, mpi)), "one rank reads what lies on all nodes");
        fs::remove_file(&out).expect("unlink");

        // The mode forbids the access, and nothing of the file changes.
        run(&mut job(mpi, &log, "secret"));
        let bytes = get(on(0, "secret"));
        mode(&on(0, "secret"), 0o600);
        let said = ask(&mut reader("secret"));
        assert!(said.code != Some(0) && !out.exists(), "{said:?}");
        for bits in [0o600, 0o644] {
            mode(&on(0, "secret"), bits);
            let said = ask(&mut as_anna(&job(mpi, &hers, "secret")));
            assert!(said.code != Some(0), "{bits:o}: {said:?}");
        }
        assert!(get(on(1, "secret")) == bytes, "changed by whoever may not");
        chown(on(0, "secret"), Some(ANNA), Some(ANNA)).expect("chown");
        mode(&on(0, "secret"), 0o600);
        run(&mut as_anna(&job(mpi, &hers, "secret")));
        assert_eq!(missing(&on(2, "secret"), &hers, 4), Ok(()));
        fs::remove_file(on(0, "secret")).expect("unlink");
    }
    cluster.finish();
}

/// A hint leaves the file to the MPI library.
#[test]
fn files_can_be_left_to_the_mpi_library() {
    if skip_with_policies("it tells nodes by the files of objects, which regions have not") {
        return;
    }
    let _turn = ONE_AT_A_TIME.lock();
    let cluster = Cluster::start(2);
    let mut command = layered(&cluster, MPIS[0], 2, "fortran_mpi");
    let said = run(command.env("TATAMI_TILED", "0").env("NODES", "1").arg("@/left"));
    assert!(said.out.contains("all values right"), "{}", said.out);
    assert_eq!(nodes_of(&cluster, &cluster.mount(1).join("left")), [0]);
    let said = run(layered(&cluster, MPIS[0], 2, "fortran_mpi").arg("@/taken"));
    assert!(said.out.contains("all values right"), "{}", said.out);
    assert_eq!(nodes_of(&cluster, &cluster.mount(1).join("taken")), [0, 1]);
    assert_eq!(get(cluster.mount(0).join("left")), get(cluster.mount(1).join("taken")));
    cluster.finish();
}

/// A cluster, and a folder on the local disk for the same programs without the layer.
struct Pair {
    cluster: Cluster,
    local: TempDir,
}

impl Pair {
    fn new() -> Pair {
        let local = tempfile::tempdir().expect("a directory");
        Pair { cluster: Cluster::start(NODES), local }
    }

    /// Compiles a C program for an MPI library.
    fn compile(mpi: &str, from: &Path, line: &str) -> PathBuf {
        let name = from.file_stem().expect("a C file").to_string_lossy();
        let to = target_dir().join(format!("mpi/tests/{name}.{mpi}.volume"));
        let mut command = program(&format!("mpicc.{mpi} -O1 -o"));
        run(command.arg(&to).arg(from).args(line.split_whitespace()));
        to
    }

    /// Runs a program with both, in the folder and on the mounts.
    fn both(&self, mpi: &str, what: &Path, arguments: &str) {
        let mut command = program(&format!("mpirun.{mpi} -n 4"));
        command.current_dir(self.local.path()).arg(what);
        on_this_machine(&mut command).stdin(Stdio::null());
        run(command.args(arguments.split_whitespace()));
        self.layered(mpi, 4, what, arguments);
    }

    fn layered(&self, mpi: &str, ranks: u64, what: &Path, arguments: &str) -> String {
        let mut command = launch(&self.cluster, mpi, ranks, what);
        run(command.args(arguments.split_whitespace())).out
    }

    /// The file is the same on each mount as in the folder.
    fn same(&self, name: &str) {
        let expected = get(self.local.path().join(name));
        for node in 0..NODES {
            let got = get(self.cluster.mount(node).join(name));
            let from = expected.iter().zip(&got).position(|(a, b)| a != b);
            assert!(expected == got, "{name} on the mount of node {node} from byte {from:?} on");
        }
    }

    fn is_tiled(&self, name: &str) {
        let nodes = nodes_of(&self.cluster, &self.cluster.mount(0).join(name));
        assert!(nodes.len() > 1, "{name} lies on the nodes {nodes:?}");
    }
}

/// HDF5, netCDF-4 and PnetCDF write the same file as without the layer, and another number of ranks
/// reads it. PnetCDF checks it by POSIX calls, too.
#[test]
fn libraries_write_the_same_files() {
    let _turn = ONE_AT_A_TIME.lock();
    let pair = Pair::new();
    let source = |name: &str| sources().join("e2e/mpi_programs").join(name);
    let examples = sources().parent().expect("the workspace").join("examples");
    let arch = run(&mut program("gcc -print-multiarch")).out.trim().to_owned();
    let hdf5 = |mpi| format!("-I/usr/include/hdf5/{mpi} -L/usr/lib/{arch}/hdf5/{mpi} -lhdf5");
    let headers = format!("-I/usr/lib/{arch}/netcdf/mpi/include -I/usr/include/hdf5/openmpi");
    let netcdf = format!("{headers} -lnetcdf_mpi");
    for (mpi, from, line, write, read) in [
        ("openmpi", source("hdf5_shared.c"), hdf5("openmpi"), "write FILE", "read FILE"),
        ("mpich", source("hdf5_shared.c"), hdf5("mpich"), "write FILE", "read FILE"),
        ("openmpi", source("netcdf4_shared.c"), netcdf, "write FILE", "read FILE"),
        (
            "openmpi",
            examples.join("pnetcdf_shared.c"),
            "-lpnetcdf".to_owned(),
            "FILE 300 write",
            "FILE 300 read",
        ),
    ] {
        let what = Pair::compile(mpi, &from, &line);
        let name = what.file_name().expect("a name").to_string_lossy().into_owned();
        pair.both(mpi, &what, &write.replace("FILE", &name));
        pair.same(&name);
        pair.is_tiled(&name);
        let said = pair.layered(mpi, 3, &what, &read.replace("FILE", &name));
        assert!(said.contains("all values right"), "{name}: {said}");
    }
    pair.cluster.finish();
}

/// LAMMPS dumps all steps into one file, and begins its restart files with fwrite.
#[test]
fn lammps_writes_the_same_files() {
    let _turn = ONE_AT_A_TIME.lock();
    let pair = Pair::new();
    let input = sources().parent().expect("the workspace").join("examples/in.melt");
    let line = "-log none -screen none -var edge 6 -var steps 100";
    pair.both("openmpi", Path::new("lmp"), &format!("-in {} {line}", input.display()));
    let all = names(pair.local.path());
    assert_eq!(all.len(), 3, "{all:?}");
    for name in &all {
        pair.same(name);
        pair.is_tiled(name);
    }
    pair.cluster.finish();
}

/// mpi4py: each rank's numbers, by views and by the shared pointer.
#[test]
fn mpi4py_writes_the_same_file() {
    let _turn = ONE_AT_A_TIME.lock();
    let pair = Pair::new();
    let script = sources().join("e2e/mpi_programs/mpi4py_shared.py");
    // Debian's own Python: its mpi4py is built for it.
    let line = format!("{} shared.dat", script.display());
    pair.both("openmpi", Path::new("/usr/bin/python3"), &line);
    pair.same("shared.dat");
    pair.is_tiled("shared.dat");
    pair.cluster.finish();
}

/// ABINIT computes two hydrogen atoms; its wave functions are written by MPI-IO.
#[test]
fn abinit_writes_the_same_wave_functions() {
    let _turn = ONE_AT_A_TIME.lock();
    let pair = Pair::new();
    let input = get(sources().join("e2e/mpi_programs/hydrogen.abi"));
    put(pair.local.path().join("hydrogen.abi"), &input);
    put(pair.cluster.mount(1).join("hydrogen.abi"), &input);
    pair.both("openmpi", Path::new("abinit"), "hydrogen.abi");
    pair.same("hydrogeno_WFK");
    pair.same("hydrogeno_DEN");
    pair.is_tiled("hydrogeno_WFK");
    pair.cluster.finish();
}

/// While ranks of several nodes write at explicit offsets, each write is a tile. When the file is
/// closed, these are runs, also where bytes of an earlier job lie beneath.
#[test]
fn writes_of_several_nodes_are_runs_when_the_file_is_closed() {
    let _turn = ONE_AT_A_TIME.lock();
    let cluster = Cluster::start(NODES);
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("log");
    let path = cluster.mount(0).join("f");
    let mut known = Vec::new();
    for (ranks, mpi) in [(4, MPIS[0]), (3, MPIS[1])] {
        let mut command = layered(&cluster, mpi, ranks, "endless");
        run(command.arg("@/f").arg(&log).args(["200", "bytes", "50"]));
        let page = client(&cluster, 1).fetch_raw_tiles(Ino(stat(&path).ino())).expect("tiles");
        let new = page.pieces.iter().filter(|piece| !known.contains(&piece.piece));
        let tiles: Vec<usize> = new
            .map(|piece| PieceTiles::decode(&piece.tiles).expect("tiles").tiles().len())
            .collect();
        assert_eq!(tiles, vec![1; ranks as usize], "{mpi}: pieces {:?}", page.pieces.len());
        known = page.pieces.iter().map(|piece| piece.piece).collect();
        assert_eq!(missing(&cluster.mount(2).join("f"), &log, ranks), Ok(()));
    }
    assert_eq!(stat(&path).len(), 800 * BLOCK);
    cluster.finish();
}

/// Opens without a common communicator see each other's synced bytes, after a sync of their own.
#[test]
fn separate_opens_see_each_other_after_sync() {
    let _turn = ONE_AT_A_TIME.lock();
    let cluster = Cluster::start(NODES);
    for mpi in MPIS {
        let what = Pair::compile(mpi, &sources().join("e2e/mpi_programs/two_opens.c"), "");
        let said = run(launch(&cluster, mpi, 4, &what).arg(format!("@/{mpi}")));
        assert!(said.out.contains("all values right"), "{mpi}: {}", said.out);
        assert_eq!(nodes_of(&cluster, &cluster.mount(0).join(mpi)), [0, 1, 2, 3]);
    }
    cluster.finish();
}

/// Requests about names to all nodes so far.
fn requests(cluster: &Cluster) -> u64 {
    let status = cluster.status();
    let nodes = status["nodes"].as_array().expect("nodes");
    nodes.iter().map(|node| node["meta_requests"].as_u64().expect("a number")).sum()
}

/// Returns the requests of one more step of the program `counted`, by comparing two runs.
/// Housekeeping, and requests that a mount saves by its cache, vary between runs. So the least of
/// eight comparisons counts, and the first that is at most `most` ends them.
fn cost(most: f64, counts: [u64; 2], mut run: impl FnMut(u64) -> u64) -> f64 {
    let mut least = f64::MAX;
    for _ in 0..8 {
        let [few, many] = counts.map(&mut run);
        least = least.min((many as f64 - few as f64) / (counts[1] - counts[0]) as f64);
        if least <= most {
            break;
        }
    }
    least
}

/// The shared file pointer and the lock of atomic mode, with ranks on several nodes. The shard
/// provides both, for one request each.
#[test]
fn shared_pointers_and_atomic_mode_cost_a_request_each() {
    const RANKS: u64 = 4;
    let _turn = ONE_AT_A_TIME.lock();
    let cluster = Cluster::start(NODES);
    for mpi in MPIS {
        let what = Pair::compile(mpi, &sources().join("e2e/mpi_programs/counted.c"), "");
        // In atomic mode each rank locks and unlocks for a write and for a read.
        for (how, promised) in [("shared", 1.0), ("atomic", 4.0)] {
            let most = promised * 1.2;
            let mut round = 0;
            let cost = cost(most * RANKS as f64, [4, 104], |count| {
                round += 1;
                let (before, file) = (requests(&cluster), format!("@/{mpi}.{how}.{round}"));
                let mut command = launch(&cluster, mpi, RANKS, &what);
                let said = run(command.arg(file).args([&count.to_string(), how]));
                assert!(said.out.contains("all values right"), "{mpi}: {}", said.out);
                requests(&cluster) - before
            });
            let each = cost / RANKS as f64;
            println!("{mpi}, {how}: {each} requests an operation");
            assert!(each <= most, "{mpi}, {how}: {each} requests an operation");
        }
    }
    cluster.finish();
}

/// Returns the requests about bytes to all nodes so far; housekeeping is not counted.
fn object_requests(cluster: &Cluster) -> u64 {
    let status = cluster.status();
    let nodes = status["nodes"].as_array().expect("nodes");
    nodes.iter().map(|node| node["object_requests"].as_u64().expect("a number")).sum()
}

/// Requests about names and bytes to all nodes so far.
fn all_requests(cluster: &Cluster) -> u64 {
    requests(cluster) + object_requests(cluster)
}

/// The requests of one more file, by comparing runs with two numbers of files. Requests that
/// daemons send periodically are measured and subtracted. Requests that remove the pieces of closed
/// files are a part of the cost; the number of files that one request removes depends on the
/// machine's speed. Both come in bursts, so a comparison may be wrong by many requests.
struct FileCost {
    /// Requests of a file, about names and bytes.
    all: f64,
    /// Requests about bytes, of all files of both runs.
    objects: u64,
}

impl FileCost {
    /// Numbers of files of the two runs.
    const COUNTS: [u64; 2] = [4, 54];
    const FILES: u64 = Self::COUNTS[0] + Self::COUNTS[1];

    /// Returns the requests a second while no program runs.
    fn idle_rate(cluster: &Cluster) -> f64 {
        let (before, start) = (all_requests(cluster), Instant::now());
        pause(2000);
        (all_requests(cluster) - before) as f64 / start.elapsed().as_secs_f64()
    }

    /// Compares two runs; `run` creates the given number of files.
    fn compare(cluster: &Cluster, idle: f64, mut run: impl FnMut(u64)) -> FileCost {
        let objects = object_requests(cluster);
        let [few, many] = Self::COUNTS.map(|count| {
            let (before, start) = (all_requests(cluster), Instant::now());
            run(count);
            let all = all_requests(cluster) - before;
            all as f64 - idle * start.elapsed().as_secs_f64()
        });
        FileCost {
            all: (many - few) / (Self::COUNTS[1] - Self::COUNTS[0]) as f64,
            objects: object_requests(cluster) - objects,
        }
    }
}

/// Ranks that create a file together, write a block each and close it send 4 requests and two for
/// each node, for any number of ranks. A file without writes needs one request less for each node.
#[test]
fn an_open_costs_few_requests_however_many_ranks() {
    const PATIENCE: Duration = Duration::from_secs(600);
    let _turn = ONE_AT_A_TIME.lock();
    for mpi in MPIS {
        let what = Pair::compile(mpi, &sources().join("e2e/mpi_programs/counted.c"), "");
        // The clusters are alike, so one is measured for all.
        let mut idle = None;
        for (how, ranks, most) in [
            ("write", 1, 4 + 2),
            ("write", 4, 4 + 2 * 4),
            ("write", 8, 4 + 2 * 4),
            ("write", 16, 4 + 2 * 4),
            ("open", 8, 4 + 4),
        ] {
            // A directory with many hundreds of names is split between nodes, and costs more.
            let cluster = Cluster::start(NODES);
            let (mut round, deadline) = (0, Instant::now() + PATIENCE);
            let idle = *idle.get_or_insert_with(|| FileCost::idle_rate(&cluster));
            // In every case a file costs a node one request for descriptors, for all its ranks.
            let writers = if how == "write" { ranks.min(u64::from(NODES)) } else { 0 };
            // One comparison must agree with the promise. Less than half of it shows a burst of
            // other requests, not a cheap file. On a busy machine a rank may ask for its own
            // descriptors, since its neighbor did not answer in time.
            let (half, most) = (f64::from(most) / 2.0, f64::from(most) + 0.5);
            let mut agrees = false;
            while !agrees {
                let cost = FileCost::compare(&cluster, idle, |count| {
                    round += 1;
                    let file = format!("@/{mpi}.{how}.{ranks}.{round}");
                    let mut command = launch(&cluster, mpi, ranks, &what);
                    let said = run(command.arg(file).args([&count.to_string(), how]));
                    assert!(said.out.contains("all values right"), "{mpi}: {}", said.out);
                });
                let found = format!(
                    "{mpi}, {ranks} ranks, {how}: {:.2} requests a file, {} about the bytes of {}",
                    cost.all,
                    cost.objects,
                    FileCost::FILES
                );
                println!("{found}");
                let is_exact = cost.objects == writers * FileCost::FILES;
                agrees = is_exact && (half..=most).contains(&cost.all);
                assert!(agrees || Instant::now() < deadline, "{found}");
            }
            cluster.finish();
        }
    }
}

/// Objects of a file on the disks of all nodes.
fn objects_of(cluster: &Cluster, ino: u64) -> usize {
    let dir = |node: u16| cluster.dir().join(format!("node{node}/objects"));
    let all = (0..cluster.nodes()).flat_map(|node| fs::read_dir(dir(node)).expect("objects"));
    let files = all.flatten().flat_map(|bucket| names(bucket.path()));
    files.filter(|name| name.starts_with(&format!("{ino:016x}."))).count()
}

/// One rank of a node requests the descriptors of all ranks from the daemon. The unused pieces of
/// ranks that write nothing are removed when the file is closed. The same holds for an ordinary
/// user.
#[test]
fn ranks_that_write_nothing_leave_no_objects() {
    const RANKS: u64 = 5;
    const PATIENCE: Duration = Duration::from_secs(120);
    let _turn = ONE_AT_A_TIME.lock();
    let cluster = Cluster::start(2);
    let folder = cluster.mount(0).join("run");
    fs::create_dir(&folder).expect("mkdir");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("chmod");
    for mpi in MPIS {
        let what = Pair::compile(mpi, &sources().join("e2e/mpi_programs/counted.c"), "");
        for (how, writers) in [("write", RANKS), ("last", 1)] {
            for is_anna in [false, true] {
                let name = format!("{mpi}.{how}.{is_anna}");
                let mut command = launch(&cluster, mpi, RANKS, &what);
                command.env("NODES", "1").arg(format!("@/run/{name}")).args(["2", how]);
                let said = run(&mut if is_anna { as_anna(&command) } else { command });
                assert!(said.out.contains("all values right"), "{name}: {}", said.out);
                for k in 0..2 {
                    let found = stat(folder.join(format!("{name}.{k}")));
                    assert_eq!(found.len(), RANKS * 16, "{name}");
                    let start = Instant::now();
                    while objects_of(&cluster, found.ino()) != writers as usize {
                        let left = objects_of(&cluster, found.ino());
                        assert!(start.elapsed() < PATIENCE, "{name}: {left} objects");
                        pause(50);
                    }
                }
            }
        }
    }
    cluster.finish();
}

/// Counts the system calls of one process by name, from the output of strace. Waits for other ranks
/// are not counted.
fn system_calls(log: &Path) -> BTreeMap<String, u64> {
    let mut calls = BTreeMap::new();
    for line in fs::read_to_string(log).expect("what strace wrote").lines() {
        // "PID name(arguments) = result"; a call that goes on later is "PID <... name resumed>".
        let call = line.split_once(' ').map_or("", |(_, call)| call.trim_start());
        if let Some((name, _)) = call.split_once('(') {
            *calls.entry(name.to_owned()).or_default() += 1;
        }
    }
    calls
}

/// A rank that creates a file, writes a block and closes it makes few system calls. None is a
/// statfs(2), and none reads the mount table.
#[test]
fn an_open_costs_few_system_calls() {
    const COUNTS: [u64; 2] = [5, 25];
    /// The usual number is 37, of which ten are five requests of two calls each. In a debug build
    /// each close of a file is two calls. Replies that arrive in parts need a few more.
    const MOST: u64 = 42;
    /// Calls by which a process waits for other processes.
    const WAITS: [&str; 6] = ["sched_yield", "poll", "epoll_wait", "futex", "clock_nanosleep", "<"];
    let _turn = ONE_AT_A_TIME.lock();
    let cluster = Cluster::start(NODES);
    let dir = tempfile::tempdir().expect("a directory");
    for mpi in MPIS {
        let what = Pair::compile(mpi, &sources().join("e2e/mpi_programs/counted.c"), "");
        let [few, many] = COUNTS.map(|count| {
            let log = dir.path().join("log");
            let mut command = launch(&cluster, mpi, 1, Path::new("strace"));
            command.args(["-f", "-o"]).arg(&log).arg(&what).arg(format!("@/{mpi}.{count}"));
            run(command.args([&count.to_string(), "write"]));
            system_calls(&log)
        });
        let more = |(name, n): (&String, &u64)| {
            let each = n.saturating_sub(few.get(name).copied().unwrap_or(0));
            let waits = WAITS.iter().any(|wait| name.starts_with(wait));
            (!waits && each > 0).then(|| (name.clone(), each))
        };
        let each: BTreeMap<String, u64> = many.iter().filter_map(more).collect();
        let sum: u64 = each.values().sum::<u64>() / (COUNTS[1] - COUNTS[0]);
        println!("{mpi}: {sum} system calls a file: {each:?}");
        assert!(sum <= MOST, "{mpi}: {sum} system calls a file: {each:?}");
        assert_eq!(each.get("statfs"), None, "{mpi}: {each:?}");
    }
    cluster.finish();
}

/// The programs of `mpi-bench` verify the bytes that they read, and write the same bytes as without
/// the layer.
#[test]
fn workloads_write_the_same_files() {
    let _turn = ONE_AT_A_TIME.lock();
    let pair = Pair::new();
    let programs = target_dir().join("mpi/bench-volume");
    let folder = sources().parent().expect("the workspace").join("mpi-bench");
    let mut make = program("make --silent CFLAGS=-O1");
    run(make.arg("-C").arg(folder).arg(format!("OUT={}", programs.display())));
    for mpi in MPIS {
        for line in [
            "ior --block 64k --transfer 16k --segments 5",
            "ior --block 6k --transfer 6k --segments 50 --view --strided --shift 1",
            "ior --block 64k --transfer 16k --segments 5 --view --collective",
            "btio --class S --dumps 3 --mode full",
            "btio --class S --dumps 3 --mode simple",
            "btio_f shared S 3",
        ] {
            let (name, arguments) = line.split_once(' ').expect("a program and its arguments");
            let file = if name == "btio_f" { "" } else { "--file shared" };
            pair.both(mpi, &programs.join(mpi).join(name), &format!("{arguments} {file}"));
            pair.same("shared");
            pair.is_tiled("shared");
            fs::remove_file(pair.cluster.mount(2).join("shared")).expect("unlink");
            fs::remove_file(pair.local.path().join("shared")).expect("unlink");
        }
        // MPI promises nothing about holes, and MPICH's data sieving does not leave them empty.
        let (tile, hole) = (24, 64);
        let size = (1000 * 4 - 1) * hole + tile;
        let holes = format!("--size {size} --data {tile} --period {hole} --any-holes");
        for (line, check) in [
            ("--pattern nc-nc --count 1000 --size 24 --spacing 40", holes.as_str()),
            ("--pattern nc-nc --count 1000 --size 24 --spacing 40 --collective", &holes),
            ("--pattern nc-c --count 1000 --size 24 --spacing 40", "--size 96000"),
        ] {
            let what = programs.join(mpi).join("hpio");
            pair.layered(mpi, 4, &what, &format!("{line} --file shared"));
            pair.is_tiled("shared");
            for node in 0..NODES {
                let mut command = Command::new(programs.join("check"));
                command.args(["--file", "shared"]).args(check.split(' '));
                run(command.current_dir(pair.cluster.mount(node)));
            }
            fs::remove_file(pair.cluster.mount(3).join("shared")).expect("unlink");
        }
    }
    pair.cluster.finish();
}
