//! The address of a site, and the names by which programs reach its files.

use crate::site_route::{RouterName, SiteRoute, is_plain_name};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The start of a path on another site, as a program may write it.
const SCHEME: &str = "tatami://";

/// A machine of another site, as ssh reaches it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SiteAddress {
    /// The name of the host, an address, or a name of the user's ssh configuration.
    pub host: String,
    /// The user there; `None` for the one that ssh chooses.
    pub user: Option<String>,
    /// The port of sshd; `None` for the one that ssh chooses.
    pub port: Option<u16>,
    /// The path of the program `tatami` there; `None`: it is searched.
    pub program: Option<String>,
    /// The way of bytes to it.
    pub route: SiteRoute,
}

impl fmt::Display for SiteAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        match self.host.contains(':') {
            true => write!(f, "[{}]", self.host)?,
            false => write!(f, "{}", self.host)?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl SiteAddress {
    /// Parses `[user@]host[:port]`; an IPv6 address stands in brackets.
    ///
    /// # Errors
    /// A sentence.
    pub fn parse(text: &str) -> Result<SiteAddress, String> {
        let bad = || format!("{text:?} is no [user@]host[:port]");
        let (user, place) = match text.rsplit_once('@') {
            Some((user, place)) => (Some(user.to_owned()), place),
            None => (None, text),
        };
        let (host, port) = match place.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or_else(bad)?;
                (host, rest.strip_prefix(':').or((!rest.is_empty()).then_some("?")))
            }
            None => match place.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (place, None),
            },
        };
        let port = port.map(|port| port.parse().map_err(|_| bad())).transpose()?;
        let address = SiteAddress { host: host.to_owned(), user, port, ..SiteAddress::default() };
        if address.is_valid() { Ok(address) } else { Err(bad()) }
    }

    /// Returns the address of a login host.
    pub(crate) fn of_router(router: &RouterName) -> SiteAddress {
        let RouterName { user, host, port } = router.clone();
        SiteAddress { host, user, port, ..SiteAddress::default() }
    }

    /// Checks that the parts can be arguments of ssh. An address that comes from the hints of a
    /// program or from another process is checked before each use.
    pub fn is_valid(&self) -> bool {
        let program = self.program.as_deref();
        is_plain_name(&self.host)
            && self.user.as_deref().is_none_or(is_plain_name)
            && self.port != Some(0)
            && self.route.is_valid()
            && program
                .is_none_or(|path| path.starts_with('/') && !path.contains(['\'', '\n', '\0']))
    }
}

/// A file on another site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SiteFile {
    /// The site.
    pub site: SiteAddress,
    /// The path there. A relative one starts at the home directory of the user there.
    pub path: PathBuf,
}

impl fmt::Display for SiteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.prefix(), self.path.display())
    }
}

/// Returns the parts of `[user@]host:path` before and after the colon. A colon behind a slash is
/// one of a path here.
fn split_place(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let user = text.iter().position(|b| matches!(b, b'@' | b':' | b'/'));
    let host = user.filter(|at| text[*at] == b'@').map_or(0, |at| at + 1);
    let end = match text.get(host) {
        Some(b'[') => host + text[host..].iter().position(|b| *b == b']')? + 1,
        _ => host + text[host..].iter().position(|b| matches!(b, b':' | b'/'))?,
    };
    (end > 0 && text.get(end) == Some(&b':')).then(|| (&text[..end], &text[end + 1..]))
}

impl SiteFile {
    /// Returns the text that stands before the path, as [`SiteFile::parse_place`] reads it.
    pub fn prefix(&self) -> String {
        match self.site.port {
            Some(_) => format!("{SCHEME}{}", self.site),
            None => format!("{}:", self.site),
        }
    }

    /// Parses `[user@]host:path`, as for scp(1), or a URL, whose path may be that of a directory.
    /// `None`: a path of this machine.
    ///
    /// # Errors
    /// A sentence.
    pub fn parse_place(text: &[u8]) -> Option<Result<SiteFile, String>> {
        let (place, path) = match text.strip_prefix(SCHEME.as_bytes()) {
            Some(rest) => {
                let slash = rest.iter().position(|b| *b == b'/').unwrap_or(rest.len());
                (&rest[..slash], if slash == rest.len() { b"/".as_slice() } else { &rest[slash..] })
            }
            None => split_place(text)?,
        };
        let site = std::str::from_utf8(place).map_err(|_| "no name of a host".to_owned());
        Some(site.and_then(SiteAddress::parse).map(|site| {
            let path = if path.is_empty() { b"." } else { path };
            SiteFile { site, path: PathBuf::from(OsStr::from_bytes(path)) }
        }))
    }

    /// Parses `tatami://[user@]host[:port]/path`. `None` for any other path.
    ///
    /// # Errors
    /// A sentence.
    pub fn parse_url(path: &Path) -> Option<Result<SiteFile, String>> {
        let rest = path.as_os_str().as_bytes().strip_prefix(SCHEME.as_bytes())?;
        let slash = rest.iter().position(|b| *b == b'/').unwrap_or(rest.len());
        let (place, file) = rest.split_at(slash);
        let site = std::str::from_utf8(place).map_err(|_| "no name of a host".to_owned());
        Some(site.and_then(SiteAddress::parse).and_then(|site| match file.len() {
            0 | 1 => Err(format!("{} names no file: {SCHEME}{site}/DIR/FILE", path.display())),
            _ => Ok(SiteFile { site, path: PathBuf::from(OsStr::from_bytes(file)) }),
        }))
    }
}

