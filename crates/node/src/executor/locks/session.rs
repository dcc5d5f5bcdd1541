//! Sessions: their beginning, their end, and the reclaiming of locks after a restart.

use super::lock_session::ServerLockSession;
use super::{HELD_MAX, LockDecision, SESSIONS_MAX, ServerLocks, done_reply, is_valid, lock_reply};
use std::collections::BTreeSet;
use tatami_wire::lock::{LOCKS_MAX, Lock, LockOpReply};
use tatami_wire::{ClientId, Ino};

impl ServerLocks {
    /// Returns the session of a client that holds no locks, as far as it knows. `None` when there
    /// are too many sessions.
    pub(super) fn begin_session(&mut self, client: ClientId) -> Option<u64> {
        if let Some(session) = self.sessions.get(&client) {
            return Some(session.id);
        }
        let id = self.insert_session(client);
        self.mark_returned(client);
        id
    }

    fn insert_session(&mut self, client: ClientId) -> Option<u64> {
        if self.sessions.len() >= SESSIONS_MAX {
            return None;
        }
        self.last_session += 1;
        let id = self.last_session;
        self.sessions.insert(client, ServerLockSession { id, ..ServerLockSession::default() });
        self.clients_changed = true;
        Some(id)
    }

    /// Ends a session: the client has said that it holds nothing, or was away for too long.
    pub(crate) fn end_session(&mut self, client: ClientId) {
        self.notices.remove(&client);
        if let Some(session) = self.sessions.remove(&client) {
            self.clients_changed = true;
            self.drop_files(client, session.files);
        }
        self.mark_returned(client);
    }

    /// Records that the client's locks from before our start are known now.
    fn mark_returned(&mut self, client: ClientId) {
        if self.former_clients.remove(&client) {
            self.clients_changed = true;
            if self.former_clients.is_empty() {
                // The last such client: only now is it certain that a free lock is free.
                let all: Vec<Ino> = self.files.keys().copied().collect();
                all.into_iter().for_each(|ino| self.grant_waiting(ino));
                self.woken = true;
            }
        }
    }

    /// Drops all locks and waits of the client on these files, and grants the freed locks to
    /// waiters.
    fn drop_files(&mut self, client: ClientId, files: BTreeSet<Ino>) {
        for ino in files {
            let Some(file) = self.files.get_mut(&ino) else { continue };
            let gone: Vec<_> =
                file.waiters.iter().filter(|w| w.client == client).copied().collect();
            file.drop_client(client);
            gone.iter().for_each(|waiter| self.forget_wait(ino, waiter));
            self.grant_waiting(ino);
            self.remove_if_unused(client, ino);
        }
    }

    /// Takes part of a reclaim. With the last part, the client holds exactly the locks it has
    /// reclaimed.
    pub(super) fn reclaim_locks(
        &mut self,
        client: ClientId,
        session: u64,
        locks: &[(Ino, Lock)],
        (first, last): (bool, bool),
    ) -> LockDecision {
        let lost = lock_reply(0, LockOpReply::UnknownSession { reclaim: false });
        let known = self.sessions.get(&client).is_some_and(|s| s.id == session);
        if !known {
            // The first part comes with the number of an earlier session, the later ones with the
            // number that is assigned here.
            if !self.former_clients.contains(&client) {
                return lost;
            }
            if !first {
                return lock_reply(0, LockOpReply::UnknownSession { reclaim: true });
            }
            self.sessions.remove(&client);
            if self.insert_session(client).is_none() {
                return lost;
            }
        }
        // The parts are only collected here: with the last one, the locks change all at once.
        let Some(of) = self.sessions.get_mut(&client) else { return lost };
        if first {
            of.partial_claims.clear();
        }
        let id = of.id;
        let sound = locks.len() <= LOCKS_MAX && locks.iter().all(|(_, lock)| is_valid(lock));
        if !sound || of.partial_claims.len() + locks.len() > HELD_MAX {
            self.end_session(client);
            return lost;
        }
        of.partial_claims.extend(locks);
        if !last {
            return done_reply(id, false);
        }
        let claims = std::mem::take(&mut of.partial_claims);
        let files = std::mem::take(&mut of.files);
        (of.lock_count, of.delegated) = (0, BTreeSet::new());
        self.replace_locks(client, files, &claims);
        self.mark_returned(client);
        done_reply(id, false)
    }

    /// Replaces the client's locks of `files` by `claims`. No waiter gets a lock in between.
    fn replace_locks(&mut self, client: ClientId, files: BTreeSet<Ino>, claims: &[(Ino, Lock)]) {
        let mut touched = files;
        for ino in &touched {
            let Some(file) = self.files.get_mut(ino) else { continue };
            // `forget_wait` needs the table unborrowed, so the waiters are copied before they are
            // dropped.
            let gone: Vec<_> =
                file.waiters.iter().filter(|w| w.client == client).copied().collect();
            file.drop_client(client);
            gone.iter().for_each(|waiter| self.forget_wait(*ino, waiter));
        }
        for (ino, lock) in claims {
            let owner = (client, lock.owner);
            let file = self.files.entry(*ino).or_default();
            let free = file.table(lock.sort).first_conflict(owner, lock.span, lock.kind).is_none();
            // Of two clients that reclaim the same lock, at most one is right; the first keeps it.
            if free && file.delegated.is_none() {
                self.grant_lock(client, *ino, lock);
            } else {
                tracing::error!(%client, %ino, "a lock that another client has was claimed back");
            }
            touched.insert(*ino);
        }
        // Waiters are served only after all claims are in.
        for ino in touched {
            self.grant_waiting(ino);
            self.remove_if_unused(client, ino);
        }
    }
}
