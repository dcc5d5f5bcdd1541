//! Starts the programs of `mpi-bench` and reads the line that each prints.

use super::place::MpiPlace;
use crate::error::{BenchError, path_error};
use serde::Deserialize;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tatami_bench_args::MpiLibrary;

/// Time limit of a program. Oversubscribed MPI processes can hang.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(600);

/// Seconds of each phase of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct MpiPhases {
    /// MPI_File_open and set_view for writing.
    pub open: f64,
    /// The writing calls.
    pub write: f64,
    /// MPI_File_sync, where requested.
    pub sync: f64,
    /// MPI_File_close.
    pub close: f64,
    /// MPI_File_open and set_view for reading.
    pub reopen: f64,
    /// The reading calls.
    pub read: f64,
}

/// The printed line of a program.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct MpiSample {
    /// Bytes moved by all processes, in each direction.
    pub bytes: u64,
    /// Times of the slowest process.
    pub seconds: MpiPhases,
    /// User and system time of all processes.
    pub cpu: MpiPhases,
    /// Wrong bytes found.
    pub bad: u64,
}

impl MpiSample {
    /// Returns the seconds in which the bytes were written: calls, sync and close, since a layer
    /// may do work at the close.
    pub fn write_seconds(&self) -> f64 {
        self.seconds.write + self.seconds.sync + self.seconds.close
    }

    /// Returns MiB/s of [`MpiSample::write_seconds`].
    pub fn write_rate(&self) -> f64 {
        mib_per_sec(self.bytes, self.write_seconds())
    }

    /// Returns MiB/s of the reading calls.
    pub fn read_rate(&self) -> f64 {
        mib_per_sec(self.bytes, self.seconds.read)
    }
}

fn mib_per_sec(bytes: u64, seconds: f64) -> f64 {
    crate::stats::ratio_or_zero(bytes as f64 / f64::from(1 << 20), seconds)
}

/// Starts the programs.
#[derive(Clone, Debug)]
pub struct MpiRunner {
    /// The folder with a folder of programs for each MPI.
    pub programs: PathBuf,
    /// The layer's library.
    pub layer: Option<PathBuf>,
    /// The `tatami` command, for processes on the nodes of a volume.
    pub tatami: PathBuf,
}

/// Searches below the folders in which this program can lie: `target/PROFILE` and `PREFIX/bin`.
pub fn find_beside(program: &Path, names: &[&str]) -> Option<PathBuf> {
    let base = program.parent()?;
    names.iter().map(|name| base.join(name)).find(|path| path.exists())
}

impl MpiRunner {
    /// Returns the MPI libraries for which there are programs.
    pub fn available_mpis(&self) -> Vec<MpiLibrary> {
        let there = |mpi: &MpiLibrary| self.programs.join(mpi.name()).join("ior").is_file();
        MpiLibrary::ALL.into_iter().filter(there).collect()
    }

    /// Returns the command of `mpirun` for `ranks` processes of `program` on this machine, in a
    /// place.
    pub fn mpirun_command(
        &self,
        mpi: MpiLibrary,
        place: &MpiPlace,
        ranks: u32,
        program: &str,
    ) -> Command {
        let mut command = self.wrapped_command(mpi, place, ranks, &[]);
        command.arg(self.programs.join(mpi.name()).join(program));
        command
    }

    /// Returns the same with words between MPI and the program, such as a tracer's.
    pub fn wrapped_command(
        &self,
        mpi: MpiLibrary,
        place: &MpiPlace,
        ranks: u32,
        words: &[String],
    ) -> Command {
        let mut command = Command::new(format!("mpirun.{}", mpi.name()));
        command.args(["-n", &ranks.to_string()]).stdin(Stdio::null());
        // All processes share this machine, may be root's, and wait without using the CPU.
        for (name, value) in [
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
            ("OMPI_MCA_mpi_yield_when_idle", "1"),
            ("OMPI_MCA_plm_rsh_agent", ""),
            ("OMPI_MCA_btl_vader_single_copy_mechanism", "none"),
        ] {
            command.env(name, value);
        }
        if let Some(volume) = &place.volume {
            command.arg(&self.tatami).args(["exec", "--node", "rank", "--dir"]);
            command.arg(volume).arg("--");
        }
        command.args(words);
        // The preloaded layer is for the program only, not for the commands that start it.
        command.arg("env");
        if let Some(layer) = self.layer.as_ref().filter(|_| place.layer) {
            command.arg(format!("LD_PRELOAD={}", layer.display()));
            if place.container {
                command.arg(format!("TATAMI_CONTAINER={}", place.dir.display()));
            }
        }
        command
    }