/// Directories and files here that stand for those of other sites.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteMap(Vec<(PathBuf, SiteFile)>);

impl SiteMap {
    /// Parses entries `PATH=tatami://[user@]host[:port]/PATH`, separated by commas. The paths are
    /// those of directories or files.
    ///
    /// # Errors
    /// A sentence that names the entry.
    pub fn parse(text: &str) -> Result<SiteMap, String> {
        let entry = |entry: &str| -> Result<(PathBuf, SiteFile), String> {
            let (dir, url) = entry
                .split_once('=')
                .filter(|(dir, _)| dir.starts_with('/'))
                .ok_or_else(|| format!("{entry:?} is no /DIR=tatami://HOST/DIR"))?;
            let file = SiteFile::parse_url(Path::new(url));
            let file = file.ok_or_else(|| format!("{url:?} does not start with {SCHEME}"))??;
            Ok((PathBuf::from(dir), file))
        };
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        Ok(SiteMap(entries.map(entry).collect::<Result<_, _>>()?))
    }

    /// Returns the file of another site for which a path here stands. The longest directory counts.
    pub fn find_file(&self, path: &Path) -> Option<SiteFile> {
        let within = |(dir, there): &(PathBuf, SiteFile)| {
            let rest = path.strip_prefix(dir).ok()?;
            // An entry may name a file. A join with nothing would make a directory of it.
            let path = match rest.as_os_str().is_empty() {
                true => there.path.clone(),
                false => there.path.join(rest),
            };
            let file = SiteFile { site: there.site.clone(), path };
            Some((dir.as_os_str().len(), file))
        };
        self.0.iter().filter_map(within).max_by_key(|(len, _)| *len).map(|(_, file)| file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_are_parsed_and_shown() {
        for text in ["siteb", "me@siteb", "me@siteb.example.org:2222", "[fe80::1%eth0]:22", "[::1]"]
        {
            assert_eq!(SiteAddress::parse(text).expect(text).to_string(), text);
        }
        let bad = ["", "@host", "me@", "-oProxyCommand=x", "a@-x", "host:", "host:0", "host:x"];
        for text in bad.into_iter().chain(["[::1", "[::1]x", "a b", "a;b", "a/b", "host:1:2"]) {
            assert!(SiteAddress::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_url_names_a_site_and_a_file() {
        let parse = |text: &str| SiteFile::parse_url(Path::new(text));
        let file = parse("tatami://me@b:22/scratch/x.nc").expect("a URL").expect("a good one");
        assert_eq!((file.site.host.as_str(), file.site.port), ("b", Some(22)));
        assert_eq!(file.path, Path::new("/scratch/x.nc"));
        assert!(parse("/scratch/x.nc").is_none() && parse("tatami:/x").is_none());
        for bad in ["tatami://b", "tatami://b/", "tatami:///x", "tatami://-b/x"] {
            assert!(parse(bad).expect("a URL").is_err(), "{bad}");
        }
    }

    #[test]
    fn a_colon_before_any_slash_names_a_site() {
        let parse = |text: &str| SiteFile::parse_place(text.as_bytes());
        for (text, shown) in [
            ("b:/x/y", "b:/x/y"),
            ("me@b:x", "me@b:x"),
            ("b:", "b:."),
            ("b:a:b", "b:a:b"),
            ("b:a@c", "b:a@c"),
            ("me@[fe80::1]:/x", "me@[fe80::1]:/x"),
            ("tatami://b/x", "b:/x"),
            ("tatami://b", "b:/"),
            ("tatami://b:22/x", "tatami://b:22/x"),
        ] {
            let file = parse(text).expect(text).expect(text);
            assert_eq!(file.to_string(), shown);
            assert_eq!(parse(shown), Some(Ok(file)), "{shown}");
        }
        for here in ["x", "/a:b", "./a:b", "a/b:c", "[::1]", "a@b", ":x", "[a", ""] {
            assert_eq!(parse(here), None, "{here}");
        }
        for bad in ["-x:/y", "@b:/x", "a b:c", "tatami://-b/x"] {
            assert!(parse(bad).expect(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_longest_directory_of_a_map_counts() {
        let map = "/b=tatami://b/scratch, /b/deep=tatami://c/d, /f=tatami://d/f";
        let map = SiteMap::parse(map).expect("a map");
        let file = map.find_file(Path::new("/f")).expect("a file");
        assert_eq!(file.path.as_os_str(), "/f");
        let find = |path: &str| map.find_file(Path::new(path)).map(|file| file.to_string());
        assert_eq!(find("/b/x/y").as_deref(), Some("b:/scratch/x/y"));
        assert_eq!(find("/b/deep/y").as_deref(), Some("c:/d/y"));
        assert_eq!(find("/bb/y"), None);
        assert!(SiteMap::parse("b=tatami://b/x").is_err());
        assert!(SiteMap::parse("/b=ssh://b/x").is_err());
        assert_eq!(SiteMap::parse("").expect("empty").find_file(Path::new("/b")), None);
    }

    proptest! {
        #[test]
        fn no_address_is_an_option_or_has_a_word_for_a_shell(text in ".{0,40}") {
            if let Ok(address) = SiteAddress::parse(&text) {
                for part in [Some(address.host), address.user].into_iter().flatten() {
                    prop_assert!(!part.starts_with('-'));
                    prop_assert!(!part.contains([' ', ';', '\'', '"', '$', '`', '\\', '&', '|']));
                }
            }
        }
    }
}
