//! Shared state of the ranks of one collective open: a file pointer, and a lock of the whole file
//! that they get in the order of their requests.
//!
//! Beside the inode lies a record for each open, one for each participating rank, and one for each
//! rank that has the lock or waits for it. None of them is an attribute of the file: its times do
//! not change.

use crate::error::MetaOutcome;
use crate::keys::{self, ParsedKey, RecordKey, tag};
use crate::operation::Txn;
use crate::permission::{self, want};
use crate::record::{DamagedRecord, RecordReader};
use crate::state::MetaState;
use crate::store::{Store, prefix_end};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use tatami_wire::job::{JobOp, JobReply, OPENS_MAX, RANKS_MAX};
use tatami_wire::meta::MetaReply;
use tatami_wire::{ClientId, Errno, Ino};

const VERSION: u8 = 1;
/// Stands for no place: the rank wants no lock.
const NO_PLACE: u64 = 0;

/// A rank of an open, of the requesting client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobRank {
    pub ino: Ino,
    pub open: u64,
    pub rank: u32,
}

/// The shared state of an open's ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct JobRecord {
    pointer: i64,
    /// The next place in the queue for the lock.
    next: u64,
    /// Number of participating ranks.
    ranks: u32,
}

impl JobRecord {
    /// The record of an open without any shared state yet.
    const NEW: JobRecord = JobRecord { pointer: 0, next: NO_PLACE + 1, ranks: 0 };

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(21);
        out.push(VERSION);
        out.extend_from_slice(&self.pointer.to_le_bytes());
        out.extend_from_slice(&self.next.to_le_bytes());
        out.extend_from_slice(&self.ranks.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Result<JobRecord, DamagedRecord> {
        let mut r = RecordReader::new(bytes, VERSION, "job")?;
        let job =
            JobRecord { pointer: r.read_u64()? as i64, next: r.read_u64()?, ranks: r.read_u32()? };
        r.expect_end()?;
        if job.next == NO_PLACE { Err(DamagedRecord("job")) } else { Ok(job) }
    }
}

fn encode_rank(place: u64) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.extend_from_slice(&place.to_le_bytes());
    out
}

/// Returns the place of a rank in the queue for the lock.
fn decode_rank(bytes: &[u8]) -> Result<u64, DamagedRecord> {
    let mut r = RecordReader::new(bytes, VERSION, "rank of a job")?;
    let place = r.read_u64()?;
    r.expect_end()?;
    Ok(place)
}

fn encode_place(client: ClientId, rank: u32) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.extend_from_slice(&client.0);
    out.extend_from_slice(&rank.to_le_bytes());
    out
}

/// Returns the client and rank of a place.
fn decode_place(bytes: &[u8]) -> Result<(ClientId, u32), DamagedRecord> {
    let mut r = RecordReader::new(bytes, VERSION, "place in a job")?;
    let whose = (ClientId(r.read_array()?), r.read_u32()?);
    r.expect_end()?;
    Ok(whose)
}

