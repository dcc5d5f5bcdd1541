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
    pub(crate) fn make_options(&self) -> Vec<String> {
        let hops = self.in_order();
        let mut options = list_options(hops.len());
        options.extend(jump_option(&hops));
        options
    }
}

fn list_options(hops: usize) -> Vec<String> {
    let wait = format!("ConnectTimeout={}", CONNECT_WAIT + HOP_WAIT * hops);
    OPTIONS.iter().map(|option| (*option).to_owned()).chain([wait]).collect()
}

/// Returns the option by which ssh passes through hosts. `-J` would start an ssh that may ask for a
/// password. All words are checked: none has a meaning for the shell that runs the command.
fn jump_option(hops: &[&RouterName]) -> Option<String> {
    let (last, before) = hops.split_last()?;
    let mut line = String::from("ProxyCommand=ssh");
    for option in list_options(before.len()) {
        line += &format!(" -o {option}");
    }
    if let Some(inner) = jump_option(before) {
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
        assert_eq!(jump_option(&[]), None);
        let route = make_route("login1", "me@far:2222");
        let hops = route.choose_hops_of(0);
        let option = hops.make_options().pop().expect("a jump");
        let outer = "-l me -p 2222 -W '[%h]:%p' -- far";
        assert!(option.starts_with("ProxyCommand=ssh -o BatchMode=yes "), "{option}");
        assert!(option.ends_with(outer), "{option}");
        assert!(option.contains("-o 'ProxyCommand=ssh -o BatchMode=yes "), "{option}");
        assert!(option.contains(" -W \"[%%h]:%%p\" -- login1' "), "{option}");
        assert!(option.contains("ConnectTimeout=25 ") && option.contains("ConnectTimeout=20 "));
        assert!(hops.make_options().contains(&"ConnectTimeout=30".to_owned()));
        assert_eq!(option.matches("ForwardAgent=no").count(), 2);
    }
}
