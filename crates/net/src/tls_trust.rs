//! The certificates by which both sides of an encrypted connection know each other.

use parking_lot::Mutex;
use rustls::client::Resumption;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CipherSuite, ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore,
    ServerConfig, SignatureScheme,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tatami_cluster::{CertificateFile, CertificateFileError, Encryption, VolumeFile};
use tatami_wire::VolumeId;

/// The reasons for which there are no certificates.
#[derive(Debug, thiserror::Error)]
pub enum TlsTrustError {
    /// The file with the certificates cannot be used.
    #[error(transparent)]
    File(#[from] CertificateFileError),
    /// It has the certificates of another volume.
    #[error("certificates {}: they are those of volume {found}, not of {expected}", path.display())]
    OtherVolume {
        /// The file.
        path: PathBuf,
        /// Its volume.
        found: VolumeId,
        /// The volume that it should have.
        expected: VolumeId,
    },
    /// A certificate or a key in it is not one.
    #[error("certificates {}: {what}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
}

impl TlsTrustError {
    /// Whether the certificates belong to another user: then this user has none.
    pub fn is_foreign(&self) -> bool {
        match self {
            TlsTrustError::File(CertificateFileError::Secret(e)) => e.is_foreign(),
            _ => false,
        }
    }
}

/// The certificates of a volume on this machine. The file is read again when it has changed, so a
/// running process takes new certificates for its next connection.
#[derive(Debug)]
pub struct TlsTrust {
    path: PathBuf,
    volume: VolumeId,
    current: Mutex<CurrentConfigs>,
    /// Increases whenever the file is read again.
    generation: AtomicU64,
}

#[derive(Debug)]
struct CurrentConfigs {
    /// The file that was read, or that could not be used, last.
    stamp: Option<FileStamp>,
    configs: Arc<TlsConfigs>,
}

/// What changes when a file is replaced: device, inode, time and size.
type FileStamp = (u64, u64, i64, u64, i64);

/// The settings of both sides.
#[derive(Debug)]
pub(crate) struct TlsConfigs {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
    /// The name that the certificate of each member of the volume has.
    pub(crate) name: ServerName<'static>,
    ends: u64,
}

impl TlsTrust {
    /// Reads the certificates in the directory of a volume; `None` for a volume without encryption.
    ///
    /// # Errors
    /// [`TlsTrustError`].
    pub fn open(dir: &Path, volume: &VolumeFile) -> Result<Option<Arc<TlsTrust>>, TlsTrustError> {
        match volume.encryption {
            Encryption::None => Ok(None),
            Encryption::Tls => {
                TlsTrust::load(CertificateFile::path_in(dir), volume.volume).map(Some)
            }
        }
    }

    /// Reads the certificates of a volume from a file.
    ///
    /// # Errors
    /// [`TlsTrustError`].
    pub fn load(path: PathBuf, volume: VolumeId) -> Result<Arc<TlsTrust>, TlsTrustError> {
        // Before reading: a file that is replaced meanwhile is then read again.
        let stamp = stamp_of(&path);
        let configs = Arc::new(read_configs(&path, volume)?);
        let current = Mutex::new(CurrentConfigs { stamp, configs });
        Ok(Arc::new(TlsTrust { path, volume, current, generation: AtomicU64::new(0) }))
    }

    /// Returns the settings of the file as it is now. A file that cannot be used any more leaves
    /// the earlier settings in force.
    pub(crate) fn configs(&self) -> Arc<TlsConfigs> {
        let mut current = self.current.lock();
        let stamp = stamp_of(&self.path);
        if stamp.is_some() && stamp != current.stamp {
            current.stamp = stamp;
            match read_configs(&self.path, self.volume) {
                Ok(configs) => {
                    current.configs = Arc::new(configs);
                    self.generation.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(file = %self.path.display(), "new certificates are in use");
                }
                Err(e) => tracing::error!("the earlier certificates stay in use: {e}"),
            }
        }
        current.configs.clone()
    }

    /// Uses the certificates of a text in the form of the file until the file changes: for a
    /// process that has a copy of the file.
    ///
    /// # Errors
    /// [`TlsTrustError`]: the earlier ones stay in use.
    pub fn use_text(&self, text: &str) -> Result<(), TlsTrustError> {
        let path = || self.path.clone();
        let invalid = |what| TlsTrustError::Invalid { path: path(), what };
        let file = CertificateFile::parse(text).map_err(invalid)?;
        let configs = Arc::new(build_checked(&file, &self.path, self.volume)?);
        self.current.lock().configs = configs;
        self.generation.fetch_add(1, Ordering::Relaxed);
        tracing::info!("the certificates of an order are in use");
        Ok(())
    }