    /// Runs a program with its arguments to its end and reads its line.
    ///
    /// # Errors
    /// A program that fails, or that found wrong bytes.
    pub fn run_program(&self, mut command: Command) -> Result<MpiSample, BenchError> {
        let text = finish_command(&mut command)?;
        let line = text.lines().rev().find(|line| line.starts_with('{'));
        let sample: Option<MpiSample> = line.and_then(|line| serde_json::from_str(line).ok());
        match sample {
            Some(sample) if sample.bad == 0 => Ok(sample),
            Some(sample) => {
                Err(program_error(&command, &format!("found {} wrong bytes", sample.bad)))
            }
            None => Err(program_error(&command, &format!("printed no report: {text}"))),
        }
    }
}

/// Runs a command to its end and returns its output.
///
/// # Errors
/// A program that fails or hangs.
pub fn finish_command(command: &mut Command) -> Result<String, BenchError> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(path_error("starting", Path::new(command.get_program())))?;
    // Threads read the pipes during the wait, so that no full pipe stops the program.
    let out = child.stdout.take().map(|pipe| std::thread::spawn(move || read_text(pipe)));
    let err = child.stderr.take().map(|pipe| std::thread::spawn(move || read_text(pipe)));
    let ended = wait_child(&mut child);
    let text = |thread: Option<std::thread::JoinHandle<String>>| {
        thread.and_then(|t| t.join().ok()).unwrap_or_default()
    };
    let (out, err) = (text(out), text(err));
    match ended {
        Some(status) if status.success() => Ok(out),
        Some(status) => Err(program_error(command, &format!("ended with {status}: {out}{err}"))),
        None => {
            Err(program_error(command, &format!("took more than {} s", PROGRAM_TIMEOUT.as_secs())))
        }
    }
}

fn read_text(mut from: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits for the end. `None` when the program exceeded the time limit and was stopped.
fn wait_child(child: &mut Child) -> Option<std::process::ExitStatus> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
    let pid = Pid::from_child(child);
    if let Ok(ended) = pidfd_open(pid, PidfdFlags::empty()) {
        let patience = Timespec { tv_sec: PROGRAM_TIMEOUT.as_secs() as i64, tv_nsec: 0 };
        let mut ended = [PollFd::new(&ended, PollFlags::IN)];
        if poll(&mut ended, Some(&patience)) == Ok(0) {
            // mpirun passes the signal on to its processes.
            let _ = kill_process(pid, Signal::TERM);
            let _ = child.wait();
            return None;
        }
    }
    child.wait().ok()
}

fn program_error(command: &Command, what: &str) -> BenchError {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    BenchError::Program { program: words.join(" "), problem: what.trim().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"program":"ior","ranks":4,"api":"mpi","bytes":4194304,
        "seconds":{"open":0.1,"write":1.0,"sync":0.5,"close":0.5,"reopen":0.1,"read":0.5},
        "cpu":{"open":0.1,"write":1.0,"sync":0.5,"close":0.5,"reopen":0.1,"read":0.5},
        "verified":true,"bad":0}"#;

    #[test]
    fn the_line_of_a_program_is_understood() {
        let sample: MpiSample = serde_json::from_str(LINE).expect("the format");
        assert_eq!(sample.write_rate(), 2.0);
        assert_eq!(sample.read_rate(), 8.0);
    }

    #[test]
    fn what_a_program_says_is_found_and_a_failure_is_told() {
        let runner = MpiRunner { programs: "/".into(), layer: None, tatami: "tatami".into() };
        let said = |text: &str| {
            let mut echo = Command::new("echo");
            echo.arg(text);
            runner.run_program(echo)
        };
        let line = LINE.replace('\n', "");
        assert_eq!(said(&format!("a warning\n{line}\nmore")).expect("a report").bytes, 4 << 20);
        let wrong = said(&line.replace("\"bad\":0", "\"bad\":3"));
        assert!(wrong.is_err_and(|e| e.to_string().contains("3 wrong bytes")));
        assert!(said("nothing").is_err());
        assert!(runner.run_program(Command::new("false")).is_err());
    }

    #[test]
    fn only_the_program_gets_the_layer() {
        let layer = Some("/lib/layer.so".into());
        let runner = MpiRunner { programs: "/p".into(), layer, tatami: "/bin/tatami".into() };
        let place = MpiPlace::layer_dir("x", Path::new("/data"));
        let words = |place: &MpiPlace| {
            let command = runner.mpirun_command(MpiLibrary::Mpich, place, 4, "ior");
            let words = command.get_args().map(|w| w.to_string_lossy().into_owned());
            words.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            words(&place),
            "-n 4 env LD_PRELOAD=/lib/layer.so TATAMI_CONTAINER=/data /p/mpich/ior"
        );
        let plain = MpiPlace { volume: Some("/vol".into()), layer: false, ..place };
        assert_eq!(
            words(&plain),
            "-n 4 /bin/tatami exec --node rank --dir /vol -- env /p/mpich/ior"
        );
        let tiled = MpiPlace { layer: true, container: false, ..plain };
        assert_eq!(
            words(&tiled),
            "-n 4 /bin/tatami exec --node rank --dir /vol -- env LD_PRELOAD=/lib/layer.so /p/mpich/ior"
        );
    }
}
