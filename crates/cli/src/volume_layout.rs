//! The files of a new volume: its map of nodes, its key and its configuration.

use crate::certificates;
use crate::error::{CommandFailure, CommandResult, FailureContext};
use crate::keys::{KEYS, name};
use crate::mountinfo::{self, FS_TYPE};
use crate::ports;
use crate::replace_file::replace_file;
use crate::volume_dir::VolumeDir;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use tatami_cluster::trusted::{TrustError, TrustedDir};
use tatami_cluster::{KeyFile, NodeEntry, SOCKET_PATH_MAX, VolumeFile};
use tatami_hosts::network::{join_address, strip_brackets};
use tatami_wire::{ExecutorId, NodeId, SHARDS_MAX, ShardId, ShardMap, VolumeId};

/// Makes the directory of a volume, unless it exists.
///
/// # Errors
/// The directory cannot be made, or lies in a mount of Tatami: the daemons would wait for files
/// that only daemons can give them.
pub fn make_dir(dir: &Path) -> CommandResult {
    if let Some(mount) = mountinfo::mount_above(dir).filter(|m| m.fs_type == FS_TYPE) {
        let what = format!("a volume cannot keep its data in {}", dir.display());
        let cause = format!("it lies in {}, a mount of Tatami", mount.path.display());
        return Err(CommandFailure::usage(what)
            .because(cause)
            .try_this("name a directory on a local disk: --dir DIR"));
    }
    let mode = rustix::fs::Mode::from_raw_mode(0o755);
    match TrustedDir::open_or_create(dir, mode) {
        Ok(_) => Ok(()),
        Err(TrustError::Io { source, .. }) => Err(CommandFailure::new(format!(
            "cannot make the volume's directory {}",
            dir.display()
        ))
        .because(source)
        .try_this("name another one: --dir DIR")),
        Err(untrusted) => Err(untrusted.into()),
    }
}

/// Creates the files of a new volume with `count` nodes on this machine. `volume.toml` comes last:
/// without it there is no volume yet.
///
/// # Errors
/// Those of the file system, and a configuration that makes no volume.
pub fn create_volume(place: &VolumeDir, count: u16) -> CommandResult<VolumeFile> {
    let host = place.config.text_value(name::NODE_LISTEN);
    if strip_brackets(&host)
        .parse::<std::net::IpAddr>()
        .is_ok_and(|address| address.is_unspecified())
    {
        return Err(CommandFailure::usage(format!("node.listen: {host} means every address"))
            .because("other nodes connect to the address in the volume file")
            .try_this("name the address, or the host name, by which others reach this machine"));
    }
    check_socket_length(place, count)?;
    let ports = ports::find_free_ports(&host, count)?;
    let entry = |(id, port): (u16, u16)| new_entry(place, id, format!("node{id}"), (&host, port));
    let volume = plan_volume(place, (0..count).zip(ports).map(entry).collect())?;
    write_config(place)?;
    make_key(place)?;
    certificates::make_for_volume(place, &volume)?;
    place.record_nodes_here(&volume, 0..count)?;
    volume.save(&place.volume_file()).map_err(|e| CommandFailure::new(e.to_string()))?;
    Ok(volume)
}

/// Returns a new volume with these nodes, and with the settings of the configuration. Writes
/// nothing.
///
/// # Errors
/// The configuration makes no volume.
pub fn plan_volume(place: &VolumeDir, nodes: Vec<NodeEntry>) -> CommandResult<VolumeFile> {
    // The range of the key excludes other values.
    let executors = place.config.int_value(name::VOLUME_EXECUTORS).try_into().unwrap_or(1);
    let count = u16::try_from(nodes.len()).unwrap_or(u16::MAX);
    let shards = assign_shards(&place.config.text_value(name::VOLUME_SHARDS), count, executors)?;
    let mut id = [0; 16];
    getrandom::fill(&mut id).context(|| "no random numbers for the volume's id".to_owned())?;
    Ok(VolumeFile {
        volume: VolumeId(id),
        name: place.config.text_value(name::VOLUME_NAME),
        // The range of the key excludes other values.
        durability: place.config.text_value(name::VOLUME_DURABILITY).parse().unwrap_or_default(),
        encryption: place.config.text_value(name::VOLUME_ENCRYPTION).parse().unwrap_or_default(),
        epoch: 1,
        moves: vec![0; shards.len()],
        shards,
        nodes,
        removed: BTreeSet::new(),
    })
}

