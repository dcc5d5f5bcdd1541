//! Certificates for tests.

#![allow(dead_code)] // each test program uses a part

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tatami_cluster::{CertificateEntry, CertificateFile, PrivateKeyText};
use tatami_net::TlsTrust;
use tatami_wire::VolumeId;

/// The volume of all tests.
pub const VOLUME: VolumeId = VolumeId([4; 16]);
/// An hour, in seconds.
pub const HOUR: i64 = 3600;

/// An authority that issues certificates.
pub struct TestAuthority {
    params: CertificateParams,
    key: KeyPair,
    pub entry: CertificateEntry,
}

impl TestAuthority {
    pub fn new(name: &str) -> TestAuthority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let times = set_times(&mut params, -HOUR, HOUR);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        let entry = to_entry(pem, &key, times);
        TestAuthority { params, key, entry }
    }

    /// Issues a certificate of a member of `volume`, valid for a time that is given relative to
    /// now, in seconds.
    pub fn issue(&self, volume: VolumeId, from: i64, to: i64) -> CertificateEntry {
        let name = CertificateFile::member_name(volume);
        let mut params = CertificateParams::new([name]).expect("a name");
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let times = set_times(&mut params, from, to);
        let key = KeyPair::generate().expect("a key");
        let issuer = Issuer::from_params(&self.params, &self.key);
        let pem = params.signed_by(&key, &issuer).expect("a certificate").pem();
        to_entry(pem, &key, times)
    }

    /// Returns the certificates of a healthy member of [`VOLUME`].
    pub fn file_of_member(&self) -> CertificateFile {
        self.file_with(self.issue(VOLUME, -HOUR, HOUR))
    }

    /// Returns the certificates of a member with this certificate.
    pub fn file_with(&self, machine: CertificateEntry) -> CertificateFile {
        let (authorities, machine) = (vec![self.entry.clone()], Some(machine));
        CertificateFile { volume: VOLUME, authorities, machine }
    }
}

/// Writes the file to a directory, and reads it as a process of the volume does.
pub fn open_trust(dir: &Path, file: &CertificateFile) -> Arc<TlsTrust> {
    let path = CertificateFile::path_in(dir);
    file.save(&path).expect("saved");
    TlsTrust::load(path, VOLUME).expect("loaded")
}

/// Returns the certificates of a healthy member, in a directory of their own.
pub fn member_trust(dir: &Path, authority: &TestAuthority) -> Arc<TlsTrust> {
    open_trust(dir, &authority.file_of_member())
}

fn to_entry(certificate: String, key: &KeyPair, (begins, ends): (u64, u64)) -> CertificateEntry {
    let private_key = Some(PrivateKeyText(key.serialize_pem()));
    CertificateEntry { begins, ends, certificate, private_key }
}

fn set_times(params: &mut CertificateParams, from: i64, to: i64) -> (u64, u64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs();
    let at = |offset: i64| now.checked_add_signed(offset).expect("a time");
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(at(from));
    params.not_after = epoch + Duration::from_secs(at(to));
    (at(from), at(to))
}
