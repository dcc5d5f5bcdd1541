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
use tatami_mount::mount_handler;

/// Mounts the empty file system on `path`, or that of `file` alone, with as many threads as a
/// volume's mount has. Writes a line to `says` when mounted, and unmounts at the end of the
/// standard input.
///
/// # Errors
/// When the file system can't be mounted or unmounted.
pub fn serve_null_mount(
    path: &Path,
    file: Option<&Path>,
    says: &mut impl Write,
) -> Result<(), BenchError> {
    let threads = tatami_mount::MountOptions::new(path).threads;
    let mount = match file {
        Some(file) => mount_handler(path, file.parent(), threads, |device| {
            PassthroughFileSystem::new(device, file)
        })?,
        None => mount_handler(path, None, threads, |_| Ok::<_, BenchError>(NullFileSystem::new()))?,
    };
    let said = writeln!(says, "mounted").and_then(|()| says.flush());
    said.map_err(io_error("reporting the mount"))?;
    let mut rest = Vec::new();
    std::io::stdin().lock().read_to_end(&mut rest).map_err(io_error("waiting for the end"))?;
    mount.channel().unmount(false)?;
    mount.wait_until_unmounted(None);
    Ok(())
}

/// A running file system that serves as a baseline only. Dropping it unmounts it.
pub struct NullMountProcess {
    child: Child,
    path: PathBuf,
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
        std::fs::create_dir_all(path).map_err(path_error("creating", path))?;
        let mut command = Command::new(&launcher.program);
        command.arg("null-mount").arg(path);
        if let Some(file) = file {
            command.arg("--file").arg(file);
        }
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(path_error("starting", &launcher.program))?;
        let out = child.stdout.take().expect("its output was asked for");
        let mount = NullMountProcess { child, path: path.into() };
        // The process prints one line when the file system is mounted, and nothing when it can't
        // be.
        let mut line = String::new();
        let heard = BufReader::new(out).read_line(&mut line);
        if !matches!(heard, Ok(n) if n > 0) {
            let problem = format!("does not mount {}", path.display());
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
        let _ = rustix::mount::unmount(&self.path, rustix::mount::UnmountFlags::DETACH);
    }
}
