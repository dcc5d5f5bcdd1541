//! Shared state of the ranks of one collective open: a file pointer, and a lock of the whole file
//! that they get in the order of their requests.
//!
//! Beside the inode lies a record for each open, one for each participating rank, and one for each
//! rank that has the lock or waits for it. None of them is an attribute of the file: its times do
//! not change.

use crate::error::Outcome;
use crate::keys::{self, Key, Parsed, tag};
use crate::permission::{self, want};
use crate::record::{Damaged, Reader};
use crate::state::State;
use crate::store::{Store, prefix_end};
use crate::txn::Txn;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use tatami_wire::job::{JobOp, JobTold, OPENS_MAX, RANKS_MAX};
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

    fn decode(bytes: &[u8]) -> Result<JobRecord, Damaged> {
        let mut r = Reader::new(bytes, VERSION, "job")?;
        let job = JobRecord { pointer: r.u64()? as i64, next: r.u64()?, ranks: r.u32()? };
        r.end()?;
        if job.next == NO_PLACE { Err(Damaged("job")) } else { Ok(job) }
    }
}

fn encode_rank(place: u64) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.extend_from_slice(&place.to_le_bytes());
    out
}

/// Returns the place of a rank in the queue for the lock.
fn decode_rank(bytes: &[u8]) -> Result<u64, Damaged> {
    let mut r = Reader::new(bytes, VERSION, "rank of a job")?;
    let place = r.u64()?;
    r.end()?;
    Ok(place)
}

fn encode_place(client: ClientId, rank: u32) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.extend_from_slice(&client.0);
    out.extend_from_slice(&rank.to_le_bytes());
    out
}

/// Returns the client and rank of a place.
fn decode_place(bytes: &[u8]) -> Result<(ClientId, u32), Damaged> {
    let mut r = Reader::new(bytes, VERSION, "place in a job")?;
    let whose = (ClientId(r.array()?), r.u32()?);
    r.end()?;
    Ok(whose)
}

/// Runs one operation of a rank.
pub(crate) fn run<S: Store>(
    txn: &mut Txn<'_, S>,
    who: JobRank,
    joined: bool,
    op: JobOp,
) -> Outcome<MetaReply> {
    // Before the access check: the file may be gone.
    if op == JobOp::End {
        return end(txn, who);
    }
    check_reach(txn, who.ino)?;
    let record = keys::job_rank(who.ino, who.open, txn.ctx.client, who.rank);
    let known = txn.get(&record)?.map(|value| decode_rank(&value)).transpose()?;
    if joined && known.is_none() {
        // Another rank may have the lock or pointer that it had.
        return Err(Errno::ESTALE.into());
    }
    let place = known.unwrap_or(NO_PLACE);
    let (mut job, first) = load(txn, who)?;
    let old = job;
    if known.is_none() {
        txn.need_room()?;
        if job.ranks >= RANKS_MAX {
            return Err(Errno::ENOLCK.into());
        }
        job.ranks += 1;
    }
    let (told, new_place) = match op {
        JobOp::Add { by } => {
            job.pointer = old.pointer.checked_add(by).ok_or(Errno::EOVERFLOW)?;
            (JobTold::Pointer(old.pointer), place)
        }
        JobOp::Set { to } => {
            job.pointer = to;
            (JobTold::Pointer(old.pointer), place)
        }
        JobOp::Lock => {
            let place = if place == NO_PLACE { enter(txn, who, &mut job) } else { place };
            // Only committed places count: a place taken by this request is the last one.
            let ahead = first_place(txn.state, who.ino, who.open)?.filter(|(at, _)| *at < place);
            (if ahead.is_none() { JobTold::Locked } else { JobTold::Waits }, place)
        }
        JobOp::Unlock if place == NO_PLACE => return Err(Errno::ENOLCK.into()),
        JobOp::Unlock => {
            txn.delete(keys::job_place(who.ino, who.open, place));
            (JobTold::Done, NO_PLACE)
        }
        JobOp::End => return Err(Errno::EINVAL.into()),
    };
    if job != old {
        txn.put(keys::job(who.ino, who.open), job.encode());
    }
    if known != Some(new_place) {
        txn.put(record, encode_rank(new_place));
    }
    Ok(MetaReply::Job { first, told })
}

/// Checks that the client may share state: it may read or write the file, or has it open for
/// writing.
fn check_reach<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> Outcome<()> {
    let inode = txn.inode(ino)?;
    if !inode.is_file() {
        return Err(Errno::EINVAL.into());
    }
    let may = |want| permission::check(&inode, txn.cred, want).is_ok();
    if may(want::READ) || may(want::WRITE) {
        return Ok(());
    }
    match txn.get(&keys::writer(ino, txn.ctx.client))? {
        Some(_) => Ok(()),
        None => Err(Errno::EACCES.into()),
    }
}

