//! The directory of a volume on this machine, and the files in it.

use crate::config::{self, ConfigLayers, ConfigOverrides, VolumeConfig};
use crate::error::{CommandFailure, CommandResult, ExitStatus, FailureContext};
use crate::keys::{ConfigKey, KEYS, name};
use crate::mountinfo::{self, FS_TYPE};
use crate::mounts::MountRecord;
use crate::replace_file::replace_file;
use crate::user_name::describe_user;
use crate::wait_display::WaitDisplay;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::collections::BTreeMap;
use std::fs::File;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tatami_client::connection::{Caller, ConnectError, Connection, Endpoint};
use tatami_client::{AwaitedNode, ClientOptions, TlsTrust, WaitObserver, WhenFull};
use tatami_cluster::trusted;
use tatami_cluster::{KeyFile, NodeEntry, SYSTEM_DIR, VolumeFile, resolve_system_name};
use tatami_hosts::machine::MachineFile;
use tatami_wire::admin::{AdminCall, AdminReply};
use tatami_wire::{ClientId, ExecutorId, NodeId, PROTOCOL_VERSION, VolumeKey};

/// Longest wait for the reply to an administrative request.
pub const ADMIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest wait for a node's status; a node that does not reply within it counts as down.
pub const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);

/// Which volume, and how it is configured.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct VolumeArgs {
    /// Directory of the volume [default: /etc/tatami/default if there is one, else
    /// /var/lib/tatami as root, or ~/.local/share/tatami]
    #[arg(long, value_name = "DIR", env = "TATAMI_DIR", hide_env_values = true,
          value_hint = clap::ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
    /// Configuration file [default: DIR/tatami.toml]
    #[arg(long, value_name = "FILE", env = "TATAMI_CONFIG", hide_env_values = true,
          value_hint = clap::ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Keys of the configuration, as flags.
    #[command(flatten)]
    pub overrides: ConfigOverrides,
}

/// A volume's directory with its configuration.
#[derive(Debug)]
pub struct VolumeDir {
    /// The directory.
    pub dir: PathBuf,
    /// The effective configuration.
    pub config: VolumeConfig,
    /// The arguments that the user gave.
    pub at: VolumeArgs,
    /// What this machine knows about itself, once it was read.
    machine: Mutex<Option<Option<Arc<MachineFile>>>>,
}

/// Settings of earlier calls of `up`, kept for later ones.
pub type RememberedSettings = BTreeMap<String, String>;

/// Returns the default directory.
fn default_dir() -> CommandResult<PathBuf> {
    tatami_cluster::default_volume_dir().ok_or_else(|| {
        CommandFailure::usage(
            "there is no default directory: neither HOME nor XDG_DATA_HOME is set",
        )
        .try_this("name one: --dir DIR")
    })
}

impl VolumeArgs {
    /// Finds the directory and reads the configuration. Writes nothing.
    ///
    /// # Errors
    /// As [`VolumeConfig::from_layers`].
    pub fn open(&self) -> CommandResult<VolumeDir> {
        let dir = match &self.dir {
            Some(dir) => resolve_system_name(
                std::path::absolute(dir).context(|| format!("directory {}", dir.display()))?,
            ),
            None => default_dir()?,
        };
        if dir.metadata().is_ok_and(|meta| !meta.is_dir()) {
            let what = format!("{} is not a directory", dir.display());
            return Err(CommandFailure::usage(what)
                .try_this("name the directory of a volume: --dir DIR, or TATAMI_DIR"));
        }
        config::check_variables(
            std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()),
        )?;
        let default = dir.join("tatami.toml");
        let named = match &self.config {
            Some(file) => Some(std::path::absolute(file).context(|| "--config".to_owned())?),
            None => None,
        };
        let remembered = read_remembered(&dir.join(REMEMBERED));
        let config = VolumeConfig::from_layers(&ConfigLayers {
            dir: &dir,
            machine_file: &Path::new(SYSTEM_DIR).join("tatami.toml"),
            file: (named.as_deref().unwrap_or(&default), named.is_some()),
            remembered: &remembered,
            variable: &|name| std::env::var(name).ok(),
            flags: &self.overrides,
        })?;
        let protocol = config.int_value(name::NODE_PROTOCOL);
        // The key's range is that of this program.
        let _ = tatami_wire::limit_protocol(u32::try_from(protocol).unwrap_or(PROTOCOL_VERSION));
        let at =
            VolumeArgs { dir: Some(dir.clone()), config: named, overrides: self.overrides.clone() };
        Ok(VolumeDir { dir, config, at, machine: Mutex::new(None) })
    }

    /// Returns arguments that give a child process the same configuration.
    pub fn to_arguments(&self) -> Vec<std::ffi::OsString> {
        let mut arguments: Vec<std::ffi::OsString> = Vec::new();
        if let Some(file) = &self.config {
            arguments.extend(["--config".into(), file.into()]);
        }
        arguments.extend(self.overrides.to_arguments().map(Into::into));
        arguments
    }
}

