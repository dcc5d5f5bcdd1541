//! Hints of an open and the environment, read once.

use crate::token::EngineKind;
use std::path::PathBuf;
use tatami_remote::{SiteAddress, SiteBackend, SiteMap};

/// The requests of a program. Unknown keys and meaningless values are ignored, as MPI demands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hints {
    /// `tatami_container`: whether a new file becomes a container.
    pub container: Option<bool>,
    /// `tatami_tiled`: whether a file on a mount of a volume gets a piece for each rank.
    pub tiled: Option<bool>,
    /// `tatami_plain`: whether ordinary files are served, too.
    pub plain: Option<bool>,
    /// `ind_rd_buffer_size`: bytes read at a time for scattered requests, 4 KiB to 1 GiB.
    pub read_buffer: usize,
    /// `romio_ds_read` is not `disable`: a gap may be read to save a call.
    pub sieve: bool,
    /// `tatami_write_behind`: whether writes to another site may wait for the next sync. By default
    /// they do if one process alone has the file open.
    pub write_behind: Option<bool>,
    /// `host`, with `user`, `port` and `path`: the file lies on another site. `path` is the
    /// directory of the program `tatami` there. `router`, `site_router`, `tatami_streams`,
    /// `tatami_encryption` and `tatami_compression` are about the way of bytes to it.
    pub site: Option<SiteAddress>,
    /// `tatami_backend`: how the other site keeps the file.
    pub backend: Option<SiteBackend>,
    /// The pieces of a volume's file lie on all nodes of the volume in turn, and not on those of
    /// the ranks. No program can ask for it: an I/O process does.
    pub spread: bool,
}

const READ_BUFFER: usize = 4 << 20;

impl Default for Hints {
    fn default() -> Hints {
        Hints {
            container: None,
            tiled: None,
            plain: None,
            read_buffer: READ_BUFFER,
            sieve: true,
            write_behind: None,
            site: None,
            backend: None,
            spread: false,
        }
    }
}

impl Hints {
    /// Reads the known keys of `pairs`.
    pub fn new<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Hints {
        let (mut hints, mut site) = (Hints::default(), SiteAddress::default());
        for (key, value) in pairs {
            let value = value.trim();
            match key {
                "host" => site.host = value.to_owned(),
                "user" => site.user = Some(value.to_owned()),
                // 0 is no port, so the address is refused at the open.
                "port" => site.port = Some(value.parse().unwrap_or(0)),
                "path" => site.program = Some(format!("{}/tatami", value.trim_end_matches('/'))),
                "router" => site.route.set_routers(value),
                "site_router" => site.route.set_site_routers(value),
                "tatami_streams" => site.route.set_streams(value),
                "tatami_encryption" => site.route.set_encryption(value),
                "tatami_compression" => site.route.set_compression(value),
                "tatami_container" => hints.container = parse_bool(value).or(hints.container),
                "tatami_tiled" => hints.tiled = parse_bool(value).or(hints.tiled),
                // A word without a meaning is refused at the open.
                "tatami_backend" => hints.backend = Some(SiteBackend::parse(value)),
                "tatami_plain" => hints.plain = parse_bool(value).or(hints.plain),
                "tatami_write_behind" => {
                    hints.write_behind = parse_bool(value).or(hints.write_behind);
                }
                "ind_rd_buffer_size" => {
                    if let Ok(bytes) = value.parse::<usize>() {
                        hints.read_buffer = bytes.clamp(4096, 1 << 30);
                    }
                }
                "romio_ds_read" => hints.sieve = value != "disable",
                _ => {}
            }
        }
        hints.site = (!site.host.is_empty()).then_some(site);
        hints
    }

