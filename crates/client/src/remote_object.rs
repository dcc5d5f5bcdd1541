//! The bytes of an object of another node. The client sends requests to that node's daemon: reads
//! one by one, writes as write-behind (see `write_stream`).

use crate::connection::PayloadSink;
use crate::file_bytes::FileBytes;
use crate::object_handle::ObjectHandle;
use crate::waiting::lock_interruptibly;
use crate::write_stream::{SeenFailures, WriteStream};
use parking_lot::Mutex;
use std::sync::Arc;
use tatami_wire::Errno;
use tatami_wire::frame::{FrameClass, FrameError, PAYLOAD_MAX};
use tatami_wire::object::{
    AllocMode, ObjectOp, ObjectReply, ObjectResult, ObjectState, SeekTarget,
};

/// An object of another node.
pub(crate) struct RemoteObject {
    object: ObjectHandle,
    stream: Arc<WriteStream>,
    /// The failures of writes that this handle has reported.
    seen: Mutex<SeenFailures>,
}

impl RemoteObject {
    pub(crate) fn new(object: ObjectHandle, stream: Arc<WriteStream>) -> RemoteObject {
        let seen = Mutex::new(stream.current_failures());
        RemoteObject { object, stream, seen }
    }
}

impl FileBytes for RemoteObject {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.stream.wait_for_writes()?;
        let mut done = 0;
        for chunk in buf.chunks_mut(PAYLOAD_MAX) {
            let at = offset + done as u64;
            let op = ObjectOp::Read { offset: at, len: chunk.len() as u32 };
            let (_, got) = self.object.send_object_op(&op, chunk)?;
            done += got;
            if got < chunk.len() {
                break;
            }
        }
        Ok(done)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        let mut seen = lock_interruptibly(&self.seen)?;
        for (i, chunk) in data.chunks(PAYLOAD_MAX).enumerate() {
            let op = ObjectOp::Write { offset: offset + (i * PAYLOAD_MAX) as u64 };
            let call = self.object.object_call(self.object.access.current_cap(), &op);
            self.stream.write(call, chunk, &mut seen)?;
        }
        Ok(data.len())
    }

    fn append(&self, data: &[u8]) -> Result<usize, Errno> {
        self.flush()?;
        let reply = self.object.with_valid_cap(|cap| {
            let call = self.object.object_call(cap, &ObjectOp::Append);
            let mut sent = false;
            let result: ObjectResult = self.object.peer.with_data_connection(|connection| {
                // Once the request was sent, a repetition could append twice. So the second attempt
                // gives up.
                if sent {
                    return Ok(Err(Errno::EIO));
                }
                // A restarted daemon has closed its idle connections. The check before the send
                // saves an `EIO`.
                if connection.is_stale() {
                    return Err(FrameError::Closed);
                }
                sent = true;
                connection.send(FrameClass::Object, 0, &call, data)?;
                Ok(connection.receive(FrameClass::Object, 0, &mut [])?.0)
            })?;
            result
        })?;
        match reply {
            ObjectReply::Written { len, .. } => Ok(len as usize),
            _ => Err(Errno::EPROTO),
        }
    }

    fn flush(&self) -> Result<(), Errno> {
        self.stream.flush(&mut *lock_interruptibly(&self.seen)?)
    }

    fn wait_for_writes(&self) {
        // Only a program that is being killed does not wait, and it does not read the bytes either.
        let _ = self.stream.wait_for_writes();
    }

    fn sync(&self, data_only: bool) -> Result<ObjectState, Errno> {
        self.flush()?;
        self.object.request_state(&ObjectOp::Sync { data_only })
    }

    fn truncate(&self, size: u64) -> Result<ObjectState, Errno> {
        self.flush()?;
        self.object.request_state(&ObjectOp::Truncate { size })
    }

    fn allocate(&self, mode: AllocMode, offset: u64, len: u64) -> Result<ObjectState, Errno> {
        self.flush()?;
        self.object.request_state(&ObjectOp::Allocate { mode, offset, len })
    }

    fn seek(&self, what: SeekTarget, offset: u64) -> Result<u64, Errno> {
        self.flush()?;
        match self.object.send_object_op(&ObjectOp::Seek { what, offset }, &mut [])?.0 {
            ObjectReply::Offset(found) => Ok(found),
            _ => Err(Errno::EPROTO),
        }
    }

    fn stat(&self) -> Result<ObjectState, Errno> {
        self.stream.wait_for_writes()?;
        self.object.request_state(&ObjectOp::Stat)
    }

    fn object(&self) -> Option<&ObjectHandle> {
        Some(&self.object)
    }

    fn can_splice(&self) -> bool {
        !self.object.peer.encrypts()
    }

    fn read_into(
        &self,
        sink: &mut dyn PayloadSink,
        offset: u64,
        len: usize,
    ) -> Result<usize, Errno> {
        // The daemon serves connections in any order, so this read could overtake writes in flight
        // on the stream's connection.
        self.stream.wait_for_writes()?;
        let op = ObjectOp::Read { offset, len: len as u32 };
        self.object.with_valid_cap(|cap| {
            let call = self.object.object_call(cap, &op);
            let (result, got) = self.object.peer.with_data_connection(|connection| {
                connection.send(FrameClass::Object, 0, &call, &[])?;
                connection.receive_into(0, len, sink)
            })?;
            result.map(|_| got)
        })
    }
}
