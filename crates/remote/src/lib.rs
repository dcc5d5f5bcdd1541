//! Files of another site. A program here names a file on a machine there, and an *I/O process* on
//! that machine, which the user's own ssh starts, reads and writes it as that user.
//!
//! ```text
//! one process of a job                                the other site
//!   SiteAddress ─▶ RemoteSession ─── ssh, one stream ───▶ I/O process ─▶ an ordinary file
//!                    RemoteCall ─▶          ◀─ RemoteReply
//!                         └──────── TCP, data connections ──────┘
//! ```
//!
//! This crate has the address of a site, the messages, and the near side of a session. The far side
//! is `crates/gateway`.

mod byte_planes;
mod call_kinds;
mod compressed_calls;
mod compression_form;
mod compression_pace;
mod copy_calls;
mod data_line;
mod data_pool;
mod data_proof;
mod data_stream;
mod data_task;
mod data_transfers;
mod earlier_processes;
mod link_stream;
mod login_crowd;
mod login_dir;
mod login_seats;
mod mount_message;
mod mount_session;
mod part_compressor;
mod part_file;
mod part_record;
mod piece_calls;
mod relay_chain;
mod remote_error;
mod remote_message;
mod remote_session;
mod reply_slots;
mod session_goodbye;
mod session_key;
mod session_repair;
mod session_turn;
mod shared_login;
mod site_address;
mod site_backend;
mod site_calls;
mod site_hops;
mod site_login;
mod site_route;
mod site_ticket;
mod ssh_config;
mod ssh_link;
mod stream_pace;

pub use compression_form::CompressionForm;
pub use data_proof::{DataSecret, ProofError, prove_as_caller, prove_as_server};
pub use data_stream::{DataStream, PROOF_WAIT, connect_to_any};
pub use mount_message::{
    MountCall, NewSiteNode, SiteAttrSet, SiteDir, SiteNode, SiteSpace, SiteTime,
};
pub use mount_session::{MountBytes, MountSession, ReopenFiles};
pub use part_compressor::{CompressionSample, ExpandError, PartCompressor, PartExpander};
pub use part_file::{PartFile, sum_file};
pub use part_record::{
    BLOCK, BlockSum, PART_RECORD, PartRecord, PartRecordError, PartStart, name_part, sum_block,
};
pub use remote_message::{
    BYTES_MAX, DataOffer, FileOpen, REMOTE_PROTOCOL, RemoteCall, RemoteFailure, RemoteReply,
    SiteAttr, SiteChange, SiteEntry, SiteGreeting, SiteProcess, SiteRemoval, SiteStat,
    find_process_start, format_greeting, own_machine_id, parse_greeting, sum_bytes,
};
pub use remote_session::{RemoteError, RemoteSession};
pub use session_key::{HANDOVER_MAX, HandoverWords, SiteSessionKey};
pub use site_address::{SiteAddress, SiteFile, SiteMap};
pub use site_backend::{SiteBackend, SiteMpi};
pub use site_route::{RouterName, SiteCompression, SiteRoute, parse_port_range};
pub use site_ticket::SiteTicket;
