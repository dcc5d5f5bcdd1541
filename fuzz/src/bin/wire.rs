//! Messages from the network: frame headers, requests, replies, grants of delegations.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tatami_wire::admin::{AdminCall, AdminResult};
use tatami_wire::delegation::{DelegationGrant, RecallCall, RecallNotice};
use tatami_wire::frame::{FrameHeader, decode_body};
use tatami_wire::meta::{MetaCall, MetaResult};
use tatami_wire::object::{ObjectCall, ObjectResult};
use tatami_wire::transaction::PeerMessage;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, body)) = bytes.split_first() else { return };
    match kind % 10 {
        0 => {
            if let Some(header) = body.first_chunk() {
                let _ = FrameHeader::decode(header);
            }
        }
        1 => {
            // The classification of a request is asked before anything checks it.
            if let Ok(call) = decode_body::<MetaCall>(body) {
                let mut op = call.op;
                let _ = (op.is_mutation(), op.target_inode(), op.delegable_dir());
                op.for_each_directory(7, |_, _| {});
            }
        }
        2 => drop(decode_body::<MetaResult>(body)),
        3 => drop(decode_body::<ObjectCall>(body)),
        4 => drop(decode_body::<ObjectResult>(body)),
        5 => drop(decode_body::<AdminCall>(body)),
        6 => drop(decode_body::<AdminResult>(body)),
        7 => drop(decode_body::<PeerMessage>(body)),
        8 => drop(DelegationGrant::decode(body)),
        _ => {
            drop(decode_body::<RecallCall>(body));
            drop(decode_body::<RecallNotice>(body));
        }
    }
});
