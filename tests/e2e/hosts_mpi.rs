//! MPI programs with a rank on each host of a volume: the calls of the standard and random calls,
//! over the layer, with Open MPI. MPICH 4.0.2 of Debian is not tried: over TCP (UCX) it hangs in
//! MPI_Finalize on these hosts at times, also without the layer.

use crate::hosts::start_many;
use tatami_tests::command::target_dir;
use tatami_tests::mpi::{ONE_AT_A_TIME, compiled};
use tatami_tests::seed::{root_seed, scaled};

/// Variables of all jobs: they run as root, and on the network of the hosts alone.
const SETTINGS: &str = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0 \
    OMPI_MCA_rmaps_base_oversubscribe=1 \
    TATAMI_MPI_LIBRARY=/usr/local/bin/libtatami_mpi.so;";

#[test]
fn ranks_on_several_hosts_share_files_of_the_volume() {
    let Some((bed, list)) = start_many(3) else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let library = |name: &str| target_dir().join("mpi").join(name);
    for name in ["libtatami_mpi.so", "libtatami_mpi_openmpi.so", "libtatami_io.so"] {
        bed.install_file(&library(name));
    }
    let one = bed.host(0);
    one.run(&format!("tatami up --hosts {list} --mount /srv/volume && mkdir /srv/disk"));
    let names: Vec<&str> = bed.hosts().iter().map(|host| host.name()).collect();
    let (ranks, names) = (names.len(), names.join(","));
    let root = root_seed() % 1_000_000_000;
    ["semantics", "random_calls"]
        .iter()
        .for_each(|name| bed.install_file(&compiled(name, "openmpi")));
    let layered =
        format!("tatami mpirun --launcher mpirun.openmpi --host {names} -n {ranks} /usr/local/bin");
    one.run(&format!("{SETTINGS} {layered}/semantics.openmpi /srv/volume/semantics"));
    for round in 0..scaled(3).min(20) {
        let seed = root + round;
        let program = "random_calls.openmpi";
        // The same calls by the simplest means, on the disk of one host.
        one.run(&format!(
            "{SETTINGS} rm -rf /srv/disk/* /srv/volume/ours*; mpirun.openmpi -n {ranks} \
             /usr/local/bin/{program} /srv/disk/reference.dat {seed} 6 /srv/disk/reference simple"
        ));
        one.run(&format!(
            "{SETTINGS} {layered}/{program} /srv/volume/ours.dat {seed} 6 /srv/volume/ours"
        ));
        let parts = (0..ranks).map(|rank| rank.to_string());
        for part in parts.chain(["bytes".to_owned()]) {
            one.run(&format!("cmp /srv/disk/reference.{part} /srv/volume/ours.{part}"));
        }
        let nodes = "tatami where --json /srv/volume/ours.dat | jq '.files[0].nodes | length'";
        let nodes: usize = bed.host(2).run(nodes).out.trim().parse().expect("a number");
        // Of many ranks with random calls, some may not have written.
        assert!(nodes >= ranks - ranks / 4, "each rank writes to its disk: {nodes} of {ranks}");
    }
    bed.host(1).run("tatami fsck && tatami down");
}
