//! Moves the bytes of two connections to each other, by splice(2): they do not pass through the
//! memory of this process.

use rustix::io::Errno;
use rustix::net::Shutdown;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::thread;
use tatami_net::NetStream;

/// Bytes in a pipe between two connections. An untuned system grants an ordinary user so many.
const PIPE: usize = 1 << 20;

/// Moves bytes both ways until both directions have ended, or one has failed.
pub(crate) fn pass_bytes(one: &NetStream, two: &NetStream) {
    // The small messages of TLS and of the calls are sent at once.
    let _ = (one.prepare_for_daemon(), two.prepare_for_daemon());
    thread::scope(|scope| {
        let back = thread::Builder::new().spawn_scoped(scope, || pass_one_way(two, one));
        match back {
            Ok(_) => pass_one_way(one, two),
            Err(_) => end_both(one, two),
        }
    });
}

fn end_both(one: &NetStream, two: &NetStream) {
    one.shutdown(Shutdown::Both);
    two.shutdown(Shutdown::Both);
}

fn pass_one_way(from: &NetStream, to: &NetStream) {
    match move_bytes(from, to) {
        // The other direction may go on.
        Ok(()) => to.shutdown(Shutdown::Write),
        Err(_) => end_both(from, to),
    }
}

fn move_bytes(from: &NetStream, to: &NetStream) -> Result<(), Errno> {
    let (output, input) = pipe_with(PipeFlags::CLOEXEC)?;
    // A smaller pipe costs only speed.
    let _ = fcntl_setpipe_size(&input, PIPE);
    loop {
        let mut held = match splice(from, None, &input, None, PIPE, SpliceFlags::MOVE) {
            Ok(0) => return Ok(()),
            Ok(held) => held,
            Err(Errno::INTR) => continue,
            Err(e) => return Err(e),
        };
        while held > 0 {
            match splice(&output, None, to, None, held, SpliceFlags::MOVE) {
                Ok(0) => return Err(Errno::PIPE),
                Ok(moved) => held -= moved,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use tatami_net::wrap_plain_socket;

    fn connected_pair() -> (TcpStream, NetStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        (near, wrap_plain_socket(listener.accept().expect("a connection").0.into()))
    }

    #[test]
    fn all_bytes_pass_both_ways_and_each_end_is_passed_on() {
        let ((mut near, one), (mut far, two)) = (connected_pair(), connected_pair());
        let relay = thread::spawn(move || pass_bytes(&one, &two));
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
        let sent = bytes.clone();
        let echo = thread::spawn(move || {
            let mut got = Vec::new();
            far.read_to_end(&mut got).expect("all bytes");
            far.write_all(&got).expect("they go back");
        });
        near.write_all(&sent).expect("all bytes");
        near.shutdown(std::net::Shutdown::Write).expect("connected");
        let mut got = Vec::new();
        near.read_to_end(&mut got).expect("all bytes");
        assert!(got == bytes);
        echo.join().expect("no panic");
        relay.join().expect("no panic");
    }
}
