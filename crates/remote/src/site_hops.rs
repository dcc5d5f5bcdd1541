//! The login hosts on the way to a site: at most one of this side, and one of the other.

use crate::site_route::{RouterName, SiteRoute};

/// What each ssh gets. A password cannot be asked for inside a program. A host that no longer
/// answers is given up after a minute. No key of this side is of use to a program there.
const OPTIONS: [&str; 5] = [
    "BatchMode=yes",
    "ServerAliveInterval=15",
    "ServerAliveCountMax=4",
    "ForwardAgent=no",
    "ForwardX11=no",
];
/// Seconds in which the first ssh of a way connects.
const CONNECT_WAIT: usize = 20;
/// Seconds that a shared login stays without a session. The ssh that has just made it, or the next
/// process, comes within this time.
const IDLE_TIME: u32 = 5;
/// What each later one waits longer. So the first that fails says why, and not all at once.
const HOP_WAIT: usize = 5;

/// The login hosts of one attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SiteHops {
    /// The one of this side.
    pub(crate) near: Option<RouterName>,
    /// The one of the other side.
    pub(crate) far: Option<RouterName>,
}

impl SiteHops {
    /// Returns them in the order of the way.
    pub(crate) fn in_order(&self) -> Vec<&RouterName> {
        self.near.iter().chain(&self.far).collect()
    }

    /// Returns the options of the ssh that goes to the end of this way, each behind an `-o`.
    pub(crate) fn make_options(&self, sockets: &HopSockets) -> Vec<String> {
        let hops = self.in_order();
        let mut options = list_options(hops.len(), sockets.end.as_deref());
        options.extend(jump_option(&hops, sockets));
        options
    }
}

/// The sockets of the shared logins of a way; `None`: a login of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct HopSockets {
    /// Those at the login hosts, in the order of the way. A host without an entry has none.
    pub(crate) hops: Vec<Option<String>>,
    /// The one at the end of the way.
    pub(crate) end: Option<String>,
    /// The file for the messages of the ssh to login hosts. An ssh that may share its login leaves
    /// no standard error to the ssh before it on the way.
    pub(crate) log: Option<String>,
}

fn list_options(hops: usize, socket: Option<&str>) -> Vec<String> {
    let wait = format!("ConnectTimeout={}", CONNECT_WAIT + HOP_WAIT * hops);
    let mut options: Vec<String> = OPTIONS.iter().map(|option| (*option).to_owned()).collect();
    options.push(wait);
    if let Some(path) = socket {
        // The first ssh with this socket logs in, and the others share its login. If that fails,
        // ssh logs in by itself.
        options.push("ControlMaster=auto".to_owned());
        options.push(format!("ControlPersist={IDLE_TIME}"));
        options.push(format!("ControlPath={path}"));
    }
    options
}

/// Returns the option by which ssh passes through hosts. `-J` would start an ssh that may ask for a
/// password. All words are checked: none has a meaning for the shell that runs the command.
fn jump_option(hops: &[&RouterName], sockets: &HopSockets) -> Option<String> {
    let (last, before) = hops.split_last()?;
    let socket = sockets.hops.get(before.len()).and_then(Option::as_deref);
    let mut line = String::from("ProxyCommand=ssh");
    if let Some(log) = &sockets.log {
        line += &format!(" -E {log}");
    }
    for option in list_options(before.len(), socket) {
        line += &format!(" -o {option}");
    }
    if let Some(inner) = jump_option(before, sockets) {
        // The ssh that gets this word replaces `%h` and `%p` in it, and a shell reads it.
        line += &format!(" -o '{}'", inner.replace('%', "%%").replace('\'', "\""));
    }
    if let Some(user) = &last.user {
        line += &format!(" -l {user}");
    }
    if let Some(port) = last.port {
        line += &format!(" -p {port}");
    }
    Some(line + &format!(" -W '[%h]:%p' -- {}", last.host))
}

/// Returns the number of this process among those of its job.
fn find_own_number() -> u64 {
    let variables = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"];
    let rank = variables.iter().find_map(|name| std::env::var(name).ok()?.parse::<u32>().ok());
    u64::from(rank.unwrap_or_else(std::process::id))
}

impl SiteRoute {
    /// Returns the number of different ways.
    pub(crate) fn count_ways(&self) -> usize {
        self.routers.len().max(1) * self.site_routers.len().max(1)
    }

