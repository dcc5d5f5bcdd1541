//! Connections between clients and daemons, the same code for both sides.
//!
//! - A *transport* carries the bytes: a UNIX socket or TCP, with or without TLS. Each has one
//!   [`Transport`] table; [`Endpoint`] is the address form.
//! - *Trust* is the identity of the other side, and what it may do: [`PeerIdentity`], [`TlsTrust`].
//! - [`NetStream`], [`Listener`], [`dial`], [`handshake`] and [`FrameBuffer`] know of no transport
//!   in particular.
//!
//! The crate starts no thread and decides nothing about how long to wait: its callers do, see
//! [`dial::WaitPolicy`].

mod buffer;
pub mod dial;
mod endpoint;
pub mod handshake;
mod listener;
mod pinned_tls;
mod random;
mod stream;
mod tcp;
mod tls_error;
mod tls_session;
mod tls_trust;
mod transport;
mod trust;
mod unix;

pub use buffer::FrameBuffer;
pub use endpoint::Endpoint;
pub use listener::Listener;
pub use pinned_tls::{PinnedTls, wrap_plain_socket};
pub use random::{make_random_id, make_random_secret};
pub use stream::{DeadlineStream, NetStream};
pub use tls_trust::{TlsTrust, TlsTrustError};
pub use transport::Transport;
pub use trust::{PeerIdentity, is_own_user};
pub use unix::SocketName;
