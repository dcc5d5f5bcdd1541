//! Programs of others, run on a mount. If one fails, its output is shown.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The output of a program.
#[derive(Debug)]
pub struct Said {
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
}

/// Returns the command for a line of arguments separated by blanks. For arguments with blanks use
/// `.arg`.
pub fn program(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().expect("a program's name"));
    command.args(words).stdin(Stdio::null());
    // Messages are compared and read by people: one language.
    command.env("LC_ALL", "C");
    command
}

/// Returns the command for a shell script in `dir`; the first command that fails ends it.
pub fn shell(dir: &Path, script: &str) -> Command {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]).current_dir(dir).stdin(Stdio::null());
    command.env("LC_ALL", "C");
    command
}

/// Runs a command to its end.
///
/// # Panics
/// If it cannot be started: the message names the Debian packages to install.
pub fn ask(command: &mut Command) -> Said {
    let output = command.output().unwrap_or_else(|error| {
        panic!("{:?}: {error}: `make test` installs what the tests need", command.get_program())
    });
    said(output)
}

fn said(output: Output) -> Said {
    Said {
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
        code: output.status.code(),
    }
}

/// Runs a command to its end, which must be a success.
///
/// # Panics
/// With all output of the program, if it fails.
pub fn run(command: &mut Command) -> Said {
    let said = ask(command);
    assert!(
        said.code == Some(0),
        "{command:?} ended with {:?}\n--- stdout\n{}\n--- stderr\n{}",
        said.code,
        tail(&said.out),
        tail(&said.err)
    );
    said
}

/// Returns a number that may exceed 2^53: `--json` writes it as decimal text.
///
/// # Panics
/// If it is none.
pub fn wide_number(value: &serde_json::Value) -> u64 {
    let text = value.as_str().unwrap_or_else(|| panic!("{value} is no decimal text"));
    text.parse().unwrap_or_else(|e| panic!("{value}: {e}"))
}

/// Returns the last lines of a long text.
pub fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(80)..].join("\n")
}

/// Returns the command for `line` as another user: `uid` and the group of the same number, no other
/// groups.
pub fn as_user(uid: u32, line: &str) -> Command {
    let id = uid.to_string();
    let mut command = program("setpriv --clear-groups");
    command.args(["--reuid", &id, "--regid", &id]);
    command.args(line.split_whitespace());
    command
}

/// Copies a program that a test then starts.
///
/// Another process copies: a program that another test starts meanwhile would inherit the
/// descriptor for writing, and the kernel executes no file that is open for writing.
pub fn copy_program(from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) {
    run(program("cp --preserve=mode").arg(from).arg(to));
}

/// Returns the folder of the workspace's `target`.
pub fn target_dir() -> PathBuf {
    let test = std::env::current_exe().expect("a running program has a path");
    // target/debug/deps/posix-0123abcd
    test.ancestors().nth(3).expect("tests lie in target/PROFILE/deps").to_owned()
}

/// Returns the program under test: `TATAMI_BIN`, or the one built beside this test.
///
/// # Panics
/// If it does not exist.
pub fn tatami_bin() -> PathBuf {
    let path = match std::env::var_os("TATAMI_BIN") {
        Some(path) => PathBuf::from(path),
        None => {
            let test = std::env::current_exe().expect("a running program has a path");
            test.ancestors().nth(2).expect("tests lie in target/PROFILE/deps").join("tatami")
        }
    };
    assert!(
        path.is_file(),
        "{} is not there: `make test` builds it first, or set TATAMI_BIN",
        path.display()
    );
    path
}

/// Returns a tool that `make test` builds from the sources of others into `target/tools`.
///
/// # Panics
/// If it does not exist.
pub fn tool(name: impl AsRef<OsStr>) -> PathBuf {
    let path = target_dir().join("tools/bin").join(name.as_ref());
    assert!(path.is_file(), "{} is not there: `make tools` builds it", path.display());
    path
}

/// Returns the folder of this crate in the sources, for data that tests read.
pub fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
