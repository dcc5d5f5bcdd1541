//! The members of an archive, one after the other.

use crate::archive_error::ArchiveError;
use crate::pax_records::{MemberTime, PaxRecords};
use crate::sparse_map::{
    DataSegment, MapReader, add_further_segments, add_header_segments, check_segments, pair_numbers,
};
use crate::tar_header::{BLOCK, TarHeader};
use std::io::Read;

/// Most bytes of a long name or a long link target in a header of its own.
const NAME_MAX: u64 = 64 << 10;
/// Most bytes of an extended header.
const RECORDS_MAX: u64 = 4 << 20;
/// Most headers before that of a member itself.
const HEADERS_MAX: usize = 64;
/// Bytes that are skipped at a time.
const SKIP: usize = 64 << 10;

/// How compressed files begin, and the programs that decompress them.
const COMPRESSED: [(&[u8], &str); 5] = [
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ", "xz"),
    (b"BZh", "bzip2"),
    (b"\x04\x22\x4d\x18", "lz4"),
];

/// The kind of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveMemberKind {
    /// A file, with bytes.
    File,
    /// One more name of an earlier member, which is the link target.
    HardLink,
    /// A symbolic link to the link target.
    Symlink,
    /// A directory.
    Dir,
    /// A named pipe.
    Fifo,
    /// A character device: major and minor number.
    CharDev(u32, u32),
    /// A block device: major and minor number.
    BlockDev(u32, u32),
}

/// A member of an archive.
#[derive(Clone, Debug)]
pub struct ArchiveMember {
    /// Its name as it is in the archive: see [`split_member_name`](crate::split_member_name).
    pub name: Vec<u8>,
    /// Its kind.
    pub kind: ArchiveMemberKind,
    /// Permission bits, 0 to 0o7777.
    pub mode: u16,
    /// The number of the owner.
    pub uid: u64,
    /// The number of the group.
    pub gid: u64,
    /// Last change of the bytes.
    pub mtime: MemberTime,
    /// The size of a file, with its holes, in bytes. 0 for any other kind.
    pub size: u64,
    /// A file has holes.
    pub is_sparse: bool,
    /// The target of a link.
    pub link: Vec<u8>,
    /// Extended attributes, names and values.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// See the module.
pub struct ArchiveReader<R> {
    input: R,
    /// Bytes that were read.
    at: u64,
    /// Where the headers of the present member begin.
    member_at: u64,
    /// Segments of the present member that are to be read, the next one last.
    segments: Vec<DataSegment>,
    /// Bytes of the present member that are to be read or skipped, with those that fill its last
    /// block.
    left: u64,
    /// Records that hold for all members.
    global: PaxRecords,
    is_over: bool,
}

fn round_up(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(BLOCK as u64)
}

impl<R: Read> ArchiveReader<R> {
    /// Reads the archive in `input`, best a buffered one.
    pub fn new(input: R) -> ArchiveReader<R> {
        let (segments, global) = (Vec::new(), PaxRecords::default());
        ArchiveReader { input, at: 0, member_at: 0, segments, left: 0, global, is_over: false }
    }

