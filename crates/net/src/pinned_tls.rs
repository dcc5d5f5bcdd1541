//! TLS between two processes. One has received the certificate of the other by a channel that both
//! trust. No authority signs it, and no name counts: the bytes of the certificate must be
//! the same.

use crate::stream::NetStream;
use crate::tcp::{TCP, TLS};
use crate::tls_session::TlsSession;
use crate::tls_trust::choose_algorithms;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme,
};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The name for which the certificates stand. It is that of no host.
const NAME: &str = "tatami-data";

/// The settings of one side.
#[derive(Clone, Debug)]
pub struct PinnedTls(PinnedSide);

#[derive(Clone, Debug)]
enum PinnedSide {
    Client(Arc<ClientConfig>),
    Server(Arc<ServerConfig>),
}

/// Returns a stream over a connected TCP socket, without encryption.
pub fn wrap_plain_socket(socket: OwnedFd) -> NetStream {
    NetStream::new(socket, &TCP, None)
}

impl PinnedTls {
    /// Returns the settings of the side that connects, and accepts this certificate alone, in DER.
    ///
    /// # Errors
    /// TLS 1.3 is not available.
    pub fn new_client(certificate: &[u8]) -> io::Result<PinnedTls> {
        let provider = Arc::new(choose_algorithms());
        let certificate = CertificateDer::from(certificate.to_vec());
        let verifier = SameCertificate { certificate, provider: provider.clone() };
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        Ok(PinnedTls(PinnedSide::Client(Arc::new(config))))
    }

    /// Returns the settings of the side that accepts: its certificate and its key, both in DER.
    ///
    /// # Errors
    /// The key does not belong to the certificate.
    pub fn new_server(certificate: &[u8], key: &[u8]) -> io::Result<PinnedTls> {
        let chain = vec![CertificateDer::from(certificate.to_vec())];
        let key = PrivatePkcs8KeyDer::from(key.to_vec());
        let mut config = ServerConfig::builder_with_provider(Arc::new(choose_algorithms()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(chain, key.into())
            .map_err(io::Error::other)?;
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(PinnedTls(PinnedSide::Server(Arc::new(config))))
    }

    /// Returns a stream over a connected TCP socket. Its first read or write does the handshake.
    ///
    /// # Errors
    /// Those of TLS.
    pub fn wrap_socket(&self, socket: OwnedFd) -> io::Result<NetStream> {
        let session = match &self.0 {
            PinnedSide::Client(config) => {
                let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
                TlsSession::new_client(config.clone(), name)?
            }
            PinnedSide::Server(config) => TlsSession::new_server(config.clone())?,
        };
        Ok(NetStream::new(socket, &TLS, Some(session)))
    }
}

/// Accepts one certificate, and the proof that the other side has its key.
#[derive(Debug)]
struct SameCertificate {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for SameCertificate {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match *end_entity == self.certificate {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    fn make_certificate() -> (Vec<u8>, Vec<u8>) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new([NAME.to_owned()]).expect("a name");
        let certificate = params.self_signed(&key).expect("a certificate");
        (certificate.der().to_vec(), key.serialize_der())
    }

    #[test]
    fn bytes_pass_to_the_holder_of_the_pinned_certificate_alone() {
        let (certificate, key) = make_certificate();
        let other = make_certificate().0;
        for (pinned, is_same) in [(&certificate, true), (&other, false)] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("bound");
            let server = PinnedTls::new_server(&certificate, &key).expect("settings");
            let far = thread::spawn(move || {
                let socket = listener.accept().expect("a connection").0;
                let stream = server.wrap_socket(socket.into()).expect("a session");
                let mut got = [0; 5];
                (&stream).read_exact(&mut got).map(|()| got)
            });
            let socket = TcpStream::connect(address).expect("it listens");
            let client = PinnedTls::new_client(pinned).expect("settings");
            let stream = client.wrap_socket(socket.into()).expect("a session");
            let sent = (&stream).write_all(b"hello");
            drop(stream);
            let got = far.join().expect("no panic");
            assert_eq!((sent.is_ok(), got.is_ok()), (is_same, is_same), "{sent:?} {got:?}");
        }
    }
}
