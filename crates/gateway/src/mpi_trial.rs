//! A trial of an MPI library in another process. Where an MPI library cannot start, it ends its
//! process, and the session with the other site would end with it.

use crate::mpi_library::{LoadedMpi, installed_libraries};
use crate::refusal::refuse;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::process::{Command, Stdio};
use tatami_remote::{RemoteFailure, SiteMpi};

/// Set by `tatami gateway` for the I/O process that a launcher starts. It is an MPI process from
/// its start, and must not start another one.
pub const LAUNCHED: &str = "TATAMI_GATEWAY_LAUNCHED";
/// Most bytes of the words of an MPI library that are reported.
const WORDS_MAX: usize = 1000;

/// The libraries that were tried, and what was wrong with them.
static TRIED: Mutex<Vec<(SiteMpi, Option<String>)>> = Mutex::new(Vec::new());

/// Returns an MPI library that works here, of those that a program asks for.
///
/// # Errors
/// `ENODEV` with the reasons.
pub(crate) fn find_working_mpi(wanted: Option<SiteMpi>) -> Result<SiteMpi, RemoteFailure> {
    let (mut tried, mut reasons) = (TRIED.lock(), Vec::new());
    for mpi in installed_libraries(wanted) {
        if !tried.iter().any(|(known, _)| *known == mpi) {
            tried.push((mpi, run_trial(mpi).err()));
        }
        match tried.iter().find(|(known, _)| *known == mpi) {
            Some((_, None)) => return Ok(mpi),
            Some((_, Some(why))) => reasons.push(format!("{}: {why}", mpi.word())),
            None => {}
        }
    }
    if reasons.is_empty() {
        let names = wanted.map_or("openmpi or mpich", SiteMpi::word);
        reasons.push(format!("libtatami_gateway for {names} is not installed there"));
    }
    Err(refuse(Errno::NODEV, &format!("tatami_backend is mpi: {}", reasons.join("; "))))
}

fn run_trial(mpi: SiteMpi) -> Result<(), String> {
    if std::env::var_os(LAUNCHED).is_some() {
        return Ok(());
    }
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(program);
    command.args(["gateway", "--try-mpi", mpi.word()]).stdin(Stdio::null());
    let said = command.output().map_err(|e| e.to_string())?;
    if said.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&said.stderr).into_owned();
    let words: Vec<&str> = words.split_whitespace().collect();
    let words: String = words.join(" ").chars().take(WORDS_MAX).collect();
    match words.is_empty() {
        true => Err(format!("it does not start ({})", said.status)),
        false => Err(words),
    }
}

/// Starts and ends an MPI library in this process; the word is `openmpi` or `mpich`.
///
/// # Errors
/// A sentence.
pub fn try_mpi(word: &str) -> Result<(), String> {
    let mpi = SiteMpi::ALL.into_iter().find(|mpi| mpi.word() == word);
    let mpi = mpi.ok_or_else(|| format!("{word:?} is no MPI library"))?;
    LoadedMpi::load(mpi).map_err(|failure| failure.what)?;
    finish_backends();
    Ok(())
}

/// Ends the use of the MPI library, if this process has one. No file is open any more.
pub fn finish_backends() {
    LoadedMpi::finish_use();
}