    /// Returns the number of bytes that were read.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Returns the next member; `None` at the end of the archive, which two blocks of zeros mark.
    /// One such block is enough where the input ends with it. What is left of the present member
    /// is skipped.
    ///
    /// # Errors
    /// The archive is damaged or cut off, or cannot be read.
    pub fn next_member(&mut self) -> Result<Option<ArchiveMember>, ArchiveError> {
        self.skip_data()?;
        if self.is_over {
            return Ok(None);
        }
        self.member_at = self.at;
        let mut records = self.global.clone();
        let (mut long_name, mut long_link) = (None, None);
        for _ in 0..HEADERS_MAX {
            let at = self.at;
            let mut block = [0; BLOCK];
            let filled = self.fill_block(&mut block)?;
            let begins = |(begin, _): &&(&[u8], &str)| block[..filled].starts_with(begin);
            if let Some((_, tool)) = COMPRESSED.iter().find(begins)
                && at == 0
            {
                return Err(ArchiveError::Compressed { tool });
            }
            if filled < BLOCK {
                return Err(ArchiveError::CutOff { at: self.at });
            }
            if block.iter().all(|byte| *byte == 0) {
                let has_more = match self.try_read_block()? {
                    Some(next) => next.iter().any(|byte| *byte != 0),
                    None => false,
                };
                if has_more || at != self.member_at {
                    return Err(ArchiveError::Checksum { at });
                }
                self.is_over = true;
                return Ok(None);
            }
            let header = TarHeader::parse(&block, at)?;
            match header.kind {
                b'x' | b'X' => self.read_records(&header, &mut records)?,
                b'g' => {
                    let mut global = std::mem::take(&mut self.global);
                    self.read_records(&header, &mut global)?;
                    self.global = global;
                    records = self.global.clone();
                }
                b'L' => long_name = Some(self.read_name(&header)?),
                b'K' => long_link = Some(self.read_name(&header)?),
                // The name of the archive.
                b'V' => self.skip_bytes(round_up(header.size))?,
                _ => return self.begin_member(&block, header, records, long_name, long_link),
            }
        }
        Err(ArchiveError::Record { at: self.member_at })
    }

    fn begin_member(
        &mut self,
        block: &[u8; BLOCK],
        header: TarHeader,
        records: PaxRecords,
        long_name: Option<Vec<u8>>,
        long_link: Option<Vec<u8>>,
    ) -> Result<Option<ArchiveMember>, ArchiveError> {
        let at = self.member_at;
        let sparse = records.sparse;
        let stored = records.size.unwrap_or(header.size);
        let name = sparse.name.clone().or(records.path).or(long_name).unwrap_or(header.name);
        let (major, minor) = header.device;
        let kind = match header.kind {
            // The first tar marked directories by their names.
            0 if name.ends_with(b"/") => ArchiveMemberKind::Dir,
            0 | b'0' | b'7' | b'S' => ArchiveMemberKind::File,
            b'1' => ArchiveMemberKind::HardLink,
            b'2' => ArchiveMemberKind::Symlink,
            b'3' => ArchiveMemberKind::CharDev(major, minor),
            b'4' => ArchiveMemberKind::BlockDev(major, minor),
            // With a list of names as its bytes, in incremental archives.
            b'5' | b'D' => ArchiveMemberKind::Dir,
            b'6' => ArchiveMemberKind::Fifo,
            kind => return Err(ArchiveError::Kind { at, kind }),
        };
        let has_bytes = matches!(header.kind, 0 | b'0' | b'7' | b'S' | b'D');
        self.left = match has_bytes {
            true => round_up(stored).ok_or(ArchiveError::Number { at, field: "size" })?,
            false => 0,
        };
        let mut size = if kind == ArchiveMemberKind::File { stored } else { 0 };
        let mut is_sparse = false;
        let malformed = || ArchiveError::Sparse { at };
        if kind == ArchiveMemberKind::File {
            let (mut segments, mut map_bytes) = (vec![(0, stored)], 0);
            if header.kind == b'S' {
                is_sparse = true;
                segments.clear();
                let (mut has_more, real) =
                    add_header_segments(block, &mut segments).ok_or_else(malformed)?;
                size = real;
                while has_more {
                    let next = self.read_block()?;
                    has_more = add_further_segments(&next, &mut segments).ok_or_else(malformed)?;
                }
            } else if sparse.has_map_in_data {
                is_sparse = true;
                size = sparse.size.ok_or_else(malformed)?;
                let mut map = MapReader::default();
                segments = loop {
                    if self.left == 0 {
                        return Err(malformed());
                    }
                    let next = self.read_block()?;
                    self.left -= BLOCK as u64;
                    map_bytes += BLOCK as u64;
                    if let Some(segments) = map.take_block(&next).map_err(|_| malformed())? {
                        break segments;
                    }
                };
            } else if let Some(real) = sparse.size {
                is_sparse = true;
                size = real;
                segments = pair_numbers(&sparse.map).ok_or_else(malformed)?;
            }
            let bytes = stored.checked_sub(map_bytes).ok_or_else(malformed)?;
            self.segments = check_segments(segments, size, bytes).ok_or_else(malformed)?;
            self.segments.reverse();
        }
        Ok(Some(ArchiveMember {
            name,
            kind,
            mode: header.mode,
            uid: records.uid.unwrap_or(header.uid),
            gid: records.gid.unwrap_or(header.gid),
            mtime: records.mtime.unwrap_or(MemberTime { sec: header.mtime, nsec: 0 }),
            size,
            is_sparse,
            link: records.link.or(long_link).unwrap_or(header.link),
            xattrs: records.xattrs,
        }))
    }

