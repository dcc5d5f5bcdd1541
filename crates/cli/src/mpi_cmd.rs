//! `tatami mpirun` and `tatami mpi-check`: MPI programs with the MPI-IO layer.
//!
//! The layer is a library that is loaded before the MPI library (`LD_PRELOAD`). All ranks need it,
//! so the variables must travel with the job. Each launcher has its own option for that.

use crate::elf::{is_dynamic, read_interpreter};
use crate::error::{CommandFailure, CommandResult};
use crate::term::TermOutput;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The library that is preloaded; its backends lie beside it.
const FRONT: &str = "libtatami_mpi.so";
/// The environment variable with another path of the library.
const FRONT_VARIABLE: &str = "TATAMI_MPI_LIBRARY";

/// `tatami mpirun`
#[derive(Debug, clap::Args)]
pub struct MpirunArgs {
    /// The launcher to use
    #[arg(long, value_name = "PROGRAM", default_value = "mpirun")]
    launcher: PathBuf,
    /// Write new files below these directories as containers (`TATAMI_CONTAINER`)
    #[arg(long, value_name = "DIR")]
    container: Vec<PathBuf>,
    /// The launcher's own arguments, the program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    args: Vec<OsString>,
}

/// `tatami mpi-check`
#[derive(Debug, clap::Args)]
pub struct MpiCheckArgs {
    /// Also run the program, as one process, and print the layer's own report
    #[arg(long)]
    run: bool,
    /// The program, and its arguments for `--run`
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// The families of MPI libraries for which there are backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MpiFamily {
    OpenMpi,
    Mpich,
}

impl MpiFamily {
    fn name(self) -> &'static str {
        match self {
            MpiFamily::OpenMpi => "Open MPI",
            MpiFamily::Mpich => "MPICH",
        }
    }

    fn backend(self) -> &'static str {
        match self {
            MpiFamily::OpenMpi => "libtatami_mpi_openmpi.so",
            MpiFamily::Mpich => "libtatami_mpi_mpich.so",
        }
    }

    /// Recognizes a launcher by the text of its `--version`.
    fn from_version_text(text: &str) -> Option<MpiFamily> {
        if ["Open MPI", "OpenRTE", "Open RTE", "PRRTE"].iter().any(|name| text.contains(name)) {
            Some(MpiFamily::OpenMpi)
        } else if ["HYDRA", "MPICH", "Intel(R) MPI"].iter().any(|name| text.contains(name)) {
            Some(MpiFamily::Mpich)
        } else {
            None
        }
    }

    /// Recognizes an MPI library by its file name.
    fn from_library_name(name: &str) -> Option<MpiFamily> {
        if name.starts_with("libmpich.so") || name.starts_with("libmpi.so.12") {
            Some(MpiFamily::Mpich)
        } else if name.starts_with("libmpi.so") {
            Some(MpiFamily::OpenMpi)
        } else {
            None
        }
    }
}

/// Replaces this process by the launcher, with the layer for all ranks.
///
/// # Errors
/// The layer is not installed, or the launcher does not exist or is of an unknown kind.
pub fn mpirun(args: &MpirunArgs) -> CommandResult {
    let family = launcher_family(&args.launcher)?;
    let front = front_library()?;
    let mut variables = vec![(OsString::from("LD_PRELOAD"), preload_list(&front))];
    if !args.container.is_empty() {
        variables.push(("TATAMI_CONTAINER".into(), join_paths(&args.container)?));
    }
    let given = |name: &OsStr| variables.iter().any(|(known, _)| known == name);
    let passed: Vec<_> = std::env::vars_os()
        .filter(|(name, _)| name.as_encoded_bytes().starts_with(b"TATAMI_") && !given(name))
        .collect();
    variables.extend(passed);
    let mut command = Command::new(&args.launcher);
    for (name, value) in &variables {
        match family {
            MpiFamily::OpenMpi => {
                let mut pair = name.clone();
                pair.push("=");
                pair.push(value);
                command.arg("-x").arg(pair);
            }
            MpiFamily::Mpich => {
                command.arg("-genv").arg(name).arg(value);
            }
        }
    }
    let error = command.args(&args.args).exec();
    Err(CommandFailure::new(format!("cannot run {}", args.launcher.display())).because(error))
}

