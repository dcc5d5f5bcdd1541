//! The note in the directory of a job's volume about the process that keeps the volume. It is there
//! as soon as the volume is ready.

use crate::error::{CommandResult, FailureContext};
use crate::process::{ProcessRecord, RunningProcess};
use crate::replace_file::replace_file;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Its name.
const NOTE: &str = "keeper.toml";

/// The content of the note.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeeperNote {
    /// The id of the job.
    pub job: String,
    /// The name of the machine of the process.
    pub host: String,
    /// The process, on its own machine.
    pub process: Option<ProcessRecord>,
}

impl KeeperNote {
    /// Writes the note.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn save(&self, dir: &Path) -> CommandResult {
        let text = toml::to_string(self).context(|| NOTE.to_owned())?;
        replace_file(&dir.join(NOTE), &text)
    }

    /// Reads the note; `None` if there is no volume of a job that is ready.
    pub fn load(dir: &Path) -> Option<KeeperNote> {
        let path = dir.join(NOTE);
        let note: KeeperNote = toml::from_str(&std::fs::read_to_string(&path).ok()?).ok()?;
        note.process.as_ref().is_none_or(|process| process.may_be_from(&path)).then_some(note)
    }

    /// Returns the process, if this is its machine and it lives.
    pub fn find_running(&self) -> Option<RunningProcess> {
        self.process.as_ref()?.find_running()
    }

    /// Whether the volume is kept, as far as this machine knows.
    pub fn is_kept(&self) -> bool {
        self.process.is_none() || self.find_running().is_some()
    }
}
