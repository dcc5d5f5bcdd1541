//! A connection for bytes. One blocking thread answers the requests in order. A client may send
//! requests without waiting for answers; answers are collected for as long as further requests have
//! arrived already.
//!
//! A long read over TCP is sent uncopied, see `pages`. A short one, and one for which there is no
//! pipe, goes through a buffer.

use crate::clock::current_time;
use crate::connections::pipes::PipedPages;
use crate::context::NodeContext;
use crate::cpu_follower::CpuFollower;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tatami_net::{FrameBuffer, NetStream, PeerIdentity};
use tatami_wire::frame::{self, FrameClass, FrameError, FrameHeader, HEADER_LEN, PAYLOAD_MAX};
use tatami_wire::object::{
    OPEN_DESCRIPTORS_MAX, ObjectCall, ObjectOp, ObjectReply, ObjectResult, ObjectState,
};
use tatami_wire::{Access, ClientId, Errno, Ino, Piece};

/// Bytes of a payload that are received, and written to disk, at a time: large enough that system
/// calls don't count, small enough for the processor's cache.
const CHUNK: usize = 256 * 1024;
/// Most bytes that are read ahead: a few small requests.
const READ_AHEAD: usize = 64 * 1024;
/// Answers are sent at the latest when this number of bytes is waiting.
const OUT_MAX: usize = 32 * 1024;
/// Shortest read, in bytes, whose pages go to a socket uncopied: below it, a copy is cheaper
/// than the further system calls.
const UNCOPIED_MIN: usize = 64 * 1024;
/// Largest payload buffer, in bytes, that is kept for the next read.
const PAYLOAD_KEEP: usize = 1 << 20;

/// Serves one connection until it ends.
pub(crate) fn serve_data(
    shared: &NodeContext,
    stream: &NetStream,
    peer: &PeerIdentity,
    client: ClientId,
) {
    let mut connection = DataConnection {
        shared,
        stream,
        trusted: peer.is_trusted(),
        inbox: FrameBuffer::new(READ_AHEAD, CHUNK + READ_AHEAD),
        out: Vec::new(),
        payload: Vec::new(),
        spare_table: None,
        client,
        follower: CpuFollower::of_this_thread(),
    };
    let ended = connection.run();
    if let Some(table) = connection.spare_table
        && let Err(error) = shared.disk.objects.files().end_spare_table(table)
    {
        tracing::error!(%error, "some files that were lent stay so until the daemon starts again");
    }
    match ended {
        Ok(()) | Err(FrameError::Closed) => {}
        Err(FrameError::Io(e)) => tracing::debug!(%peer, error = %e, "data connection broke"),
        Err(e) => tracing::warn!(%peer, "data connection dropped: {e}"),
    }
}

struct DataConnection<'a> {
    shared: &'a NodeContext,
    stream: &'a NetStream,
    trusted: bool,
    inbox: FrameBuffer,
    /// Answers not yet sent.
    out: Vec<u8>,
    /// Bytes read for one answer.
    payload: Vec<u8>,
    /// The table of spare files that the client has, for as long as the connection lives.
    spare_table: Option<u64>,
    client: ClientId,
    follower: CpuFollower,
}

/// The part of an answer that follows its frame.
enum ReplyAttachment {
    Nothing,
    /// Pages, and after them the first bytes of `Connection::payload`.
    Payload(Option<PipedPages>, usize),
    Descriptors(Vec<OwnedFd>),
}

