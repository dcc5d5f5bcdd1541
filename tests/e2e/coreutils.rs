//! `tatami ls | cp | mv | rm | du | stat | cat` beside the commands of coreutils, option by option.
//!
//! Each row is a script that runs twice on the same files: with the command of coreutils on a
//! mount, and with that of Tatami on the volume. Their output, their success and the files that
//! they leave are compared. The page `docs/reference/coreutils.md` is printed from these rows, and
//! a row that is not as the page says fails. Every option that `--help` of coreutils shows has a
//! row.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use tatami_tests::Cluster;
use tatami_tests::command::{ask, program, run, shell, sources};

/// How an option compares.
enum Comparison {
    /// The script has the same effect and output.
    Same(&'static str),
    /// The same files result; the output differs for this reason.
    SameFiles(&'static str, &'static str),
    /// It works differently for this reason; both succeed.
    Differs(&'static str, &'static str),
    /// It is not there.
    Absent(&'static str),
}
use Comparison::{Absent, Differs, Same, SameFiles};

/// Options of one command, as coreutils writes them, and their comparison.
type OptionRow = (&'static str, Comparison);

const NO_LOCALE: &str = "names are printed as they are, control characters escaped";
const NO_STYLE: &str = "one form of times and sizes; for scripts there is `--json`";
const NO_LINKS: &str = "links below a directory are copied as links, those named are followed";
const NO_BACKUP: &str = "a new file replaces the old one in one step; keep the old one with `mv`";
const NO_QUESTION: &str = "no command asks questions";
const NO_SELINUX: &str = "SELinux labels are not copied";
const ONE_VOLUME: &str = "a volume is one file system";

/// Files of all kinds below `w`.
const PREPARE: &str = "
    mkdir -p w/dir/sub/deep w/empty w/out
    printf 'one\\n' > w/a; printf 'two two\\n' > w/b; seq 1000 > w/dir/n; seq 5000 > w/dir/sub/m
    echo hidden > w/.hidden; echo x > w/dir/.h; ln -s a w/link; ln -s dir w/dirlink; mkfifo w/fifo
    echo old > w/out/a; chmod 600 w/b; chmod 755 w/dir/n; chmod 750 w/dir/sub
    touch -h -d '2021-02-03 04:05' w/a w/link w/dir/n; touch -d '2022-02-03 04:05' w/b w/dir/sub/m
    touch -d '2023-03-04 05:06' w/out/a w/dir w/dir/sub w/dir/sub/deep w/empty w/.hidden w/dir/.h
    touch -h -d '2023-03-05 05:06' w/dirlink w/fifo; touch -d '2023-03-06 06:07' w/out w
";

const LS: &[OptionRow] = &[
    ("no option", Same("$C $P/w $P/w/a $P/w/dir")),
    ("-a, --all", Same("$C -a $P/w")),
    ("-A, --almost-all", Same("$C -A $P/w")),
    ("-l", SameFiles("$C -l $P/w/dir", "times are printed as `2026-11-25 13:29`, and no total")),
    ("-1", Same("$C -1 $P/w")),
    ("-t", Same("$C -t $P/w")),
    ("-S", Same("$C -S $P/w/dir")),
    ("-r, --reverse", Same("$C -r $P/w && $C -tr $P/w")),
    ("-R, --recursive", Same("$C -R $P/w")),
    ("-d, --directory", Same("$C -d $P/w $P/w/a")),
    ("-h, --human-readable", Same("$C -lh $P/w/dir/n | tr -s ' ' | cut -d' ' -f5")),
    ("-i, --inode", Same("test $($C -i $P/w/a | cut -d' ' -f1) = $(stat -c %i w/a)")),
    ("-F, --classify", Same("$C -F $P/w")),
    ("-U", Absent("names are always sorted")),
    (
        "--author -b --escape -N --literal -q --hide-control-chars --show-control-chars -Q --quote-name --quoting-style --hyperlink --color -D --dired --zero",
        Absent(NO_LOCALE),
    ),
    (
        "--block-size -k --kibibytes --si -s --size --full-time --time --time-style --format -c -u --sort -v -X -x -C -m -T --tabsize -w --width",
        Absent(NO_STYLE),
    ),
    (
        "-B --ignore-backups --hide -I --ignore --group-directories-first -f",
        Absent("use a pattern of the shell on a mount"),
    ),
    ("-g -G --no-group -o -n --numeric-uid-gid -p --file-type --indicator-style", Absent(NO_STYLE)),
    (
        "-H --dereference-command-line --dereference-command-line-symlink-to-dir -L --dereference",
        Absent("a named link to a directory is followed, others are shown"),
    ),
    ("-Z --context", Absent(NO_SELINUX)),
];

const CP: &[OptionRow] = &[
    (
        "no option",
        Same("$C $P/w/a $P/w/new && $C $P/w/a $P/w/b $P/w/out && $C $P/w/link $P/w/copy"),
    ),
    (
        "-r, -R, --recursive",
        Same("$C -r $P/w/dir $P/w/new && $C -R $P/w/dir $P/w/out && $C -r $P/w/dirlink $P/w/l"),
    ),
    ("a source that is missing", Same("$C -r $P/w/a $P/w/none $P/w/b $P/w/out 2> /dev/null")),
    ("a directory without -r", Same("$C $P/w/dir $P/w/new 2> /dev/null")),
    (
        "a directory over a file",
        Same("$C -r $P/w/dir $P/w/new && $C -rT $P/w/dir $P/w/a 2> /dev/null"),
    ),
    (
        "a link over a link",
        Same(
            "ln -s x w/dir/l && mkdir w/new w/new/dir && ln -s y w/new/dir/l && $C -r $P/w/dir $P/w/new && readlink w/new/dir/l",
        ),
    ),
    (
        "a file over a link",
        Same("ln -s ../b w/empty/a && $C $P/w/a $P/w/empty && $C -r $P/w/a $P/w/empty"),
    ),
    (
        "a file over a dangling link",
        Same("ln -s none w/empty/a && $C $P/w/a $P/w/empty 2> /dev/null"),
    ),
    ("-a, --archive", Same("$C -a $P/w/dir $P/w/new && $C -a $P/w/link $P/w/link2")),
    ("-p", Same("$C -p $P/w/b $P/w/new && $C -rp $P/w/dir $P/w/dir2")),
    ("-n, --no-clobber", Same("$C -n $P/w/a $P/w/out && $C -n $P/w/b $P/w/new")),
    (
        "-u, --update",
        Differs(
            "$C -u $P/w/a $P/w/out/a; $C -u $P/w/b $P/w/out/a",
            "a file of another size is copied, too, also if it is older: it may be half a copy of another tool",
        ),
    ),
    ("-t, --target-directory", Same("$C -t $P/w/out $P/w/a $P/w/b")),
    ("-T, --no-target-directory", Same("$C -T $P/w/a $P/w/b && $C -rT $P/w/dir $P/w/out")),
    ("-v, --verbose", SameFiles("$C -v $P/w/a $P/w/new", "paths are printed without quotes")),
    (
        "--attributes-only --copy-contents --no-preserve --preserve",
        Absent("`-p` keeps mode and times; owners, links and extended attributes are not copied"),
    ),
    ("--backup -b -S --suffix --remove-destination -f --force", Absent(NO_BACKUP)),
    ("-d -H -L --dereference -P --no-dereference", Absent(NO_LINKS)),
    ("-i --interactive", Absent(NO_QUESTION)),
    ("-l --link -s --symbolic-link --parents --strip-trailing-slashes", Absent("use a mount")),
    ("--reflink --sparse", Absent("holes are kept, as with `--sparse=auto`")),
    ("-x --one-file-system", Absent("the mounts of the volume itself are left out")),
    ("-Z --context", Absent(NO_SELINUX)),
];

const MV: &[OptionRow] = &[
    (
        "no option",
        Same(
            "$C $P/w/a $P/w/new && $C $P/w/b $P/w/dir $P/w/out && $C $P/w/link $P/w/fifo $P/w/empty",
        ),
    ),
    ("over a file", Same("$C $P/w/a $P/w/b && $C $P/w/new $P/w/b 2> /dev/null")),
    ("a directory into itself", Same("$C $P/w/dir $P/w/dir/sub 2> /dev/null")),
    ("-f, --force", Same("$C -f $P/w/a $P/w/b")),
    ("-n, --no-clobber", Same("$C -n $P/w/a $P/w/b && $C -n $P/w/b $P/w/new")),
    ("-t, --target-directory", Same("$C -t $P/w/out $P/w/b $P/w/dir")),
    ("-T, --no-target-directory", Same("$C -T $P/w/dir $P/w/empty && $C -T $P/w/a $P/w/b")),
    ("-v, --verbose", SameFiles("$C -v $P/w/a $P/w/new", "paths are printed as `a -> b`")),
    ("-i --interactive", Absent(NO_QUESTION)),
    ("--backup -b -S --suffix -u --update", Absent(NO_BACKUP)),
    ("--strip-trailing-slashes", Absent("slashes at the end are ignored")),
    ("-Z --context", Absent(NO_SELINUX)),
];

const RM: &[OptionRow] = &[
    ("no option", Same("$C $P/w/a $P/w/link $P/w/dirlink $P/w/fifo")),
    ("a path that is missing", Same("$C $P/w/a $P/w/none $P/w/b 2> /dev/null")),
    ("a directory without -r", Same("$C $P/w/empty $P/w/a 2> /dev/null")),
    ("-r, -R, --recursive", Same("$C -r $P/w/dir && $C -R $P/w/out $P/w/a")),
    ("-f, --force", Same("$C -f $P/w/none $P/w/a")),
    ("-d, --dir", Same("$C -d $P/w/empty && $C -d $P/w/dir 2> /dev/null")),
    ("-v, --verbose", SameFiles("$C -rv $P/w/dir", "paths are printed as `removed :/a`")),
    ("-i -I --interactive", Absent(NO_QUESTION)),
    ("--one-file-system", Absent(ONE_VOLUME)),
    ("--no-preserve-root --preserve-root", Absent("the root of a volume cannot be removed")),
];

const DU: &[OptionRow] = &[
    ("no option", Same("$C $P/w/dir | sort")),
    ("-s, --summarize", Same("$C -s $P/w/dir $P/w/out")),
    ("-h, --human-readable", Same("$C -sh $P/w/dir")),
    ("-c, --total", Same("$C -sc $P/w/dir $P/w/out")),
    ("-d, --max-depth", Same("$C -d 1 $P/w/dir | sort && $C -d 0 $P/w/dir")),
    ("--apparent-size", Same("$C -s --apparent-size $P/w/dir")),
    ("-b, --bytes", Same("$C -b $P/w/a")),
    ("-0 --null -a --all --files0-from --files", Absent("use `--json`")),
    ("-B --block-size -k -m --si -t --threshold --time --time-style --inodes", Absent(NO_STYLE)),
    (
        "-D --dereference-args -H -L --dereference -P --no-dereference",
        Absent("links are not followed"),
    ),
    ("-l --count-links -S --separate-dirs", Absent("a file with several names counts once")),
    ("-X --exclude-from --exclude", Absent("use a mount")),
    ("-x --one-file-system", Absent(ONE_VOLUME)),
];

const STAT: &[OptionRow] = &[
    (
        "no option",
        SameFiles(
            "$C $P/w/a $P/w/dir",
            "the output has other fields: also the nodes that store the file",
        ),
    ),
    ("-L, --dereference", SameFiles("$C -L $P/w/link", "as without an option")),
    ("-f --file-system", Absent("`tatami df`")),
    ("--cached", Absent("attributes are always those of now")),
    ("-c --printf -t --terse", Absent("use `--json`")),
];

const CAT: &[OptionRow] = &[
    ("no option", Same("$C $P/w/a $P/w/b $P/w/dir/sub/m")),
    ("a path that is missing", Same("$C $P/w/a $P/w/none $P/w/b 2> /dev/null")),
    ("-u", Same("$C -u $P/w/a")),
    (
        "-A --show-all -b --number-nonblank -e -E --show-ends -n --number -s --squeeze-blank -t -T --show-tabs -v --show-nonprinting",
        Absent("pipe it through `cat`"),
    ),
];

const COMMANDS: &[(&str, &[OptionRow])] =
    &[("ls", LS), ("cp", CP), ("mv", MV), ("rm", RM), ("du", DU), ("stat", STAT), ("cat", CAT)];

/// What a script has done.
#[derive(Debug, PartialEq)]
struct Effect {
    out: String,
    success: bool,
    files: String,
}

/// Runs a script on fresh files. `with` is the command, and `prefix` what stands for the root.
fn run_script(cluster: &Cluster, mount: &Path, with: &str, prefix: &str, script: &str) -> Effect {
    run(&mut shell(mount, &format!("rm -rf w; {PREPARE}")));
    let mut command = shell(mount, script);
    command.env("C", with).env("P", prefix).env("TATAMI_DIR", cluster.dir()).env("TZ", "UTC");
    let said = ask(&mut command);
    let list = "find w -printf '%P %y %m %n %l ' \\( -type f -printf '%s ' -exec cksum {} \\; \
                -o -printf '\\n' \\) | sort";
    let files = run(&mut shell(mount, list)).out;
    let root = mount.to_str().expect("UTF-8");
    Effect { out: said.out.replace(root, ":"), success: said.code == Some(0), files }
}

/// Returns the options in the help of a command of coreutils.
fn options_of(command: &str) -> BTreeSet<String> {
    let help = run(&mut program(&format!("{command} --help"))).out;
    let mut found = BTreeSet::new();
    for line in help.lines().filter(|line| line.starts_with("  ")) {
        let words = line.trim_start().split("  ").next().unwrap_or_default();
        for word in words.split([',', ' ']).filter(|word| word.starts_with('-')) {
            let option = word.split(['=', '[', ')']).next().unwrap_or_default();
            let is_short = option.len() == 2 && option.as_bytes()[1].is_ascii_alphanumeric();
            let is_long = option.starts_with("--") && option.len() > 2;
            if is_short || is_long {
                found.insert(option.to_owned());
            }
        }
    }
    found.remove("--help");
    found.remove("--version");
    found
}

fn print_page() -> String {
    let mut page = String::from(
        "# Beside coreutils\n\nFor users. What the file commands of Tatami have in common with those \
         of coreutils 9.1, option by\noption. A test runs each row with both, compares, and prints \
         this page.\n\n*same*: the same output, exit code (0 or not) and files. Commands of Tatami \
         take paths with a colon\nin front and need no mount; on a mount, the commands of coreutils \
         work themselves.\n",
    );
    for (command, rows) in COMMANDS {
        let _ = write!(page, "\n## {command}\n\n| coreutils | Tatami |\n|---|---|\n");
        for (options, comparison) in *rows {
            let options = match options.starts_with('-') {
                true => options
                    .split([',', ' '])
                    .filter(|option| !option.is_empty())
                    .map(|option| format!("`{option}`"))
                    .collect::<Vec<_>>()
                    .join(" "),
                false => (*options).to_owned(),
            };
            let says = match comparison {
                Same(_) => "same".to_owned(),
                SameFiles(_, why) => format!("same, but {why}"),
                Differs(_, why) => format!("differs: {why}"),
                Absent(why) => format!("not there: {why}"),
            };
            let _ = writeln!(page, "| {options} | {says} |");
        }
    }
    page
}

#[test]
fn file_commands_are_as_their_page_says() {
    let cluster = Cluster::start(2);
    let mount = cluster.mount(0);
    let tatami = cluster.program();
    let tatami = tatami.to_str().expect("UTF-8");
    let root = mount.to_str().expect("UTF-8");
    let mut wrong = Vec::new();
    for (command, rows) in COMMANDS {
        let known: BTreeSet<String> = rows
            .iter()
            .flat_map(|(options, _)| options.split([',', ' ']))
            .filter(|option| option.starts_with('-'))
            .map(str::to_owned)
            .collect();
        let missing: Vec<_> = options_of(command).difference(&known).cloned().collect();
        if !missing.is_empty() {
            wrong.push(format!("{command}: no row for {missing:?}"));
        }
        for (options, comparison) in *rows {
            let (Same(script) | SameFiles(script, _) | Differs(script, _)) = comparison else {
                continue;
            };
            let theirs = run_script(&cluster, &mount, command, root, script);
            let ours = run_script(&cluster, &mount, &format!("{tatami} {command}"), ":", script);
            let fits = match comparison {
                Same(_) => ours == theirs,
                SameFiles(..) => {
                    ours.files == theirs.files
                        && ours.success == theirs.success
                        && ours.out != theirs.out
                }
                Differs(..) => ours.success && theirs.success && ours != theirs,
                Absent(_) => true,
            };
            if !fits {
                wrong.push(format!("{command} {options}\ncoreutils: {theirs:#?}\nours: {ours:#?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let page = sources().join("../docs/reference/coreutils.md");
    let printed = print_page();
    if std::env::var_os("TATAMI_PRINT_PAGE").is_some() {
        std::fs::write(&page, &printed).expect("written");
    }
    let there = std::fs::read_to_string(&page).unwrap_or_default();
    assert_eq!(there, printed, "print it anew: TATAMI_PRINT_PAGE=1 cargo test … coreutils::");
    cluster.finish();
}

/// On a terminal names fill its columns; elsewhere each has a line of its own.
#[test]
fn a_terminal_gets_columns() {
    let cluster = Cluster::start(1);
    let mount = cluster.mount(0);
    run(&mut shell(&mount, "touch file-{1..40} .hidden"));
    let on_terminal = |options: &str| {
        let tatami = cluster.program();
        // util-linux's script(1) runs a command on a terminal of its own.
        let line = format!("stty cols 60; {} ls {options}", tatami.display());
        let mut command = program("script -qe /dev/null -c");
        run(command.arg(line).env("TATAMI_DIR", cluster.dir()).env("TERM", "xterm")).out
    };
    let text = on_terminal("");
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    assert!(lines.iter().all(|line| line.len() <= 60), "{text}");
    assert!(lines.len() < 14, "{text}");
    assert_eq!(text.split_whitespace().count(), 40);
    assert_eq!(on_terminal("-1").lines().count(), 40);
    assert_eq!(cluster.tatami("ls", &[]).out.lines().count(), 40);
    cluster.finish();
}
