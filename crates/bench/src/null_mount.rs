//! The FUSE file systems that are baselines, as processes. The empty one is the baseline of every
//! request that goes through a mount; one file by passthrough is the baseline of requests that go
//! past it.

use crate::bare_fs::PassthroughFileSystem;
use crate::error::{BenchError, io_error, path_error};
use crate::null_fs::NullFileSystem;
use crate::worker_group::Launcher;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tatami_mount::mount_handler;

/// Time for which the kernel keeps names of several mounts. It is longer than any measurement.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// Mounts the empty file system on all `paths`, or that of `file` alone, each with as many threads
/// as a volume's mount has. Writes a line to `says` when mounted, and unmounts at the end of the
/// standard input. The kernel keeps the names of several mounts, as it does for a volume.
///
/// # Errors
/// When the file system can't be mounted or unmounted.
pub fn serve_null_mounts(
    paths: &[PathBuf],
    file: Option<&Path>,
    says: &mut impl Write,
) -> Result<(), BenchError> {
    let names = NullFileSystem::new(if paths.len() > 1 { KEPT } else { Duration::ZERO });
    let mount = |path: &PathBuf| {
        let threads = tatami_mount::MountOptions::new(path).threads;
        match file {
            Some(file) => mount_handler(path, file.parent(), threads, |device| {
                PassthroughFileSystem::new(device, file)
            }),
            None => mount_handler(path, None, threads, |_| Ok::<_, BenchError>(names.clone())),
        }
    };
    let mounts = paths.iter().map(mount).collect::<Result<Vec<_>, _>>()?;
    let said = writeln!(says, "mounted").and_then(|()| says.flush());
    said.map_err(io_error("reporting the mount"))?;
    let mut rest = Vec::new();
    std::io::stdin().lock().read_to_end(&mut rest).map_err(io_error("waiting for the end"))?;
    for mount in mounts {
        mount.channel().unmount(false)?;
        mount.wait_until_unmounted(None);
    }
    Ok(())
}

/// A running file system that serves as a baseline only. Dropping it unmounts it.
pub struct NullMountProcess {
    child: Child,
    paths: Vec<PathBuf>,
}

impl NullMountProcess {
    /// Creates `path` and mounts the empty file system on it; or, by passthrough, that of `file`
    /// alone, under the name [`crate::bare_fs::FILE_NAME`].
    ///
    /// # Errors
    /// When the file system can't be mounted.
    pub fn start(
        launcher: &Launcher,
        path: &Path,
        file: Option<&Path>,
    ) -> Result<NullMountProcess, BenchError> {
        NullMountProcess::start_on(launcher, vec![path.into()], file)
    }

    /// Creates all `paths` and mounts one empty file system on them. A name that is made through
    /// one of the mounts is there through all.
    ///
    /// # Errors
    /// When the file system can't be mounted.
    pub fn start_several(
        launcher: &Launcher,
        paths: Vec<PathBuf>,
    ) -> Result<NullMountProcess, BenchError> {
        NullMountProcess::start_on(launcher, paths, None)
    }

    fn start_on(
        launcher: &Launcher,
        paths: Vec<PathBuf>,
        file: Option<&Path>,
    ) -> Result<NullMountProcess, BenchError> {
        for path in &paths {
            std::fs::create_dir_all(path).map_err(path_error("creating", path))?;
        }
        let mut command = Command::new(&launcher.program);
        command.arg("null-mount").args(&paths);
        if let Some(file) = file {
            command.arg("--file").arg(file);
        }
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(path_error("starting", &launcher.program))?;
        let out = child.stdout.take().expect("its output was asked for");
        let mount = NullMountProcess { child, paths };
        // The process prints one line when the file system is mounted, and nothing when it can't
        // be.
        let mut line = String::new();
        let heard = BufReader::new(out).read_line(&mut line);
        if !matches!(heard, Ok(n) if n > 0) {
            let problem = format!("does not mount {}", mount.paths[0].display());
            return Err(BenchError::Program { program: "tatami-bench null-mount".into(), problem });
        }
        Ok(mount)
    }

    /// Returns the process number.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for NullMountProcess {
    fn drop(&mut self) {
        // The end of its input ends the process. A mount that it could not remove is detached.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
        for path in &self.paths {
            let _ = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
        }
    }
}