    /// Returns the first second at which a certificate that is in use is no longer valid, since
    /// 1970.
    pub fn expiry_time(&self) -> u64 {
        self.configs().ends
    }

    /// Returns a number that changes when new certificates have come into use.
    pub fn generation(&self) -> u64 {
        let _ = self.configs();
        self.generation.load(Ordering::Relaxed)
    }
}

fn stamp_of(path: &Path) -> Option<FileStamp> {
    // Directly to the kernel: in a program without a mount, the C library's calls are ours.
    let stat = rustix::fs::stat(path).ok()?;
    Some((stat.st_dev, stat.st_ino, stat.st_mtime, stat.st_mtime_nsec, stat.st_size))
}

fn read_configs(path: &Path, volume: VolumeId) -> Result<TlsConfigs, TlsTrustError> {
    build_checked(&CertificateFile::load(path)?, path, volume)
}

/// Returns the settings by the content of a file, which must be that of this volume.
fn build_checked(
    file: &CertificateFile,
    path: &Path,
    volume: VolumeId,
) -> Result<TlsConfigs, TlsTrustError> {
    if file.volume != volume {
        let (path, found) = (path.to_owned(), file.volume);
        return Err(TlsTrustError::OtherVolume { path, found, expected: volume });
    }
    build_configs(file).map_err(|what| TlsTrustError::Invalid { path: path.to_owned(), what })
}

/// Returns the algorithms: the cipher that is fastest on processors with AES instructions first.
pub(crate) fn choose_algorithms() -> CryptoProvider {
    let mut provider = rustls::crypto::ring::default_provider();
    let fastest = CipherSuite::TLS13_AES_128_GCM_SHA256;
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != fastest);
    provider
}

fn build_configs(file: &CertificateFile) -> Result<TlsConfigs, String> {
    let wrong = |what: &str, e: &dyn std::fmt::Display| format!("{what}: {e}");
    let provider = Arc::new(choose_algorithms());
    let mut roots = RootCertStore::empty();
    for authority in &file.authorities {
        let der = CertificateDer::from_pem_slice(authority.certificate.as_bytes());
        let der = der.map_err(|e| wrong("the certificate of an authority", &e))?;
        roots.add(der).map_err(|e| wrong("the certificate of an authority", &e))?;
    }
    let roots = Arc::new(roots);
    let machine = file.machine.as_ref().ok_or("it has no certificate of a machine")?;
    let chain = CertificateDer::from_pem_slice(machine.certificate.as_bytes());
    let chain = vec![chain.map_err(|e| wrong("the certificate of the machine", &e))?];
    let key = machine.private_key.as_ref().map_or("", |key| &key.0);
    // The error of the parser could quote the key.
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
        .map_err(|_| "the private key of the machine cannot be read".to_owned())?;
    let name = CertificateFile::member_name(file.volume);
    let name = ServerName::try_from(name).map_err(|e| wrong("the name of the volume", &e))?;

    let versions = &[&rustls::version::TLS13];
    let inner = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
    let inner = inner.build().map_err(|e| wrong("the authorities", &e))?;
    let verifier = Arc::new(MemberVerifier { inner, name: name.clone() });
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(|e| wrong("TLS", &e))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key.clone_key())
        .map_err(|e| wrong("the certificate of the machine", &e))?;
    // A ticket would arrive at an idle client, which takes unasked bytes for the end of the
    // connection. Connections live long, so that resuming them is worth little.
    server.send_tls13_tickets = 0;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(|e| wrong("TLS", &e))?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|e| wrong("the certificate of the machine", &e))?;
    client.resumption = Resumption::disabled();
    // The name is that of no host.
    client.enable_sni = false;
    Ok(TlsConfigs {
        client: Arc::new(client),
        server: Arc::new(server),
        name,
        ends: file.expiry_time(),
    })
}

/// Accepts clients with a certificate of the volume's authority that names the volume.
#[derive(Debug)]
struct MemberVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    name: ServerName<'static>,
}

impl ClientCertVerifier for MemberVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // All members have one certificate each, so there is nothing to choose by a hint.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        let certificate = ParsedCertificate::try_from(end_entity)?;
        rustls::client::verify_server_name(&certificate, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
