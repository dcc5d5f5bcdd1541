//! `tatami volume`: changes of the volume as a whole.

use crate::certificates::{self, Rotation};
use crate::error::{CommandFailure, CommandResult};
use crate::host_group::{self, HostFault, ORDER_WAIT};
use crate::hosts_down::{access_of, check_order};
use crate::hosts_files::HostFiles;
use crate::ssh_session::HostSession;
use crate::term::{self, TermOutput};
use crate::volume_dir::{VolumeArgs, VolumeDir};
use std::io::Write;
use tatami_cluster::{CertificateEntry, CertificateFile, Encryption, VolumeFile};
use tatami_hosts::host_protocol::HostOrder;

/// `tatami volume`
#[derive(Debug, clap::Subcommand)]
pub enum VolumeCommand {
    /// Replace the certificates of a volume with TLS, also those of its authority
    #[command(after_help = "\
Examples:
  tatami volume rotate-certificates
  tatami volume rotate-certificates --dir /scratch/tatami

Daemons, mounts and programs take the new certificates for their next connection; nothing
is restarted, and connections go on. Of a volume on several hosts, all must be reached by
ssh. Each gets the new authority, and makes its own certificate. Until all have it, they
accept both. At the end they accept only the new one.")]
    RotateCertificates(RotateArgs),
}

/// `tatami volume rotate-certificates`
#[derive(Debug, clap::Args)]
pub struct RotateArgs {
    #[command(flatten)]
    at: VolumeArgs,
}

/// Runs a subcommand of `tatami volume`.
///
/// # Errors
/// Those of the subcommand.
pub fn run(command: &VolumeCommand) -> CommandResult {
    match command {
        VolumeCommand::RotateCertificates(args) => rotate_certificates(args),
    }
}

fn rotate_certificates(args: &RotateArgs) -> CommandResult {
    let place = args.at.open()?;
    crate::log::start_logging(&place.config, false)?;
    let volume = place.load_volume()?;
    if volume.encryption == Encryption::None {
        return Err(CommandFailure::usage(format!(
            "the volume in {} has encryption none, so it has no certificates",
            place.dir.display()
        ))
        .try_this("make a volume with encryption: tatami up --encryption tls --dir DIR"));
    }
    if place.load_key()?.is_none() {
        return Err(place.owner_failure("this user may not read the key of the volume"));
    }
    let _lock = place.lock()?;
    let rotation = Rotation::plan(&place, volume.volume)?;
    let spinner = term::new_spinner("reaching the hosts");
    let mut hosts = OtherHosts::reach(&place, &volume)?;
    spinner.set_message("rotating the certificates");
    // Each state goes to the other hosts first. If one fails, this machine still has the state
    // before, and the command can be repeated here.
    for state in [&rotation.prepared, &rotation.issuing, &rotation.finished] {
        hosts.install_state(&rotation.text(state)?)?;
        rotation.save(&place, state)?;
        certificates::give_to_daemons(&place, &volume);
    }
    spinner.finish_and_clear();
    report_rotation(&place, &volume, &rotation.finished, hosts.sessions.len())
}

/// The other hosts of a volume that was started on hosts.
struct OtherHosts {
    sessions: Vec<HostSession>,
    files: Option<HostFiles>,
}

impl OtherHosts {
    /// Logs in to all of them.
    fn reach(place: &VolumeDir, volume: &VolumeFile) -> CommandResult<OtherHosts> {
        let machine = place.load_machine()?.filter(|machine| !machine.hosts.is_empty());
        let Some(machine) = machine else {
            return Ok(OtherHosts { sessions: Vec::new(), files: None });
        };
        let others = machine.hosts.iter().filter(|host| !machine.nodes.contains(&host.node));
        let hosts: Vec<String> = others.map(|host| host.name.clone()).collect();
        let (mut sessions, mut faults) = host_group::open_sessions(&access_of(&machine), &hosts);
        let check = |_: &HostSession| check_order(place, volume, "none");
        faults.extend(host_group::order_all(&mut sessions, ORDER_WAIT, check).1);
        refuse_faults(&faults, &hosts)?;
        Ok(OtherHosts { sessions, files: Some(HostFiles::prepare(place, volume, &machine)?) })
    }

    /// Writes one state of the rotation on all of them.
    fn install_state(&mut self, text: &str) -> CommandResult {
        let Some(files) = &self.files else { return Ok(()) };
        let hosts: Vec<String> = self.sessions.iter().map(|session| session.host.clone()).collect();
        let order = |session: &HostSession| files.order_for_certificates(&session.host, text);
        let mut faults = host_group::order_all(&mut self.sessions, ORDER_WAIT, order).1;
        let keep = |_: &HostSession| HostOrder::Keep;
        faults.extend(host_group::order_all(&mut self.sessions, ORDER_WAIT, keep).1);
        refuse_faults(&faults, &hosts)
    }
}

fn refuse_faults(faults: &[HostFault], hosts: &[String]) -> CommandResult {
    if faults.is_empty() {
        return Ok(());
    }
    let headline = |count: &str| {
        format!("{count} failed; the certificates of before are still accepted on all hosts")
    };
    Err(host_group::join_faults(faults, hosts, headline))
}

fn report_rotation(
    place: &VolumeDir,
    volume: &VolumeFile,
    finished: &[CertificateEntry],
    hosts: usize,
) -> CommandResult {
    let mut out = TermOutput::new();
    let days = certificates::days_until(finished.first().map_or(0, |entry| entry.ends));
    writeln!(out, "Volume {} has new certificates.", volume.name)?;
    writeln!(out, "  the authority is valid for {days} days; tatami status warns before an end")?;
    let elsewhere = volume.nodes.iter().filter(|entry| !place.is_here(entry)).count();
    if hosts == 0 && elsewhere > 0 {
        let file = CertificateFile::path_in(&place.dir);
        writeln!(
            out,
            "  copy {} to the machines of the other {elsewhere} nodes, mode 0600: until then they \
             refuse new connections",
            file.display()
        )?;
    }
    out.flush()?;
    Ok(())
}
