//! A user of the file system who knows, at every moment, what must be there:
//! works in a folder of its own, alone, one random operation after the other,
//! each checked against a model.

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
    /// Works in `folder`, which is made. With `handles`, it also keeps files open.
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

    /// One more operation, which must do what the model says. With one
    /// exception: an append to a file on another node whose daemon dies may
    /// answer that it does not know (docs/SEMANTICS.md).
    ///
    /// # Errors
    /// A sentence, if it does not.
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

    /// One more operation, on a file system that may die under it: an I/O error
    /// or the end of the connection is answered with `false`, and what the
    /// operation did is not known.
    ///
    /// # Errors
    /// A sentence, if it did something else than the model says.
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
            Outcome::Error(
                rustix::io::Errno::CONNABORTED | rustix::io::Errno::NOTCONN | rustix::io::Errno::IO,
            ) => {
                self.unknown = Some(op);
                Ok(false)
            }
            _ => Err(format!("step {}: {op:?}: {found:?}, not {expected:?}", self.done)),
        }
    }

    /// Compares everything with `folder`, after a death: the operation that was
    /// under way may have been done, or not, and a write may have been done in part.
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
        // Bytes that were under way: that file's content is not known.
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

    /// Compares everything with what another mount shows in `folder`.
    ///
    /// # Errors
    /// A sentence, at the first difference.
    pub fn compare(&self, folder: &Path) -> Result<(), String> {
        compare(&self.model, folder).map_err(|e| format!("after {} steps: {e}", self.done))
    }
}
