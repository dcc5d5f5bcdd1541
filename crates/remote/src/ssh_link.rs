//! The stream to an I/O process that the user's own ssh starts on the other site. ssh logs in,
//! proves both sides and encrypts; this process only passes bytes.

use crate::link_stream::LinkStream;
use crate::login_crowd::{CrowdPauses, is_crowd};
use crate::login_seats::LoginSeat;
use crate::remote_message::{
    REMOTE_PROTOCOL, RemoteCall, RemoteFailure, RemoteReply, SiteGreeting, SiteProcess,
    parse_greeting,
};
use crate::session_key::SiteSessionKey;
use crate::shared_login::{SHARED_WAIT, SharedLogin};
use crate::site_address::SiteAddress;
use crate::site_hops::{HopSockets, SiteHops};
use crate::ssh_config::{SshConfig, name_site};
use rustix::fs::{MemfdFlags, OFlags};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tatami_wire::frame::{self, FrameClass, FrameError};

/// Longest wait for the greeting, in which ssh connects and logs in.
const GREETING_WAIT: Duration = Duration::from_secs(60);
/// Most bytes that are skipped before the greeting.
const NOISE_MAX: u64 = 64 << 10;
/// Bytes that are received at a time where a reply is short.
const BUFFER: usize = 64 << 10;
/// Most bytes of the messages of ssh that are reported.
const SAID_MAX: u64 = 2000;
/// Longest wait for the reply of a relay, which connects to a host meanwhile.
const RELAY_WAIT: Duration = Duration::from_secs(20);

/// The end of a link of which ssh says nothing.
const ENDED: &str = "the connection has ended";
/// How often a login with such an end is repeated.
const ENDS_MAX: u32 = 4;

/// A running ssh, and the stream through it.
#[derive(Debug)]
pub(crate) struct SshLink {
    pub(crate) stream: BufReader<LinkStream>,
    child: Child,
    said: File,
    /// The machine id there, or an empty text.
    pub(crate) machine: String,
    /// The process there.
    pub(crate) process: Option<SiteProcess>,
    /// The key of the session that the process begins.
    pub(crate) session: Option<SiteSessionKey>,
    /// The seat of a login that other processes share.
    seat: Option<LoginSeat>,
}

impl SshLink {
    /// Starts the I/O process and waits for its greeting.
    ///
    /// # Errors
    /// A sentence with the messages of ssh.
    pub(crate) fn open(site: &SiteAddress, hops: &SiteHops) -> Result<SshLink, String> {
        if !site.is_valid() {
            return Err(format!("{:?} is no name of a host or user", site.host));
        }
        SshLink::open_service(site, hops, "gateway")
    }

    /// Starts the relay on a login host, which lies behind `hops`, and waits for its greeting.
    ///
    /// # Errors
    /// A sentence with the messages of ssh.
    pub(crate) fn open_relay(host: &SiteAddress, hops: &SiteHops) -> Result<SshLink, String> {
        let link = SshLink::open_service(host, hops, "relay")?;
        let limited = link.stream.get_ref().limit_reads(Some(RELAY_WAIT));
        limited.map(|()| link).map_err(|e| e.to_string())
    }

    fn open_service(site: &SiteAddress, hops: &SiteHops, service: &str) -> Result<SshLink, String> {
        let config = SshConfig::ask_ssh(site);
        let ciphers = config.as_ref().and_then(SshConfig::prefer_ciphers);
        let start = LinkStart { site, hops, service, ciphers };
        let shared = config.and_then(|config| SharedLogin::take_seat(site, &config, hops));
        if let Some(shared) = shared {
            let wait = if shared.had_login { SHARED_WAIT } else { GREETING_WAIT };
            match SshLink::open_in_crowd(&start, &shared.sockets, wait) {
                Ok(mut link) => {
                    link.seat = Some(shared.into_seat());
                    return Ok(link);
                }
                Err(why) if !shared.may_be_cause(&why) => return Err(why),
                Err(why) => shared.retire_if_late(&why),
            }
        }
        SshLink::open_in_crowd(&start, &HopSockets::default(), GREETING_WAIT)
    }

