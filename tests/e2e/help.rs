//! The examples of every help page do what the page says: each runs as it is printed, in a
//! directory of its own, on a volume with the files that the examples name.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::Command;
use tatami_tests::command::{Said, as_user, ask, copy_program, program, run, tatami_bin};
use tatami_tests::process::{kill_hard, mounts_below, pause, processes_of, unmount_all};

/// An ordinary user.
const USER: u32 = 4011;

/// Examples that do not run here: each begins with the first text, and the second is the reason.
/// Those that have the third text run all the same.
const LEFT_OUT: [(&str, &str, &str); 25] = [
    ("tatami node add node17", "it needs hosts: tests/e2e/hosts.rs has them", ""),
    ("tatami ls -l me@siteb", "it needs another site: tests/e2e/another_site_files.rs has it", ""),
    ("tatami mount me@siteb", "it needs another site: tests/e2e/another_site_mount.rs has it", ""),
    (
        "tatami cp -a run-17 me@siteb",
        "it needs another site: tests/e2e/another_site_files.rs has it",
        "",
    ),
    ("tatami cat siteb", "it needs another site: tests/e2e/another_site_files.rs has it", ""),
    ("tatami rm -r siteb", "it needs another site: tests/e2e/another_site_files.rs has it", ""),
    ("tatami mkdir siteb", "it needs another site: tests/e2e/another_site_files.rs has it", ""),
    ("tatami stat siteb", "it needs another site: tests/e2e/another_site_files.rs has it", ""),
    ("tatami du -sh siteb", "it needs another site: tests/e2e/another_site_files.rs has it", ""),
    ("tatami up --hosts", "it needs hosts: tests/e2e/hosts.rs has them", ""),
    ("tatami node chown", "it needs the user of a package: tests/e2e/packages.rs has it", ""),
    ("tatami versions", "it needs a region device: tests/e2e/versions.rs has it", ""),
    ("tatami restore", "it needs a region device: tests/e2e/versions.rs has it", ""),
    ("tatami job", "it needs a batch job: tests/e2e/jobs_slurm.rs has them", ""),
    ("eval \"$(tatami job", "it needs a batch job: tests/e2e/jobs_slurm.rs has them", ""),
    ("tatami node run", "it stays in the foreground", ""),
    ("tatami bench suite", "it takes minutes", "--quick"),
    ("tatami bench predict", "it takes minutes", "--quick"),
    ("tatami bench regions", "it takes minutes", "-n 1024"),
    ("tatami bench smallfiles", "it takes minutes", "-n 2000"),
    ("tatami bench mpi", "it takes minutes and MPI programs", ""),
    ("mpirun -n 4 tatami exec", "it needs an MPI program of the user", ""),
    ("mpirun -n 4 tatami run", "it needs an MPI program of the user", ""),
    ("tatami mpirun", "it needs an MPI program of the user", ""),
    ("tatami mpi-check", "it needs an MPI program of the user", ""),
];

/// Places of the whole machine that examples name, and those below the test's own directory.
const PLACES: [(&str, &str); 5] = [
    (" /mnt/", " $W/mnt/"),
    (" /scratch", " $W/scratch"),
    ("/usr/share/bash-completion/completions", "$W/share"),
    ("/usr/local/share/man/man1", "$W/man1"),
    ("--at /data", "--at $W/data"),
];

/// Brings the volume and the files into the state in which examples begin.
const PREPARATION: &str = "\
test -e $W/volume/volume.toml || tatami up --nodes 4 --no-mount
tatami up --no-mount
for name in $(tatami ls :/); do tatami rm -r :/$name; done
rm -rf $W/here && mkdir -p $W/here/run-17 && cd $W/here
mkdir input dir results && echo part > input/part && echo result > results/part
echo input > input.dat
echo log > run-17/log
echo bytes | tee a results.nc checkpoint.h5 run-17/one.h5 > run-17/two.h5
tatami cp -r a dir input.dat results.nc checkpoint.h5 run-17 :/
";

