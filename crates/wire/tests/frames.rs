//! Bytes from the network: each message is decoded or refused, no allocation exceeds its bound, and
//! nothing panics.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use proptest::prelude::*;
use tatami_wire::admin::{AdminCall, AdminResult, ClusterMap, NodeInfo, NodeState};
use tatami_wire::delegation::{RecallCall, RecallNotice};
use tatami_wire::frame::{self, BODY_MAX, FrameClass, FrameError, PAYLOAD_MAX};
use tatami_wire::lock::{ByteRange, Conflict, Lock, LockKind, LockOp, LockOpReply, LockSort};
use tatami_wire::meta::{InodeTemplate, MetaCall, MetaOp, MetaReply, MetaResult, RenameMode};
use tatami_wire::moves::{InlineTerms, MoveTarget, MovedBytes};
use tatami_wire::object::{ObjectCall, ObjectOp, ObjectResult};
use tatami_wire::transaction::{
    MigrationChunk, PeerMessage, RecordDigest, RecordItem, Refusal, TransactionAge, Txid,
};
use tatami_wire::*;

fn names() -> impl Strategy<Value = meta::Bytes> {
    prop::collection::vec(any::<u8>(), 0..300).prop_map(meta::Bytes::from)
}

fn inos() -> impl Strategy<Value = Ino> {
    any::<u64>().prop_map(Ino)
}

fn locks() -> impl Strategy<Value = Lock> {
    (any::<u64>(), any::<u32>(), any::<u64>(), any::<u64>(), any::<bool>()).prop_map(
        |(owner, pid, start, end, whole)| Lock {
            sort: if whole { LockSort::Whole } else { LockSort::Range },
            owner,
            pid,
            span: ByteRange { start, end },
            kind: if whole { LockKind::Shared } else { LockKind::Exclusive },
        },
    )
}

fn lock_ops() -> impl Strategy<Value = LockOp> {
    let waits = prop::option::of(any::<u64>());
    prop_oneof![
        (locks(), waits, any::<bool>()).prop_map(|(lock, wait, delegate)| LockOp::Set {
            lock,
            wait,
            delegate
        }),
        locks().prop_map(|Lock { sort, owner, span, .. }| LockOp::Free { sort, owner, span }),
        locks().prop_map(|lock| LockOp::Test { lock }),
        (any::<u64>(), locks()).prop_map(|(wait, lock)| LockOp::Cancel { wait, lock }),
        prop::collection::vec(locks(), 0..5).prop_map(|locks| LockOp::ReturnDelegation { locks }),
        (prop::collection::vec((inos(), locks()), 0..5), any::<bool>(), any::<bool>())
            .prop_map(|(locks, first, last)| LockOp::Reclaim { locks, first, last, shards: 7 }),
        Just(LockOp::EndSession),
    ]
}

fn ops() -> impl Strategy<Value = MetaOp> {
    let layout = Layout::whole(NodeId(3));
    prop_oneof![
        (inos(), names()).prop_map(|(parent, name)| MetaOp::Lookup { parent, name }),
        inos().prop_map(|ino| MetaOp::GetAttr { ino }),
        (inos(), names(), any::<u16>(), any::<bool>()).prop_map(move |(parent, name, mode, ex)| {
            MetaOp::Create {
                parent,
                name,
                node: InodeTemplate::File(layout),
                mode,
                umask: 0o22,
                exclusive: ex,
                open: Some(Access::BOTH),
            }
        }),
        (inos(), names(), names()).prop_map(|(parent, name, target)| MetaOp::Create {
            parent,
            name,
            node: InodeTemplate::Symlink(target),
            mode: 0o777,
            umask: 0,
            exclusive: true,
            open: None,
        }),
        (inos(), names(), inos(), names()).prop_map(|(parent, name, new_parent, new_name)| {
            MetaOp::Rename {
                parent,
                name,
                new_parent,
                new_name,
                mode: RenameMode::Exchange,
                keep: true,
            }
        }),
        (inos(), names(), any::<u32>(), any::<bool>()).prop_map(|(ino, tiles, piece, close)| {
            let updates = vec![tiles::PieceUpdate { piece, tiles, blocks: 8, close }];
            let cuts = vec![tiles::Cut { stamp: 5, size: u64::from(piece) }];
            MetaOp::Publish { ino, updates, cuts, base: None }
        }),
        (inos(), any::<u16>(), any::<u32>()).prop_map(|(ino, node, count)| MetaOp::AddPieces {
            ino,
            nodes: vec![(NodeId(node), count)],
        }),
        (inos(), any::<u16>(), names(), any::<u32>()).prop_map(|(ino, node, tiles, piece)| {
            let node = NodeId(node);
            let pieces = vec![tiles::NewPiece { piece, node, tiles, blocks: 8 }];
            let base = (node, piece);
            MetaOp::Relayout { ino, pieces, base, state: object::ObjectState::default().into() }
        }),
        (inos(), any::<u16>())
            .prop_map(|(ino, node)| MetaOp::Reserve { ino, nodes: vec![NodeId(node)] }),
        (inos(), any::<u32>(), any::<bool>()).prop_map(|(ino, limit, leaves_to_region)| {
            let terms = InlineTerms { limit, leaves_to_region };
            MetaOp::BeginMove { ino, to: MoveTarget::Inode(terms) }
        }),
        (inos(), names(), any::<u32>()).prop_map(|(ino, bytes, limit)| {
            let terms = InlineTerms { limit, leaves_to_region: true };
            MetaOp::FinishMove { ino, moved: MovedBytes::Inode { terms, bytes } }
        }),
        (inos(), any::<u64>(), lock_ops()).prop_map(|(ino, session, op)| MetaOp::Locks {
            ino,
            session,
            op
        }),
        (inos(), any::<u64>()).prop_map(|(dir, after)| MetaOp::ReadDir {
            dir,
            after,
            limit: 10,
            plus: true
        }),
    ]
}

