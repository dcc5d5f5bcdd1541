//! A process that starts daemons for a test.
//!
//! A new process begins as a copy of its parent, and closes the parent's files when it executes
//! another program. Closing a file on a mount waits for the daemon that has its bytes. So a test
//! with such files open and a dead daemon would wait for itself. Therefore the process that
//! restarts daemons is created before any file is open.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Reads commands, runs them one after the other, and answers each with a line: its exit code.
pub(crate) struct Starter {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Starter {
    /// Starts the process, for the volume in `dir`.
    pub(crate) fn new(dir: &Path) -> Starter {
        let script = r#"while read -r node program; do "$program" node start --dir "$0" "$node" >/dev/null; echo $?; done"#;
        let mut process = Command::new("bash")
            .args(["-c", script])
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bash runs");
        let orders = process.stdin.take().expect("it is a pipe");
        let answers = BufReader::new(process.stdout.take().expect("it is a pipe"));
        Starter { process, orders, answers }
    }

    /// Runs `node start` of a `tatami`.
    ///
    /// # Panics
    /// If that fails.
    pub(crate) fn start(&mut self, program: &Path, node: u16) {
        writeln!(self.orders, "{node} {}", program.display()).expect("the process reads");
        let mut code = String::new();
        self.answers.read_line(&mut code).expect("the process answers");
        assert!(code.trim() == "0", "tatami node start {node} ended with {:?}", code.trim());
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
