//! Completion scripts and manual pages, generated from the definition of the command line.

use crate::completion::CompletingShell;
use crate::error::{CommandResult, FailureContext};
use crate::keys::KEYS;
use crate::mount_helper;
use clap_mangen::Man;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// `tatami completions`
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// Which shell
    shell: clap_complete::Shell,
}

/// `tatami man`
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Write tatami.1, tatami-up.1 and so on here, and mount.tatami.8 [default: tatami.1 to
    /// standard output]
    dir: Option<PathBuf>,
    /// Print the reference of all commands as one Markdown page
    #[arg(long, conflicts_with = "dir")]
    markdown: bool,
}

/// Prints the script for a shell.
///
/// # Errors
/// Those of the output.
pub fn print_completions(args: &CompletionsArgs, mut command: clap::Command) -> CommandResult {
    use clap_complete::Shell;
    let mut out = io::stdout().lock();
    let script = match args.shell {
        Shell::Bash => CompletingShell::Bash.script().as_bytes().to_vec(),
        Shell::Zsh => CompletingShell::Zsh.script().as_bytes().to_vec(),
        Shell::Fish => CompletingShell::Fish.script().as_bytes().to_vec(),
        other => {
            let mut script = Vec::new();
            clap_complete::generate(other, &mut command, "tatami", &mut script);
            script
        }
    };
    out.write_all(&script)?;
    out.flush()?;
    Ok(())
}

/// Prints or writes the pages.
///
/// # Errors
/// Those of the output or the directory.
pub fn write_pages(args: &ManArgs, mut command: clap::Command) -> CommandResult {
    if args.markdown {
        let mut out = io::stdout().lock();
        out.write_all(render_reference_page(command).as_bytes())?;
        out.flush()?;
        return Ok(());
    }
    command.build();
    match &args.dir {
        None => {
            let mut out = io::stdout().lock();
            out.write_all(&render_page(&command, true)?)?;
            out.flush()?;
            Ok(())
        }
        Some(dir) => {
            let what = || format!("cannot write manual pages to {}", dir.display());
            std::fs::create_dir_all(dir).context(what)?;
            write_page_tree(dir, &command, true).context(what)?;
            mount_helper::describe_helpers()
                .into_iter()
                .try_for_each(|helper| write_helper_page(dir, helper))
                .context(what)
        }
    }
}

/// Writes the page of a command and the pages of its subcommands.
fn write_page_tree(dir: &Path, command: &clap::Command, top: bool) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    std::fs::write(dir.join(format!("{name}.1")), render_page(command, top)?)?;
    let below = command.get_subcommands().filter(|c| !c.is_hide_set());
    below.into_iter().try_for_each(|command| write_page_tree(dir, command, false))
}

/// Writes the page of a helper of mount(8), a command for administrators.
fn write_helper_page(dir: &Path, helper: clap::Command) -> io::Result<()> {
    let path = dir.join(format!("{}.8", helper.get_name()));
    let mut page = Vec::new();
    Man::new(helper).section("8").manual("Tatami").render(&mut page)?;
    page.extend(b".SH SEE ALSO\n\\fBtatami\\fR(1), \\fBtatami-mount\\fR(1), \\fBmount\\fR(8)\n");
    std::fs::write(path, page)
}

/// Columns of the help in the Markdown page.
const PAGE_COLUMNS: usize = 90;

/// Returns the help of all commands as one Markdown page: `docs/reference/command-line.md`.
fn render_reference_page(command: clap::Command) -> String {
    let mut command = command.term_width(PAGE_COLUMNS);
    command.build();
    let mut page = String::from(
        "# The command line\n\n\
         For users. The help of every command, as `tatami man --markdown` prints it. Commands on\n\
         a volume also take the flags of the [configuration](configuration.md).\n",
    );
    append_help(&mut page, &command);
    page
}

/// Appends the help of a command and of its subcommands.
fn append_help(page: &mut String, command: &clap::Command) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let help = command.clone().render_help().to_string();
    let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    // Writing to a String cannot fail.
    let _ = write!(page, "\n## {name}\n\n```text\n{}\n```\n", lines.join("\n"));
    let below = command.get_subcommands();
    for command in below.filter(|below| !below.is_hide_set() && below.get_name() != "help") {
        append_help(page, command);
    }
}

/// Renders one page. The examples and notes below a command's help keep their lines.
fn render_page(command: &clap::Command, top: bool) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone()).manual("Tatami");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if top {
        page.extend(render_overview().into_bytes());
    } else if let Some(text) = command.get_after_help() {
        let text = text.to_string();
        let (head, rest) = match text.strip_prefix("Examples:\n") {
            Some(rest) => ("EXAMPLES", rest),
            None => ("NOTES", text.as_str()),
        };
        page.extend(render_section(head, rest).into_bytes());
        page.extend(b".SH SEE ALSO\n\\fBtatami\\fR(1)\n");
    }
    Ok(page)
}