    /// Returns the hosts of attempt `attempt` of this process. Ranks spread over both lists, and
    /// each attempt takes the next of both. After [`SiteRoute::count_ways`] attempts all pairs were
    /// taken.
    pub(crate) fn choose_hops(&self, attempt: u32) -> SiteHops {
        self.choose_hops_of(find_own_number().wrapping_add(u64::from(attempt)))
    }

    fn choose_hops_of(&self, turn: u64) -> SiteHops {
        let (near, far) = (self.routers.len() as u64, self.site_routers.len() as u64);
        let pick = |list: &[RouterName], at: u64| list.get(at as usize).cloned();
        let (near, far) = (near.max(1), far.max(1));
        // Both lists begin anew after so many turns. Then the other pairs follow.
        let divisor = greatest_common_divisor(near, far);
        let shift = turn / (near / divisor * far) % divisor;
        SiteHops {
            near: pick(&self.routers, turn % near),
            far: pick(&self.site_routers, (turn % far + shift) % far),
        }
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    divisor
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn make_route(near: &str, far: &str) -> SiteRoute {
        let mut route = SiteRoute::default();
        route.set_routers(near);
        route.set_site_routers(far);
        assert!(route.is_valid() && route.fault.is_none());
        route
    }

    #[test]
    fn attempts_take_all_pairs_of_routers() {
        for (near, far) in [
            ("", ""),
            ("a,b,c", ""),
            ("", "x,y"),
            ("a,b", "x,y"),
            ("a,b,c,d", "x,y"),
            ("a", "x,y,z"),
        ] {
            let route = make_route(near, far);
            let ways = route.count_ways() as u64;
            let all: BTreeSet<String> =
                (7..7 + ways).map(|turn| format!("{:?}", route.choose_hops_of(turn))).collect();
            assert_eq!(all.len() as u64, ways, "{near} {far}");
        }
        // Two ranks, and two attempts of one, share no host.
        let route = make_route("a,b", "x,y");
        let (one, two) = (route.choose_hops_of(0), route.choose_hops_of(1));
        assert!(one.near != two.near && one.far != two.far);
    }

    #[test]
    fn each_host_is_reached_through_the_one_before() {
        assert_eq!(jump_option(&[], &HopSockets::default()), None);
        let route = make_route("login1", "me@far:2222");
        let hops = route.choose_hops_of(0);
        let own = HopSockets::default();
        let option = hops.make_options(&own).pop().expect("a jump");
        let outer = "-l me -p 2222 -W '[%h]:%p' -- far";
        assert!(option.starts_with("ProxyCommand=ssh -o BatchMode=yes "), "{option}");
        assert!(option.ends_with(outer), "{option}");
        assert!(option.contains("-o 'ProxyCommand=ssh -o BatchMode=yes "), "{option}");
        assert!(option.contains(" -W \"[%%h]:%%p\" -- login1' "), "{option}");
        assert!(option.contains("ConnectTimeout=25 ") && option.contains("ConnectTimeout=20 "));
        assert!(hops.make_options(&own).contains(&"ConnectTimeout=30".to_owned()));
        assert_eq!(option.matches("ForwardAgent=no").count(), 2);
    }

    #[test]
    fn each_ssh_of_a_way_has_the_socket_of_its_host() {
        let hops = make_route("login1", "far").choose_hops_of(0);
        let socket = |name: &str| Some(format!("/run/{name}"));
        let hop_sockets = vec![socket("near"), socket("far")];
        let log = Some("/proc/7/fd/3".to_owned());
        let sockets = HopSockets { hops: hop_sockets, end: socket("end"), log };
        let options = hops.make_options(&sockets);
        assert!(options.contains(&"ControlPath=/run/end".to_owned()), "{options:?}");
        let (_, jump) = options.split_last().map(|(jump, rest)| (rest, jump)).expect("a jump");
        let (before, inner) = jump.split_once(" -o 'ProxyCommand=").expect("an inner jump");
        assert!(before.ends_with(" -o ControlPath=/run/far"), "{jump}");
        assert!(inner.contains(" -o ControlPath=/run/near "), "{jump}");
        assert_eq!(jump.matches("ControlMaster=auto").count(), 2);
        assert_eq!(jump.matches("ssh -E /proc/7/fd/3 -o ").count(), 2);
        // A host of which the user shares logins has no socket of ours.
        let sockets = HopSockets { hops: vec![None, socket("far")], ..HopSockets::default() };
        let options = hops.make_options(&sockets);
        assert_eq!(options.concat().matches("ControlPath=").count(), 1);
    }
}
