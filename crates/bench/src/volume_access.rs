//! The client's options in a form that goes through a pipe, for the processes of a workload. The
//! key never appears on a command line.

use crate::error::BenchError;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use tatami_client::{Client, ClientOptions, Endpoint};
use tatami_wire::{VolumeId, VolumeKey};

/// [`ClientOptions`] of a client, as plain data.
#[derive(Clone, Serialize, Deserialize)]
pub struct VolumeAccess {
    unix: Option<PathBuf>,
    tcp: Option<String>,
    key: Option<String>,
    volume: Option<VolumeId>,
    patience_ms: u64,
}

impl std::fmt::Debug for VolumeAccess {
    /// Omits the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reach({:?}, {:?})", self.unix, self.tcp)
    }
}

impl From<&ClientOptions> for VolumeAccess {
    fn from(options: &ClientOptions) -> VolumeAccess {
        let (unix, tcp) = match &options.endpoint {
            Endpoint::Unix(path) | Endpoint::Through(path, _) => (Some(path.clone()), None),
            Endpoint::Tcp(address) => (None, Some(address.clone())),
        };
        VolumeAccess {
            unix,
            tcp,
            key: options.key.as_ref().map(VolumeKey::to_hex),
            volume: options.volume,
            patience_ms: options.patience.as_millis() as u64,
        }
    }
}

impl VolumeAccess {
    /// Returns the options again.
    ///
    /// # Errors
    /// A value from elsewhere without an endpoint, or with a bad key.
    pub fn to_options(&self) -> Result<ClientOptions, BenchError> {
        let endpoint = match (&self.unix, &self.tcp) {
            (Some(path), _) => Endpoint::Unix(path.clone()),
            (None, Some(address)) => Endpoint::Tcp(address.clone()),
            (None, None) => return Err(BenchError::Usage("no endpoint was given".into())),
        };
        let mut options = ClientOptions::new(endpoint);
        let key = self.key.as_deref().map(VolumeKey::from_hex).transpose();
        options.key = key.map_err(|e| BenchError::Usage(format!("the volume key: {e}")))?;
        options.volume = self.volume;
        options.patience = Duration::from_millis(self.patience_ms);
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
        let mut options = ClientOptions::new(Endpoint::Unix("/run/socket".into()));
        options.key = Some(VolumeKey::new([0x5a; 32]));
        options.volume = Some(VolumeId([3; 16]));
        let reach = VolumeAccess::from(&options);
        assert!(!format!("{reach:?}").contains("5a5a"));
        let text = serde_json::to_string(&reach).expect("plain data");
        let back: VolumeAccess = serde_json::from_str(&text).expect("what we wrote");
        let back = back.to_options().expect("complete");
        assert_eq!(back.endpoint, options.endpoint);
        assert_eq!(
            (back.key, back.volume, back.patience),
            (options.key, options.volume, options.patience)
        );
    }
}
