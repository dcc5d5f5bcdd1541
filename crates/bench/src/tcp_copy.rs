//! A plain copy over TCP between two processes: the baseline of a remote read (file → socket →
//! memory) and of a remote write (memory → socket → file).
//!
//! Plain means the obvious program: one connection, read and write with one buffer, default socket
//! options. The side with the file listens, as the daemon does. The other side connects, and its
//! clock counts.

use crate::error::{BenchError, io_error, path_error};
use crate::workload::{PhaseTotals, Workload};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;

/// The task of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum TcpCopyPart {
    /// The side with the file. Its phases are `send` and `receive`.
    File {
        /// The file to send, or to create.
        file: PathBuf,
        /// Bytes of one copy.
        bytes: u64,
        /// Bytes of its buffer.
        buffer: usize,
    },
    /// The side with the memory. Its phases are `receive ADDRESS` and `send ADDRESS`.
    Memory {
        /// Bytes of one copy.
        bytes: u64,
        /// Bytes of its buffer.
        buffer: usize,
    },
}

/// A process of the copy.
pub struct TcpCopy {
    part: TcpCopyPart,
    buffer: Vec<u8>,
    listener: Option<(TcpListener, File)>,
    connection: Option<TcpStream>,
}

impl TcpCopy {
    /// Returns a process that has not started anything yet.
    pub fn new(part: TcpCopyPart) -> TcpCopy {
        let (TcpCopyPart::File { buffer, .. } | TcpCopyPart::Memory { buffer, .. }) = &part;
        let buffer = vec![0x5a; (*buffer).max(1)];
        TcpCopy { part, buffer, listener: None, connection: None }
    }
}

impl Workload for TcpCopy {
    fn prepare_phase(&mut self, phase: &str) -> Result<String, BenchError> {
        let unknown = || BenchError::Usage(format!("the copy has no phase '{phase}'"));
        match &self.part {
            TcpCopyPart::File { file, .. } => {
                let opened = match phase {
                    "send" => File::open(file),
                    "receive" => File::create(file),
                    _ => return Err(unknown()),
                };
                let opened = opened.map_err(path_error("opening", file))?;
                let listener = TcpListener::bind("127.0.0.1:0").map_err(io_error("listening"))?;
                let address = listener.local_addr().map_err(io_error("listening"))?.to_string();
                self.listener = Some((listener, opened));
                Ok(address)
            }
            TcpCopyPart::Memory { .. } => {
                let address = match phase.split_once(' ') {
                    Some(("send" | "receive", address)) => address,
                    _ => return Err(unknown()),
                };
                self.connection =
                    Some(TcpStream::connect(address).map_err(io_error("connecting"))?);
                Ok(String::new())
            }
        }
    }

    fn run_phase(&mut self, phase: &str) -> Result<PhaseTotals, BenchError> {
        let done = match &self.part {
            TcpCopyPart::File { bytes, .. } => {
                let (listener, mut file) = self.listener.take().expect("prepared before it runs");
                let (mut socket, _) = listener.accept().map_err(io_error("accepting"))?;
                match phase {
                    "send" => serve_read(&mut socket, &mut file, &mut self.buffer, *bytes),
                    _ => serve_write(&mut socket, file, &mut self.buffer, *bytes),
                }
                .map(|()| *bytes)
            }
            TcpCopyPart::Memory { bytes, .. } => {
                let mut socket = self.connection.take().expect("prepared before it runs");
                if phase.starts_with("receive") {
                    fetch_bytes(&mut socket, &mut self.buffer, *bytes)
                } else {
                    store_bytes(&mut socket, &self.buffer, *bytes)
                }
                .map(|()| *bytes)
            }
        };
        let bytes = done.map_err(io_error("copying over TCP"))?;
        Ok(PhaseTotals {
            ops: bytes.div_ceil(self.buffer.len() as u64),
            bytes,
            ..PhaseTotals::default()
        })
    }
}

/// Copies exactly `bytes` bytes through the buffer.
fn copy_exact(
    from: &mut impl Read,
    to: &mut impl Write,
    buffer: &mut [u8],
    bytes: u64,
) -> io::Result<()> {
    let mut left = bytes;
    while left > 0 {
        let want = left.min(buffer.len() as u64) as usize;
        let n = from.read(&mut buffer[..want])?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to.write_all(&buffer[..n])?;
        left -= n as u64;
    }
    Ok(())
}

fn serve_read(
    socket: &mut TcpStream,
    file: &mut File,
    buffer: &mut [u8],
    bytes: u64,
) -> io::Result<()> {
    socket.read_exact(&mut [0])?;
    copy_exact(file, socket, buffer, bytes)
}

fn serve_write(
    socket: &mut TcpStream,
    mut file: File,
    buffer: &mut [u8],
    bytes: u64,
) -> io::Result<()> {
    copy_exact(socket, &mut file, buffer, bytes)?;
    // The file is closed before the answer, so that the time of a write includes the close.
    drop(file);
    socket.write_all(&[1])
}

/// Asks with one byte, and receives into memory.
fn fetch_bytes(socket: &mut TcpStream, buffer: &mut [u8], bytes: u64) -> io::Result<()> {
    socket.write_all(&[1])?;
    let mut left = bytes;
    while left > 0 {
        let want = left.min(buffer.len() as u64) as usize;
        // A reader of a file gets whole buffers; so does this one.
        socket.read_exact(&mut buffer[..want])?;
        left -= want as u64;
    }
    Ok(())
}

/// Sends from memory, and waits until the other side has written and closed its file.
fn store_bytes(socket: &mut TcpStream, buffer: &[u8], bytes: u64) -> io::Result<()> {
    let mut left = bytes;
    while left > 0 {
        let n = left.min(buffer.len() as u64) as usize;
        socket.write_all(&buffer[..n])?;
        left -= n as u64;
    }
    socket.read_exact(&mut [0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_arrive_in_both_directions() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("file");
        let bytes = 1_000_003;
        for (side, other) in [("receive", "send"), ("send", "receive")] {
            let part = TcpCopyPart::File { file: path.clone(), bytes, buffer: 4096 };
            let mut file = TcpCopy::new(part);
            let address = file.prepare_phase(side).expect("a free port");
            let served = std::thread::spawn(move || file.run_phase(side).map(|d| d.bytes));
            let mut memory = TcpCopy::new(TcpCopyPart::Memory { bytes, buffer: 8192 });
            let phase = format!("{other} {address}");
            memory.prepare_phase(&phase).expect("it listens");
            assert_eq!(memory.run_phase(&phase).expect("it copies").bytes, bytes);
            assert_eq!(served.join().expect("no panic").expect("it copies"), bytes);
            let there = std::fs::read(&path).expect("it was written");
            assert!(there.len() as u64 == bytes && there.iter().all(|b| *b == 0x5a));
        }
    }
}
