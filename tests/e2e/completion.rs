//! Completion in real shells: what is typed, a tab, and what the shell then runs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tatami_tests::Cluster;
use tatami_tests::command::{as_user, ask, copy_program, program, run, tatami_bin};
use tatami_tests::files::put;
use tatami_tests::process::signal;

/// An ordinary user.
const USER: u32 = 4014;
/// Far more than a question that is not answered may take, and less than a client's patience.
const BOUND: Duration = Duration::from_secs(15);

/// A volume with some names, and a directory with a local file and the program.
struct TypingPlace {
    cluster: Cluster,
    dir: tempfile::TempDir,
}

impl TypingPlace {
    fn start(nodes: u16) -> TypingPlace {
        let cluster = Cluster::start(nodes);
        let m = cluster.mount(0);
        for dir in ["house", "my dir", "ünï", "sub"] {
            fs::create_dir(m.join(dir)).expect("made");
        }
        for file in ["house/alpha.txt", "house/beta:x", "my dir/inside", "lonely", ".hidden"] {
            put(m.join(file), "bytes");
        }
        let dir = tempfile::Builder::new().prefix("ttc").tempdir_in("/tmp").expect("a directory");
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("set");
        fs::create_dir(dir.path().join("bin")).expect("made");
        copy_program(tatami_bin(), dir.path().join("bin/tatami"));
        put(dir.path().join("local file"), "");
        TypingPlace { cluster, dir }
    }

    fn program(&self) -> PathBuf {
        self.dir.path().join("bin/tatami")
    }

    /// Types lines into a shell on a terminal. `tatami` prints its arguments there instead of
    /// running. Returns what it printed.
    fn type_lines(
        &self,
        mut user: Command,
        shell: &str,
        setup: &str,
        lines: &[&str],
    ) -> Vec<String> {
        let typed = format!("{setup}\n{}\nexit\n", lines.join("\n"));
        let file = self.dir.path().join("typed");
        fs::write(&file, typed).expect("written");
        let path = format!(
            "{}:{}",
            self.dir.path().join("bin").display(),
            std::env::var("PATH").unwrap_or_default()
        );
        // A shell that waits for more input must not keep the test waiting.
        user.args(["timeout", "--kill-after=5", "120"]);
        user.args(["script", "-qec", shell, "/dev/null"]).env("PATH", path);
        user.env("TATAMI_DIR", self.cluster.dir()).env("LC_ALL", "C.UTF-8").env("TERM", "dumb");
        user.env("HOME", self.dir.path()).current_dir(self.dir.path());
        let input = fs::File::open(&file).expect("it is there");
        let said = user.stdin(Stdio::from(input)).output().expect("it runs");
        let out = String::from_utf8_lossy(&said.stdout).replace('\r', "");
        let shown = out.lines().filter_map(|line| line.find("ran:<").map(|at| &line[at..]));
        let shown: Vec<String> = shown.map(|line| line["ran:".len()..].to_owned()).collect();
        assert_eq!(shown.len(), lines.len(), "{out}");
        shown
    }

    /// Types lines into bash.
    fn type_in_bash(&self, user: Command, cases: &[(&str, &str)]) {
        let rc = "PS1=\nset +o history\nbind 'set enable-bracketed-paste off'\n\
            source <(tatami completions bash)\n\
            tatami() { printf 'ran:'; printf '<%s>' \"$@\"; echo; }\n";
        fs::write(self.dir.path().join("rc"), rc).expect("written");
        let shell = "bash --noprofile --rcfile rc -i";
        let lines: Vec<&str> = cases.iter().map(|(typed, _)| *typed).collect();
        let ran = self.type_lines(user, shell, "", &lines);
        for ((typed, wanted), ran) in cases.iter().zip(ran) {
            assert_eq!(ran, *wanted, "typed in bash: {typed:?}");
        }
    }

