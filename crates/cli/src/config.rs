//! The effective configuration: the value of each key and the origin of that value.
//!
//! Precedence: a flag, an environment variable, the file, a setting of an earlier `tatami up`, the
//! file of the machine, the default.

use crate::error::{CommandFailure, CommandResult, FailureContext};
use crate::keys::{self, ConfigKey, KEYS, KeyValue};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::de::{DeTable, DeValue};

/// The heading of the configuration's flags, by which completion knows them.
pub const FLAGS_HEADING: &str = "Configuration";
/// Longest configuration file, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueOrigin {
    /// No origin: the default applies.
    Default,
    /// A flag of an earlier `tatami up`.
    Remembered,
    /// This line of this file.
    File(PathBuf, usize),
    /// This environment variable.
    Variable(&'static str),
    /// This flag.
    Flag(&'static str),
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueOrigin::Default => f.write_str("default"),
            ValueOrigin::Remembered => f.write_str("last up"),
            ValueOrigin::File(path, line) => write!(f, "{}:{line}", path.display()),
            ValueOrigin::Variable(name) => f.write_str(name),
            ValueOrigin::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// Configuration keys given as flags.
#[derive(Clone, Debug, Default)]
pub struct ConfigOverrides(pub Vec<(&'static ConfigKey, String)>);

impl clap::FromArgMatches for ConfigOverrides {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let given = KEYS.iter().filter_map(|key| {
            let value: &String = matches.try_get_one(key.flag).ok().flatten()?;
            Some((key, value.clone()))
        });
        Ok(ConfigOverrides(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for ConfigOverrides {
    fn augment_args(command: clap::Command) -> clap::Command {
        KEYS.iter().fold(command, |command, key| {
            // So many flags on every command would hide those that matter:
            // `tatami config` lists them.
            command.arg(
                clap::Arg::new(key.flag)
                    .long(key.flag)
                    .value_name("VALUE")
                    .hide(true)
                    .help_heading(FLAGS_HEADING)
                    .help(key.doc),
            )
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl ConfigOverrides {
    /// Returns the overrides as arguments, for a daemon that this process starts.
    pub fn to_arguments(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(key, value)| format!("--{}={value}", key.flag))
    }
}

/// All keys with their values.
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// In the order of [`KEYS`].
    values: Vec<(KeyValue, ValueOrigin)>,
    /// The file that was read, if there is one.
    pub file: Option<PathBuf>,
}

/// The sources of values.
pub struct ConfigLayers<'a> {
    /// The volume's directory: where relative paths start.
    pub dir: &'a Path,
    /// The file with the administrator's settings for all volumes of this machine, if it exists.
    pub machine_file: &'a Path,
    /// The file, and whether the user named it. A named file must exist.
    pub file: (&'a Path, bool),
    /// Settings of earlier calls of `tatami up`.
    pub remembered: &'a BTreeMap<String, String>,
    /// Looks up an environment variable.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// From the command line.
    pub flags: &'a ConfigOverrides,
}

impl VolumeConfig {
    /// Combines the layers; a later layer overrides an earlier one.
    ///
    /// # Errors
    /// Unknown keys, values out of range, a file that cannot be read. Errors in the file have the
    /// line
    /// and the names that were possibly meant.
    pub fn from_layers(layers: &ConfigLayers) -> CommandResult<VolumeConfig> {
        let values = KEYS.iter().map(|key| (key.default_value(layers.dir), ValueOrigin::Default));
        let mut config = VolumeConfig { values: values.collect(), file: None };
        let mut set = |key: &'static ConfigKey, value: KeyValue, origin: ValueOrigin| {
            let at = KEYS.iter().position(|k| std::ptr::eq(k, key)).expect("keys are of the table");
            config.values[at] = (key.resolve_path(value, layers.dir), origin);
        };
        let text = read_file(layers.machine_file, false)?;
        for (key, value, line) in
            parse_file(layers.machine_file, text.as_deref().unwrap_or_default())?
        {
            set(key, value, ValueOrigin::File(layers.machine_file.to_owned(), line));
        }
        for (name, text) in layers.remembered {
            // A value that another version wrote may not be valid here. Then the default applies.
            if let Some(key) = keys::find_key(name)
                && let Ok(value) = key.parse(text)
            {
                set(key, value, ValueOrigin::Remembered);
            }
        }
        let (path, named) = layers.file;
        let text = read_file(path, named)?;
        for (key, value, line) in parse_file(path, text.as_deref().unwrap_or_default())? {
            set(key, value, ValueOrigin::File(path.to_owned(), line));
        }
        for key in &KEYS {
            if let Some(text) = (layers.variable)(key.env) {
                let value = key.parse(&text).map_err(|why| {
                    CommandFailure::usage(format!("environment variable {}: {why}", key.env))
                        .try_this(format!("unset {}", key.env))
                })?;
                set(key, value, ValueOrigin::Variable(key.env));
            }
        }
        for (key, text) in &layers.flags.0 {
            let value = key
                .parse(text)
                .map_err(|why| CommandFailure::usage(format!("flag --{}: {why}", key.flag)))?;
            set(key, value, ValueOrigin::Flag(key.flag));
        }
        config.file = text.is_some().then(|| path.to_owned());
        Ok(config)
    }

    /// Returns key, value and origin of every key.
    pub fn iter_keys(&self) -> impl Iterator<Item = (&'static ConfigKey, &KeyValue, &ValueOrigin)> {
        KEYS.iter().zip(&self.values).map(|(key, (value, origin))| (key, value, origin))
    }

    /// Returns value and origin of one key, by a name of [`keys::name`].
    pub fn get(&self, name: &str) -> (&KeyValue, &ValueOrigin) {
        let found = self.iter_keys().find(|(key, ..)| key.name == name);
        found.map(|(_, value, origin)| (value, origin)).expect("names are those of the table")
    }

    /// Returns the value of a key of type bool.
    pub fn bool_value(&self, name: &str) -> bool {
        matches!(self.get(name).0, KeyValue::Bool(true))
    }

    /// Returns the value of a key of type number.
    pub fn int_value(&self, name: &str) -> u64 {
        match self.get(name).0 {
            KeyValue::Int(n) => *n,
            other => unreachable!("{name} is {other:?}, not a number"),
        }
    }

    /// Returns the value of a key of type text or path.
    pub fn text_value(&self, name: &str) -> String {
        self.get(name).0.to_string()
    }

    /// Returns the value of a key that ends in `_sec` or `_ms`.
    pub fn duration_value(&self, name: &str) -> Duration {
        let n = self.int_value(name);
        if name.ends_with("_ms") { Duration::from_millis(n) } else { Duration::from_secs(n) }
    }
}

fn read_file(path: &Path, named: bool) -> CommandResult<Option<String>> {
    use std::io::Read;
    let what = || format!("cannot read the configuration file {}", path.display());
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(e) if !named && e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        // Without permission to read the directory of another user's volume, the defaults apply.
        Err(e) if !named && e.kind() == std::io::ErrorKind::PermissionDenied => return Ok(None),
        Err(e) => return Err(CommandFailure::usage(what()).because(e)),
    };
    let mut text = String::new();
    file.take(FILE_MAX + 1).read_to_string(&mut text).context(what)?;
    if text.len() as u64 > FILE_MAX {
        return Err(
            CommandFailure::usage(what()).because(format!("it is longer than {FILE_MAX} bytes"))
        );
    }
    Ok(Some(text))
}

/// Reads the file key by key. Serde's `deny_unknown_fields` would refuse the same files. This walk
/// over the table also finds the line and the similar names.
fn parse_file(
    path: &Path,
    text: &str,
) -> CommandResult<Vec<(&'static ConfigKey, KeyValue, usize)>> {
    // Counts bytes, not characters: a position may lie within a character.
    let line_of = |at: usize| text.bytes().take(at).filter(|b| *b == b'\n').count() + 1;
    let wrong = |at: usize, what: String| {
        CommandFailure::usage(format!("{}, line {}: {what}", path.display(), line_of(at)))
    };
    let document = DeTable::parse(text)
        .map_err(|e| wrong(e.span().map_or(0, |s| s.start), e.message().to_owned()))?;
    let mut found = Vec::new();
    let mut todo = vec![(String::new(), document.get_ref())];
    while let Some((prefix, table)) = todo.pop() {
        for (name, value) in table {
            let at = name.span().start;
            let full = format!("{prefix}{}", name.get_ref());
            let section = format!("{full}.");
            let is_section = KEYS.iter().any(|key| key.name.starts_with(&section));
            match value.get_ref() {
                DeValue::Table(inner) if is_section => todo.push((section, inner)),
                _ if is_section => {
                    let what = format!("`{full}` is a section: write `[{full}]`");
                    return Err(wrong(at, what));
                }
                other => {
                    let key = keys::find_key(&full).ok_or_else(|| {
                        suggest_key(wrong(at, format!("unknown key `{full}`")), &full)
                    })?;
                    let value = from_toml(other).and_then(|value| key.check_value(value));
                    let value = value.map_err(|why| wrong(at, format!("`{full}`: {why}")))?;
                    found.push((key, value, line_of(at)));
                }
            }
        }
    }
    Ok(found)
}

fn from_toml(value: &DeValue) -> Result<KeyValue, String> {
    match value {
        DeValue::Boolean(b) => Ok(KeyValue::Bool(*b)),
        DeValue::String(s) => Ok(KeyValue::Text(s.to_string())),
        DeValue::Integer(n) => u64::from_str_radix(n.as_str(), n.radix())
            .map(KeyValue::Int)
            .map_err(|_| format!("{} is out of range", n.as_str())),
        other => Err(format!("a value can't be of type {}", other.type_str())),
    }
}

fn suggest_key(failure: CommandFailure, name: &str) -> CommandFailure {
    let mut near = keys::similar_names(name).into_iter();
    let meant = match near.next() {
        Some(first) => {
            near.fold(format!("did you mean `{first}`"), |text, other| {
                format!("{text} or `{other}`")
            }) + "? "
        }
        None => String::new(),
    };
    failure.try_this(format!("{meant}`tatami config --defaults` lists all keys"))
}

/// Refuses environment variables that look like a configuration key but name none. Without this
/// check, a typing error would have no effect and no message.
///
/// # Errors
/// A usage error with the similar names.
pub fn check_variables(names: impl Iterator<Item = String>) -> CommandResult {
    for variable in names {
        let ours = KEYS.iter().filter_map(|key| key.name.split_once('.')).any(|(section, _)| {
            variable
                .strip_prefix("TATAMI_")
                .and_then(|rest| rest.strip_prefix(&section.to_uppercase()))
                .is_some_and(|rest| rest.starts_with('_'))
        });
        if ours && !KEYS.iter().any(|key| key.env == variable) {
            let name = variable["TATAMI_".len()..].to_lowercase().replacen('_', ".", 1);
            let what = format!("unknown environment variable {variable} (key `{name}`)");
            return Err(suggest_key(CommandFailure::usage(what), &name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Given {
        machine_file: String,
        file: String,
        remembered: BTreeMap<String, String>,
        variables: BTreeMap<String, String>,
        flags: ConfigOverrides,
    }

    fn load(given: &Given) -> CommandResult<VolumeConfig> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("tatami.toml");
        std::fs::write(&path, &given.file).expect("written");
        let machine_file = dir.path().join("machine");
        std::fs::write(&machine_file, &given.machine_file).expect("written");
        VolumeConfig::from_layers(&ConfigLayers {
            dir: Path::new("/volume"),
            machine_file: &machine_file,
            file: (&path, true),
            remembered: &given.remembered,
            variable: &|name| given.variables.get(name).cloned(),
            flags: &given.flags,
        })
    }

    fn nothing() -> Given {
        Given {
            machine_file: String::new(),
            file: String::new(),
            remembered: BTreeMap::new(),
            variables: BTreeMap::new(),
            flags: ConfigOverrides::default(),
        }
    }

    /// Returns some value of the key; `n` chooses, and the next `n` another one.
    fn sample(key: &ConfigKey, n: u64) -> (String, KeyValue) {
        match key.range {
            keys::KeyRange::Bool => {
                let flip = key.default_value(Path::new("/")) == KeyValue::Bool(n.is_multiple_of(2));
                (flip.to_string(), KeyValue::Bool(flip))
            }
            keys::KeyRange::Int(min, max) => {
                let value = min + n % (max - min).saturating_add(1);
                (value.to_string(), KeyValue::Int(value))
            }
            keys::KeyRange::OneOf(words) => {
                let word = words[n as usize % words.len()];
                (word.to_owned(), KeyValue::Text(word.to_owned()))
            }
            _ => (format!("/v{n}"), KeyValue::Text(format!("/v{n}"))),
        }
    }

    fn toml_line(key: &ConfigKey, text: &str) -> String {
        let quoted = match key.range {
            keys::KeyRange::Bool | keys::KeyRange::Int(..) => text.to_owned(),
            _ => format!("\"{text}\""),
        };
        format!("{} = {quoted}\n", key.name)
    }

    /// Every key can be set by file, variable and flag, and a later layer overrides an earlier one.
    #[test]
    fn each_layer_overrides_the_one_below_for_every_key() {
        for key in &KEYS {
            let mut given = nothing();
            let check = |given: &Given, n: u64, origin: &str| {
                let config = load(given).unwrap_or_else(|e| panic!("{}: {e}", key.name));
                let (value, found) = config.get(key.name);
                assert_eq!(*value, sample(key, n).1, "{}", key.name);
                assert!(found.to_string().contains(origin), "{}: {found}", key.name);
            };
            given.machine_file = toml_line(key, &sample(key, 0).0);
            check(&given, 0, "machine:1");
            given.remembered.insert(key.name.into(), sample(key, 1).0);
            check(&given, 1, "last up");
            given.file = toml_line(key, &sample(key, 2).0);
            check(&given, 2, "tatami.toml:1");
            given.variables.insert(key.env.into(), sample(key, 3).0);
            check(&given, 3, key.env);
            given.flags.0.push((key, sample(key, 4).0));
            check(&given, 4, &format!("--{}", key.flag));
        }
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_what_was_meant() {
        let mut given = nothing();
        given.file = "# comment\n[mount]\npassthruogh = true\n".into();
        let error = load(&given).expect_err("unknown");
        assert_eq!(error.exit, crate::error::ExitStatus::Usage);
        let text = error.report();
        assert!(text.contains("tatami.toml, line 3: unknown key `mount.passthruogh`"), "{text}");
        assert!(text.contains("did you mean `mount.passthrough`?"), "{text}");
        given.file = "[mouth]\npath = \"/x\"\n".into();
        assert!(
            load(&given).expect_err("unknown").report().contains("line 1: unknown key `mouth`")
        );
    }

    #[test]
    fn wrong_values_are_named_with_what_is_right() {
        for (file, part) in [
            ("[node]\nlease_sec = 0\n", "line 2: `node.lease_sec`: 0 is not 1 to 86400 seconds"),
            ("[node]\nlease_sec = -4\n", "-4 is out of range"),
            ("mount.passthrough = \"on\"\n", "on is not true or false"),
            ("mount.path = [1]\n", "type array"),
            ("mount = 3\n", "`mount` is a section: write `[mount]`"),
            ("log = \n", "line 1"),
        ] {
            let text = load(&Given { file: file.into(), ..nothing() }).expect_err(file).report();
            assert!(text.contains(part), "{file}: {text}");
        }
    }

    #[test]
    fn mistyped_variables_are_found_and_others_let_be() {
        let names = |n: &str| check_variables([n.to_owned()].into_iter());
        assert!(names("TATAMI_MOUNT_PATH").is_ok());
        assert!(names("TATAMI_TEST_DIR").is_ok() && names("PATH").is_ok());
        let text = names("TATAMI_MOUNT_PASSTHROUG").expect_err("unknown").report();
        assert!(text.contains("did you mean `mount.passthrough`"), "{text}");
    }

    proptest::proptest! {
        /// Reading any file ends, with values in range or an error.
        #[test]
        fn any_text_is_read_or_refused(text in proptest::prop_oneof![
            ".{0,200}",
            "(\\[(mount|node|x)\\]\n)?((path|lease_sec|passthrough|log|é) ?= \
            ?(true|-?[0-9]{1,20}|0x[0-9a-f]{1,17}|\"[^\"]{0,9}\"|\\[\\]|\\{a=1\\}|1.5)\n){0,4}",
        ]) {
            if let Ok(found) = parse_file(Path::new("t.toml"), &text) {
                for (key, value, line) in found {
                    proptest::prop_assert!(key.check_value(value).is_ok());
                    proptest::prop_assert!(line >= 1 && line <= text.lines().count());
                }
            }
        }
    }

    #[test]
    fn relative_paths_start_at_the_volume() {
        let mut given = nothing();
        given.file = "mount.path = \"here\"\n".into();
        assert_eq!(load(&given).expect("good").text_value(keys::name::MOUNT_PATH), "/volume/here");
    }
}
