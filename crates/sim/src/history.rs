//! The requests and replies of all processes, in the order in which they happened.

use crate::spec::{Answer, Call, Operation, Spec};
use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History as Checked};

/// The number of a process that sends one request after the other.
pub(crate) type Process = usize;

/// The requests and replies of a run.
#[derive(Debug, Default)]
pub(crate) struct History {
    actions: Vec<(Process, Action<Operation>)>,
    /// Positions of requests without a reply, because their processes died.
    unknown: Vec<usize>,
}

impl History {
    /// Records a request.
    pub fn asked(&mut self, process: Process, call: Call) {
        self.actions.push((process, Action::Call(Operation { call, answer: Answer::Unknown })));
    }

    /// Records its reply.
    pub fn answered(&mut self, process: Process, call: Call, answer: Answer) {
        self.actions.push((process, Action::Response(Operation { call, answer })));
    }

    /// Records that the process died while it waited for a reply.
    pub fn died(&mut self, process: Process) {
        self.unknown.extend(self.actions.iter().rposition(|(of, _)| *of == process));
    }

    /// Returns the number of requests.
    pub fn questions(&self) -> usize {
        self.actions.iter().filter(|(_, action)| matches!(action, Action::Call(_))).count()
    }

    /// Returns whether one namespace that does one operation after the other could have given these
    /// replies. An operation of a dead process was done at some time, or never. So the check tries
    /// all subsets of those operations.
    pub fn is_linearizable(&self) -> bool {
        (0..1u64 << self.unknown.len()).any(|done| self.fits(done))
    }

    /// Checks the history with the unknown operations that have a bit set in `done`.
    fn fits(&self, done: u64) -> bool {
        let bit = |at: &usize| self.unknown.iter().position(|unknown| unknown == at);
        let never = |at: &usize| bit(at).is_some_and(|bit| done >> bit & 1 == 0);
        let known = self.actions.iter().enumerate().filter(|(at, _)| !never(at));
        let mut actions: Vec<_> = known.map(|(_, action)| action.clone()).collect();
        for at in self.unknown.iter().filter(|at| !never(at)) {
            if let (process, Action::Call(operation)) = &self.actions[*at] {
                // Done at some time: a reply at the very end constrains the order least.
                actions.push((*process, Action::Response(operation.clone())));
            }
        }
        actions.is_empty() || WGLChecker::<Spec>::is_linearizable(Checked::from_actions(actions))
    }

    /// Renders a line for each request and reply, for people.
    pub fn lines(&self) -> String {
        let line = |(process, action): &(Process, Action<Operation>)| match action {
            Action::Call(operation) => format!("{process:3}   {:?}\n", operation.call),
            Action::Response(operation) => {
                format!("{process:3} = {:?} {:?}\n", operation.call, operation.answer)
            }
        };
        self.actions.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::{Errno, Ino};

    const MAKE: Call = Call::Create { dir: Ino::ROOT, name: 1, is_dir: false };
    const LOOK: Call = Call::Lookup { dir: Ino::ROOT, name: 1 };

    fn node() -> Answer {
        Answer::Node { ino: Ino(9), links: 1, is_dir: false }
    }

    fn none() -> Answer {
        Answer::Failed(Errno::ENOENT)
    }

    #[test]
    fn answers_follow_the_order_of_time() {
        for (late, fits) in [(none(), false), (node(), true)] {
            let mut history = History::default();
            history.asked(0, MAKE);
            history.answered(0, MAKE, node());
            history.asked(1, LOOK);
            history.answered(1, LOOK, late);
            assert_eq!(history.is_linearizable(), fits);
        }
    }

    #[test]
    fn what_a_dead_process_asked_for_happens_later_or_never_but_not_both() {
        for (answers, fits) in [
            ([none(), none()], true),
            ([none(), node()], true),
            ([node(), node()], true),
            ([node(), none()], false),
        ] {
            let mut history = History::default();
            history.asked(0, MAKE);
            history.died(0);
            for answer in answers {
                history.asked(1, LOOK);
                history.answered(1, LOOK, answer);
            }
            assert_eq!(history.is_linearizable(), fits, "{}", history.lines());
        }
    }
}