    /// Returns the candidates that bash is given for the words of a line.
    fn candidates(&self, line: &str, words: &[&str]) -> Vec<String> {
        let script = "source <(\"$0\" completions bash)
            COMP_LINE=$1 COMP_POINT=${#1}; shift
            COMP_WORDS=(\"$@\") COMP_CWORD=$(($# - 1))
            _tatami \"$0\"
            printf '%s\\n' \"${COMPREPLY[@]}\"";
        let mut command = program("bash -c");
        command.arg(script).arg(self.program()).arg(line).args(words);
        let said = run(command.env("TATAMI_DIR", self.cluster.dir()));
        said.out.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }
}

#[test]
fn bash_completes_names_nodes_and_options() {
    let place = TypingPlace::start(2);
    place.type_in_bash(
        program("env"),
        &[
            ("tatami ls :/hou\t", "<ls><:/house/>"),
            ("tatami ls :hou\t", "<ls><:house/>"),
            ("tatami ls tatami:/hou\t", "<ls><tatami:/house/>"),
            ("tatami cat :/house/al\t", "<cat><:/house/alpha.txt>"),
            ("tatami cat :/house/bet\t", "<cat><:/house/beta:x>"),
            ("tatami stat :/my\tin\t", "<stat><:/my dir/inside>"),
            // Bash closes the quotes itself: no local directory has this name.
            ("tatami stat \":/my\t", "<stat><:/my dir/>"),
            ("tatami stat ':/my\t", "<stat><:/my dir/>"),
            ("tatami ls :/ü\t", "<ls><:/ünï/>"),
            ("tatami ls \thou\t", "<ls><:/house/>"),
            ("tatami ls -l :/house/alpha.txt :/su\t", "<ls><-l><:/house/alpha.txt><:/sub/>"),
            ("tatami ls :/none\t", "<ls><:/none>"),
            ("tatami node stop no\t1", "<node><stop><node1>"),
            ("tatami mount --node no\t0 x", "<mount><--node><node0><x>"),
            ("tatami relayout --on=0,no\t1 :/lon\t", "<relayout><--on=0,node1><:/lonely>"),
            ("tatami ls --rec\t", "<ls><--recursive>"),
            ("tatami ls --mount-pass\t", "<ls><--mount-passthrough>"),
            ("tatami relayout --to=st\t", "<relayout><--to=striped>"),
            ("tatami cp loc\t:/ho\t", "<cp><local file><:/house/>"),
            ("tatami fsc\t", "<fsck>"),
            ("tatami node reb\t", "<node><rebalance>"),
        ],
    );
    // The command's own options come without those of the configuration.
    let options = place.candidates("tatami ls --", &["tatami", "ls", "--"]);
    assert!(options.contains(&"--recursive".to_owned()), "{options:?}");
    assert!(!options.iter().any(|option| option.starts_with("--mount-")), "{options:?}");
    let both = place.candidates("tatami ls :/", &["tatami", "ls", ":", "/"]);
    assert_eq!(both, ["/house/", "/lonely", "/my dir/", "/sub/", "/ünï/"]);
    let hidden = place.candidates("tatami ls :/.", &["tatami", "ls", ":", "/."]);
    assert_eq!(hidden, ["/.hidden"]);
    // More names than a list has room for: bash must not insert what only some begin with.
    let many = place.cluster.mount(1).join("sub");
    (0..2500).for_each(|n| put(many.join(format!("file{n}")), ""));
    let list = place.candidates("tatami ls :/sub/", &["tatami", "ls", ":", "/sub/"]);
    assert!(list.len() <= 2001 && list.last().is_some_and(|end| end == "/sub/…"), "{list:?}");
    let few = place.candidates("tatami ls :/sub/file24", &["tatami", "ls", ":", "/sub/file24"]);
    assert_eq!(few.len(), 111, "{few:?}");
    place.cluster.finish();
}

#[test]
fn bash_completes_for_an_ordinary_user_what_that_user_may_see() {
    let place = TypingPlace::start(1);
    let m = place.cluster.mount(0);
    fs::create_dir_all(m.join("closed/secret")).expect("made");
    fs::set_permissions(m.join("closed"), PermissionsExt::from_mode(0o700)).expect("set");
    chown(place.dir.path(), Some(USER), Some(USER)).expect("given");
    place.type_in_bash(
        as_user(USER, "env"),
        &[
            ("tatami ls :/hou\t", "<ls><:/house/>"),
            ("tatami ls :/closed/sec\t", "<ls><:/closed/sec>"),
            ("tatami node stop no\t", "<node><stop><node0>"),
        ],
    );
    place.cluster.finish();
}

/// Without an answer there are no candidates, no message, and no long wait.
#[test]
fn a_volume_that_does_not_answer_costs_no_time() {
    let place = TypingPlace::start(1);
    let complete = |dir: &Path| {
        let start = Instant::now();
        let mut command = Command::new(tatami_bin());
        command.args(["complete", "--shell", "bash", "--", "tatami", "ls", ":/hou"]);
        let said = ask(command.env("TATAMI_DIR", dir));
        assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
        assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{said:?}");
        said.out
    };
    assert_eq!(complete(place.cluster.dir()), "paths\0:/house/\0");
    let pid = place.cluster.node_pid(0);
    signal(pid, rustix::process::Signal::STOP);
    let stopped = complete(place.cluster.dir());
    signal(pid, rustix::process::Signal::CONT);
    assert_eq!(stopped, "paths\0");
    place.cluster.tatami("node stop", &["0"]);
    assert_eq!(complete(place.cluster.dir()), "paths\0");
    place.cluster.up();
    let empty = place.dir.path().join("no volume");
    assert_eq!(complete(&empty), "paths\0");
    fs::create_dir(&empty).expect("made");
    put(empty.join("tatami.toml"), "nonsense");
    assert_eq!(complete(&empty), "paths\0");
    place.cluster.finish();
}

#[test]
fn zsh_and_fish_complete_names_of_the_volume() {
    let place = TypingPlace::start(2);
    let setup = "PS1=\nautoload -U compinit && compinit -u -D\nsource <(tatami completions zsh)\n\
        tatami() { printf 'ran:'; printf '<%s>' \"$@\"; echo }";
    let cases = [
        ("tatami ls :/hou\t", "<ls><:/house/>"),
        ("tatami cat :/house/al\t", "<cat><:/house/alpha.txt>"),
        ("tatami stat :/my\tin\t", "<stat><:/my dir/inside>"),
        ("tatami node stop no\t1", "<node><stop><node1>"),
        ("tatami ls --rec\t", "<ls><--recursive>"),
        ("tatami cp loc\t:/ho\t", "<cp><local file><:/house/>"),
    ];
    let lines: Vec<&str> = cases.iter().map(|(typed, _)| *typed).collect();
    let ran = place.type_lines(program("env"), "zsh -f -i", setup, &lines);
    for ((typed, wanted), ran) in cases.iter().zip(ran) {
        assert_eq!(ran, *wanted, "typed in zsh: {typed:?}");
    }
    for (typed, wanted) in [
        ("tatami ls :/hou", ":/house/"),
        ("tatami cat :/house/al", ":/house/alpha.txt"),
        ("tatami node stop node1", "node1"),
        ("tatami ls --rec", "--recursive\tAlso list subdirectories"),
        ("tatami cp loc", "local file"),
    ] {
        let mut command = program("fish --no-config -c");
        command.arg("$argv[1] completions fish | source; complete -C $argv[2]");
        command.arg(place.program()).arg(typed).current_dir(place.dir.path());
        let path = place.dir.path().join("bin").display().to_string();
        let path = format!("{path}:{}", std::env::var("PATH").unwrap_or_default());
        command.env("PATH", path).env("TATAMI_DIR", place.cluster.dir());
        let said = run(command.env("HOME", place.dir.path()));
        assert_eq!(said.out.trim_end(), wanted, "typed in fish: {typed:?}");
    }
    place.cluster.finish();
}
