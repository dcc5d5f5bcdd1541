//! Sessions: their beginning, their end, and what is claimed back after a restart.

use super::{HELD_MAX, Locks, SESSIONS_MAX, Verdict, done, is_valid, told};
use std::collections::BTreeSet;
use tatami_wire::lock::{LOCKS_MAX, Lock, LockTold};
use tatami_wire::{ClientId, Ino};

/// What one client has here.
#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) id: u64,
    /// Number of locks, of those that are not delegated.
    pub(super) held: usize,
    /// Number of waits.
    pub(super) waits: usize,
    /// Files of which it holds locks, or waits for them, or has them delegated.
    pub(super) files: BTreeSet<Ino>,
    /// Files whose locks are delegated to it.
    pub(super) delegated: BTreeSet<Ino>,
    /// What it has claimed so far, with a claim that is not complete.
    claims: Vec<(Ino, Lock)>,
}

impl Locks {
    /// The session of a client that says that it holds nothing, as far as it knows. `None` when
    /// there are too many.
    pub(super) fn begin(&mut self, client: ClientId) -> Option<u64> {
        if let Some(session) = self.sessions.get(&client) {
            return Some(session.id);
        }
        let id = self.insert_session(client);
        self.has_come(client);
        id
    }

    fn insert_session(&mut self, client: ClientId) -> Option<u64> {
        if self.sessions.len() >= SESSIONS_MAX {
            return None;
        }
        self.last_session += 1;
        let id = self.last_session;
        self.sessions.insert(client, Session { id, ..Session::default() });
        self.changed = true;
        Some(id)
    }

    /// The client holds nothing any more, whether it says so or was away for too long.
    pub(crate) fn end(&mut self, client: ClientId) {
        self.news.remove(&client);
        if let Some(session) = self.sessions.remove(&client) {
            self.changed = true;
            self.drop_files(client, session.files);
        }
        self.has_come(client);
    }

    /// What the client had before our start is known now.
    fn has_come(&mut self, client: ClientId) {
        if self.before.remove(&client) {
            self.changed = true;
            if self.before.is_empty() {
                let all: Vec<Ino> = self.files.keys().copied().collect();
                all.into_iter().for_each(|ino| self.settle(ino));
                self.stirred = true;
            }
        }
    }

    /// Takes all that the client has of these files away, and gives it to those who wait.
    fn drop_files(&mut self, client: ClientId, files: BTreeSet<Ino>) {
        for ino in files {
            let Some(file) = self.files.get_mut(&ino) else { continue };
            let gone: Vec<_> =
                file.waiters.iter().filter(|w| w.client == client).copied().collect();
            file.drop_client(client);
            gone.iter().for_each(|waiter| self.forget_wait(ino, waiter));
            self.settle(ino);
            self.tidy(client, ino);
        }
    }

    /// Takes part of a claim; with the last, the client holds what it has claimed and nothing else.
    pub(super) fn reclaim(
        &mut self,
        client: ClientId,
        session: u64,
        locks: &[(Ino, Lock)],
        (first, last): (bool, bool),
    ) -> Verdict {
        let lost = told(0, LockTold::Unknown { reclaim: false });
        let known = self.sessions.get(&client).is_some_and(|s| s.id == session);
        if !known {
            // With another number the client goes on with what it has begun here.
            if !self.before.contains(&client) {
                return lost;
            }
            if !first {
                return told(0, LockTold::Unknown { reclaim: true });
            }
            self.sessions.remove(&client);
            if self.insert_session(client).is_none() {
                return lost;
            }
        }
        let Some(of) = self.sessions.get_mut(&client) else { return lost };
        if first {
            of.claims.clear();
        }
        let id = of.id;
        let sound = locks.len() <= LOCKS_MAX && locks.iter().all(|(_, lock)| is_valid(lock));
        if !sound || of.claims.len() + locks.len() > HELD_MAX {
            self.end(client);
            return lost;
        }
        of.claims.extend(locks);
        if !last {
            return done(id, false);
        }
        let claims = std::mem::take(&mut of.claims);
        let files = std::mem::take(&mut of.files);
        (of.held, of.delegated) = (0, BTreeSet::new());
        self.replace(client, files, &claims);
        self.has_come(client);
        done(id, false)
    }

    /// The client holds `claims` in the place of what it had of `files`. Nobody who waits gets
    /// anything in between.
    fn replace(&mut self, client: ClientId, files: BTreeSet<Ino>, claims: &[(Ino, Lock)]) {
        let mut touched = files;
        for ino in &touched {
            let Some(file) = self.files.get_mut(ino) else { continue };
            let gone: Vec<_> =
                file.waiters.iter().filter(|w| w.client == client).copied().collect();
            file.drop_client(client);
            gone.iter().for_each(|waiter| self.forget_wait(*ino, waiter));
        }
        for (ino, lock) in claims {
            let owner = (client, lock.owner);
            let file = self.files.entry(*ino).or_default();
            let free = file.table(lock.sort).conflict(owner, lock.span, lock.kind).is_none();
            // Two who claim the same do not both say the truth; the first keeps it.
            if free && file.delegated.is_none() {
                self.grant(client, *ino, lock);
            } else {
                tracing::error!(%client, %ino, "a lock that another client has was claimed back");
            }
            touched.insert(*ino);
        }
        for ino in touched {
            self.settle(ino);
            self.tidy(client, ino);
        }
    }
}
