//! Checks the rules of the code base that a reader would otherwise have to remember.

#[path = "tidy/imports.rs"]
mod imports;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tatami_tests::command::{program, run, sources, tatami_bin};

/// Longest source file, in lines. In longer files a reader loses the overview.
const LINES_MAX: usize = 900;

fn root() -> &'static Path {
    sources().parent().expect("the workspace")
}

/// Returns every file of the project: tracked by git, or new and not ignored.
fn project_files() -> Vec<PathBuf> {
    let mut git = program("git ls-files --cached --others --exclude-standard");
    let listed = run(git.current_dir(root())).out;
    listed.lines().map(PathBuf::from).filter(|p| root().join(p).is_file()).collect()
}

fn text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(root().join(path)).expect("a file of the project"))
        .into_owned()
}

fn with_extension(extensions: &[&str]) -> Vec<PathBuf> {
    let fits = |path: &PathBuf| {
        path.extension().and_then(|e| e.to_str()).is_some_and(|e| extensions.contains(&e))
    };
    project_files().into_iter().filter(fits).collect()
}

fn report(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

/// Returns the lines of code of a file, without its unit tests.
fn code(path: &Path) -> String {
    let all = text(path);
    all.split("#[cfg(test)]").next().unwrap_or_default().to_owned()
}

#[test]
fn no_file_is_too_long() {
    let long: Vec<String> = with_extension(&["rs", "c", "h", "sh", "py"])
        .iter()
        .map(|p| (p, text(p).lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(p, lines)| format!("{} has {lines} lines", p.display()))
        .collect();
    report(&format!("files of more than {LINES_MAX} lines"), &long);
}

#[test]
fn no_markers_are_left() {
    // Spelled in halves, so that this file does not find itself.
    let markers: Vec<String> = [
        ("TO", "DO"),
        ("FIX", "ME"),
        ("XX", "X"),
        ("HA", "CK"),
        ("todo", "!("),
        ("unimpl", "emented!("),
        ("dbg", "!("),
        ("<<<<", "<<<"),
        (">>>>", ">>>"),
    ]
    .iter()
    .map(|(a, b)| format!("{a}{b}"))
    .collect();
    let mut found = Vec::new();
    for path in project_files().iter().filter(|p| !p.ends_with("Cargo.lock")) {
        for (number, line) in text(path).lines().enumerate() {
            if markers.iter().any(|m| line.contains(m.as_str())) {
                found.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    report("left markers", &found);
}

#[test]
fn no_path_of_one_persons_machine_is_named() {
    let homes: Vec<String> = [("/ho", "me/"), ("/ro", "ot/"), ("/wo", "rk/"), ("/Us", "ers/")]
        .iter()
        .map(|(a, b)| format!("{a}{b}"))
        .collect();
    let mut found = Vec::new();
    for path in project_files() {
        for (number, line) in text(&path).lines().enumerate() {
            if homes.iter().any(|h| line.contains(h.as_str())) {
                found.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    report("absolute paths of somebody's machine", &found);
}

#[test]
fn every_crate_is_in_the_architecture() {
    let architecture = text(Path::new("ARCHITECTURE.md"));
    let crates = fs::read_dir(root().join("crates")).expect("crates");
    let missing: Vec<String> = crates
        .map(|entry| format!("crates/{}", entry.expect("an entry").file_name().display()))
        .filter(|name| !architecture.contains(&format!("`{name}`")))
        .collect();
    report("crates without a line in ARCHITECTURE.md", &missing);
}

/// Returns the source files that a page names in backticks, with `{a,b}` written out.
fn named_sources(page: &str) -> Vec<String> {
    let is_source = |word: &&str| word.contains("/src/") && word.ends_with(".rs");
    let words = page.split('`').skip(1).step_by(2).filter(is_source);
    let expand = |word: &str| match (word.find('{'), word.find('}')) {
        (Some(open), Some(close)) if open < close => word[open + 1..close]
            .split(',')
            .map(|part| format!("{}{part}{}", &word[..open], &word[close + 1..]))
            .collect(),
        _ => vec![word.to_owned()],
    };
    words.flat_map(expand).collect()
}

#[test]
fn source_files_that_pages_name_exist() {
    let mut missing = Vec::new();
    for page in with_extension(&["md"]) {
        let sources = named_sources(&text(&page));
        let lost = sources.iter().filter(|source| {
            !root().join(source).is_file() && !root().join("crates").join(source).is_file()
        });
        missing.extend(lost.map(|source| format!("{}: {source}", page.display())));
    }
    report("source files that a page names and that are not there", &missing);
}

/// Layers: no crate knows the crates above it (see ARCHITECTURE.md). The test rejects a crate that
/// is missing here, and an allowed dependency that is unused. So the list is exact.
#[test]
fn crates_depend_downwards_only() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("layout", &[] as &[&str]),
        ("archive", &[]),
        ("fuse", &[]),
        ("model", &[]),
        ("skip", &[]),
        ("plot", &[]),
        ("wire", &["layout"]),
        ("cluster", &["wire"]),
        ("hosts", &["wire", "cluster"]),
        ("meta", &["wire", "layout"]),
        ("sim", &["wire", "meta"]),
        ("tables", &["wire"]),
        ("region", &["wire", "tables"]),
        ("object", &["wire", "tables", "region"]),
        ("net", &["wire", "cluster"]),
        ("client", &["wire", "layout", "tables", "net"]),
        ("node", &["wire", "layout", "cluster", "meta", "object", "client", "tables", "net"]),
        ("remote", &["wire", "net"]),
        ("tiled", &["wire", "layout", "cluster", "client", "remote"]),
        ("gateway", &["wire", "layout", "net", "remote", "tiled"]),
        ("capi", &["layout", "tiled"]),
        ("preload", &["wire", "net", "client", "cluster"]),
        ("mount", &["wire", "layout", "client", "fuse", "tiled"]),
        ("site-mount", &["fuse", "mount", "remote"]),
        ("bench-args", &["wire"]),
        (
            "bench",
            &[
                "bench-args",
                "wire",
                "cluster",
                "client",
                "fuse",
                "mount",
                "net",
                "plot",
                "region",
                "sim",
            ],
        ),
        (
            "cli",
            &[
                "archive",
                "wire",
                "client",
                "cluster",
                "hosts",
                "node",
                "mount",
                "bench-args",
                "tiled",
                "gateway",
                "remote",
                "site-mount",
            ],
        ),
    ]);
    let mut wrong = Vec::new();
    for entry in fs::read_dir(root().join("crates")).expect("crates") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        let Some(may) = allowed.get(name.as_str()) else {
            wrong.push(format!("crates/{name} is not in the list of this test"));
            continue;
        };
        let manifest = text(&Path::new("crates").join(&name).join("Cargo.toml"));
        let normal = manifest.split("[dev-dependencies]").next().unwrap_or_default();
        let own = normal.lines().filter_map(|line| line.strip_prefix("tatami-"));
        let used: BTreeSet<&str> =
            own.map(|rest| rest.split(['.', ' ', '=']).next().unwrap_or_default()).collect();
        let may: BTreeSet<&str> = may.iter().copied().collect();
        wrong
            .extend(used.difference(&may).map(|other| format!("crates/{name} depends on {other}")));
        let unused = may.difference(&used);
        wrong.extend(unused.map(|other| format!("crates/{name} need not be allowed {other}")));
    }
    report("dependencies between crates", &wrong);
}

/// A reader reads a crate from the lowest file upwards. That works where no two files need each
/// other.
#[test]
fn files_of_a_crate_import_downwards_only() {
    let mut wrong = Vec::new();
    for entry in fs::read_dir(root().join("crates")).expect("crates") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        let src = Path::new("crates").join(&name).join("src");
        let sources: imports::Sources = with_extension(&["rs"])
            .iter()
            .filter_map(|p| Some((p.strip_prefix(&src).ok()?.to_owned(), text(p))))
            .collect();
        let found = match imports::find_imports(&sources, &crates_known_to(&name)) {
            Ok(found) => found,
            Err(errors) => {
                wrong.extend(errors.into_iter().map(|error| format!("{name}: {error}")));
                continue;
            }
        };
        for cycle in imports::find_cycles(&found) {
            wrong.push(format!("{name}: a cycle"));
            wrong.extend(cycle.iter().map(|import| format!("{name}:   {import}")));
        }
    }
    report("imports between the files of a crate", &wrong);
}

/// Returns the names of the crates that the code of the crate `name` may name.
fn crates_known_to(name: &str) -> Vec<String> {
    let manifest = text(&Path::new("crates").join(name).join("Cargo.toml"));
    let word =
        |line: &str| line.split(['.', ' ', '=']).next().unwrap_or_default().replace('-', "_");
    let mut known: Vec<String> = ["std", "core", "alloc"].map(str::to_owned).to_vec();
    known.extend(manifest.lines().map(word).filter(|word| !word.is_empty()));
    known.push(format!("tatami_{name}"));
    known
}

/// No source of different results for the same input. clippy.toml bans the calls; this test finds
/// the cases that clippy cannot see, such as `Default` of a map.
#[test]
fn meta_and_layout_are_deterministic() {
    let banned = [
        "SystemTime::now",
        "Instant::now",
        "thread::spawn",
        "getrandom",
        "fastrand",
        "RandomState",
        "std::net",
        "os::unix::net",
        "mio::",
        "HashMap::default()",
        "HashSet::default()",
    ];
    let mut found = Vec::new();
    for path in with_extension(&["rs"]) {
        let in_scope = path.starts_with("crates/meta/src") || path.starts_with("crates/layout/src");
        if in_scope && !path.ends_with("tests.rs") {
            let code = code(&path);
            let hits = banned.iter().filter(|b| code.contains(*b));
            found.extend(hits.map(|b| format!("{}: {b}", path.display())));
        }
    }
    report("nondeterminism in meta or layout", &found);
}

/// The client runs inside other people's programs.
#[test]
fn the_client_starts_no_thread_and_touches_no_signal() {
    let banned =
        ["thread::spawn", "Builder::new().spawn", "sigaction", "signal(", "tokio", "fork("];
    let mut found = Vec::new();
    let linked =
        |p: &&PathBuf| ["client", "net"].iter().any(|c| p.starts_with(format!("crates/{c}/src")));
    for path in with_extension(&["rs"]).iter().filter(linked) {
        let code = code(path);
        found.extend(
            banned.iter().filter(|b| code.contains(*b)).map(|b| format!("{}: {b}", path.display())),
        );
    }
    report("in crates/client or crates/net", &found);
}

#[test]
fn every_crate_takes_part_in_the_lints() {
    let mut missing = Vec::new();
    for path in project_files().iter().filter(|p| p.ends_with("Cargo.toml")) {
        let manifest = text(path);
        if manifest.contains("[package]") && !manifest.contains("[lints]\nworkspace = true") {
            missing.push(path.display().to_string());
        }
    }
    report("crates without `[lints] workspace = true`", &missing);
}

/// Every source file states its purpose at its top.
#[test]
fn every_module_says_what_it_is_for() {
    let silent: Vec<String> = with_extension(&["rs"])
        .iter()
        .filter(|p| !text(p).starts_with("//!"))
        .map(|p| p.display().to_string())
        .collect();
    report("files that do not begin with `//!`", &silent);
}

/// Returns the names of the tests in a source file.
fn tests_in(source: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if line.trim() == "#[test]" {
            let name = lines.clone().find_map(|l| l.trim().strip_prefix("fn "));
            found.extend(name.and_then(|n| n.split('(').next()));
        }
    }
    found
}

/// Sentences of docs/reference/semantics.md name their tests, as `file::test` in this folder
/// or `path/to/file.rs::test`. The tests are there.
#[test]
fn sentences_of_the_semantics_name_tests_that_exist() {
    let page = text(Path::new("docs/reference/semantics.md"));
    let words = page.split('`').skip(1).step_by(2);
    let named: BTreeSet<(&str, &str)> =
        words.filter(|w| !w.contains(' ')).filter_map(|w| w.rsplit_once("::")).collect();
    assert!(named.len() >= 20, "docs/reference/semantics.md names {} tests", named.len());
    let mut missing = Vec::new();
    for (file, test) in named.into_iter().filter(|(file, _)| *file != "file") {
        let path = match file.ends_with(".rs") {
            true => PathBuf::from(file),
            false => Path::new("tests/e2e").join(file).with_extension("rs"),
        };
        let there = root().join(&path).is_file() && tests_in(&text(&path)).contains(test);
        if !there {
            missing.push(format!("{file}::{test}"));
        }
    }
    report("tests named in docs/reference/semantics.md that do not exist", &missing);
}

/// Commands in the README: each command exists, and has the options.
#[test]
fn commands_of_the_readme_exist() {
    let readme = text(Path::new("README.md"));
    let blocks = readme.split("```").skip(1).step_by(2);
    let mut looked_at = 0;
    for line in blocks.flat_map(str::lines).map(|line| line.split('#').next().unwrap_or_default()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        // A launcher may run the command: words before the first `tatami` belong to the launcher.
        for words in words.split(|word| *word == "tatami").skip(1) {
            let Some((command, words)) = words.split_first() else { continue };
            let help_of =
                |words: &[&str]| run(Command::new(tatami_bin()).args(words).arg("--help")).out;
            let mut help = help_of(&[command]);
            if let Some(verb) = words.first().filter(|verb| !verb.starts_with('-'))
                && help.lines().any(|line| line.trim_start().starts_with(&format!("{verb} ")))
                && help.contains("\nCommands:\n")
            {
                help = help_of(&[command, verb]);
            }
            // Words behind `--` belong to another program.
            let own = words.iter().take_while(|word| **word != "--");
            for option in own.filter(|word| word.starts_with("--")) {
                assert!(help.contains(option), "tatami {command} has no {option}");
            }
            looked_at += 1;
        }
    }
    assert!(looked_at >= 10, "only {looked_at} commands in README.md");
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut broken = Vec::new();
    for path in with_extension(&["md"]) {
        let page = text(&path);
        for target in page.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            let place = root().join(path.parent().unwrap_or(Path::new(""))).join(file);
            if !place.exists() {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    report("links to nothing", &broken);
}

#[test]
fn the_check_that_decides_is_the_one_that_developers_run() {
    assert!(text(Path::new(".ci/run")).contains("make test"));
    assert!(text(Path::new("README.md")).contains("make test"));
}
