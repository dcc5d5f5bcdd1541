//! Whole commands, as users type them: copy, unpack, clone, list and remove a tree of small files
//! by one process on one mount of a volume of several nodes, against the same commands on the local
//! disk; and fsstress, against an empty FUSE file system.
//!
//! Every round has files of its own. All rounds make files before any removes them, for the reason
//! that [`super::mount_names`] gives.

use super::context::SuiteContext;
use super::pairs::{PairedRuns, run_alternating};
use crate::clock::MachineUse;
use crate::error::{BenchError, path_error};
use crate::figure::{Figure, GoalDirection};
use crate::null_mount::NullMountProcess;
use crate::stats::{median, ratio_or_zero};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use tatami_plot::format_number;

/// Limit of a command's time, as a multiple of the baseline.
const GOAL: f64 = 4.0;
/// Number of bytes of a file.
const FILE_BYTES: usize = 100;
/// Files in a directory.
const DIR_FILES: u64 = 200;
/// Words of a command line that stand for paths: the directory to copy, the archive and the
/// repository with the same files, and the tree that the command makes, lists or removes.
const SOURCE: &str = "SOURCE";
const ARCHIVE: &str = "ARCHIVE";
const REPOSITORY: &str = "REPOSITORY";
const TREE: &str = "TREE";
/// The same for commands that use the volume without its mount: the program `tatami`, the directory
/// of the volume, and the path of the tree in the volume.
const PROGRAM: &str = "PROGRAM";
const VOLUME: &str = "VOLUME";
const VOLUME_TREE: &str = "VOLUME_TREE";

/// A measured command.
struct TreeCommand {
    name: &'static str,
    /// The tree of a round: that of this name.
    tree: &'static str,
    words: &'static [&'static str],
    /// What runs on the disk, if it is another command.
    on_disk: Option<&'static [&'static str]>,
    /// The policy of the tree on the volume: the length up to which files lie beside their inodes.
    inline: Option<&'static str>,
}

const UNPACK: &[&str] =
    &["sh", "-c", "mkdir \"$0\" && exec tar xf \"$1\" -C \"$0\"", TREE, ARCHIVE];
const UNTAR: &[&str] = &[PROGRAM, "untar", "--dir", VOLUME, ARCHIVE, VOLUME_TREE];

const fn tree_command(
    name: &'static str,
    tree: &'static str,
    words: &'static [&'static str],
) -> TreeCommand {
    TreeCommand { name, tree, words, on_disk: None, inline: None }
}

/// The commands, in the order in which they can run.
const COMMANDS: [TreeCommand; 9] = [
    tree_command("cp -r", "cp", &["cp", "-r", SOURCE, TREE]),
    tree_command("tar x", "tar", UNPACK),
    TreeCommand { inline: Some("4k"), ..tree_command("tar x, inline", "tar-inline", UNPACK) },
    TreeCommand { on_disk: Some(UNPACK), ..tree_command("tatami untar", "untar", UNTAR) },
    TreeCommand {
        on_disk: Some(UNPACK),
        inline: Some("4k"),
        ..tree_command("tatami untar, inline", "untar-inline", UNTAR)
    },
    tree_command("git clone", "git", &["git", "clone", "--quiet", REPOSITORY, TREE]),
    tree_command("ls -lR", "cp", &["ls", "-lR", TREE]),
    tree_command("find", "cp", &["find", TREE, "-name", "*7"]),
    tree_command("rm -r", "cp", &["rm", "-r", TREE]),
];

impl TreeCommand {
    fn figure_name(&self) -> String {
        format!("commands {}", self.name)
    }
}

const FSSTRESS: &str = "commands fsstress";
const FSSTRESS_PROGRAM: &str = "fsstress";
/// The processes of fsstress, and the operations of each.
const STRESS_PROCS: u64 = 20;
const STRESS_OPERATIONS: u64 = 400;

/// The files that the commands copy, on the local disk.
struct TreeSource {
    tree: PathBuf,
    archive: PathBuf,
    repository: PathBuf,
    files: u64,
}

/// The cost of a run.
#[derive(Clone, Copy, Debug)]
struct CommandCost {
    seconds: f64,
    /// That of the whole machine.
    used: MachineUse,
    /// Requests to daemons.
    requests: u64,
}