fn launcher_family(launcher: &Path) -> CommandResult<MpiFamily> {
    let said =
        Command::new(launcher).arg("--version").stdin(Stdio::null()).output().map_err(|e| {
            CommandFailure::new(format!("cannot run {}", launcher.display())).because(e).try_this(
                "install an MPI library, or name its launcher: tatami mpirun --launcher \
            mpiexec.mpich …",
            )
        })?;
    let text = [said.stdout, said.stderr].concat();
    MpiFamily::from_version_text(&String::from_utf8_lossy(&text)).ok_or_else(|| {
        CommandFailure::new(format!("{} is an unknown kind of MPI launcher", launcher.display()))
            .try_this(format!(
                "set LD_PRELOAD to the path of {FRONT} for all ranks, with options of the launcher"
            ))
    })
}

/// Finds the layer beside this program, as it was installed or built.
fn front_library() -> CommandResult<PathBuf> {
    if let Some(path) = std::env::var_os(FRONT_VARIABLE) {
        return Ok(PathBuf::from(path));
    }
    let program = std::env::current_exe().unwrap_or_default();
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = ["../lib/tatami", "mpi", "../mpi"].map(|place| folder.join(place));
    places
        .iter()
        .map(|place| place.join(FRONT))
        .find_map(|path| path.canonicalize().ok())
        .ok_or_else(|| {
            CommandFailure::new(format!("{FRONT} is not installed"))
                .try_this(format!("make install; or set {FRONT_VARIABLE} to its path"))
        })
}

/// Returns the list for `LD_PRELOAD`: the layer first, then the libraries that were in it.
fn preload_list(front: &Path) -> OsString {
    let mut all = front.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|o| !o.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}

fn join_paths(paths: &[PathBuf]) -> CommandResult<OsString> {
    let absolute: Result<Vec<_>, _> = paths.iter().map(std::path::absolute).collect();
    let absolute = absolute.map_err(|e| CommandFailure::usage("a path is empty").because(e))?;
    std::env::join_paths(absolute)
        .map_err(|e| CommandFailure::usage("a directory's name has a colon in it").because(e))
}

/// The result of inspecting a program without running it.
#[derive(Debug)]
struct ProgramFindings {
    dynamic: bool,
    front_loaded: bool,
    library: Option<(MpiFamily, String)>,
}

/// Checks whether the layer would be active in a program.
///
/// # Errors
/// It would not be; the failure has the reason.
pub fn check_program(args: &MpiCheckArgs) -> CommandResult {
    let (program, arguments) = args.command.split_first().expect("clap asks for one");
    let front = front_library()?;
    let path = find_program(program)?;
    let mut out = TermOutput::new();
    writeln!(out, "layer      {}", front.display())?;
    if args.run {
        return check_by_running(&mut out, &front, &path, arguments);
    }
    if let Some(interpreter) = read_interpreter(&path) {
        let shown = path.display();
        return Err(CommandFailure::new(format!("{shown} is a script, run by {interpreter}"))
            .because("the programs that it starts decide, and it shows only when they run")
            .try_this(format!("tatami mpi-check --run -- {shown} that opens a file with MPI-IO")));
    }
    let findings = inspect_program(&front, &path)?;
    if !findings.dynamic {
        return Err(CommandFailure::new(format!("{} is linked statically", path.display()))
            .because("nothing can be loaded before its MPI library")
            .try_this(format!(
                "relink it with -L… -l:{FRONT} before the MPI library, or with shared libraries"
            )));
    }
    let Some((family, library)) = findings.library else {
        return Err(CommandFailure::new(format!(
            "{} is linked with no MPI library that Tatami knows",
            path.display()
        ))
        .because("it may load one later, as Python does")
        .try_this("tatami mpi-check --run -- PROGRAM that opens a file with MPI-IO"));
    };
    writeln!(out, "MPI        {}, {library}", family.name())?;
    if !findings.front_loaded {
        return Err(CommandFailure::new(format!("{FRONT} is not loaded into {}", path.display()))
            .because("the program has more rights than you, or is for another kind of processor"));
    }
    let backend = front.with_file_name(family.backend());
    if !backend.is_file() {
        return Err(CommandFailure::new(format!("there is no backend for {}", family.name()))
            .because(format!("{} is not there", backend.display()))
            .try_this("install that MPI library's development package, then `make install`"));
    }
    writeln!(out, "backend    {}", backend.display())?;
    writeln!(out, "the layer is active in {} when `tatami mpirun` starts it", path.display())?;
    Ok(())
}

