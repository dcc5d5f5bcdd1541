//! Part files of the volume and of this machine, each with its record at the end.

use crate::volume_path::last_component;
use std::ffi::OsStr;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use tatami_client::DataFile;
use tatami_client::tree::{FileHandle, VolumeTree, join_path};
use tatami_remote::{PART_RECORD, PartFile, PartRecord, PartStart, name_part};
use tatami_wire::meta::RenameMode;
use tatami_wire::{Errno, InodeKind, SetAttr};

/// A part file of the volume. It stays when this value ends.
pub struct VolumePart {
    file: FileHandle,
    reader: FileHandle,
    part: Vec<u8>,
    to: Vec<u8>,
    size: u64,
    /// Permissions of a new file, before the umask.
    mode: u16,
}

impl VolumePart {
    /// As [`PartFile::open`], in the volume.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn open(
        tree: &VolumeTree,
        to: &[u8],
        mode: u16,
        record: &PartRecord,
    ) -> Result<(VolumePart, PartStart), Errno> {
        let name = last_component(to);
        let dir = &to[..to.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1)];
        let part = join_path(dir, name_part(OsStr::from_bytes(name)).as_bytes());
        let (size, to) = (record.size, to.to_vec());
        let found = match tree.stat(&part, false) {
            Ok(attr) => Some(attr),
            Err(Errno::ENOENT) => None,
            Err(e) => return Err(e),
        };
        if let Some(attr) = &found {
            let is_whole = attr.kind == InodeKind::File && attr.size == size + PART_RECORD as u64;
            if is_whole {
                let reader = tree.open(&part)?;
                let mut bytes = [0; PART_RECORD];
                let read = reader.data().read_at(&mut bytes, size)?;
                if PartRecord::decode(&bytes[..read]) == Ok(*record) {
                    let file = tree.open_writable(&part)?;
                    let part = VolumePart { file, reader, part, to, size, mode };
                    return Ok((part, PartStart::Continued));
                }
            }
            tree.remove_file(&part)?;
        }
        let mut file = tree.create(&part, 0o600, 0)?;
        // The size counts at once: a killed process reports none.
        file.truncate(size + PART_RECORD as u64)?;
        file.seek(SeekFrom::Start(size))?;
        file.write_all(&record.encode())?;
        file.flush()?;
        let reader = tree.open(&part)?;
        let start = if found.is_some() { PartStart::Replaced } else { PartStart::Fresh };
        Ok((VolumePart { file, reader, part, to, size, mode }, start))
    }

    /// Returns its bytes, for reading.
    pub fn data(&self) -> &DataFile {
        self.reader.data()
    }

    /// Returns the permissions of a new file, before the umask.
    pub fn mode(&self) -> u16 {
        self.mode
    }

    /// Returns the file, with a position.
    pub fn handle(&mut self) -> &mut FileHandle {
        &mut self.file
    }

    /// Gives the file its attributes and its name.
    ///
    /// # Errors
    /// Those of these steps.
    pub fn finish(
        mut self,
        tree: &VolumeTree,
        set: SetAttr,
        may_replace: bool,
    ) -> Result<(), Errno> {
        self.file.truncate(self.size)?;
        self.file.close()?;
        tree.set_attrs(&self.part, set)?;
        let mode = if may_replace { RenameMode::Replace } else { RenameMode::NoReplace };
        match tree.rename_as(&self.part, &self.to, mode) {
            Err(Errno::EEXIST) => {
                tree.remove_file(&self.part)?;
                Err(Errno::EEXIST)
            }
            renamed => renamed,
        }
    }
}

/// A part file of this machine, and the permissions of a new file.
pub struct LocalPart {
    pub part: PartFile,
    pub mode: u16,
}
