//! Requests from the kernel, and bytes that no kernel sends.

use super::*;
use proptest::prelude::*;

/// Builds a request with this opcode, arguments and extensions.
fn message(opcode: u32, args: &[u8], extensions: &[u8]) -> Vec<u8> {
    let len = abi::IN_HEADER_LEN + args.len() + extensions.len();
    let mut m = Vec::new();
    m.extend((len as u32).to_ne_bytes());
    m.extend(opcode.to_ne_bytes());
    for n in [77u64, 5] {
        m.extend(n.to_ne_bytes());
    }
    for n in [1000u32, 100, 4242] {
        m.extend(n.to_ne_bytes());
    }
    m.extend(((extensions.len() / 8) as u16).to_ne_bytes());
    m.extend(0u16.to_ne_bytes());
    m.extend(args);
    m.extend(extensions);
    m
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

#[test]
fn a_lookup_carries_its_header_and_name() {
    let bytes = message(op::LOOKUP, b"a name\0", &[]);
    let r = Request::parse(&bytes).expect("a whole request");
    assert_eq!(r.op, FuseOp::Lookup { name: b"a name" });
    assert_eq!((r.header.unique, r.header.node, r.header.pid), (77, 5, 4242));
    assert_eq!((r.header.uid, r.header.gid), (1000, 100));
    assert!(r.groups.is_empty());
}

#[test]
fn a_write_carries_exactly_its_data() {
    let mut args = words(&[9, 0, 4096, 0, 3, 0, 0, 0, libc::O_APPEND as u32, 0]);
    args.extend(b"abc");
    let bytes = message(op::WRITE, &args, &[]);
    let r = Request::parse(&bytes).expect("a whole request");
    let expected = FuseOp::Write {
        handle: 9,
        offset: 4096,
        data: b"abc",
        flags: libc::O_APPEND,
        from_cache: false,
        kill_suidgid: false,
    };
    assert_eq!(r.op, expected);
    args.pop();
    assert_eq!(Request::parse(&message(op::WRITE, &args, &[])), Err(ParseError::Short));
}

fn of(bytes: &[u8]) -> Result<FuseOp<'_>, ParseError> {
    Request::parse(bytes).map(|r| r.op)
}

#[test]
fn a_lock_says_whose_it_is_and_of_what() {
    let args = words(&[9, 0, 77, 0, 10, 0, 19, 0, libc::F_WRLCK as u32, 4242, 0, 0]);
    let lock = FileLock {
        handle: 9,
        owner: 77,
        start: 10,
        end: 19,
        kind: libc::F_WRLCK,
        pid: 4242,
        whole: false,
    };
    assert_eq!(of(&message(op::GETLK, &args, &[])), Ok(FuseOp::GetLock(lock)));
    assert_eq!(of(&message(op::SETLK, &args, &[])), Ok(FuseOp::SetLock { lock, wait: false }));
    let whole = words(&[9, 0, 77, 0, 10, 0, 19, 0, libc::F_WRLCK as u32, 4242, 1, 0]);
    let lock = FileLock { whole: true, ..lock };
    assert_eq!(of(&message(op::SETLKW, &whole, &[])), Ok(FuseOp::SetLock { lock, wait: true }));
    assert_eq!(of(&message(op::SETLK, &whole[..40], &[])), Err(ParseError::Short));
    let flush = words(&[9, 0, 0, 0, 77, 0]);
    assert_eq!(of(&message(op::FLUSH, &flush, &[])), Ok(FuseOp::Flush { handle: 9, owner: 77 }));
}

#[test]
fn a_create_may_bring_supplementary_groups() {
    let args = [words(&[0o1101, 0o100644, 0o22, 0]), b"f\0".to_vec()].concat();
    let extension = words(&[16, abi::EXT_GROUPS, 1, 50]);
    let bytes = message(op::CREATE, &args, &extension);
    let r = Request::parse(&bytes).expect("a whole request");
    assert_eq!(r.groups.iter().collect::<Vec<_>>(), vec![50]);
    assert_eq!(r.op, FuseOp::Create { name: b"f", flags: 0o1101, mode: 0o100644, umask: 0o22 });
    // The count exceeds the extension.
    let bad = words(&[16, abi::EXT_GROUPS, 1000, 50]);
    assert_eq!(Request::parse(&message(op::CREATE, &args, &bad)), Err(ParseError::Short));
    // The extension exceeds the request.
    let bad = words(&[64, abi::EXT_GROUPS, 1, 50]);
    assert_eq!(Request::parse(&message(op::CREATE, &args, &bad)), Err(ParseError::Extension));
}

#[test]
fn what_setattr_leaves_alone_is_none() {
    let mut args = words(&[fattr::SIZE | fattr::FH | fattr::MTIME | fattr::MTIME_NOW, 0]);
    args.extend(words(&[3, 0, 100, 0]));
    args.resize(88, 0);
    let r = parse_set_attr(FieldReader(&args)).expect("a whole request");
    let expected = FuseSetAttr {
        size: Some(100),
        handle: Some(3),
        mtime: Some(FuseSetTime::Now),
        ..FuseSetAttr::default()
    };
    assert_eq!(r, expected);
}

#[test]
fn names_must_end_and_not_be_empty() {
    assert_eq!(Request::parse(&message(op::UNLINK, b"abc", &[])), Err(ParseError::Unterminated));
    assert_eq!(Request::parse(&message(op::UNLINK, b"\0", &[])), Err(ParseError::EmptyName));
    assert!(matches!(
        Request::parse(&message(op::RENAME, &[b"12345678".as_slice(), b"a\0b"].concat(), &[])),
        Err(ParseError::Unterminated)
    ));
}

#[test]
fn forgotten_inodes_are_listed_with_their_lookups() {
    let args = words(&[2, 0, 7, 0, 1, 0, 8, 0, 3, 0]);
    let bytes = message(op::BATCH_FORGET, &args, &[]);
    let Ok(FuseOp::BatchForget(forgotten)) = of(&bytes) else { panic!("a whole request") };
    assert_eq!(forgotten.iter().collect::<Vec<_>>(), vec![(7, 1), (8, 3)]);
    assert_eq!(of(&message(op::BATCH_FORGET, &args[..32], &[])), Err(ParseError::Short));
}

#[test]
fn an_unknown_operation_is_told_as_such() {
    let bytes = message(9999, b"whatever", &[]);
    assert_eq!(Request::parse(&bytes).map(|r| r.op), Ok(FuseOp::Unknown));
}

proptest! {
    /// The parser never panics on random bytes.
    #[test]
    fn any_bytes_end_in_a_request_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Request::parse(&bytes);
    }

    /// The parser never panics on random arguments of any operation.
    #[test]
    fn any_arguments_end_in_a_request_or_an_error(
        opcode in 0u32..60,
        args in prop::collection::vec(any::<u8>(), 0..200),
        extensions in prop::collection::vec(any::<u64>(), 0..6),
    ) {
        let extensions: Vec<u8> = extensions.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let bytes = message(opcode, &args, &extensions);
        let _ = Request::parse(&bytes);
        // Also not on truncated requests, with a matching or stale length in the header.
        for end in 0..bytes.len() {
            let mut cut = bytes[..end].to_vec();
            let _ = Request::parse(&cut);
            if end >= 4 {
                cut[..4].copy_from_slice(&(end as u32).to_ne_bytes());
                let _ = Request::parse(&cut);
            }
        }
    }
}
