//! Where in a command line the cursor is: which command, and what may stand there.

use clap::Arg;
use std::ffi::OsStr;
use std::path::PathBuf;

/// The options in the line that name a volume.
#[derive(Debug, Default)]
pub struct NamedVolume {
    /// The value of `--dir`.
    pub dir: Option<PathBuf>,
    /// The value of `--config`.
    pub config: Option<PathBuf>,
}

/// The place of the cursor.
pub struct CursorPoint<'a> {
    /// The command.
    pub command: &'a clap::Command,
    /// The volume of that command.
    pub volume: NamedVolume,
    /// The option that the word at the cursor gives a value to.
    open: Option<&'a Arg>,
    /// Number of values before the cursor that belong to no option.
    values: usize,
    /// A `--` stands before the cursor.
    escaped: bool,
    /// The rest of the line belongs to another program.
    foreign: bool,
}

/// What the word at the cursor is.
#[derive(Debug)]
pub enum WordKind<'a> {
    /// A word of another program.
    Foreign,
    /// An option.
    Option,
    /// The value of an option; it begins at a byte of the word.
    OptionValue {
        /// The option.
        arg: &'a Arg,
        /// The first byte of the value.
        start: usize,
    },
    /// The name of a command.
    Subcommand,
    /// A value that belongs to no option.
    Positional(&'a Arg),
    /// The command takes no more values.
    Nothing,
}

impl<'a> CursorPoint<'a> {
    /// Reads the words before the cursor, without that of the program.
    pub fn find(command: &'a clap::Command, before: &[&OsStr]) -> CursorPoint<'a> {
        let mut point = CursorPoint {
            command,
            volume: NamedVolume::default(),
            open: None,
            values: 0,
            escaped: false,
            foreign: false,
        };
        before.iter().for_each(|word| point.pass_word(word));
        point
    }

    fn pass_word(&mut self, word: &OsStr) {
        let text = word.to_string_lossy();
        if let Some(arg) = self.open.take() {
            self.note_volume(arg, word);
        } else if self.foreign {
        } else if self.escaped || !text.starts_with('-') || text == "-" {
            self.pass_value(&text);
        } else if text == "--" {
            self.escaped = true;
            self.foreign = self.command.get_positionals().any(Arg::is_last_set);
        } else if let Some(long) = text.strip_prefix("--") {
            let (name, value) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (long, None),
            };
            match (self.find_long(name), value) {
                (Some(arg), Some(value)) => self.note_volume(arg, OsStr::new(value)),
                (Some(arg), None) => self.open = Some(arg).filter(|arg| takes_value(arg)),
                (None, _) => self.pass_unknown(),
            }
        } else {
            self.pass_shorts(&text[1..]);
        }
    }

    /// Passes a cluster of short options. The first one with a value takes the rest as its value.
    fn pass_shorts(&mut self, letters: &str) {
        for (at, letter) in letters.char_indices() {
            let Some(arg) = self.find_short(letter) else { return self.pass_unknown() };
            if takes_value(arg) {
                let is_last = at + letter.len_utf8() == letters.len();
                self.open = Some(arg).filter(|_| is_last);
                return;
            }
        }
    }

    /// An unknown option may be the first word of another program.
    fn pass_unknown(&mut self) {
        self.foreign = self.positional().is_some_and(Arg::is_trailing_var_arg_set);
    }

    fn pass_value(&mut self, text: &str) {
        if !self.escaped
            && self.values == 0
            && let Some(below) = self.command.find_subcommand(text)
        {
            self.command = below;
            return;
        }
        self.foreign = self.positional().is_some_and(Arg::is_trailing_var_arg_set);
        self.values += 1;
    }

    fn note_volume(&mut self, arg: &Arg, value: &OsStr) {
        match arg.get_long() {
            Some("dir") => self.volume.dir = Some(value.into()),
            Some("config") => self.volume.config = Some(value.into()),
            _ => {}
        }
    }

    fn find_long(&self, name: &str) -> Option<&'a Arg> {
        let has_name = |arg: &&Arg| {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(name) || aliases.contains(&name)
        };
        self.command.get_arguments().find(has_name)
    }

    fn find_short(&self, letter: char) -> Option<&'a Arg> {
        let has_letter = |arg: &&Arg| {
            let aliases = arg.get_all_short_aliases().unwrap_or_default();
            arg.get_short() == Some(letter) || aliases.contains(&letter)
        };
        self.command.get_arguments().find(has_letter)
    }

    /// Returns the argument of a value at the cursor that belongs to no option.
    fn positional(&self) -> Option<&'a Arg> {
        let all: Vec<&Arg> = self.command.get_positionals().collect();
        // The last argument may take many values.
        let many = |arg: &&Arg| arg.get_num_args().is_some_and(|n| n.max_values() > 1);
        let last = all.last().copied().filter(many);
        all.get(self.values).copied().or(last).filter(|arg| !arg.is_last_set())
    }

    /// Returns what the word at the cursor is.
    pub fn word_kind(&self, typed: &str) -> WordKind<'a> {
        if let Some(arg) = self.open {
            return WordKind::OptionValue { arg, start: 0 };
        }
        if self.foreign {
            return WordKind::Foreign;
        }
        if typed.starts_with('-') && !self.escaped {
            let value = typed.strip_prefix("--").and_then(|long| long.split_once('='));
            return match value.and_then(|(name, _)| Some((name, self.find_long(name)?))) {
                Some((name, arg)) => WordKind::OptionValue { arg, start: "--=".len() + name.len() },
                None => WordKind::Option,
            };
        }
        if self.values == 0 && self.command.has_subcommands() {
            return WordKind::Subcommand;
        }
        self.positional().map_or(WordKind::Nothing, WordKind::Positional)
    }
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}