const REMEMBERED: &str = "last-up.toml";
/// The file that keeps two commands apart.
const LOCK: &str = ".lock";

fn read_remembered(path: &Path) -> RememberedSettings {
    // These settings are a convenience: a missing or damaged file counts as empty.
    let text = std::fs::read_to_string(path).unwrap_or_default();
    toml::from_str(&text).unwrap_or_default()
}

impl VolumeDir {
    /// Returns the settings of flags and environment variables, for a command on another machine.
    pub fn forwarded_settings(&self) -> Vec<(String, String)> {
        let named = |key: &ConfigKey, value: String| (key.name.to_owned(), value);
        let variables =
            KEYS.iter().filter_map(|key| Some(named(key, std::env::var(key.env).ok()?)));
        let flags = self.at.overrides.0.iter().map(|(key, value)| named(key, value.clone()));
        // Of several values of a key, the last counts.
        variables.chain(flags).collect()
    }

    /// Returns the path of the volume file, the map of nodes.
    pub fn volume_file(&self) -> PathBuf {
        self.dir.join("volume.toml")
    }

    /// Returns the path of the file with the volume's secret.
    pub fn key_file(&self) -> PathBuf {
        self.dir.join("key")
    }

    /// Returns the path of the file in which this machine records its own nodes.
    pub fn machine_file(&self) -> PathBuf {
        self.dir.join("machine.toml")
    }

