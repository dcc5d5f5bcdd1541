//! Bounded slots for connections whose peers are known. Ordinary users have at most half of each
//! class, and each of them a bounded number. The rest is left for the superuser, the daemon's own
//! user, and peers with the volume's key.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Most connections for names.
const NAMES_MAX: u32 = 4096;
/// Most connections for bytes; each has a thread.
const BYTES_MAX: u32 = 1024;
/// Most connections for administration; each has a thread.
const QUESTIONS_MAX: u32 = 256;
/// Most connections of one user that is not trusted, of all classes.
const USER_MAX: u32 = 512;
/// Users that are not trusted get one part in this number of a class's slots.
const USERS_SHARE: u32 = 2;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    Names,
    Bytes,
    Questions,
}

impl Row {
    const COUNT: usize = 3;

    fn most(self) -> u32 {
        match self {
            Row::Names => NAMES_MAX,
            Row::Bytes => BYTES_MAX,
            Row::Questions => QUESTIONS_MAX,
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Row::Names => "names",
            Row::Bytes => "bytes",
            Row::Questions => "questions",
        })
    }
}

/// All slots of a node.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    /// By class: the number of all connections, and of those by users that are not trusted.
    rows: [(u32, u32); Row::COUNT],
    /// The number of connections of each user that is not trusted.
    users: HashMap<u32, u32>,
}

/// One slot, returned when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    seats: Arc<Seats>,
    row: Row,
    user: Option<u32>,
}

impl Seats {
    /// Takes a slot, if there is one for that user; `None` stands for a trusted peer.
    pub(crate) fn take(self: &Arc<Self>, row: Row, user: Option<u32>) -> Option<Seat> {
        let mut taken = self.taken.lock();
        let (all, users) = taken.rows[row as usize];
        if all >= row.most() {
            return None;
        }
        // Checked and counted under one lock: two connections cannot both take the last slot.
        if let Some(user) = user {
            let own = taken.users.get(&user).copied().unwrap_or_default();
            if own >= USER_MAX || users >= row.most() / USERS_SHARE {
                return None;
            }
            taken.users.insert(user, own + 1);
            taken.rows[row as usize].1 += 1;
        }
        taken.rows[row as usize].0 += 1;
        Some(Seat { seats: self.clone(), row, user })
    }

    /// Returns the number of slots that are taken.
    pub(crate) fn count(&self) -> u32 {
        self.taken.lock().rows.iter().map(|(all, _)| all).sum()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.taken.lock();
        let (all, users) = &mut taken.rows[self.row as usize];
        *all -= 1;
        let Some(user) = self.user else { return };
        *users -= 1;
        if let Some(own) = taken.users.get_mut(&user) {
            *own -= 1;
            if *own == 0 {
                taken.users.remove(&user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_given_back() {
        let seats = Arc::new(Seats::default());
        let all: Vec<_> = std::iter::from_fn(|| seats.take(Row::Questions, None)).collect();
        assert_eq!(all.len(), QUESTIONS_MAX as usize);
        assert_eq!(seats.count(), QUESTIONS_MAX);
        assert!(seats.take(Row::Names, None).is_some(), "another row");
        drop(all);
        assert_eq!(seats.count(), 0);
        assert!(seats.take(Row::Questions, None).is_some());
    }

    #[test]
    fn users_leave_room_for_each_other_and_for_the_trusted() {
        let seats = Arc::new(Seats::default());
        let own: Vec<_> = std::iter::from_fn(|| seats.take(Row::Names, Some(7))).collect();
        assert_eq!(own.len(), USER_MAX as usize);
        assert!(seats.take(Row::Bytes, Some(7)).is_none(), "of all rows");
        assert!(seats.take(Row::Names, Some(8)).is_some());
        let others: Vec<_> =
            (100..).map_while(|user| seats.take(Row::Questions, Some(user))).collect();
        assert_eq!(others.len(), (QUESTIONS_MAX / USERS_SHARE) as usize);
        let trusted: Vec<_> = std::iter::from_fn(|| seats.take(Row::Questions, None)).collect();
        assert_eq!(trusted.len() + others.len(), QUESTIONS_MAX as usize);
        drop((own, others, trusted));
        assert!(seats.taken.lock().users.is_empty(), "nobody is remembered");
    }
}
