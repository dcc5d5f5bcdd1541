//! `tatami node`: commands on single daemons.

use crate::daemon::{self, RunArgs};
use crate::daemon_files;
use crate::error::{CommandFailure, CommandResult};
use crate::hosts_add;
use crate::hosts_down;
use crate::hosts_files;
use crate::node_owner::{self, ChownArgs};
use crate::node_remove::{self, RemoveArgs};
use crate::own_address;
use crate::rebalance_cmd::{self, AddArgs, DrainArgs, RebalanceArgs};
use crate::status;
use crate::term::{self, BAD, DIM, GOOD, TermOutput, TextTable};
use crate::volume_dir::{AdminCallError, VolumeArgs, VolumeDir};
use anstyle::Style;
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::Write;
use tatami_cluster::{NodeEntry, VolumeFile};
use tatami_hosts::host_protocol::HostOrder;
use tatami_wire::Errno;
use tatami_wire::admin::AdminCall;

/// `tatami node`
#[derive(Debug, clap::Subcommand)]
pub enum NodeCommand {
    /// Run the daemon of one node in the foreground
    #[command(after_help = "\
Examples:
  tatami node run --node-dir /var/lib/tatami/node0
  tatami node run --node node2 --volume-file /etc/tatami/volume.toml \\
      --key-file /etc/tatami/key --node-dir /scratch/tatami

`tatami up` does this for every node of this machine, in the background.
The daemon ends at SIGTERM, SIGINT or `tatami node stop`, and syncs first.")]
    Run(Box<RunArgs>),
    /// List the nodes of the volume
    #[command(after_help = "Examples:\n  tatami node list\n  tatami node list --json")]
    List(ListArgs),
    /// Start the daemons of some nodes
    #[command(after_help = "\
Examples:
  tatami node start 1
  tatami node start node1 node2
  tatami node start --empty node1          its data directory is lost for good
  tatami node start --accept-loss node1    its metadata are damaged, and there is no copy")]
    Start(StartArgs),
    /// Stop the daemons of some nodes; mounts wait for them
    #[command(after_help = "Examples:\n  tatami node stop 1\n  tatami node stop --force node1")]
    Stop(StopArgs),
    /// Add nodes to the volume, and move shards of the namespace to them
    #[command(after_help = "\
Examples:
  tatami node add
  tatami node add --nodes 2
  tatami node add --executors 4    from now on, all nodes serve names with four threads
  tatami node add --address host2:7400 --node-dir /scratch/tatami
  tatami node add node17 node18    one node on each of these hosts, by ssh

Shards move while the volume is in use. A request to a moving shard waits for a fraction
of a second. To continue after an interruption: tatami node rebalance NODE")]
    Add(AddArgs),
    /// Move the namespace away from some nodes
    #[command(after_help = "\
Examples:
  tatami node drain 3
  tatami node drain node2 node3

Bytes of files stay on their node, so its daemon must keep running. The command prints how
many there are at its end. After an interruption, repeat the command: it continues.")]
    Drain(DrainArgs),
    /// Distribute the namespace evenly over the nodes that have a part of it, and those named
    #[command(after_help = "\
Examples:
  tatami node rebalance
  tatami node rebalance node2 node3
  tatami node rebalance --executors 4    each node serves it with four threads
  tatami node rebalance --executors 1    and with one again")]
    Rebalance(RebalanceArgs),
    /// Take an emptied node out of the volume for good
    #[command(after_help = "\
Examples:
  tatami node drain node3               its names go to the other nodes
  tatami relayout -r --from node3 :/    and so do its files
  tatami node remove node3

The command ends the mount and the daemon of the node, and removes its directory. From its
start on the node gets no new files. After an interruption, repeat the command: it continues.")]
    Remove(RemoveArgs),
    /// Let another user run the daemons of this machine, as its system service does
    #[command(after_help = "\
Examples:
  tatami node chown tatami          tatami-node@NAME.service calls this before each start
  tatami node chown root node0      and back

Only the superuser may do this, while the daemon does not run. It changes the owner of the data
directory and of all files in it, which takes a while for many files.")]
    Chown(ChownArgs),
    /// Acknowledge that a node lost its data directory and began empty
    #[command(after_help = "\
Examples:
  tatami fsck --lost                which files have lost bytes
  tatami node forget --lost node1   acknowledge it: the status is healthy again

Files that have lost bytes stay as they are: reading the lost bytes fails.")]
    Forget(ForgetArgs),
}