    /// Reads the next bytes of the present member. Returns their offset in the file, which never
    /// goes back, and how many there are; `None` after the last ones. What is between is a hole.
    ///
    /// # Errors
    /// The archive is cut off, or cannot be read.
    ///
    /// # Panics
    /// `buffer` has no room.
    pub fn read_chunk(&mut self, buffer: &mut [u8]) -> Result<Option<(u64, usize)>, ArchiveError> {
        assert!(!buffer.is_empty(), "a chunk needs room");
        let Some((offset, length)) = self.segments.pop() else { return Ok(None) };
        let most = usize::try_from(length).map_or(buffer.len(), |len| len.min(buffer.len()));
        let got = self.read_some(&mut buffer[..most])?;
        if got == 0 {
            return Err(ArchiveError::CutOff { at: self.at });
        }
        self.left -= got as u64;
        if got as u64 != length {
            self.segments.push((offset + got as u64, length - got as u64));
        }
        Ok(Some((offset, got)))
    }

    /// Reads what is after the archive, so that the program that writes it can end.
    ///
    /// # Errors
    /// Those of the input.
    pub fn drain_input(&mut self) -> Result<(), ArchiveError> {
        let mut buffer = vec![0; SKIP];
        while self.read_some(&mut buffer)? > 0 {}
        Ok(())
    }

    fn skip_data(&mut self) -> Result<(), ArchiveError> {
        self.segments.clear();
        let left = std::mem::take(&mut self.left);
        self.skip_bytes(Some(left))
    }

    fn skip_bytes(&mut self, left: Option<u64>) -> Result<(), ArchiveError> {
        let mut left = left.ok_or(ArchiveError::Number { at: self.member_at, field: "size" })?;
        let mut buffer = [0; SKIP];
        while left > 0 {
            let most = usize::try_from(left).map_or(SKIP, |left| left.min(SKIP));
            let got = self.read_some(&mut buffer[..most])?;
            if got == 0 {
                return Err(ArchiveError::CutOff { at: self.at });
            }
            left -= got as u64;
        }
        Ok(())
    }

    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize, ArchiveError> {
        let got = self.input.read(buffer).map_err(ArchiveError::Io)?;
        self.at += got as u64;
        Ok(got)
    }

    /// Reads a block; `None` where the input ends before it.
    fn try_read_block(&mut self) -> Result<Option<[u8; BLOCK]>, ArchiveError> {
        let mut block = [0; BLOCK];
        match self.fill_block(&mut block)? {
            BLOCK => Ok(Some(block)),
            0 => Ok(None),
            _ => Err(ArchiveError::CutOff { at: self.at }),
        }
    }

    /// Reads a block, or what is left of the input. Returns the number of bytes.
    fn fill_block(&mut self, block: &mut [u8; BLOCK]) -> Result<usize, ArchiveError> {
        let mut filled = 0;
        while filled < BLOCK {
            match self.read_some(&mut block[filled..])? {
                0 => break,
                got => filled += got,
            }
        }
        Ok(filled)
    }

    fn read_block(&mut self) -> Result<[u8; BLOCK], ArchiveError> {
        self.try_read_block()?.ok_or(ArchiveError::CutOff { at: self.at })
    }

    /// Reads the bytes of a header that belongs to the next member.
    fn read_extension(&mut self, length: u64, most: u64) -> Result<Vec<u8>, ArchiveError> {
        if length > most {
            return Err(ArchiveError::TooLong { at: self.member_at, length, most });
        }
        // It fits: `most` is small.
        let mut bytes = Vec::with_capacity(length as usize + BLOCK);
        while (bytes.len() as u64) < length {
            bytes.extend_from_slice(&self.read_block()?);
        }
        bytes.truncate(length as usize);
        Ok(bytes)
    }

