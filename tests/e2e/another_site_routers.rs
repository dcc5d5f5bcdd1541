//! Login hosts on the way to another site: of this side, of the other side, and of both. Their
//! failures are named and survived.

use crate::two_sites::{BlockPhase, DISK, LOGIN_WAYS, LoginWay, SiteBed};
use tatami_tests::mpi::ONE_AT_A_TIME;
use tatami_tests::testbed::TestHost;

/// Compute hosts of each site, and so ranks of a job.
const RANKS: usize = 2;

fn start_bed() -> Option<SiteBed> {
    SiteBed::start(RANKS, 2)
}

fn end_blocks(sites: &SiteBed) {
    sites.expect_nothing_left(DISK, "bulk");
    sites.io_host().run(&format!("rm {DISK}/bulk"));
    for host in sites.bed.hosts() {
        let listening = "ss -Hltn '( sport != :22 )'";
        assert_eq!(host.run(listening).out, "", "{} listens", host.name());
    }
}

fn count_relays(host: &TestHost) -> usize {
    host.ask("pgrep -cxf 'tatami relay'").out.trim().parse().expect("a number")
}

/// Returns the number of data connections at a host.
fn count_connections(host: &TestHost) -> usize {
    host.run("ss -Htn state established '( sport != :22 and dport != :22 )'").out.lines().count()
}

/// Each way has its relays and data connections, shared by the ranks, and gives the same bytes. A
/// mount and the commands go the same ways.
#[test]
fn each_way_through_login_hosts_gives_the_same_bytes() {
    let Some(mut sites) = start_bed() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    for way in LOGIN_WAYS {
        let variables = sites.open_way(way);
        let passes = |at: usize, sites: &SiteBed| {
            let is_near = at < sites.far_login(0);
            way == LoginWay::Both || is_near == (way == LoginWay::Near)
        };
        sites.run_blocks(DISK, &format!("TATAMI_STREAMS=2 {variables}"), |sites, phase| {
            let victim = match phase {
                BlockPhase::Writing => sites.near_login(1),
                BlockPhase::Reading => sites.far_login(0),
                _ => return,
            };
            for at in sites.near_login(0)..sites.far_login(2) {
                let host = sites.bed.host(at);
                let relays = usize::from(passes(at, sites));
                // Ranks share the two hosts of a list. Two connections of one rank pass each, with
                // an end on both sides.
                assert_eq!(count_relays(host), relays, "{way:?}: {}", host.name());
                assert_eq!(count_connections(host), relays * 4, "{way:?}: {}", host.name());
            }
            assert_eq!(count_connections(sites.io_host()), 2 * RANKS, "{way:?}");
            // A relay that is killed is replaced.
            sites.bed.host(victim).ask("pkill -KILL -xf 'tatami relay'");
        });
        end_blocks(&sites);
        let one = sites.first();
        one.run(&format!(
            "export {variables}; mkdir -p /srv/m; echo {way:?} > /srv/disk/x; \
             tatami cp /srv/disk/x b1:{DISK}/copied; tatami mount b1:{DISK} /srv/m; \
             cmp /srv/m/copied /srv/disk/x; echo mounted > /srv/m/y; tatami umount /srv/m; \
             test \"$(tatami cat b1:{DISK}/y)\" = mounted; tatami rm b1:{DISK}/y \
             b1:{DISK}/copied"
        ));
        sites.expect_nothing_left(DISK, "");
    }
}

/// Login hosts of either side that are off are left out. One that dies under a job is replaced.
#[test]
fn login_hosts_that_die_are_left_out() {
    let Some(mut sites) = start_bed() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let variables = format!("TATAMI_STREAMS=1 {}", sites.open_way(LoginWay::Both));
    // One of each side is off from the start.
    let (near, far) = (sites.near_login(0), sites.far_login(1));
    sites.bed.cut_power(near);
    sites.bed.cut_power(far);
    sites.run_blocks(DISK, &variables, |sites, phase| {
        if phase == BlockPhase::Writing {
            assert_eq!(count_relays(sites.bed.host(sites.near_login(1))), RANKS);
            assert_eq!(count_relays(sites.bed.host(sites.far_login(0))), RANKS);
        }
    });
    end_blocks_of_living(&sites, &[near, far]);
    sites.bed.boot(near);
    sites.bed.boot(far);
    // One of each side dies while the job runs. Its power is cut, so no connection is closed.
    sites.run_blocks(DISK, &variables, |sites, phase| match phase {
        BlockPhase::Writing => sites.bed.cut_power(sites.near_login(1)),
        BlockPhase::Reading => sites.bed.cut_power(sites.far_login(0)),
        _ => {}
    });
    let (near, far) = (sites.near_login(1), sites.far_login(0));
    end_blocks_of_living(&sites, &[near, far]);
}

