//! `tatami relayout`: makes files of the volume whole or striped, and converts containers and
//! ordinary files into each other.

use crate::background::{self, Notes};
use crate::container_cmd;
use crate::error::{Failure, Outcome};
use crate::place::At;
use crate::session::{Found, Sessions, is_on_mount};
use crate::term::{self, HEAD, Out};
use crate::volume_path::{AnyPath, cred};
use clap::ValueEnum;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use tatami_client::relayout::{Goal, Relayout};
use tatami_client::tree::{Tree, join};
use tatami_cluster::VolumeFile;
use tatami_wire::{Attr, Errno, Kind, NodeId};

/// Attempts to copy a file that a program opened for writing meanwhile.
const ATTEMPTS: usize = 3;
/// How long the command waits for a program that has the file open for writing.
const PATIENCE: Duration = Duration::from_secs(5);
/// Shortest stripe, in bytes: the page of a disk.
const STRIPE_MIN: u64 = 4096;

/// `tatami relayout`
#[derive(Debug, clap::Args)]
pub struct RelayoutArgs {
    #[command(flatten)]
    at: At,
    /// The new layout
    #[arg(long, value_enum, default_value = "whole")]
    to: Target,
    /// Nodes of the stripes, by number or name [default: all], or the node of the whole file
    /// [default: the one with its base]
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    nodes: Vec<String>,
    /// Bytes of a stripe, such as 64k or 4m
    #[arg(long, value_name = "SIZE", default_value = "1m",
          value_parser = tatami_bench::size::parse)]
    stripe: u64,
    /// Also all files below directories
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// Threads that copy [default: the number of processors]
    #[arg(short, long, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Continue in the background; --status shows the progress
    #[arg(long, conflicts_with_all = ["json", "status"])]
    background: bool,
    /// Show background relayouts: their progress, and the results of the last 24 hours
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
enum Target {
    /// One object on one node, or one ordinary file
    Whole,
    /// Stripes on several nodes in turn, so that all of them serve each read and write
    Striped,
    /// A directory in which each process of a job writes a file of its own
    Container,
}

#[derive(Serialize)]
struct Told {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    changed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The settings of this run, and its results.
struct Work<'a> {
    args: &'a RelayoutArgs,
    threads: usize,
    out: Out,
    told: Vec<Told>,
    failures: Vec<Failure>,
    notes: Option<Notes>,
}

/// Re-lays out files.
///
/// # Errors
/// Those of single files, after all others are done.
pub fn run(args: &RelayoutArgs) -> Outcome {
    if args.status {
        return background::status(args.json);
    }
    if args.background {
        let process = background::start()?;
        let mut out = Out::new();
        writeln!(
            out,
            "process {process} continues in the background; its progress: tatami relayout --status"
        )?;
        out.flush()?;
        return Ok(());
    }
    let begin =
        |path: &PathBuf| Notes::begin(path, args.paths.iter().map(ToString::to_string).collect());
    let notes = args.report.as_ref().map(begin).transpose()?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.map_or(processors, usize::from);
    let (out, told, failures) = (Out::new(), Vec::new(), Vec::new());
    let mut work = Work { args, threads, out, told, failures, notes };
    let mut sessions = Sessions::new(&args.at);
    for any in &args.paths {
        if let Err(failure) = work.path(&mut sessions, any)
            && let Err(failure) = work.fail(any.to_string(), failure)
        {
            work.notes.iter().for_each(|notes| notes.failed(&failure));
            return Err(failure);
        }
    }
    let Work { mut out, told, mut failures, notes, .. } = work;
    notes.iter().for_each(Notes::end);
    if args.json {
        out.json(&serde_json::json!({ "files": told }))?;
    }
    out.flush()?;
    let last = failures.pop();
    failures.iter().for_each(|failure| term::complain(&failure.report()));
    last.map_or(Ok(()), Err)
}

