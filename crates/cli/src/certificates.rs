//! The certificates of an encrypted volume: an authority of its own, and one certificate for each
//! machine.
//!
//! The private key of the authority is on every machine of the volume, as the key is: a machine
//! with the key may act for any user, so it can be trusted with the authority, too. In return each
//! machine makes its own certificate, and `tatami node add` works from each.

use crate::error::{CommandFailure, CommandResult};
use crate::term;
use crate::volume_dir::{AdminCallError, VolumeDir};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tatami_cluster::{
    AUTHORITIES_MAX, CertificateEntry, CertificateFile, Encryption, PrivateKeyText, VolumeFile,
};
use tatami_wire::VolumeId;
use tatami_wire::admin::{AdminCall, CertificatesText};

const DAY: u64 = 86_400;
/// How long an authority is valid, in seconds.
const AUTHORITY_LIFE: u64 = 3650 * DAY;
/// How long the certificate of a machine is valid.
const MACHINE_LIFE: u64 = 365 * DAY;
/// A certificate is valid from this long before its making. So a machine accepts it, too, if its
/// clock is behind. In seconds.
const CLOCK_ALLOWANCE: u64 = DAY;
/// `tatami up` makes a new certificate for a machine when less than this is left of the old one.
const RENEWAL: u64 = 90 * DAY;

/// Returns the number of days from now to a time in seconds since 1970.
pub fn days_until(ends: u64) -> u64 {
    ends.saturating_sub(now()) / DAY
}

/// Makes the certificates of a new volume, if it is encrypted, and writes them to its directory.
///
/// # Errors
/// Those of the file system.
pub fn make_for_volume(place: &VolumeDir, volume: &VolumeFile) -> CommandResult {
    if volume.encryption == Encryption::None {
        return Ok(());
    }
    let authority = make_authority(volume.volume)?;
    save_with_machine(place, volume.volume, vec![authority])
}

/// Makes a new certificate for this machine, if the volume is encrypted and the old one ends soon,
/// and gives the certificates to the daemons that run. Does nothing if this user may not read the
/// certificates.
///
/// # Errors
/// The certificates are damaged or missing; those of the file system.
pub fn renew_if_near_end(place: &VolumeDir, volume: &VolumeFile) -> CommandResult {
    let has_key = place.load_key().is_ok_and(|key| key.is_some());
    let Some(_) = place.load_certificates(volume, has_key)? else { return Ok(()) };
    let file = load(place)?;
    let is_near_end = |entry: &CertificateEntry| entry.ends < now() + RENEWAL;
    if file.machine.as_ref().is_none_or(is_near_end) {
        save_with_machine(place, file.volume, file.authorities)?;
    }
    give_to_daemons(place, volume);
    Ok(())
}

/// Gives the certificates of this machine to its daemons. A daemon that systemd has started has a
/// copy of the file from its start, and may not read the file itself.
pub fn give_to_daemons(place: &VolumeDir, volume: &VolumeFile) {
    let path = CertificateFile::path_in(&place.dir);
    let Ok(text) = std::fs::read_to_string(&path) else { return };
    let call = AdminCall::UseCertificates(CertificatesText(text));
    for entry in place.nodes_here(volume) {
        match place.send_admin(volume, entry, &call) {
            // One that does not run reads the file at its start.
            Ok(_) | Err(AdminCallError::Connect(_)) => {}
            Err(e) => term::print_note(&format!(
                "{} uses its earlier certificates until it is started again: {e}",
                entry.name
            )),
        }
    }
}

/// Returns the text with the authorities for other machines; `None` for a volume without
/// encryption.
///
/// # Errors
/// The certificates are damaged or missing.
pub fn authorities_text(place: &VolumeDir, volume: &VolumeFile) -> CommandResult<Option<String>> {
    match volume.encryption {
        Encryption::None => Ok(None),
        Encryption::Tls => format_authorities(volume.volume, load(place)?.authorities).map(Some),
    }
}

