//! Kinds of calls: the file that a call concerns, and what a repetition would do. Calls without a
//! reply are repeated if their I/O process has ended.

use crate::remote_message::RemoteCall;
use crate::site_backend::SiteBackend;
use rustix::io::Errno;

/// The flag of an open that refuses a file that exists (`TIO_EXCL`).
const EXCLUSIVE: u32 = 0x10;
/// The flags of an open that may write (`TIO_RDWR`, `TIO_WRONLY`).
const WRITES: u32 = 0x2 | 0x4;

/// Whether a call opens a file that is written anew if its I/O process ends.
pub(crate) fn is_sink(open: &RemoteCall) -> bool {
    matches!(open, RemoteCall::OpenSink { .. } | RemoteCall::OpenPart { .. })
}

/// Whether a call opens a file of which the I/O process writes a piece.
pub(crate) fn keeps_piece(open: &RemoteCall) -> bool {
    let RemoteCall::Open { open, .. } = open else { return false };
    open.backend == SiteBackend::Volume && open.flags & WRITES != 0
}

/// The file that a call concerns.
pub(crate) fn file_of(call: &RemoteCall) -> Option<u64> {
    use RemoteCall::*;
    match call {
        Begin { .. } | Delete { .. } | Look { .. } | Stat { .. } => None,
        LookAt { .. } | List { .. } | MakeDir { .. } | MakeLink { .. } | Change { .. } => None,
        RemoveDir { .. } | RemoveTree { .. } | Mount(_) => None,
        PutFile { .. } | FetchFile { .. } => None,
        OpenData { .. } | CloseData { .. } | OpenRelay { .. } | EndProcess(_) => None,
        ResumeSession { .. } | Received { .. } | EndSession => None,
        Open { file, .. }
        | SetView { file, .. }
        | Write { file, .. }
        | Read { file, .. }
        | Size { file }
        | SetSize { file, .. }
        | Preallocate { file, .. }
        | Seal { file, .. }
        | Publish { file, .. }
        | AddSealed { file, .. }
        | NextStamp { file }
        | BeginEpoch { file, .. }
        | SetAtomic { file, .. }
        | MarkPublished { file }
        | Lock { file }
        | Unlock { file }
        | AddToPointer { file, .. }
        | SetPointer { file, .. }
        | WriteCompressed { file, .. }
        | ReadCompressed { file, .. }
        | OpenSource { file, .. }
        | FindData { file, .. }
        | OpenSink { file, .. }
        | OpenPart { file, .. }
        | SumBlocks { file, .. }
        | FinishSink { file, .. }
        | Close { file } => Some(*file),
    }
}

/// Whether a repetition of the call has the same effect and the same reply.
pub(crate) fn is_repeatable(call: &RemoteCall) -> bool {
    use RemoteCall::*;
    match call {
        Begin { open, .. } => open.flags & EXCLUSIVE == 0,
        AddToPointer { .. } => false,
        Open { .. } | SetView { .. } | Write { .. } | Read { .. } | Size { .. } | Seal { .. } => {
            true
        }
        SetSize { .. } | Preallocate { .. } | Publish { .. } | SetPointer { .. } => true,
        // A file in pieces is lost with its link, so these are carried out at most once.
        AddSealed { .. } | NextStamp { .. } | BeginEpoch { .. } | SetAtomic { .. } => true,
        MarkPublished { .. } => true,
        // A lock ends with the process that holds it, and is taken again with the file.
        Lock { .. } | Unlock { .. } | Close { .. } | Delete { .. } => true,
        Look { .. } | Stat { .. } | WriteCompressed { .. } | ReadCompressed { .. } => true,
        // An offer of a link that has ended is worth nothing, and its connections have ended.
        OpenData { .. } | CloseData { .. } | OpenRelay { .. } | EndProcess(_) => true,
        // A listing that a new I/O process does not know begins anew, and so does a removal.
        LookAt { .. } | List { .. } | Change { .. } | RemoveTree { .. } => true,
        MakeDir { .. } | MakeLink { .. } | RemoveDir { .. } => true,
        // A new I/O process does not know the file, and the caller copies it once more.
        OpenSource { .. } | FindData { .. } | OpenSink { .. } | FinishSink { .. } => true,
        PutFile { .. } | FetchFile { .. } | OpenPart { .. } | SumBlocks { .. } => true,
        // These belong to sessions of their own, or are no calls.
        Mount(_) | ResumeSession { .. } | Received { .. } | EndSession => false,
    }
}

/// Returns the error of a repeated call that shows that it has been carried out before.
pub(crate) fn sign_of_success(call: &RemoteCall) -> Option<Errno> {
    use RemoteCall::*;
    match call {
        Delete { .. } | Publish { closing: true, .. } => Some(Errno::NOENT),
        RemoveDir { .. } | RemoveTree { .. } => Some(Errno::NOENT),
        MakeDir { .. } | MakeLink { .. } => Some(Errno::EXIST),
        PutFile { may_replace: false, .. } | FinishSink { may_replace: false, .. } => {
            Some(Errno::EXIST)
        }
        _ => None,
    }
}
