//! Completion of a command line that is being typed. The scripts of the shells start
//! `tatami complete`, which finds what may stand at the cursor.
//!
//! The scripts of clap_complete complete files of this machine alone. Its engine for candidates at
//! run time is marked unstable, splits no words at colons as bash does, and cannot tell a completer
//! what stands in the line before, such as `--dir`.

mod cursor;
mod shell_words;
mod volume_names;

use crate::error::CommandResult;
use crate::keys;
use crate::volume_path::AnyPath;
use cursor::{CursorPoint, WordKind};
use shell_words::ShellWord;
use std::any::TypeId;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// `tatami complete`: for the completion scripts.
#[derive(Debug, clap::Args)]
pub struct CompleteArgs {
    /// The shell that asks
    #[arg(long)]
    shell: CompletingShell,
    /// Characters at which the shell splits words
    #[arg(long, default_value = "")]
    breaks: String,
    /// The words of the command line, as typed, up to the cursor
    #[arg(last = true)]
    words: Vec<OsString>,
}

/// The shells that have a completion script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CompletingShell {
    /// Words as typed; candidates end in a zero byte
    Bash,
    /// Words as typed; candidates end in a zero byte
    Zsh,
    /// Words without quotes; lines with a description
    Fish,
}

impl CompletingShell {
    /// Returns the script.
    pub fn script(self) -> &'static str {
        match self {
            CompletingShell::Bash => include_str!("tatami.bash"),
            CompletingShell::Zsh => include_str!("tatami.zsh"),
            CompletingShell::Fish => include_str!("tatami.fish"),
        }
    }
}

/// What the shell does with the candidates, or in place of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CandidateKind {
    /// They are words.
    Words,
    /// They are paths: a directory ends in a slash, and the word goes on there.
    Paths,
    /// There are none: the shell completes files of this machine.
    LocalFiles,
    /// There are none: the shell completes directories of this machine.
    LocalDirs,
}

/// One way to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CompletionCandidate {
    /// The whole word.
    text: Vec<u8>,
    /// What it means; empty if that is plain.
    help: String,
}

/// The candidates for the word at the cursor.
#[derive(Debug, PartialEq, Eq)]
struct CandidateList {
    kind: CandidateKind,
    all: Vec<CompletionCandidate>,
}

impl CandidateList {
    fn of_kind(kind: CandidateKind) -> CandidateList {
        CandidateList { kind, all: Vec::new() }
    }

    fn words(all: Vec<CompletionCandidate>) -> CandidateList {
        CandidateList { kind: CandidateKind::Words, all }
    }
}

/// Prints the candidates for the last of the words. Prints no message: the user types.
///
/// # Errors
/// Those of the output.
pub fn print_candidates(args: &CompleteArgs, command: clap::Command) -> CommandResult {
    let plain = |word: &OsString| ShellWord::plain(word.as_bytes());
    let typed = |word: &OsString| ShellWord::from_typed(word.as_bytes(), &args.breaks);
    let words: Vec<ShellWord> = match args.shell {
        CompletingShell::Fish => args.words.iter().map(plain).collect(),
        CompletingShell::Bash | CompletingShell::Zsh => args.words.iter().map(typed).collect(),
    };
    let Some((last, before)) = words.split_last() else { return Ok(()) };
    let before: Vec<&OsStr> = before.iter().map(|word| OsStr::from_bytes(&word.text)).collect();
    let list = find_candidates(command, &before, &last.text);
    let mut out = io::stdout().lock();
    out.write_all(&render_candidates(args.shell, &list, last.kept))?;
    out.flush()?;
    Ok(())
}