/// Writes the authorities that another machine has sent, and a certificate of this machine by the
/// first of them, unless this machine has both.
///
/// # Errors
/// The text is none, or the authorities here are newer; those of the file system.
pub fn install_authorities(place: &VolumeDir, text: &str) -> CommandResult {
    let sent = CertificateFile::parse(text).map_err(CommandFailure::new)?;
    let there = CertificateFile::load(&CertificateFile::path_in(&place.dir)).ok();
    if let Some(there) = there.filter(|there| there.volume == sent.volume) {
        let issuing = |file: &CertificateFile| file.authorities.first().map(|entry| entry.begins);
        if issuing(&there) > issuing(&sent) {
            return Err(CommandFailure::new(
                "its certificates are newer than those of the machine that calls it",
            )
            .try_this("repeat the command on that host, or copy its certificates.toml here"));
        }
        let lasts = there.machine.as_ref().is_some_and(|own| own.ends > now() + RENEWAL);
        if there.authorities == sent.authorities && lasts {
            return Ok(());
        }
    }
    save_with_machine(place, sent.volume, sent.authorities)
}

/// The states of a rotation. In each, all machines accept each other, also while only some of them
/// are in the next.
pub struct Rotation {
    volume: VolumeId,
    /// The old authority issues, and a new one is accepted.
    pub prepared: Vec<CertificateEntry>,
    /// The new authority issues, and the old one is accepted.
    pub issuing: Vec<CertificateEntry>,
    /// The old one is accepted no more.
    pub finished: Vec<CertificateEntry>,
}

impl Rotation {
    /// Begins a rotation with a new authority. Writes nothing.
    ///
    /// # Errors
    /// The certificates are damaged or missing.
    pub fn plan(place: &VolumeDir, volume: VolumeId) -> CommandResult<Rotation> {
        let new = make_authority(volume)?;
        // Without the old file there is nothing that other machines could still accept.
        let old = load(place).map(|file| file.authorities).unwrap_or_default();
        let without_key =
            |entry: &CertificateEntry| CertificateEntry { private_key: None, ..entry.clone() };
        let old: Vec<_> = old.into_iter().take(AUTHORITIES_MAX - 1).collect();
        let prepared = match old.is_empty() {
            true => vec![new.clone()],
            false => old.iter().cloned().chain([without_key(&new)]).collect(),
        };
        let issuing = [new.clone()].into_iter().chain(old.iter().map(without_key)).collect();
        Ok(Rotation { volume, prepared, issuing, finished: vec![new] })
    }

    /// Writes one state to the directory of this machine.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn save(&self, place: &VolumeDir, state: &[CertificateEntry]) -> CommandResult {
        save_with_machine(place, self.volume, state.to_vec())
    }

    /// Returns the text of one state for other machines.
    ///
    /// # Errors
    /// None but those of a mistake in this program.
    pub fn text(&self, state: &[CertificateEntry]) -> CommandResult<String> {
        format_authorities(self.volume, state.to_vec())
    }
}

fn load(place: &VolumeDir) -> CommandResult<CertificateFile> {
    CertificateFile::load(&CertificateFile::path_in(&place.dir))
        .map_err(|e| CommandFailure::new(e.to_string()))
}

fn format_authorities(
    volume: VolumeId,
    authorities: Vec<CertificateEntry>,
) -> CommandResult<String> {
    CertificateFile { volume, authorities, machine: None }.to_text().map_err(CommandFailure::new)
}

/// Writes the authorities, and a new certificate of this machine.
fn save_with_machine(
    place: &VolumeDir,
    volume: VolumeId,
    authorities: Vec<CertificateEntry>,
) -> CommandResult {
    let issuing =
        authorities.first().ok_or_else(|| CommandFailure::new("there is no authority"))?;
    let machine = Some(make_machine(issuing, volume)?);
    CertificateFile { volume, authorities, machine }
        .save(&CertificateFile::path_in(&place.dir))
        .map_err(|e| CommandFailure::new(e.to_string()))
}

fn make_authority(volume: VolumeId) -> CommandResult<CertificateEntry> {
    let begins = now() - CLOCK_ALLOWANCE;
    let ends = begins + CLOCK_ALLOWANCE + AUTHORITY_LIFE;
    let key = new_key()?;
    let made = authority_params(volume, begins, ends).self_signed(&key).map_err(failed)?;
    Ok(new_entry(&made.pem(), &key, (begins, ends)))
}

