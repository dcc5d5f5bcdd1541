//! Jobs of MPI programs on this machine.

use crate::command::target_dir;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::process::Command;

/// The MPI libraries, by the suffix that Debian gives their commands.
pub const MPIS: [&str; 2] = ["openmpi", "mpich"];

/// One job at a time: waiting ranks use the CPU.
pub static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Returns a program of `mpi/tests`, compiled for one of the MPI libraries.
///
/// # Panics
/// If it was not built.
pub fn compiled(name: &str, mpi: &str) -> PathBuf {
    let path = target_dir().join("mpi/tests").join(format!("{name}.{mpi}"));
    let make = "make -C mpi IO=../target/debug tests";
    assert!(path.is_file(), "{} is not there: {make}", path.display());
    path
}

/// Sets up a job of `mpirun` on this machine, as root, with more ranks than processors, without a
/// layer from the environment.
pub fn on_this_machine(command: &mut Command) -> &mut Command {
    for (name, value) in [
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_plm_rsh_agent", ""),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("OMPI_MCA_mpi_yield_when_idle", "1"),
        ("OMPI_MCA_btl_vader_single_copy_mechanism", "none"),
        ("OMP_NUM_THREADS", "1"),
    ] {
        command.env(name, value);
    }
    command.env_remove("LD_PRELOAD")
}

/// Sets up a job of Open MPI on hosts of a test bed, as root: by ssh, on their network alone.
pub fn on_several_hosts(command: &mut Command) -> &mut Command {
    for (name, value) in [
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_btl_tcp_if_include", "eth0"),
        ("OMPI_MCA_oob_tcp_if_include", "eth0"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("OMPI_MCA_mpi_yield_when_idle", "1"),
        ("OMP_NUM_THREADS", "1"),
    ] {
        command.env(name, value);
    }
    command.env_remove("LD_PRELOAD")
}
