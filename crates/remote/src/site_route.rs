//! How the bytes of files get to a site: beside ssh or through it, and through which hosts.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;

/// Longest name of a host or user, in bytes.
const NAME_MAX: usize = 255;
/// Most data connections that a program may ask for.
const STREAMS_MAX: u32 = 8;
/// Most routers of a site.
const ROUTERS_MAX: usize = 64;

/// Checks a word that becomes an argument of ssh: no option, and nothing that a shell would read.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-:%".contains(c) || !c.is_ascii();
    !name.is_empty() && name.len() <= NAME_MAX && !name.starts_with('-') && name.chars().all(plain)
}

/// A login host through which processes reach a site to which they have no route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RouterName {
    /// The user there; `None` for the one that ssh chooses.
    pub user: Option<String>,
    /// The name of the host, as ssh knows it.
    pub host: String,
    /// The port of sshd; `None` for the one that ssh chooses.
    pub port: Option<u16>,
}

impl fmt::Display for RouterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        write!(f, "{}", self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl RouterName {
    fn parse(text: &str) -> Option<RouterName> {
        let (user, place) = match text.rsplit_once('@') {
            Some((user, place)) => (Some(user.to_owned()), place),
            None => (None, text),
        };
        let (host, port) = match place.split_once(':') {
            Some((host, port)) => (host, Some(port.parse::<u16>().ok()?)),
            None => (place, None),
        };
        let name = RouterName { user, host: host.to_owned(), port };
        name.is_valid().then_some(name)
    }

    fn is_valid(&self) -> bool {
        // ssh would take an address of IPv6 in its list of hosts for a host and a port, and a
        // percent sign for one of its own words.
        let plain = |name: &str| is_plain_name(name) && !name.contains([':', '%']);
        plain(&self.host) && self.user.as_deref().is_none_or(plain) && self.port != Some(0)
    }
}

/// Whether data connections carry bytes of files in fewer bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SiteCompression {
    /// Where it makes them faster.
    #[default]
    Auto,
    /// Wherever it saves bytes.
    On,
    /// Never.
    Off,
}

impl fmt::Display for SiteCompression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SiteCompression::Auto => "auto",
            SiteCompression::On => "on",
            SiteCompression::Off => "off",
        })
    }
}

/// Whether the processes of a host share their logins by ssh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LoginSharing {
    /// They do.
    #[default]
    Shared,
    /// Each has logins of its own.
    Own,
}

impl LoginSharing {
    /// Reads the wish of this process from `TATAMI_LOGINS`.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn from_environment() -> Result<LoginSharing, String> {
        LoginSharing::parse(
            &std::env::var_os("TATAMI_LOGINS").unwrap_or_default().to_string_lossy(),
        )
    }

    fn parse(text: &str) -> Result<LoginSharing, String> {
        match text.trim() {
            "" | "shared" => Ok(LoginSharing::Shared),
            "own" => Ok(LoginSharing::Own),
            other => Err(format!("TATAMI_LOGINS: {other:?} is neither \"shared\" nor \"own\"")),
        }
    }
}

/// The wishes of a program for the way of its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SiteRoute {
    /// Data connections; 0: everything goes through ssh; `None`: as many as make it faster.
    pub streams: Option<u32>,
    /// Whether data connections have TLS; `None`: yes.
    pub encrypt: Option<bool>,
    /// Login hosts of this side, of which each process uses one.
    pub routers: Vec<RouterName>,
    /// Login hosts of the other side, of which each process uses one, too.
    pub site_routers: Vec<RouterName>,
    /// What is wrong with one of these wishes.
    pub fault: Option<String>,
    /// Whether data connections carry fewer bytes; `None`: where that makes them faster.
    pub compression: Option<SiteCompression>,
}

impl SiteRoute {
    /// Sets the number of data connections by a text. Other texts than numbers are ignored.
    pub fn set_streams(&mut self, text: &str) {
        if let Ok(streams) = text.trim().parse::<u32>() {
            self.streams = Some(streams.min(STREAMS_MAX));
        }
    }

    /// Sets whether data connections have TLS, by `on` or `off`. A wrong word must not switch it
    /// off, so it is ignored.
    pub fn set_encryption(&mut self, text: &str) {
        match text.trim() {
            "off" => self.encrypt = Some(false),
            "on" => self.encrypt = Some(true),
            _ => {}
        }
    }

    /// Sets whether data connections carry fewer bytes, by `auto`, `on` or `off`. Other words are
    /// ignored.
    pub fn set_compression(&mut self, text: &str) {
        match text.trim() {
            "auto" => self.compression = Some(SiteCompression::Auto),
            "on" => self.compression = Some(SiteCompression::On),
            "off" => self.compression = Some(SiteCompression::Off),
            _ => {}
        }
    }

    /// Returns whether data connections carry fewer bytes: the wish in force.
    pub fn compression_in_force(&self) -> SiteCompression {
        match self.streams {
            // ssh carries all bytes, as they are.
            Some(0) => SiteCompression::Off,
            _ => self.compression.unwrap_or_default(),
        }
    }

