//! All configuration keys. This one table defines files, flags, environment variables and
//! `docs/reference/configuration.md`.

use std::fmt;
use std::path::Path;
use tatami_cluster::Encryption;
use tatami_wire::admin::Durability;
use tatami_wire::{EXECUTORS_MAX, OLDEST_PROTOCOL, PROTOCOL_VERSION};

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyValue {
    /// `true` or `false`.
    Bool(bool),
    /// A number. The suffix of the key's name is its unit.
    Int(u64),
    /// Text, or a path.
    Text(String),
}

impl fmt::Display for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyValue::Bool(b) => write!(f, "{b}"),
            KeyValue::Int(n) => write!(f, "{n}"),
            KeyValue::Text(s) => f.write_str(s),
        }
    }
}

/// The values that a key accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRange {
    /// `true` or `false`.
    Bool,
    /// A whole number from the first to the second, inclusive.
    Int(u64, u64),
    /// Text of 1 to this many bytes.
    Text(usize),
    /// One of a list of words.
    OneOf(&'static [&'static str]),
    /// A path. Relative paths start at the directory of the volume.
    Path,
}

impl fmt::Display for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyRange::Bool => f.write_str("true or false"),
            KeyRange::Int(min, max) => write!(f, "{min} to {max}"),
            KeyRange::Text(max) => write!(f, "text of 1 to {max} bytes"),
            KeyRange::OneOf(words) => f.write_str(&words.join(" or ")),
            KeyRange::Path => f.write_str("a path"),
        }
    }
}