    /// Reads what this machine knows about itself. `None` in a volume of an earlier version, and on
    /// a machine to which the volume's files were copied by hand.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn load_machine(&self) -> CommandResult<Option<Arc<MachineFile>>> {
        let mut known = self.machine.lock();
        if let Some(machine) = &*known {
            return Ok(machine.clone());
        }
        let machine = MachineFile::load(&self.machine_file());
        let machine = machine.map_err(|e| CommandFailure::new(e.to_string()))?.map(Arc::new);
        Ok(known.insert(machine).clone())
    }

    /// Writes what this machine knows about itself.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn save_machine(&self, machine: MachineFile) -> CommandResult {
        machine.save(&self.machine_file()).map_err(|e| CommandFailure::new(e.to_string()))?;
        *self.machine.lock() = Some(Some(Arc::new(machine)));
        Ok(())
    }

    /// Reads what this machine knows about itself anew: another process has written it.
    pub fn forget_machine(&self) {
        *self.machine.lock() = None;
    }

    /// Records that these nodes are on this machine.
    ///
    /// # Errors
    /// Those of [`VolumeDir::load_machine`] and [`VolumeDir::save_machine`].
    pub fn record_nodes_here(
        &self,
        volume: &VolumeFile,
        nodes: impl IntoIterator<Item = u16>,
    ) -> CommandResult {
        let known = self.load_machine()?;
        let mut machine = match &known {
            Some(machine) => MachineFile::clone(machine),
            None => MachineFile::new(volume.volume, self.nodes_here(volume).iter().map(|n| n.id)),
        };
        machine.nodes.extend(nodes);
        if known.as_deref() == Some(&machine) { Ok(()) } else { self.save_machine(machine) }
    }

    /// Records that a node is on this machine no more.
    ///
    /// # Errors
    /// Those of [`VolumeDir::load_machine`] and [`VolumeDir::save_machine`].
    pub fn forget_node_here(&self, node: u16) -> CommandResult {
        let Some(known) = self.load_machine()? else { return Ok(()) };
        let mut machine = MachineFile::clone(&known);
        machine.nodes.remove(&node);
        self.save_machine(machine)
    }

    /// Returns the nodes of this machine.
    pub fn nodes_here<'a>(&self, volume: &'a VolumeFile) -> Vec<&'a NodeEntry> {
        volume.nodes.iter().filter(|entry| self.is_here(entry)).collect()
    }

    /// Remembers settings of this `up` for the next one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn remember_settings(&self, said: &[(&str, String)]) -> CommandResult {
        let said = said.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        self.rewrite_remembered(|all| all.extend(said))
    }

    /// Removes the setting `name`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn forget_setting(&self, name: &str) -> CommandResult {
        self.rewrite_remembered(|all| _ = all.remove(name))
    }

    fn rewrite_remembered(&self, change: impl FnOnce(&mut RememberedSettings)) -> CommandResult {
        let path = self.dir.join(REMEMBERED);
        let mut all = read_remembered(&path);
        let before = all.clone();
        change(&mut all);
        if all == before {
            return Ok(());
        }
        let text = toml::to_string(&all).context(|| "settings of `up`".to_owned())?;
        replace_file(
            &path,
            &format!(
                "# Settings of the last `tatami up`; flags, variables and tatami.toml override \
                them.\n{text}"
            ),
        )
    }

    /// Returns the remembered setting `name`.
    pub fn remembered_setting(&self, name: &str) -> Option<String> {
        read_remembered(&self.dir.join(REMEMBERED)).remove(name)
    }

    /// Reads the file of the volume in this directory.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub fn load_volume(&self) -> CommandResult<VolumeFile> {
        let path = self.volume_file();
        if !path.exists() {
            return Err(self.absent_failure());
        }
        VolumeFile::load(&path).map_err(|e| CommandFailure::new(e.to_string()))
    }

    /// Returns a failure because there is no volume in the directory.
    fn absent_failure(&self) -> CommandFailure {
        let shown = self.dir.display();
        let failure = CommandFailure::degraded(format!("there is no volume in {shown}"));
        if let Some(mount) = mountinfo::mount_above(&self.dir).filter(|m| m.fs_type == FS_TYPE) {
            let above = mount.path.display();
            let remedy = match MountRecord::load_by_path(&mount.path) {
                Some(record) => format!(
                    "for the volume that is mounted there: --dir {}; its paths begin with a \
                     colon: tatami ls --dir {0} :/",
                    record.dir.display()
                ),
                None => "name the directory of a volume: --dir DIR".to_owned(),
            };
            let cause = format!("{shown} lies in the mount {above}");
            return failure.because(cause).try_this(remedy);
        }
        let cause = match self.dir.metadata() {
            Ok(_) => format!("{} is not there", self.volume_file().display()),
            Err(e) => format!("{shown}: {e}"),
        };
        let named = "name the directory of a volume: --dir DIR, or TATAMI_DIR";
        // A new volume gets a directory of its own: no advice to fill one that has other files.
        let remedy = match may_become_volume(&self.dir) {
            true => format!("make one: tatami up{}; or {named}", self.dir_flag()),
            false if default_dir().is_ok_and(|default| default == self.dir) => named.to_owned(),
            false => format!("{named}; to make one in the default directory: tatami up"),
        };
        failure.because(cause).try_this(remedy)
    }

    /// Returns a failure because only the owner of the volume may do this.
    pub fn owner_failure(&self, what: impl Into<String>) -> CommandFailure {
        let owner = self.dir.metadata().map(|meta| describe_user(meta.uid()));
        let owner = owner.unwrap_or_else(|_| "its owner".to_owned());
        CommandFailure::new(what)
            .because(format!(
                "the volume in {} belongs to {owner}: only {owner} and the superuser may do this",
                self.dir.display()
            ))
            .try_this(format!(
                "ask {owner}; or make a volume of your own in another directory: tatami up --dir DIR"
            ))
    }

    /// Reads the key. Returns `None` if this user may not read it.
    ///
    /// # Errors
    /// A key file that is damaged or open to other users.
    pub fn load_key(&self) -> CommandResult<Option<VolumeKey>> {
        match KeyFile::load(&self.key_file()) {
            Ok(key) => Ok(Some(key)),
            Err(e) if e.is_foreign() => Ok(None),
            Err(e) => Err(CommandFailure::new(e.to_string())),
        }
    }

    /// Reads the certificates of an encrypted volume. A user without the key needs none: other
    /// nodes are reached through the daemon of this machine.
    ///
    /// # Errors
    /// They are missing, damaged, or open to other users.
    pub fn load_certificates(
        &self,
        volume: &VolumeFile,
        has_key: bool,
    ) -> CommandResult<Option<Arc<TlsTrust>>> {
        if !has_key {
            return Ok(None);
        }
        TlsTrust::open(&self.dir, volume).map_err(|e| {
            CommandFailure::new(e.to_string()).try_this(format!(
                "copy certificates.toml from another machine of the volume, mode 0600; or make new \
                 certificates: tatami volume rotate-certificates{}",
                self.dir_flag()
            ))
        })
    }

    /// Returns whether a node belongs to this machine.
    pub fn is_here(&self, entry: &NodeEntry) -> bool {
        match self.load_machine() {
            Ok(Some(machine)) => machine.nodes.contains(&entry.id),
            // Nothing is recorded. The node's directory decides nothing: earlier versions made
            // those of all nodes on each machine.
            Ok(None) | Err(_) => is_own_address(&entry.address).unwrap_or_else(|| {
                entry.dir.exists() || self.remembered_setting(&in_use_key(entry)).is_some()
            }),
        }
    }

    /// Returns whether the daemon of a node can be started here: also of one that has not run yet,
    /// on a machine to which the volume's files were copied by hand.
    pub fn may_start_here(&self, entry: &NodeEntry) -> bool {
        let is_on_host = || {
            let machine = self.load_machine().ok().flatten();
            machine.is_some_and(|machine| machine.host_of(entry.id).is_some())
        };
        self.is_here(entry) || (is_own_address(&entry.address) == Some(true) && !is_on_host())
    }

    /// Returns whether the directory belongs to this user and no other user can change it.
    pub fn is_own(&self) -> bool {
        trusted::is_own(&self.dir)
    }

    /// Returns ` --dir DIR` for remedies, or an empty text for the default directory.
    pub fn dir_flag(&self) -> String {
        match default_dir() {
            Ok(default) if default == self.dir => String::new(),
            _ => format!(" --dir {}", self.dir.display()),
        }
    }

    /// Returns how to reach a node: over its socket if the node is on this machine.
    fn node_endpoint(&self, entry: &NodeEntry, with_key: bool) -> Endpoint {
        if with_key && !(entry.dir.exists() && self.is_here(entry)) {
            return Endpoint::from_address(&entry.address);
        }
        Endpoint::Unix(entry.socket.clone())
    }

    /// Returns the options of a client that reaches the volume through this node.
    ///
    /// # Errors
    /// As [`VolumeDir::load_key`].
    pub fn client_options(
        &self,
        volume: &VolumeFile,
        entry: &NodeEntry,
    ) -> CommandResult<ClientOptions> {
        let key = self.load_key()?;
        Ok(ClientOptions {
            endpoint: self.node_endpoint(entry, key.is_some()),
            tls: self.load_certificates(volume, key.is_some())?,
            key,
            volume: Some(volume.volume),
            patience: self.config.duration_value(name::CLIENT_PATIENCE),
            when_full: match self.config.text_value(name::CLIENT_WHEN_FULL).as_str() {
                "refuse" => WhenFull::Refuse,
                _ => WhenFull::Next,
            },
            observer: Some(Arc::new(WaitDisplay::new(&entry.name))),
        })
    }

    /// Sends one administrative request to one daemon, over a connection of its own.
    ///
    /// # Errors
    /// The daemon cannot be reached, or refuses.
    pub fn send_admin(
        &self,
        volume: &VolumeFile,
        entry: &NodeEntry,
        call: &AdminCall,
    ) -> Result<AdminReply, AdminCallError> {
        self.send_admin_within(ADMIN_TIMEOUT, volume, entry, call)
    }

    /// As [`VolumeDir::send_admin`], with another timeout.
    ///
    /// # Errors
    /// As [`VolumeDir::send_admin`].
    pub fn send_admin_within(
        &self,
        timeout: Duration,
        volume: &VolumeFile,
        entry: &NodeEntry,
        call: &AdminCall,
    ) -> Result<AdminReply, AdminCallError> {
        let with_key = self.load_key().is_ok_and(|key| key.is_some());
        let endpoint = self.node_endpoint(entry, with_key);
        let reply = self.call_daemon(&endpoint, timeout, volume, entry, call);
        // Its machine may have a new address. The daemons of this machine have it in their map.
        let newer = match &reply {
            Err(AdminCallError::Connect(_)) => self.find_newer_address(volume, entry),
            _ => None,
        };
        match newer {
            Some(at) => {
                self.call_daemon(&Endpoint::from_address(&at), timeout, volume, entry, call)
            }
            None => reply,
        }
    }

    fn call_daemon(
        &self,
        endpoint: &Endpoint,
        timeout: Duration,
        volume: &VolumeFile,
        entry: &NodeEntry,
        call: &AdminCall,
    ) -> Result<AdminReply, AdminCallError> {
        let client = random_client().map_err(|_| tatami_wire::Errno::EAGAIN)?;
        let key = self.load_key().ok().flatten();
        // Certificates that cannot be used are reported by a command that needs them.
        let tls = self.load_certificates(volume, key.is_some()).ok().flatten();
        let caller = Caller { client, volume: Some(volume.volume), key, tls };
        let observer: Arc<dyn WaitObserver> = Arc::new(WaitDisplay::new(&entry.name));
        let name = entry.name.clone();
        let node = Arc::new(AwaitedNode::new(Some(NodeId(entry.id)), name, Some(observer)));
        let mut connection = Connection::open_admin_watched(endpoint, &caller, timeout, &node)?;
        let reply = connection.call_admin(call).inspect_err(|_| node.record_timeout())?;
        Ok(reply?)
    }

    /// Asks the daemons of this machine for the address of a node on another one. Returns it if the
    /// file of the volume has an earlier one.
    fn find_newer_address(&self, volume: &VolumeFile, entry: &NodeEntry) -> Option<String> {
        let here = self.nodes_here(volume);
        if here.iter().any(|own| own.id == entry.id) {
            return None;
        }
        here.into_iter().find_map(|own| {
            let socket = Endpoint::Unix(own.socket.clone());
            let asked = self.call_daemon(&socket, ADMIN_TIMEOUT, volume, own, &AdminCall::Map);
            let Ok(AdminReply::Map(map)) = asked else { return None };
            let known = map.find_member(NodeId(entry.id))?;
            (known.moved > entry.moved).then(|| known.address.clone())
        })
    }

    /// Shakes hands with a daemon over TCP, where each side must prove that it has the volume's
    /// key: on its UNIX socket the daemon asks for no proof.
    ///
    /// # Errors
    /// The daemon has another key, or cannot be reached so.
    pub fn prove_key(
        &self,
        volume: &VolumeFile,
        entry: &NodeEntry,
        key: VolumeKey,
    ) -> Result<(), AdminCallError> {
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|_| tatami_wire::Errno::EAGAIN)?;
        let endpoint = Endpoint::from_address(&entry.address);
        let (client, key) = (ClientId(id), Some(key));
        let tls = self.load_certificates(volume, true).ok().flatten();
        let caller = Caller { client, volume: Some(volume.volume), key, tls };
        Connection::open_admin(&endpoint, &caller, HEALTH_TIMEOUT)?;
        Ok(())
    }

    /// Finds a node by number (`2`) or name (`node2`).
    ///
    /// # Errors
    /// There is no such node; the message lists the nodes.
    pub fn find_node<'a>(
        &self,
        volume: &'a VolumeFile,
        which: &str,
    ) -> CommandResult<&'a NodeEntry> {
        let fits = |n: &&NodeEntry| n.name == which || n.id.to_string() == which;
        volume.nodes.iter().find(fits).ok_or_else(|| {
            let names: Vec<&str> = volume.nodes.iter().map(|n| n.name.as_str()).collect();
            CommandFailure {
                exit: ExitStatus::Usage,
                ..CommandFailure::new(format!("there is no node {which:?}"))
            }
            .try_this(format!("one of: {}", names.join(", ")))
        })
    }

    /// Waits until no other `up` or `down` works on this volume. Keeps others out while the
    /// returned file is open.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn lock(&self) -> CommandResult<File> {
        self.lock_file(LOCK, "waiting for another tatami up or down on this volume")
    }

    /// Returns the path of the file of [`VolumeDir::lock`].
    pub fn lock_path(&self) -> PathBuf {
        self.dir.join(LOCK)
    }

    /// As [`VolumeDir::lock`], without waiting: `None` while another command works.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn try_lock(&self) -> CommandResult<Option<File>> {
        let fd = self.open_lock(LOCK)?;
        let locked = rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive);
        Ok(locked.is_ok().then_some(fd))
    }

    /// As [`VolumeDir::lock`], for commands that move shards. Daemons may be started and stopped
    /// meanwhile.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn lock_shards(&self) -> CommandResult<File> {
        self.lock_file(
            ".lock-shards",
            "waiting for another command that moves shards of this volume",
        )
    }

    fn lock_file(&self, file: &str, waiting: &str) -> CommandResult<File> {
        let fd = self.open_lock(file)?;
        if rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).is_err() {
            crate::term::print_note(waiting);
            let what = || format!("cannot lock {}", self.dir.join(file).display());
            rustix::fs::flock(&fd, FlockOperation::LockExclusive).context(what)?;
        }
        Ok(fd)
    }

    fn open_lock(&self, file: &str) -> CommandResult<File> {
        let path = self.dir.join(file);
        let flags = OFlags::RDWR | OFlags::CREATE;
        let opened = trusted::open_file(&path, flags, Mode::RUSR | Mode::WUSR);
        opened.map_err(|e| match e.kind() {
            Some(std::io::ErrorKind::PermissionDenied) if self.volume_file().exists() => self
                .owner_failure(
                    "not permitted: this starts, stops or changes daemons of the volume",
                ),
            Some(std::io::ErrorKind::PermissionDenied) => {
                CommandFailure::from(e).try_this("name a directory of your own: --dir DIR")
            }
            _ => CommandFailure::from(e),
        })
    }
}

