//! Paths on the command line: in the volume (`:/dir/file`), on this machine, or on a machine of
//! another site (`host:/dir/file`).

use crate::error::{CommandFailure, CommandResult};
use crate::site_tree;
use crate::term;
use crate::volume_dir::VolumeDir;
use rustix::process::{getegid, geteuid, getgroups};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use tatami_client::tree::{VolumeTree, join_path};
use tatami_remote::SiteFile;
use tatami_wire::{Cred, Errno, GROUPS_MAX, NodeId};

/// A path as given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnyPath {
    /// In the volume, absolute.
    Volume(Vec<u8>),
    /// On this machine.
    Local(PathBuf),
    /// On a machine of another site.
    Site(SiteFile),
}

impl AnyPath {
    /// `:/a`, `:a` and `tatami:/a` are paths in the volume; `host:/a`, `user@host:a` and
    /// `tatami://host/a` are on another site. A local file with a colon in its name is written
    /// `./name`.
    ///
    /// # Errors
    /// A sentence: the text before the colon is no address.
    pub fn parse(text: OsString) -> Result<AnyPath, String> {
        let bytes = text.as_bytes();
        let is_url = bytes.starts_with(b"tatami://");
        let rest = bytes.strip_prefix(b":").or_else(|| bytes.strip_prefix(b"tatami:"));
        match rest.filter(|_| !is_url) {
            Some(rest) if rest.starts_with(b"/") => Ok(AnyPath::Volume(rest.to_vec())),
            Some(rest) => Ok(AnyPath::Volume([b"/", rest].concat())),
            None => match SiteFile::parse_place(bytes) {
                Some(file) => file.map(AnyPath::Site),
                None => Ok(AnyPath::Local(text.into())),
            },
        }
    }
}

/// Clap's parser for paths.
#[derive(Clone, Debug)]
pub struct AnyPathParser;

impl clap::builder::TypedValueParser for AnyPathParser {
    type Value = AnyPath;

    fn parse_ref(
        &self,
        command: &clap::Command,
        _: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<AnyPath, clap::Error> {
        AnyPath::parse(value.to_owned()).map_err(|why| {
            let name = term::escape_name(value.as_bytes());
            let text = format!("{why}\n\n  tip: a local file with a colon is written ./{name}\n");
            clap::Error::raw(clap::error::ErrorKind::ValueValidation, text).with_cmd(command)
        })
    }
}

impl clap::builder::ValueParserFactory for AnyPath {
    type Parser = AnyPathParser;

    fn value_parser() -> AnyPathParser {
        AnyPathParser
    }
}

/// For messages.
impl std::fmt::Display for AnyPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AnyPath::Volume(path) => write!(f, ":{}", term::escape_name(path)),
            AnyPath::Local(path) => f.write_str(&term::escape_name(path.as_os_str().as_bytes())),
            AnyPath::Site(file) => {
                let path = term::escape_name(file.path.as_os_str().as_bytes());
                write!(f, "{}{path}", file.prefix())
            }
        }
    }
}

impl AnyPath {
    /// Returns the path within the volume.
    ///
    /// # Errors
    /// The path is local; the failure has the remedy.
    pub fn require_volume(&self) -> CommandResult<&[u8]> {
        match self {
            AnyPath::Volume(path) => Ok(path),
            AnyPath::Local(path) => {
                let what = format!("{self} is a path on this machine, not in the volume");
                let name = path.strip_prefix("/").unwrap_or(path);
                Err(CommandFailure::usage(what).try_this(format!(
                    "paths in the volume begin with a colon: :/{}",
                    term::escape_name(name.as_os_str().as_bytes())
                )))
            }
            AnyPath::Site(_) => {
                let what = format!("{self} is on another site, and this command is for volumes");
                Err(CommandFailure::usage(what)
                    .try_this("ls, cat, stat, mkdir, rm, cp and du work on other sites"))
            }
        }
    }

    /// Returns the path with a name appended.
    pub fn join(&self, name: &[u8]) -> AnyPath {
        match self {
            AnyPath::Volume(path) => AnyPath::Volume(join_path(path, name)),
            AnyPath::Local(path) => AnyPath::Local(path.join(OsStr::from_bytes(name))),
            AnyPath::Site(file) => AnyPath::Site(site_tree::append_name(file, name)),
        }
    }

    /// Whether the path is on another site.
    pub fn is_site(&self) -> bool {
        matches!(self, AnyPath::Site(_))
    }

