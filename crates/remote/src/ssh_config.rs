//! What the user's ssh would do for a host: the answer of `ssh -G`, which reads the user's own
//! configuration and opens no connection.

use crate::site_address::SiteAddress;
use std::process::{Command, Stdio};

/// The settings of ssh for one host.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SshConfig {
    /// The name of the host to which ssh connects.
    pub(crate) host_name: Option<String>,
    /// The ciphers that are allowed, in the order of preference.
    ciphers: Option<String>,
    /// The user has configured a shared login for this host.
    pub(crate) is_shared_by_user: bool,
    /// A hash of all settings. Two processes with the same hash would log in in the same way.
    pub(crate) digest: [u8; 32],
}

impl SshConfig {
    /// Asks ssh. `None`: this ssh has no such answer.
    pub(crate) fn ask_ssh(site: &SiteAddress) -> Option<SshConfig> {
        let mut command = Command::new("ssh");
        command.stdin(Stdio::null()).stderr(Stdio::null()).env_remove("LD_PRELOAD");
        name_site(&mut command, site);
        let asked = command.args(["-G", "--", &site.host]).output().ok()?;
        asked.status.success().then(|| SshConfig::parse(&asked.stdout))
    }

    fn parse(said: &[u8]) -> SshConfig {
        let text = String::from_utf8_lossy(said);
        let find = |key: &str| {
            let mut pairs = text.lines().filter_map(|line| line.split_once(' '));
            pairs.find(|(word, _)| word.eq_ignore_ascii_case(key)).map(|(_, value)| value.trim())
        };
        // An option that is off is not printed, or with one of these words.
        let is_on =
            |key: &str| find(key).is_some_and(|value| !["no", "false", "none"].contains(&value));
        SshConfig {
            host_name: find("hostname").map(str::to_owned),
            ciphers: find("ciphers").map(str::to_owned),
            is_shared_by_user: is_on("controlmaster") || is_on("controlpath"),
            digest: *blake3::hash(said).as_bytes(),
        }
    }

    /// Returns the ciphers that the configuration allows, in a better order; `None` where ssh may
    /// choose as ever.
    pub(crate) fn prefer_ciphers(&self) -> Option<String> {
        prefer_aes(self.ciphers.as_deref().filter(|_| has_aes())?)
    }
}

/// Adds the words that name the user and port of a site.
pub(crate) fn name_site(command: &mut Command, site: &SiteAddress) {
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_login_that_the_user_has_shared_is_recognised() {
        let parse = |more: &str| {
            SshConfig::parse(format!("user me\nhostname b.example\nport 22\n{more}").as_bytes())
        };
        for own in [
            "",
            "controlmaster false\ncontrolpersist no\n",
            "controlmaster no\ncontrolpath none\n",
            "proxycommand ssh -o controlmaster=auto l1\n",
        ] {
            let config = parse(own);
            assert!(!config.is_shared_by_user, "{own}");
            assert_eq!(config.host_name.as_deref(), Some("b.example"));
        }
        for shared in [
            "controlmaster auto\n",
            "ControlMaster auto\ncontrolpath /run/me/%C\n",
            "controlmaster false\ncontrolpath /run/me/%C\n",
            "controlmaster autoask\n",
        ] {
            assert!(parse(shared).is_shared_by_user, "{shared}");
        }
        assert_ne!(parse("").digest, parse("identityfile x\n").digest);
        assert_eq!(parse("identityfile x\n").digest, parse("identityfile x\n").digest);
        // No text is a fault.
        let odd = SshConfig::parse(b"\xff\xfe hostname\n\nciphers\n");
        assert_eq!((odd.host_name, odd.ciphers), (None, None));
    }
}
