//! Connections in their handshake, whose other side has not yet proved its identity. They have no
//! thread, and a bounded number of slots. There are separate slots for TCP connections, for each
//! ordinary user of this machine, and for the superuser and the daemon's own user: none of these
//! can shut out another. When the slots are full, the oldest silent connection is dropped.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tatami_net::handshake::PendingHandshake;
use tatami_net::{NetStream, PeerIdentity};
use tatami_wire::handshake::Authentication;

/// The first byte of a connection must arrive within this time.
pub(crate) const FIRST_BYTE: Duration = Duration::from_secs(1);
/// A handshake must be complete within this time.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Most connections over TCP.
const NETWORK_MAX: usize = 1024;
/// Most connections of one ordinary user of this machine.
const USER_MAX: usize = 128;
/// Most connections of all ordinary users of this machine.
const USERS_MAX: usize = 512;
/// Most connections of the superuser and the daemon's own user.
const TRUSTED_MAX: usize = 512;
/// Each of the three groups gets at most one part in this number of the process's descriptors.
const DESCRIPTOR_SHARE: usize = 8;

/// The group whose slots a connection takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionOrigin {
    /// A TCP connection: its identity is not known yet.
    Network,
    /// An ordinary user of this machine, as the kernel reports.
    User(u32),
    /// The superuser or the daemon's own user, as the kernel reports.
    Trusted,
}

impl ConnectionOrigin {
    /// Returns the group of a connection from `peer`, by what is known before the handshake.
    pub(crate) fn from_peer(stream: &NetStream, peer: &PeerIdentity) -> ConnectionOrigin {
        match (stream.transport().authentication, peer.uid()) {
            (Authentication::Key, _) => ConnectionOrigin::Network,
            (Authentication::Kernel, Some(uid)) => ConnectionOrigin::User(uid),
            (Authentication::Kernel, None) => ConnectionOrigin::Trusted,
        }
    }
}

/// Whether the other side has sent a byte, to choose the connection that is dropped.
pub(crate) trait MaybeSilent {
    fn is_silent(&self) -> bool;
}

impl MaybeSilent for PendingHandshake {
    fn is_silent(&self) -> bool {
        PendingHandshake::is_silent(self)
    }
}

struct HandshakeEntry<T> {
    origin: ConnectionOrigin,
    since: Instant,
    stranger: T,
}

impl<T: MaybeSilent> HandshakeEntry<T> {
    fn deadline(&self) -> Instant {
        let within = if self.stranger.is_silent() { FIRST_BYTE } else { HANDSHAKE_TIMEOUT };
        self.since + within
    }
}

/// All connections in their handshake, by a number that increases with each.
pub(crate) struct PendingHandshakes<T> {
    entries: BTreeMap<u64, HandshakeEntry<T>>,
    next: u64,
    /// The limits: of the network, of one user, of all users, and of the trusted.
    most: [usize; 4],
}

impl<T: MaybeSilent> PendingHandshakes<T> {
    /// Makes an empty table. The first connection gets the number `first`.
    pub(crate) fn new(first: u64) -> PendingHandshakes<T> {
        use rustix::process::{Resource, getrlimit};
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let share = usize::try_from(descriptors).unwrap_or(usize::MAX) / DESCRIPTOR_SHARE;
        let most = [NETWORK_MAX, USER_MAX, USERS_MAX, TRUSTED_MAX].map(|most| most.min(share));
        PendingHandshakes { entries: BTreeMap::new(), next: first, most }
    }

    /// Adds a connection that arrived at `now`. Returns its number, and the connection that was
    /// dropped for it.
    pub(crate) fn add_handshake(
        &mut self,
        origin: ConnectionOrigin,
        now: Instant,
        stranger: T,
    ) -> (u64, Option<T>) {
        let [network, user, users, trusted] = self.most;
        let is_user = |origin: ConnectionOrigin| matches!(origin, ConnectionOrigin::User(_));
        let gone = match origin {
            ConnectionOrigin::Network => self.make_room(network, |other| other == origin),
            ConnectionOrigin::Trusted => self.make_room(trusted, |other| other == origin),
            ConnectionOrigin::User(_) => self
                .make_room(user, |other| other == origin)
                .or_else(|| self.make_room(users, is_user)),
        };
        let number = self.next;
        self.next += 1;
        self.entries.insert(number, HandshakeEntry { origin, since: now, stranger });
        (number, gone)
    }

    /// Drops the least useful connection if at least `most` connections share these slots.
    fn make_room(&mut self, most: usize, shares: impl Fn(ConnectionOrigin) -> bool) -> Option<T> {
        let sharing = || self.entries.iter().filter(|(_, entry)| shares(entry.origin));
        if sharing().count() < most {
            return None;
        }
        // A silent one first, the oldest of them: a peer that has sent bytes is more likely to be
        // genuine.
        let silent = sharing().find(|(_, entry)| entry.stranger.is_silent());
        let (number, _) = silent.or_else(|| sharing().next())?;
        let number = *number;
        self.remove(number)
    }

