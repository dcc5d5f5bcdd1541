//! `tatami relayout`: makes files of the volume whole or striped, and converts containers and
//! ordinary files into each other.

use crate::background::{self, RelayoutNoteFile};
use crate::container_cmd;
use crate::error::{CommandFailure, CommandResult};
use crate::evacuation::Evacuation;
use crate::json::{NameFields, serialize_optional_wide};
use crate::move_pace::{MovePace, PaceArgs};
use crate::policy_mover::{PolicyMoveReport, PolicyMover};
use crate::session::{FoundPath, VolumeSessions, is_on_mount};
use crate::term::{self, HEAD, TermOutput};
use crate::volume_dir::VolumeArgs;
use crate::volume_path::{AnyPath, current_cred};
use clap::ValueEnum;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use tatami_client::relayout::{Relayout, RelayoutGoal};
use tatami_client::tree::{VolumeTree, join_path};
use tatami_cluster::VolumeFile;
use tatami_wire::{Attr, Errno, InodeKind, NodeId};

/// Attempts to copy a file that a program opened for writing meanwhile.
const ATTEMPTS: usize = 3;
/// How long the command waits for a program that has the file open for writing.
const WRITER_WAIT: Duration = Duration::from_secs(5);
/// Bytes of a stripe, unless the user names another number.
const STRIPE: u64 = 1 << 20;
/// Shortest stripe, in bytes: the page of a disk.
const STRIPE_MIN: u64 = 4096;

/// `tatami relayout`
#[derive(Debug, clap::Args)]
pub struct RelayoutArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// The new layout [default: whole; with --from, a file over several nodes is striped]
    #[arg(long, value_enum)]
    to: Option<RelayoutForm>,
    /// Nodes of the stripes, by number or name [default: all], or the node of the whole file
    /// [default: the one with its base]
    // Release 0.1.0 called it --nodes, which is a number of nodes elsewhere.
    #[arg(long, value_name = "NODE", value_delimiter = ',', alias = "nodes")]
    on: Vec<String>,
    /// Only files with bytes on these nodes, which move to other nodes: to those of --on [default:
    /// all others with a part of the namespace]
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    from: Vec<String>,
    /// Bytes of a stripe, such as 64k or 4m [default: 1m; with --from, as in the file]
    #[arg(long, value_name = "SIZE", value_parser = tatami_bench_args::size::parse)]
    stripe: Option<u64>,
    /// Also all files below directories
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// Threads that copy [default: the number of processors], or with `--to policy` the files that
    /// are moved at a time [default: 2]
    #[arg(short, long, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    #[command(flatten)]
    pace: PaceArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Continue in the background; --status shows the progress
    #[arg(long, conflicts_with_all = ["json", "status"])]
    background: bool,
    /// Show your background relayouts (the superuser: those of all users): their progress, and the
    /// results of the last 24 hours
    #[arg(long, conflicts_with_all = ["paths", "background"])]
    status: bool,
    /// File for the progress of a process in the background
    #[arg(long, hide = true, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Files on a mount, or in the volume with a colon in front; containers and ordinary files
    /// anywhere
    #[arg(required_unless_present = "status")]
    paths: Vec<AnyPath>,
}

/// The layout that a file is to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RelayoutForm {
    /// One object on one node, or one ordinary file
    Whole,
    /// Stripes on several nodes in turn, so that all of them serve each read and write
    Striped,
    /// A directory in which each process of a job writes a file of its own
    Container,
    /// Where the policies of its directory want it: beside the inode, in a region, or on a disk
    Policy,
}

#[derive(Serialize)]
struct RelayoutReport {
    #[serde(flatten)]
    path: NameFields,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(serialize_with = "serialize_optional_wide")]
    size: Option<u64>,
    changed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The new layout of all files, or of those that leave a node.
enum RelayoutPlan {
    Same(RelayoutGoal),
    Away(Evacuation),
}