/// `tatami node list`
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The nodes on the command line.
#[derive(Debug, clap::Args)]
pub struct NodesArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Nodes by number or name
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
}

/// `tatami node start`
#[derive(Debug, clap::Args)]
pub struct StartArgs {
    #[command(flatten)]
    which: NodesArgs,
    /// Start with an empty data directory, if the old one is lost for good
    #[arg(long)]
    empty: bool,
    /// If metadata are damaged, continue with the readable records; acknowledged changes are lost.
    /// The damaged files are kept beside the new ones, as NAME.cut
    #[arg(long)]
    accept_loss: bool,
}

/// `tatami node forget`
#[derive(Debug, clap::Args)]
pub struct ForgetArgs {
    #[command(flatten)]
    which: NodesArgs,
    /// Acknowledge the loss of its data
    #[arg(long, required = true)]
    lost: bool,
}

/// `tatami node stop`
#[derive(Debug, clap::Args)]
pub struct StopArgs {
    #[command(flatten)]
    which: NodesArgs,
    /// Kill a daemon that does not end by itself
    #[arg(long)]
    force: bool,
}

/// Runs a subcommand of `tatami node`.
///
/// # Errors
/// Those of the subcommand.
pub fn run(command: &NodeCommand) -> CommandResult {
    match command {
        NodeCommand::Run(args) => daemon::run_daemon(args),
        NodeCommand::List(args) => list_nodes(args),
        NodeCommand::Start(args) => start_nodes(args),
        NodeCommand::Stop(args) => stop_nodes(args),
        NodeCommand::Add(args) if !args.hosts.is_empty() => {
            hosts_add::add_hosts(args).and_then(|()| spread_volume(&args.at))
        }
        NodeCommand::Add(args) => rebalance_cmd::add_nodes(args),
        NodeCommand::Drain(args) => {
            rebalance_cmd::drain_nodes(args).and_then(|()| spread_volume(&args.at))
        }
        NodeCommand::Rebalance(args) => {
            rebalance_cmd::rebalance_shards(args).and_then(|()| spread_volume(&args.at))
        }
        NodeCommand::Remove(args) => node_remove::remove_node(args),
        NodeCommand::Chown(args) => node_owner::change_owner(args),
        NodeCommand::Forget(args) => forget_loss(args),
    }
}

/// Writes the changed volume file to the other hosts of a volume that was started on hosts.
fn spread_volume(at: &VolumeArgs) -> CommandResult {
    hosts_files::spread_files(&at.open()?)
}

#[derive(Serialize)]
struct ListedNode {
    node: u16,
    name: String,
    address: String,
    socket: String,
    dir: String,
    /// Number of its shards.
    shards: usize,
    /// Its shards, as the first and the last one of each run: a volume has thousands.
    shard_ranges: Vec<(usize, usize)>,
    /// Its executors that have shards.
    executors: usize,
    /// The process of its daemon, on the node's machine.
    pid: Option<i32>,
    #[serde(skip)]
    is_here: bool,
}

/// Position of the optional column for executors: behind the shards.
const EXECUTORS_COLUMN: usize = 4;

/// Returns the first and the last of each run of consecutive numbers.
fn find_ranges(numbers: &[usize]) -> Vec<(usize, usize)> {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    runs.filter_map(|run| Some((*run.first()?, *run.last()?))).collect()
}

/// Formats ranges for people: `0-3,7`.
fn format_ranges(ranges: &[(usize, usize)]) -> String {
    let run = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let runs: Vec<_> = ranges.iter().map(run).collect();
    if runs.is_empty() { "-".into() } else { runs.join(",") }
}

/// The process of a daemon that answers.
type NodePid = Option<i32>;

