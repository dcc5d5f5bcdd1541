//! The choice of a back end for a file: what the program asks for, or what the path is good for.

use crate::mpi_engine::MpiEngine;
use crate::mpi_library::LoadedMpi;
use crate::mpi_trial::find_working_mpi;
use crate::refusal::{failure, refuse};
use rustix::io::Errno;
use std::path::Path;
use tatami_remote::{FileOpen, RemoteFailure, SiteBackend};
use tatami_tiled::claim::{Claim, decide_claim, resolve_links};
use tatami_tiled::{Environment, Flags, Hints, OpenToken, RankFile};

/// The hints of an open with a back end.
pub(crate) fn hints_of(open: &FileOpen, backend: &SiteBackend) -> Hints {
    let read_buffer = (open.read_buffer as usize).clamp(4096, 1 << 30);
    let on_volume = *backend == SiteBackend::Volume;
    Hints {
        // An ordinary file, also on a mount of a volume.
        plain: Some(!on_volume),
        tiled: Some(on_volume),
        spread: on_volume,
        read_buffer,
        sieve: open.sieve,
        ..Hints::default()
    }
}

/// Chooses the back end for an open.
///
/// # Errors
/// `ENODEV` where the back end that is asked for is not there.
pub(crate) fn choose_backend(path: &Path, open: &FileOpen) -> Result<SiteBackend, RemoteFailure> {
    match &open.backend {
        SiteBackend::Auto if is_on_volume(path, open) => Ok(SiteBackend::Volume),
        SiteBackend::Auto if is_parallel(path) => {
            let mpi = find_working_mpi(None).ok();
            Ok(mpi.map_or(SiteBackend::Posix, |mpi| SiteBackend::Mpi(Some(mpi))))
        }
        SiteBackend::Auto | SiteBackend::Posix => Ok(SiteBackend::Posix),
        SiteBackend::Mpi(wanted) => {
            let found = find_working_mpi(*wanted);
            found.map(|mpi| SiteBackend::Mpi(Some(mpi))).map_err(|RemoteFailure { errno, what }| {
                RemoteFailure { errno, what: format!("open {}: {what}", path.display()) }
            })
        }
        SiteBackend::Volume if is_on_volume(path, open) => Ok(SiteBackend::Volume),
        SiteBackend::Volume => {
            let why = "it lies on no mount of a volume that this user can reach there \
                       (tatami_backend is volume)";
            Err(refuse(Errno::NODEV, &format!("open {}: {why}", path.display())))
        }
        SiteBackend::Unknown(word) => {
            Err(refuse(Errno::INVAL, &format!("open {}: {word:?} is no back end", path.display())))
        }
    }
}

/// Whether the file is one of a volume, or would be a new one of it.
fn is_on_volume(path: &Path, open: &FileOpen) -> bool {
    let hints = Hints { plain: None, ..hints_of(open, &SiteBackend::Volume) };
    let claim = decide_claim(path, Flags(open.flags), &hints, &Environment::default());
    matches!(claim, Ok(Claim::Volume { .. }))
}

/// Magic numbers of statfs(2): Lustre, GPFS, BeeGFS, PVFS and OrangeFS.
const PARALLEL: [u64; 4] = [0x0bd0_0bd0, 0x4750_4653, 0x1983_0326, 0x2003_0528];

/// Whether the file lies on a parallel file system, for which MPI-IO has better ways than system
/// calls.
fn is_parallel(path: &Path) -> bool {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let found = rustix::fs::statfs(path);
    let found = found.or_else(|_| rustix::fs::statfs(parent.unwrap_or(Path::new("."))));
    found.is_ok_and(|found| PARALLEL.contains(&(found.f_type as u64 & 0xffff_ffff)))
}

/// Opens a file that rank 0 has begun to open, by the back end in force.
///
/// # Errors
/// As for open(2), and those of the back end.
pub(crate) fn open_file(
    path: &Path,
    open: &FileOpen,
    rank: u32,
    token: OpenToken,
) -> Result<RankFile, RemoteFailure> {
    let (flags, hints) = (Flags(open.flags), hints_of(open, &open.backend));
    let SiteBackend::Mpi(Some(mpi)) = open.backend else {
        return RankFile::open(path, flags, &hints, rank, token).map_err(failure);
    };
    let real = resolve_links(path).map_err(failure)?;
    let engine = MpiEngine::open(LoadedMpi::load(mpi)?, &real, flags).map_err(failure)?;
    Ok(RankFile::with_engine(real, flags, &hints, token, Box::new(engine)))
}