    /// Drops a connection of any group, because the process has no descriptors left.
    pub(crate) fn drop_one(&mut self) -> Option<T> {
        self.make_room(0, |_| true)
    }

    pub(crate) fn get(&mut self, number: u64) -> Option<&mut T> {
        self.entries.get_mut(&number).map(|entry| &mut entry.stranger)
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        self.entries.remove(&number).map(|entry| entry.stranger)
    }

    /// Returns when the next connection must be dropped, if no bytes arrive.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.entries.values().map(HandshakeEntry::deadline).min()
    }

    /// Removes and returns the connections whose time is over.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Vec<T> {
        let late = |(number, entry): (&u64, &HandshakeEntry<T>)| {
            (entry.deadline() <= now).then_some(*number)
        };
        let late: Vec<u64> = self.entries.iter().filter_map(late).collect();
        late.into_iter().filter_map(|number| self.remove(number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A name, and whether it has sent a byte.
    #[derive(Debug, PartialEq, Eq)]
    struct Person(u32, bool);

    impl MaybeSilent for Person {
        fn is_silent(&self) -> bool {
            !self.1
        }
    }

    fn strangers(most: [usize; 4]) -> PendingHandshakes<Person> {
        PendingHandshakes { most, ..PendingHandshakes::new(3) }
    }

    #[test]
    fn the_oldest_that_has_said_nothing_goes_first() {
        let now = Instant::now();
        let mut strangers = strangers([3, 1, 1, 1]);
        for person in [Person(0, true), Person(1, false), Person(2, false)] {
            assert_eq!(strangers.add_handshake(ConnectionOrigin::Network, now, person).1, None);
        }
        let mut gone = |person| strangers.add_handshake(ConnectionOrigin::Network, now, person).1;
        assert_eq!(gone(Person(3, true)), Some(Person(1, false)));
        assert_eq!(gone(Person(4, true)), Some(Person(2, false)));
        assert_eq!(gone(Person(5, true)), Some(Person(0, true)), "where all talk, the oldest");
    }

    #[test]
    fn nobody_takes_the_places_of_others() {
        let now = Instant::now();
        let mut strangers = strangers([4, 2, 4, 2]);
        strangers.add_handshake(ConnectionOrigin::Trusted, now, Person(0, false));
        strangers.add_handshake(ConnectionOrigin::User(7), now, Person(1, false));
        for n in 100..200 {
            let (_, gone) =
                strangers.add_handshake(ConnectionOrigin::Network, now, Person(n, false));
            assert!(gone.is_none_or(|Person(gone, _)| gone >= 100));
            let (_, gone) =
                strangers.add_handshake(ConnectionOrigin::User(8), now, Person(n, false));
            assert!(gone.is_none_or(|Person(gone, _)| gone >= 100));
        }
        assert_eq!(strangers.entries.len(), 1 + 1 + 4 + 2);
    }

    #[test]
    fn silence_is_borne_for_a_second_and_slowness_for_ten() {
        let start = Instant::now();
        let mut strangers = strangers([9; 4]);
        let (silent, _) =
            strangers.add_handshake(ConnectionOrigin::Network, start, Person(0, false));
        let (slow, _) = strangers.add_handshake(ConnectionOrigin::Network, start, Person(1, true));
        assert!(silent == 3 && slow == 4);
        assert_eq!(strangers.next_deadline(), Some(start + FIRST_BYTE));
        assert_eq!(strangers.take_expired(start + FIRST_BYTE), [Person(0, false)]);
        assert_eq!(strangers.next_deadline(), Some(start + HANDSHAKE_TIMEOUT));
        assert_eq!(strangers.take_expired(start + HANDSHAKE_TIMEOUT), [Person(1, true)]);
        assert_eq!(strangers.next_deadline(), None);
    }

    proptest! {
        #[test]
        fn the_places_are_bounded(
            arrivals in prop::collection::vec((0..4u32, any::<bool>()), 0..200),
        ) {
            let now = Instant::now();
            let mut strangers = strangers([5, 3, 4, 2]);
            for (n, (origin, talks)) in arrivals.into_iter().enumerate() {
                let origin = match origin {
                    0 => ConnectionOrigin::Network,
                    1 => ConnectionOrigin::Trusted,
                    user => ConnectionOrigin::User(user),
                };
                let (number, _) = strangers.add_handshake(origin, now, Person(n as u32, talks));
                prop_assert!(strangers.get(number).is_some(), "the newest stays");
                let count = |shares: &dyn Fn(ConnectionOrigin) -> bool| {
                    strangers.entries.values().filter(|entry| shares(entry.origin)).count()
                };
                prop_assert!(count(&|origin| origin == ConnectionOrigin::Network) <= 5);
                prop_assert!(count(&|origin| origin == ConnectionOrigin::Trusted) <= 2);
                prop_assert!(count(&|origin| matches!(origin, ConnectionOrigin::User(_))) <= 4);
                prop_assert!(count(&|origin| origin == ConnectionOrigin::User(2)) <= 3);
            }
        }
    }
}
