//! Containers on a real Gfarm, as MPI-IO/Gfarm had them: ranks on two
//! machines, each with a gfarm2fs mount of its own, between which neither
//! memory nor locks are shared.

use std::fs;
use std::path::Path;
use std::process::Command;
use tatami_tests::command::{ask, program, run, sources, target_dir, tatami_bin};
use tatami_tests::files::get;
use tatami_tests::gfarm::Gfarm;
use tatami_tests::mpi::{MPIS, ONE_AT_A_TIME, compiled, on_this_machine};
use tatami_tests::seed::{root_seed, scaled};

fn tatami() -> Command {
    program(&tatami_bin().display().to_string())
}

/// Runs with the layer: new files on Gfarm become containers.
fn layered(gfarm: &Gfarm, mpi: &str, ranks: u64) -> Command {
    let mut command = tatami();
    command.args(["mpirun", "--launcher", &format!("mpirun.{mpi}"), "--container"]);
    command.arg(gfarm.here()).args(["-n", &ranks.to_string()]);
    command.env("TATAMI_MPI_LIBRARY", target_dir().join("mpi/libtatami_mpi.so"));
    gfarm.on_its_machine(&mut command);
    on_this_machine(&mut command);
    command
}

fn is_container(path: &Path) -> bool {
    path.join(".tatami-container").is_file()
}

/// Chapter 14 of the standard, call by call, shared pointers and atomic mode among them.
#[test]
fn calls_do_what_the_standard_says() {
    let _turn = ONE_AT_A_TIME.lock();
    let gfarm = Gfarm::start();
    for mpi in MPIS {
        let mut job = layered(&gfarm, mpi, 2);
        run(job.arg(compiled("semantics", mpi)).arg(gfarm.here().join(mpi)));
    }
}

/// Random types, views and calls: every byte of the file equals that of a reference on the local
/// disk, which uses the MPI library's simplest calls only.
#[test]
fn random_calls_leave_what_simple_ones_leave() {
    let _turn = ONE_AT_A_TIME.lock();
    let gfarm = Gfarm::start();
    let root = root_seed() % 1_000_000_000;
    for mpi in MPIS {
        for round in 0..scaled(1) {
            let (ranks, seed) = (2 + (root + round) % 3, (root + round).to_string());
            let at = |name: &str| gfarm.local().join(format!("{mpi}.{round}.{name}"));
            let name = format!("{mpi}.{round}.dat");
            let program_path = compiled("random_calls", mpi);
            let mut reference = program(&format!("mpirun.{mpi} -n {ranks}"));
            on_this_machine(&mut reference);
            reference.arg(&program_path).arg(at("reference.dat")).args([&seed, "6"]);
            run(reference.arg(at("reference")).arg("simple"));
            let mut ours = layered(&gfarm, mpi, ranks);
            ours.arg(&program_path).arg(gfarm.here().join(&name));
            run(ours.args([&seed, "6"]).arg(at("ours")));
            assert!(is_container(&gfarm.mount(0).join(&name)), "the layer was not used");
            for part in (0..ranks).map(|r| r.to_string()).chain(["bytes".to_owned()]) {
                let (expected, got) =
                    (get(at(&format!("reference.{part}"))), get(at(&format!("ours.{part}"))));
                assert!(
                    expected == got,
                    "{mpi}, {ranks} ranks, seed {seed}: {part} differs from byte {:?} on",
                    expected.iter().zip(&got).position(|(a, b)| a != b)
                );
            }
            let flat = gfarm.mount(1).join(&name);
            run(tatami().arg("relayout").arg(&flat));
            assert!(get(&flat) == get(at("reference.dat")), "{mpi}, seed {seed}: not the same");
        }
    }
}

