//! The files that the process at the other site has open, and its calls on them.

use crate::backend_choice::{choose_backend, hints_of, open_file};
use crate::copy_files;
use crate::data_connections::SiteConnections;
use crate::earlier_process::end_earlier_process;
use crate::mount_table::MountTable;
use crate::open_files::{SharedOpenFiles, check_sum};
use crate::path_calls::{self, SiteListing};
use crate::refusal::{failure, not_open, path_of, refuse};
use crate::sealed_parts::SealedParts;
use crate::session_link::SessionLink;
use crate::tree_removal::SiteTreeRemoval;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use tatami_layout::View;
use tatami_remote::{
    BYTES_MAX, FileOpen, RemoteCall, RemoteFailure, RemoteReply, SiteStat, sum_bytes,
};
use tatami_tiled::{
    CollectiveOpen, Environment, Flags, OpenToken, TiledError, begin_open, machine, stat,
};

/// Most bytes that one rank seals: a reply has this much room.
const SEALED_MAX: usize = 1 << 19;
/// Most listings of which some pieces have been sent.
const LISTINGS_MAX: usize = 64;

/// The open files, by the numbers that the other side has chosen.
pub(crate) struct GatewayFiles {
    link: Arc<SessionLink>,
    files: Arc<SharedOpenFiles>,
    connections: SiteConnections,
    sealed: SealedParts,
    /// Listings of which some pieces have been sent, by their numbers.
    listings: BTreeMap<u64, SiteListing>,
    removal: Option<SiteTreeRemoval>,
    mount: MountTable,
}

impl GatewayFiles {
    /// Returns an empty table. Waits for locks end with the session of `link`.
    pub(crate) fn new(link: Arc<SessionLink>) -> GatewayFiles {
        let files = Arc::new(SharedOpenFiles::default());
        let connections = SiteConnections::new(files.clone());
        let (sealed, mount, removal) = (SealedParts::default(), MountTable::default(), None);
        let listings = BTreeMap::new();
        GatewayFiles { link, files, connections, sealed, listings, removal, mount }
    }

    /// Ends the data connections, and waits until none of their calls is carried out any more.
    pub(crate) fn end_connections(&self) {
        self.connections.close_served();
    }

    /// Carries out a call. The bytes of a read go to `out`.
    pub(crate) fn carry_out(
        &mut self,
        call: RemoteCall,
        payload: &mut [u8],
        out: &mut Vec<u8>,
    ) -> RemoteReply {
        out.clear();
        self.try_call(call, payload, out).unwrap_or_else(RemoteReply::Failed)
    }