impl DataConnection<'_> {
    fn run(&mut self) -> Result<(), FrameError> {
        loop {
            let header = loop {
                if let Some((header, _)) = self.inbox.next_frame()? {
                    break header;
                }
                // Before blocking: the client may wait for these answers before it sends more.
                self.flush(&[])?;
                let between = self.inbox.is_empty();
                match self.inbox.wait_for_bytes(self.stream, READ_AHEAD) {
                    Err(e) if e.kind() == io::ErrorKind::UnexpectedEof && between => {
                        return Ok(());
                    }
                    other => other?,
                }
            };
            if header.class != FrameClass::Object {
                return Err(FrameError::Unexpected);
            }
            let frame = self.inbox.take_bytes(HEADER_LEN + header.body_len as usize);
            let call: ObjectCall = frame::decode_body(&frame[HEADER_LEN..])?;
            self.shared.counters.object_requests.add(1);
            // Long transfers are pipelined: the client goes on while its bytes are copied.
            let waits = self.stream.transport().passes_descriptors
                && !matches!(call.op, ObjectOp::Read { .. } | ObjectOp::Write { .. });
            self.follower.note_request(self.client, header.cpu.filter(|_| waits));
            let mut unread = header.payload_len as usize;
            let result = match self.check_request(&call, unread) {
                Ok(()) => self.execute_request(&call, &mut unread)?,
                Err(e) => Err(e),
            };
            if let Err(errno @ Errno::EIO) = &result {
                let operation = format!("{:?}", call.op);
                let operation = operation.split(' ').next().unwrap_or_default();
                let (ino, piece) = (call.cap.ino, call.piece.0);
                tracing::error!(%ino, piece, operation, %errno, "an object could not be used");
            }
            // The rest of a refused write must be read, or its bytes would be taken for the next
            // frame.
            while unread > 0 {
                let n = unread.min(CHUNK);
                self.flush_before_waiting(n)?;
                self.inbox.receive_payload(self.stream, n)?;
                unread -= n;
            }
            self.send_answer(&header, result)?;
        }
    }

    fn check_request(&self, call: &ObjectCall, payload: usize) -> Result<(), Errno> {
        let ObjectCall { cap, op, .. } = call;
        // A client of an earlier release takes the bytes beside an inode for those of an object. It
        // must not read them as empty.
        if call.piece == Piece::INLINE {
            return Err(Errno::EPROTO);
        }
        // The permission was checked when the table was made, and lasts as long as this connection.
        if !matches!(op, ObjectOp::GetSpares { .. }) {
            cap.check_access(
                &self.shared.settings.identity.key,
                cap.ino,
                op.required_access(),
                current_time(),
            )?;
        }
        if let ObjectOp::CopyFrom { source, .. } = op {
            source.check_access(
                &self.shared.settings.identity.key,
                source.ino,
                Access::READ,
                current_time(),
            )?;
        }
        let takes_payload = matches!(op, ObjectOp::Write { .. } | ObjectOp::Append);
        if payload > 0 && !takes_payload { Err(Errno::EPROTO) } else { Ok(()) }
    }

    /// Executes a request. The outer error ends the connection.
    fn execute_request(
        &mut self,
        call: &ObjectCall,
        unread: &mut usize,
    ) -> Result<Result<(ObjectReply, ReplyAttachment), Errno>, FrameError> {
        let (ino, piece) = (call.cap.ino, call.piece);
        let objects = &self.shared.disk.objects;
        let plain =
            |result: Result<ObjectReply, Errno>| result.map(|r| (r, ReplyAttachment::Nothing));
        Ok(match call.op {
            ObjectOp::Read { offset, len } => self.read_object(ino, piece, offset, len),
            ObjectOp::Write { offset } => plain(self.write_object(ino, piece, offset, unread)?),
            ObjectOp::Append => plain(self.append_object(ino, piece, unread)?),
            ObjectOp::Truncate { size } => {
                plain(objects.truncate(self.client, (ino, piece), size).map(ObjectReply::State))
            }
            ObjectOp::Allocate { mode, offset, len } => plain(
                objects
                    .allocate(self.client, (ino, piece), mode, offset, len)
                    .map(ObjectReply::State),
            ),
            ObjectOp::Seek { what, offset } => {
                plain(objects.seek(ino, piece, what, offset).map(ObjectReply::Offset))
            }
            ObjectOp::Sync { data_only } => {
                let synced = objects.sync(self.client, (ino, piece), data_only);
                plain(synced.map(ObjectReply::State).inspect_err(|error| {
                    tracing::error!(%ino, %error, "sync of an object failed");
                }))
            }
            ObjectOp::Stat => plain(self.find_state(ino, piece).map(ObjectReply::State)),
            ObjectOp::FindEngine => plain(objects.find_engine(ino, piece).map(ObjectReply::Engine)),
            ObjectOp::OpenFd { create } => self.check_descriptor_passing().and_then(|()| {
                let fd = objects.open_fd(ino, piece, call.cap.access, create)?;
                Ok((ObjectReply::Opened, ReplyAttachment::Descriptors(vec![fd])))
            }),
            ObjectOp::OpenSeveral { ref more } => self.open_several(call, more),
            ObjectOp::CreateSpareTable { table } => self.grant_spares(table),
            ObjectOp::GetSpares { ref slots } => self.renew_spares(slots),
            ObjectOp::CopyFrom { source, source_piece, source_offset, offset, len } => {
                let from = (source.ino, source_piece);
                let copied =
                    objects.copy_range(self.client, from, source_offset, (ino, piece), offset, len);
                plain(copied.map(|len| ObjectReply::Written { offset, len }))
            }
            ObjectOp::Seal { all } => {
                plain(objects.seal(self.client, (ino, piece), all).map(ObjectReply::State))
            }
            ObjectOp::ListVersions => {
                plain(objects.list_versions(ino, piece).map(ObjectReply::Versions))
            }
            ObjectOp::ReadVersion { number, offset, len } => {
                self.read_version((ino, piece), number, offset, len)
            }
            ObjectOp::RestoreVersion { number } => {
                plain(objects.restore_version(ino, piece, number).map(ObjectReply::State))
            }
            ObjectOp::CarryVersion { ref version } => {
                plain(objects.carry_version(ino, piece, version).map(ObjectReply::State))
            }
        })
    }

    /// Returns the state of an object, which may be open already.
    fn find_state(&self, ino: Ino, piece: Piece) -> Result<ObjectState, Errno> {
        let objects = &self.shared.disk.objects;
        match objects.open_object(ino, piece)? {
            Some(object) => object.state(),
            None => objects.stat(ino, piece),
        }
    }

    /// Grants the client a table of spare files until the connection ends.
    fn grant_spares(&mut self, table: u64) -> Result<(ObjectReply, ReplyAttachment), Errno> {
        self.check_spare_access()?;
        if self.spare_table.is_some() {
            return Err(Errno::EBUSY);
        }
        let fd = self.shared.disk.objects.files().create_spare_table(table)?;
        self.spare_table = Some(table);
        Ok((ObjectReply::Opened, ReplyAttachment::Descriptors(vec![fd])))
    }

    /// Gives out new files for slots of the connection's table.
    fn renew_spares(&self, slots: &[u16]) -> Result<(ObjectReply, ReplyAttachment), Errno> {
        if slots.is_empty() || slots.len() > OPEN_DESCRIPTORS_MAX {
            return Err(Errno::EINVAL);
        }
        let table = self.spare_table.ok_or(Errno::ENOENT)?;
        let mut fds = Vec::with_capacity(slots.len());
        for slot in slots {
            match self.shared.disk.objects.files().renew_spare(table, (*slot).into()) {
                Ok(fd) => fds.push(fd),
                Err(error) if fds.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok((ObjectReply::Opened, ReplyAttachment::Descriptors(fds)))
    }

    /// Opens several objects of an inode, and creates the missing ones.
    fn open_several(
        &self,
        call: &ObjectCall,
        more: &[Piece],
    ) -> Result<(ObjectReply, ReplyAttachment), Errno> {
        self.check_descriptor_passing()?;
        if more.len() >= OPEN_DESCRIPTORS_MAX {
            return Err(Errno::EINVAL);
        }
        let all = std::iter::once(&call.piece).chain(more);
        let open = |piece: &Piece| {
            self.shared.disk.objects.open_fd(call.cap.ino, *piece, call.cap.access, true)
        };
        let fds = all.map(open).collect::<Result<Vec<_>, Errno>>()?;
        Ok((ObjectReply::Opened, ReplyAttachment::Descriptors(fds)))
    }

    /// The client states for which inode it uses a spare file, and the daemon relies on it. So only
    /// a trusted client gets spare files.
    fn check_spare_access(&self) -> Result<(), Errno> {
        self.check_descriptor_passing()?;
        if self.trusted { Ok(()) } else { Err(Errno::EPERM) }
    }

    fn check_descriptor_passing(&self) -> Result<(), Errno> {
        if self.stream.transport().passes_descriptors { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
    }

    fn read_object(
        &mut self,
        ino: Ino,
        piece: Piece,
        offset: u64,
        len: u32,
    ) -> Result<(ObjectReply, ReplyAttachment), Errno> {
        let len = len as usize;
        if len > PAYLOAD_MAX {
            return Err(Errno::EINVAL);
        }
        let pages = match len >= UNCOPIED_MIN && self.stream.transport().splices_pages {
            true => self.take_pages(ino, piece, offset, len)?,
            false => None,
        };
        let uncopied = pages.as_ref().map_or(0, PipedPages::held_bytes);
        let rest = len - uncopied;
        if self.payload.len() < rest {
            self.payload.resize(rest, 0);
        }
        let n = match rest {
            0 => 0,
            _ => {
                let buf = &mut self.payload[..rest];
                self.shared.disk.objects.read_at(ino, piece, buf, offset + uncopied as u64)?
            }
        };
        self.shared.counters.bytes_read.add((uncopied + n) as u64);
        Ok((ObjectReply::Data, ReplyAttachment::Payload(pages, n)))
    }

    fn read_version(
        &mut self,
        key: (Ino, Piece),
        number: u32,
        offset: u64,
        len: u32,
    ) -> Result<(ObjectReply, ReplyAttachment), Errno> {
        let len = len as usize;
        if len > PAYLOAD_MAX {
            return Err(Errno::EINVAL);
        }
        if self.payload.len() < len {
            self.payload.resize(len, 0);
        }
        let buf = &mut self.payload[..len];
        let got = self.shared.disk.objects.read_version(key, number, buf, offset)?;
        self.shared.counters.bytes_read.add(got as u64);
        Ok((ObjectReply::Data, ReplyAttachment::Payload(None, got)))
    }

    /// Takes as many pages of an object as can be sent uncopied.
    fn take_pages(
        &self,
        ino: Ino,
        piece: Piece,
        offset: u64,
        len: usize,
    ) -> Result<Option<PipedPages>, Errno> {
        let Some(object) = self.shared.disk.objects.open_object(ino, piece)? else {
            return Ok(None);
        };
        let Some(mut pages) = self.shared.connections.pipes.take_pipe() else { return Ok(None) };
        pages.fill_from(&*object, offset, len)?;
        Ok(Some(pages))
    }

    /// Writes the payload as it arrives, a chunk at a time.
    fn write_object(
        &mut self,
        ino: Ino,
        piece: Piece,
        offset: u64,
        unread: &mut usize,
    ) -> Result<Result<ObjectReply, Errno>, FrameError> {
        let len = *unread as u64;
        let mut at = offset;
        while *unread > 0 {
            let n = (*unread).min(CHUNK);
            self.flush_before_waiting(n)?;
            let data = self.inbox.receive_payload(self.stream, n)?;
            *unread -= n;
            if let Err(e) = self.shared.disk.objects.write_at(self.client, (ino, piece), data, at) {
                return Ok(Err(e));
            }
            at = at.saturating_add(n as u64);
        }
        self.shared.counters.bytes_written.add(len);
        Ok(Ok(ObjectReply::Written { offset, len }))
    }

    /// Appends the payload, which must be received as a whole to be appended at once.
    fn append_object(
        &mut self,
        ino: Ino,
        piece: Piece,
        unread: &mut usize,
    ) -> Result<Result<ObjectReply, Errno>, FrameError> {
        // Taken in full even if the append fails: the payload has left the inbox in any case.
        let len = std::mem::take(unread);
        self.flush_before_waiting(len)?;
        let data = self.inbox.receive_payload(self.stream, len)?;
        let appended = self.shared.disk.objects.append(self.client, (ino, piece), data);
        if appended.is_ok() {
            self.shared.counters.bytes_written.add(len as u64);
        }
        Ok(appended.map(|offset| ObjectReply::Written { offset, len: len as u64 }))
    }

    fn send_answer(
        &mut self,
        header: &FrameHeader,
        result: Result<(ObjectReply, ReplyAttachment), Errno>,
    ) -> Result<(), FrameError> {
        let (result, extra): (ObjectResult, ReplyAttachment) = match result {
            Ok((reply, extra)) => (Ok(reply), extra),
            Err(e) => (Err(e), ReplyAttachment::Nothing),
        };
        let seq = header.seq;
        match extra {
            ReplyAttachment::Nothing => {
                frame::encode_frame(&mut self.out, FrameClass::Object, seq, &result, 0);
                if self.out.len() >= OUT_MAX {
                    self.flush(&[])?;
                }
            }
            ReplyAttachment::Payload(pages, len) => {
                let held = pages.as_ref().map_or(0, PipedPages::held_bytes);
                frame::encode_frame(&mut self.out, FrameClass::Object, seq, &result, held + len);
                if let Some(mut pages) = pages {
                    if held > 0 {
                        // The header goes out with `MSG_MORE`, so that header and pages share TCP
                        // segments.
                        self.stream.send_more(&self.out)?;
                        self.out.clear();
                        pages.send_all(self.stream, len > 0)?;
                    }
                    // Returned only when it is empty: leftover bytes would go into another client's
                    // answer.
                    self.shared.connections.pipes.put_back(pages);
                }
                let payload = std::mem::take(&mut self.payload);
                self.flush(&payload[..len])?;
                if payload.len() <= PAYLOAD_KEEP {
                    self.payload = payload;
                }
            }
            ReplyAttachment::Descriptors(fds) => {
                // Earlier answers go first: the descriptors travel with the first byte of this
                // frame.
                self.flush(&[])?;
                frame::encode_frame(&mut self.out, FrameClass::Object, seq, &result, 0);
                let sent = send_with_fds(self.stream, &self.out, &fds)?;
                self.out.drain(..sent);
                self.flush(&[])?;
            }
        }
        Ok(())
    }

    /// Sends all answers if the next `len` bytes have not arrived: the client may wait for an
    /// answer before it sends them.
    fn flush_before_waiting(&mut self, len: usize) -> io::Result<()> {
        if self.inbox.len() < len { self.flush(&[]) } else { Ok(()) }
    }

    /// Sends all answers, and `payload` after them.
    fn flush(&mut self, payload: &[u8]) -> io::Result<()> {
        if !self.out.is_empty() || !payload.is_empty() {
            let mut stream = self.stream;
            frame::write_frame(&mut stream, &self.out, payload)?;
            self.out.clear();
            stream.flush()?;
        }
        Ok(())
    }
}

/// Sends the first bytes of `frame`, and with the first of them the descriptors, at most
/// [`OPEN_MAX`].
fn send_with_fds(stream: &NetStream, frame: &[u8], fds: &[OwnedFd]) -> io::Result<usize> {
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(OPEN_DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("no room for a descriptor"));
    }
    loop {
        let bytes = [IoSlice::new(frame)];
        match rustix::net::sendmsg(stream, &bytes, &mut ancillary, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}