    fn read_records(
        &mut self,
        header: &TarHeader,
        records: &mut PaxRecords,
    ) -> Result<(), ArchiveError> {
        let bytes = self.read_extension(header.size, RECORDS_MAX)?;
        records.add_records(&bytes).ok_or(ArchiveError::Record { at: self.member_at })
    }

    fn read_name(&mut self, header: &TarHeader) -> Result<Vec<u8>, ArchiveError> {
        let mut bytes = self.read_extension(header.size, NAME_MAX)?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        bytes.truncate(end);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the header of a member, with a right checksum.
    fn header(name: &[u8], kind: u8, size: usize) -> Vec<u8> {
        let mut block = vec![0; BLOCK];
        block[..name.len()].copy_from_slice(name);
        block[100..108].copy_from_slice(b"0000640\0");
        block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
        block[136..148].copy_from_slice(b"00000000007\0");
        block[156] = kind;
        block[257..265].copy_from_slice(b"ustar\x0000");
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }

    fn member(name: &[u8], kind: u8, bytes: &[u8]) -> Vec<u8> {
        let mut all = header(name, kind, bytes.len());
        all.extend_from_slice(bytes);
        all.resize(all.len().next_multiple_of(BLOCK), 0);
        all
    }

    /// The name and the bytes of a member.
    type NamedBytes = (Vec<u8>, Vec<u8>);

    /// Returns the names and the bytes of all members.
    fn read_all(archive: &[u8]) -> Result<Vec<NamedBytes>, ArchiveError> {
        let mut reader = ArchiveReader::new(archive);
        let mut all = Vec::new();
        while let Some(member) = reader.next_member()? {
            let mut bytes = vec![0; member.size as usize];
            let mut buffer = [0; 7];
            while let Some((offset, got)) = reader.read_chunk(&mut buffer)? {
                bytes[offset as usize..offset as usize + got].copy_from_slice(&buffer[..got]);
            }
            all.push((member.name, bytes));
        }
        Ok(all)
    }

    fn sample() -> Vec<u8> {
        let parts = [
            member(b"d/", b'5', b""),
            member(b"pax", b'x', b"12 path=a/b\n"),
            member(b"ignored", b'0', &[7; 700]),
            member(b"././@LongLink", b'L', &[&[b'n'; 120][..], b"\0"].concat()),
            member(b"short", b'0', b"x"),
            member(b"pax", b'x', b"22 GNU.sparse.major=1\n28 GNU.sparse.realsize=2000\n"),
            member(b"s", b'0', &[&b"1\n1000\n3\n"[..], &[0; 503], b"abc"].concat()),
            vec![0; 2 * BLOCK],
        ];
        parts.concat()
    }

    #[test]
    fn members_are_read_in_all_formats() {
        let all = read_all(&sample()).expect("an archive");
        assert_eq!(all[0], (b"d/".to_vec(), Vec::new()));
        assert_eq!(all[1], (b"a/b".to_vec(), vec![7; 700]));
        assert_eq!(all[2], (vec![b'n'; 120], b"x".to_vec()));
        let sparse = [&[0; 1000][..], b"abc", &[0; 997]].concat();
        assert_eq!(all[3], (b"s".to_vec(), sparse));
        assert_eq!(all.len(), 4);
    }

    #[test]
    fn an_archive_that_is_cut_off_is_an_error() {
        let whole = sample();
        // With one block of zeros, nothing is lost.
        for end in 0..whole.len() - BLOCK {
            let cut = read_all(&whole[..end]);
            assert!(matches!(cut, Err(ArchiveError::CutOff { at }) if at == end as u64), "{end}");
        }
        assert!(read_all(&whole[..whole.len() - BLOCK]).is_ok());
    }

    #[test]
    fn a_changed_byte_of_a_header_is_an_error() {
        let whole = sample();
        for at in (0..BLOCK).filter(|at| *at != 155 && *at != 154) {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert!(read_all(&changed).is_err(), "{at}");
        }
        let said = read_all(b"\x1f\x8bshort").expect_err("compressed");
        assert!(said.to_string().contains("gzip"), "{said}");
    }
}
