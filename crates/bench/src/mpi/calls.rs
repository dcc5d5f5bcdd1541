//! System calls for bytes through the layer, beside those of `write` with the same bytes. Counts do
//! not vary with the load of the machine.

use super::launch::finish_command;
use super::place::{MpiPlace, MpiWorkload};
use super::session::MpiSession;
use crate::error::{BenchError, path_error};
use crate::figure::{Figure, FigureRuns, GoalDirection};
use crate::strace::{self, SyscallCounts};

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

/// Takes the figure of writing 64 KiB a call through a strided view.
pub fn take_figures(session: &MpiSession) -> Result<Vec<Figure>, BenchError> {
    if !strace::is_installed() {
        return Ok(Vec::new());
    }
    let line = "--block 64k --transfer 64k";
    let (ours, calls) = calls_per_mib(session, &session.places.layer, &format!("{line} --view"))?;
    let floor = format!("{line} --api posix");
    let (theirs, _) = calls_per_mib(session, &session.places.each, &floor)?;
    let figure = Figure::new(
        format!("{} calls, strided write 64k", session.mpi.name()),
        "calls/MiB",
        "write of the same bytes to a file per process",
        (GoalDirection::Lower, None),
        &FigureRuns { ours: vec![ours], baseline: vec![theirs], stolen: 0.0 },
    );
    Ok(vec![figure.with_note(calls)])
}