/// Returns a certificate of this machine, for both sides of a connection.
fn make_machine(authority: &CertificateEntry, volume: VolumeId) -> CommandResult<CertificateEntry> {
    let unusable = || CommandFailure::new("the authority of the volume has no private key here");
    let issuer_key = authority.private_key.as_ref().ok_or_else(unusable)?;
    let issuer_key = KeyPair::from_pem(&issuer_key.0).map_err(|_| unusable())?;
    let issuer =
        Issuer::new(authority_params(volume, authority.begins, authority.ends), issuer_key);
    let begins = now() - CLOCK_ALLOWANCE;
    // Not beyond the end of the authority: the whole chain must be valid.
    let ends = (begins + CLOCK_ALLOWANCE + MACHINE_LIFE).min(authority.ends);
    let mut params =
        CertificateParams::new([CertificateFile::member_name(volume)]).map_err(failed)?;
    params.distinguished_name = common_name("Tatami machine");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(begins);
    params.not_after = epoch + Duration::from_secs(ends);
    let key = new_key()?;
    let made = params.signed_by(&key, &issuer).map_err(failed)?;
    Ok(new_entry(&made.pem(), &key, (begins, ends)))
}

/// Returns the parameters of an authority. They are the same each time, so that its name need not
/// be read from its certificate.
fn authority_params(volume: VolumeId, begins: u64, ends: u64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(&format!("Tatami volume {volume} since {begins}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(begins);
    params.not_after = epoch + Duration::from_secs(ends);
    params
}

fn common_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn new_entry(pem: &str, key: &KeyPair, (begins, ends): (u64, u64)) -> CertificateEntry {
    CertificateEntry {
        begins,
        ends,
        certificate: pem.to_owned(),
        private_key: Some(PrivateKeyText(key.serialize_pem())),
    }
}

fn new_key() -> CommandResult<KeyPair> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)
}

fn failed(e: rcgen::Error) -> CommandFailure {
    CommandFailure::new("no certificate can be made").because(e)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(CLOCK_ALLOWANCE, |now| now.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume_dir::VolumeArgs;

    #[test]
    fn a_machine_renews_its_own_certificate_and_takes_no_older_authority() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let at = VolumeArgs { dir: Some(dir.path().to_owned()), ..VolumeArgs::default() };
        let place = at.open().expect("an empty place");
        let volume = VolumeId([5; 16]);
        let mut old = make_authority(volume).expect("an authority");
        old.begins -= 1;
        let new = make_authority(volume).expect("an authority");
        let text = |entry: &CertificateEntry| {
            format_authorities(volume, vec![entry.clone()]).expect("text")
        };
        install_authorities(&place, &text(&new)).expect("installed");
        let first = load(&place).expect("loaded");
        assert_eq!(first.authorities, std::slice::from_ref(&new));
        install_authorities(&place, &text(&new)).expect("there already");
        assert_eq!(load(&place).expect("loaded"), first, "nothing to do");
        let error = install_authorities(&place, &text(&old)).expect_err("older");
        assert!(error.what.contains("newer"), "{}", error.what);

        let near = CertificateFile {
            machine: first.machine.clone().map(|own| CertificateEntry { ends: now() + DAY, ..own }),
            ..first.clone()
        };
        near.save(&CertificateFile::path_in(dir.path())).expect("saved");
        install_authorities(&place, &text(&new)).expect("renewed");
        let renewed = load(&place).expect("loaded");
        assert!(renewed.machine != first.machine && renewed.authorities == first.authorities);
        assert!(days_until(renewed.expiry_time()) >= 364, "a year, less a moment");
    }

    #[test]
    fn each_state_of_a_rotation_accepts_the_one_before_and_after() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let at = VolumeArgs { dir: Some(dir.path().to_owned()), ..VolumeArgs::default() };
        let place = at.open().expect("an empty place");
        let volume = VolumeId([5; 16]);
        save_with_machine(&place, volume, vec![make_authority(volume).expect("an authority")])
            .expect("saved");
        let old = load(&place).expect("loaded").authorities;
        let rotation = Rotation::plan(&place, volume).expect("planned");
        let names = |state: &[CertificateEntry]| {
            state.iter().map(|entry| entry.certificate.clone()).collect::<Vec<_>>()
        };
        let [first, second] = &names(&rotation.prepared)[..] else { panic!("two authorities") };
        assert_eq!(*first, old[0].certificate);
        assert_eq!(names(&rotation.issuing), [second.clone(), first.clone()]);
        assert_eq!(names(&rotation.finished), std::slice::from_ref(second));
        assert!(rotation.prepared[1].private_key.is_none(), "it does not travel before its time");
        assert!(rotation.issuing[1].private_key.is_none(), "the old one issues no more");
    }
}
