//! The requests and replies of all processes, in the order in which they happened.

use crate::spec::{NamespaceSpec, SpecAnswer, SpecCall, SpecOperation};
use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History as Checked};

/// The number of a process that sends one request after the other.
pub(crate) type ProcessNumber = usize;

/// The requests and replies of a run.
#[derive(Debug, Default)]
pub(crate) struct History {
    actions: Vec<(ProcessNumber, Action<SpecOperation>)>,
    /// Positions of requests without a reply, because their processes died.
    unknown: Vec<usize>,
}

impl History {
    /// Records a request.
    pub fn record_call(&mut self, process: ProcessNumber, call: SpecCall) {
        self.actions
            .push((process, Action::Call(SpecOperation { call, answer: SpecAnswer::Unknown })));
    }

    /// Records its reply.
    pub fn record_answer(&mut self, process: ProcessNumber, call: SpecCall, answer: SpecAnswer) {
        self.actions.push((process, Action::Response(SpecOperation { call, answer })));
    }

    /// Records that the process died while it waited for a reply.
    pub fn record_death(&mut self, process: ProcessNumber) {
        self.unknown.extend(self.actions.iter().rposition(|(of, _)| *of == process));
    }

    /// Returns the number of requests.
    pub fn count_calls(&self) -> usize {
        self.actions.iter().filter(|(_, action)| matches!(action, Action::Call(_))).count()
    }

    /// Returns whether one namespace that does one operation after the other could have given these
    /// replies. An operation of a dead process was done at some time, or never. So the check tries
    /// all subsets of those operations.
    pub fn is_linearizable(&self) -> bool {
        (0..1u64 << self.unknown.len()).any(|done| self.fits_with(done))
    }

    /// Checks the history with the unknown operations that have a bit set in `done`.
    fn fits_with(&self, done: u64) -> bool {
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
        actions.is_empty()
            || WGLChecker::<NamespaceSpec>::is_linearizable(Checked::from_actions(actions))
    }

    /// Renders a line for each request and reply, for people.
    pub fn to_text(&self) -> String {
        let line = |(process, action): &(ProcessNumber, Action<SpecOperation>)| match action {
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

    const MAKE: SpecCall = SpecCall::Create { dir: Ino::ROOT, name: 1, is_dir: false };
    const LOOK: SpecCall = SpecCall::Lookup { dir: Ino::ROOT, name: 1 };

    fn node() -> SpecAnswer {
        SpecAnswer::Node { ino: Ino(9), links: 1, is_dir: false, size: 0 }
    }

    fn none() -> SpecAnswer {
        SpecAnswer::Failed(Errno::ENOENT)
    }

    #[test]
    fn answers_follow_the_order_of_time() {
        for (late, fits) in [(none(), false), (node(), true)] {
            let mut history = History::default();
            history.record_call(0, MAKE);
            history.record_answer(0, MAKE, node());
            history.record_call(1, LOOK);
            history.record_answer(1, LOOK, late);
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
            history.record_call(0, MAKE);
            history.record_death(0);
            for answer in answers {
                history.record_call(1, LOOK);
                history.record_answer(1, LOOK, answer);
            }
            assert_eq!(history.is_linearizable(), fits, "{}", history.to_text());
        }
    }
}
