//! The reasons for which two sides cannot agree on TLS, in the words of the manual.

use rustls::{AlertDescription, CertificateError, Error};
use std::io;
use tatami_wire::handshake::HandshakeError;

/// See the module.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error(
        "this side has volume.encryption = tls and the other side has none: \
         both need the volume.toml and the certificates of the volume"
    )]
    PlainPeer,
    #[error(
        "the certificate of the other side expired {} ago: renew it with tatami volume \
         rotate-certificates, or correct the clock of this machine", describe_time(*.0)
    )]
    Expired(u64),
    #[error(
        "the certificate of the other side is valid only in {}: compare the clocks of both \
         machines", describe_time(*.0)
    )]
    NotYetValid(u64),
    #[error(
        "the certificate of the other side comes from another authority than this volume's: \
         check the address, and whether both have the same certificates.toml"
    )]
    OtherAuthority,
    #[error("the certificate of the other side is that of another volume: check the address")]
    OtherVolume,
    #[error("the other side refuses the certificate of this side: {0}")]
    Refused(&'static str),
    #[error("TLS: {0}")]
    Protocol(Error),
}

impl TlsError {
    pub(crate) fn into_io(self) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, self)
    }

    /// Returns the error that an error of a stream holds, if it is one of TLS.
    pub(crate) fn find_in(error: &io::Error) -> Option<&TlsError> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<Error> for TlsError {
    fn from(error: Error) -> TlsError {
        use CertificateError as C;
        match error {
            Error::InvalidCertificate(C::ExpiredContext { time, not_after }) => {
                TlsError::Expired(time.as_secs().saturating_sub(not_after.as_secs()))
            }
            Error::InvalidCertificate(C::NotValidYetContext { time, not_before }) => {
                TlsError::NotYetValid(not_before.as_secs().saturating_sub(time.as_secs()))
            }
            Error::InvalidCertificate(C::UnknownIssuer | C::BadSignature) => {
                TlsError::OtherAuthority
            }
            Error::InvalidCertificate(C::NotValidForName | C::NotValidForNameContext { .. }) => {
                TlsError::OtherVolume
            }
            Error::AlertReceived(alert) => match describe_alert(alert) {
                Some(why) => TlsError::Refused(why),
                None => TlsError::Protocol(error),
            },
            other => TlsError::Protocol(other),
        }
    }
}

/// Returns the reason for which the other side refuses a certificate.
fn describe_alert(alert: AlertDescription) -> Option<&'static str> {
    match alert {
        AlertDescription::CertificateExpired => Some(
            "it has expired or is not valid yet by the clock there: compare the clocks of both \
             machines, or renew it with tatami volume rotate-certificates",
        ),
        AlertDescription::UnknownCA | AlertDescription::DecryptError => Some(
            "it comes from another authority than that of the volume there: check the address, and \
             whether both have the same certificates.toml",
        ),
        AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
            Some("it is that of another volume: check the address")
        }
        AlertDescription::CertificateRequired => Some("there is none"),
        _ => None,
    }
}

/// Returns the error of a handshake: an error of TLS stays one however often it is tried again.
pub(crate) fn lift_tls_error(error: HandshakeError) -> HandshakeError {
    match &error {
        HandshakeError::Io(e) => match TlsError::find_in(e) {
            Some(tls) => HandshakeError::Encryption(tls.to_string()),
            None => error,
        },
        _ => error,
    }
}

/// Returns a span of time in its largest unit.
fn describe_time(seconds: u64) -> String {
    let units = [(86_400, "days"), (3600, "hours"), (60, "minutes")];
    let unit = units.into_iter().find(|(length, _)| seconds >= 2 * length);
    let (length, name) = unit.unwrap_or((1, "seconds"));
    format!("{} {name}", seconds / length)
}