    /// Sets the routers of this side by a list `[user@]host[:port]`, separated by commas.
    pub fn set_routers(&mut self, text: &str) {
        match parse_routers("router", text) {
            Ok(routers) => self.routers = routers,
            Err(fault) => self.fault = Some(fault),
        }
    }

    /// Sets the routers of the other side by such a list.
    pub fn set_site_routers(&mut self, text: &str) {
        match parse_routers("site_router", text) {
            Ok(routers) => self.site_routers = routers,
            Err(fault) => self.fault = Some(fault),
        }
    }

    /// Fills what the program has left open from the environment of this process.
    #[must_use]
    pub fn with_environment(&self) -> SiteRoute {
        let mut route = self.clone();
        let read = |name| std::env::var(name).unwrap_or_default();
        if route.streams.is_none() {
            route.set_streams(&read("TATAMI_STREAMS"));
        }
        if route.encrypt.is_none() {
            route.set_encryption(&read("TATAMI_ENCRYPTION"));
        }
        if route.compression.is_none() {
            route.set_compression(&read("TATAMI_COMPRESSION"));
        }
        if route.routers.is_empty() && route.fault.is_none() {
            route.set_routers(&read("TATAMI_ROUTER"));
        }
        if route.site_routers.is_empty() && route.fault.is_none() {
            route.set_site_routers(&read("TATAMI_SITE_ROUTER"));
        }
        if let Err(fault) = LoginSharing::from_environment() {
            route.fault.get_or_insert(fault);
        }
        route
    }

    /// Whether all words can be arguments of ssh.
    pub fn is_valid(&self) -> bool {
        [&self.routers, &self.site_routers]
            .into_iter()
            .all(|list| list.len() <= ROUTERS_MAX && list.iter().all(RouterName::is_valid))
    }
}

/// Parses the list of a hint or variable.
fn parse_routers(key: &str, text: &str) -> Result<Vec<RouterName>, String> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let parse = |word: &str| {
        RouterName::parse(word).ok_or_else(|| format!("{key}: {word:?} is no [user@]host[:port]"))
    };
    let routers: Vec<RouterName> = words.map(parse).collect::<Result<_, _>>()?;
    match routers.len() <= ROUTERS_MAX {
        true => Ok(routers),
        false => Err(format!("{key}: more than {ROUTERS_MAX} hosts")),
    }
}

/// Parses a range of ports `FIRST-LAST` or one port.
pub fn parse_port_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.trim().split_once('-').unwrap_or((text.trim(), text.trim()));
    let range = first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?;
    (*range.start() > 0 && !range.is_empty()).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routers_are_names_that_ssh_takes_for_nothing_else() {
        let mut route = SiteRoute::default();
        route.set_routers("login1, me@login2:2222,");
        let shown: Vec<String> = route.routers.iter().map(RouterName::to_string).collect();
        assert_eq!((shown.join(" ").as_str(), &route.fault), ("login1 me@login2:2222", &None));
        for bad in
            ["-oProxyCommand=x", "a b", "a;b", "a:0", "a:x", "%h", "@a", "a@", "fe80::1", "$a"]
        {
            let mut route = SiteRoute::default();
            route.set_routers(bad);
            assert!(route.fault.is_some() && route.routers.is_empty(), "{bad}");
            let mut route = SiteRoute::default();
            route.set_site_routers(bad);
            let why = route.fault.unwrap_or_default();
            assert!(why.starts_with("site_router: ") && route.site_routers.is_empty(), "{bad}");
        }
        let many = vec!["a"; ROUTERS_MAX + 1].join(",");
        route.set_routers(&many);
        assert!(route.fault.is_some());
    }

    #[test]
    fn words_without_a_meaning_are_ignored() {
        let mut route = SiteRoute::default();
        route.set_streams("many");
        route.set_encryption("of");
        route.set_compression("fast");
        assert_eq!(route, SiteRoute::default());
        route.set_streams("100");
        route.set_encryption("off");
        assert_eq!((route.streams, route.encrypt), (Some(STREAMS_MAX), Some(false)));
        assert_eq!(route.compression_in_force(), SiteCompression::Auto);
        for word in ["on", "off", "auto"] {
            route.set_compression(word);
            assert_eq!(route.compression_in_force().to_string(), word);
        }
        route.set_streams("0");
        assert_eq!(route.compression_in_force(), SiteCompression::Off);
    }

    #[test]
    fn logins_are_shared_unless_the_user_says_otherwise() {
        for text in ["", " shared "] {
            assert_eq!(LoginSharing::parse(text), Ok(LoginSharing::Shared));
        }
        assert_eq!(LoginSharing::parse("own"), Ok(LoginSharing::Own));
        for bad in ["off", "Own", "0"] {
            let fault = LoginSharing::parse(bad).expect_err("no such word");
            assert!(fault.contains("TATAMI_LOGINS") && fault.contains(bad), "{fault}");
        }
    }

    #[test]
    fn ranges_of_ports_are_parsed() {
        assert_eq!(parse_port_range("5000-5100"), Some(5000..=5100));
        assert_eq!(parse_port_range("5000"), Some(5000..=5000));
        for bad in ["", "0", "0-5", "9-5", "5-", "-5", "1-70000", "a"] {
            assert_eq!(parse_port_range(bad), None, "{bad}");
        }
    }
}
