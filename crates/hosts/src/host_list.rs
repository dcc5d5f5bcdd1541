//! Lists of hosts: on a command line, and in the files of Open MPI, MPICH, PBS and Slurm.

use crate::network::strip_brackets;
use std::collections::BTreeSet;
use std::net::Ipv6Addr;

/// Most hosts of a list.
pub const HOSTS_MAX: usize = 1024;
/// Longest name of a host, in bytes (RFC 1035).
const HOST_NAME_MAX: usize = 253;
/// Longest file of hosts, in bytes.
pub const HOSTFILE_MAX: u64 = 1 << 20;
/// Most digits of a number in brackets.
const DIGITS_MAX: usize = 9;

/// The faults of a list of hosts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostListError {
    /// It names no host.
    #[error("it names no host")]
    Empty,
    /// A name that no host can have.
    #[error(
        "{0:?} is no name of a host: letters, digits, dots, hyphens and underscores, and ranges of \
         numbers in brackets, such as node[01-16]"
    )]
    Name(String),
    /// The text in brackets is no list of numbers and ranges.
    #[error("{0:?} is no list of numbers and ranges, such as 01-16,20")]
    Range(String),
    /// It names too many hosts.
    #[error("it names more than {HOSTS_MAX} hosts")]
    TooMany,
    /// A host is named twice.
    #[error("the host {0} is named twice, and a host has one node")]
    Twice(String),
    /// A fault in a line of a file.
    #[error("line {line}: {fault}")]
    Line {
        /// The number of the line, from 1 on.
        line: usize,
        /// The fault.
        fault: Box<HostListError>,
    },
    /// A line has a word that no known form has.
    #[error(
        "{0:?} is not understood: a line has the name of a host, and may have a number of slots, \
         as host:4 or host slots=4"
    )]
    Word(String),
}

/// Returns the hosts of a list for the command line: names with commas between them. A part in
/// brackets stands for several numbers: `node[01-03,07]` is `node01,node02,node03,node07`.
///
/// # Errors
/// [`HostListError`]; a host that is named twice is one.
pub fn parse_host_list(text: &str) -> Result<Vec<String>, HostListError> {
    let hosts = expand_list(text)?;
    let mut seen = BTreeSet::new();
    match hosts.iter().find(|host| !seen.insert(host.as_str())) {
        Some(twice) => Err(HostListError::Twice(twice.clone())),
        None if hosts.is_empty() => Err(HostListError::Empty),
        None => Ok(hosts),
    }
}

/// Returns the hosts of a file, each once: Open MPI (`host slots=4`), MPICH (`host:4`), PBS (a name
/// in several lines) and Slurm (`host[01-16]`). The numbers of slots do not matter here: a host has
/// one node. `#` begins a comment.
///
/// # Errors
/// [`HostListError`], with the number of the line.
pub fn parse_hostfile(text: &str) -> Result<Vec<String>, HostListError> {
    let (mut hosts, mut seen) = (Vec::new(), BTreeSet::new());
    for (number, line) in text.lines().enumerate() {
        let at_line = |fault| HostListError::Line { line: number + 1, fault: Box::new(fault) };
        for host in parse_line(line).map_err(at_line)? {
            if seen.insert(host.clone()) {
                hosts.push(host);
            }
            if hosts.len() > HOSTS_MAX {
                return Err(at_line(HostListError::TooMany));
            }
        }
    }
    if hosts.is_empty() { Err(HostListError::Empty) } else { Ok(hosts) }
}

fn parse_line(line: &str) -> Result<Vec<String>, HostListError> {
    let line = line.split('#').next().unwrap_or_default();
    let mut words = line.split_whitespace();
    let Some(names) = words.next() else { return Ok(Vec::new()) };
    // Open MPI has slots=4 max_slots=8, MPICH binding=user:0,1.
    if let Some(word) = words.find(|word| !word.contains('=')) {
        return Err(HostListError::Word(word.to_owned()));
    }
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let names = match names.rsplit_once(':') {
        // The last number of an IPv6 address is no number of slots.
        _ if is_ipv6(strip_brackets(names)) => names,
        Some((names, slots)) if is_number(slots) => names,
        _ => names,
    };
    expand_list(names)
}

/// Returns the names of a list, in its order.
fn expand_list(text: &str) -> Result<Vec<String>, HostListError> {
    let mut hosts = Vec::new();
    for part in split_outside_brackets(text) {
        if !part.is_empty() {
            expand_name(part, &mut hosts)?;
        }
    }
    Ok(hosts)
}

/// Splits at the commas that are not in brackets.
fn split_outside_brackets(text: &str) -> Vec<&str> {
    let mut is_inside = false;
    let splits = move |c: char| {
        match c {
            '[' => is_inside = true,
            ']' => is_inside = false,
            _ => {}
        }
        !is_inside && (c == ',' || c.is_whitespace())
    };
    text.split(splits).collect()
}

/// Adds the hosts for which one part of a list stands. Each pair of brackets multiplies them.
fn expand_name(part: &str, hosts: &mut Vec<String>) -> Result<(), HostListError> {
    if is_ipv6(strip_brackets(part)) {
        hosts.push(strip_brackets(part).to_owned());
        return Ok(());
    }
    let wrong = || HostListError::Name(part.to_owned());
    let (mut names, mut rest) = (vec![String::new()], part);
    loop {
        let (plain, after) = match rest.split_once('[') {
            Some((plain, after)) => (plain, Some(after)),
            None => (rest, None),
        };
        names.iter_mut().for_each(|name| name.push_str(plain));
        let Some(after) = after else { break };
        let (inside, behind) = after.split_once(']').ok_or_else(wrong)?;
        let numbers = expand_ranges(inside)?;
        if names.len() * numbers.len() > HOSTS_MAX {
            return Err(HostListError::TooMany);
        }
        let join = |name: &String| numbers.iter().map(|n| format!("{name}{n}")).collect::<Vec<_>>();
        names = names.iter().flat_map(join).collect();
        rest = behind;
    }
    if !names.iter().all(|name| is_host_name(name)) {
        return Err(wrong());
    }
    if hosts.len() + names.len() > HOSTS_MAX {
        return Err(HostListError::TooMany);
    }
    hosts.extend(names);
    Ok(())
}

