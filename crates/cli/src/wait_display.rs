//! Shows on a terminal for which node a command waits: one line a node, updated in place.

use crate::term;
use indicatif::ProgressBar;
use parking_lot::Mutex;
use std::io::IsTerminal;
use tatami_client::{NodeWait, WaitObserver};

/// The lines of nodes that are waited for, by the name of the node.
static LINES: Mutex<Vec<(String, ProgressBar)>> = Mutex::new(Vec::new());

/// Shows the waits of a client. Without a terminal on standard error it shows nothing.
#[derive(Debug)]
pub struct WaitDisplay {
    /// The name of the node that the client connects to first.
    first: String,
}

impl WaitDisplay {
    /// `first` is the name of the node that the client connects to first.
    pub fn new(first: &str) -> WaitDisplay {
        WaitDisplay { first: first.to_owned() }
    }
}

impl WaitObserver for WaitDisplay {
    fn report_wait(&self, wait: &NodeWait<'_>) {
        if !std::io::stderr().is_terminal() {
            return;
        }
        let name = if wait.node.is_some() { wait.name } else { &self.first };
        let text = NodeWait { name, ..*wait }.to_string();
        let mut lines = LINES.lock();
        if let Some((_, line)) = lines.iter().find(|(of, _)| of == wait.name) {
            if line.message() != text {
                line.set_message(text);
            }
            return;
        }
        let line = term::new_line(&text).unwrap_or_else(|| {
            // A terminal on which lines cannot be updated gets one line an outage.
            term::print_note(&text);
            ProgressBar::hidden()
        });
        lines.push((wait.name.to_owned(), line));
    }

    fn report_end(&self, name: &str, _: bool) {
        LINES.lock().retain(|(of, line)| {
            let stays = of != name;
            if !stays {
                term::remove_line(line);
            }
            stays
        });
    }
}
