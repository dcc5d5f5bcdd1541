//! Jobs of MPI programs on this machine, and on the hosts of a test bed.

use crate::command::target_dir;
use crate::testbed::HostBed;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The MPI libraries, by the suffix that Debian gives their commands.
pub const MPIS: [&str; 2] = ["openmpi", "mpich"];

/// One job at a time: waiting ranks use the CPU.
pub static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Variables of jobs on the hosts of a test bed, for a shell: they run as root, and on the network
/// of the hosts alone. The hosts have one kernel, and UCX must not take them for one machine.
pub const HOST_SETTINGS: &str = "export OMPI_ALLOW_RUN_AS_ROOT=1 \
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
    OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0 \
    UCX_TLS=tcp,self UCX_NET_DEVICES=eth0 \
    TATAMI_MPI_LIBRARY=/usr/local/bin/libtatami_mpi.so;";

/// The library without which programs of MPICH 4.0 wait for ever in `MPI_Finalize`, over TCP at
/// times: `examples/mpich_finalize.c` has the reason.
const MPICH_FINALIZE: &str = "mpich_finalize.so";

/// Lets all hosts of a test bed have the MPI-IO layer. `built` is a directory of `mpi/Makefile`.
///
/// # Panics
/// If the layer was not built.
pub fn install_layer(bed: &HostBed, built: &Path) {
    for name in ["libtatami_io.so", "libtatami_mpi.so"] {
        bed.install_file(&built.join(name));
    }
    for mpi in MPIS {
        bed.install_file(&built.join(format!("libtatami_mpi_{mpi}.so")));
    }
    bed.install_file(&built.join("tests").join(MPICH_FINALIZE));
}

/// Returns the words before a program that runs on these hosts, one rank on each, with the layer.
pub fn launch_on_hosts(mpi: &str, hosts: &[&str]) -> String {
    let option = if mpi == "mpich" { "-hosts" } else { "--host" };
    let (list, ranks) = (hosts.join(","), hosts.len());
    let preload = preload_for(mpi);
    format!("{preload}tatami mpirun --launcher mpirun.{mpi} {option} {list} -n {ranks}")
}

/// Returns the words before a program with so many ranks on one host, without the layer.
pub fn launch_on_one_host(mpi: &str, ranks: usize) -> String {
    format!("{}mpirun.{mpi} -n {ranks}", preload_for(mpi))
}

fn preload_for(mpi: &str) -> String {
    match mpi {
        "mpich" => format!("env LD_PRELOAD=/usr/local/bin/{MPICH_FINALIZE} "),
        _ => String::new(),
    }
}

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