/// Asks the daemons for their processes, if some are on other machines.
fn ask_pids(place: &VolumeDir, volume: &VolumeFile) -> Vec<Option<NodePid>> {
    if volume.nodes.iter().all(|entry| place.is_here(entry)) {
        return vec![None; volume.nodes.len()];
    }
    let pid = |pid: u32| i32::try_from(pid).ok();
    let answers = status::ask_all_nodes(place, volume).into_iter();
    answers.map(|answer| Some(answer.ok().and_then(|answer| pid(answer.status.pid)))).collect()
}

fn list_nodes(args: &ListArgs) -> CommandResult {
    let place = args.at.open()?;
    crate::log::start_logging(&place.config, false)?;
    let volume = place.load_volume()?;
    let find_pid = |n: &NodeEntry, answer: Option<NodePid>| match place.is_here(n) {
        true => daemon_files::running_daemon(n).map(|r| r.pid),
        false => answer.flatten(),
    };
    let listed: Vec<ListedNode> = volume
        .nodes
        .iter()
        .zip(ask_pids(&place, &volume))
        .map(|(n, answer)| {
            let of_node = || volume.shards.iter().enumerate().filter(|(_, e)| e.node.0 == n.id);
            let shards: Vec<usize> = of_node().map(|(shard, _)| shard).collect();
            ListedNode {
                node: n.id,
                name: n.name.clone(),
                address: n.address.clone(),
                socket: n.socket.display().to_string(),
                dir: n.dir.display().to_string(),
                shards: shards.len(),
                shard_ranges: find_ranges(&shards),
                executors: of_node().map(|(_, e)| e).collect::<BTreeSet<_>>().len(),
                pid: find_pid(n, answer),
                is_here: place.is_here(n),
            }
        })
        .collect();
    let mut out = TermOutput::new();
    if args.json {
        out.write_json(&serde_json::json!({ "volume": volume.name, "nodes": listed }))?;
        return Ok(());
    }
    let several = listed.iter().any(|node| node.executors > 1);
    let mut heads = vec!["NODE", "ADDRESS", "DIRECTORY", "SHARDS", "PROCESS"];
    if several {
        heads.insert(EXECUTORS_COLUMN, ">EXECUTORS");
    }
    let mut table = TextTable::new(&heads);
    for node in listed {
        let plain = Style::new();
        let (process, style) = match node.pid {
            Some(pid) => (pid.to_string(), GOOD),
            None => (if node.is_here { "not running" } else { "no answer" }.to_owned(), BAD),
        };
        let mut cells = vec![
            (node.name, plain),
            (node.address, plain),
            (node.dir, DIM),
            (format_ranges(&node.shard_ranges), plain),
            (process, style),
        ];
        if several {
            cells.insert(EXECUTORS_COLUMN, (node.executors.to_string(), plain));
        }
        table.add_cells(cells);
    }
    out.write_table(&table)?;
    out.flush()?;
    Ok(())
}

fn forget_loss(args: &ForgetArgs) -> CommandResult {
    let place = args.which.at.open()?;
    crate::log::start_logging(&place.config, false)?;
    let volume = place.load_volume()?;
    let mut out = TermOutput::new();
    for which in &args.which.nodes {
        let entry = place.find_node(&volume, which)?;
        place.send_admin(&volume, entry, &AdminCall::DismissLoss).map_err(|e| {
            if matches!(e, AdminCallError::Errno(Errno::EPERM)) {
                return place.owner_failure(format!("not permitted: {}", entry.name));
            }
            CommandFailure::degraded(format!("{} did not receive the request", entry.name))
                .because(e)
                .try_this(format!("its daemon must run: tatami status{}", place.dir_flag()))
        })?;
        writeln!(out, "{}: its loss is acknowledged", entry.name)?;
    }
    out.flush()?;
    Ok(())
}