/// Renders a section and keeps its lines.
fn render_section(head: &str, text: &str) -> String {
    format!(".SH {head}\n.nf\n{}\n.fi\n", escape_roff(text.trim_end()))
}

/// Escapes text for roff. A line that begins with a dot or a quote would be a request, a backslash
/// an escape, and a hyphen would become a dash.
fn escape_roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let lines: Vec<String> = text
        .lines()
        .map(|l| if l.starts_with(['.', '\'']) { format!("\\&{l}") } else { l.to_owned() })
        .collect();
    lines.join("\n")
}

/// Renders the sections that apply to all commands.
fn render_overview() -> String {
    let mut text = render_section(
        "EXAMPLES",
        "tatami up                                  one node, mounted at /mnt/tatami\n\
         tatami up --nodes 4 --mount /mnt/tatami    four, at /mnt/tatami/node0 and so on\n\
         tatami status\n\
         tatami where /mnt/tatami/node0/file\n\
         tatami cp -r results :/run-17              no mount needed\n\
         mpirun -n 4 tatami exec --node rank -- ./program\n\
         tatami down",
    );
    text.push_str(
        ".SH PATHS\nA path that begins with a colon, or with \\fItatami:\\fR, is in the volume \
         and\nneeds no mount. Write a local file with such a name as ./:name.\n",
    );
    text.push_str(
        ".SH CONFIGURATION\nOne TOML file, DIR/tatami.toml. Each key can be overridden by an \
         environment variable,\nand that by a flag of any command.\n\\fBtatami config\\fR shows \
         the values in force and their origins.\n",
    );
    for key in &KEYS {
        let unit = if key.unit.is_empty() { String::new() } else { format!(" {}", key.unit) };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            ".TP\n\\fB{}\\fR, \\fB{}\\fR, \\fB{}\\fR\n{}\nRange: {}{unit}; default: {}.",
            escape_roff(key.name),
            escape_roff(key.env),
            escape_roff(&format!("--{}", key.flag)),
            escape_roff(key.doc),
            escape_roff(&key.range.to_string()),
            escape_roff(&key.default_text()),
        );
    }
    text.push_str(
        ".SH ENVIRONMENT\nBesides the variables above:\n\
         .TP\n\\fBTATAMI_DIR\\fR, \\fBTATAMI_CONFIG\\fR\nAs \\-\\-dir and \\-\\-config.\n\
         .TP\n\\fBNO_COLOR\\fR\nNo colours, also on a terminal.\n",
    );
    let files = [
        ("tatami.toml", "The configuration."),
        ("volume.toml", "The nodes of the volume, their addresses, sockets and directories."),
        ("key", "The secret of the volume. A process that has it may act as any user."),
        ("node0", "The data directory of a node, with its socket and its log."),
        ("mount\\-logs", "Logs of mounts."),
    ];
    text.push_str(
        ".SH FILES\nIn the volume's directory: /etc/tatami/default if there is one; else /var/lib/tatami \
         for the superuser,\n~/.local/share/tatami for others,\nor the one that \\-\\-dir names.\n",
    );
    for (name, what) in files {
        let _ = writeln!(text, ".TP\n\\fB{name}\\fR\n{what}");
    }
    let codes = [
        ("0", "Success."),
        ("1", "A failure; standard error has the failed operation, its cause and a remedy."),
        ("2", "The command line or the configuration is wrong."),
        ("3", "A node or the volume cannot be reached or is not healthy."),
        (
            "0, 1, 4, 8",
            "\\fBtatami fsck\\fR, as fsck(8): clean, repaired, faults left, check failed.",
        ),
        ("141", "The reader of the output went away."),
    ];
    text.push_str(".SH EXIT STATUS\n");
    for (code, what) in codes {
        let _ = writeln!(text, ".TP\n\\fB{code}\\fR\n{what}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    #[test]
    fn text_that_looks_like_roff_means_itself() {
        assert_eq!(escape_roff(".x\n'y\na-b\\"), "\\&.x\n\\&'y\na\\-b\\e");
    }

    #[test]
    fn the_reference_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/command-line.md");
        let page = std::fs::read_to_string(path).expect("the page is there");
        assert!(
            page == render_reference_page(Cli::command()),
            "it is out of date: tatami man --markdown > docs/reference/command-line.md"
        );
    }

    #[test]
    fn the_command_line_is_consistent() {
        // Clap checks names, conflicts and defaults.
        Cli::command().debug_assert();
    }
}
