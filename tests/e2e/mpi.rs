//! The MPI-IO layer under Debian's Open MPI and MPICH: programs in C, Fortran
//! and Python, unmodified, with containers as shared files. `scripts/test.sh`
//! builds the layer and the programs (`mpi/Makefile`, target `tests`).

use std::fs;
use std::path::Path;
use std::process::Command;
use tatami_tests::command::{ask, program, run, sources, target_dir, tatami_bin};
use tatami_tests::files::get;
use tatami_tests::mpi::{MPIS, ONE_AT_A_TIME, compiled, on_this_machine};
use tatami_tests::seed::{root_seed, scaled};
use tempfile::TempDir;

/// The MPI library's own MPI-IO.
fn native(mpi: &str, ranks: u64) -> Command {
    let mut command = program(&format!("mpirun.{mpi}"));
    command.args(["-n", &ranks.to_string()]);
    on_this_machine(&mut command);
    command
}

/// With the layer; new files in `containers` become containers.
fn layered(mpi: &str, ranks: u64, containers: &Path) -> Command {
    let mut command = Command::new(tatami_bin());
    command.args(["mpirun", "--launcher", &format!("mpirun.{mpi}"), "--container"]);
    command.arg(containers).args(["-n", &ranks.to_string()]);
    command.env("TATAMI_MPI_LIBRARY", target_dir().join("mpi/libtatami_mpi.so"));
    on_this_machine(&mut command);
    command
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// The shapes of random datatypes take the bytes that `MPI_Pack` takes.
#[test]
fn datatypes_are_flattened_as_the_library_packs_them() {
    let _turn = ONE_AT_A_TIME.lock();
    let (seed, count) = (root_seed() % 1_000_000_000, scaled(2000));
    for mpi in MPIS {
        let mut command = native(mpi, 1);
        command.arg(compiled("flatten_test", mpi));
        run(command.args([seed.to_string(), count.to_string()]));
    }
}

/// Chapter 14 of the standard, call by call, in a container and on an ordinary file.
#[test]
fn calls_do_what_the_standard_says() {
    let _turn = ONE_AT_A_TIME.lock();
    let dir = folder();
    for mpi in MPIS {
        for ranks in [1, 3] {
            let path = dir.path().join(format!("{mpi}.{ranks}"));
            run(layered(mpi, ranks, dir.path()).arg(compiled("semantics", mpi)).arg(&path));
        }
        let mut plain = layered(mpi, 2, Path::new("/nowhere"));
        plain.env("TATAMI_PLAIN", dir.path());
        run(plain.arg(compiled("semantics", mpi)).arg(dir.path().join("plain")));
    }
}

/// set_view reports a wrong argument by name, on request.
#[test]
fn set_view_says_which_argument_is_wrong() {
    let _turn = ONE_AT_A_TIME.lock();
    let dir = folder();
    for mpi in MPIS {
        let mut command = layered(mpi, 2, dir.path());
        command.env("TATAMI_MPI_VERBOSE", "1").env("ONLY", "arguments");
        let said = run(command.arg(compiled("semantics", mpi)).arg(dir.path().join(mpi)));
        for why in [
            "disp is -1",
            "datarep \"nonsense\" is none of",
            "filetype has 2 bytes, which is no multiple of etype's 4",
            "the displacements of the filetype decrease",
            "etype has 4 bytes on one rank and 2 on another",
        ] {
            assert!(said.err.contains(why), "{mpi}: no \"{why}\" in {}", said.err);
        }
    }
}

/// A container is a file to a program: unlink(2), remove(3) and unlinkat(2) remove it, and leave
/// directories alone.
#[test]
fn containers_are_unlinked() {
    let _turn = ONE_AT_A_TIME.lock();
    let dir = folder();
    for mpi in MPIS {
        let said = run(layered(mpi, 1, dir.path()).arg(compiled("unlinked", mpi)).arg(dir.path()));
        assert!(said.out.contains("all values right"), "{mpi}: {}", said.out);
        assert_eq!(tatami_tests::files::names(dir.path()), Vec::<String>::new());
    }
}

/// File types with bounds other than those of their data, and with overlapping copies. One copy is
/// written as by the MPI library. If copies write a byte twice, the later one counts. The overlay
/// shows the written bytes.
#[test]
fn file_types_may_overlap_their_copies() {
    let _turn = ONE_AT_A_TIME.lock();
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    for name in ["containers", "shown"] {
        fs::create_dir(at(name)).expect("a directory");
    }
    for mpi in MPIS {
        let program = compiled("filetypes", mpi);
        let right = |command: &mut Command| {
            let said = run(command);
            assert!(said.out.contains("all values right"), "{mpi}: {}", said.out);
        };
        right(native(mpi, 2).arg(&program).arg(at("native")).arg("native"));
        let mut plain = layered(mpi, 2, Path::new("/nowhere"));
        plain.env("TATAMI_PLAIN", at("shown"));
        right(plain.arg(&program).arg(at("shown").join(format!("plain.{mpi}"))));
        let container = at("containers").join(mpi);
        right(layered(mpi, 2, &at("containers")).arg(&program).arg(&container));
        assert!(container.is_dir(), "the layer was not used");
        // Both MPI libraries' types once more, now that only one copy is written: the same file.
        let copies = at("containers").join(format!("{mpi}.one"));
        right(layered(mpi, 2, &at("containers")).arg(&program).arg(&copies).arg("native"));
    }
    let expected: Vec<Vec<u8>> =
        MPIS.iter().map(|mpi| get(at("shown").join(format!("plain.{mpi}")))).collect();
    let shown = at("overlay");
    fs::create_dir(&shown).expect("a directory");
    let mut overlay = Command::new(tatami_bin());
    run(overlay.args(["mount", "--overlay"]).arg(at("containers")).arg(&shown));
    let found: Vec<Vec<u8>> = MPIS.iter().map(|mpi| get(shown.join(mpi))).collect();
    let one: Vec<Vec<u8>> = MPIS.iter().map(|mpi| get(shown.join(format!("{mpi}.one")))).collect();
    run(program("umount -l").arg(&shown));
    assert!(found == expected, "the overlay shows other bytes than an ordinary file has");
    assert!(one.last() == Some(&get(at("native"))), "other bytes than the MPI library's");
}

/// Random types, views and calls: the results of each call and every byte of the file equal those
/// of a reference, which uses the MPI library's simplest calls only.
#[test]
fn random_calls_leave_what_simple_ones_leave() {
    let _turn = ONE_AT_A_TIME.lock();
    let root = root_seed() % 1_000_000_000;
    for mpi in MPIS {
        for round in 0..=scaled(3) {
            // More processes than CPUs take long to wait for each other: once is enough.
            let ranks = if round == 0 { 8 } else { 1 + (root + round) % 4 };
            let seed = (root + round).to_string();
            let dir = folder();
            let at = |name: &str| dir.path().join(name);
            let program = compiled("random_calls", mpi);
            let mut reference = native(mpi, ranks);
            reference.arg(&program).arg(at("reference.dat")).args([&seed, "6"]);
            run(reference.arg(at("reference")).arg("simple"));
            let mut ours = layered(mpi, ranks, dir.path());
            run(ours.arg(&program).arg(at("ours.dat")).args([&seed, "6"]).arg(at("ours")));
            assert!(at("ours.dat").is_dir(), "the layer was not used");
            for part in (0..ranks).map(|r| r.to_string()).chain(["bytes".to_owned()]) {
                let expected = get(at(&format!("reference.{part}")));
                let got = get(at(&format!("ours.{part}")));
                assert!(
                    expected == got,
                    "{mpi}, {ranks} ranks, seed {seed}: {part} differs from byte {:?} on",
                    expected.iter().zip(&got).position(|(a, b)| a != b)
                );
            }
        }
    }
}

/// Threads of each rank share a handle, and open and close their own.
#[test]
fn threads_may_call_at_any_time() {
    let _turn = ONE_AT_A_TIME.lock();
    let dir = folder();
    for mpi in MPIS {
        let path = dir.path().join(mpi);
        run(layered(mpi, 2, dir.path()).arg(compiled("threads", mpi)).arg(&path));
        assert!(path.is_dir(), "the layer was not used");
    }
}

/// The three bindings of Fortran; with and without the layer the same file.
#[test]
fn fortran_programs_run_unmodified() {
    let _turn = ONE_AT_A_TIME.lock();
    let dir = folder();
    for mpi in MPIS {
        for binding in ["fortran_mpif", "fortran_mpi", "fortran_f08"] {
            let path = dir.path().join(format!("{binding}.{mpi}"));
            let said = run(layered(mpi, 3, dir.path()).arg(compiled(binding, mpi)).arg(&path));
            assert!(said.out.contains("all values right"), "{}", said.out);
            assert!(path.is_dir(), "the layer was not used");
        }
    }
}

/// Other files go to the MPI library.
#[test]
fn other_files_are_left_to_the_mpi_library() {
    let _turn = ONE_AT_A_TIME.lock();
    let dir = folder();
    for mpi in MPIS {
        let path = dir.path().join(mpi);
        let mut command = layered(mpi, 2, Path::new("/nowhere"));
        let said = run(command.arg(compiled("fortran_mpi", mpi)).arg(&path));
        assert!(said.out.contains("all values right"), "{}", said.out);
        assert!(path.is_file());
    }
    assert_eq!(get(dir.path().join(MPIS[0])), get(dir.path().join(MPIS[1])));
}

/// Python loads the MPI library where other libraries do not see it. Debian
/// builds mpi4py for Open MPI.
#[test]
fn mpi4py_runs_unmodified() {
    let _turn = ONE_AT_A_TIME.lock();
    let dir = folder();
    let script = sources().parent().expect("the workspace").join("mpi/tests/python_test.py");
    let path = dir.path().join("python.dat");
    let mut command = layered("openmpi", 2, dir.path());
    let said = run(command.arg("/usr/bin/python3").arg(script).arg(&path));
    assert!(said.out.contains("all values right"), "{}", said.out);
    assert!(path.is_dir(), "the layer was not used");
}

/// A front does not go on with a backend of another build: one with another version or number of
/// functions, or from before there were versions. All calls go to the MPI library, each process
/// prints one sentence about it, and `tatami mpi-check` gives the reason.
#[test]
fn backends_of_another_build_are_refused() {
    let _turn = ONE_AT_A_TIME.lock();
    let built = target_dir().join("mpi");
    for mpi in MPIS {
        let program = compiled("fortran_mpi", mpi);
        for (other, theirs) in [
            ("other_version", "(version 3, 84 functions)"),
            ("other_count", "(version 2, 83 functions)"),
            ("other_table", "(no version)"),
        ] {
            let dir = folder();
            let at = |name: &str| dir.path().join(name);
            let front = at("libtatami_mpi.so");
            let backend = at(&format!("libtatami_mpi_{mpi}.so"));
            fs::copy(built.join("libtatami_mpi.so"), &front).expect("the front");
            fs::copy(built.join(format!("tests/{other}.so")), &backend).expect("a backend");
            let mut command = layered(mpi, 2, dir.path());
            command.env("TATAMI_MPI_LIBRARY", &front);
            let said = run(command.arg(&program).arg(at("file")));
            let sentence = format!(
                "tatami: MPI-IO goes to the MPI library, because {} (version 2, 84 functions) and \
                 {} {theirs} are not of one build: install both from the same build\n",
                front.display(),
                backend.display()
            );
            assert_eq!(said.err.matches(&sentence).count(), 2, "{mpi}, {other}: {}", said.err);
            assert!(said.out.contains("all values right"), "{mpi}, {other}: {}", said.out);
            assert!(at("file").is_file(), "{mpi}, {other}: the layer was used");
            let mut check = Command::new(tatami_bin());
            check.args(["mpi-check", "--run", "--"]).arg(&program).arg(at("checked"));
            check.env("TATAMI_MPI_LIBRARY", &front);
            let said = ask(on_this_machine(&mut check));
            assert_eq!(said.code, Some(1), "{mpi}, {other}: {}", said.out);
            assert!(said.err.contains("another build"), "{mpi}, {other}: {}", said.err);
        }
    }
}

/// `tatami mpi-check` reports whether the layer is active, and the reason if not.
#[test]
fn mpi_check_tells_why_not() {
    let _turn = ONE_AT_A_TIME.lock();
    let dir = folder();
    let check = |args: &[&str]| {
        let mut command = Command::new(tatami_bin());
        command.arg("mpi-check").args(args);
        command.env("TATAMI_MPI_LIBRARY", target_dir().join("mpi/libtatami_mpi.so"));
        on_this_machine(&mut command);
        command
    };
    for (mpi, name) in MPIS.into_iter().zip(["Open MPI", "MPICH"]) {
        let program = compiled("semantics", mpi);
        let said = run(&mut check(&["--", program.to_str().expect("UTF-8")]));
        assert!(said.out.contains(name) && said.out.contains("is active"), "{}", said.out);
    }
    let none = ask(&mut check(&["--", "true"]));
    assert_eq!(none.code, Some(1));
    assert!(none.err.contains("no MPI library"), "{}", none.err);
    let source = dir.path().join("empty.c");
    fs::write(&source, "int main(void) { return 0; }\n").expect("a program");
    let fixed = dir.path().join("static");
    run(program("gcc -static -o").arg(&fixed).arg(&source));
    let said = ask(&mut check(&["--", fixed.to_str().expect("UTF-8")]));
    assert!(said.code == Some(1) && said.err.contains("statically"), "{}", said.err);
    let script = dir.path().join("script");
    fs::write(&script, "#!/usr/bin/env python3\n").expect("a script");
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("set");
    let said = ask(&mut check(&["--", script.to_str().expect("UTF-8")]));
    assert!(said.code == Some(1) && said.err.contains("script"), "{}", said.err);
    assert!(
        said.err.contains("/usr/bin/env python3") && said.err.contains("--run"),
        "{}",
        said.err
    );
    let missing = Command::new(tatami_bin())
        .args(["mpi-check", "--", "true"])
        .env("TATAMI_MPI_LIBRARY", "/nowhere/libtatami_mpi.so")
        .output()
        .expect("tatami");
    assert!(!missing.status.success());
}
