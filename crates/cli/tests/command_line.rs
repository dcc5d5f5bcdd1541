//! Commands that need no daemon: help, completions, manual pages, configuration.

mod common;

use common::{Said, Volume, command, tatami};
use std::process::Stdio;

const COMMANDS: [&str; 26] = [
    "up",
    "down",
    "status",
    "node",
    "mount",
    "umount",
    "where",
    "set",
    "get",
    "recover",
    "relayout",
    "ls",
    "cp",
    "sync",
    "mv",
    "cat",
    "rm",
    "mkdir",
    "stat",
    "df",
    "fsck",
    "bench",
    "exec",
    "config",
    "completions",
    "man",
];

#[test]
fn every_command_has_help_with_examples() {
    for name in COMMANDS {
        let said = tatami([name, "--help"]);
        assert!(said.works().out.contains("Usage: tatami"), "{name}: {said:?}");
        assert!(said.out.contains("Examples:"), "{name} has no examples");
    }
    for name in ["run", "list", "start", "stop"] {
        assert!(tatami(["node", name, "--help"]).works().out.contains("Examples:"), "node {name}");
    }
    let said = tatami(["--help"]);
    for name in COMMANDS {
        assert!(said.out.contains(&format!("\n  {name}")), "{name} is not listed");
    }
    assert!(said.out.contains("Exit codes: 0 ok, 1 failure, 2"), "{said:?}");
    tatami(["--version"]).works();
    tatami(["nonsense"]).fails(2, &["nonsense"]);
    tatami(["lst"]).fails(2, &["lst"]);
}

#[test]
fn completions_are_scripts() {
    for (shell, part) in
        [("bash", "complete -F"), ("zsh", "#compdef tatami"), ("fish", "complete -c tatami")]
    {
        let said = tatami(["completions", shell]);
        assert!(said.works().out.contains(part), "{shell}");
        // The scripts ask the program.
        assert!(said.out.contains("complete --shell"), "{said:?}");
        let said = tatami(["complete", "--shell", shell, "--", "tatami", ""]);
        let all: Vec<_> = said.works().out.split(['\0', '\n', '\t']).collect();
        assert!(COMMANDS.iter().all(|name| all.contains(name)), "{shell} lacks commands: {all:?}");
    }
    tatami(["completions", "csh"]).fails(2, &["bash", "zsh"]);
}

#[test]
fn manual_pages_are_printed_and_written() {
    let page = tatami(["man"]);
    assert!(page.works().out.contains(".TH tatami 1"));
    assert!(page.out.contains(".SH EXIT STATUS") && page.out.contains("TATAMI_MOUNT_PATH"));
    let dir = tempfile::tempdir().expect("a temporary directory");
    tatami(["man".as_ref(), dir.path().as_os_str()]).works();
    for name in COMMANDS {
        let page = dir.path().join(format!("tatami-{name}.1"));
        assert!(page.is_file(), "no page for {name}");
    }
    assert!(dir.path().join("tatami-node-run.1").is_file());
}

#[test]
fn every_key_is_taken_from_flag_variable_and_file() {
    let volume = Volume::new();
    let base = volume.run("config", ["--json"]).works().json();
    for (name, entry) in base["keys"].as_object().expect("all keys") {
        assert_eq!(entry["origin"], "default", "{name}");
        let text = match &entry["value"] {
            serde_json::Value::Bool(b) => (!b).to_string(),
            // Four is the newest.
            _ if name == "node.protocol" => "3".to_owned(),
            serde_json::Value::Number(n) => (n.as_u64().expect("unsigned") + 1).to_string(),
            _ if name == "log" => "warn".to_owned(),
            _ if name == "volume.durability" => "sync".to_owned(),
            _ if name == "volume.encryption" => "tls".to_owned(),
            _ if name == "client.when_full" => "refuse".to_owned(),
            _ => "/elsewhere".to_owned(),
        };
        let quoted = if entry["value"].is_string() { format!("{text:?}") } else { text.clone() };
        let check = |said: Said, origin: &str| {
            let now = &said.works().json()["keys"][name];
            let shown = now["value"].as_str().map_or(now["value"].to_string(), str::to_owned);
            assert_eq!(shown, text, "{name}");
            assert!(now["origin"].as_str().expect("text").contains(origin), "{name}: {now}");
        };
        let file = volume.path("one.toml");
        std::fs::write(&file, format!("{name} = {quoted}\n")).expect("written");
        let file = file.to_str().expect("UTF-8");
        check(volume.run("config", ["--json", "--config", file]), "one.toml:1");
        let variable = entry["variable"].as_str().expect("text");
        let mut with = volume.command("config", ["--json"]);
        check(with.env(variable, &text).output().expect("runs").into(), variable);
        let flag = format!("{}={text}", entry["flag"].as_str().expect("text"));
        check(volume.run("config", ["--json", &flag]), flag.split('=').next().expect("a flag"));
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = command(["config", "--defaults"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(child.stdout.take());
    let said = Said::from(child.wait_with_output().expect("it ends"));
    assert_eq!(said.err, "", "{said:?}");
    assert!(matches!(said.code, Some(0 | 141)), "{said:?}");
}

#[test]
fn output_that_is_no_terminal_has_no_colours() {
    let volume = Volume::new();
    let said = volume.run("config", [""; 0]);
    assert!(!said.works().out.contains('\u{1b}'));
    let said = volume.run("ls", [""; 0]);
    assert!(!said.err.contains('\u{1b}'));
}