impl Work<'_> {
    fn path(&mut self, sessions: &mut Sessions<'_>, any: &AnyPath) -> Outcome {
        if let AnyPath::Local(path) = any
            && (!is_on_mount(path)
                || self.args.to == Target::Container
                || tatami_tiled::is_container(path))
        {
            let done = match self.args.to {
                Target::Container => container_cmd::to_container(path)?.to_owned(),
                Target::Whole => container_cmd::to_whole(path, self.threads)?,
                Target::Striped => {
                    let what = format!(
                        "{any} is not on a mount of Tatami: there are no nodes for stripes"
                    );
                    return Err(Failure::usage(what));
                }
            };
            let changed = !done.contains("already");
            let size = std::fs::metadata(path).ok().filter(|m| m.is_file()).map(|m| m.len());
            return self.tell(any.to_string(), size, changed, &done);
        }
        let Found { tree, volume, path } = sessions.find(any)?;
        let goal = goal(self.args, &volume)?;
        let attr = tree.stat(&path, true).map_err(|e| any.failed("cannot look at", e))?;
        match attr.kind {
            Kind::File => self.file(&tree, &goal, any.to_string(), &attr),
            Kind::Dir if self.args.recursive => self.below(&tree, &goal, &path),
            Kind::Dir => {
                let what = format!("{any} is a directory");
                Err(Failure::usage(what).try_this("with all files below it: -r"))
            }
            _ => Err(Failure::new(format!("{any} is a special file: it has no bytes"))),
        }
    }

    fn below(&mut self, tree: &Tree, goal: &Goal, path: &[u8]) -> Outcome {
        let mut todo = vec![path.to_vec()];
        while let Some(path) = todo.pop() {
            let entries = match tree.read_dir(&path, true) {
                Ok(entries) => entries,
                Err(Errno::ENOENT) => continue, // removed meanwhile
                Err(e) => return Err(AnyPath::Volume(path).failed("cannot list", e)),
            };
            for entry in entries {
                let path = join(&path, &entry.name);
                let shown = AnyPath::Volume(path.clone()).to_string();
                match (entry.kind, entry.attr) {
                    (Kind::Dir, _) => todo.push(path),
                    (Kind::File, Some(attr)) => {
                        if let Err(failure) = self.file(tree, goal, shown.clone(), &attr) {
                            self.fail(shown, failure)?;
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, tree: &Tree, goal: &Goal, shown: String, attr: &Attr) -> Outcome {
        let done = relayout(tree, goal, &shown, attr, self.threads, self.notes.as_ref());
        let changed = done.map_err(|errno| failed(&shown, errno))?;
        let what = match (changed, goal) {
            _ if attr.size == 0 => "has no bytes: nothing to do".to_owned(),
            (false, _) => "has this layout already".to_owned(),
            (true, Goal::Whole(_)) => format!("is whole now, {}", term::size(attr.size)),
            (true, Goal::Striped { nodes, unit }) => {
                let (size, unit) = (term::size(attr.size), term::size(*unit));
                format!("is in stripes of {unit} on {} nodes now, {size}", nodes.len())
            }
        };
        self.tell(shown, Some(attr.size), changed, &what)
    }

    fn tell(&mut self, path: String, size: Option<u64>, changed: bool, what: &str) -> Outcome {
        if let Some(notes) = &self.notes {
            notes.done(changed);
        } else if self.args.json {
            self.told.push(Told { path, size, changed, error: None });
        } else {
            let title = self.out.paint(HEAD, &path);
            writeln!(self.out, "{title}: {what}")?;
            self.out.flush()?;
        }
        Ok(())
    }

    /// Records a failure. A usage error ends the run; other failures affect one file.
    fn fail(&mut self, path: String, failure: Failure) -> Outcome {
        if failure.exit == crate::error::Exit::Usage {
            return Err(failure);
        }
        self.notes.iter().for_each(|notes| notes.failed(&failure));
        let error = Some(failure.what.clone());
        self.told.push(Told { path, size: None, changed: false, error });
        self.failures.push(failure);
        Ok(())
    }
}

/// Translates the arguments into a goal with the nodes of this volume.
fn goal(args: &RelayoutArgs, volume: &VolumeFile) -> Outcome<Goal> {
    let find = |which: &String| {
        let fits = |node: &&tatami_cluster::NodeEntry| {
            node.name == *which || node.id.to_string() == *which
        };
        volume.nodes.iter().find(fits).map(|node| NodeId(node.id)).ok_or_else(|| {
            let names: Vec<&str> = volume.nodes.iter().map(|node| node.name.as_str()).collect();
            Failure::usage(format!("there is no node {which:?}"))
                .try_this(format!("one of: {}", names.join(", ")))
        })
    };
    let nodes = args.nodes.iter().map(find).collect::<Outcome<Vec<_>>>()?;
    match (args.to, &nodes[..]) {
        (Target::Whole, []) => Ok(Goal::Whole(None)),
        (Target::Whole, [node]) => Ok(Goal::Whole(Some(*node))),
        (Target::Whole, _) => Err(Failure::usage("a whole file lies on one node")
            .try_this("over several: --to striped --nodes …")),
        (Target::Striped, _) if args.stripe < STRIPE_MIN => {
            let what = format!("stripes of {} bytes are too short", args.stripe);
            Err(Failure::usage(what).try_this("at least --stripe 4k"))
        }
        (Target::Striped, []) => {
            let nodes = volume.nodes.iter().map(|node| NodeId(node.id)).collect();
            Ok(Goal::Striped { nodes, unit: args.stripe })
        }
        (Target::Striped, _) => Ok(Goal::Striped { nodes, unit: args.stripe }),
        (Target::Container, _) => Err(Failure::usage("a container is a directory on a mount")
            .try_this("name it by a path on a mount, not by one that begins with a colon")),
    }
}

/// Copies a file to its new layout, with `threads` threads. Returns false if it had that layout
/// already.
fn relayout(
    tree: &Tree,
    goal: &Goal,
    shown: &str,
    attr: &Attr,
    threads: usize,
    notes: Option<&Notes>,
) -> Result<bool, Errno> {
    let mut attempt = 1;
    loop {
        let Some(work) = Relayout::begin(tree.client(), &cred(), attr.ino, goal, PATIENCE)? else {
            return Ok(false);
        };
        let bar = term::byte_bar(work.size()).with_message(shown.to_owned());
        notes.iter().for_each(|notes| notes.file(shown, work.size()));
        let step = |bytes| {
            bar.inc(bytes);
            notes.iter().for_each(|notes| notes.copied(bytes));
        };
        let copied = std::thread::scope(|scope| {
            let copy = || work.copy(&step);
            let all: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(copy)).collect();
            let join =
                |one: std::thread::ScopedJoinHandle<'_, _>| one.join().unwrap_or(Err(Errno::EIO));
            all.into_iter().map(join).fold(Ok(()), Result::and)
        });
        bar.finish_and_clear();
        match copied.and_then(|()| work.finish()) {
            Err(Errno::EBUSY) if attempt < ATTEMPTS => attempt += 1,
            done => return done.map(|_| true),
        }
    }
}

fn failed(shown: &str, errno: Errno) -> Failure {
    let failure = crate::volume_path::failed(&format!("cannot relayout {shown}"), errno);
    match errno {
        Errno::EBUSY => failure
            .because(
                "a program has it open for writing, or opened it meanwhile; the file is unchanged",
            )
            .try_this("repeat the command when the program has closed the file"),
        Errno::ENOSPC => failure.because("there is no room for the copy; the file is unchanged"),
        _ => failure,
    }
}
