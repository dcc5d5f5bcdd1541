//! Addresses and clocks of a volume's hosts: hosts with several networks, with IPv6 alone, with new
//! addresses, and with clocks that are off.

use crate::hosts::{can_have_hosts, expect_refusal};
use std::path::Path;
use tatami_skip::skip_unavailable;
use tatami_tests::testbed::{BedNetworks, HostBed, TestHost};

/// Starts a test bed with these hosts; `None` where this machine cannot have one.
fn start_bed(networks: BedNetworks, names: &[&str]) -> Option<HostBed> {
    can_have_hosts().then(|| HostBed::start_in(networks, names))
}

/// Returns the hosts of the nodes' addresses, without their ports.
fn addresses_on(host: &TestHost, flags: &str) -> Vec<String> {
    let said = host.run(&format!("tatami node list --json {flags}"));
    let list: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    let nodes = list["nodes"].as_array().expect("nodes").iter();
    let address = |node: &serde_json::Value| {
        let address = node["address"].as_str().expect("text").to_owned();
        address.rsplit_once(':').expect("host:port").0.to_owned()
    };
    nodes.map(address).collect()
}

/// Each host writes a file through its mount, and reads those of the others.
fn expect_shared(bed: &HostBed) {
    for host in bed.hosts() {
        host.run("echo $(hostname) > /mnt/tatami/$(hostname) && tatami status && tatami fsck");
    }
    for host in bed.hosts() {
        for other in bed.hosts() {
            host.run(&format!("test $(cat /mnt/tatami/{0}) = {0}", other.name()));
        }
    }
}

#[test]
fn nodes_have_their_addresses_in_the_named_network() {
    let Some(bed) = start_bed(BedNetworks::Two, &["n1", "n2", "n3"]) else { return };
    let one = bed.host(0);
    let second = "--network 10.78.0.0/24";
    expect_refusal(
        one,
        &format!("tatami up --hosts n[1-3] {second}"),
        &["1 of 3 hosts failed", "n3: it has no address in 10.78.0.0/24", "are: 10.77.0.3"],
    );
    one.run("test -z \"$(ls -A /var/lib/tatami 2>/dev/null)\" && ! pgrep tatami");
    expect_refusal(one, "tatami up --hosts n1 --network 10.78.0.0", &["no network"]);
    expect_refusal(one, &format!("tatami up {second}"), &["--hosts LIST", "--node-listen"]);

    one.run(&format!("tatami up --hosts n[1-2] {second}"));
    assert_eq!(addresses_on(bed.host(1), ""), ["10.78.0.1", "10.78.0.2"]);
    // The first network is that of ssh alone: the volume does not use it.
    bed.unplug(1);
    bed.host(1).run("echo two > /mnt/tatami/two");
    one.run("test $(cat /mnt/tatami/two) = two && tatami status");
    bed.plug_in(1);
    expect_refusal(one, &format!("tatami up {second}"), &["the volume exists already"]);
    // Hosts that come later have their nodes there, too.
    expect_refusal(one, "tatami node add n3", &["n3: it has no address in 10.78.0.0/24"]);
    one.run("tatami down && rm -r /var/lib/tatami");
    bed.host(1).run("rm -r /var/lib/tatami");

    one.run(&format!("tatami up --hosts n1 {second} && tatami node add n2"));
    assert_eq!(addresses_on(one, ""), ["10.78.0.1", "10.78.0.2"]);
    one.run("tatami down");
}

#[test]
fn a_network_with_ipv6_alone_is_enough() {
    let Some(bed) = start_bed(BedNetworks::V6, &["n1", "n2", "n3"]) else { return };
    let one = bed.host(0);
    one.run("tatami up --hosts n[1-2]");
    assert_eq!(addresses_on(one, ""), ["[fd00:77::1]", "[fd00:77::2]"]);
    one.run("tatami status | grep -F '[fd00:77::2]:'");
    one.run("tatami node add n3");
    expect_shared(&bed);
    bed.host(2).run("tatami node stop n1 && tatami node start n1 && cat /mnt/tatami/n1");
    one.run("tatami down && cd / && rm -r /var/lib/tatami");
    for host in &bed.hosts()[1..] {
        host.run("rm -r /var/lib/tatami");
    }
    // Hosts that are named by their addresses.
    one.run("tatami up --hosts 'fd00:77::1,[fd00:77::2]' --network fd00:77::/64 --dir /srv/v");
    assert_eq!(addresses_on(one, "--dir /srv/v"), ["[fd00:77::1]", "[fd00:77::2]"]);
    bed.host(1).run("echo two > /mnt/tatami/two");
    one.run("test $(cat /mnt/tatami/two) = two && tatami down --dir /srv/v");

    // One machine, with nodes on the loopback of IPv6, with brackets and without.
    one.run("tatami up --nodes 2 --dir /srv/local --no-mount --node-listen ::1");
    one.run("tatami node add --dir /srv/local --node-listen '[::1]'");
    assert_eq!(addresses_on(one, "--dir /srv/local"), ["[::1]"; 3]);
    one.run(
        "export TATAMI_DIR=/srv/local; echo x | tatami cp - :/x && tatami cat :/x && tatami down",
    );
    let by_hand = "tatami node add --dir /srv/local --node-dir /srv/x --address";
    expect_refusal(one, &format!("{by_hand} fd00:77::3:7400"), &["[fd00::1]:7400"]);
    expect_refusal(one, "tatami up --dir /srv/any --node-listen '[::]'", &["every address"]);
}