impl TreeSource {
    /// Creates a tree of `files` files below `dir`, and an archive and a repository of it.
    fn create(dir: &Path, files: u64) -> Result<TreeSource, BenchError> {
        let tree = dir.join("source");
        for number in 0..files {
            let sub = tree.join(format!("dir{}", number / DIR_FILES));
            if number % DIR_FILES == 0 {
                fs::create_dir_all(&sub).map_err(path_error("creating", &sub))?;
            }
            let file = sub.join(format!("file{number}"));
            // No two files are equal: git would keep one of them only.
            let text = format!("{number:0FILE_BYTES$}");
            fs::write(&file, text).map_err(path_error("writing", &file))?;
        }
        let (archive, repository) = (dir.join("source.tar"), dir.join("source.git"));
        let mut tar = Command::new("tar");
        tar.arg("--create").arg("--file").arg(&archive).arg("--directory").arg(&tree).arg(".");
        run_command(tar)?;
        let git = |words: &[&str]| {
            let mut git = Command::new("git");
            git.arg("--git-dir").arg(&repository).arg("--work-tree").arg(&tree);
            git.args(["-c", "user.name=bench", "-c", "user.email=bench"]).args(words);
            // The user's own settings, such as hooks and signatures, do not count.
            git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
            run_command(git)
        };
        git(&["init", "--quiet"])?;
        git(&["add", "."])?;
        git(&["commit", "--quiet", "--message", "files"])?;
        git(&["repack", "-adq"])?;
        Ok(TreeSource { tree, archive, repository, files })
    }

    /// Returns the runs of a command below `dir`: one round at each call.
    fn rounds_of<'a>(
        &'a self,
        bench: &'a SuiteContext,
        command: &'a TreeCommand,
        dir: PathBuf,
    ) -> impl FnMut() -> Result<CommandCost, BenchError> + 'a {
        let mut round = 0;
        move || {
            let tree = dir.join(format!("{}.{round}", command.tree));
            round += 1;
            measure_command(bench, self.build_command(command, &tree, volume_of(bench, &tree)))
        }
    }

    /// Returns the command line for this tree of a round, which may be in a volume.
    fn build_command(
        &self,
        command: &TreeCommand,
        tree: &Path,
        volume: Option<TreeVolume<'_>>,
    ) -> Command {
        let of_disk = command.on_disk.filter(|_| volume.is_none());
        let none = || OsStr::new("");
        let words = of_disk.unwrap_or(command.words);
        let mut words = words.iter().map(|word| match *word {
            SOURCE => self.tree.as_os_str(),
            ARCHIVE => self.archive.as_os_str(),
            REPOSITORY => self.repository.as_os_str(),
            TREE => tree.as_os_str(),
            PROGRAM => volume.as_ref().map_or_else(none, |volume| volume.program.as_os_str()),
            VOLUME => volume.as_ref().map_or_else(none, |volume| volume.dir.as_os_str()),
            VOLUME_TREE => volume.as_ref().map_or_else(none, |volume| &volume.tree),
            word => word.as_ref(),
        });
        let mut built = Command::new(words.next().unwrap_or_default());
        built.args(words).env("GIT_CONFIG_GLOBAL", "/dev/null");
        built
    }
}

/// A tree of a round in the volume, for a command without its mount.
struct TreeVolume<'a> {
    program: &'a Path,
    dir: &'a Path,
    /// Its path, with a colon in front.
    tree: OsString,
}

/// Returns the place of a tree in the volume; `None` for one on the disk.
fn volume_of<'a>(bench: &'a SuiteContext, tree: &Path) -> Option<TreeVolume<'a>> {
    let path = tree.strip_prefix(bench.volume.mount_path(0)).ok()?;
    let mut tree = OsString::from(":/");
    tree.push(path);
    Some(TreeVolume { program: &bench.program, dir: bench.volume.dir(), tree })
}

/// Returns the directory for the trees of a command on the volume, with its policy.
fn dir_with_policy(
    bench: &SuiteContext,
    command: &TreeCommand,
    dir: &Path,
) -> Result<PathBuf, BenchError> {
    let Some(limit) = command.inline else { return Ok(dir.to_owned()) };
    bench.volume.set_policy("/commands/inline", &["--inline", limit])?;
    Ok(dir.join("inline"))
}

/// Runs a command, without its output, to its end.
fn run_command(mut command: Command) -> Result<(), BenchError> {
    let program = command.get_program().to_owned();
    let said = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output();
    let said = said.map_err(path_error("starting", Path::new(&program)))?;
    if said.status.success() {
        return Ok(());
    }
    let problem = format!("{}: {}", said.status, String::from_utf8_lossy(&said.stderr).trim());
    Err(BenchError::Program { program: program.to_string_lossy().into_owned(), problem })
}

/// Runs a command and measures it. What earlier ones have left to write is written before.
fn measure_command(bench: &SuiteContext, command: Command) -> Result<CommandCost, BenchError> {
    rustix::fs::sync();
    let requests = count_requests(bench)?;
    let (start, machine) = (Instant::now(), MachineUse::now());
    run_command(command)?;
    let seconds = start.elapsed().as_secs_f64();
    let used = machine.used_since();
    Ok(CommandCost { seconds, used, requests: count_requests(bench)?.saturating_sub(requests) })
}