/// One configuration key.
#[derive(Debug)]
pub struct ConfigKey {
    /// `section.name` in the file.
    pub name: &'static str,
    /// `--…` on the command line.
    pub flag: &'static str,
    /// The environment variable.
    pub env: &'static str,
    /// The accepted values.
    pub range: KeyRange,
    /// The unit; empty for keys without one.
    pub unit: &'static str,
    /// The default as text: for ordinary users, and for the superuser.
    default: [&'static str; 2],
    /// The documentation, a sentence or two.
    pub doc: &'static str,
}

/// Names of the keys, for lookups in a configuration.
pub mod name {
    #![allow(missing_docs)] // the table below documents each key
    pub const LOG: &str = "log";
    pub const VOLUME_NAME: &str = "volume.name";
    pub const VOLUME_SHARDS: &str = "volume.shards";
    pub const VOLUME_EXECUTORS: &str = "volume.executors";
    pub const VOLUME_DURABILITY: &str = "volume.durability";
    pub const VOLUME_ENCRYPTION: &str = "volume.encryption";
    pub const NODE_LISTEN: &str = "node.listen";
    pub const NODE_LEASE: &str = "node.lease_sec";
    pub const NODE_RESERVE: &str = "node.reserve_mib";
    pub const NODE_PROTOCOL: &str = "node.protocol";
    pub const NODE_REGION_DEVICE: &str = "node.region_device";
    pub const CLIENT_PATIENCE: &str = "client.patience_sec";
    pub const CLIENT_WHEN_FULL: &str = "client.when_full";
    pub const MOUNT_ENABLED: &str = "mount.enabled";
    pub const MOUNT_PATH: &str = "mount.path";
    pub const MOUNT_PASSTHROUGH: &str = "mount.passthrough";
    pub const MOUNT_IO_URING: &str = "mount.io_uring";
    pub const MOUNT_KERNEL_CACHE: &str = "mount.kernel_cache";
    pub const MOUNT_ALLOW_OTHER: &str = "mount.allow_other";
    pub const MOUNT_THREADS: &str = "mount.threads";
    pub const MOUNT_THREADS_MAX: &str = "mount.threads_max";
    pub const MOUNT_ENTRY_TIMEOUT: &str = "mount.entry_timeout_ms";
    pub const MOUNT_ATTR_TIMEOUT: &str = "mount.attr_timeout_ms";
}

/// All keys. Those of one section follow each other.
pub static KEYS: [ConfigKey; 23] = [
    ConfigKey {
        name: name::LOG,
        flag: "log",
        env: "TATAMI_LOG",
        range: KeyRange::Text(1024),
        unit: "",
        default: ["info", "info"],
        doc: "Log filter of daemons, mounts and commands: error, warn, info, debug or trace, also \
              by module, for example info,tatami_node=debug. Commands log to standard error, and \
              only when this is set.",
    },
    ConfigKey {
        name: name::VOLUME_NAME,
        flag: "volume-name",
        env: "TATAMI_VOLUME_NAME",
        range: KeyRange::Text(255),
        unit: "",
        default: ["tatami", "tatami"],
        doc: "Name of the volume. `tatami up` uses it to create the volume; later it is kept in \
              volume.toml.",
    },
    ConfigKey {
        name: name::VOLUME_SHARDS,
        flag: "volume-shards",
        env: "TATAMI_VOLUME_SHARDS",
        range: KeyRange::Text(4096),
        unit: "",
        default: ["all", "all"],
        doc: "The nodes that keep names: all, or numbers of nodes and ranges of them, for example \
              0,4-7. Each gets the same number of shards. `tatami up` uses it to create the \
              volume; later it is kept in volume.toml.",
    },
    ConfigKey {
        name: name::VOLUME_EXECUTORS,
        flag: "volume-executors",
        env: "TATAMI_VOLUME_EXECUTORS",
        range: KeyRange::Int(1, EXECUTORS_MAX as u64),
        unit: "",
        default: ["1", "1"],
        doc: "Executors of each node that keeps names. An executor is a thread that serves names, \
              with shards and a store of its own. `tatami up` uses it to create the volume; `up \
              --executors` sets it. `tatami node rebalance --executors` changes it later.",
    },
    ConfigKey {
        name: name::VOLUME_DURABILITY,
        flag: "volume-durability",
        env: "TATAMI_VOLUME_DURABILITY",
        range: KeyRange::OneOf(&Durability::NAMES),
        unit: "",
        default: ["log", "log"],
        doc: "Failures that an acknowledged change of names survives. log: the death of a daemon, \
              and after an fsync of a file also a power cut, as with ext4. sync: always a power \
              cut, for one fsync of the disk for all requests that arrive together. `tatami up` \
              uses it to create the volume; later it is kept in volume.toml.",
    },
    ConfigKey {
        name: name::VOLUME_ENCRYPTION,
        flag: "volume-encryption",
        env: "TATAMI_VOLUME_ENCRYPTION",
        range: KeyRange::OneOf(&Encryption::NAMES),
        unit: "",
        default: ["none", "none"],
        doc: "Protection of the connections between machines. none: both sides prove that they \
              have the key, and bytes travel as they are. tls: TLS 1.3 with certificates of the \
              volume's own authority, and the key as well. `tatami up` uses it to create the \
              volume; `up --encryption` sets it. Later it is kept in volume.toml.",
    },
    ConfigKey {
        name: name::NODE_LISTEN,
        flag: "node-listen",
        env: "TATAMI_NODE_LISTEN",
        range: KeyRange::Text(255),
        unit: "",
        default: ["127.0.0.1", "127.0.0.1"],
        doc: "Host name or address on which new nodes listen. `tatami up` uses it to create the \
              volume: it chooses a free port for each node and keeps it in volume.toml.",
    },
    ConfigKey {
        name: name::NODE_LEASE,
        flag: "node-lease-sec",
        env: "TATAMI_NODE_LEASE_SEC",
        range: KeyRange::Int(1, 86_400),
        unit: "seconds",
        default: ["60", "60"],
        doc: "How long a client may be out of contact before a daemon gives up the state of that \
              client: unlinked files that it keeps open, and sizes that it has not reported yet.",
    },
    ConfigKey {
        name: name::NODE_RESERVE,
        flag: "node-reserve-mib",
        env: "TATAMI_NODE_RESERVE_MIB",
        range: KeyRange::Int(0, 1 << 20),
        unit: "MiB",
        default: ["256", "256"],
        doc: "Space on a node's disk that is reserved for names and that the bytes of files \
              cannot take. So names can be created and removed even when files have filled the \
              disk. A sixteenth of the disk at most.",
    },
    ConfigKey {
        name: name::NODE_PROTOCOL,
        flag: "node-protocol",
        env: "TATAMI_NODE_PROTOCOL",
        range: KeyRange::Int(OLDEST_PROTOCOL as u64, PROTOCOL_VERSION as u64),
        unit: "",
        default: ["4", "4"],
        doc: "The newest version of the protocol that daemons, mounts and commands of this machine \
              speak. Set it to the version of the release before while you try a release: then \
              the machine does nothing that the release before does not know.",
    },
    ConfigKey {
        name: name::NODE_REGION_DEVICE,
        flag: "node-region-device",
        env: "TATAMI_NODE_REGION_DEVICE",
        range: KeyRange::Text(4096),
        unit: "",
        default: ["none", "none"],
        doc: "A partition, a loop device or a file of at least 64 MiB, in which the node keeps the \
              small files of directories with the policy `engine=region`. {node} in it stands for \
              the node's name, for example /dev/disk/by-partlabel/tatami-{node}. A relative path \
              begins in the volume's directory. The node remembers it for later starts. none: the \
              one that it remembers, if there is one.",
    },
    ConfigKey {
        name: name::CLIENT_PATIENCE,
        flag: "client-patience-sec",
        env: "TATAMI_CLIENT_PATIENCE_SEC",
        range: KeyRange::Int(0, 86_400),
        unit: "seconds",
        default: ["60", "60"],
        doc: "How long an operation, also one on a mount, waits for a daemon that is down before \
              it fails with EHOSTDOWN.",
    },
    ConfigKey {
        name: name::CLIENT_WHEN_FULL,
        flag: "client-when-full",
        env: "TATAMI_CLIENT_WHEN_FULL",
        range: KeyRange::OneOf(&["next", "refuse"]),
        unit: "",
        default: ["next", "next"],
        doc: "Where new files go when the disk of their own node is full. next: to the next node \
              with space. refuse: to no other node; writing to them fails with ENOSPC. A disk is \
              full with less than 64 MiB available, or less than a sixteenth of it where that is \
              smaller.",
    },
    ConfigKey {
        name: name::MOUNT_ENABLED,
        flag: "mount-enabled",
        env: "TATAMI_MOUNT_ENABLED",
        range: KeyRange::Bool,
        unit: "",
        default: ["true", "true"],
        doc: "Whether `tatami up` mounts the volume. `up --no-mount` and `up --mount` override it.",
    },
    ConfigKey {
        name: name::MOUNT_PATH,
        flag: "mount-path",
        env: "TATAMI_MOUNT_PATH",
        range: KeyRange::Path,
        unit: "",
        default: ["mnt", "/mnt/tatami"],
        doc: "Mount point of `tatami up`. With one node it is this path. With several, each node \
              has its mount below it: node0, node1 and so on. `up --mount` sets it, and later \
              calls of `up` remember the last one given.",
    },
    ConfigKey {
        name: name::MOUNT_PASSTHROUGH,
        flag: "mount-passthrough",
        env: "TATAMI_MOUNT_PASSTHROUGH",
        range: KeyRange::Bool,
        unit: "",
        default: ["true", "true"],
        doc: "Whether the kernel may read and write files of the mount's own node directly on the \
              disk. Where that is impossible, a mount works without it, and `tatami status` \
              reports that.",
    },
    ConfigKey {
        name: name::MOUNT_ALLOW_OTHER,
        flag: "mount-allow-other",
        env: "TATAMI_MOUNT_ALLOW_OTHER",
        range: KeyRange::Bool,
        unit: "",
        default: ["false", "true"],
        doc: "Whether users other than the owner of the volume may use its mounts, and its \
              daemons over their sockets. A daemon reads this at its start. Permissions apply; \
              the superuser may always use the volume. For mounts, ordinary users need \
              `user_allow_other` in /etc/fuse.conf.",
    },
    ConfigKey {
        name: name::MOUNT_THREADS,
        flag: "mount-threads",
        env: "TATAMI_MOUNT_THREADS",
        range: KeyRange::Int(1, 1024),
        unit: "",
        default: ["2", "2"],
        doc: "Threads that a mount keeps for requests of the kernel. Over io_uring it keeps two for \
              each CPU.",
    },
    ConfigKey {
        name: name::MOUNT_THREADS_MAX,
        flag: "mount-threads-max",
        env: "TATAMI_MOUNT_THREADS_MAX",
        range: KeyRange::Int(1, 1024),
        unit: "",
        default: ["64", "64"],
        doc: "Most threads of a mount, over io_uring of each CPU. Each request that waits for a node \
              occupies one. When all are occupied, further requests wait for a thread.",
    },
    ConfigKey {
        name: name::MOUNT_IO_URING,
        flag: "mount-io-uring",
        env: "TATAMI_MOUNT_IO_URING",
        range: KeyRange::Bool,
        unit: "",
        default: ["true", "true"],
        doc: "Whether the kernel's requests may come over io_uring: a thread on the program's CPU \
              takes each one, and no other CPU is woken. It takes Linux 6.14, and \
              `echo 1 > /sys/module/fuse/parameters/enable_uring` as root before the mount. \
              Otherwise requests come by the device /dev/fuse.",
    },
    ConfigKey {
        name: name::MOUNT_KERNEL_CACHE,
        flag: "mount-kernel-cache",
        env: "TATAMI_MOUNT_KERNEL_CACHE",
        range: KeyRange::Bool,
        unit: "",
        default: ["true", "true"],
        doc: "Whether the kernel may cache attributes that are delegated to the mount, and names of \
              delegated directories. It drops them before changes of other nodes become visible.",
    },
    ConfigKey {
        name: name::MOUNT_ENTRY_TIMEOUT,
        flag: "mount-entry-timeout-ms",
        env: "TATAMI_MOUNT_ENTRY_TIMEOUT_MS",
        range: KeyRange::Int(0, 3_600_000),
        unit: "milliseconds",
        default: ["0", "0"],
        doc: "How long the kernel may use a cached name without asking. Above 0, lookups are \
              faster, and changes of names by other nodes become visible that much later.",
    },
    ConfigKey {
        name: name::MOUNT_ATTR_TIMEOUT,
        flag: "mount-attr-timeout-ms",
        env: "TATAMI_MOUNT_ATTR_TIMEOUT_MS",
        range: KeyRange::Int(0, 3_600_000),
        unit: "milliseconds",
        default: ["0", "0"],
        doc: "How long the kernel may use cached attributes without asking. Above 0, stat is \
              faster, and changes of attributes by other nodes become visible that much later.",
    },
];

/// Returns the words that the key with this flag accepts; `None` if there is no such key, or other
/// values are as good.
pub fn flag_choices(flag: &str) -> Option<Vec<String>> {
    match KEYS.iter().find(|key| key.flag == flag)?.range {
        KeyRange::Bool => Some(vec!["true".to_owned(), "false".to_owned()]),
        KeyRange::OneOf(words) => Some(words.iter().map(|word| (*word).to_owned()).collect()),
        KeyRange::Int(..) | KeyRange::Text(_) | KeyRange::Path => None,
    }
}

/// Returns the key of that name.
pub fn find_key(name: &str) -> Option<&'static ConfigKey> {
    KEYS.iter().find(|key| key.name == name)
}

