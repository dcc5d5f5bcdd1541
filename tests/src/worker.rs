//! A user of the file system that knows its expected state at every moment. The worker is alone in
//! a folder of its own, does one random operation after the other, and checks each against a model.

use crate::model::{Model, Op, Outcome};
use crate::seed::Rng;
use crate::subject::{Subject, compare};
use std::path::{Path, PathBuf};

/// One user at work.
pub struct Worker {
    model: Model,
    subject: Subject,
    rng: Rng,
    handles: bool,
    /// The operation under way when the file system died.
    unknown: Option<Op>,
    /// Operations done.
    pub done: u64,
}

impl Worker {
    /// Creates `folder` and works in it. With `handles`, the worker also keeps files open.
    ///
    /// # Panics
    /// If the folder cannot be made.
    pub fn new(folder: impl Into<PathBuf>, seed: u64, handles: bool) -> Worker {
        let folder = folder.into();
        std::fs::create_dir_all(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        Worker {
            model: Model::default(),
            subject: Subject::new(folder),
            rng: Rng::with_seed(seed),
            handles,
            unknown: None,
            done: 0,
        }
    }

    /// Does one more operation, which must do the same as the model. With one exception: an append
    /// to a file on another node may report an unknown result if the daemon dies
    /// (docs/reference/semantics.md).
    ///
    /// # Errors
    /// A sentence, if the results differ.
    pub fn step(&mut self) -> Result<(), String> {
        let op = Op::random(&mut self.rng, self.handles);
        self.done += 1;
        let before = matches!(op, Op::Append { .. }).then(|| self.model.clone());
        let expected = self.model.apply(&op);
        let found = self.subject.apply(&op);
        if found == expected {
            return Ok(());
        }
        let differs = format!(
            "step {}: {op:?} in {}: {found:?}, not {expected:?}",
            self.done,
            self.subject.root().display()
        );
        let (Op::Append { path, .. }, Some(before)) = (&op, before) else {
            return Err(differs);
        };
        if found != Outcome::Error(rustix::io::Errno::IO) {
            return Err(differs);
        }
        let read = Op::Read { path: path.clone() };
        let there = self.subject.apply(&read);
        for mut model in [self.model.clone(), before] {
            if model.apply(&read) == there {
                self.model = model;
                return Ok(());
            }
        }
        Err(format!("{differs}; and the file is neither as before nor as after: {there:?}"))
    }

    /// Does one more operation on a file system that may die meanwhile. Returns `false` on an I/O
    /// error or the end of the connection; then the effect of the operation is unknown.
    ///
    /// # Errors
    /// A sentence, if the operation did something else than the model.
    pub fn step_until_death(&mut self) -> Result<bool, String> {
        let op = Op::random(&mut self.rng, self.handles);
        self.done += 1;
        let mut after = self.model.clone();
        let expected = after.apply(&op);
        let found = self.subject.apply(&op);
        if found == expected {
            self.model = after;
            return Ok(true);
        }
        match found {
            // ECANCELED: the kernel was about to hand the request over by a ring.
            Outcome::Error(
                rustix::io::Errno::CONNABORTED
                | rustix::io::Errno::NOTCONN
                | rustix::io::Errno::CANCELED
                | rustix::io::Errno::IO,
            ) => {
                self.unknown = Some(op);
                Ok(false)
            }
            _ => Err(format!("step {}: {op:?}: {found:?}, not {expected:?}", self.done)),
        }
    }

    /// Compares everything with `folder` after a death. The operation that was under way may have
    /// been done, or not, and a write may have been done in part.
    ///
    /// # Errors
    /// A sentence, if neither fits.
    pub fn settle(&mut self, folder: &Path) -> Result<(), String> {
        let before = self.compare(folder);
        let Some(op) = self.unknown.take() else { return before };
        let Err(why_not) = before else { return Ok(()) };
        let mut done = self.model.clone();
        done.apply(&op);
        if compare(&done, folder).is_ok() {
            return Ok(());
        }
        // A write was under way, so the content of that file is unknown.
        let (Op::Write { path, .. } | Op::Append { path, .. }) = &op else {
            return Err(format!("neither done nor undone: {op:?}: {why_not}"));
        };
        for model in [&mut self.model, &mut done] {
            let read = Op::Read { path: path.clone() };
            let found = Subject::new(folder).apply(&read);
            let Outcome::Bytes(bytes) = found else { continue };
            model.replace(path, bytes);
        }
        compare(&self.model, folder).or_else(|_| compare(&done, folder))
    }

    /// Compares everything with `folder` as another mount shows it.
    ///
    /// # Errors
    /// A sentence, at the first difference.
    pub fn compare(&self, folder: &Path) -> Result<(), String> {
        compare(&self.model, folder).map_err(|e| format!("after {} steps: {e}", self.done))
    }
}
