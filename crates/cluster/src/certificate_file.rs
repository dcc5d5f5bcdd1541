//! The file with the certificates of a volume whose connections are encrypted: `certificates.toml`.
//!
//! It holds the certificates of the volume's authorities, and that of this machine, each with its
//! private key. The first authority issues certificates, and the others are accepted. A text for
//! another machine has no certificate of a machine: the other machine makes its own.

use crate::key_file::{KeyError, read_secret_file};
use crate::trusted::{self, TrustError};
use rustix::fs::Mode;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use tatami_wire::VolumeId;

/// The version of the file that this program writes and reads.
pub const CERTIFICATES_FORMAT: u32 = 1;
/// Most authorities: the one that issues, and others that are being replaced.
pub const AUTHORITIES_MAX: usize = 4;
/// Longest file that is read, in bytes.
const LENGTH_MAX: u64 = 256 << 10;
/// Longest certificate or private key, in bytes.
const PEM_MAX: usize = 32 << 10;

const HEADER: &str = "\
# Certificates and private keys of a Tatami volume: for its owner alone.
# docs/operating/security.md says how they are made and replaced.

";

/// Begins the last line, which ends with the CRC-32C of all bytes before it in hexadecimal digits.
const CHECKSUM: &str = "# checksum of all above: ";

/// The faults of a file with certificates.
#[derive(Debug, thiserror::Error)]
pub enum CertificateFileError {
    /// It cannot be read, or other users can.
    #[error(transparent)]
    Secret(#[from] KeyError),
    /// It cannot be written.
    #[error(transparent)]
    Untrusted(#[from] TrustError),
    /// Its content is not valid.
    #[error("certificates {}: {what}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
}

/// A private key as PEM, which no log shows.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PrivateKeyText(pub String);

impl fmt::Debug for PrivateKeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKeyText")
    }
}

/// A certificate, and the time in which it is valid, in seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateEntry {
    /// The first second.
    pub begins: u64,
    /// The last second.
    pub ends: u64,
    /// The certificate as PEM.
    pub certificate: String,
    /// Its private key. An authority that issues no more has none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub private_key: Option<PrivateKeyText>,
}

/// The certificates of a volume, on one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFile {
    /// The volume.
    pub volume: VolumeId,
    /// The authorities, at least one. The first issues certificates.
    pub authorities: Vec<CertificateEntry>,
    /// The certificate of this machine; `None` in a text for another machine.
    pub machine: Option<CertificateEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CertificateFileText {
    format: u32,
    volume: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    machine: Option<CertificateEntry>,
    #[serde(rename = "authority")]
    authorities: Vec<CertificateEntry>,
}

impl CertificateFile {
    /// Returns the path of the file in the directory of a volume.
    pub fn path_in(dir: &Path) -> PathBuf {
        dir.join("certificates.toml")
    }

    /// Returns the name that the certificate of each machine of a volume has. It is that of no host
    /// (RFC 2606).
    pub fn member_name(volume: VolumeId) -> String {
        format!("{volume}.tatami.invalid")
    }

    /// Reads and checks the file at `path`, which must have the certificate of a machine.
    ///
    /// # Errors
    /// [`CertificateFileError`].
    pub fn load(path: &Path) -> Result<CertificateFile, CertificateFileError> {
        let bytes = read_secret_file(path, LENGTH_MAX)?;
        let invalid = |what: String| CertificateFileError::Invalid { path: path.to_owned(), what };
        let text = String::from_utf8(bytes).map_err(|_| invalid("it is not UTF-8".to_owned()))?;
        let file = CertificateFile::parse(&text).map_err(invalid)?;
        if file.machine.is_none() {
            return Err(invalid("it has no certificate of a machine".to_owned()));
        }
        Ok(file)
    }

    /// Writes the file, for its owner alone, so that a crash leaves the old one or the new one.
    ///
    /// # Errors
    /// [`CertificateFileError`].
    pub fn save(&self, path: &Path) -> Result<(), CertificateFileError> {
        let invalid = |what| CertificateFileError::Invalid { path: path.to_owned(), what };
        let text = self.to_text().map_err(invalid)?;
        trusted::replace_file(path, text.as_bytes(), Mode::RUSR | Mode::WUSR, true)?;
        Ok(())
    }

    /// Returns the content of the file.
    ///
    /// # Errors
    /// A file that could not be read again.
    pub fn to_text(&self) -> Result<String, String> {
        self.check_contents()?;
        let text = toml::to_string_pretty(&CertificateFileText {
            format: CERTIFICATES_FORMAT,
            volume: self.volume.to_string(),
            machine: self.machine.clone(),
            authorities: self.authorities.clone(),
        });
        let text = format!("{HEADER}{}\n", text.map_err(|e| e.to_string())?);
        Ok(format!("{text}{CHECKSUM}{:08x}\n", crc32c::crc32c(text.as_bytes())))
    }

