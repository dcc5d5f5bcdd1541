//! What `tatami run` hands to the programs that it starts, in environment variables.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// The paths at which the program sees the volume, separated by colons. Without it the library does
/// nothing.
pub(crate) const AT_VARIABLE: &str = "TATAMI_PRELOAD_AT";
/// The directory of the volume.
pub(crate) const DIR_VARIABLE: &str = "TATAMI_PRELOAD_DIR";
/// The number of the home node.
pub(crate) const NODE_VARIABLE: &str = "TATAMI_PRELOAD_NODE";
/// How long an operation waits for a node, in seconds.
pub(crate) const PATIENCE_VARIABLE: &str = "TATAMI_PRELOAD_PATIENCE";
/// The working directory in the volume, for a program that another one has started.
pub(crate) const CWD_VARIABLE: &str = "TATAMI_PRELOAD_CWD";
/// The open files that a program inherits.
pub(crate) const FILES_VARIABLE: &str = "TATAMI_PRELOAD_FILES";

/// Most paths at which a program sees the volume.
const PREFIXES_MAX: usize = 16;

/// The settings of this process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The paths of the volume's root, as names from the root of the machine.
    pub(crate) prefixes: Vec<Vec<Vec<u8>>>,
    pub(crate) dir: PathBuf,
    pub(crate) node: Option<u16>,
    pub(crate) patience: Duration,
}

impl Settings {
    /// Reads the settings from variables; `None` where there is no volume.
    pub(crate) fn from_variables(get: impl Fn(&str) -> Option<OsString>) -> Option<Settings> {
        let at = get(AT_VARIABLE)?;
        let dir = PathBuf::from(get(DIR_VARIABLE)?);
        let prefixes: Vec<_> = at
            .as_bytes()
            .split(|b| *b == b':')
            .filter(|path| path.starts_with(b"/"))
            .map(split_names)
            .filter(|names| !names.is_empty())
            .take(PREFIXES_MAX)
            .collect();
        let number = |name| get(name).and_then(|text| text.to_str()?.parse::<u64>().ok());
        if prefixes.is_empty() || !dir.is_absolute() {
            return None;
        }
        Some(Settings {
            prefixes,
            dir,
            node: number(NODE_VARIABLE).and_then(|n| u16::try_from(n).ok()),
            patience: number(PATIENCE_VARIABLE)
                .map_or(tatami_client_patience(), Duration::from_secs),
        })
    }

    /// Returns the path of a prefix.
    pub(crate) fn prefix_path(&self, prefix: usize) -> Vec<u8> {
        let names = self.prefixes.get(prefix).or(self.prefixes.first());
        let mut path = Vec::new();
        for name in names.into_iter().flatten() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        path
    }
}

/// The time that an operation waits for a node without any other setting.
fn tatami_client_patience() -> Duration {
    Duration::from_secs(60)
}

/// Returns the names of a path, without empty ones and `.`.
fn split_names(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|b| *b == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
        .map(<[u8]>::to_vec)
        .collect()
}

static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();

/// Returns the settings of this process, if it has a volume.
pub(crate) fn settings() -> Option<&'static Settings> {
    SETTINGS.get_or_init(|| Settings::from_variables(|name| std::env::var_os(name))).as_ref()
}

/// Returns the value of a variable as bytes.
pub(crate) fn read_variable(name: &str) -> Option<Vec<u8>> {
    std::env::var_os(name).map(OsStringExt::into_vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(at: &str, dir: &str, node: &str) -> Option<Settings> {
        let at = [(AT_VARIABLE, at), (DIR_VARIABLE, dir), (NODE_VARIABLE, node)];
        Settings::from_variables(|name| at.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into()))
    }

    #[test]
    fn prefixes_are_absolute_paths_below_the_root() {
        let found = read("/mnt/t:/data//x/", "/v", "3").expect("two paths");
        assert_eq!(found.prefixes.len(), 2);
        assert_eq!(found.prefix_path(1), b"/data/x");
        assert_eq!(found.node, Some(3));
        assert_eq!(read("/", "/v", "3"), None, "the whole machine is no volume");
        assert_eq!(read("mnt", "/v", ""), None);
        assert_eq!(read("/mnt", "v", ""), None);
        assert_eq!(read("/mnt", "/v", "70000").and_then(|s| s.node), None);
    }
}