    fn open_in_crowd(
        start: &LinkStart,
        sockets: &HopSockets,
        wait: Duration,
    ) -> Result<SshLink, String> {
        let (mut pauses, mut ends) = (CrowdPauses::new(), 0);
        loop {
            match SshLink::try_open(start, sockets, wait) {
                // The ranks of a job log in at once, and sshd drops some of so many. An I/O process
                // that was killed at its start says nothing.
                Err(why)
                    if (why == ENDED && ends < ENDS_MAX)
                        || (is_crowd(&why) && !pauses.is_over()) =>
                {
                    ends += u32::from(why == ENDED);
                    // Nothing tells when sshd has room again.
                    #[allow(clippy::disallowed_methods)]
                    std::thread::sleep(pauses.choose_pause());
                }
                opened => return opened,
            }
        }
    }

    fn try_open(
        start: &LinkStart,
        sockets: &HopSockets,
        wait: Duration,
    ) -> Result<SshLink, String> {
        let failed = |e: io::Error| format!("cannot start ssh: {e}");
        // A socket in the place of pipes: a write to a process that has ended must not send SIGPIPE
        // to the program in which this code lives.
        let (near, far) = UnixStream::pair().map_err(failed)?;
        let said = rustix::fs::memfd_create("tatami-ssh", MemfdFlags::CLOEXEC);
        let said = File::from(said.map_err(|e| failed(e.into()))?);
        // All ssh of a way write to it, and some open it by its path.
        rustix::fs::fcntl_setfl(&said, OFlags::APPEND).map_err(|e| failed(e.into()))?;
        let log = format!("/proc/{}/fd/{}", std::process::id(), said.as_raw_fd());
        let log = sockets.end.is_some().then_some(log);
        let input = OwnedFd::from(far.try_clone().map_err(failed)?);
        let mut command = start.make_command(&HopSockets { log, ..sockets.clone() });
        command.stdin(Stdio::from(input)).stdout(Stdio::from(OwnedFd::from(far)));
        command.stderr(Stdio::from(said.try_clone().map_err(failed)?));
        let child = command.spawn().map_err(failed)?;
        // Its copies of the far end must not outlive the start, or its end would go unnoticed.
        drop(command);
        near.set_read_timeout(Some(wait)).map_err(failed)?;
        let mut link = SshLink {
            stream: BufReader::with_capacity(BUFFER, LinkStream::new(near)),
            child,
            said,
            machine: String::new(),
            process: None,
            session: None,
            seat: None,
        };
        match link.read_greeting() {
            Ok(greeting) if greeting.protocol == REMOTE_PROTOCOL => {
                link.stream.get_ref().limit_reads(None).map_err(failed)?;
                link.machine = greeting.machine;
                link.process = greeting.process;
                link.session = greeting.session;
                Ok(link)
            }
            Ok(greeting) => Err(format!(
                "tatami {} there speaks version {} of the protocol between sites, and this one \
                 {REMOTE_PROTOCOL}: install the same version on both",
                greeting.version, greeting.protocol
            )),
            Err(e) => Err(link.explain_end(&e)),
        }
    }

    fn read_greeting(&mut self) -> io::Result<SiteGreeting> {
        let mut lines = (&mut self.stream).take(NOISE_MAX);
        let mut line = Vec::new();
        loop {
            line.clear();
            if lines.read_until(b'\n', &mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(greeting) = parse_greeting(&line) {
                return greeting.map_err(io::Error::other);
            }
        }
    }

    /// Sends a call to the other side and waits for its reply, where no other call is under way.
    ///
    /// # Errors
    /// Those of the stream.
    pub(crate) fn call(&mut self, call: &RemoteCall) -> io::Result<RemoteReply> {
        let (mut bytes, mut body) = (Vec::new(), Vec::new());
        frame::encode_frame(&mut bytes, FrameClass::Remote, 0, call, 0);
        self.send_bytes(&bytes)?;
        let broken = |e: FrameError| io::Error::other(e.to_string());
        let header = frame::read_frame(&mut self.stream, &mut body).map_err(broken)?;
        match (header.class, header.payload_len) {
            (FrameClass::Remote, 0) => frame::decode_body(&body).map_err(broken),
            _ => Err(io::Error::other("a reply that fits no call")),
        }
    }

    /// Sends all bytes. Replies that arrive meanwhile are kept.
    ///
    /// # Errors
    /// Those of the stream.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().send_bytes(bytes)
    }