/// Runs one operation of a rank.
pub(crate) fn run_job_op<S: Store>(
    txn: &mut Txn<'_, S>,
    who: JobRank,
    joined: bool,
    op: JobOp,
) -> MetaOutcome<MetaReply> {
    // Before the access check: the file may be gone.
    if op == JobOp::End {
        return end_open(txn, who);
    }
    check_file_access(txn, who.ino)?;
    let record = keys::job_rank(who.ino, who.open, txn.ctx.client, who.rank);
    let known = txn.get(&record)?.map(|value| decode_rank(&value)).transpose()?;
    if joined && known.is_none() {
        // Another rank may have the lock or pointer that it had.
        return Err(Errno::ESTALE.into());
    }
    let place = known.unwrap_or(NO_PLACE);
    let (mut job, first) = load_job(txn, who)?;
    let old = job;
    if known.is_none() {
        txn.require_room()?;
        if job.ranks >= RANKS_MAX {
            return Err(Errno::ENOLCK.into());
        }
        job.ranks += 1;
    }
    let (reply, new_place) = match op {
        JobOp::Add { by } => {
            job.pointer = old.pointer.checked_add(by).ok_or(Errno::EOVERFLOW)?;
            (JobReply::Pointer(old.pointer), place)
        }
        JobOp::Set { to } => {
            job.pointer = to;
            (JobReply::Pointer(old.pointer), place)
        }
        JobOp::Lock => {
            let place = if place == NO_PLACE { join_queue(txn, who, &mut job) } else { place };
            // Only committed places count: a place taken by this request is the last one.
            let ahead = first_in_queue(txn.state, who.ino, who.open)?.filter(|(at, _)| *at < place);
            (if ahead.is_none() { JobReply::Locked } else { JobReply::Waiting }, place)
        }
        JobOp::Unlock if place == NO_PLACE => return Err(Errno::ENOLCK.into()),
        JobOp::Unlock => {
            txn.delete_record(keys::job_place(who.ino, who.open, place));
            (JobReply::Done, NO_PLACE)
        }
        JobOp::End => return Err(Errno::EINVAL.into()),
    };
    if job != old {
        txn.put_record(keys::job(who.ino, who.open), job.encode());
    }
    if known != Some(new_place) {
        txn.put_record(record, encode_rank(new_place));
    }
    Ok(MetaReply::Job { first, reply })
}

/// Checks that the client may share state: it may read or write the file, or has it open for
/// writing.
fn check_file_access<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> MetaOutcome<()> {
    let inode = txn.load_inode(ino)?;
    if !inode.is_file() {
        return Err(Errno::EINVAL.into());
    }
    let may = |want| permission::check_access(&inode, txn.cred, want).is_ok();
    if may(want::READ) || may(want::WRITE) {
        return Ok(());
    }
    match txn.get(&keys::writer(ino, txn.ctx.client))? {
        Some(_) => Ok(()),
        None => Err(Errno::EACCES.into()),
    }
}

/// Returns the shared state of the open, and whether it is new.
fn load_job<S: Store>(
    txn: &Txn<'_, S>,
    JobRank { ino, open, .. }: JobRank,
) -> MetaOutcome<(JobRecord, bool)> {
    if let Some(value) = txn.get(&keys::job(ino, open))? {
        return Ok((JobRecord::decode(&value)?, false));
    }
    if count_opens(txn, ino)? >= OPENS_MAX {
        return Err(Errno::ENOLCK.into());
    }
    Ok((JobRecord::NEW, true))
}

/// Returns the number of opens of the file with shared state, up to [`OPENS_MAX`].
fn count_opens<S: Store>(txn: &Txn<'_, S>, ino: Ino) -> MetaOutcome<usize> {
    let prefix = keys::inode_prefix(tag::JOB, ino);
    let (mut from, mut found) = (Some(prefix.clone()), 0);
    while let Some(start) = from.take().filter(|_| found < OPENS_MAX) {
        txn.scan_records(&start, &prefix, &mut |key, _| {
            // Skip the ranks of each open found.
            if let Some(ParsedKey::Job { open, .. }) = keys::parse(key) {
                found += 1;
                from = prefix_end(&keys::job(ino, open));
            }
            Ok(ControlFlow::Break(()))
        })?;
    }
    Ok(found)
}

/// Takes the last place in the queue for the lock.
fn join_queue<S: Store>(
    txn: &mut Txn<'_, S>,
    JobRank { ino, open, rank }: JobRank,
    job: &mut JobRecord,
) -> u64 {
    let place = job.next;
    // Places are never reused: their order is the order of the requests.
    job.next += 1;
    txn.put_record(keys::job_place(ino, open, place), encode_place(txn.ctx.client, rank));
    place
}

/// Returns the first place with its client and rank, without the operation's own writes.
fn first_in_queue<S: Store>(
    state: &MetaState<S>,
    ino: Ino,
    open: u64,
) -> MetaOutcome<Option<(u64, (ClientId, u32))>> {
    let (prefix, mut first) = (keys::job_places_prefix(ino, open), None);
    state.scan_records(&prefix, &prefix, &mut |key, value| {
        if let Some(ParsedKey::JobPlace { place, .. }) = keys::parse(key) {
            first = Some((place, decode_place(value)?));
        }
        Ok(ControlFlow::Break(()))
    })?;
    Ok(first)
}