/// The same for what an ordinary user may be kept from: mounts, and containers beside them.
const MOUNT_PREPARATION: &str = "\
mountpoint -q $W/mnt/tatami || tatami mount $W/mnt/tatami
test -d $W/scratch/checkpoint.h5 || { rm -rf $W/scratch/checkpoint.h5
  echo bytes > $W/scratch/checkpoint.h5
  tatami relayout --to container $W/scratch/checkpoint.h5; }
";

/// What comes before some examples besides: those whose text begins with the first part.
const FIRST: [(&str, &str); 22] = [
    ("tatami mv :/a :/b :/dir/", "tatami cp :/a :/b"),
    ("tatami up --dir ~/fs", "rm -rf ~/fs"),
    ("tatami up", "remove_volume"),
    (
        "tatami volume rotate-certificates --dir",
        "tatami up --dir $W/scratch/tatami --no-mount --encryption tls",
    ),
    ("tatami volume rotate", "remove_volume; tatami up --nodes 2 --no-mount --encryption tls"),
    ("tatami cp -r input :/run-17", "tatami rm -r :/run-17"),
    ("tatami node start --empty node1", "tatami node stop node1; rm -rf $W/volume/node1"),
    ("tatami node start --accept-loss node1", "tatami node stop node1"),
    ("tatami node start node1 node2", "tatami node stop node1 node2"),
    ("tatami node start", "tatami node stop 1"),
    ("tatami node forget", "remove_volume; tatami up --nodes 2 --no-mount; lose_node1"),
    ("tatami mount --overlay", "unmount $W/mnt/scratch; mkdir -p $W/mnt/scratch"),
    ("tatami mount --node node2", "unmount $W/mnt/two"),
    ("tatami mount", "unmount $W/mnt/tatami"),
    ("tatami exec", "mountpoint -q $W/mnt/two || tatami mount --node node2 $W/mnt/two"),
    ("tatami mkdir -p :/a/b/c", "tatami rm :/a"),
    ("tatami untar", "tar cf $W/here/data.tar -C $W/here run-17"),
    ("gzip -dc", "tar czf $W/here/data.tar.gz -C $W/here run-17"),
    ("tatami du -sh :/run-17 :/run-18", "tatami mkdir :/run-18"),
    ("tatami fsck --offline", "tatami down"),
    ("tatami node rebalance node2 node3", "tatami node drain node2 node3"),
    ("tatami node remove", "tatami node drain node3; tatami relayout -r --from node3 :/"),
];

/// What comes after some examples: the effect of the example, or its end.
const THEN: [(&str, &str); 24] = [
    ("tatami sync results :/run-17", "test \"$(tatami cat :/run-17/part)\" = result"),
    (
        "tatami mv results :/run-18",
        "test \"$(tatami cat :/run-18/part)\" = result; refute test -e $W/here/results",
    ),
    ("tatami up --dir ~/fs", "test -S ~/fs/node0/socket; tatami down --dir ~/fs; rm -rf ~/fs"),
    ("tatami up --nodes 4 --mount", "mountpoint -q $W/mnt/tatami/node3; remove_volume"),
    (
        "tatami up --nodes 2 --encryption tls",
        "tatami status | grep 'Encryption tls'; mountpoint -q $W/mnt/tatami/node1; remove_volume",
    ),
    (
        "tatami volume rotate-certificates --dir",
        "tatami status --dir $W/scratch/tatami; tatami down --dir $W/scratch/tatami; \
         rm -rf $W/scratch/tatami",
    ),
    ("tatami volume rotate", "tatami status; remove_volume"),
    ("tatami up --executors 4", "tatami node list | grep -q EXECUTORS; remove_volume"),
    ("tatami up", "mountpoint -q $W/mnt/tatami; remove_volume"),
    ("tatami down", "refute mountpoint -q $W/mnt/tatami; refute test -S $W/volume/node0/socket"),
    ("tatami cp -r input :/run-17", "test \"$(tatami cat :/run-17/part)\" = part"),
    ("tatami cp input.dat :/dir/", "test \"$(tatami cat :/dir/input.dat)\" = input"),
    ("tatami mount --overlay", "unmount $W/mnt/scratch"),
    ("tatami mount --node node2", "mountpoint -q $W/mnt/two; unmount $W/mnt/two"),
    ("tatami mount", "mountpoint -q $W/mnt/tatami"),
    ("tatami umount", "refute mountpoint -q $W/mnt/tatami"),
    ("tatami exec", "unmount $W/mnt/two"),
    ("tatami node add", "tatami node list | grep node4; remove_volume"),
    ("tatami node stop", "refute tatami status"),
    ("tatami node forget", "tatami status; remove_volume"),
    ("tatami node remove", "tatami status; test ! -e $W/volume/node3; remove_volume"),
    ("tatami untar data.tar :/run-18", "test \"$(tatami cat :/run-18/run-17/log)\" = log"),
    ("gzip -dc", "test \"$(tatami cat :/run-18/run-17/log)\" = log"),
    ("tatami rm -r :/run-17", "refute tatami stat :/run-17"),
];