fn calls() -> impl Strategy<Value = MetaCall> {
    let groups = prop::collection::vec(any::<u32>(), 0..20);
    (0..4096u16, any::<u32>(), any::<u32>(), groups, ops()).prop_map(
        |(shard, uid, gid, groups, op)| MetaCall {
            shard: ShardId(shard),
            cred: Cred { uid, gid, groups },
            op,
        },
    )
}

/// Decodes the bytes as every type that a server or client would.
fn digest(bytes: &[u8]) {
    if let Ok(Some((header, body))) = frame::split_frame(bytes) {
        let _ = frame::decode_body::<MetaCall>(body);
        let _ = frame::decode_body::<MetaResult>(body);
        let _ = frame::decode_body::<ObjectCall>(body);
        let _ = frame::decode_body::<ObjectResult>(body);
        let _ = frame::decode_body::<AdminCall>(body);
        let _ = frame::decode_body::<AdminResult>(body);
        let _ = frame::decode_body::<PeerMessage>(body);
        let _ = frame::decode_body::<RecallCall>(body);
        let _ = frame::decode_body::<RecallNotice>(body);
        assert!(header.payload_len as usize <= PAYLOAD_MAX);
    }
}

fn peer_messages() -> impl Strategy<Value = PeerMessage> {
    let executors = (any::<u16>(), 0..EXECUTORS_MAX)
        .prop_map(|(node, index)| ExecutorId { node: NodeId(node), index });
    let txids = (executors, any::<u64>(), any::<u64>()).prop_map(|(executor, life, number)| Txid {
        executor,
        incarnation: life,
        number,
    });
    let ages = (txids.clone(), any::<i64>()).prop_map(|(first, sec)| TransactionAge {
        since: Timestamp::from_sec(sec),
        first_attempt: first,
    });
    let values = || prop::collection::vec(prop::option::of(names()), 0..5);
    let reads = prop::collection::vec((names(), prop::option::of(any::<[u8; 16]>())), 0..5)
        .prop_map(|all| {
            all.into_iter().map(|(key, v)| RecordItem { key, value: v.map(RecordDigest) }).collect()
        });
    let writes = || {
        prop::collection::vec((names(), prop::option::of(names())), 0..5)
            .prop_map(|all| all.into_iter().map(|(key, value)| RecordItem { key, value }).collect())
    };
    let keys = || prop::collection::vec(names(), 0..5);
    prop_oneof![
        (txids.clone(), ages.clone(), keys())
            .prop_map(|(request, age, keys)| PeerMessage::FetchRecords { request, age, keys }),
        (txids.clone(), any::<u64>(), values()).prop_map(|(request, incarnation, values)| {
            PeerMessage::RecordsFetched { request, incarnation, values }
        }),
        (txids.clone(), ages.clone(), any::<u64>(), reads, writes()).prop_map(
            |(txid, age, incarnation, reads, writes)| PeerMessage::Prepare {
                txid,
                age,
                incarnation,
                reads,
                writes,
            },
        ),
        txids.clone().prop_map(|txid| PeerMessage::Prepared { txid }),
        txids.clone().prop_map(|txid| PeerMessage::Refused { txid, why: Refusal::Retry }),
        (txids.clone(), any::<u64>(), writes()).prop_map(|(txid, incarnation, writes)| {
            PeerMessage::Finish { txid, incarnation, writes }
        }),
        txids.clone().prop_map(|txid| PeerMessage::Release { txid }),
        prop::collection::vec(txids.clone(), 0..5)
            .prop_map(|txids| PeerMessage::Finished { txids }),
        (txids.clone(), prop::option::of(ages.clone()))
            .prop_map(|(txid, abort)| PeerMessage::QueryOutcome { txid, abort }),
        (txids.clone(), ages, prop::option::of(any::<u64>()), any::<u32>(), keys(), keys())
            .prop_map(|(txid, age, incarnation, request, reads, writes)| PeerMessage::Lock {
                txid,
                age,
                client: ClientId([7; 16]),
                incarnation,
                request,
                waits: incarnation.is_some(),
                reads,
                writes,
            }),
        (txids.clone(), any::<u64>(), any::<u32>(), any::<bool>(), values()).prop_map(
            |(txid, incarnation, request, room, values)| PeerMessage::Locked {
                txid,
                incarnation,
                request,
                room,
                values,
            }
        ),
        any::<bool>().prop_map(|ask| PeerMessage::Map { map: Box::new(map()), ask }),
        (txids.clone(), any::<u32>(), cargo())
            .prop_map(|(txid, number, chunk)| PeerMessage::CopyChunk { txid, number, chunk }),
        (txids.clone(), any::<u32>(), any::<bool>()).prop_map(|(txid, number, refused)| {
            PeerMessage::ChunkCopied { txid, number, refused: refused.then_some(Errno::ENOSPC) }
        }),
        txids.clone().prop_map(|txid| PeerMessage::QueryMigration { txid }),
        (txids, any::<bool>()).prop_map(|(txid, under_way)| PeerMessage::MigrationStatus {
            txid,
            under_way,
            map: Box::new(map()),
        }),
    ]
}