#[test]
fn a_host_with_a_new_address_gets_it_when_the_volume_starts() {
    let Some(bed) = start_bed(BedNetworks::V4, &["n1", "n2"]) else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    let move_two = |from: &str, to: &str| {
        two.run(&format!("ip address del {from}/24 dev eth0 && ip address add {to}/24 dev eth0"));
        for host in bed.hosts() {
            host.run(&format!("sed 's/^{from} /{to} /' /etc/hosts > new && cat new > /etc/hosts"));
        }
    };
    one.run("tatami up --hosts n1,n2");
    expect_shared(&bed);
    one.run("tatami down");
    move_two("10.77.0.2", "10.77.0.12");
    let said = one.run("tatami up");
    assert!(said.err.contains("n2 was at 10.77.0.2, and is at 10.77.0.12 now"), "{said:?}");
    for host in bed.hosts() {
        assert_eq!(addresses_on(host, ""), ["10.77.0.1", "10.77.0.12"]);
    }
    expect_shared(&bed);
    let again = one.run("tatami up");
    assert!(again.out.contains("ran already") && !again.err.contains("was at"), "{again:?}");

    // Daemons and mounts that run would never reach it.
    move_two("10.77.0.12", "10.77.0.22");
    expect_refusal(one, "tatami up", &["old address", "is at 10.77.0.22 now", "tatami down"]);
    two.run("tatami down --force; tatami up");
    expect_shared(&bed);
    two.run("tatami down");
}

/// A daemon that is started on its host, and not by a command for all hosts, tells the others where
/// it is now. Mounts that run follow it.
#[test]
fn a_node_that_starts_with_a_new_address_tells_the_others() {
    let Some(bed) = start_bed(BedNetworks::V4, &["n1", "n2", "n3"]) else { return };
    let [one, two, three] = [0, 1, 2].map(|at| bed.host(at));
    one.run("tatami up --hosts n[1-3]");
    two.run("echo first > /mnt/tatami/file");
    for host in bed.hosts() {
        host.run("test $(cat /mnt/tatami/file) = first");
    }
    let move_two = |from: &str, to: &str| {
        two.run(&format!("ip address del {from}/24 dev eth0 && ip address add {to}/24 dev eth0"));
        for host in bed.hosts() {
            host.run(&format!("sed 's/^{from} /{to} /' /etc/hosts > new && cat new > /etc/hosts"));
        }
    };
    move_two("10.77.0.2", "10.77.0.12");
    let said = two.run("tatami node start n2");
    assert!(said.err.contains("n2 listens at 10.77.0.2:"), "{said:?}");
    assert!(said.err.contains("would be at 10.77.0.12:"), "{said:?}");
    two.run("tatami node stop n2 && tatami node start n2");
    for host in bed.hosts() {
        assert_eq!(addresses_on(host, ""), ["10.77.0.1", "10.77.0.12", "10.77.0.3"]);
        host.run("timeout 100 sh -c 'until test \"$(cat /mnt/tatami/file)\" = first; do :; done'");
        host.run("tatami status && tatami fsck");
    }
    three.run("echo more > /mnt/tatami/more");
    two.run("test $(cat /mnt/tatami/more) = more");
    assert!(one.run("tatami up").out.contains("ran already"));

    // As a service, which may not write the file of the volume: the daemons alone know.
    two.run("cd /var/lib/tatami && tatami node stop n2 && cp -p volume.toml old");
    move_two("10.77.0.12", "10.77.0.22");
    two.run("setsid tatami node run --node-dir /var/lib/tatami/node1 </dev/null >/tmp/log 2>&1 &");
    two.run("until tatami status; do sleep 0.1; done; cd /var/lib/tatami && mv old volume.toml");
    for host in [one, three] {
        host.run("timeout 100 sh -c 'until tatami status; do sleep 0.1; done'");
        host.run("timeout 100 sh -c 'until test \"$(cat /mnt/tatami/file)\" = first; do :; done'");
        assert_eq!(addresses_on(host, "")[1], "10.77.0.12", "the file is as it was");
    }
    one.run("tatami up");
    for host in bed.hosts() {
        assert_eq!(addresses_on(host, "")[1], "10.77.0.22");
    }
    three.run("tatami fsck && tatami down");
}

#[test]
fn a_clock_that_is_off_is_shown_with_a_warning() {
    let Some(bed) = start_bed(BedNetworks::V4, &["n1", "n2"]) else { return };
    if !Path::new("/usr/bin/faketime").exists() {
        return skip_unavailable("faketime is not there: scripts/packages.sh hosts installs it");
    }
    let (one, two) = (bed.host(0), bed.host(1));
    one.run("tatami up --hosts n1,n2 --no-mount");
    let report = |host: &TestHost| -> serde_json::Value {
        serde_json::from_str(&host.run("tatami status --json").out).expect("JSON")
    };
    let none = report(one);
    assert_eq!(none["warnings"].as_array().map(Vec::len), Some(0), "{none}");
    two.run("tatami node stop n2");
    // The daemon sees another time, and nothing else does.
    two.run("DONT_FAKE_MONOTONIC=1 faketime -f +30s tatami node start n2");
    for host in bed.hosts() {
        let said = host.run("tatami status");
        assert!(said.out.contains("the clock of n2 is "), "{said:?}");
        assert!(said.out.contains("s ahead") && said.out.contains("is healthy"), "{said:?}");
        let report = report(host);
        let ahead = report["nodes"][1]["clock_ahead_ms"].as_i64().expect("a number");
        assert!((20_000..=30_000).contains(&ahead), "{report}");
        assert_eq!(report["warnings"].as_array().map(Vec::len), Some(1), "{report}");
    }
    one.run("tatami down");
}