/// Helpers of the scripts above.
const HELPERS: &str = "\
set -euo pipefail
unmount() { if mountpoint -q $1; then tatami umount --force $1; fi; }
remove_volume() { tatami down --force; rm -rf $W/volume; }
refute() { if \"$@\"; then echo \"unwanted: $*\" >&2; exit 1; fi; }
lose_node1() { tatami node stop node1; rm -rf $W/volume/node1; tatami node start --empty node1; }
";

/// A help page: the command, and its examples.
struct HelpPage {
    command: String,
    examples: Vec<String>,
}

/// Returns the pages of all commands, of all levels.
fn help_pages() -> Vec<HelpPage> {
    let said = run(Command::new(tatami_bin()).args(["man", "--markdown"]));
    let blocks = said.out.split("\n## ").skip(1);
    let page = |block: &str| {
        let (command, text) = block.split_once('\n').expect("a heading ends its line");
        HelpPage { command: command.to_owned(), examples: examples_of(text) }
    };
    blocks.map(page).collect()
}

/// Returns the command lines of the examples in a help page, without their descriptions.
fn examples_of(help: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut open = false;
    let lines = help.lines().skip_while(|line| *line != "Examples:").skip(1);
    for line in lines.take_while(|line| !line.is_empty() && *line != "```") {
        // A line that the help wraps shows that the example is too long for a terminal.
        let text = line.strip_prefix("  ").unwrap_or_else(|| panic!("{line:?} is no example"));
        let (part, continues) = match text.strip_suffix('\\') {
            Some(part) => (part, true),
            None => (text, false),
        };
        // Two blanks separate an example from its description.
        let part = part.trim();
        let part = part.split_once("  ").map_or(part, |(example, _)| example);
        match found.last_mut().filter(|_| open) {
            Some(last) => last.extend([" ", part]),
            None => found.push(part.to_owned()),
        }
        open = continues;
    }
    found
}

/// Directories and a volume for examples; at the end everything is gone.
struct Scratch {
    dir: PathBuf,
    user: Option<u32>,
}

impl Scratch {
    fn new(user: Option<u32>) -> Scratch {
        let dir = PathBuf::from(format!("/tmp/tth{}-{}", user.unwrap_or(0), std::process::id()));
        for below in ["", "bin", "home", "scratch", "data", "share", "mnt/two", "mnt/tatami"] {
            fs::create_dir_all(dir.join(below)).expect("made");
        }
        fs::create_dir_all(dir.join("home/.zfunc")).expect("made");
        for name in ["tatami", "tatami-bench"] {
            copy_program(tatami_bin().with_file_name(name), dir.join("bin").join(name));
        }
        let library = "libtatami_preload.so";
        fs::copy(tatami_bin().with_file_name(library), dir.join("bin").join(library))
            .expect("the library of `tatami run` was built");
        fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).expect("set");
        if let Some(uid) = user {
            let all = run(program("find").arg(&dir));
            all.out.lines().for_each(|path| chown(path, Some(uid), Some(uid)).expect("given"));
        }
        Scratch { dir, user }
    }

    /// Returns the command that runs a script as the user.
    fn script(&self, script: &str) -> Command {
        let mut command = match self.user {
            Some(uid) => as_user(uid, "bash -c"),
            None => program("bash -c"),
        };
        command.arg(format!("{HELPERS}{script}")).current_dir(&self.dir);
        let path = format!(
            "{}:{}",
            self.dir.join("bin").display(),
            std::env::var("PATH").unwrap_or_default()
        );
        command.env_clear().env("PATH", path).env("LC_ALL", "C.UTF-8").env("W", &self.dir);
        command.env("HOME", self.dir.join("home")).env("TATAMI_DIR", self.dir.join("volume"));
        command.env("TATAMI_MOUNT_PATH", self.dir.join("mnt/tatami"));
        command
    }

    fn run_example(&self, example: &str) -> Said {
        let here =
            PLACES.iter().fold(example.to_owned(), |line, (from, to)| line.replace(from, to));
        let part = |table: &[(&str, &'static str)]| {
            let fits = |(begin, _): &&(&str, &str)| example.starts_with(begin);
            table.iter().find(fits).map_or("true", |(_, script)| *script)
        };
        let (first, then) = (part(&FIRST), part(&THEN));
        let (first, then) = (first.replace("; ", "\n"), then.replace("; ", "\n"));
        let mount = if self.user.is_none() { MOUNT_PREPARATION } else { "" };
        run(&mut self.script(&format!("{PREPARATION}\n{mount}\n{first}")));
        let said = ask(&mut self.script(&format!("cd $W/here\n{here}")));
        assert_eq!(said.code, Some(0), "{example}\n{}\n{}", said.out, said.err);
        run(&mut self.script(&then));
        said
    }

    /// Waits until nothing of the user's relayouts in the background is left.
    fn wait_for_relayouts(&self) {
        while run(&mut self.script("tatami relayout --status")).out.contains(": at ") {
            pause();
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = ask(&mut self.script("remove_volume"));
        for mount in mounts_below(&self.dir) {
            unmount_all(&mount);
        }
        processes_of(&self.dir).into_iter().for_each(kill_hard);
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn run_pages(scratch: &Scratch, is_wanted: impl Fn(&str, &str) -> bool) -> usize {
    let (mut ran, mut unused) = (0, BTreeSet::from_iter(LEFT_OUT.map(|(begin, ..)| begin)));
    for page in help_pages() {
        assert!(!page.examples.is_empty(), "`{} --help` has no examples", page.command);
        for example in page.examples {
            let left_out = LEFT_OUT.iter().find(|(begin, _, but)| {
                example.starts_with(begin) && (but.is_empty() || !example.contains(but))
            });
            if let Some((begin, ..)) = left_out {
                unused.remove(begin);
            } else if is_wanted(&page.command, &example) {
                scratch.run_example(&example);
                ran += 1;
            }
        }
    }
    scratch.wait_for_relayouts();
    assert!(unused.is_empty(), "there are no such examples: {unused:?}");
    ran
}

/// A new command without examples fails this test.
#[test]
fn examples_of_every_command_run() {
    let scratch = Scratch::new(None);
    let ran = run_pages(&scratch, |_, _| true);
    assert!(ran >= 70, "only {ran} examples ran");
}

/// Without mounts, since a machine may keep ordinary users from /dev/fuse.
#[test]
fn examples_run_for_an_ordinary_user() {
    let scratch = Scratch::new(Some(USER));
    let some =
        ["ls", "cp", "cat", "rm", "mkdir", "stat", "du", "df", "where", "status", "fsck", "untar"];
    let is_wanted = |command: &str, example: &str| {
        some.iter().any(|name| command == format!("tatami {name}")) && !example.contains("/mnt/")
    };
    let ran = run_pages(&scratch, is_wanted);
    assert!(ran >= 20, "only {ran} examples ran");
}
