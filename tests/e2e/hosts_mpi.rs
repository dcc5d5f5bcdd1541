//! MPI programs with a rank on each host of a volume: the calls of the standard and random calls,
//! over the layer, with Open MPI and MPICH.

use crate::hosts::start_many;
use tatami_tests::command::target_dir;
use tatami_tests::mpi::{
    HOST_SETTINGS, MPIS, ONE_AT_A_TIME, compiled, install_layer, launch_on_hosts,
    launch_on_one_host,
};
use tatami_tests::seed::{root_seed, scaled};

#[test]
fn ranks_on_several_hosts_share_files_of_the_volume() {
    let Some((bed, list)) = start_many(3) else { return };
    let _turn = ONE_AT_A_TIME.lock();
    install_layer(&bed, &target_dir().join("mpi"));
    let one = bed.host(0);
    one.run(&format!("tatami up --hosts {list} --mount /srv/volume && mkdir /srv/disk"));
    let names: Vec<&str> = bed.hosts().iter().map(|host| host.name()).collect();
    let ranks = names.len();
    let root = root_seed() % 1_000_000_000;
    for mpi in MPIS {
        for name in ["semantics", "random_calls"] {
            bed.install_file(&compiled(name, mpi));
        }
        let layered = format!("{} /usr/local/bin", launch_on_hosts(mpi, &names));
        one.run(&format!("{HOST_SETTINGS} {layered}/semantics.{mpi} /srv/volume/semantics"));
        for round in 0..scaled(3).min(20) {
            let seed = root + round;
            let program = format!("random_calls.{mpi}");
            // The same calls by the simplest means, on the disk of one host.
            let alone = launch_on_one_host(mpi, ranks);
            one.run(&format!(
                "{HOST_SETTINGS} rm -rf /srv/disk/* /srv/volume/ours*; {alone} \
                 /usr/local/bin/{program} /srv/disk/reference.dat {seed} 6 /srv/disk/reference \
                 simple"
            ));
            one.run(&format!(
                "{HOST_SETTINGS} {layered}/{program} /srv/volume/ours.dat {seed} 6 /srv/volume/ours"
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
    }
    bed.host(1).run("tatami fsck && tatami down");
}
