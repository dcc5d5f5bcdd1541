//! The TCP connection of the ssh to which this process belongs: how long nothing has come over it,
//! and which side has ended it. The kernel knows both of each connection (`sock_diag(7)`).

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Bytes of the header of a netlink message.
const HEADER: usize = 16;
/// Bytes of `inet_diag_msg`, behind which attributes follow.
const DIAG: usize = 72;
/// The place of the state in it, and that of a socket that listens.
const STATE: usize = 1;
const LISTENS: u8 = 10;
/// States of a connection that this side has ended first.
const FIN_WAIT_1: u8 = 4;
const FIN_WAIT_2: u8 = 5;
const TIME_WAIT: u8 = 6;
const CLOSING: u8 = 11;
/// States of a connection that the other side has ended first.
const CLOSED: u8 = 7;
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
/// The kind of the message and of its reply (`SOCK_DIAG_BY_FAMILY`).
const BY_FAMILY: u16 = 20;
/// The attribute with `tcp_info` (`INET_DIAG_INFO`).
const INFO: u16 = 2;
/// The place of `tcpi_last_data_recv` in it: milliseconds.
const LAST_RECEIVED: usize = 52;
/// TCP (`IPPROTO_TCP`).
const TCP: u8 = 6;
/// Address families in these messages.
const FAMILIES: (u8, u8) = (2, 10);
/// Longest wait for the kernel.
const REPLY_WAIT: Duration = Duration::from_secs(1);

/// What has become of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TcpState {
    /// Neither side has ended it.
    Open,
    /// The other side has ended it first.
    EndedThere,
    /// This side, for example sshd after a silence, has ended it first.
    EndedHere,
}

/// The connection of ssh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SshConnection {
    client: SocketAddr,
    server: SocketAddr,
}

impl SshConnection {
    /// Returns that of this process; `None` where sshd has not started it.
    pub(crate) fn find() -> Option<SshConnection> {
        SshConnection::parse(&SshConnection::words())
    }

    /// Returns what sshd says of the connection, or an empty text.
    pub(crate) fn words() -> String {
        std::env::var("SSH_CONNECTION").unwrap_or_default()
    }

    pub(crate) fn parse(text: &str) -> Option<SshConnection> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [client, client_port, server, server_port] = words[..] else { return None };
        let address = |host: &str, port: &str| {
            Some(SocketAddr::new(host.parse::<IpAddr>().ok()?, port.parse().ok()?))
        };
        let (client, server) = (address(client, client_port)?, address(server, server_port)?);
        (client.is_ipv4() == server.is_ipv4()).then_some(SshConnection { client, server })
    }

    /// Returns the time since bytes have come from the other side; `None` where the kernel does not
    /// say it, for example in another network namespace.
    pub(crate) fn measure_silence(&self) -> Option<Duration> {
        self.ask_kernel()?.1
    }

    /// Returns the state of the connection; `None` where the kernel knows none.
    pub(crate) fn find_state(&self) -> Option<TcpState> {
        let (state, _) = self.ask_kernel()?;
        Some(match state {
            FIN_WAIT_1 | FIN_WAIT_2 | TIME_WAIT | CLOSING => TcpState::EndedHere,
            CLOSED | CLOSE_WAIT | LAST_ACK => TcpState::EndedThere,
            _ => TcpState::Open,
        })
    }

    /// Returns the state, and the time since bytes have come.
    fn ask_kernel(&self) -> Option<(u8, Option<Duration>)> {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(SOCK_DIAG)).ok()?;
        set_socket_timeout(&socket, Timeout::Recv, Some(REPLY_WAIT)).ok()?;
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&socket, &self.encode_request(), SendFlags::empty(), &kernel).ok()?;
        let mut reply = [0; 4096];
        let (len, _) = recv(&socket, &mut reply, RecvFlags::empty()).ok()?;
        decode_reply(reply.get(..len)?)
    }

    /// A header and `inet_diag_req_v2`.
    fn encode_request(&self) -> Vec<u8> {
        let len = HEADER + 8 + 48;
        let mut request = Vec::with_capacity(len);
        request.extend_from_slice(&(len as u32).to_ne_bytes());
        request.extend_from_slice(&BY_FAMILY.to_ne_bytes());
        // NLM_F_REQUEST, a number, and no port.
        request.extend_from_slice(&1_u16.to_ne_bytes());
        request.extend_from_slice(&1_u32.to_ne_bytes());
        request.extend_from_slice(&0_u32.to_ne_bytes());
        let family = if self.server.is_ipv4() { FAMILIES.0 } else { FAMILIES.1 };
        request.extend_from_slice(&[family, TCP, 1 << (INFO - 1), 0]);
        request.extend_from_slice(&u32::MAX.to_ne_bytes());
        request.extend_from_slice(&self.server.port().to_be_bytes());
        request.extend_from_slice(&self.client.port().to_be_bytes());
        for end in [self.server, self.client] {
            let mut address = [0; 16];
            match end.ip() {
                IpAddr::V4(ip) => address[..4].copy_from_slice(&ip.octets()),
                IpAddr::V6(ip) => address.copy_from_slice(&ip.octets()),
            }
            request.extend_from_slice(&address);
        }
        // Any interface, and no cookie.
        request.extend_from_slice(&[0; 4]);
        request.extend_from_slice(&[0xff; 8]);
        request
    }
}