/// Returns the entry of a new node, whose data directory is in the directory of the volume.
pub fn new_entry(place: &VolumeDir, id: u16, name: String, (host, port): (&str, u16)) -> NodeEntry {
    let dir = place.dir.join(format!("node{id}"));
    let address = join_address(host, port);
    NodeEntry { id, name, address, socket: dir.join("socket"), dir, leaving: false, moved: 0 }
}

/// Checks that the sockets of the nodes below `count` have paths that the system allows.
///
/// # Errors
/// The path of the volume's directory is too long.
pub fn check_socket_length(place: &VolumeDir, count: u16) -> CommandResult {
    let longest = place.dir.join(format!("node{}", count.saturating_sub(1))).join("socket");
    if longest.as_os_str().len() <= SOCKET_PATH_MAX {
        return Ok(());
    }
    Err(CommandFailure::usage(format!(
        "the path of the directory {} is too long",
        place.dir.display()
    ))
    .because(format!(
        "the path of a UNIX socket has at most {SOCKET_PATH_MAX} bytes, and {} has {}",
        longest.display(),
        longest.as_os_str().len()
    ))
    .try_this("choose a shorter one: --dir DIR"))
}

/// Writes the configuration file of a new volume, unless there is one.
///
/// # Errors
/// Those of the file system.
pub fn write_config(place: &VolumeDir) -> CommandResult {
    let config = place.dir.join("tatami.toml");
    if config.exists() { Ok(()) } else { replace_file(&config, &document_config(place)) }
}

/// Returns the text of the configuration file for other machines: of the file that is in force
/// here, or else one that sets nothing.
///
/// # Errors
/// The file cannot be read.
pub fn config_text(place: &VolumeDir) -> CommandResult<String> {
    match &place.config.file {
        Some(file) => std::fs::read_to_string(file).context(|| file.display().to_string()),
        None => Ok(document_config(place)),
    }
}

/// Returns the text of the volume file.
///
/// # Errors
/// The volume cannot be loaded again, or there is no place for a temporary file.
pub fn format_volume(place: &VolumeDir, volume: &VolumeFile) -> CommandResult<String> {
    let file = tempfile::NamedTempFile::new_in(&place.dir);
    let path = file.context(|| place.dir.display().to_string())?.into_temp_path();
    volume.save(&path).map_err(|e| CommandFailure::new(e.to_string()))?;
    std::fs::read_to_string(&path).context(|| path.display().to_string())
}

/// Parses the text of a volume file of another machine, with the same directory.
///
/// # Errors
/// It is no volume, or there is no place for a temporary file.
pub fn parse_volume(place: &VolumeDir, text: &str) -> CommandResult<VolumeFile> {
    let file = tempfile::NamedTempFile::new_in(&place.dir);
    let path = file.context(|| place.dir.display().to_string())?.into_temp_path();
    std::fs::write(&path, text).context(|| path.display().to_string())?;
    VolumeFile::load(&path).map_err(|e| CommandFailure::new(e.to_string()))
}

/// Makes the key of a new volume, unless there is one.
///
/// # Errors
/// Those of the file system; a key that is damaged.
pub fn make_key(place: &VolumeDir) -> CommandResult {
    let key = place.key_file();
    let key = if key.exists() { KeyFile::load(&key) } else { KeyFile::create(&key) };
    key.map(drop).map_err(|e| CommandFailure::new(e.to_string()))
}

/// Returns the executor of each shard. `wanted` names the nodes that keep names: `all`, or numbers
/// and ranges below `count`. Each gets `executors` executors.
fn assign_shards(wanted: &str, count: u16, executors: u8) -> CommandResult<Vec<ExecutorId>> {
    let mut nodes = BTreeSet::new();
    let wrong = |what: String| {
        CommandFailure::usage(format!("volume.shards: {what}"))
            .try_this("use all, or numbers of nodes, for example 0,4-7")
    };
    for part in wanted.split(',') {
        let (first, last) = match part.trim() {
            "all" => (0, count - 1),
            part => {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
                    (Ok(first), Ok(last)) if first <= last => (first, last),
                    _ => return Err(wrong(format!("{part:?} is no node and no range of nodes"))),
                }
            }
        };
        if last >= count {
            return Err(wrong(format!("there is no node {last} of {count}")));
        }
        nodes.extend((first..=last).map(NodeId));
    }
    let keepers = nodes.len();
    let of = |node| (0..executors).map(move |index| ExecutorId { node, index });
    let all: Vec<_> = nodes.into_iter().flat_map(of).collect();
    if all.len() > SHARDS_MAX {
        return Err(CommandFailure::usage(format!(
            "{keepers} nodes with {executors} executors each are more than the {SHARDS_MAX} \
            shards of a volume"
        ))
        .try_this(format!("at most --executors {}", SHARDS_MAX / keepers)));
    }
    let map = ShardMap::with_even_blocks(1, SHARDS_MAX, &all);
    let map = map.ok_or_else(|| wrong("no node is left".to_owned()))?;
    let owners = (0..SHARDS_MAX).map(|shard| map.owner(ShardId(shard as u16)));
    Ok(owners.flatten().collect())
}

