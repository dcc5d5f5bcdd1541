//! The I/O process for programs of another site (`tatami gateway`). One process there sends calls.
//! This one carries them out, one after the other. It runs as the user who logged in, and can do no
//! more than that user. It ends with its session, and then nothing of it is left. A session goes on
//! when its link breaks: a later ssh gives its streams to the same process (`link_watch.rs`).
//!
//! A file has one of three back ends: system calls on an ordinary file, the pieces of a file of a
//! volume (both by `tatami-tiled`), or the MPI-IO of an MPI library of this machine.
//!
//! Large accesses may come by data connections beside ssh, each with a thread here. A relay
//! (`tatami relay`) on a login host passes such connections on.

mod backend_choice;
mod compressed_service;
mod copy_files;
mod data_connections;
mod data_place;
mod earlier_process;
mod gateway_files;
mod gateway_loop;
mod kept_replies;
mod link_watch;
mod mount_calls;
mod mount_table;
mod mpi_engine;
mod mpi_library;
mod mpi_trial;
mod open_files;
mod passed_streams;
mod path_calls;
mod refusal;
mod relay;
mod relay_pipe;
mod relay_watch;
#[cfg(test)]
mod resumption_tests;
mod sealed_parts;
mod session_handover;
mod session_link;
mod session_streams;
mod ssh_silence;
mod tree_removal;

pub use gateway_loop::{GatewayError, serve_gateway};
pub use mpi_trial::{LAUNCHED, finish_backends, try_mpi};
pub use passed_streams::{
    STREAMS, accept_own, connect_to, listen_as, receive_streams, send_streams,
};
pub use relay::serve_relay;