/// Renders candidates for a shell; the first `kept` bytes of each one are in the line already.
fn render_candidates(shell: CompletingShell, list: &CandidateList, kept: usize) -> Vec<u8> {
    let end = if shell == CompletingShell::Fish { b'\n' } else { 0 };
    let kind: &[u8] = match list.kind {
        CandidateKind::Words => b"words",
        CandidateKind::Paths => b"paths",
        CandidateKind::LocalFiles => b"files",
        CandidateKind::LocalDirs => b"dirs",
    };
    let mut bytes = [kind, &[end]].concat();
    for candidate in &list.all {
        if shell == CompletingShell::Fish && candidate.text.contains(&b'\n') {
            continue;
        }
        bytes.extend_from_slice(candidate.text.get(kept..).unwrap_or_default());
        if shell == CompletingShell::Fish && !candidate.help.is_empty() {
            bytes.push(b'\t');
            bytes.extend_from_slice(candidate.help.as_bytes());
        }
        bytes.push(end);
    }
    bytes
}

/// Returns what may stand in the place of the word `typed`, behind the words `before`, the first of
/// which is the program.
fn find_candidates(mut command: clap::Command, before: &[&OsStr], typed: &[u8]) -> CandidateList {
    command.build();
    let point = CursorPoint::find(&command, before.get(1..).unwrap_or_default());
    let text = String::from_utf8_lossy(typed);
    match point.word_kind(&text) {
        WordKind::Foreign => CandidateList::of_kind(CandidateKind::LocalFiles),
        WordKind::Option => CandidateList::words(matching_options(point.command, &text)),
        WordKind::OptionValue { arg, start } => complete_value(&point, arg, typed, start),
        WordKind::Subcommand => CandidateList::words(matching_commands(point.command, &text)),
        WordKind::Positional(arg) => complete_value(&point, arg, typed, 0),
        WordKind::Nothing if typed.is_empty() => {
            CandidateList::words(matching_options(point.command, "--"))
        }
        WordKind::Nothing => CandidateList::words(Vec::new()),
    }
}

/// Returns the options that begin with `typed`: those of the command itself, and if there are none,
/// the keys of the configuration. The keys are many, and the same for all commands.
fn matching_options(command: &clap::Command, typed: &str) -> Vec<CompletionCandidate> {
    let find = |keys: bool| -> Vec<CompletionCandidate> {
        let args = command.get_arguments().filter(|arg| match keys {
            true => arg.get_help_heading() == Some(crate::config::FLAGS_HEADING),
            false => !arg.is_hide_set(),
        });
        let names = args.flat_map(|arg| {
            let long = arg.get_long().map(|long| format!("--{long}"));
            let short = arg.get_short().map(|short| format!("-{short}"));
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            long.into_iter().chain(short).map(move |name| (name, help.clone()))
        });
        let matching = names.filter(|(name, _)| name.starts_with(typed));
        matching.map(|(name, help)| make_candidate(name.into_bytes(), &help)).collect()
    };
    let own = find(false);
    if own.is_empty() { find(true) } else { own }
}

fn matching_commands(command: &clap::Command, typed: &str) -> Vec<CompletionCandidate> {
    let shown = command.get_subcommands().filter(|below| !below.is_hide_set());
    let matching = shown.filter(|below| below.get_name().starts_with(typed));
    let about = |below: &clap::Command| below.get_about().map(ToString::to_string);
    matching
        .map(|below| make_candidate(below.get_name().into(), &about(below).unwrap_or_default()))
        .collect()
}