    /// Asks the process there to give this link to the I/O process of an earlier one, from which
    /// so many replies have been received. Each attempt of a session has a higher number. Returns
    /// the number of calls that it has received, or its refusal: then the process itself serves a
    /// session of its own.
    ///
    /// # Errors
    /// Those of the stream.
    pub(crate) fn resume_session(
        &mut self,
        key: SiteSessionKey,
        received: u64,
        attempt: u64,
    ) -> io::Result<Result<u64, RemoteFailure>> {
        self.stream.get_ref().limit_reads(Some(GREETING_WAIT))?;
        let reply = self.call(&RemoteCall::ResumeSession { key, received, attempt })?;
        self.stream.get_ref().limit_reads(None)?;
        match reply {
            RemoteReply::Resumed { received } => Ok(Ok(received)),
            RemoteReply::Failed(failure) => Ok(Err(failure)),
            _ => Err(io::Error::other("a reply that fits no call")),
        }
    }

    /// Says that the session has ended, so that the process there does not wait for another link.
    pub(crate) fn say_end(&mut self) {
        let mut bytes = Vec::new();
        frame::encode_frame(&mut bytes, FrameClass::Remote, 0, &RemoteCall::EndSession, 0);
        // Without it, the process there finds out by the end of the stream.
        self.stream.get_ref().send_if_room(&bytes);
    }

    /// Explains why the stream has ended, with the last words of ssh.
    pub(crate) fn explain_end(&mut self, error: &io::Error) -> String {
        // Without its input the far side ends, and then ssh, which may have more to say.
        self.stream.get_ref().end();
        let late = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        if late {
            let _ = self.child.kill();
        }
        let code = self.child.wait().ok().and_then(|status| status.code());
        let mut said = String::new();
        let length = self.said.seek(SeekFrom::End(0)).unwrap_or(0);
        let start = SeekFrom::Start(length.saturating_sub(SAID_MAX));
        let read = self.said.seek(start).and_then(|_| {
            let mut bytes = Vec::new();
            (&mut self.said).take(SAID_MAX).read_to_end(&mut bytes).map(|_| bytes)
        });
        if let Ok(bytes) = read {
            said = String::from_utf8_lossy(&bytes).trim().replace(['\n', '\r'], "; ");
        }
        match (late, code, said.as_str()) {
            (true, ..) => format!("no answer within {} s", GREETING_WAIT.as_secs()),
            (_, Some(127), _) => "tatami is not found there: install it, or name its directory by \
                                  the hint path"
                .to_owned(),
            (.., "") => ENDED.to_owned(),
            (.., said) => said.to_owned(),
        }
    }
}

impl Drop for SshLink {
    fn drop(&mut self) {
        // The end of its input ends the far side, and ssh with it. If ssh has not ended by now, the
        // system collects it at the end of this process.
        self.stream.get_ref().end();
        let _ = self.child.try_wait();
    }
}

/// What is started, and where.
#[derive(Debug)]
struct LinkStart<'a> {
    site: &'a SiteAddress,
    hops: &'a SiteHops,
    service: &'a str,
    ciphers: Option<String>,
}

impl LinkStart<'_> {
    fn make_command(&self, sockets: &HopSockets) -> Command {
        let LinkStart { site, hops, service, ciphers } = self;
        let mut command = Command::new("ssh");
        for option in hops.make_options(sockets) {
            command.args(["-o", &option]);
        }
        if let Some(ciphers) = ciphers {
            command.args(["-o", &format!("Ciphers={ciphers}")]);
        }
        name_site(&mut command, site);
        command.args(["-T", "--", &site.host, &far_line(site, service)]);
        // Ctrl-C is for this program, which ends what it has begun there. ssh ends with its input.
        command.process_group(0);
        // The libraries of this program are not for ssh.
        command.env_remove("LD_PRELOAD");
        command
    }
}

/// Returns the command line for the login shell there, of whatever kind it is.
fn far_line(site: &SiteAddress, service: &str) -> String {
    match &site.program {
        Some(program) => format!("exec '{program}' {service}"),
        // A login shell without a terminal may have a short search path.
        None => format!(
            "exec sh -c 'PATH=$PATH:/usr/local/bin:$HOME/.local/bin:$HOME/bin; \
             exec tatami {service}'"
        ),
    }
}
