//! The login at a site: through one pair of login hosts after the other, and the host that failed.

use crate::login_crowd::ECHO;
use crate::site_address::SiteAddress;
use crate::site_hops::SiteHops;
use crate::site_route::{RouterName, SiteRoute};
use crate::ssh_link::SshLink;
use std::time::{Duration, Instant};

/// After this time no other way is tried in one login. A login host that has just lost its power
/// costs up to 50 s: half of it until a login shared with other processes is given up, half for the
/// login after it. Two such hosts leave time for a third way, and an I/O process waits longer.
const LOGIN_TIME: Duration = Duration::from_secs(120);
/// Most failures that are reported.
const FAILURES_MAX: usize = 4;
/// Words of failures that another way may not have, though they are those of the last ssh.
const OF_WAY: [&str; 4] = ["timed out", "no answer within", "has ended", "not responding"];

/// A login that failed.
#[derive(Debug, PartialEq, Eq)]
struct LoginFailure {
    /// A sentence with the host that failed, where it is not the site itself.
    what: String,
    /// The router that failed: no other way through it is tried.
    router: Option<RouterName>,
    /// The site itself refuses, whatever the way.
    is_final: bool,
}

/// Starts the I/O process of a site, through one way after the other where there are routers.
/// `attempt` is the number of the first way, and in the end that of the way that works.
///
/// # Errors
/// A sentence that names the host that failed.
pub(crate) fn log_in(
    site: &SiteAddress,
    route: &SiteRoute,
    attempt: &mut u32,
) -> Result<SshLink, String> {
    if let Some(fault) = &route.fault {
        return Err(fault.clone());
    }
    let start = Instant::now();
    let (mut bad, mut said): (Vec<RouterName>, Vec<String>) = (Vec::new(), Vec::new());
    for step in 0..route.count_ways() {
        let hops = route.choose_hops(*attempt);
        if hops.in_order().iter().any(|host| bad.contains(host)) {
            *attempt = attempt.wrapping_add(1);
            continue;
        }
        if step > 0 && start.elapsed() > LOGIN_TIME {
            break;
        }
        let why = match SshLink::open(site, &hops) {
            Ok(link) => return Ok(link),
            Err(why) => why,
        };
        let failure = judge_failure(&why, &hops, site);
        if failure.is_final {
            return Err(failure.what);
        }
        bad.extend(failure.router);
        if said.len() < FAILURES_MAX && !said.contains(&failure.what) {
            said.push(failure.what);
        }
        *attempt = attempt.wrapping_add(1);
    }
    Err(said.join("; "))
}

