//! Checks every state of small cases.

use stateright::{Checker, Model};
use tatami_model::{ModelOperation, Protocol, ProtocolDefect};

const DONE: &str = "everything done";

fn transaction(home: usize, reads: &[u8], writes: &[(u8, u8)]) -> ModelOperation {
    ModelOperation::Transaction { home, reads: reads.to_vec(), writes: writes.to_vec() }
}

fn protocol(places: &[usize], clients: Vec<Vec<ModelOperation>>, deaths: u8) -> Protocol {
    Protocol { places: places.to_vec(), clients, deaths, attempts: 6, locks: false, defect: None }
}

/// The same with locks at first contact.
fn locking(protocol: Protocol) -> Protocol {
    Protocol { locks: true, ..protocol }
}

/// Two transactions that exchange the same records from both ends, and a reader that reads one
/// after the other.
fn opposite(deaths: u8) -> Protocol {
    let clients = vec![
        vec![transaction(0, &[0, 1], &[(0, 1), (1, 1)])],
        vec![transaction(1, &[0, 1], &[(0, 2), (1, 2)])],
        vec![ModelOperation::Get(0), ModelOperation::Get(1)],
    ];
    protocol(&[0, 1], clients, deaths)
}

/// Each transaction reads the record that the other changes: two renames that would make a cycle
/// together.
fn crossed(deaths: u8) -> Protocol {
    let clients =
        vec![vec![transaction(0, &[1], &[(0, 1)])], vec![transaction(1, &[0], &[(1, 2)])]];
    protocol(&[0, 1], clients, deaths)
}

/// A record is changed while a transaction is under way, and changed back.
fn there_and_back(deaths: u8) -> Protocol {
    let clients = vec![
        vec![transaction(0, &[1], &[(1, 1)])],
        vec![ModelOperation::Put(1, 2), ModelOperation::Put(1, 0), ModelOperation::Get(1)],
    ];
    protocol(&[0, 1], clients, deaths)
}

/// A record is changed while a transaction that has read it is under way.
fn overwritten(deaths: u8) -> Protocol {
    let clients = vec![
        vec![transaction(0, &[1], &[(1, 1)])],
        vec![ModelOperation::Put(1, 2), ModelOperation::Get(1)],
    ];
    protocol(&[0, 1], clients, deaths)
}

/// Two participants, which a reader compares.
fn three(deaths: u8) -> Protocol {
    let clients = vec![
        vec![transaction(0, &[1, 2], &[(1, 1), (2, 1)])],
        vec![ModelOperation::Get(1), ModelOperation::Get(2)],
    ];
    protocol(&[0, 1, 2], clients, deaths)
}

fn states(name: &str, protocol: Protocol) {
    let checker = protocol.checker().threads(2).spawn_dfs().join();
    if let Some((what, path)) = checker.discoveries().into_iter().find(|(what, _)| *what != DONE) {
        let actions: Vec<_> = path.into_actions().iter().map(|a| format!("  {a:?}\n")).collect();
        panic!("{name}: not {what}:\n{}", actions.concat());
    }
    assert!(checker.is_done() && checker.discovery(DONE).is_some(), "{name}: {DONE}?");
    println!("{name}: {} states", checker.unique_state_count());
}

/// Two transactions that need the same executors in different orders.
fn turned(deaths: u8) -> Protocol {
    let clients = vec![
        vec![transaction(0, &[1, 2], &[(1, 1), (2, 1)])],
        vec![transaction(0, &[2, 1], &[(1, 2), (2, 2)])],
    ];
    protocol(&[0, 1, 2], clients, deaths)
}

#[test]
fn all_orders_of_locks_are_right() {
    states("opposite", locking(opposite(0)));
    states("crossed, one dies", locking(crossed(1)));
    states("there and back, one dies", locking(there_and_back(1)));
    states("overwritten, one dies", locking(overwritten(1)));
    states("three, one dies", locking(three(1)));
    states("turned", locking(turned(0)));
}

#[test]
fn all_orders_of_everything_are_right() {
    states("opposite", opposite(0));
    states("crossed, one dies", crossed(1));
    states("there and back, one dies", there_and_back(1));
    states("overwritten, one dies", overwritten(1));
    states("three, one dies", three(1));
}

/// Some million states: minutes. `make soak` runs them.
#[test]
fn all_orders_of_more_are_right() {
    let scale = std::env::var("TATAMI_TEST_SCALE").ok().and_then(|text| text.parse::<u32>().ok());
    if scale.is_some_and(|scale| scale > 1) {
        states("opposite, one dies", opposite(1));
        states("crossed, two die", crossed(2));
        states("opposite by locks, one dies", locking(opposite(1)));
        states("crossed by locks, two die", locking(crossed(2)));
        states("there and back by locks, two die", locking(there_and_back(2)));
        states("turned, one dies", locking(turned(1)));
    }
}

/// Whether the checker notices that a part of the protocol is left out.
fn is_seen(defect: ProtocolDefect, protocol: Protocol, what: &str) -> bool {
    let protocol = Protocol { defect: Some(defect), ..protocol };
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    checker.discoveries().contains_key(what)
}

#[test]
fn every_part_is_needed() {
    let wrong = "linearizable";
    assert!(is_seen(ProtocolDefect::LocksUnvalidated, overwritten(0), wrong));
    assert!(is_seen(ProtocolDefect::LeavesReadsOpen, crossed(0), wrong));
    assert!(is_seen(ProtocolDefect::ReadsBelowLocks, three(0), wrong));
    assert!(is_seen(ProtocolDefect::CommitsEarly, three(0), wrong));
    assert!(is_seen(ProtocolDefect::ForgetsIncarnation, there_and_back(1), wrong));
    assert!(is_seen(ProtocolDefect::ForgetsTheOver, there_and_back(0), wrong));
    assert!(is_seen(ProtocolDefect::DropsRecord, three(0), wrong));
    assert!(is_seen(ProtocolDefect::TrustsLocks, crossed(1), "finished"));
    assert!(is_seen(ProtocolDefect::BothGiveWay, crossed(0), "finished"));
}

#[test]
fn every_part_of_locking_is_needed() {
    let wrong = "linearizable";
    assert!(is_seen(ProtocolDefect::SharesLocks, locking(turned(0)), wrong));
    assert!(is_seen(ProtocolDefect::LeavesReadsOpen, locking(crossed(0)), wrong));
    assert!(is_seen(ProtocolDefect::ReadsBelowLocks, locking(three(0)), wrong));
    assert!(is_seen(ProtocolDefect::ForgetsIncarnation, locking(there_and_back(1)), wrong));
    assert!(is_seen(ProtocolDefect::ForgetsTheOver, locking(there_and_back(0)), wrong));
    assert!(is_seen(ProtocolDefect::DropsRecord, locking(three(0)), wrong));
    assert!(is_seen(ProtocolDefect::LosesLocks, locking(overwritten(1)), wrong));
    assert!(is_seen(ProtocolDefect::ForgetsWrites, locking(overwritten(1)), wrong));
    assert!(is_seen(ProtocolDefect::ForgetsLives, locking(there_and_back(1)), wrong));
    assert!(is_seen(ProtocolDefect::TrustsLocks, locking(crossed(1)), "finished"));
    assert!(is_seen(ProtocolDefect::BothGiveWay, locking(crossed(0)), "finished"));
}