fn map() -> ClusterMap {
    let node = |id| NodeInfo {
        id: NodeId(id),
        state: NodeState::Serving,
        name: format!("node{id}"),
        address: "127.0.0.1:7400".into(),
        moved: 0,
        socket: "/run/socket".into(),
    };
    ClusterMap {
        volume: VolumeId([4; 16]),
        name: "v".into(),
        epoch: 9,
        nodes: (0..2).map(node).collect(),
        shards: [(0, 0), (1, 0), (1, 63), (0, 1)]
            .map(|(node, index)| ExecutorId { node: NodeId(node), index })
            .to_vec(),
        moves: vec![0, 3, 0, 70_000],
    }
}

fn cargo() -> impl Strategy<Value = MigrationChunk> {
    let records = prop::collection::vec((names(), names()), 0..5);
    prop_oneof![
        (any::<u16>(), prop::collection::vec(any::<u32>(), 0..9))
            .prop_map(|(first, moves)| MigrationChunk::Shards { first, moves }),
        records.prop_map(MigrationChunk::Records),
        (any::<u64>(), any::<u64>(), prop::collection::vec(any::<[u8; 16]>(), 0..3)).prop_map(
            |(inodes, reserved, lockers)| {
                let lockers = lockers.into_iter().map(ClientId).collect();
                MigrationChunk::Last { inodes, reserved, lockers }
            }
        ),
    ]
}

#[test]
fn what_is_too_long_for_a_frame_leaves_nothing() {
    let mut bytes = vec![1, 2, 3];
    let long = vec![Ino(u64::MAX); BODY_MAX / 4];
    assert!(!frame::encode_frame_if_fits(&mut bytes, FrameClass::Peer, 0, &long, 0));
    assert_eq!(bytes, [1, 2, 3]);
    assert!(frame::encode_frame_if_fits(&mut bytes, FrameClass::Peer, 0, &Ino(1), 0));
    assert!(
        matches!(frame::split_frame(&bytes[3..]), Ok(Some((h, _))) if h.class == FrameClass::Peer)
    );
}