impl ConfigKey {
    /// Returns the default for the current user and a volume in `dir`.
    pub fn default_value(&self, dir: &Path) -> KeyValue {
        let root = rustix::process::geteuid().is_root();
        let value = self.parse(self.default[usize::from(root)]);
        self.resolve_path(value.expect("defaults are in range, a test checks it"), dir)
    }

    /// Returns the default for the documentation: two values where the superuser has a different
    /// one.
    pub fn default_text(&self) -> String {
        match self.default {
            [one, other] if one == other => one.to_owned(),
            [user, root] => format!("{root} for the superuser, {user} for others"),
        }
    }

    /// Parses text from a flag or the environment.
    ///
    /// # Errors
    /// A sentence with the accepted values.
    pub fn parse(&self, text: &str) -> Result<KeyValue, String> {
        let wrong = || format!("{text:?} is not {}", self.allowed_text());
        let value = match self.range {
            KeyRange::Bool => KeyValue::Bool(text.parse().map_err(|_| wrong())?),
            KeyRange::Int(..) => KeyValue::Int(text.parse().map_err(|_| wrong())?),
            KeyRange::Text(_) | KeyRange::OneOf(_) | KeyRange::Path => {
                KeyValue::Text(text.to_owned())
            }
        };
        self.check_value(value)
    }