/// Returns the shared state of the open, and whether it is new.
fn load<S: Store>(
    txn: &Txn<'_, S>,
    JobRank { ino, open, .. }: JobRank,
) -> Outcome<(JobRecord, bool)> {
    if let Some(value) = txn.get(&keys::job(ino, open))? {
        return Ok((JobRecord::decode(&value)?, false));
    }
    if opens(txn, ino)? >= OPENS_MAX {
        return Err(Errno::ENOLCK.into());
    }
    Ok((JobRecord::NEW, true))
}

/// Returns the number of opens of the file with shared state, up to [`OPENS_MAX`].
fn opens<S: Store>(txn: &Txn<'_, S>, ino: Ino) -> Outcome<usize> {
    let prefix = keys::of_ino(tag::JOB, ino);
    let (mut from, mut found) = (Some(prefix.clone()), 0);
    while let Some(start) = from.take().filter(|_| found < OPENS_MAX) {
        txn.scan(&start, &prefix, &mut |key, _| {
            // Skip the ranks of each open found.
            if let Some(Parsed::Job { open, .. }) = keys::parse(key) {
                found += 1;
                from = prefix_end(&keys::job(ino, open));
            }
            Ok(ControlFlow::Break(()))
        })?;
    }
    Ok(found)
}

/// Takes the last place in the queue for the lock.
fn enter<S: Store>(
    txn: &mut Txn<'_, S>,
    JobRank { ino, open, rank }: JobRank,
    job: &mut JobRecord,
) -> u64 {
    let place = job.next;
    // Places are never reused: their order is the order of the requests.
    job.next += 1;
    txn.put(keys::job_place(ino, open, place), encode_place(txn.ctx.client, rank));
    place
}

/// Returns the first place with its client and rank, without the operation's own writes.
fn first_place<S: Store>(
    state: &State<S>,
    ino: Ino,
    open: u64,
) -> Outcome<Option<(u64, (ClientId, u32))>> {
    let (prefix, mut first) = (keys::job_places(ino, open), None);
    state.scan(&prefix, &prefix, &mut |key, value| {
        if let Some(Parsed::JobPlace { place, .. }) = keys::parse(key) {
            first = Some((place, decode_place(value)?));
        }
        Ok(ControlFlow::Break(()))
    })?;
    Ok(first)
}

/// Returns the holder of the lock of an open.
pub(crate) fn holder<S: Store>(
    state: &State<S>,
    ino: Ino,
    open: u64,
) -> Outcome<Option<(ClientId, u32)>> {
    Ok(first_place(state, ino, open)?.map(|(_, whose)| whose))
}

/// Removes an open. The file itself may be gone.
fn end<S: Store>(txn: &mut Txn<'_, S>, JobRank { ino, open, .. }: JobRank) -> Outcome<MetaReply> {
    for key in txn.keys(&keys::job(ino, open), usize::MAX)? {
        txn.delete(key);
    }
    Ok(MetaReply::Job { first: false, told: JobTold::Done })
}

/// Removes the ranks of an expired client, at most `limit` of them. Returns their number.
pub(crate) fn expire<S: Store>(
    txn: &mut Txn<'_, S>,
    client: ClientId,
    limit: usize,
) -> Outcome<usize> {
    let mut gone: BTreeMap<(Ino, u64), Vec<(Key, u64)>> = BTreeMap::new();
    let mut left = limit;
    // They lie by inode, so all are scanned: there are as many as ranks with shared state.
    txn.scan(&[], &[tag::JOB], &mut |key, value| {
        if left == 0 {
            return Ok(ControlFlow::Break(()));
        }
        if let Some(Parsed::JobRank { ino, open, client: of, .. }) = keys::parse(key)
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
            txn.delete(key);
            if place != NO_PLACE {
                txn.delete(keys::job_place(ino, open, place));
            }
        }
        let Some(value) = txn.get(&keys::job(ino, open))? else { continue };
        let mut job = JobRecord::decode(&value)?;
        job.ranks = job.ranks.saturating_sub(count);
        match job.ranks {
            0 => txn.delete(keys::job(ino, open)),
            _ => txn.put(keys::job(ino, open), job.encode()),
        }
    }
    Ok(limit - left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const JOB: JobRecord = JobRecord { pointer: -2, next: 3, ranks: 4 };

    /// The bytes of docs/FORMAT.md. If this fails, the format has changed: raise its version and
    /// keep reading the old one.
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