/// Returns the holder of the lock of an open.
pub(crate) fn lock_holder<S: Store>(
    state: &MetaState<S>,
    ino: Ino,
    open: u64,
) -> MetaOutcome<Option<(ClientId, u32)>> {
    Ok(first_in_queue(state, ino, open)?.map(|(_, whose)| whose))
}

/// Removes an open. The file itself may be gone.
fn end_open<S: Store>(
    txn: &mut Txn<'_, S>,
    JobRank { ino, open, .. }: JobRank,
) -> MetaOutcome<MetaReply> {
    for key in txn.list_keys(&keys::job(ino, open), usize::MAX)? {
        txn.delete_record(key);
    }
    Ok(MetaReply::Job { first: false, reply: JobReply::Done })
}

/// Removes the ranks of an expired client, at most `limit` of them. Returns their number.
pub(crate) fn expire_ranks<S: Store>(
    txn: &mut Txn<'_, S>,
    client: ClientId,
    limit: usize,
) -> MetaOutcome<usize> {
    let mut gone: BTreeMap<(Ino, u64), Vec<(RecordKey, u64)>> = BTreeMap::new();
    let mut left = limit;
    // They lie by inode, so all are scanned: there are as many as ranks with shared state.
    txn.scan_records(&[], &[tag::JOB], &mut |key, value| {
        if left == 0 {
            return Ok(ControlFlow::Break(()));
        }
        if let Some(ParsedKey::JobRank { ino, open, client: of, .. }) = keys::parse(key)
            && of == client
        {
            gone.entry((ino, open)).or_default().push((key.to_vec(), decode_rank(value)?));
            left -= 1;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    for ((ino, open), ranks) in gone {
        let count = ranks.len() as u32;
        for (key, place) in ranks {
            txn.delete_record(key);
            if place != NO_PLACE {
                txn.delete_record(keys::job_place(ino, open, place));
            }
        }
        let Some(value) = txn.get(&keys::job(ino, open))? else { continue };
        let mut job = JobRecord::decode(&value)?;
        job.ranks = job.ranks.saturating_sub(count);
        match job.ranks {
            0 => txn.delete_record(keys::job(ino, open)),
            _ => txn.put_record(keys::job(ino, open), job.encode()),
        }
    }
    Ok(limit - left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const JOB: JobRecord = JobRecord { pointer: -2, next: 3, ranks: 4 };

    /// The bytes of docs/reference/formats.md. If this fails, the format has changed: raise its
    /// version and keep reading the old one.
    #[test]
    fn the_format_is_the_one_written_down() {
        let mut expected = vec![1];
        expected.extend((-2i64).to_le_bytes());
        expected.extend(3u64.to_le_bytes());
        expected.extend(4u32.to_le_bytes());
        assert_eq!(JOB.encode(), expected);
        assert_eq!(encode_rank(5), [1, 5, 0, 0, 0, 0, 0, 0, 0]);
        let mut expected = vec![1];
        expected.extend([7; 16]);
        expected.extend([6, 0, 0, 0]);
        assert_eq!(encode_place(ClientId([7; 16]), 6), expected);
    }

    #[test]
    fn records_read_as_they_were_written() {
        assert_eq!(JobRecord::decode(&JOB.encode()), Ok(JOB));
        assert_eq!(JobRecord::decode(&JobRecord::NEW.encode()), Ok(JobRecord::NEW));
        assert_eq!(decode_rank(&encode_rank(5)), Ok(5));
        let whose = (ClientId([7; 16]), 6);
        assert_eq!(decode_place(&encode_place(whose.0, whose.1)), Ok(whose));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_do_not(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = decode_rank(&bytes);
            let _ = decode_place(&bytes);
            if let Ok(job) = JobRecord::decode(&bytes) {
                prop_assert_eq!(job.encode(), bytes);
            }
        }
    }
}