    fn try_call(
        &mut self,
        call: RemoteCall,
        payload: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<RemoteReply, RemoteFailure> {
        let done = |result: Result<(), TiledError>| match result {
            Ok(()) => Ok(RemoteReply::Done),
            Err(error) => Err(failure(error)),
        };
        match call {
            RemoteCall::Begin { open, mode, ranks } => begin(&open, mode, ranks),
            RemoteCall::Open { file, open, rank, token } => {
                self.files.check_room()?;
                let path = path_of(&open.path)?;
                let token = OpenToken::decode(&token, path).map_err(failure)?;
                self.files.insert(file, open_file(path, &open, rank, token)?);
                Ok(RemoteReply::Done)
            }
            RemoteCall::SetView { file, view } => {
                let mut rest = &view[..];
                let view = View::decode(&mut rest).ok().filter(|_| rest.is_empty());
                let view = view.ok_or_else(|| refuse(Errno::INVAL, "no view"))?;
                self.files.find(file)?.set_view(view);
                Ok(RemoteReply::Done)
            }
            RemoteCall::Write { file, stream, sum } => self.files.write(file, stream, sum, payload),
            RemoteCall::Read { file, stream, len } => self.files.read(file, stream, len, out),
            RemoteCall::Size { file } => {
                self.files.find(file)?.file_size().map(RemoteReply::Size).map_err(failure)
            }
            RemoteCall::SetSize { file, size } => match self.files.copies.find(file) {
                Some(copy) => copy.set_size(size).map(|()| RemoteReply::Done),
                None => done(self.files.find(file)?.set_size(size)),
            },
            RemoteCall::Preallocate { file, size } => {
                done(self.files.find(file)?.preallocate(size))
            }
            RemoteCall::Seal { file, durable } => {
                let sealed = self.files.find(file)?.seal_piece(durable).map_err(failure)?;
                match sealed.len() > SEALED_MAX {
                    true => Err(refuse(Errno::TOOBIG, "a rank has sealed too much")),
                    false => Ok(RemoteReply::Sealed(sealed.into())),
                }
            }
            RemoteCall::AddSealed { file, rank } => {
                self.files.find(file)?;
                self.sealed.add_part(file, rank, payload).map(|()| RemoteReply::Done)
            }
            RemoteCall::Publish { file, durable, closing, ranks, sealed } => {
                let parts = self.sealed.take_parts(file, ranks, sealed)?;
                let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                done(self.files.find(file)?.publish_pieces(&parts, durable, closing))
            }
            RemoteCall::NextStamp { file } => {
                Ok(RemoteReply::Stamp(self.files.find(file)?.next_stamp()))
            }
            RemoteCall::BeginEpoch { file, stamp } => {
                done(self.files.find(file)?.begin_epoch(stamp))
            }
            RemoteCall::SetAtomic { file, on } => {
                self.files.find(file)?.set_atomic(on);
                Ok(RemoteReply::Done)
            }
            RemoteCall::MarkPublished { file } => {
                self.files.find(file)?.mark_published();
                Ok(RemoteReply::Done)
            }
            RemoteCall::Lock { file } => {
                let file = self.files.find(file)?;
                done(self.link.run_wait(|| file.lock()))
            }
            RemoteCall::Unlock { file } => done(self.files.find(file)?.unlock()),
            RemoteCall::AddToPointer { file, delta } => {
                let before = self.files.find(file)?.shared_add(delta).map_err(failure)?;
                Ok(RemoteReply::Pointer(before))
            }
            RemoteCall::SetPointer { file, value } => {
                done(self.files.find(file)?.shared_set(value))
            }
            RemoteCall::Close { file } => {
                self.files.remove(file);
                self.files.copies.close(file);
                self.sealed.forget_file(file);
                Ok(RemoteReply::Done)
            }
            RemoteCall::Delete { path } => {
                let path = path_of(&path)?;
                done(stat::delete_file(path))
            }
            RemoteCall::Look { path, len } => {
                let path = path_of(&path)?;
                let from = |e: std::io::Error| {
                    let errno = Errno::from_io_error(&e).unwrap_or(Errno::IO);
                    refuse(errno, &format!("open {}: {e}", path.display()))
                };
                let file = File::open(path).map_err(from)?;
                file.take(u64::from(len).min(BYTES_MAX as u64)).read_to_end(out).map_err(from)?;
                Ok(RemoteReply::Bytes { sum: sum_bytes(out) })
            }
            RemoteCall::Stat { path } => {
                let found = stat::stat_file(path_of(&path)?).map_err(failure)?;
                let (size, mode, modified) = (found.size, found.mode, found.modified);
                Ok(RemoteReply::Stat(SiteStat { size, mode, modified }))
            }
            RemoteCall::Mount(call) => self.mount.carry_out(call, payload, out),
            RemoteCall::OpenData { encrypt } => {
                self.connections.offer(encrypt).map(RemoteReply::Offer)
            }
            RemoteCall::CloseData { connection } => {
                self.connections.close(connection);
                Ok(RemoteReply::Done)
            }
            RemoteCall::PutFile { path, mode, change, may_replace, sum } => {
                check_sum(payload, sum)?;
                let path = path_of(&path)?;
                copy_files::put_file(path, mode, change, may_replace, payload)?;
                Ok(RemoteReply::Done)
            }
            RemoteCall::FetchFile { path, len } => {
                let attr = copy_files::fetch_file(path_of(&path)?, len, out)?;
                Ok(RemoteReply::Fetched { attr, sum: sum_bytes(out) })
            }
            RemoteCall::EndProcess(process) => {
                end_earlier_process(process).map(|()| RemoteReply::Done)
            }
            other => self.try_command(other),
        }
    }

    /// The calls of commands that list, copy and remove.
    fn try_command(&mut self, call: RemoteCall) -> Result<RemoteReply, RemoteFailure> {
        let done = |()| RemoteReply::Done;
        match call {
            RemoteCall::LookAt { path, follow } => {
                path_calls::look_at(path_of(&path)?, follow).map(RemoteReply::Entry)
            }
            RemoteCall::List { path, listing, piece } => {
                let known = self.listings.remove(&listing);
                let (reply, rest) = path_calls::list_piece(known, path_of(&path)?, listing, piece)?;
                if let Some(rest) = rest {
                    if self.listings.len() >= LISTINGS_MAX {
                        self.listings.pop_first();
                    }
                    self.listings.insert(listing, rest);
                }
                Ok(reply)
            }
            RemoteCall::MakeDir { path, mode, is_exact } => {
                path_calls::make_dir(path_of(&path)?, mode, is_exact).map(done)
            }
            RemoteCall::MakeLink { path, target } => {
                path_calls::make_link(path_of(&path)?, path_of(&target)?).map(done)
            }
            RemoteCall::Change { path, change } => {
                path_calls::change_attrs(path_of(&path)?, change).map(done)
            }
            RemoteCall::RemoveDir { path } => path_calls::remove_dir(path_of(&path)?).map(done),
            RemoteCall::RemoveTree { path, removal } => {
                let known = self.removal.take().filter(|known| known.number() == removal);
                let mut work = match known {
                    Some(work) => work,
                    None => SiteTreeRemoval::begin(path_of(&path)?, removal)?,
                };
                let step = work.remove_some();
                self.removal = (!step.is_last).then_some(work);
                Ok(RemoteReply::Removed(step))
            }
            RemoteCall::OpenSource { file, path, same } => {
                let entry = self.files.copies.open_source(file, path_of(&path)?, same)?;
                Ok(RemoteReply::Entry(entry))
            }
            RemoteCall::FindData { file, from } => {
                let copy = self.files.copies.find(file).ok_or_else(not_open)?;
                copy.find_data(from).map(RemoteReply::Data)
            }
            RemoteCall::SumBlocks { file, from, end } => {
                let copy = self.files.copies.find(file).ok_or_else(not_open)?;
                copy.sum_blocks(from, end).map(RemoteReply::Sums)
            }
            RemoteCall::OpenPart { file, path, mode, record } => {
                let copies = &self.files.copies;
                copies.open_part(file, path_of(&path)?, mode, &record).map(RemoteReply::Part)
            }
            RemoteCall::OpenSink { file, path, mode } => {
                self.files.copies.open_sink(file, path_of(&path)?, mode).map(done)
            }
            RemoteCall::FinishSink { file, change, may_replace } => {
                self.files.copies.finish_sink(file, change, may_replace).map(done)
            }
            _ => Err(refuse(Errno::NOSYS, "an unknown call")),
        }
    }
}

fn begin(open: &FileOpen, mode: u32, ranks: u32) -> Result<RemoteReply, RemoteFailure> {
    let path = PathBuf::from(path_of(&open.path)?);
    let backend = choose_backend(&path, open)?;
    let open = CollectiveOpen {
        path: &path,
        flags: Flags(open.flags),
        mode,
        hints: &hints_of(open, &backend),
        environment: &Environment::default(),
        ranks,
        // Each rank has an I/O process of its own, all on this machine.
        machine: machine::machine_id(),
        nodes: &[],
    };
    let token = begin_open(&open).map_err(failure)?;
    Ok(RemoteReply::Token { token: token.encode().into(), backend })
}
