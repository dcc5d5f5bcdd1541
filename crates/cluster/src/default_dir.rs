//! The directory of the volume of a user without another choice, and the volumes that the
//! administrator has named for the whole machine.

use std::path::{Path, PathBuf};

/// The directory of the machine's settings. Each directory in it, or symbolic link to one, is a
/// volume with that name.
pub const SYSTEM_DIR: &str = "/etc/tatami";
/// The name in [`SYSTEM_DIR`] of the volume of users without another choice.
pub const DEFAULT_NAME: &str = "default";

/// Returns the default directory of a volume: the one that the administrator has chosen for the
/// machine; else a system directory for the superuser, and for others one below their own data.
/// `None` if the environment names no such place.
pub fn default_volume_dir() -> Option<PathBuf> {
    let chosen = Path::new(SYSTEM_DIR).join(DEFAULT_NAME);
    if chosen.is_dir() {
        return Some(resolve_system_name(chosen));
    }
    if rustix::process::geteuid().is_root() {
        return Some("/var/lib/tatami".into());
    }
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let data =
        absolute("XDG_DATA_HOME").or_else(|| absolute("HOME").map(|h| h.join(".local/share")));
    Some(data?.join("tatami"))
}

/// Returns the directory of a volume that is named by a link in [`SYSTEM_DIR`]; any other path
/// stays as it is. Records of mounts and nodes name directories, so a volume must have one path.
pub fn resolve_system_name(dir: PathBuf) -> PathBuf {
    let is_name = dir.parent() == Some(Path::new(SYSTEM_DIR));
    if is_name { dir.canonicalize().unwrap_or(dir) } else { dir }
}
