//! The directory of the volume of a user without another choice.

use std::path::PathBuf;

/// Returns the default directory of a volume: a system directory for the superuser, for others one
/// below their own data. `None` if the environment names no such place.
pub fn default_volume_dir() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some("/var/lib/tatami".into());
    }
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let data =
        absolute("XDG_DATA_HOME").or_else(|| absolute("HOME").map(|h| h.join(".local/share")));
    Some(data?.join("tatami"))
}
