//! The `tatami` command, for people at a terminal and for scripts. It parses arguments, calls the
//! libraries and prints. The logic of the file system is in the libraries.

mod absence;
mod archive_input;
mod args;
mod background;
mod bench_cmd;
mod certificates;
mod clock_offset;
mod completion;
mod config;
mod config_cmd;
mod connect;
mod container_cmd;
mod copy;
mod copy_job;
mod copy_large;
mod copy_parts;
mod copy_queue;
mod copy_steps;
mod copy_stream;
mod copy_trees;
mod daemon;
mod daemon_files;
mod dir_cmd;
mod down;
mod elf;
mod erase_node;
mod error;
mod evacuation;
mod exec;
mod files;
mod fsck_cmd;
mod gateway_cmd;
mod gateway_launch;
mod host_args;
mod host_group;
mod host_serve;
mod hosts_add;
mod hosts_down;
mod hosts_files;
mod hosts_up;
mod import;
mod interfaces;
mod interrupt;
mod job_cmd;
mod job_keeper;
mod job_options;
mod job_remains;
mod json;
mod keeper_note;
mod keys;
mod leased_input;
mod listing;
mod log;
mod lost_files;
mod made_files;
mod manual;
mod mount_cmd;
mod mount_helper;
mod mountpoints;
mod mounts;
mod move_cmd;
mod move_pace;
mod mpi_cmd;
mod node_cmd;
mod node_owner;
mod node_remove;
mod offline;
mod own_address;
mod part_files;
mod policy_cmd;
mod policy_mover;
mod ports;
mod process;
mod rebalance_cmd;
mod recover_cmd;
mod relay_cmd;
mod relayout_cmd;
mod replace_file;
mod root_dir;
mod run_cmd;
mod session;
mod shard_plan;
mod site_mounts;
mod site_tree;
mod site_usage;
mod ssh_session;
mod start_process;
mod started_parts;
mod status;
mod stopping;
mod sync_cmd;
mod term;
mod unpack_batch;
mod unpack_dirs;
mod untar_cmd;
mod untar_job;
mod up;
mod up_token;
mod usage_cmd;
mod user_name;
mod users;
mod versions_cmd;
mod volume_cmd;
mod volume_dir;
mod volume_layout;
mod volume_path;
mod wait_display;
mod where_cmd;

use args::{Cli, CliCommand};
use clap::{CommandFactory, Parser};
use error::{CommandResult, ExitStatus};
use std::process::ExitCode;
use tatami_cluster::mountinfo;

/// A request allocates and frees a dozen small pieces of memory, in the daemon, in a mount and in a
/// command. This allocator reuses the piece that was freed last, which is still in the CPU's cache,
/// even if others share the cache.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    if let Some(role) = mount_helper::HelperRole::of_this_process() {
        return mount_helper::run_as(role);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Clap returns help and version as "errors" that go to standard output.
            let code = if error.use_stderr() { ExitStatus::Usage.code() } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    match run(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // A command that has printed its result already returns an empty text.
            if !failure.what.is_empty() {
                term::print_error(&failure.report());
            }
            ExitCode::from(failure.exit.code())
        }
    }
}

fn run(command: &CliCommand) -> CommandResult {
    match command {
        CliCommand::Up(args) => up::run(args),
        CliCommand::Down(args) => down::run(args),
        CliCommand::Status(args) => status::run(args),
        CliCommand::Node { command } => node_cmd::run(command),
        CliCommand::Volume { command } => volume_cmd::run(command),
        CliCommand::Mount(args) => site_mounts::mount_source(args),
        CliCommand::Umount(args) => mount_cmd::unmount_paths(args),
        CliCommand::Where(args) => where_cmd::run(args),
        CliCommand::Set(args) => policy_cmd::set_policies(args),
        CliCommand::Get(args) => policy_cmd::get_policies(args),
        CliCommand::Versions(args) => versions_cmd::print_versions(args),
        CliCommand::Restore(args) => versions_cmd::restore_version(args),
        CliCommand::Dir(args) => dir_cmd::run(args),
        CliCommand::Du(args) => usage_cmd::run(args),
        CliCommand::Recover(args) => recover_cmd::run(args),
        CliCommand::Relayout(args) => relayout_cmd::run(args),
        CliCommand::Ls(args) => files::ls(args),
        CliCommand::Cp(args) => copy::cp(args),
        CliCommand::Sync(args) => sync_cmd::run(args),
        CliCommand::Untar(args) => untar_cmd::run(args),
        CliCommand::Mv(args) => move_cmd::run(args),
        CliCommand::Cat(args) => files::cat(args),
        CliCommand::Rm(args) => files::rm(args),
        CliCommand::Mkdir(args) => files::mkdir(args),
        CliCommand::Stat(args) => files::stat(args),
        CliCommand::Df(args) => files::df(args),
        CliCommand::Fsck(args) => fsck_cmd::run(args),
        CliCommand::Bench(args) => bench_cmd::run(args),
        CliCommand::Exec(args) => exec::run(args),
        CliCommand::Run(args) => run_cmd::run(args),
        CliCommand::Mpirun(args) => mpi_cmd::mpirun(args),
        CliCommand::MpiCheck(args) => mpi_cmd::check_program(args),
        CliCommand::Config(args) => config_cmd::run(args),
        CliCommand::Job { command } => job_cmd::run(command),
        CliCommand::Host { command } => host_serve::run(command),
        CliCommand::Gateway(args) => gateway_cmd::run(args),
        CliCommand::Relay => relay_cmd::run(),
        CliCommand::Complete(args) => completion::print_candidates(args, Cli::command()),
        CliCommand::Completions(args) => manual::print_completions(args, Cli::command()),
        CliCommand::Man(args) => manual::write_pages(args, Cli::command()),
    }
}
