//! The client's options in a form that goes through a pipe, for the processes of a workload. The
//! key never appears on a command line.

use crate::error::BenchError;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tatami_bench_args::BenchVolumeArgs;
use tatami_client::{Client, ClientOptions, Endpoint, TlsTrust};
use tatami_cluster::{CertificateFile, Encryption, KeyFile, VolumeFile, default_volume_dir};
use tatami_wire::{Cred, VolumeId, VolumeKey};

/// The way to a node, as plain data.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum AccessEndpoint {
    /// By the socket of a node on this machine.
    Unix(PathBuf),
    /// By the network.
    Tcp(String),
}

/// [`ClientOptions`] of a client, as plain data.
#[derive(Clone, Serialize, Deserialize)]
pub struct VolumeAccess {
    endpoint: AccessEndpoint,
    key: Option<String>,
    /// The file with the certificates, if connections between machines are encrypted.
    certificates: Option<PathBuf>,
    volume: VolumeId,
}

impl std::fmt::Debug for VolumeAccess {
    /// Omits the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VolumeAccess({:?})", self.endpoint)
    }
}

/// Returns the user of this process.
pub fn own_cred() -> Cred {
    let groups = rustix::process::getgroups().unwrap_or_default();
    Cred {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: groups.into_iter().map(|g| g.as_raw()).collect(),
    }
}

impl VolumeAccess {
    /// Returns the way to the volume of the command line.
    ///
    /// # Errors
    /// As [`VolumeAccess::from_dir`], and no default directory.
    pub fn from_args(args: &BenchVolumeArgs) -> Result<VolumeAccess, BenchError> {
        let dir = args.dir.clone().or_else(default_volume_dir).ok_or_else(|| {
            BenchError::Usage("name the directory of the volume: --dir DIR".into())
        })?;
        VolumeAccess::from_dir(&dir)
    }

    /// Returns the way to the volume in this directory, through its first node.
    ///
    /// # Errors
    /// A directory without a volume, and a damaged key.
    pub fn from_dir(dir: &Path) -> Result<VolumeAccess, BenchError> {
        let volume = VolumeFile::load(&dir.join("volume.toml"));
        let volume = volume.map_err(|e| BenchError::Usage(e.to_string()))?;
        let key = match KeyFile::load(&dir.join("key")) {
            Ok(key) => Some(key.to_hex()),
            // On its socket, a daemon asks another user for no key.
            Err(e) if e.is_foreign() => None,
            Err(e) => return Err(BenchError::Usage(e.to_string())),
        };
        let no_nodes = || BenchError::Usage("the volume has no nodes".into());
        let first = volume.nodes.first().ok_or_else(no_nodes)?;
        let far = key.is_some() && !first.dir.exists();
        let endpoint = match far {
            true => AccessEndpoint::Tcp(first.address.clone()),
            false => AccessEndpoint::Unix(first.socket.clone()),
        };
        let tls = key.is_some() && volume.encryption == Encryption::Tls;
        let certificates = tls.then(|| CertificateFile::path_in(dir));
        Ok(VolumeAccess { endpoint, key, certificates, volume: volume.volume })
    }

    /// Returns the same with another endpoint: that of a machine that is none of the nodes.
    pub fn with_address(self, address: &str) -> VolumeAccess {
        VolumeAccess { endpoint: AccessEndpoint::Tcp(address.into()), ..self }
    }

    /// Returns the options of a client.
    ///
    /// # Errors
    /// A bad key.
    pub fn to_options(&self) -> Result<ClientOptions, BenchError> {
        let mut options = ClientOptions::new(match &self.endpoint {
            AccessEndpoint::Unix(path) => Endpoint::Unix(path.clone()),
            AccessEndpoint::Tcp(address) => Endpoint::Tcp(address.clone()),
        });
        let key = self.key.as_deref().map(VolumeKey::from_hex).transpose();
        options.key = key.map_err(|e| BenchError::Usage(format!("the volume key: {e}")))?;
        let load = |path: &PathBuf| TlsTrust::load(path.clone(), self.volume);
        let tls = self.certificates.as_ref().map(load).transpose();
        options.tls = tls.map_err(|e| BenchError::Usage(e.to_string()))?;
        options.volume = Some(self.volume);
        Ok(options)
    }

    /// Connects a client for this process.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_client(&self) -> Result<Client, BenchError> {
        Ok(Client::connect(self.to_options()?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_a_pipe_and_the_key_does_not_print() {
        let access = VolumeAccess {
            endpoint: AccessEndpoint::Unix("/run/socket".into()),
            key: Some(VolumeKey::new([0x5a; 32]).to_hex()),
            certificates: None,
            volume: VolumeId([3; 16]),
        };
        assert!(!format!("{access:?}").contains("5a5a"));
        let text = serde_json::to_string(&access).expect("plain data");
        let back: VolumeAccess = serde_json::from_str(&text).expect("what we wrote");
        let options = back.to_options().expect("a good key");
        assert_eq!(options.endpoint, Endpoint::Unix("/run/socket".into()));
        assert_eq!(options.key, Some(VolumeKey::new([0x5a; 32])));
        let far = back.with_address("node1:4000").to_options().expect("a good key");
        assert_eq!((far.endpoint, far.key), (Endpoint::Tcp("node1:4000".into()), options.key));
    }
}