proptest! {
    #[test]
    fn what_is_sent_is_received(call in calls(), seq: u64, payload in 0..PAYLOAD_MAX) {
        let mut bytes = vec![0xee; 3];
        frame::encode_frame(&mut bytes, FrameClass::Meta, seq, &call, payload);
        let (header, body) = frame::split_frame(&bytes[3..]).unwrap().unwrap();
        prop_assert_eq!((header.class, header.seq), (FrameClass::Meta, seq));
        prop_assert_eq!(header.payload_len as usize, payload);
        prop_assert_eq!(frame::decode_body::<MetaCall>(body).unwrap(), call.clone());
        let mut stream = &bytes[3..];
        let mut read_body = Vec::new();
        prop_assert_eq!(frame::read_frame(&mut stream, &mut read_body).unwrap(), header);
        prop_assert_eq!(&read_body[..], body);
    }

    #[test]
    fn what_nodes_tell_each_other_is_received(
        message in peer_messages(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut bytes = Vec::new();
        frame::encode_frame(&mut bytes, FrameClass::Meta, 1, &message, 0);
        let (_, body) = frame::split_frame(&bytes).unwrap().unwrap();
        prop_assert_eq!(frame::decode_body::<PeerMessage>(body).unwrap(), message);
        let mut body = body.to_vec();
        for (at, to) in edits {
            let at = at.index(body.len());
            body[at] = to;
        }
        let _ = frame::decode_body::<PeerMessage>(&body);
    }

    #[test]
    fn what_is_told_of_locks_is_received(
        wanted in prop::collection::vec(inos(), 0..5),
        ready in prop::collection::vec(any::<u64>(), 0..5),
        session: u64,
        conflict in prop::option::of(locks()),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let note = RecallNotice::LockNotices { recalled: wanted, ready };
        let body = postcard::to_allocvec(&note).unwrap();
        prop_assert_eq!(frame::decode_body::<RecallNotice>(&body).unwrap(), note);
        let Lock { span, kind, pid, .. } = conflict.unwrap_or(Lock {
            sort: LockSort::Whole,
            owner: 0,
            pid: 0,
            span: ByteRange::ALL,
            kind: LockKind::Shared,
        });
        let told = LockOpReply::ConflictsWith(conflict.map(|_| Conflict { span, kind, pid }));
        let answer: MetaResult = Ok(MetaReply::Locks { session, reply: told });
        let mut other = postcard::to_allocvec(&answer).unwrap();
        prop_assert_eq!(frame::decode_body::<MetaResult>(&other).unwrap(), answer);
        for (at, to) in edits {
            let at = at.index(other.len());
            other[at] = to;
        }
        let _ = frame::decode_body::<MetaResult>(&other);
    }

    #[test]
    fn one_changed_byte_is_noticed(call in calls(), at: prop::sample::Index, flip in 1u8..) {
        let mut bytes = Vec::new();
        frame::encode_frame(&mut bytes, FrameClass::Meta, 7, &call, 0);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        // The changed lengths may ask for more bytes. Then the frame never completes.
        match frame::split_frame(&bytes) {
            Ok(Some(_)) => prop_assert!(false, "a change at {at} went through"),
            Ok(None) => prop_assert!((4..12).contains(&at)),
            Err(_) => {}
        }
        digest(&bytes);
    }

    #[test]
    fn a_body_that_was_damaged_and_signed_again_is_harmless(
        call in calls(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        // A peer of another build may send any body with a correct checksum.
        let mut body = postcard::to_allocvec(&call).unwrap();
        for (at, value) in damage {
            let at = at.index(body.len());
            body[at] = value;
        }
        let _ = frame::decode_body::<MetaCall>(&body);
        let _ = frame::decode_body::<MetaResult>(&body);
        let _ = frame::decode_body::<ObjectCall>(&body);
        let _ = frame::decode_body::<AdminResult>(&body);
    }

    #[test]
    fn noise_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        digest(&bytes);
        let _ = frame::decode_body::<MetaResult>(&bytes);
        let _ = frame::decode_body::<AdminResult>(&bytes);
        let mut body = Vec::new();
        let _ = frame::read_frame(&mut &bytes[..], &mut body);
        prop_assert!(body.capacity() <= BODY_MAX);
    }
}

#[test]
fn lengths_over_the_bound_are_refused_before_anything_is_allocated() {
    let mut bytes = Vec::new();
    frame::encode_frame(&mut bytes, FrameClass::Admin, 1, &AdminCall::Ping, 0);
    bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(frame::split_frame(&bytes), Err(FrameError::TooLong(u32::MAX, 0))));
    let mut body = Vec::new();
    assert!(frame::read_frame(&mut &bytes[..], &mut body).is_err());
    assert_eq!(body.capacity(), 0);
}

#[test]
fn a_length_inside_a_body_allocates_no_more_than_the_body_has() {
    // Ok(Garbage([…])) with a length of 2^60 inodes: postcard must not allocate for it.
    let reply: MetaResult = Ok(MetaReply::Garbage(vec![Ino(1)]));
    let mut body = postcard::to_allocvec(&reply).unwrap();
    let count = body.len() - 2;
    body.splice(count..=count, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f]);
    assert!(frame::decode_body::<MetaResult>(&body).is_err());
}

#[test]
fn a_frame_cut_short_waits_for_the_rest() {
    let mut bytes = Vec::new();
    frame::encode_frame(&mut bytes, FrameClass::Object, 9, &ObjectOp::Append, 0);
    for cut in 0..bytes.len() {
        assert!(matches!(frame::split_frame(&bytes[..cut]), Ok(None)), "cut at {cut}");
    }
    assert!(frame::split_frame(&bytes).unwrap().is_some());
    let mut body = Vec::new();
    assert!(matches!(frame::read_frame(&mut &bytes[..0], &mut body), Err(FrameError::Closed)));
    assert!(matches!(
        frame::read_frame(&mut &bytes[..bytes.len() - 1], &mut body),
        Err(FrameError::Io(_))
    ));
}