    /// Parses the content of a file.
    ///
    /// # Errors
    /// The fault. It quotes nothing of the text, which has private keys.
    pub fn parse(text: &str) -> Result<CertificateFile, String> {
        let (above, sum) = text.rsplit_once(CHECKSUM).ok_or("it has no checksum")?;
        if sum.trim_end() != format!("{:08x}", crc32c::crc32c(above.as_bytes())) {
            return Err(
                "it does not match its checksum: copy it again, or make new certificates: \
                 tatami volume rotate-certificates"
                    .to_owned(),
            );
        }
        // The error of the parser may quote the text, so only its place is reported.
        let parsed: CertificateFileText = toml::from_str(above).map_err(|e| {
            let before = e.span().and_then(|at| above.get(..at.start)).unwrap_or("");
            format!("line {} is not what tatami writes", 1 + before.matches('\n').count())
        })?;
        if parsed.format != CERTIFICATES_FORMAT {
            return Err(format!(
                "it has format {}, this tatami knows {CERTIFICATES_FORMAT}",
                parsed.format
            ));
        }
        let volume = parsed.volume.parse().map_err(|e| format!("its volume: {e}"))?;
        let (authorities, machine) = (parsed.authorities, parsed.machine);
        let file = CertificateFile { volume, authorities, machine };
        file.check_contents()?;
        Ok(file)
    }

    /// Returns the first second at which a certificate that is in use is no longer valid.
    pub fn expiry_time(&self) -> u64 {
        let issuing = self.authorities.first();
        issuing.into_iter().chain(&self.machine).map(|entry| entry.ends).min().unwrap_or(0)
    }

    fn check_contents(&self) -> Result<(), String> {
        if self.authorities.is_empty() || self.authorities.len() > AUTHORITIES_MAX {
            return Err(format!("it must list 1 to {AUTHORITIES_MAX} authorities"));
        }
        if self.authorities[0].private_key.is_none() {
            return Err("the first authority has no private key".to_owned());
        }
        if self.machine.as_ref().is_some_and(|entry| entry.private_key.is_none()) {
            return Err("the certificate of the machine has no private key".to_owned());
        }
        let entries = self.authorities.iter().chain(&self.machine);
        for entry in entries {
            let key = entry.private_key.as_ref().map_or("", |key| &key.0);
            if entry.begins > entry.ends {
                return Err("a certificate ends before it begins".to_owned());
            }
            // TOML has no larger integers.
            if i64::try_from(entry.ends).is_err() {
                return Err("a certificate ends too late".to_owned());
            }
            if entry.certificate.is_empty() || entry.certificate.len().max(key.len()) > PEM_MAX {
                return Err(format!("a certificate or a key does not have 1 to {PEM_MAX} bytes"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;

    fn entry(name: &str, ends: u64, has_key: bool) -> CertificateEntry {
        let pem = |what: &str| format!("-----BEGIN {what}-----\n{name}\n-----END {what}-----\n");
        CertificateEntry {
            begins: 1,
            ends,
            certificate: pem("CERTIFICATE"),
            private_key: has_key.then(|| PrivateKeyText(pem("PRIVATE KEY"))),
        }
    }

    fn sample() -> CertificateFile {
        CertificateFile {
            volume: VolumeId([7; 16]),
            authorities: vec![entry("new", 9, true), entry("old", 5, false)],
            machine: Some(entry("machine", 8, true)),
        }
    }

    #[test]
    fn a_file_is_for_its_owner_alone_and_is_read_as_written() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = CertificateFile::path_in(dir.path());
        sample().save(&path).expect("saved");
        let mode = std::fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert_eq!(CertificateFile::load(&path).expect("loaded"), sample());
        assert_eq!(sample().expiry_time(), 8, "of those that are in use");
        assert!(!format!("{:?}", sample()).contains("PRIVATE"), "no log shows a key");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).expect("open to all");
        let said = CertificateFile::load(&path).expect_err("others can read it").to_string();
        assert!(said.contains("chmod 600"), "{said}");
    }

    #[test]
    fn what_is_wrong_is_said_without_the_keys() {
        let text = sample().to_text().expect("text");
        let changed = text.replacen("new", "odd", 1);
        assert!(CertificateFile::parse(&changed).is_err_and(|e| e.contains("checksum")));
        let with = |change: &dyn Fn(&mut CertificateFile)| {
            let mut file = sample();
            change(&mut file);
            file.to_text().expect_err("invalid")
        };
        assert!(with(&|file| file.authorities.clear()).contains("1 to 4 authorities"));
        let keyless = with(&|file| file.authorities[0].private_key = None);
        assert!(keyless.contains("no private key"), "{keyless}");
        assert!(with(&|file| file.authorities[1].ends = 0).contains("ends before it begins"));
        assert!(with(&|file| file.authorities[1].ends = u64::MAX).contains("too late"));
        let travelling = CertificateFile { machine: None, ..sample() };
        let text = travelling.to_text().expect("text");
        assert_eq!(CertificateFile::parse(&text).expect("parsed"), travelling);
    }

    proptest! {
        #[test]
        fn any_text_is_a_file_that_saves_or_an_error(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let text = sample().to_text().map_err(TestCaseError::fail)?;
            let (above, _) = text.rsplit_once(CHECKSUM).expect("a checksum");
            let mut bytes = above.as_bytes().to_vec();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let above = String::from_utf8_lossy(&bytes);
            let text = format!("{above}{CHECKSUM}{:08x}\n", crc32c::crc32c(above.as_bytes()));
            if let Ok(file) = CertificateFile::parse(&text) {
                prop_assert!(file.to_text().is_ok());
            }
        }
    }
}