fn decode_reply(reply: &[u8]) -> Option<(u8, Option<Duration>)> {
    let read_u16 = |at: usize| Some(u16::from_ne_bytes(reply.get(at..at + 2)?.try_into().ok()?));
    let state = *reply.get(HEADER + STATE)?;
    // Without such a connection the kernel answers for the socket that listens at its end.
    if read_u16(4)? != BY_FAMILY || state == LISTENS {
        return None;
    }
    Some((state, decode_silence(reply)))
}

fn decode_silence(reply: &[u8]) -> Option<Duration> {
    let read_u16 = |at: usize| Some(u16::from_ne_bytes(reply.get(at..at + 2)?.try_into().ok()?));
    let mut at = HEADER + DIAG;
    loop {
        let (len, kind) = (usize::from(read_u16(at)?), read_u16(at + 2)?);
        if kind == INFO && len >= 4 + LAST_RECEIVED + 4 {
            let from = at + 4 + LAST_RECEIVED;
            let millis = u32::from_ne_bytes(reply.get(from..from + 4)?.try_into().ok()?);
            return Some(Duration::from_millis(u64::from(millis)));
        }
        // Attributes begin at multiples of four.
        at += len.max(4).next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_kernel_says_how_long_a_connection_is_silent() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let place = listener.local_addr().expect("bound");
            let mut client = TcpStream::connect(place).expect("it listens");
            let (mut server, from) = listener.accept().expect("a connection");
            client.write_all(b"x").expect("connected");
            server.read_exact(&mut [0]).expect("connected");
            let text = format!("{} {} {} {}", from.ip(), from.port(), place.ip(), place.port());
            let ssh = SshConnection::parse(&text).expect("as sshd writes it");
            let silence = ssh.measure_silence().expect("the connection exists");
            assert!(silence < Duration::from_secs(60), "{silence:?}");
            assert_eq!(ssh.find_state(), Some(TcpState::Open));
            drop(client);
            // The end has come when it can be read.
            assert_eq!(server.read(&mut [0]).expect("its end"), 0);
            assert_eq!(ssh.find_state(), Some(TcpState::EndedThere));
            drop(server);
            let none = SshConnection { client: SocketAddr::new(from.ip(), 1), server: place };
            assert_eq!(none.measure_silence(), None);
        }
    }

    #[test]
    fn other_texts_and_replies_say_nothing() {
        for text in ["", "1.2.3.4 5", "a 1 b 2", "1.2.3.4 1 ::1 2", "1.2.3.4 1 1.2.3.4 99999"] {
            assert_eq!(SshConnection::parse(text), None, "{text}");
        }
        let mut reply = vec![0; HEADER + DIAG];
        reply[4] = BY_FAMILY as u8;
        for more in [vec![], vec![8, 0, 9, 0], vec![0; 64], vec![60, 0, 2, 0]] {
            let said = decode_reply(&[reply.clone(), more].concat());
            assert_eq!(said, Some((0, None)));
        }
    }
}
