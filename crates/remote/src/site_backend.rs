//! The back ends by which an I/O process keeps a file.

use serde::{Deserialize, Serialize};
use std::fmt;

/// An MPI library of the other site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SiteMpi {
    /// Open MPI.
    OpenMpi,
    /// MPICH, or a library with its binary interface.
    Mpich,
}

impl SiteMpi {
    /// All of them, in the order in which they are tried.
    pub const ALL: [SiteMpi; 2] = [SiteMpi::OpenMpi, SiteMpi::Mpich];

    /// The word for it, as in the names of libraries.
    pub fn word(self) -> &'static str {
        match self {
            SiteMpi::OpenMpi => "openmpi",
            SiteMpi::Mpich => "mpich",
        }
    }
}

/// A back end: the wish of a program, or the one in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SiteBackend {
    /// The I/O process chooses. Never in force.
    #[default]
    Auto,
    /// System calls on an ordinary file.
    Posix,
    /// The pieces of a file of a Tatami volume there.
    Volume,
    /// The MPI-IO of an MPI library there; `None`: any.
    Mpi(Option<SiteMpi>),
    /// A word without a meaning, which an open refuses.
    Unknown(String),
}

impl SiteBackend {
    /// Parses the value of the hint `tatami_backend`.
    pub fn parse(value: &str) -> SiteBackend {
        match value.trim() {
            "" | "auto" => SiteBackend::Auto,
            "posix" => SiteBackend::Posix,
            "volume" => SiteBackend::Volume,
            "mpi" => SiteBackend::Mpi(None),
            "mpi:openmpi" => SiteBackend::Mpi(Some(SiteMpi::OpenMpi)),
            "mpi:mpich" => SiteBackend::Mpi(Some(SiteMpi::Mpich)),
            other => SiteBackend::Unknown(other.chars().take(64).collect()),
        }
    }
}

impl fmt::Display for SiteBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SiteBackend::Auto => f.write_str("auto"),
            SiteBackend::Posix => f.write_str("posix"),
            SiteBackend::Volume => f.write_str("volume"),
            SiteBackend::Mpi(None) => f.write_str("mpi"),
            SiteBackend::Mpi(Some(mpi)) => write!(f, "mpi:{}", mpi.word()),
            SiteBackend::Unknown(word) => f.write_str(word),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_back_end_is_read_as_written_and_other_words_are_unknown() {
        for word in ["auto", "posix", "volume", "mpi", "mpi:openmpi", "mpi:mpich"] {
            assert_eq!(SiteBackend::parse(word).to_string(), word);
            assert!(!matches!(SiteBackend::parse(word), SiteBackend::Unknown(_)), "{word}");
        }
        assert_eq!(SiteBackend::parse(" "), SiteBackend::Auto);
        assert_eq!(SiteBackend::parse("mpi:"), SiteBackend::Unknown("mpi:".to_owned()));
    }
}
