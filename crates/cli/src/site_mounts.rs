//! `tatami mount` of a directory of another site.

use crate::error::{CommandFailure, CommandResult, ExitStatus, FailureContext};
use crate::mount_cmd::{self, MountArgs};
use crate::process::DaemonRole;
use crate::start_process::{self, ReadyPipe};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;
use tatami_mount::MountOptions;
use tatami_remote::SiteFile;
use tatami_site_mount::{SiteMount, SiteMountError, SiteMountOptions};

/// How long the kernel trusts names and attributes, unless options say otherwise.
const TRUST: Duration = Duration::from_secs(1);

/// Parses the source of a mount.
///
/// # Errors
/// It is no directory of another site.
pub fn parse_source(source: &OsStr) -> CommandResult<SiteFile> {
    let shown = source.to_string_lossy();
    let wrong = |why: String| {
        CommandFailure::usage(why)
            .try_this("a directory of another site: tatami mount HOST:DIR PATH")
    };
    match SiteFile::parse_place(source.as_bytes()) {
        Some(parsed) => parsed.map_err(wrong),
        None => Err(wrong(format!("{shown:?} is no directory of another site"))),
    }
}

/// Returns the settings of a mount. Programs with special bits and devices count only if an option
/// asks for them: the other side could offer any file.
fn settings_of(source: &OsStr, path: &Path, options: &[String]) -> CommandResult<SiteMountOptions> {
    let mut of_mount = MountOptions::new(path);
    of_mount.allow_other = false;
    (of_mount.restrictions.nosuid, of_mount.restrictions.nodev) = (true, true);
    (of_mount.attr_timeout, of_mount.entry_timeout) = (TRUST, TRUST);
    for option in options {
        mount_cmd::set_option(&mut of_mount, option)?;
    }
    Ok(SiteMountOptions {
        site: parse_source(source)?,
        source: of_mount.source,
        mountpoint: path.to_owned(),
        read_only: of_mount.read_only,
        allow_other: of_mount.allow_other,
        restrictions: of_mount.restrictions,
        trust: of_mount.attr_timeout.min(of_mount.entry_timeout),
    })
}

/// Mounts what the arguments name: a volume, an overlay or a directory of another site.
///
/// # Errors
/// It cannot be mounted.
pub fn mount_source(args: &MountArgs) -> CommandResult {
    match args.site_request() {
        Some((site, path, options, how)) => mount_site(site, path, options, how),
        None => mount_cmd::mount_volume(args),
    }
}

/// Mounts a directory of another site, in the background unless `foreground` is set.
///
/// # Errors
/// It cannot be mounted.
pub fn mount_site(
    source: &OsStr,
    mountpoint: &Path,
    options: &[String],
    (foreground, ready_fd): (bool, Option<i32>),
) -> CommandResult {
    let path = mount_cmd::resolve_path(mountpoint)?;
    let settings = settings_of(source, &path, options)?;
    if !foreground {
        let mut arguments: Vec<OsString> = ["mount", "--foreground"].map(Into::into).into();
        for option in options {
            arguments.extend(["-o".into(), option.into()]);
        }
        arguments.extend([source.to_owned(), path.clone().into()]);
        let name = format!("mount {}", path.display());
        // The directory belongs to no volume, so there is no directory for a log.
        return start_process::start_background(DaemonRole::Mount, &name, &arguments, None)?
            .wait_ready();
    }
    let mut ready = ReadyPipe::from_descriptor(ready_fd)?;
    DaemonRole::Mount.name_this_process();
    let mount = SiteMount::start(&settings).map_err(|e| match e {
        SiteMountError::Mount(e) => mount_cmd::mount_failure(&path, e),
        SiteMountError::Site(e) => {
            let what = format!("cannot mount {}", settings.site);
            let failure = CommandFailure::new(what).because(e.what.as_str());
            match e.errno == rustix::io::Errno::HOSTDOWN {
                true => CommandFailure { exit: ExitStatus::Degraded, ..failure }.try_this(format!(
                    "a login without a password, and tatami there: ssh {} tatami --version",
                    settings.site.site
                )),
                false => failure,
            }
        }
    });
    let mount = mount.map_err(|failure| ready.report_failure(failure))?;
    ready.report_ready();
    mount.run().map(drop).context(|| format!("mount {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_of_another_site_is_closed_by_default() {
        let settings = |options: &[&str]| {
            let options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
            settings_of(OsStr::new("me@siteb:/scratch"), Path::new("/mnt"), &options)
        };
        let plain = settings(&[]).unwrap_or_else(|e| panic!("{e}"));
        assert!(plain.restrictions.nosuid && plain.restrictions.nodev && !plain.allow_other);
        assert_eq!((plain.trust, plain.site.to_string().as_str()), (TRUST, "me@siteb:/scratch"));
        let other = settings(&["ro", "allow_other", "suid", "attr_timeout_ms=0"]);
        let other = other.unwrap_or_else(|e| panic!("{e}"));
        assert!(other.read_only && other.allow_other && !other.restrictions.nosuid);
        assert!(other.trust.is_zero());
        assert!(settings(&["no-such-option"]).is_err());
        for wrong in ["/a/b", "relative", "-oProxyCommand=x:/y", ""] {
            assert!(parse_source(OsStr::new(wrong)).is_err(), "{wrong}");
        }
    }
}