    /// Returns the path as the user writes it, for JSON.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            AnyPath::Volume(path) => [b":", &path[..]].concat(),
            AnyPath::Local(path) => path.as_os_str().as_bytes().to_vec(),
            AnyPath::Site(file) => {
                [file.prefix().as_bytes(), file.path.as_os_str().as_bytes()].concat()
            }
        }
    }

    /// Returns a failure for this path, with a remedy for the error number.
    pub fn operation_failure(&self, what: &str, errno: Errno) -> CommandFailure {
        let what = format!("{what} {self}");
        match self {
            AnyPath::Site(file) => site_tree::site_failure(file, &what, errno),
            _ => volume_failure(&what, errno),
        }
    }
}

/// ` --dir DIR` of the volume that this command has connected to.
static DIR_FLAG: OnceLock<String> = OnceLock::new();

/// Returns ` --dir DIR` for remedies, where the volume is not the default one. A process works on
/// one volume, so that its many operations need not pass the directory along.
fn dir_flag() -> &'static str {
    DIR_FLAG.get().map_or("", String::as_str)
}

/// Returns a failure of an operation on the volume, with a remedy for the error number.
pub fn volume_failure(what: &str, errno: Errno) -> CommandFailure {
    let failure = CommandFailure::new(format!("{what}: {errno}"));
    match errno {
        Errno::EHOSTDOWN => CommandFailure { exit: crate::error::ExitStatus::Degraded, ..failure }
            .try_this(format!("tatami status{} names the node, and what to do", dir_flag())),
        Errno::EKEYREJECTED | Errno::EPROTO => {
            failure.try_this("this user may lack the volume's key for other nodes: run it as root")
        }
        Errno::ENOSPC => failure.try_this(format!("tatami df{0}; tatami status{0}", dir_flag())),
        Errno::ENAMETOOLONG => failure.because("a name has at most 255 bytes, a path 4096"),
        Errno::ELOOP => failure.because("symbolic links lead in a circle, or through more than 40"),
        _ => failure,
    }
}

/// Returns the credentials of the calling user.
pub fn current_cred() -> Cred {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let groups = getgroups().unwrap_or_default();
    Cred { uid, gid, groups: groups.iter().map(|g| g.as_raw()).take(GROUPS_MAX).collect() }
}

/// Returns the umask: the permission bits that new files do not get.
pub fn read_umask() -> u16 {
    // Setting the umask is the only way to read it. No other thread of this process makes files
    // meanwhile.
    let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    rustix::process::umask(mask);
    mask.bits() as u16 & 0o777
}

/// Connects to the volume as the calling user.
///
/// # Errors
/// No daemon answers.
pub fn connect_tree(place: &VolumeDir, node: Option<NodeId>) -> CommandResult<VolumeTree> {
    DIR_FLAG.get_or_init(|| place.dir_flag());
    Ok(VolumeTree::new(place.connect_client(node)?, current_cred()))
}

/// Returns the last component of a path; empty for the root.
pub fn last_component(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |i| i + 1);
    let start = path[..end].iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1);
    &path[start..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_means_the_volume() {
        let parse = |text: &str| AnyPath::parse(OsString::from(text)).expect("a path");
        assert_eq!(parse(":/a/b"), AnyPath::Volume(b"/a/b".to_vec()));
        assert_eq!(parse("tatami:/a"), AnyPath::Volume(b"/a".to_vec()));
        assert_eq!(parse(":a"), AnyPath::Volume(b"/a".to_vec()));
        assert_eq!(parse(":"), AnyPath::Volume(b"/".to_vec()));
        assert_eq!(parse("./:a"), AnyPath::Local("./:a".into()));
        assert_eq!(parse("./a:/b"), AnyPath::Local("./a:/b".into()));
        for site in ["a:/b", "me@a:b", "tatami://a:22/b"] {
            assert!(parse(site).is_site() && parse(site).to_string() == site, "{site}");
        }
        assert!(AnyPath::parse(OsString::from("-a:/b")).is_err());
        let text = parse("/dir/f").require_volume().expect_err("local").report();
        assert!(text.contains(":/dir/f"), "{text}");
    }

    #[test]
    fn the_last_name_of_a_path() {
        for (path, name) in
            [("/a/b", "b"), ("/a/b//", "b"), ("b", "b"), ("/", ""), ("", ""), ("/..", "..")]
        {
            assert_eq!(last_component(path.as_bytes()), name.as_bytes(), "{path}");
        }
    }

    #[test]
    fn the_umask_is_read_and_left() {
        assert_eq!(read_umask(), read_umask());
    }
}