/// Returns the candidates for the value of an argument; the value begins at byte `start` of the
/// word.
fn complete_value(
    point: &CursorPoint<'_>,
    arg: &clap::Arg,
    typed: &[u8],
    start: usize,
) -> CandidateList {
    // Of values in a list, only the last one is open.
    let mut start = start;
    if let Some(delimiter) = arg.get_value_delimiter() {
        let last = typed[start..].iter().rposition(|byte| char::from(*byte) == delimiter);
        start = last.map_or(start, |at| start + at + 1);
    }
    let (head, value) = typed.split_at(start);
    let join = |text: &[u8]| [head, text].concat();
    let text = String::from_utf8_lossy(value);
    let choose = |all: Vec<(String, String)>| {
        let matching = all.into_iter().filter(|(name, _)| name.starts_with(&*text));
        let matching = matching.map(|(name, help)| make_candidate(join(name.as_bytes()), &help));
        CandidateList::words(matching.collect())
    };
    let is_type = |id: TypeId| arg.get_value_parser().type_id() == id;
    let value_name = arg.get_value_names().and_then(|names| names.first()).map(|n| n.as_str());
    let choices: Vec<_> = arg.get_possible_values();
    if !choices.is_empty() {
        let shown = choices.iter().filter(|choice| !choice.is_hide_set());
        let help = |choice: &clap::builder::PossibleValue| choice.get_help().map(|h| h.to_string());
        return choose(
            shown.map(|c| (c.get_name().to_owned(), help(c).unwrap_or_default())).collect(),
        );
    }
    if let Some(choices) = arg.get_long().and_then(keys::flag_choices) {
        return choose(choices.into_iter().map(|choice| (choice, String::new())).collect());
    }
    if value_name == Some("NODE") {
        let names = volume_names::node_names(&point.volume);
        return choose(names.into_iter().map(|name| (name, String::new())).collect());
    }
    if is_type(TypeId::of::<AnyPath>()) {
        let volume_only = arg.get_help().is_some_and(|help| {
            help.to_string().starts_with("Paths in the volume, with a colon in front")
        });
        return complete_path(point, value, volume_only, &join);
    }
    let is_dir = matches!(value_name, Some("DIR" | "NODEDIR"));
    match arg.get_value_hint() {
        clap::ValueHint::DirPath => CandidateList::of_kind(CandidateKind::LocalDirs),
        clap::ValueHint::FilePath => CandidateList::of_kind(CandidateKind::LocalFiles),
        _ if is_type(TypeId::of::<PathBuf>()) && is_dir => {
            CandidateList::of_kind(CandidateKind::LocalDirs)
        }
        _ if is_type(TypeId::of::<PathBuf>()) || is_type(TypeId::of::<OsString>()) => {
            CandidateList::of_kind(CandidateKind::LocalFiles)
        }
        _ => CandidateList::words(Vec::new()),
    }
}

/// Returns the candidates for a path in the volume or on this machine.
fn complete_path(
    point: &CursorPoint<'_>,
    value: &[u8],
    volume_only: bool,
    join: &dyn Fn(&[u8]) -> Vec<u8>,
) -> CandidateList {
    let parsed = AnyPath::parse(OsString::from_vec(value.to_vec()));
    if let Ok(AnyPath::Site(_)) | Err(_) = parsed {
        return CandidateList::words(Vec::new());
    }
    if let Ok(AnyPath::Local(_)) = parsed {
        return match (volume_only, value.is_empty()) {
            (false, _) => CandidateList::of_kind(CandidateKind::LocalFiles),
            // The word goes on behind the slash.
            (true, true) => CandidateList {
                kind: CandidateKind::Paths,
                all: vec![make_candidate(join(b":/"), "the root of the volume")],
            },
            (true, false) => CandidateList::words(Vec::new()),
        };
    }
    let found = volume_names::matching_paths(&point.volume, value);
    let all = found.iter().map(|path| make_candidate(join(path), "")).collect();
    CandidateList { kind: CandidateKind::Paths, all }
}

