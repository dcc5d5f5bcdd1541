//! The stream to an I/O process that the user's own ssh starts on the other site. ssh logs in,
//! proves both sides and encrypts; this process only passes bytes.

use crate::link_stream::LinkStream;
use crate::remote_message::{
    REMOTE_PROTOCOL, RemoteCall, RemoteFailure, RemoteReply, SiteGreeting, SiteProcess,
    parse_greeting,
};
use crate::session_key::SiteSessionKey;
use crate::site_address::SiteAddress;
use crate::site_hops::SiteHops;
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tatami_wire::frame::{self, FrameClass, FrameError};

/// Longest wait for the greeting, in which ssh connects and logs in.
const GREETING_WAIT: Duration = Duration::from_secs(60);
/// Most bytes that are skipped before the greeting.
const NOISE_MAX: u64 = 64 << 10;
/// Bytes that are received at a time where a reply is short.
const BUFFER: usize = 64 << 10;
/// How long a login that sshd turned away for want of room is repeated.
const CROWD_WAIT: Duration = Duration::from_secs(30);
/// The first pause before that. It doubles each time.
const CROWD_PAUSE: Duration = Duration::from_millis(100);
/// Most bytes of the messages of ssh that are reported.
const SAID_MAX: u64 = 2000;
/// What ssh prints where the other end says nothing: sshd that drops a connection, or the ssh
/// before it on the way that has ended.
pub(crate) const ECHO: &str = "kex_exchange_identification";
/// What ssh prints where sshd drops a connection because too many logins are under way.
const CROWDED: [&str; 3] = [ECHO, "Connection reset by", "Connection closed by"];
/// What another ssh of the way has said before, if it failed for another reason.
const OTHER_CAUSES: [&str; 7] = [
    "connect to host",
    "open failed",
    "Permission denied",
    "verification failed",
    "Could not resolve",
    "Too many authentication",
    "timed out",
];
/// Longest wait for the reply of a relay, which connects to a host meanwhile.
const RELAY_WAIT: Duration = Duration::from_secs(20);

