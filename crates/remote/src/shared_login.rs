//! The login that this process shares with others of its host. ssh itself shares it
//! (`ControlMaster` of ssh_config(5)): the first ssh with a socket logs in, and the next ones are
//! sessions of that login. This file finds the socket with a free seat, and lets one process at a
//! time make the login of a socket.
//!
//! Whatever goes wrong here, the process has a login of its own instead, and its errors are those
//! of that login.

use crate::login_dir::open_login_dir;
use crate::login_seats::{KEY_BITS, LoginSeat, LoginTurn, take_seat};
use crate::site_address::SiteAddress;
use crate::site_hops::{HopSockets, SiteHops};
use crate::site_route::LoginSharing;
use crate::ssh_config::{SshConfig, name_site};
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Longest wait for another process that logs in.
const TURN_WAIT: Duration = Duration::from_secs(120);
/// Longest wait for the greeting through a login that was there before. Its link may be dead.
pub(crate) const SHARED_WAIT: Duration = Duration::from_secs(30);
/// Variables that differ between batch jobs, and between agents with keys. What one job has started
/// ends with it, so jobs share nothing.
const SCOPE_VARIABLES: [&str; 6] =
    ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "HOME", "SSH_AUTH_SOCK"];
/// What ssh prints where it cannot use the login of another ssh, or where that one refuses without
/// a reason.
const OF_SHARING: [&str; 5] =
    ["mux_client", "ontrol socket", "ControlSocket", "control master", "forwarding request failed"];
/// What is said of a login that does not answer.
const LATE: [&str; 2] = ["no answer within", "timed out"];

/// A seat of a shared login.
#[derive(Debug)]
pub(crate) struct SharedLogin {
    seat: LoginSeat,
    /// This process makes the login. The turn ends with this value.
    _turn: Option<LoginTurn>,
    /// The login, or one at a host on the way to it, was there before.
    pub(crate) had_login: bool,
    /// The sockets of the way.
    pub(crate) sockets: HopSockets,
    site: SiteAddress,
}

impl SharedLogin {
    /// Takes a seat of a login at a site. `None`: this process needs a login of its own.
    pub(crate) fn take_seat(
        site: &SiteAddress,
        config: &SshConfig,
        hops: &SiteHops,
    ) -> Option<SharedLogin> {
        let is_wanted = LoginSharing::from_environment() == Ok(LoginSharing::Shared);
        if !is_wanted || config.is_shared_by_user {
            return None;
        }
        let dir = open_login_dir().ok()?;
        let mut key = LoginKey::new();
        let mut on_way = Vec::new();
        for router in hops.in_order() {
            let config = SshConfig::ask_ssh(&SiteAddress::of_router(router))?;
            key.add_host(&config);
            on_way.push((!config.is_shared_by_user).then(|| key.make_number()));
        }
        key.add_host(config);
        let number = key.make_number();
        let seat = take_seat(&dir.join("seats"), number).ok()??;
        // The login of a slot passes through the logins of this slot, so the load of the hosts on
        // the way is spread as well.
        let name = |number: u64| name_socket(&dir, number, seat.slot);
        let socket = name(number);
        let turn = seat.wait_for_turn(TURN_WAIT).ok()?;
        let is_there = is_answering(&socket);
        if !is_there && turn.has_waited {
            // The process before could not log in. All that waited try it side by side now.
            return None;
        }
        let hops: Vec<Option<String>> = on_way.into_iter().map(|number| number.map(name)).collect();
        let had_login = is_there || hops.iter().flatten().any(|socket| is_answering(socket));
        let sockets = HopSockets { hops, end: Some(socket), log: None };
        let _turn = (!is_there).then_some(turn);
        Some(SharedLogin { seat, _turn, had_login, sockets, site: site.clone() })
    }

    /// Returns the seat, after a login. Other processes may open sessions from now on.
    pub(crate) fn into_seat(self) -> LoginSeat {
        self.seat
    }

    /// Whether a login of this process alone may do better than this one, which has failed.
    pub(crate) fn may_be_cause(&self, why: &str) -> bool {
        self.had_login || OF_SHARING.iter().any(|words| why.contains(words))
    }

    /// Keeps new sessions away from a login that did not answer. Its sessions go on, as far as they
    /// can: ssh ends them after a minute without a sign of life.
    pub(crate) fn retire_if_late(&self, why: &str) {
        if !LATE.iter().any(|words| why.contains(words)) {
            return;
        }
        let sockets = self.sockets.hops.iter().chain([&self.sockets.end]).flatten();
        for socket in sockets.filter(|socket| is_answering(socket)) {
            let mut command = Command::new("ssh");
            command.args(["-O", "stop", "-o", &format!("ControlPath={socket}")]);
            name_site(&mut command, &self.site);
            command.args(["--", &self.site.host]).env_remove("LD_PRELOAD");
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let Ok(mut child) = command.spawn() else { continue };
            // It must be collected, and a login that is stopped would not answer it.
            let collect = move || drop(child.wait());
            let thread = std::thread::Builder::new().name("login-retire".to_owned());
            drop(thread.spawn(collect));
        }
    }
}

/// What logins have in common that processes share: the same hosts with the same settings, and one
/// job.
#[derive(Debug)]
struct LoginKey(blake3::Hasher);

impl LoginKey {
    fn new() -> LoginKey {
        let mut hasher = blake3::Hasher::new();
        for name in SCOPE_VARIABLES {
            let value = std::env::var_os(name).unwrap_or_default();
            hasher.update(format!("{name}={value:?}\n").as_bytes());
        }
        let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        hasher.update(cut_tasks(&group).as_bytes());
        LoginKey(hasher)
    }

    /// Adds the next host of the way.
    fn add_host(&mut self, config: &SshConfig) {
        self.0.update(&config.digest);
    }

    /// Returns the number of a login at the host that was added last.
    fn make_number(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0.finalize().as_bytes()[..8]);
        u64::from_le_bytes(bytes) & ((1 << KEY_BITS) - 1)
    }
}

/// Returns the control groups of a process without the parts of a single task of a batch job: the
/// tasks of a job end together.
fn cut_tasks(groups: &str) -> String {
    let cut = |line: &str| line.split("/task_").next().unwrap_or(line).to_owned() + "\n";
    groups.lines().map(cut).collect()
}

fn name_socket(dir: &Path, number: u64, slot: u64) -> String {
    format!("{}/{number:012x}.{slot}", dir.display())
}

/// Whether an ssh listens at a socket. It says nothing of the link of that ssh.
fn is_answering(socket: &str) -> bool {
    UnixStream::connect(socket).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_of_one_job_have_one_key() {
        let group = |task: u32| format!("0::/system.slice/slurm/job_7/step_0/user/task_{task}\n");
        assert_eq!(cut_tasks(&group(0)), cut_tasks(&group(12)));
        assert_eq!(cut_tasks(&group(0)), "0::/system.slice/slurm/job_7/step_0/user\n");
        assert_ne!(cut_tasks("0::/user/a\n"), cut_tasks("0::/user/b\n"));
    }

    #[test]
    fn the_longest_name_of_a_socket_fits() {
        let name = name_socket(Path::new("/tmp"), u64::MAX >> (64 - KEY_BITS), 255);
        assert!(name.len() - "/tmp".len() <= 18, "{name}");
        assert!(!is_answering("/no/such/socket"));
    }
}
