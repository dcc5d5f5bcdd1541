//! System calls and CPU time for bytes through the layer, beside those of `write` with the same
//! bytes. Counts do not vary with the load of the machine.

use super::MpiSession;
use super::comparison::ComparedSide;
use super::launch::finish_command;
use super::place::{MpiPlace, MpiWorkload};
use crate::error::{BenchError, path_error};
use crate::suite::strace::{self, SyscallCounts};
use crate::suite::{Figure, FigureRuns, GoalDirection};

/// Calls that move bytes or wait for files, without the calls by which MPI waits for messages.
const FILE_CALLS: [&str; 18] = [
    "read",
    "write",
    "readv",
    "writev",
    "pread64",
    "pwrite64",
    "preadv",
    "pwritev",
    "lseek",
    "openat",
    "close",
    "fstat",
    "newfstatat",
    "ftruncate",
    "fallocate",
    "fcntl",
    "flock",
    "msync",
];

/// Number of traced processes.
const RANKS: u32 = 4;

/// Counts the file calls of all processes of a workload.
fn count_calls(
    session: &MpiSession,
    place: &MpiPlace,
    workload: &MpiWorkload,
) -> Result<SyscallCounts, BenchError> {
    let out = session.scratch.join("calls");
    std::fs::create_dir_all(&out).map_err(path_error("creating", &out))?;
    let runner = &session.runner;
    let shell = ["sh", "-c", r#"out=$1.$$; shift; exec "$0" -f -c -o "$out" "$@""#];
    let mut line: Vec<String> = shell.map(str::to_owned).to_vec();
    line.extend(["strace".to_owned(), out.join("rank").to_string_lossy().into_owned()]);
    place.clear()?;
    let mut command = runner.wrapped_command(session.mpi, place, RANKS, &line);
    command.arg(runner.programs.join(session.mpi.name()).join(workload.program));
    finish_command(command.args(workload.place_arguments(place)))?;
    let mut all = SyscallCounts::new();
    for entry in std::fs::read_dir(&out).map_err(path_error("reading", &out))? {
        let path = entry.map_err(path_error("reading", &out))?.path();
        let text = std::fs::read_to_string(&path).map_err(path_error("reading", &path))?;
        for (name, calls) in strace::parse_summary(&text) {
            *all.entry(name).or_default() += calls;
        }
    }
    std::fs::remove_dir_all(&out).map_err(path_error("removing", &out))?;
    all.retain(|name, _| FILE_CALLS.contains(&name.as_str()));
    Ok(all)
}

/// Returns the calls for a MiB: the difference of two runs, so that the start of MPI does not
/// count.
fn calls_per_mib(
    session: &MpiSession,
    place: &MpiPlace,
    line: &str,
) -> Result<(f64, String), BenchError> {
    let (few, many) = (64, 320);
    let run = |segments: u64| {
        let line = format!("{line} --write-only --segments {segments}");
        count_calls(session, place, &MpiWorkload::new("ior", &line))
    };
    let (small, large) = (run(few)?, run(many)?);
    let mut more = SyscallCounts::new();
    for (name, calls) in &large {
        more.insert(name.clone(), calls.saturating_sub(small.get(name).copied().unwrap_or(0)));
    }
    let mib = ((many - few) * u64::from(RANKS) * 65536) >> 20;
    Ok((strace::total_calls(&more) as f64 / mib as f64, strace::describe_calls(&more, mib)))
}

/// Takes both figures for writing 64 KiB a call through a strided view.
pub fn take_figures(session: &MpiSession) -> Result<Vec<Figure>, BenchError> {
    let name = session.mpi.name();
    let line = "--block 64k --transfer 64k";
    let mut figures = Vec::new();
    let against = "write of the same bytes to a file per process";
    if strace::is_installed() {
        let (ours, calls) =
            calls_per_mib(session, &session.places.layer, &format!("{line} --view"))?;
        let floor = format!("{line} --api posix");
        let (theirs, _) = calls_per_mib(session, &session.places.each, &floor)?;
        let runs = FigureRuns { ours: vec![ours], baseline: vec![theirs], stolen: 0.0 };
        let figure = Figure::new(
            format!("{name} calls, strided write 64k"),
            "calls/MiB",
            against,
            (GoalDirection::Lower, None),
            &runs,
        );
        figures.push(figure.with_note(calls));
    }
    let segments = if session.quick { 64 } else { 1024 };
    let line = format!("{line} --segments {segments}");
    let side = |place: &MpiPlace, more: &str| ComparedSide {
        place: place.clone(),
        workload: MpiWorkload::new("ior", &format!("{line} {more}")),
        ranks: RANKS,
    };
    let sides = [side(&session.places.layer, "--view"), side(&session.places.each, "--api posix")];
    let outcome = session.compare_sides(&sides)?;
    for (what, cpu) in [("write", true), ("read", false)] {
        let per_gib = |s: &super::launch::MpiSample| {
            let used = if cpu { s.cpu.write + s.cpu.close } else { s.cpu.read };
            used * f64::from(1 << 30) / s.bytes as f64
        };
        let runs = FigureRuns {
            ours: outcome.side_values(0, per_gib),
            baseline: outcome.side_values(1, per_gib),
            stolen: outcome.stolen,
        };
        let against = format!("{what} of the same bytes, a file per process");
        let name = format!("{name} calls, strided {what} 64k, CPU");
        figures.push(Figure::new(name, "s/GiB", &against, (GoalDirection::Lower, None), &runs));
    }
    Ok(figures)
}