/// Finds the host that failed in the messages of all ssh of a way. Each ssh behind the one that
/// failed says in its own words that its input has ended.
fn judge_failure(said: &str, hops: &SiteHops, site: &SiteAddress) -> LoginFailure {
    let hosts = hops.in_order();
    let last = hosts.len();
    let echoes = said.matches(ECHO).count();
    let is_cause = |words: &&str| !words.contains(ECHO) && !words.contains("UNKNOWN port");
    let cause: Vec<&str> =
        said.split("; ").filter(|words| !words.is_empty()).filter(is_cause).collect();
    let cause = cause.join("; ");
    // Only the first ssh opens a connection of its own.
    let is_first = ["connect to host", "Could not resolve"].iter().any(|w| cause.contains(w));
    let of_its_own = usize::from(cause.is_empty());
    let failed = match is_first {
        true => Some(0),
        false => (last + of_its_own).checked_sub(echoes).filter(|at| *at <= last),
    };
    let words = if cause.is_empty() { said } else { &cause };
    let name_host = |at: usize| match hosts.get(at) {
        Some(host) => format!("router {host}"),
        None => site.to_string(),
    };
    let forward = cause.find("open failed: ").map(|at| {
        let reason = &cause[at + "open failed: ".len()..];
        reason.split("; ").next().unwrap_or(reason).trim_start_matches("connect failed: ")
    });
    let is_final = failed == Some(last)
        && !is_first
        && !cause.is_empty()
        && !OF_WAY.iter().any(|words| cause.contains(words));
    match (failed, forward) {
        (Some(at), Some(reason)) if at < last => LoginFailure {
            what: format!("{} does not reach {}: {reason}", name_host(at), name_host(at + 1)),
            router: None,
            is_final: false,
        },
        (Some(at), _) if at < last => LoginFailure {
            what: format!("{}: {words}", name_host(at)),
            router: hosts.get(at).map(|host| (*host).clone()),
            is_final: false,
        },
        (Some(_), _) => LoginFailure { what: words.to_owned(), router: None, is_final },
        (None, _) => {
            let way: Vec<String> = hosts.iter().map(|host| host.to_string()).collect();
            let what = format!("on the way through {}: {said}", way.join(" and "));
            LoginFailure { what, router: None, is_final: false }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What OpenSSH 9.2 prints behind an ssh that failed.
    const END: &str = "kex_exchange_identification: Connection closed by remote host; ; \
                       Connection closed by UNKNOWN port 65535";

    fn judge(near: &str, far: &str, said: &str) -> LoginFailure {
        let mut route = SiteRoute::default();
        route.set_routers(near);
        route.set_site_routers(far);
        let site = SiteAddress::parse("siteb").expect("an address");
        judge_failure(said, &route.choose_hops(0), &site)
    }

    #[test]
    fn the_host_that_failed_is_named() {
        let refused = "ssh: connect to host l1 port 22: Connection refused";
        let cases = [
            // The near router is not reached, or does not know the user.
            ("l1", "l2", format!("{refused}; {END}; {END}"), format!("router l1: {refused}")),
            (
                "l1",
                "l2",
                format!("me@l1: Permission denied (publickey).; {END}; {END}"),
                "router l1: me@l1: Permission denied (publickey).".to_owned(),
            ),
            // The near router does not reach the far one.
            (
                "l1",
                "l2",
                format!(
                    "channel 0: open failed: connect failed: No route to host; stdio forwarding \
                     failed; {END}; {END}"
                ),
                "router l1 does not reach router l2: No route to host".to_owned(),
            ),
            (
                "l1",
                "l2",
                format!("Host key verification failed.; {END}"),
                "router l2: Host key verification failed.".to_owned(),
            ),
            // The far router drops the login, and says nothing itself.
            ("l1", "l2", format!("{END}; {END}"), format!("router l2: {END}; {END}")),
            (
                "l1",
                "l2",
                format!(
                    "channel 0: open failed: connect failed: Connection refused; stdio forwarding \
                     failed; {END}"
                ),
                "router l2 does not reach siteb: Connection refused".to_owned(),
            ),
            (
                "",
                "l2",
                "ssh: Could not resolve hostname l2: Name or service not known; ".to_owned() + END,
                "router l2: ssh: Could not resolve hostname l2: Name or service not known"
                    .to_owned(),
            ),
        ];
        for (near, far, said, what) in cases {
            let failure = judge(near, far, &said);
            assert_eq!(failure.what, what);
            assert!(!failure.is_final, "{what}");
            let is_of_router = !what.contains("does not reach");
            assert_eq!(failure.router.is_some(), is_of_router, "{what}");
        }
    }

    #[test]
    fn a_refusal_of_the_site_itself_is_final() {
        let denied = "root@siteb: Permission denied (publickey).";
        for (near, far) in [("", ""), ("l1", ""), ("l1", "l2")] {
            let failure = judge(near, far, denied);
            assert_eq!((failure.what.as_str(), failure.is_final), (denied, true));
            assert!(!judge(near, far, "the connection has ended").is_final);
        }
        let failure = judge("", "", "ssh: connect to host siteb port 22: No route to host");
        assert!(!failure.is_final && failure.router.is_none());
        // More words than there are hosts.
        let failure = judge("l1", "", &[END; 4].join("; "));
        assert!(failure.what.starts_with("on the way through l1: "), "{}", failure.what);
    }
}
