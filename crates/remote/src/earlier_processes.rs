//! The I/O processes that a session had before. sshd may keep one for a while after its link has
//! broken, with calls in its input. It is ended before any of these calls is repeated.

use crate::remote_message::SiteProcess;
use crate::ssh_link::SshLink;

/// Most processes that are remembered.
const PROCESSES_MAX: usize = 64;

/// Those that may still run, with the ids of their machines.
#[derive(Debug, Default)]
pub(crate) struct EarlierProcesses(Vec<(String, SiteProcess)>);

impl EarlierProcesses {
    /// Records the process of a new link. Returns the others of its machine: they have to end.
    pub(crate) fn add_link(&mut self, link: &SshLink) -> Vec<SiteProcess> {
        let others = self.0.iter().filter(|(machine, _)| *machine == link.machine);
        let others = others.map(|(_, process)| *process).collect();
        if let Some(process) = link.process {
            self.0.truncate(PROCESSES_MAX);
            self.0.push((link.machine.clone(), process));
        }
        others
    }

    /// Forgets the processes that have ended.
    pub(crate) fn forget_ended(&mut self, ended: &[SiteProcess]) {
        self.0.retain(|(_, process)| !ended.contains(process));
    }
}
