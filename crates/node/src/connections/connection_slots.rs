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
const ADMIN_MAX: u32 = 256;
/// Most connections of one user that is not trusted, of all classes.
const USER_MAX: u32 = 512;
/// Users that are not trusted get one part in this number of a class's slots.
const USERS_SHARE: u32 = 2;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionClass {
    Names,
    Bytes,
    Admin,
}

impl ConnectionClass {
    const COUNT: usize = 3;

    fn slot_limit(self) -> u32 {
        match self {
            ConnectionClass::Names => NAMES_MAX,
            ConnectionClass::Bytes => BYTES_MAX,
            ConnectionClass::Admin => ADMIN_MAX,
        }
    }
}

impl fmt::Display for ConnectionClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConnectionClass::Names => "names",
            ConnectionClass::Bytes => "bytes",
            ConnectionClass::Admin => "questions",
        })
    }
}

/// All slots of a node.
#[derive(Debug, Default)]
pub(crate) struct ConnectionSlots {
    taken: Mutex<UsedSlots>,
}

#[derive(Debug, Default)]
struct UsedSlots {
    /// By class: the number of all connections, and of those by users that are not trusted.
    classes: [(u32, u32); ConnectionClass::COUNT],
    /// The number of connections of each user that is not trusted.
    users: HashMap<u32, u32>,
}

/// One slot, returned when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    seats: Arc<ConnectionSlots>,
    row: ConnectionClass,
    user: Option<u32>,
}

impl ConnectionSlots {
    /// Takes a slot, if there is one for that user; `None` stands for a trusted peer.
    pub(crate) fn try_acquire(
        self: &Arc<Self>,
        row: ConnectionClass,
        user: Option<u32>,
    ) -> Option<ConnectionSlot> {
        let mut taken = self.taken.lock();
        let (all, users) = taken.classes[row as usize];
        if all >= row.slot_limit() {
            return None;
        }
        // Checked and counted under one lock: two connections cannot both take the last slot.
        if let Some(user) = user {
            let own = taken.users.get(&user).copied().unwrap_or_default();
            if own >= USER_MAX || users >= row.slot_limit() / USERS_SHARE {
                return None;
            }
            taken.users.insert(user, own + 1);
            taken.classes[row as usize].1 += 1;
        }
        taken.classes[row as usize].0 += 1;
        Some(ConnectionSlot { seats: self.clone(), row, user })
    }

    /// Returns the number of slots that are taken.
    pub(crate) fn used_count(&self) -> u32 {
        self.taken.lock().classes.iter().map(|(all, _)| all).sum()
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut taken = self.seats.taken.lock();
        let (all, users) = &mut taken.classes[self.row as usize];
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
        let seats = Arc::new(ConnectionSlots::default());
        let all: Vec<_> =
            std::iter::from_fn(|| seats.try_acquire(ConnectionClass::Admin, None)).collect();
        assert_eq!(all.len(), ADMIN_MAX as usize);
        assert_eq!(seats.used_count(), ADMIN_MAX);
        assert!(seats.try_acquire(ConnectionClass::Names, None).is_some(), "another row");
        drop(all);
        assert_eq!(seats.used_count(), 0);
        assert!(seats.try_acquire(ConnectionClass::Admin, None).is_some());
    }

    #[test]
    fn users_leave_room_for_each_other_and_for_the_trusted() {
        let seats = Arc::new(ConnectionSlots::default());
        let own: Vec<_> =
            std::iter::from_fn(|| seats.try_acquire(ConnectionClass::Names, Some(7))).collect();
        assert_eq!(own.len(), USER_MAX as usize);
        assert!(seats.try_acquire(ConnectionClass::Bytes, Some(7)).is_none(), "of all rows");
        assert!(seats.try_acquire(ConnectionClass::Names, Some(8)).is_some());
        let others: Vec<_> = (100..)
            .map_while(|user| seats.try_acquire(ConnectionClass::Admin, Some(user)))
            .collect();
        assert_eq!(others.len(), (ADMIN_MAX / USERS_SHARE) as usize);
        let trusted: Vec<_> =
            std::iter::from_fn(|| seats.try_acquire(ConnectionClass::Admin, None)).collect();
        assert_eq!(trusted.len() + others.len(), ADMIN_MAX as usize);
        drop((own, others, trusted));
        assert!(seats.taken.lock().users.is_empty(), "nobody is remembered");
    }
}