/// Threads of each rank share a handle, and open and close their own.
#[test]
fn threads_may_call_at_any_time() {
    let _turn = ONE_AT_A_TIME.lock();
    let gfarm = Gfarm::start();
    for mpi in MPIS {
        let said =
            run(layered(&gfarm, mpi, 2).arg(compiled("threads", mpi)).arg(gfarm.here().join(mpi)));
        assert!(said.out.contains("0 wrong"), "{}", said.out);
        assert!(is_container(&gfarm.mount(1).join(mpi)), "the layer was not used");
    }
}

/// A job dies on both machines. A machine with a part of it can't know at once whether the other
/// part lives, but reads the written bytes. After a lease it knows, and recovers the file.
#[test]
fn a_dead_job_is_known_to_every_machine() {
    const BLOCKS: usize = 40;
    let turn = ONE_AT_A_TIME.lock();
    let gfarm = Gfarm::start();
    let dying = gfarm.local().join("dying");
    let source = sources().join("e2e/mpi_programs/dying.c");
    run(program("mpicc.openmpi -O1 -o").arg(&dying).arg(source));
    let mut job = layered(&gfarm, "openmpi", 3);
    let path = gfarm.here().join("data");
    let said = ask(job.arg(&dying).arg(&path).arg(BLOCKS.to_string()));
    assert_ne!(said.code, Some(0), "{said:?}");
    let [one, other] = [0, 1].map(|machine| gfarm.mount(machine).join("data"));
    let expected: Vec<u8> =
        (0..3 * BLOCKS).flat_map(|block| [b'a' + (block % 26) as u8; 1000]).collect();
    // The machine must not take the job for dead too early: its file can't be replaced.
    let refused = ask(tatami().arg("relayout").arg(&one));
    assert!(refused.err.contains("has it open for writing"), "{refused:?}");
    let shown = gfarm.local().join("shown");
    fs::create_dir(&shown).expect("a directory for the test");
    run(tatami().args(["mount", "--overlay"]).arg(gfarm.mount(1)).arg(&shown));
    assert!(get(shown.join("data")) == expected, "read beside the dead job");
    run(program("umount").arg(&shown));
    // Only time passes from here on, so other tests may go on.
    drop(turn);
    let mut settled = ask(tatami().arg("relayout").arg(&other));
    while settled.code != Some(0) {
        assert!(settled.err.contains("has it open for writing"), "{settled:?}");
        run(&mut program("sleep 1"));
        settled = ask(tatami().arg("relayout").arg(&other));
    }
    assert!(get(&one) == expected && get(&other) == expected, "after the lease");
}

/// Ordinary files become containers and back, are written through the overlay, and are removed.
#[test]
fn tools_work_on_gfarm() {
    let _turn = ONE_AT_A_TIME.lock();
    let gfarm = Gfarm::start();
    let [one, other] = [0, 1].map(|machine| gfarm.mount(machine).join("data"));
    let mut data: Vec<u8> = (0..1_500_000u32).flat_map(|i| i.to_le_bytes()).collect();
    fs::write(&one, &data).expect("a file on Gfarm");
    run(tatami().args(["relayout", "--to", "container"]).arg(&one));
    assert!(is_container(&other) && run(tatami().arg("where").arg(&other)).code == Some(0));
    let shown = gfarm.local().join("shown");
    fs::create_dir(&shown).expect("a directory for the test");
    run(tatami().args(["mount", "--overlay"]).arg(gfarm.mount(1)).arg(&shown));
    assert!(get(shown.join("data")) == data, "through the overlay");
    let script = "printf tatami | dd of=data conv=notrunc bs=1 seek=1000 status=none; printf end >> data; mv data moved; truncate -s 6000001 moved";
    run(program("sh -ec").arg(script).current_dir(&shown));
    data.splice(1000..1006, *b"tatami");
    data.push(b'e');
    assert!(get(shown.join("moved")) == data, "through the overlay, written");
    run(tatami().arg("recover").arg(gfarm.mount(0).join("moved")));
    run(program("umount").arg(&shown));
    run(tatami().arg("relayout").arg(gfarm.mount(0).join("moved")));
    assert!(get(gfarm.mount(1).join("moved")) == data, "an ordinary file again");
}
