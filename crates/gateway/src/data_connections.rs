//! The data connections of the session, each with a thread that reads and writes shared files.

use crate::compressed_service::CompressedService;
use crate::data_place::{PlaceCloser, open_place};
use crate::open_files::SharedOpenFiles;
use crate::refusal::refuse;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io::{self, BufReader, Read};
use std::sync::Arc;
use tatami_remote::{BYTES_MAX, DataOffer, DataStream, RemoteCall, RemoteFailure, RemoteReply};
use tatami_wire::frame::{self, FrameClass, FrameError};

/// Most data connections of a session.
const CONNECTIONS_MAX: usize = 16;
/// Bytes that are received at a time where calls are short.
const BUFFER: usize = 8 << 10;

/// How far a connection has come.
enum ConnectionStage {
    /// Its place is being made.
    Begun,
    /// Its place waits for the other side.
    Offered(PlaceCloser),
    /// It carries calls.
    Served(Arc<DataStream>),
}

/// The connections by their numbers.
#[derive(Default)]
struct ConnectionTable {
    connections: Mutex<HashMap<u32, ConnectionStage>>,
    ended: Condvar,
}

/// See the module.
pub(crate) struct SiteConnections {
    files: Arc<SharedOpenFiles>,
    table: Arc<ConnectionTable>,
    last: u32,
}

impl SiteConnections {
    /// Returns an empty table of connections that read and write these files.
    pub(crate) fn new(files: Arc<SharedOpenFiles>) -> SiteConnections {
        SiteConnections { files, table: Arc::default(), last: 0 }
    }

    /// Waits for one more connection, in a thread.
    pub(crate) fn offer(&mut self, encrypt: bool) -> Result<DataOffer, RemoteFailure> {
        if self.table.connections.lock().len() >= CONNECTIONS_MAX {
            return Err(refuse(Errno::MFILE, "too many data connections"));
        }
        self.last = self.last.wrapping_add(1);
        let (number, files, table) = (self.last, self.files.clone(), self.table.clone());
        self.table.connections.lock().insert(number, ConnectionStage::Begun);
        let offer = open_place(number, encrypt, move |stream| {
            table.run(number, &files, Arc::new(DataStream::new(stream)));
        });
        let mut connections = self.table.connections.lock();
        let (offer, closer) = offer.inspect_err(|_| {
            connections.remove(&number);
        })?;
        // The other side may have come already.
        if let Some(stage @ ConnectionStage::Begun) = connections.get_mut(&number) {
            *stage = ConnectionStage::Offered(closer);
        }
        Ok(offer)
    }

    /// Ends a connection, and waits until none of its calls is carried out any more.
    pub(crate) fn close(&self, number: u32) {
        let mut connections = self.table.connections.lock();
        while let Some(connection) = connections.get(&number) {
            match connection {
                ConnectionStage::Begun => {
                    connections.remove(&number);
                }
                ConnectionStage::Offered(closer) => {
                    closer.close();
                    connections.remove(&number);
                }
                ConnectionStage::Served(stream) => {
                    stream.end();
                    self.table.ended.wait(&mut connections);
                }
            }
        }
    }
}

impl SiteConnections {
    /// Ends all connections that carry calls, and waits until none of their calls is carried out
    /// any more. A place that waits for the other side stays: its offer may be on the way.
    pub(crate) fn close_served(&self) {
        let mut connections = self.table.connections.lock();
        loop {
            let mut served = 0;
            for connection in connections.values() {
                if let ConnectionStage::Served(stream) = connection {
                    stream.end();
                    served += 1;
                }
            }
            if served == 0 {
                return;
            }
            self.table.ended.wait(&mut connections);
        }
    }
}

impl ConnectionTable {
    /// Serves a connection until it ends.
    fn run(&self, number: u32, files: &SharedOpenFiles, stream: Arc<DataStream>) {
        match self.connections.lock().get_mut(&number) {
            Some(stage) => *stage = ConnectionStage::Served(stream.clone()),
            // The session has given it up meanwhile.
            None => return,
        }
        // The session notices the end, and asks for the reason by ssh.
        let _ = serve_calls(files, &stream);
        stream.end();
        self.connections.lock().remove(&number);
        self.ended.notify_all();
    }
}

/// Carries out reads and writes, one after the other. No other call is taken.
fn serve_calls(files: &SharedOpenFiles, stream: &DataStream) -> io::Result<()> {
    let broken = |e: FrameError| io::Error::other(e.to_string());
    let mut input = BufReader::with_capacity(BUFFER, stream);
    let (mut body, mut payload, mut out, mut head) = (vec![], vec![], vec![], vec![]);
    let mut compression = CompressedService::default();
    loop {
        let header = frame::read_frame(&mut input, &mut body).map_err(broken)?;
        let len = header.payload_len as usize;
        if header.class != FrameClass::Remote || len > BYTES_MAX {
            return Err(broken(FrameError::Unexpected));
        }
        let call: RemoteCall = frame::decode_body(&body).map_err(broken)?;
        payload.resize(len, 0);
        input.read_exact(&mut payload)?;
        out.clear();
        let (result, compresses) = match compression.expand_call(call, &mut payload) {
            Ok((RemoteCall::Write { file, stream, sum }, _)) => {
                (files.write(file, stream, sum, &mut payload), false)
            }
            Ok((RemoteCall::Read { file, stream, len }, compresses)) => {
                (files.read(file, stream, len, &mut out), compresses)
            }
            Ok(_) => return Err(broken(FrameError::Unexpected)),
            Err(failure) => (Err(failure), false),
        };
        let reply = result.unwrap_or_else(|failure| {
            out.clear();
            RemoteReply::Failed(failure)
        });
        let (reply, bytes) = compression.compress_reply(reply, &out, compresses);
        head.clear();
        frame::encode_frame(&mut head, FrameClass::Remote, header.seq, &reply, bytes.len());
        stream.send_both(&head, bytes)?;
    }
}