    /// Checks that the key accepts the value.
    ///
    /// # Errors
    /// A sentence with the accepted values.
    pub fn check_value(&self, value: KeyValue) -> Result<KeyValue, String> {
        let fits = match (&value, self.range) {
            (KeyValue::Bool(_), KeyRange::Bool) => true,
            (KeyValue::Int(n), KeyRange::Int(min, max)) => (min..=max).contains(n),
            (KeyValue::Text(s), KeyRange::Text(max)) => !s.is_empty() && s.len() <= max,
            (KeyValue::Text(s), KeyRange::OneOf(words)) => words.contains(&s.as_str()),
            (KeyValue::Text(s), KeyRange::Path) => !s.is_empty(),
            _ => false,
        };
        if fits { Ok(value) } else { Err(format!("{value} is not {}", self.allowed_text())) }
    }

    /// Makes relative paths absolute.
    pub fn resolve_path(&self, value: KeyValue, dir: &Path) -> KeyValue {
        match value {
            KeyValue::Text(s) if self.range == KeyRange::Path => {
                KeyValue::Text(dir.join(s).to_string_lossy().into_owned())
            }
            other => other,
        }
    }

    fn allowed_text(&self) -> String {
        match self.unit {
            "" => self.range.to_string(),
            unit => format!("{} {unit}", self.range),
        }
    }
}