/// Returns a configuration file that explains every key and sets none.
fn document_config(place: &VolumeDir) -> String {
    let mut text = String::from(
        "# Configuration of this Tatami volume. Lines that begin with # show defaults.\n\
         # Each key can also be given as a flag (--section-key=value) or in the\n\
         # environment (TATAMI_SECTION_KEY); `tatami config` shows the values in force.\n",
    );
    let mut section = "";
    for key in &KEYS {
        let (own, short) = key.name.split_once('.').unwrap_or(("", key.name));
        if own != section {
            let _ = writeln!(text, "\n[{own}]"); // writing to a String cannot fail
            section = own;
        }
        text.push('\n');
        for line in wrap_words(key.doc, 76) {
            let _ = writeln!(text, "# {line}");
        }
        let unit = if key.unit.is_empty() { String::new() } else { format!(" {}", key.unit) };
        let _ = writeln!(text, "# {}{unit}; {}", key.range, key.env);
        let value = key.default_value(&place.dir);
        let quoted = match value {
            crate::keys::KeyValue::Text(s) => toml::Value::String(s).to_string(),
            other => other.to_string(),
        };
        let _ = writeln!(text, "#{short} = {quoted}");
    }
    text
}

/// Breaks text into lines of at most `width` characters.
pub fn wrap_words(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("it starts with one");
        if line.is_empty() {
            line.push_str(word);
        } else if line.len() + 1 + word.len() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume_dir::VolumeArgs;

    #[test]
    fn the_file_that_is_laid_out_is_valid_and_sets_nothing() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let at = VolumeArgs { dir: Some(dir.path().to_owned()), ..VolumeArgs::default() };
        let text = document_config(&at.open().expect("an empty place"));
        for key in &KEYS {
            assert!(text.contains(key.env), "{}", key.name);
        }
        // With every default uncommented, the file must still be valid.
        let set: String = text
            .lines()
            .map(|l| {
                l.strip_prefix('#').filter(|l| !l.starts_with(' ')).unwrap_or(l).to_owned() + "\n"
            })
            .collect();
        for text in [text, set] {
            std::fs::write(dir.path().join("tatami.toml"), &text).expect("written");
            at.open().unwrap_or_else(|e| panic!("{e}\n{text}"));
        }
    }

    #[test]
    fn shards_are_dealt_out_evenly() {
        let counts = |wanted: &str, count| {
            let shards = assign_shards(wanted, count, 1).expect("good");
            assert_eq!(shards.len(), SHARDS_MAX);
            let first = |node| ExecutorId::first_of_node(NodeId(node));
            let of = |node| shards.iter().filter(|owner| **owner == first(node)).count();
            (0..count).map(of).collect::<Vec<_>>()
        };
        assert_eq!(counts("all", 1), [4096]);
        assert_eq!(counts("all", 3), [1366, 1365, 1365]);
        assert_eq!(counts("0", 3), [4096, 0, 0]);
        assert_eq!(counts("1-2, 3", 4), [0, 1366, 1365, 1365]);
        for wrong in ["4", "2-1", "x", "0,", "-"] {
            assert!(assign_shards(wrong, 4, 1).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shards_are_dealt_out_to_all_executors_of_a_node_before_the_next() {
        let all = assign_shards("0,2", 3, 3).expect("good");
        let blocks = tatami_wire::shards::first_shards(&all);
        let of = |(shard, owner): &(ShardId, ExecutorId)| (shard.0, owner.node.0, owner.index);
        assert_eq!(
            blocks.iter().map(of).collect::<Vec<_>>(),
            [(0, 0, 0), (683, 0, 1), (1366, 0, 2), (2048, 2, 0), (2731, 2, 1), (3414, 2, 2)]
        );
        assert!(assign_shards("all", 64, 64).is_ok(), "one each");
        let said = assign_shards("all", 65, 64).expect_err("too many").report();
        assert!(said.contains("4096 shards") && said.contains("--executors 63"), "{said}");
    }

    #[test]
    fn words_are_wrapped() {
        assert_eq!(wrap_words("a bb ccc", 4), ["a bb", "ccc"]);
    }
}
