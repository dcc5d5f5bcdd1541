//! The `tatami` command, for people at a terminal and for scripts. It parses arguments, calls the
//! libraries and prints. The logic of the file system is in the libraries.

mod absence;
mod args;
mod background;
mod bench_cmd;
mod config;
mod config_cmd;
mod container_cmd;
mod copy;
mod daemon;
mod dir_cmd;
mod down;
mod error;
mod exec;
mod files;
mod fsck_cmd;
mod grow;
mod import;
mod keys;
mod listing;
mod log;
mod manual;
mod mount_cmd;
mod mounts;
mod mpi_cmd;
mod node_cmd;
mod offline;
mod place;
mod ports;
mod process;
mod ready;
mod recover_cmd;
mod relayout_cmd;
mod session;
mod status;
mod term;
mod up;
mod usage_cmd;
mod users;
mod volume_path;
mod where_cmd;

use args::{Cli, Command};
use clap::Parser;
use error::{Exit, Outcome};
use std::process::ExitCode;
use tatami_cluster::mountinfo;

/// A request allocates and frees a dozen small pieces of memory, in the daemon, in a mount and in a
/// command. This allocator reuses the piece that was freed last, which is still in the CPU's cache,
/// even if others share the cache.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Clap returns help and version as "errors" that go to standard output.
            let code = if error.use_stderr() { Exit::Usage.code() } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    match run(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // A command that has printed its result already returns an empty text.
            if !failure.what.is_empty() {
                term::complain(&failure.report());
            }
            ExitCode::from(failure.exit.code())
        }
    }
}

fn run(command: &Command) -> Outcome {
    match command {
        Command::Up(args) => up::run(args),
        Command::Down(args) => down::run(args),
        Command::Status(args) => status::run(args),
        Command::Node { command } => node_cmd::run(command),
        Command::Mount(args) => mount_cmd::mount(args),
        Command::Umount(args) => mount_cmd::umount(args),
        Command::Where(args) => where_cmd::run(args),
        Command::Dir(args) => dir_cmd::run(args),
        Command::Du(args) => usage_cmd::run(args),
        Command::Recover(args) => recover_cmd::run(args),
        Command::Relayout(args) => relayout_cmd::run(args),
        Command::Ls(args) => files::ls(args),
        Command::Cp(args) => copy::cp(args),
        Command::Cat(args) => files::cat(args),
        Command::Rm(args) => files::rm(args),
        Command::Mkdir(args) => files::mkdir(args),
        Command::Stat(args) => files::stat(args),
        Command::Df(args) => files::df(args),
        Command::Fsck(args) => fsck_cmd::run(args),
        Command::Bench(args) => bench_cmd::run(args),
        Command::Exec(args) => exec::run(args),
        Command::Mpirun(args) => mpi_cmd::mpirun(args),
        Command::MpiCheck(args) => mpi_cmd::check(args),
        Command::Config(args) => config_cmd::run(args),
        Command::Completions(args) => manual::completions(args),
        Command::Man(args) => manual::pages(args),
    }
}