/// The settings of this run, and its results.
struct RelayoutRun<'a> {
    args: &'a RelayoutArgs,
    threads: usize,
    out: TermOutput,
    reported: Vec<RelayoutReport>,
    failures: Vec<CommandFailure>,
    notes: Option<RelayoutNoteFile>,
}

/// Re-lays out files.
///
/// # Errors
/// Those of single files, after all others are done.
pub fn run(args: &RelayoutArgs) -> CommandResult {
    if args.status {
        return background::print_status(args.json);
    }
    if args.background {
        args.check_policy_form()?;
        return background::continue_in_background();
    }
    let begin = |path: &PathBuf| {
        RelayoutNoteFile::create_detached(path, args.paths.iter().map(AnyPath::to_bytes).collect())
    };
    args.check_policy_form()?;
    let notes = args.report.as_ref().map(begin).transpose()?;
    if args.to == Some(RelayoutForm::Policy) {
        return move_by_policy(args, notes.as_ref());
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.map_or(processors, usize::from);
    let (out, reported, failures) = (TermOutput::new(), Vec::new(), Vec::new());
    let mut work = RelayoutRun { args, threads, out, reported, failures, notes };
    let mut sessions = VolumeSessions::new(&args.at);
    for any in &args.paths {
        if let Err(failure) = work.relayout_path(&mut sessions, any)
            && let Err(failure) = work.record_failure(any, failure)
        {
            work.notes.iter().for_each(|notes| notes.record_failure(&failure));
            return Err(failure);
        }
    }
    let RelayoutRun { mut out, reported, mut failures, notes, .. } = work;
    notes.iter().for_each(RelayoutNoteFile::mark_ended);
    if args.json {
        out.write_json(&serde_json::json!({ "files": reported }))?;
    }
    out.flush()?;
    let last = failures.pop();
    failures.iter().for_each(|failure| term::print_error(&failure.report()));
    last.map_or(Ok(()), Err)
}

impl RelayoutRun<'_> {
    fn relayout_path(&mut self, sessions: &mut VolumeSessions<'_>, any: &AnyPath) -> CommandResult {
        if let AnyPath::Local(path) = any
            && (!is_on_mount(path)
                || self.args.to == Some(RelayoutForm::Container)
                || tatami_tiled::is_container(path))
        {
            if !self.args.from.is_empty() {
                let what = format!("{any} is not in a volume: --from selects files of a volume");
                return Err(CommandFailure::usage(what));
            }
            let done = match self.args.form() {
                RelayoutForm::Container => container_cmd::to_container(path)?.to_owned(),
                RelayoutForm::Whole => container_cmd::to_whole(path, self.threads)?,
                RelayoutForm::Striped | RelayoutForm::Policy => {
                    let what = format!(
                        "{any} is not on a mount of Tatami: there are no nodes for stripes"
                    );
                    return Err(CommandFailure::usage(what));
                }
            };
            let changed = !done.contains("already");
            let size = std::fs::metadata(path).ok().filter(|m| m.is_file()).map(|m| m.len());
            return self.report_result(any, size, changed, &done);
        }
        let FoundPath { tree, volume, path } = sessions.find_path(any)?;
        let mut plan = parse_plan(self.args, &volume, &tree)?;
        let attr =
            tree.stat(&path, true).map_err(|e| any.operation_failure("cannot look at", e))?;
        match attr.kind {
            InodeKind::File => self.relayout_file(&tree, &mut plan, any, &attr, false),
            InodeKind::Dir if self.args.recursive => self.relayout_tree(&tree, &mut plan, &path),
            InodeKind::Dir => {
                let what = format!("{any} is a directory");
                Err(CommandFailure::usage(what).try_this("with all files below it: -r"))
            }
            _ => Err(CommandFailure::new(format!("{any} is a special file: it has no bytes"))),
        }
    }

    fn relayout_tree(
        &mut self,
        tree: &VolumeTree,
        plan: &mut RelayoutPlan,
        path: &[u8],
    ) -> CommandResult {
        let mut todo = vec![path.to_vec()];
        while let Some(path) = todo.pop() {
            let entries = match tree.read_dir(&path, true) {
                Ok(entries) => entries,
                Err(Errno::ENOENT) => continue, // removed meanwhile
                Err(e) => return Err(AnyPath::Volume(path).operation_failure("cannot list", e)),
            };
            for entry in entries {
                let path = join_path(&path, &entry.name);
                let any = AnyPath::Volume(path.clone());
                match (entry.kind, entry.attr) {
                    (InodeKind::Dir, _) => todo.push(path),
                    (InodeKind::File, Some(attr)) => {
                        let done = self.relayout_file(tree, plan, &any, &attr, true);
                        if let Err(failure) = done {
                            self.record_failure(&any, failure)?;
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// `found`: the file was found in a directory, so that one that stays is not worth a line.
    fn relayout_file(
        &mut self,
        tree: &VolumeTree,
        plan: &mut RelayoutPlan,
        any: &AnyPath,
        attr: &Attr,
        found: bool,
    ) -> CommandResult {
        let goal = match plan {
            RelayoutPlan::Same(goal) => goal.clone(),
            RelayoutPlan::Away(evacuation) => {
                let concerned = evacuation.concerns_file(tree.client(), attr);
                if !concerned.map_err(|errno| relayout_failure(any, errno))? {
                    return match found {
                        true => Ok(()),
                        false => {
                            let what = "has nothing on these nodes: nothing to do";
                            self.report_result(any, Some(attr.size), false, what)
                        }
                    };
                }
                let striped = match self.args.to {
                    _ if attr.size == 0 => false,
                    Some(form) => form == RelayoutForm::Striped,
                    None => attr.layout.is_tiled(),
                };
                let unit = match self.args.stripe {
                    None if striped => tree.client().stripe_unit(attr),
                    given => Ok(given),
                };
                let unit = unit.map_err(|errno| relayout_failure(any, errno))?;
                let unit = unit.filter(|unit| *unit >= STRIPE_MIN).unwrap_or(STRIPE);
                evacuation.choose_goal(striped, unit, attr)
            }
        };
        let goal = &goal;
        let done = copy_to_layout(tree, goal, any, attr, self.threads, self.notes.as_ref());
        let changed = done.map_err(|errno| relayout_failure(any, errno))?;
        let what = match (changed, goal) {
            (true, _) if attr.size == 0 => "gets its first byte on another node now".to_owned(),
            (false, _) if attr.size == 0 => "has no bytes: nothing to do".to_owned(),
            (false, _) => "has this layout already".to_owned(),
            (true, RelayoutGoal::Whole(_)) => {
                format!("is whole now, {}", term::format_size(attr.size))
            }
            (true, RelayoutGoal::Striped { nodes, unit, .. }) => {
                let (size, unit) = (term::format_size(attr.size), term::format_size(*unit));
                format!("is in stripes of {unit} on {} nodes now, {size}", nodes.len())
            }
        };
        self.report_result(any, Some(attr.size), changed, &what)
    }

    fn report_result(
        &mut self,
        any: &AnyPath,
        size: Option<u64>,
        changed: bool,
        what: &str,
    ) -> CommandResult {
        if let Some(notes) = &self.notes {
            notes.record_file(changed);
        } else if self.args.json {
            let path = NameFields::new("path", any.to_bytes());
            self.reported.push(RelayoutReport { path, size, changed, error: None });
        } else {
            let title = self.out.paint_text(HEAD, &any.to_string());
            writeln!(self.out, "{title}: {what}")?;
            self.out.flush()?;
        }
        Ok(())
    }

    /// Records a failure. A usage error ends the run; other failures affect one file.
    fn record_failure(&mut self, any: &AnyPath, failure: CommandFailure) -> CommandResult {
        if failure.exit == crate::error::ExitStatus::Usage {
            return Err(failure);
        }
        self.notes.iter().for_each(|notes| notes.record_failure(&failure));
        let error = Some(failure.what.clone());
        let path = NameFields::new("path", any.to_bytes());
        self.reported.push(RelayoutReport { path, size: None, changed: false, error });
        self.failures.push(failure);
        Ok(())
    }
}

impl RelayoutArgs {
    /// Checks the options that belong to `--to policy` alone, and those that do not.
    fn check_policy_form(&self) -> CommandResult {
        let by_policy = self.to == Some(RelayoutForm::Policy);
        if !by_policy && self.pace != PaceArgs::default() {
            return Err(CommandFailure::usage("--rate and --dry-run belong to --to policy"));
        }
        if by_policy && !(self.on.is_empty() && self.from.is_empty() && self.stripe.is_none()) {
            let what = "the policies of the directory choose the place of a file";
            return Err(CommandFailure::usage(what).try_this("--to policy without --on or --from"));
        }
        Ok(())
    }

    /// Returns the new form of a file that stays on its nodes.
    fn form(&self) -> RelayoutForm {
        self.to.unwrap_or(RelayoutForm::Whole)
    }
}

/// Moves files to where the policies of their directories want them.
fn move_by_policy(args: &RelayoutArgs, notes: Option<&RelayoutNoteFile>) -> CommandResult {
    let pace = MovePace::new(&args.pace, args.threads);
    let (mut sum, mut failures) = (PolicyMoveReport::default(), Vec::new());
    let mut sessions = VolumeSessions::new(&args.at);
    for any in &args.paths {
        let FoundPath { tree, path, .. } = sessions.find_path(any)?;
        let mover = PolicyMover::new(&tree, &pace, &args.pace, WRITER_WAIT, notes);
        // The directory of a link says nothing about the file.
        let found = tree.stat(&path, false);
        match found.map_err(|e| any.operation_failure("cannot look at", e)) {
            Ok(attr) if attr.kind == InodeKind::File => mover.move_file(&path, &attr)?,
            Ok(attr) if attr.kind == InodeKind::Dir && args.recursive => {
                mover.move_tree(&path, &|_, _, policies| Ok(policies));
            }
            Ok(attr) if attr.kind == InodeKind::Dir => {
                let what = format!("{any} is a directory");
                let failure = CommandFailure::usage(what);
                return Err(failure.try_this("with all files below it: -r"));
            }
            Ok(_) => failures.push(CommandFailure::new(format!("{any} is no file"))),
            Err(failure) => failures.push(failure),
        }
        let (report, failure) = mover.finish()?;
        sum.add(report);
        failures.extend(failure);
    }
    if let Some(notes) = notes {
        notes.mark_ended();
    } else {
        let mut out = TermOutput::new();
        sum.print(&mut out, args.json)?;
        out.flush()?;
    }
    let last = failures.pop();
    failures.iter().for_each(|failure| term::print_error(&failure.report()));
    last.map_or(Ok(()), Err)
}

/// Translates the arguments into a plan with the nodes of this volume.
fn parse_plan(
    args: &RelayoutArgs,
    volume: &VolumeFile,
    tree: &VolumeTree,
) -> CommandResult<RelayoutPlan> {
    let find = |which: &String| {
        let fits = |node: &&tatami_cluster::NodeEntry| {
            node.name == *which || node.id.to_string() == *which
        };
        volume.nodes.iter().find(fits).map(|node| NodeId(node.id)).ok_or_else(|| {
            let names: Vec<&str> = volume.nodes.iter().map(|node| node.name.as_str()).collect();
            CommandFailure::usage(format!("there is no node {which:?}"))
                .try_this(format!("one of: {}", names.join(", ")))
        })
    };
    if let Some(unit) = args.stripe.filter(|unit| *unit < STRIPE_MIN) {
        let what = format!("stripes of {unit} bytes are too short");
        return Err(CommandFailure::usage(what).try_this("at least --stripe 4k"));
    }
    let nodes = args.on.iter().map(find).collect::<CommandResult<Vec<_>>>()?;
    let from = args.from.iter().map(find).collect::<CommandResult<Vec<_>>>()?;
    if from.is_empty() {
        return Ok(RelayoutPlan::Same(parse_goal(args, volume, nodes)?));
    }
    if args.to.is_some() {
        parse_goal(args, volume, nodes.clone())?;
    }
    Ok(RelayoutPlan::Away(Evacuation::plan(tree.client(), volume, from, &nodes)?))
}

fn parse_goal(
    args: &RelayoutArgs,
    volume: &VolumeFile,
    nodes: Vec<NodeId>,
) -> CommandResult<RelayoutGoal> {
    let (unit, base) = (args.stripe.unwrap_or(STRIPE), None);
    match (args.form(), &nodes[..]) {
        (RelayoutForm::Whole, []) => Ok(RelayoutGoal::Whole(None)),
        (RelayoutForm::Whole, [node]) => Ok(RelayoutGoal::Whole(Some(*node))),
        (RelayoutForm::Whole, _) => Err(CommandFailure::usage("a whole file lies on one node")
            .try_this("over several: --to striped --on …")),
        (RelayoutForm::Striped, []) => {
            let serving = volume.nodes.iter().filter(|node| !node.leaving);
            let nodes = serving.map(|node| NodeId(node.id)).collect();
            Ok(RelayoutGoal::Striped { nodes, unit, base })
        }
        (RelayoutForm::Striped, _) => Ok(RelayoutGoal::Striped { nodes, unit, base }),
        (RelayoutForm::Container | RelayoutForm::Policy, _) => {
            Err(CommandFailure::usage("a container is a directory on a mount")
                .try_this("name it by a path on a mount, not by one that begins with a colon"))
        }
    }
}

/// Copies a file to its new layout, with `threads` threads. Returns false if it had that layout
/// already.
fn copy_to_layout(
    tree: &VolumeTree,
    goal: &RelayoutGoal,
    any: &AnyPath,
    attr: &Attr,
    threads: usize,
    notes: Option<&RelayoutNoteFile>,
) -> Result<bool, Errno> {
    let mut attempt = 1;
    loop {
        let Some(work) =
            Relayout::begin(tree.client(), &current_cred(), attr.ino, goal, WRITER_WAIT)?
        else {
            return Ok(false);
        };
        let bar = term::byte_bar(work.size()).with_message(any.to_string());
        notes.iter().for_each(|notes| notes.begin_file(&any.to_bytes(), work.size()));
        let step = |bytes| {
            bar.inc(bytes);
            notes.iter().for_each(|notes| notes.add_copied(bytes));
        };
        let copied = std::thread::scope(|scope| {
            let copy = || work.copy_chunks(&step);
            let all: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(copy)).collect();
            let join =
                |one: std::thread::ScopedJoinHandle<'_, _>| one.join().unwrap_or(Err(Errno::EIO));
            all.into_iter().map(join).fold(Ok(()), Result::and)
        });
        bar.finish_and_clear();
        match copied.and_then(|()| work.commit_layout()) {
            Err(Errno::EBUSY) if attempt < ATTEMPTS => attempt += 1,
            done => return done.map(|_| true),
        }
    }
}

fn relayout_failure(any: &AnyPath, errno: Errno) -> CommandFailure {
    let failure = any.operation_failure("cannot relayout", errno);
    match errno {
        Errno::EBUSY => failure
            .because(
                "a program has it open for writing, or opened it meanwhile; the file is unchanged",
            )
            .try_this("repeat the command when the program has closed the file"),
        Errno::EOPNOTSUPP => failure
            .because("it keeps earlier versions, which a striped file cannot; it is unchanged")
            .try_this(format!("tatami cp {any} COPY, and relayout the copy")),
        Errno::ENOSPC => failure.because("there is no room for the copy; the file is unchanged"),
        _ => failure,
    }
}