fn start_nodes(args: &StartArgs) -> CommandResult {
    let place = args.which.at.open()?;
    crate::log::start_logging(&place.config, false)?;
    let volume = place.load_volume()?;
    let (here, elsewhere) = args.which.split_nodes(&place, &volume)?;
    if let Some(entry) = elsewhere.first().filter(|_| args.empty || args.accept_loss) {
        let what = format!("{} is on another machine, {}", entry.name, entry.address);
        return Err(CommandFailure::usage(what).try_this(
            "--empty and --accept-loss work on the machine of the node: run this there",
        ));
    }
    let mut out = TermOutput::new();
    for entry in elsewhere {
        let nodes = vec![entry.id];
        match hosts_down::order_node(&place, &volume, entry, HostOrder::StartNodes { nodes })? {
            true => writeln!(out, "{} runs", entry.name)?,
            false => writeln!(out, "{} runs already", entry.name)?,
        }
    }
    if here.is_empty() {
        out.flush()?;
        return Ok(());
    }
    let _lock = place.lock()?;
    for entry in &here {
        if daemon::is_answering(&place, &volume, entry)? {
            writeln!(out, "{} runs already", entry.name)?;
            if let Some(now) = own_address::find_new_address(&place, &volume, entry) {
                let name = &entry.name;
                term::print_note(&format!(
                    "{name} listens at {}, and would be at {now} now: tatami node stop {name}; \
                     tatami node start {name}",
                    entry.address
                ));
            }
            continue;
        }
        if args.empty {
            daemon::allow_empty_start(&place, &volume, entry)?;
        }
        let starting = daemon::start_daemon(&place, entry)?;
        let pid = starting.pid();
        starting.wait_ready()?;
        daemon::record_in_use(&place, entry)?;
        place.record_nodes_here(&volume, [entry.id])?;
        writeln!(out, "{} runs (process {pid})", entry.name)?;
    }
    out.flush()?;
    // A daemon has written the new address of this machine.
    if place.load_volume()?.epoch > volume.epoch {
        hosts_files::spread_files(&place)?;
    }
    let damage = daemon::resolve_damage(&place, &volume, here, args.accept_loss)?;
    damage.map_or(Ok(()), Err)
}

fn stop_nodes(args: &StopArgs) -> CommandResult {
    let place = args.which.at.open()?;
    crate::log::start_logging(&place.config, false)?;
    let volume = place.load_volume()?;
    let (here, elsewhere) = args.which.split_nodes(&place, &volume)?;
    let mut out = TermOutput::new();
    let mut report = |entry: &NodeEntry, ran: bool| match ran {
        true => writeln!(out, "{} is stopped", entry.name),
        false => writeln!(out, "{} did not run", entry.name),
    };
    for entry in elsewhere {
        let order = HostOrder::StopNodes { nodes: vec![entry.id], force: args.force };
        report(entry, hosts_down::order_node(&place, &volume, entry, order)?)?;
    }
    let _lock = if here.is_empty() { None } else { Some(place.lock()?) };
    for entry in here {
        report(entry, daemon::stop_daemon(&place, &volume, entry, args.force)?)?;
    }
    out.flush()?;
    Ok(())
}

impl NodesArgs {
    /// Returns the entries of the named nodes: those of this machine, and those of others.
    fn split_nodes<'a>(
        &self,
        place: &VolumeDir,
        volume: &'a VolumeFile,
    ) -> CommandResult<(Vec<&'a NodeEntry>, Vec<&'a NodeEntry>)> {
        let found = self.nodes.iter().map(|which| place.find_node(volume, which));
        let found: Vec<_> = found.collect::<CommandResult<_>>()?;
        Ok(found.into_iter().partition(|entry| place.may_start_here(entry)))
    }
}

/// Returns the rank of this process, for `--node rank`: from the environment variables that MPI
/// launchers and Slurm set.
///
/// # Errors
/// None of these variables is set.
pub fn job_rank() -> CommandResult<usize> {
    const VARIABLES: [&str; 5] =
        ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID"];
    VARIABLES.iter().find_map(|name| std::env::var(name).ok()?.parse().ok()).ok_or_else(|| {
        CommandFailure::usage("--node rank: this process is not part of a parallel job")
            .because(format!("none of {} is set", VARIABLES.join(", ")))
            .try_this("start it with mpirun or srun, or name a node: --node 0")
    })
}
