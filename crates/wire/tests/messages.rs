//! The messages of each version of the protocol, as recorded in `messages-VERSION.json`.
//!
//! The record of the newest version may grow until its release. Afterwards a change needs a new
//! version, and leaves the messages of the versions before it as they are: it adds variants behind
//! the last one of an enum, and changes no other type. This command writes the record of the newest
//! version:
//!
//! ```text
//! cargo test -p tatami-wire --test messages -- --ignored --exact write_the_record
//! ```

use serde_reflection::{ContainerFormat, Registry, Samples, Tracer, TracerConfig, VariantFormat};
use std::fs;
use std::path::PathBuf;
use tatami_layout::Layout;
use tatami_wire::admin::{AdminCall, AdminReply, Durability, NodeState};
use tatami_wire::batch::{BatchOp, BatchResult};
use tatami_wire::delegation::{DelegationGrant, RecallCall, RecallNotice};
use tatami_wire::inline::{FirstBytes, InlineOp, InlineReply};
use tatami_wire::job::{JobOp, JobReply};
use tatami_wire::lock::{LockKind, LockOp, LockOpReply, LockSort};
use tatami_wire::meta::{InodeTemplate, MetaCall, MetaOp, MetaReply, RenameMode, XattrMode};
use tatami_wire::moves::{MoveStart, MoveTarget, MovedBytes};
use tatami_wire::object::{AllocMode, ObjectCall, ObjectOp, ObjectReply, SeekTarget};
use tatami_wire::repair::Repair;
use tatami_wire::tiles::PieceGrowth;
use tatami_wire::transaction::{MigrationChunk, PeerMessage, Refusal};
use tatami_wire::{Cap, Errno, InodeKind, SetTime, XattrClass};
use tatami_wire::{OLDEST_PROTOCOL, PROTOCOL_VERSION};

/// Goes through all variants of these enums, one after the other.
macro_rules! trace_types {
    ($($message:ty),* $(,)?) => {{
        let (samples, mut tracer) = (Samples::new(), Tracer::new(TracerConfig::default()));
        $(tracer.trace_type::<$message>(&samples).expect("serde alone reads it");)*
        tracer.registry().expect("all enums are listed")
    }};
}

/// Finds all types of messages. Inner enums come before those that contain them.
#[rustfmt::skip]
fn trace_messages() -> Registry {
    trace_types!(
        Errno, Layout, InodeKind, InodeTemplate, SetTime, XattrMode, XattrClass, RenameMode,
        LockSort, LockKind, LockOp, LockOpReply, JobOp, JobReply, PieceGrowth, Repair, BatchOp,
        BatchResult, InlineOp, InlineReply, FirstBytes, MoveTarget, MoveStart, MovedBytes, MetaOp,
        MetaCall, MetaReply,
        AllocMode, SeekTarget, ObjectOp, ObjectCall, ObjectReply,
        NodeState, Durability, AdminCall, AdminReply,
        RecallCall, RecallNotice, DelegationGrant,
        Refusal, MigrationChunk, PeerMessage, Cap,
    )
}

fn record_path(version: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/messages-{version}.json"))
}

fn read_record(version: u32) -> Registry {
    let path = record_path(version);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).expect("a record")
}

fn write_record(record: &Registry) -> String {
    // A line for each type, so that a change is easy to see.
    let line = |(name, of)| format!("{name:?}: {}", serde_json::to_string(of).expect("plain data"));
    format!("{{\n{}\n}}\n", record.iter().map(line).collect::<Vec<_>>().join(",\n"))
}

#[test]
#[ignore = "writes the record of the newest version"]
fn write_the_record() {
    fs::write(record_path(PROTOCOL_VERSION), write_record(&trace_messages())).expect("written");
}

#[test]
fn the_messages_are_those_of_the_record() {
    let (now, recorded) = (trace_messages(), read_record(PROTOCOL_VERSION));
    let changed: Vec<_> = now.iter().filter(|(name, of)| recorded.get(*name) != Some(of)).collect();
    assert!(
        changed.is_empty() && recorded.len() == now.len(),
        "the messages are not those recorded for version {PROTOCOL_VERSION}. Raise \
         PROTOCOL_VERSION if that version is released, and write the record (see the start of \
         this file). Changed: {changed:#?}"
    );
}

#[test]
fn a_version_only_adds_messages() {
    for version in OLDEST_PROTOCOL..PROTOCOL_VERSION {
        let (older, newer) = (read_record(version), read_record(version + 1));
        for (name, old) in older {
            let new = newer.get(&name).unwrap_or_else(|| panic!("{version}: {name} is missing"));
            assert!(is_extension(&old, new), "{version}: {name} has changed: {new:#?}");
        }
    }
}

/// Checks whether each message of the old type is the same message of the new one.
fn is_extension(old: &ContainerFormat, new: &ContainerFormat) -> bool {
    match (old, new) {
        (ContainerFormat::Enum(old), ContainerFormat::Enum(new)) => {
            old.iter().all(|(index, variant)| new.get(index).is_some_and(|n| n == variant))
        }
        _ => old == new,
    }
}

#[test]
fn a_changed_message_is_noticed() {
    let variant =
        |name: &str| serde_reflection::Named { name: name.to_owned(), value: VariantFormat::Unit };
    let of = |names: &[&str]| {
        let variants = names.iter().map(|name| variant(name));
        ContainerFormat::Enum((0..).zip(variants).collect())
    };
    assert!(is_extension(&of(&["Ping", "Status"]), &of(&["Ping", "Status", "Map"])));
    assert!(!is_extension(&of(&["Ping", "Status"]), &of(&["Map", "Ping", "Status"])));
    assert!(!is_extension(&of(&["Ping", "Status"]), &of(&["Ping"])));
    assert!(!is_extension(&of(&["Ping"]), &ContainerFormat::UnitStruct));
}