/// As `end_blocks`, while these hosts are off.
fn end_blocks_of_living(sites: &SiteBed, off: &[usize]) {
    for (at, host) in sites.bed.hosts().iter().enumerate() {
        if !off.contains(&at) {
            // An I/O process behind a host without power hears nothing of the end of its job. Its
            // sshd asks after a while.
            host.ask("pkill -xf 'tatami (gateway|relay)'");
        }
    }
    sites.io_host().run(&format!("rm {DISK}/bulk"));
}

/// The host that failed is named, on each part of the way.
#[test]
fn the_login_host_that_failed_is_named() {
    let Some(sites) = start_bed() else { return };
    sites.open_way(LoginWay::Both);
    let one = sites.first();
    let expect = |near: &str, far: &str, place: &str, words: &str| {
        let said = one.ask(&format!(
            "export TATAMI_ROUTER={near} TATAMI_SITE_ROUTER={far}; tatami ls {place}"
        ));
        assert!(said.code == Some(3) && said.err.contains(words), "{words}: {said:?}");
    };
    one.run("export TATAMI_ROUTER=l1,l2 TATAMI_SITE_ROUTER=f1,f2; tatami ls b1:/srv");
    expect("l1:2222", "f1", "b1:/srv", "router l1:2222: ssh: connect to host l1 port 2222");
    expect("nobody@l1", "f1", "b1:/srv", "router nobody@l1: ");
    expect(
        "l1",
        "f1:2222",
        "b1:/srv",
        "router l1 does not reach router f1:2222: Connection refused",
    );
    expect("l1", "nobody@f1", "b1:/srv", "router nobody@f1: ");
    expect(
        "l1",
        "f1",
        "tatami://b1:2222/srv",
        "router f1 does not reach b1:2222: Connection refused",
    );
    expect("l1", "f1", "nobody@b1:/srv", "nobody@b1: ");
    expect("l1", "-oProxyCommand=x", "b1:/srv", "site_router: ");
    // Every failure of a list is reported, and a working pair is found behind them.
    expect("l1:2222,nobody@l2", "f1", "b1:/srv", "router l1:2222: ");
    expect("l1:2222,nobody@l2", "f1", "b1:/srv", "router nobody@l2: ");
    one.run("export TATAMI_ROUTER=l1:2222,l2 TATAMI_SITE_ROUTER=nobody@f1,f2; tatami ls b1:/srv");
    sites.bed.unplug(sites.far_login(0));
    expect("l1", "f1", "b1:/srv", "router f1 does not reach b1: ");
    sites.bed.plug_in(sites.far_login(0));
    // Nothing of this side's keys is shown to the hosts on the way.
    one.run(
        "eval $(ssh-agent) >/dev/null; printf 'Host *\\n ForwardAgent yes\\n' > ~/.ssh/config; \
         export TATAMI_ROUTER=l1 TATAMI_SITE_ROUTER=f1; mkdir -p /srv/m; tatami mount b1:/srv /srv/m; \
         kill $SSH_AGENT_PID",
    );
    // sshd would make a socket for the agent there.
    for at in [sites.near_login(0), sites.far_login(0)] {
        sites.bed.host(at).run("test -z \"$(ls -A /tmp)\"");
    }
    sites.io_host().run("pgrep -xf 'tatami gateway' && test -z \"$(ls -A /tmp)\"");
    one.run("tatami umount /srv/m");
    sites.expect_nothing_left(DISK, "");
}
