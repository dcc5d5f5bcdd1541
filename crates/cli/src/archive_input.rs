//! Where `tatami untar` reads an archive: a file of this machine or of the volume, or standard
//! input. Each member is found before the next one is read.

use crate::copy_stream::is_standard_stream;
use crate::error::{CommandFailure, CommandResult};
use crate::interrupt::is_interrupted;
use crate::volume_path::AnyPath;
use std::fs::File;
use std::io::{self, BufReader, Read};
use tatami_archive::{ArchiveError, ArchiveReader};
use tatami_client::tree::VolumeTree;
use tatami_wire::Errno;

/// Bytes that are read at a time.
const BUFFER: usize = 256 << 10;

/// An archive that is read from its beginning to its end.
pub type OpenArchive = ArchiveReader<BufReader<ArchiveInput>>;

/// The bytes of an archive.
pub struct ArchiveInput(Box<dyn Read>);

impl Read for ArchiveInput {
    /// Only the signals that end the command end a read.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted && !is_interrupted() => {}
                read => return read,
            }
        }
    }
}

/// Opens an archive. Returns it with its length, if it has one.
///
/// # Errors
/// Those of open(2); a path on another site.
pub fn open_archive(
    path: &AnyPath,
    tree: &VolumeTree,
) -> CommandResult<(OpenArchive, Option<u64>)> {
    let failed = |e: Errno| path.operation_failure("cannot read", e);
    let (input, length): (Box<dyn Read>, Option<u64>) = match path {
        _ if is_standard_stream(path) => (Box::new(io::stdin().lock()), None),
        AnyPath::Local(path) => {
            let file = File::open(path).map_err(|e| failed(Errno::from(e)))?;
            let facts = file.metadata().map_err(|e| failed(Errno::from(e)))?;
            if facts.is_dir() {
                return Err(failed(Errno::EISDIR));
            }
            let length = facts.is_file().then_some(facts.len());
            (Box::new(file), length)
        }
        AnyPath::Volume(path) => {
            let file = tree.open(path).map_err(failed)?;
            let length = file.attr().size;
            (Box::new(file), Some(length))
        }
        AnyPath::Site(_) => {
            let what = format!("{path} is on another site");
            return Err(CommandFailure::usage(what)
                .try_this(format!("tatami cat {path} | tatami untar - :/DIR")));
        }
    };
    let input = BufReader::with_capacity(BUFFER, ArchiveInput(input));
    Ok((ArchiveReader::new(input), length))
}

/// Returns the failure of an archive that cannot be read on, with a remedy.
pub fn archive_failure(path: &AnyPath, error: ArchiveError) -> CommandFailure {
    let compressed = match &error {
        ArchiveError::Compressed { tool } => Some(*tool),
        _ => None,
    };
    let failure = CommandFailure::new(format!("cannot unpack {path}")).because(error);
    match compressed {
        Some(tool) if is_standard_stream(path) => {
            failure.try_this(format!("... | {tool} -dc | tatami untar - :/DIR"))
        }
        Some(tool) => failure.try_this(format!("{tool} -dc {path} | tatami untar - :/DIR")),
        None => failure,
    }
}