/// Returns the names most similar to `name`, for a message; the nearest first.
pub fn similar_names(name: &str) -> Vec<&'static str> {
    let last = |s: &str| s.rsplit('.').next().unwrap_or_default().to_owned();
    let mut found: Vec<(usize, &str)> = KEYS
        .iter()
        .map(|key| {
            // A right name in a wrong section also counts as similar.
            let whole = strsim::damerau_levenshtein(name, key.name);
            let part = strsim::damerau_levenshtein(&last(name), &last(key.name)) + 1;
            (whole.min(part), key.name)
        })
        .filter(|(distance, _)| *distance <= 3)
        .collect();
    found.sort_unstable();
    found.into_iter().map(|(_, name)| name).take(3).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_variables_follow_from_the_name() {
        for key in &KEYS {
            assert_eq!(key.flag, key.name.replace(['.', '_'], "-"));
            assert_eq!(key.env, format!("TATAMI_{}", key.name.replace('.', "_").to_uppercase()));
            let unit = match key.name.rsplit('_').next() {
                Some("sec") => "seconds",
                Some("ms") => "milliseconds",
                Some("mib") => "MiB",
                _ => "",
            };
            assert_eq!(key.unit, unit, "{}", key.name);
        }
    }

    #[test]
    fn defaults_are_in_range_and_ranges_are_kept() {
        for key in &KEYS {
            for default in key.default {
                key.parse(default).unwrap_or_else(|e| panic!("{}: {e}", key.name));
            }
            assert!(key.parse("").is_err(), "{} takes nothing", key.name);
            match key.range {
                KeyRange::Int(min, max) => {
                    assert!(key.parse(&max.to_string()).is_ok());
                    assert!(key.parse(&(max + 1).to_string()).is_err());
                    assert!(min == 0 || key.parse(&(min - 1).to_string()).is_err());
                    assert!(key.parse("-1").is_err() && key.parse("1s").is_err());
                }
                KeyRange::Bool => assert!(key.parse("yes").is_err()),
                KeyRange::Text(max) => assert!(key.parse(&"x".repeat(max + 1)).is_err()),
                KeyRange::OneOf(words) => {
                    assert!(words.iter().all(|word| key.parse(word).is_ok()));
                    assert!(key.parse("another").is_err());
                }
                KeyRange::Path => {}
            }
        }
    }

    #[test]
    fn near_misses_are_guessed() {
        assert_eq!(similar_names("mount.passthruogh"), ["mount.passthrough"]);
        assert_eq!(similar_names("node.passthrough"), ["mount.passthrough"]);
        assert!(similar_names("quite.different").is_empty());
    }
}
