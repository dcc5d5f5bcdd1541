//! The evidence of a failed test: logs, stacks and the state of every process, in
//! `target/test-evidence/<test>`, collected automatically.

use crate::command::target_dir;
use crate::process::processes_of;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Largest part of one log that is kept: its end.
const LOG_KEPT: usize = 4 * 1024 * 1024;

/// Collects the evidence of the cluster in `dir`, which has its logs in the directories `logs`, and
/// returns the folder with it. `tatami` is the command for that cluster. Never panics: it runs
/// while a panic is under way.
pub fn collect(test: &str, dir: &Path, logs: &[PathBuf], tatami: &Path) -> PathBuf {
    let place = target_dir().join("test-evidence").join(test.replace("::", "-"));
    let _ = fs::remove_dir_all(&place);
    if let Err(error) = fs::create_dir_all(&place) {
        eprintln!("no evidence kept: {}: {error}", place.display());
        return place;
    }
    for pid in processes_of(dir) {
        let _ = fs::write(place.join(format!("process-{pid}.txt")), describe(pid));
    }
    for (at, root) in logs.iter().enumerate() {
        let part = if logs.len() == 1 { place.clone() } else { place.join(format!("host{at}")) };
        let _ = fs::create_dir_all(&part);
        keep_logs(root, root, &part);
    }
    let status = Command::new("timeout")
        .arg("20")
        .arg(tatami)
        .args(["status", "--dir"])
        .arg(dir)
        .stdin(Stdio::null())
        .output();
    if let Ok(output) = status {
        let _ = fs::write(place.join("status.txt"), [output.stdout, output.stderr].concat());
    }
    let _ = fs::copy("/proc/self/mountinfo", place.join("mountinfo.txt"));
    if let Ok(seed) = std::env::var("TATAMI_SEED") {
        let _ = fs::write(place.join("seed.txt"), seed);
    }
    eprintln!("logs and stacks: {}", place.display());
    place
}

/// Returns the command line, and for every thread its name, its wait channel and its stack in the
/// kernel.
fn describe(pid: i32) -> String {
    let read = |path: String| fs::read_to_string(path).unwrap_or_default();
    let mut text = read(format!("/proc/{pid}/cmdline")).replace('\0', " ");
    text.push('\n');
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return text };
    for thread in threads.flatten() {
        let at = thread.path();
        let part = |name: &str| read(at.join(name).display().to_string());
        text.push_str(&format!(
            "\nthread {} {}wchan {}\nsyscall {}{}",
            thread.file_name().display(),
            part("comm"),
            part("wchan"),
            part("syscall"),
            part("stack"),
        ));
    }
    text
}

/// Copies logs and configuration below `dir`, not crossing into mounts.
fn keep_logs(root: &Path, dir: &Path, place: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let mounts = crate::process::mounts_below(root);
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        let name = entry.file_name().to_string_lossy().into_owned();
        if kind.is_dir() {
            if !mounts.contains(&path) && name != "objects" && name != "meta" {
                keep_logs(root, &path, place);
            }
        } else if kind.is_file() && (name.contains("log") || name.ends_with(".toml")) {
            let flat = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            let bytes = fs::read(&path).unwrap_or_default();
            let end = &bytes[bytes.len().saturating_sub(LOG_KEPT)..];
            let _ = fs::write(place.join(flat.replace('/', "-")), end);
        }
    }
}