/// Returns a candidate with the first line of its help.
fn make_candidate(text: Vec<u8>, help: &str) -> CompletionCandidate {
    CompletionCandidate { text, help: help.lines().next().unwrap_or_default().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    /// Returns the candidates for the last word of a line, and their kind.
    fn complete(line: &str) -> (CandidateKind, Vec<String>) {
        let words: Vec<&OsStr> = line.split(' ').map(OsStr::new).collect();
        let (last, before) = words.split_last().expect("a word");
        let list = find_candidates(Cli::command(), before, last.as_bytes());
        let text = |one: CompletionCandidate| String::from_utf8(one.text).expect("UTF-8");
        (list.kind, list.all.into_iter().map(text).collect())
    }

    fn words_of(line: &str) -> Vec<String> {
        let (kind, words) = complete(line);
        assert_eq!(kind, CandidateKind::Words, "{line}");
        words
    }

    #[test]
    fn commands_and_their_own_options_come_first() {
        assert_eq!(words_of("tatami mk"), ["mkdir"]);
        assert!(!words_of("tatami ").contains(&"complete".to_owned()));
        assert_eq!(words_of("tatami node st"), ["start", "stop"]);
        let options = words_of("tatami ls --");
        assert!(options.contains(&"--recursive".to_owned()), "{options:?}");
        assert!(!options.iter().any(|option| option.starts_with("--mount-")), "{options:?}");
        // What only keys of the configuration match.
        let keys = words_of("tatami ls --mount-");
        assert!(keys.contains(&"--mount-path".to_owned()), "{keys:?}");
        assert_eq!(words_of("tatami node start --em"), ["--empty"]);
        assert!(words_of("tatami ls -").contains(&"-R".to_owned()));
        // No option stands behind `--`: there may be a file of that name.
        assert_eq!(complete("tatami cp -- --"), (CandidateKind::LocalFiles, Vec::new()));
    }

    #[test]
    fn values_are_those_of_the_option() {
        assert_eq!(words_of("tatami relayout --to s"), ["striped"]);
        assert_eq!(words_of("tatami relayout --to=s"), ["--to=striped"]);
        assert_eq!(words_of("tatami completions z"), ["zsh"]);
        assert_eq!(words_of("tatami ls --mount-passthrough t"), ["true"]);
        assert_eq!(words_of("tatami bench predict --network ethernet,i"), ["ethernet,infiniband"]);
        assert_eq!(complete("tatami ls --dir ").0, CandidateKind::LocalDirs);
        assert_eq!(complete("tatami ls --config=").0, CandidateKind::LocalFiles);
        assert_eq!(complete("tatami up --nodes ").1, [""; 0]);
    }

    #[test]
    fn a_path_is_in_the_volume_or_on_this_machine() {
        assert_eq!(complete("tatami ls "), (CandidateKind::Paths, vec![":/".to_owned()]));
        assert_eq!(complete("tatami ls -l /etc").1, [""; 0]);
        assert_eq!(complete("tatami cp da").0, CandidateKind::LocalFiles);
        assert_eq!(complete("tatami cp a b -r c").0, CandidateKind::LocalFiles);
        // Without a volume there is nothing to offer, and no message.
        let dir = tempfile::tempdir().expect("a directory");
        let line = format!("tatami cp --dir {} :/", dir.path().display());
        assert_eq!(complete(&line), (CandidateKind::Paths, Vec::new()));
    }

    #[test]
    fn words_of_another_program_are_left_to_the_shell() {
        for line in [
            "tatami exec --node 0 -- ls -",
            "tatami mpirun -n 4 ./sim --",
            "tatami mpi-check -- ./a",
        ] {
            assert_eq!(complete(line).0, CandidateKind::LocalFiles, "{line}");
        }
        assert!(words_of("tatami exec --n").contains(&"--node".to_owned()));
    }

    #[test]
    fn what_the_shell_has_split_off_is_not_repeated() {
        let list = CandidateList {
            kind: CandidateKind::Paths,
            all: vec![
                make_candidate(b":/house/".to_vec(), ""),
                make_candidate(b":/hou\xff".to_vec(), ""),
            ],
        };
        let bash = render_candidates(CompletingShell::Bash, &list, 1);
        assert_eq!(bash, b"paths\0/house/\0/hou\xff\0");
        let fish = render_candidates(CompletingShell::Fish, &list, 0);
        assert_eq!(fish, b"paths\n:/house/\n:/hou\xff\n");
    }
}