/// Returns the number of requests that all daemons have answered.
fn count_requests(bench: &SuiteContext) -> Result<u64, BenchError> {
    (0..bench.volume.nodes()).try_fold(0, |sum, node| {
        let status = bench.volume.node_status(node)?;
        Ok(sum + status.meta_requests + status.peer_messages + status.object_requests)
    })
}

/// Takes all figures of this module.
///
/// # Errors
/// A command that fails.
pub fn take_figures(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let mut figures = Vec::new();
    let wanted = |tree: &str| {
        let mut of_tree = COMMANDS.iter().filter(|command| command.tree == tree);
        of_tree.any(|command| bench.wants_figure(&command.figure_name()))
    };
    if COMMANDS.iter().any(|command| bench.wants_figure(&command.figure_name())) {
        let sides = [bench.volume.mount_path(0), bench.plain.clone()].map(|d| d.join("commands"));
        for dir in &sides {
            fs::create_dir_all(dir).map_err(path_error("creating", dir))?;
        }
        let source = TreeSource::create(&bench.plain, bench.command_files())?;
        for command in COMMANDS.iter().filter(|command| wanted(command.tree)) {
            let dir = dir_with_policy(bench, command, &sides[0])?;
            let ours = source.rounds_of(bench, command, dir);
            let disk = source.rounds_of(bench, command, sides[1].clone());
            let costs = run_alternating(bench.runs, ours, disk)?;
            let per = ("file", source.files);
            let figure = build_figure(command.figure_name(), "the local disk", per, &costs);
            bench.add_figure_with_note(&mut figures, figure);
        }
    }
    if bench.wants_figure(FSSTRESS) {
        bench.add_figure_with_note(&mut figures, measure_fsstress(bench)?);
    }
    Ok(figures)
}

/// Runs fsstress with another seed in each round. It removes its files.
fn measure_fsstress(bench: &SuiteContext) -> Result<Figure, BenchError> {
    let baseline = "empty FUSE file system";
    match Command::new(FSSTRESS_PROGRAM).arg("-S").stdout(Stdio::null()).status() {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let reason = "fsstress is not installed: `make tools` builds it";
            let better = (GoalDirection::Lower, Some(GOAL));
            return Ok(Figure::not_measured(FSSTRESS, "s", baseline, better, reason));
        }
        started => started.map_err(path_error("starting", Path::new(FSSTRESS_PROGRAM)))?,
    };
    let empty = bench.work.join("null-stress");
    let _null = NullMountProcess::start(&bench.launcher, &empty, None)?;
    let rounds = |dir: PathBuf| {
        let mut round = 0;
        move || {
            round += 1;
            let mut stress = Command::new(FSSTRESS_PROGRAM);
            stress.args(["-p", &STRESS_PROCS.to_string(), "-n", &STRESS_OPERATIONS.to_string()]);
            stress.args(["-s", &round.to_string()]).arg("-d").arg(dir.join(format!("run{round}")));
            measure_command(bench, stress)
        }
    };
    let costs = run_alternating(bench.runs, rounds(bench.volume.mount_path(0)), rounds(empty))?;
    let per = ("operation", STRESS_PROCS * STRESS_OPERATIONS);
    Ok(build_figure(FSSTRESS.into(), baseline, per, &costs))
}

/// Returns the figure of a command's time. `per` is what the requests to daemons are counted for,
/// and how many of it a run has.
fn build_figure(
    name: String,
    against: &str,
    per: (&str, u64),
    costs: &PairedRuns<CommandCost>,
) -> Figure {
    let both = |number: fn(&CommandCost) -> f64| {
        let runs = costs.figure_runs(number);
        (format_number(median(&runs.ours)), format_number(median(&runs.baseline)))
    };
    let cpu = both(|cost| cost.used.busy_us as f64 / 1e6);
    let switches = both(|cost| cost.used.switches as f64);
    let requests = median(&costs.figure_runs(|cost| cost.requests as f64).ours);
    let note = format!(
        "CPU time of the machine: {} s against {}; context switches: {} against {}; \
         requests to daemons for each {}: {:.2}",
        cpu.0,
        cpu.1,
        switches.0,
        switches.1,
        per.0,
        ratio_or_zero(requests, per.1 as f64),
    );
    let better = (GoalDirection::Lower, Some(GOAL));
    Figure::new(name, "s", against, better, &costs.figure_runs(|c| c.seconds)).with_note(note)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_runs_on_a_local_tree() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let source = TreeSource::create(dir.path(), 30).expect("tar and git are there");
        for command in COMMANDS {
            let tree = dir.path().join(command.tree);
            run_command(source.build_command(&command, &tree, None)).expect(command.name);
            let file = tree.join("dir0/file29");
            let text = fs::read_to_string(file).unwrap_or_default();
            let removed = command.name == "rm -r";
            assert_eq!(text.len(), if removed { 0 } else { FILE_BYTES }, "{}", command.name);
            assert_ne!(tree.exists(), removed, "{}", command.name);
        }
    }
}