/// Whether a login may succeed when it is repeated.
fn is_crowd(why: &str) -> bool {
    let says = |words: &&str| why.contains(*words);
    CROWDED.iter().any(says) && !OTHER_CAUSES.iter().any(says)
}

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
        let (start, mut pause, mut ends) = (Instant::now(), CROWD_PAUSE, 0);
        loop {
            match SshLink::try_open(site, hops, service) {
                // The ranks of a job log in at once, and sshd drops some of so many. An I/O process
                // that was killed at its start says nothing.
                Err(why)
                    if (why == ENDED && ends < ENDS_MAX)
                        || (is_crowd(&why) && start.elapsed() < CROWD_WAIT) =>
                {
                    ends += u32::from(why == ENDED);
                    // Nothing tells when sshd has room again.
                    #[allow(clippy::disallowed_methods)]
                    std::thread::sleep(pause);
                    pause *= 2;
                }
                opened => return opened,
            }
        }
    }

    fn try_open(site: &SiteAddress, hops: &SiteHops, service: &str) -> Result<SshLink, String> {
        let failed = |e: io::Error| format!("cannot start ssh: {e}");
        // A socket in the place of pipes: a write to a process that has ended must not send SIGPIPE
        // to the program in which this code lives.
        let (near, far) = UnixStream::pair().map_err(failed)?;
        let said = rustix::fs::memfd_create("tatami-ssh", MemfdFlags::CLOEXEC);
        let said = File::from(said.map_err(|e| failed(e.into()))?);
        let input = OwnedFd::from(far.try_clone().map_err(failed)?);
        let mut command = ssh_command(site, hops, service);
        command.stdin(Stdio::from(input)).stdout(Stdio::from(OwnedFd::from(far)));
        command.stderr(Stdio::from(said.try_clone().map_err(failed)?));
        let child = command.spawn().map_err(failed)?;
        // Its copies of the far end must not outlive the start, or its end would go unnoticed.
        drop(command);
        near.set_read_timeout(Some(GREETING_WAIT)).map_err(failed)?;
        let mut link = SshLink {
            stream: BufReader::with_capacity(BUFFER, LinkStream::new(near)),
            child,
            said,
            machine: String::new(),
            process: None,
            session: None,
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

fn ssh_command(site: &SiteAddress, hops: &SiteHops, service: &str) -> Command {
    let mut command = Command::new("ssh");
    for option in hops.make_options() {
        command.args(["-o", &option]);
    }
    if let Some(ciphers) = has_aes().then(|| find_ciphers(site)).flatten() {
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

fn name_site(command: &mut Command, site: &SiteAddress) {
    if let Some(user) = &site.user {
        command.args(["-l", user]);
    }
    if let Some(port) = site.port {
        command.args(["-p", &port.to_string()]);
    }
}

/// Whether this processor has instructions for AES.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

/// Asks ssh for the ciphers that the user's configuration allows for this site, and returns them in
/// a better order; `None` where ssh may choose as ever.
fn find_ciphers(site: &SiteAddress) -> Option<String> {
    prefer_aes(&ask_configuration(site, "ciphers ")?)
}

/// Returns the name of the host to which ssh connects for this site.
pub(crate) fn find_host_name(site: &SiteAddress) -> Option<String> {
    ask_configuration(site, "hostname ")
}

/// Asks ssh for a line of the user's configuration for this site.
fn ask_configuration(site: &SiteAddress, word: &str) -> Option<String> {
    let mut command = Command::new("ssh");
    command.stdin(Stdio::null()).stderr(Stdio::null()).env_remove("LD_PRELOAD");
    name_site(&mut command, site);
    let asked = command.args(["-G", "--", &site.host]).output().ok()?;
    let said = String::from_utf8_lossy(&asked.stdout).into_owned();
    said.lines().find_map(|line| line.strip_prefix(word)).map(str::to_owned)
}

/// Returns the same ciphers with AES-GCM first, where the list begins with the cipher that ssh
/// itself puts first. That one needs twice the time of a processor with instructions for AES. A
/// list in another order was chosen by an administrator or user, and stays.
fn prefer_aes(ciphers: &str) -> Option<String> {
    let all: Vec<&str> = ciphers.trim().split(',').collect();
    if all.first() != Some(&"chacha20-poly1305@openssh.com") {
        return None;
    }
    let (fast, others): (Vec<&str>, Vec<&str>) = all.iter().partition(|c| c.contains("-gcm@"));
    (!fast.is_empty()).then(|| [fast, others].concat().join(","))
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

#[cfg(test)]
mod tests {
    use super::{is_crowd, prefer_aes};

    #[test]
    fn the_ciphers_of_ssh_are_sorted_and_no_other_is_added() {
        let chacha = "chacha20-poly1305@openssh.com";
        let default = format!("{chacha},aes128-ctr,aes128-gcm@openssh.com,aes256-gcm@openssh.com");
        let sorted = format!("aes128-gcm@openssh.com,aes256-gcm@openssh.com,{chacha},aes128-ctr");
        assert_eq!(prefer_aes(&default), Some(sorted));
        // What somebody has chosen stays.
        assert_eq!(prefer_aes(&format!("aes256-ctr,{default}")), None);
        assert_eq!(prefer_aes(chacha), None);
        assert_eq!(prefer_aes(""), None);
    }

    #[test]
    fn a_login_is_repeated_if_only_room_was_missing() {
        let echo = "kex_exchange_identification: Connection closed by remote host";
        assert!(is_crowd(echo) && is_crowd("Connection reset by 10.0.0.1 port 22"));
        for cause in [
            "ssh: connect to host l1 port 22: Connection refused",
            "channel 0: open failed: connect failed: No route to host",
            "root@l1: Permission denied (publickey).",
            "Host key verification failed.",
        ] {
            assert!(!is_crowd(&format!("{cause}; {echo}")), "{cause}");
        }
    }
}