    /// The hints in force, as lines `key=value`.
    pub fn to_lines(&self, kind: EngineKind) -> String {
        format!(
            "tatami_container={}\ntatami_tiled={}\ntatami_plain={}\nind_rd_buffer_size={}\nromio_ds_read={}\n",
            kind == EngineKind::Container,
            kind == EngineKind::Volume,
            kind == EngineKind::Plain,
            self.read_buffer,
            if self.sieve { "automatic" } else { "disable" },
        )
    }
}

fn parse_bool(value: &str) -> Option<bool> {
    match value {
        "true" | "1" | "enable" | "yes" => Some(true),
        "false" | "0" | "disable" | "no" => Some(false),
        _ => None,
    }
}

/// The paths that an environment variable selects: all, or those below some directories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PathSelection {
    /// Not set.
    #[default]
    Nowhere,
    /// `1`.
    Everywhere,
    /// Real paths of directories.
    Below(Vec<PathBuf>),
}

impl PathSelection {
    /// Parses a variable's value: `1`, or directories separated by colons. Directories that do not
    /// exist select nothing.
    pub fn new(value: Option<&str>) -> PathSelection {
        match value.unwrap_or("") {
            "" | "0" => PathSelection::Nowhere,
            "1" => PathSelection::Everywhere,
            list => PathSelection::Below(
                list.split(':').filter_map(|dir| std::fs::canonicalize(dir).ok()).collect(),
            ),
        }
    }

    /// Whether a file with this real path is selected.
    pub fn covers_path(&self, real: &std::path::Path) -> bool {
        match self {
            PathSelection::Nowhere => false,
            PathSelection::Everywhere => true,
            PathSelection::Below(dirs) => dirs.iter().any(|dir| real.starts_with(dir)),
        }
    }
}

/// The settings in the environment of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `TATAMI_CONTAINER`.
    pub container: PathSelection,
    /// `TATAMI_PLAIN`.
    pub plain: PathSelection,
    /// `TATAMI_TILED`.
    pub tiled: Option<bool>,
    /// `TATAMI_SITES`: directories here that stand for directories of other sites.
    pub sites: SiteMap,
    /// What is wrong with that variable.
    pub sites_error: Option<String>,
    /// `TATAMI_BACKEND`: the hint `tatami_backend` of files without it.
    pub backend: Option<SiteBackend>,
}

impl Environment {
    /// Reads the environment. Directories are resolved now.
    pub fn read() -> Environment {
        let variable = |name| PathSelection::new(std::env::var(name).ok().as_deref());
        let tiled = std::env::var("TATAMI_TILED").ok().and_then(|value| parse_bool(&value));
        let (container, plain) = (variable("TATAMI_CONTAINER"), variable("TATAMI_PLAIN"));
        let sites = std::env::var("TATAMI_SITES").unwrap_or_default();
        let (sites, sites_error) = match SiteMap::parse(&sites) {
            Ok(sites) => (sites, None),
            Err(why) => (SiteMap::default(), Some(format!("TATAMI_SITES: {why}"))),
        };
        let backend = std::env::var("TATAMI_BACKEND").ok().filter(|value| !value.is_empty());
        let backend = backend.map(|value| SiteBackend::parse(&value));
        Environment { container, plain, tiled, sites, sites_error, backend }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_without_a_meaning_are_ignored() {
        let hints = Hints::new([
            ("tatami_container", "true"),
            ("tatami_container", "perhaps"),
            ("ind_rd_buffer_size", "-3"),
            ("cb_nodes", "7"),
        ]);
        assert_eq!(hints, Hints { container: Some(true), ..Hints::default() });
    }

    #[test]
    fn directories_cover_what_is_below_them_and_not_their_namesakes() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        let wanted = PathSelection::new(Some(&format!("/nowhere:{}", real.display())));
        assert!(wanted.covers_path(&real.join("a/b")));
        assert!(!wanted.covers_path(&PathBuf::from(format!("{}x/a", real.display()))));
        assert!(PathSelection::new(Some("1")).covers_path(&real));
        assert_eq!(PathSelection::new(None), PathSelection::Nowhere);
    }
}