/// Returns the numbers of `01-03,7` with the leading zeros that they have there.
fn expand_ranges(inside: &str) -> Result<Vec<String>, HostListError> {
    let wrong = || HostListError::Range(inside.to_owned());
    let number = |text: &str| {
        let fits = (1..=DIGITS_MAX).contains(&text.len());
        let digits = fits && text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse::<u32>().ok()).flatten().ok_or_else(wrong)
    };
    let mut found = Vec::new();
    for range in inside.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (from, to) = (number(first)?, number(last)?);
        if from > to {
            return Err(wrong());
        }
        if (to - from) as usize + found.len() >= HOSTS_MAX {
            return Err(HostListError::TooMany);
        }
        let width = first.len();
        found.extend((from..=to).map(|n| format!("{n:0width$}")));
    }
    Ok(found)
}

fn is_ipv6(text: &str) -> bool {
    text.parse::<Ipv6Addr>().is_ok()
}

/// Whether this can be the name of a host, or its address. A name never begins with a hyphen: `ssh`
/// would take it for an option.
pub fn is_host_name(name: &str) -> bool {
    if is_ipv6(name) {
        return true;
    }
    let good = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    name.len() <= HOST_NAME_MAX
        && name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
        && name.bytes().all(good)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_in_brackets_stand_for_numbers() {
        let hosts = |text| parse_host_list(text).map(|hosts| hosts.join(" "));
        assert_eq!(hosts("node[01-03],other").as_deref(), Ok("node01 node02 node03 other"));
        assert_eq!(
            hosts("n[8-11,3]-ib.x").as_deref(),
            Ok("n8-ib.x n9-ib.x n10-ib.x n11-ib.x n3-ib.x")
        );
        assert_eq!(hosts("r[1-2]n[01-02]").as_deref(), Ok("r1n01 r1n02 r2n01 r2n02"));
        assert_eq!(hosts(" a, b ,").as_deref(), Ok("a b"));
        assert_eq!(hosts("10.0.0.[1-2]").as_deref(), Ok("10.0.0.1 10.0.0.2"));
        assert_eq!(hosts("fd00::1,[fd00::2],n1").as_deref(), Ok("fd00::1 fd00::2 n1"));
        let lines = parse_hostfile("[fd00::1]:4\nfd00::2\nfd00::3 slots=4\n");
        assert_eq!(lines.map(|hosts| hosts.join(" ")).as_deref(), Ok("fd00::1 fd00::2 fd00::3"));
        assert_eq!(parse_host_list("n[0001-1024]").map(|hosts| hosts.len()), Ok(HOSTS_MAX));
    }

    #[test]
    fn faults_of_a_list_are_named() {
        let fault = |text| parse_host_list(text).expect_err(text);
        assert_eq!(fault(""), HostListError::Empty);
        assert_eq!(fault("a,b,a"), HostListError::Twice("a".into()));
        assert_eq!(fault("n[1-2],n2"), HostListError::Twice("n2".into()));
        for name in ["-oProxyCommand=x", "a b;c", "n[1", "n]", "user@host", "é", "a/b", "[-1]"] {
            let fault = fault(name);
            let is_named = matches!(fault, HostListError::Name(_) | HostListError::Range(_));
            assert!(is_named, "{name}: {fault}");
        }
        for range in ["n[2-1]", "n[]", "n[x]", "n[1-]", "n[1--2]", "n[+1]", "n[99999999999]"] {
            assert!(matches!(fault(range), HostListError::Range(_)), "{range}");
        }
        for much in ["n[1-1025]", "n[1-100]m[1-100]", "n[0-999999999]", "a[1-600],b[1-600]"] {
            assert_eq!(fault(much), HostListError::TooMany, "{much}");
        }
    }

    #[test]
    fn files_of_four_kinds_are_understood() {
        let hosts = |text| parse_hostfile(text).map(|hosts| hosts.join(" "));
        let open_mpi = "# a comment\nn1 slots=4 max_slots=8\n\nn2 slots=2 # another\nn3\n";
        assert_eq!(hosts(open_mpi).as_deref(), Ok("n1 n2 n3"));
        assert_eq!(hosts("n1:4\nn2:2 binding=user:0,1\nn1:1").as_deref(), Ok("n1 n2"));
        assert_eq!(hosts("n1\nn1\nn2\nn2\n").as_deref(), Ok("n1 n2"));
        assert_eq!(hosts("node[01-03],other\n").as_deref(), Ok("node01 node02 node03 other"));
        assert_eq!(hosts("# nothing\n").expect_err("empty"), HostListError::Empty);
        let fault = hosts("n1\nn2 4\n").expect_err("a bare number").to_string();
        assert!(fault.starts_with("line 2: \"4\" is not understood"), "{fault}");
        assert!(hosts("n1\nn:x\n").expect_err("no number").to_string().contains("line 2"));
    }

    proptest! {
        #[test]
        fn any_text_is_a_list_or_an_error(text in r"[a-c0-9\[\],: =#\n-]{0,60}") {
            let _ = parse_host_list(&text);
            if let Ok(hosts) = parse_hostfile(&text) {
                prop_assert!(hosts.iter().all(|host| is_host_name(host)));
            }
        }
    }
}