fn find_program(program: &OsStr) -> CommandResult<PathBuf> {
    let path = Path::new(program);
    let missing = || CommandFailure::usage(format!("there is no program {}", path.display()));
    if path.components().count() > 1 {
        return if path.is_file() { Ok(path.to_owned()) } else { Err(missing()) };
    }
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .map(|folder| folder.join(path))
        .find(|candidate| candidate.is_file())
        .ok_or_else(missing)
}

/// Asks the dynamic linker for the libraries of a program, without running the program.
fn inspect_program(front: &Path, program: &Path) -> CommandResult<ProgramFindings> {
    // A static program or a script ignores `LD_TRACE_LOADED_OBJECTS` and would run.
    let dynamic = is_dynamic(program);
    let mut findings = ProgramFindings { dynamic, front_loaded: false, library: None };
    if !dynamic {
        return Ok(findings);
    }
    let output = Command::new(program)
        .env("LD_PRELOAD", front)
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .stdin(Stdio::null())
        .output()
        .map_err(|e| {
            CommandFailure::new(format!("cannot look at {}", program.display())).because(e)
        })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text.lines().filter_map(|line| line.split_whitespace().next());
    for name in names {
        let base = name.rsplit('/').next().unwrap_or(name);
        findings.front_loaded |= base == FRONT;
        if let Some(family) = MpiFamily::from_library_name(base) {
            findings.library.get_or_insert((family, base.to_owned()));
        }
    }
    Ok(findings)
}

/// Runs the program with the layer. At the first call of MPI-IO the layer prints whether it is
/// active.
fn check_by_running(
    out: &mut TermOutput,
    front: &Path,
    path: &Path,
    arguments: &[OsString],
) -> CommandResult {
    let output = Command::new(path)
        .args(arguments)
        .env("LD_PRELOAD", preload_list(front))
        .env("TATAMI_MPI_CHECK", "1")
        .stdin(Stdio::null())
        .output()
        .map_err(|e| CommandFailure::new(format!("cannot run {}", path.display())).because(e))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let Some(line) = said.lines().find_map(|line| line.strip_prefix("tatami-mpi: ")) else {
        return Err(CommandFailure::new(format!(
            "{} did not call MPI-IO, or the layer is not loaded",
            path.display()
        ))
        .because(format!("it ended with {}", output.status)));
    };
    if let Some(reason) = line.strip_prefix("off: ") {
        return Err(CommandFailure::new("the layer is not active").because(reason.to_owned()));
    }
    writeln!(out, "the layer is {line} in {}", path.display())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_told_apart_by_what_they_say() {
        let open_mpi = "mpirun.real (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/";
        assert_eq!(MpiFamily::from_version_text(open_mpi), Some(MpiFamily::OpenMpi));
        assert_eq!(
            MpiFamily::from_version_text("HYDRA build details:\n    Version: 4.0.2"),
            Some(MpiFamily::Mpich)
        );
        assert_eq!(MpiFamily::from_version_text("srun: 22.05"), None);
    }

    #[test]
    fn libraries_are_told_apart_by_their_names() {
        assert_eq!(MpiFamily::from_library_name("libmpi.so.40"), Some(MpiFamily::OpenMpi));
        assert_eq!(MpiFamily::from_library_name("libmpi.so.12"), Some(MpiFamily::Mpich));
        assert_eq!(MpiFamily::from_library_name("libmpich.so.12"), Some(MpiFamily::Mpich));
        assert_eq!(MpiFamily::from_library_name("libmpi_mpifh.so.40"), None);
    }
}