/// Returns whether this user could make a volume in `dir`: the directory is empty, or can be made.
fn may_become_volume(dir: &Path) -> bool {
    match std::fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let above = dir.ancestors().skip(1).find(|above| above.exists());
            let writable = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
            above.is_some_and(|above| above.is_dir() && rustix::fs::access(above, writable).is_ok())
        }
        Err(_) => false,
    }
}

/// Returns the name of an executor for output: its node, and its number unless that is the first.
pub fn executor_name(volume: &VolumeFile, executor: ExecutorId) -> String {
    let ExecutorId { node, index } = executor;
    let name = volume.node(node).map_or_else(|| format!("node {node}"), |n| n.name.clone());
    if index == 0 { name } else { format!("{name}, executor {index}") }
}

/// Returns whether this machine has the address `host:port`; `None` if the name is unknown.
fn is_own_address(address: &str) -> Option<bool> {
    let mut addresses = address.to_socket_addrs().ok()?;
    // The system binds a socket only to an address of this machine.
    Some(addresses.any(|at| TcpListener::bind((at.ip(), 0)).is_ok()))
}

/// Returns the key under which `up` remembers that the node's data directory is in use.
pub fn in_use_key(entry: &NodeEntry) -> String {
    format!("made-{}", entry.id)
}

/// Why a daemon did not answer a request.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum AdminCallError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("no answer: {0}")]
    Frame(#[from] tatami_wire::frame::FrameError),
    #[error("refused: {0}")]
    Errno(#[from] tatami_wire::Errno),
}

/// Returns a new client id. A daemon binds an id to one user for as long as it remembers the id, so
/// a random one avoids clashes.
///
/// # Errors
/// The system has no random numbers.
pub fn random_client() -> CommandResult<ClientId> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).context(|| "no random numbers".to_owned())?;
    Ok(ClientId(id))
}

impl AdminCallError {
    /// Whether the daemon has another key than we.
    pub fn is_wrong_key(&self) -> bool {
        use tatami_wire::handshake::HandshakeError;
        matches!(
            self,
            AdminCallError::Connect(ConnectError::Handshake { source: HandshakeError::Key, .. })
        )
    }

    /// Whether the daemon said nothing for as long as we wait.
    pub fn is_timeout(&self) -> bool {
        use std::io::ErrorKind::{TimedOut, WouldBlock};
        use tatami_wire::frame::FrameError;
        match self {
            AdminCallError::Connect(e) => e.is_timeout(),
            AdminCallError::Frame(FrameError::Io(e)) => matches!(e.kind(), WouldBlock | TimedOut),
            AdminCallError::Frame(_) | AdminCallError::Errno(_) => false,
        }
    }
}
