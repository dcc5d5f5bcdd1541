//! The language of the project, as far as a machine can check it: words, names, comments, widths.
//! `CONTRIBUTING.md` has the rules, `docs/glossary.md` the terms.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tatami_tests::command::{program, run, sources};

/// Longest line of a document or a comment, in columns.
const COLUMNS_MAX: usize = 100;
/// Longest ARCHITECTURE.md, in lines: it is a map, and the mechanisms have pages of their own.
const ARCHITECTURE_LINES_MAX: usize = 150;
/// Most function names of one word, in percent of all.
const ONE_WORD_MAX: usize = 45;
/// Fewest lines of plain comments, in tenths of a percent of the lines of a crate's code. They give
/// the reason at the step.
const REASONS_MIN: usize = 30;
/// Crates whose steps need reasons most: protocols, caches, atomics.
const REASONED: [&str; 4] = ["meta", "node", "client", "tiled"];

/// Most words of a sentence in the pages that newcomers, users and administrators read first.
const SENTENCE_MAX: usize = 25;
/// These pages: files, and folders with all their files.
const FIRST_PAGES: [&str; 6] = [
    "README.md",
    "docs/start.md",
    "docs/start/",
    "docs/faq.md",
    "docs/operating/",
    "docs/concepts/",
];

/// Words that stand for a missing noun, and how often each group may be used in 10,000 words. The
/// limits are twice the highest rates of TigerBeetle, SlateDB, redb, fjall, Mountpoint-S3 and
/// Crucible.
const VAGUE: [(&[&str], f64); 3] = [
    (&["who", "whoever", "whom"], 1.2),
    (&["tell", "tells", "told", "telling"], 3.4),
    (&["what", "whatever"], 38.0),
];

fn root() -> &'static Path {
    sources().parent().expect("the workspace")
}

/// Files of the project with one of these extensions, relative to its root.
fn files_with(extensions: &[&str]) -> Vec<PathBuf> {
    let mut git = program("git ls-files --cached --others --exclude-standard");
    let listed = run(git.current_dir(root())).out;
    let fits = |path: &PathBuf| {
        let extension = path.extension().and_then(|e| e.to_str());
        extension.is_some_and(|e| extensions.contains(&e)) && root().join(path).is_file()
    };
    listed.lines().map(PathBuf::from).filter(fits).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(root().join(path)).expect("a text file of the project")
}

fn report(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

/// The prose of a file: each line of a document outside of code blocks, or each comment of a source
/// file, with the number of its line and the length of the whole line.
fn prose(path: &Path) -> Vec<(usize, usize, String)> {
    let text = read(path);
    let is_document = path.extension().is_some_and(|e| e == "md");
    let mut in_block = false;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let columns = line.chars().count();
        let words = if is_document {
            if line.trim_start().starts_with("```") {
                in_block = !in_block;
            }
            (!in_block).then_some(line)
        } else {
            comment_of(line)
        };
        found.extend(words.map(|words| (number + 1, columns, words.to_owned())));
    }
    found
}

/// The comment of a line of Rust or C. Strings with slashes in them are no comments.
fn comment_of(line: &str) -> Option<&str> {
    let at = line.find("//")?;
    let before = &line[..at];
    let is_alone = before.trim().is_empty();
    let is_behind_code = before.ends_with(' ') && before.matches('"').count().is_multiple_of(2);
    (is_alone || is_behind_code).then(|| line[at..].trim_start_matches(['/', '!']))
}

fn words_in(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphabetic() && c != '\'')
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
}

#[test]
fn sentences_name_their_actors() {
    let mut all = 0usize;
    let mut counts = [0usize; VAGUE.len()];
    let mut worst: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for path in files_with(&["rs", "c", "h", "md"]) {
        for word in prose(&path).iter().flat_map(|(_, _, text)| words_in(text)) {
            all += 1;
            for (count, (group, _)) in counts.iter_mut().zip(VAGUE) {
                if group.contains(&word.as_str()) {
                    *count += 1;
                    *worst.entry(path.clone()).or_default() += 1;
                }
            }
        }
    }
    assert!(all > 50_000, "only {all} words were looked at");
    let mut worst: Vec<_> = worst.into_iter().collect();
    worst.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let mut found = Vec::new();
    for (count, (group, most)) in counts.into_iter().zip(VAGUE) {
        let rate = count as f64 * 10_000.0 / all as f64;
        if rate > most {
            found.push(format!("{}: {rate:.1} in 10,000 words, at most {most}", group.join(", ")));
        }
    }
    if !found.is_empty() {
        found.extend(worst.iter().take(20).map(|(path, n)| format!("{n} in {}", path.display())));
    }
    report("words that hide the actor of a sentence", &found);
}

#[test]
fn lines_of_prose_fit_the_width() {
    let mut long = Vec::new();
    for path in files_with(&["rs", "c", "h", "md"]) {
        let is_document = path.extension().is_some_and(|e| e == "md");
        for (number, columns, text) in prose(&path) {
            // A row of a table is one line, and an address cannot be broken.
            let is_whole =
                (is_document && text.trim_start().starts_with('|')) || text.contains("://");
            if columns > COLUMNS_MAX && !is_whole {
                long.push(format!("{}:{number}: {columns} columns", path.display()));
            }
        }
    }
    report(&format!("lines of more than {COLUMNS_MAX} columns"), &long);
}

/// Splits the prose of a page into blocks: paragraphs and items of lists, without code, headings
/// and tables. A code span counts as one word.
fn text_blocks(page: &str) -> Vec<String> {
    let (mut blocks, mut block, mut in_code) = (Vec::new(), String::new(), false);
    for line in page.lines().map(str::trim) {
        in_code ^= line.starts_with("```");
        let is_item = line.starts_with("- ")
            || line.starts_with("* ")
            || line.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        let is_fence = line.starts_with("```");
        let ends = in_code || is_fence || line.is_empty() || line.starts_with(['#', '|']);
        if ends || is_item {
            blocks.push(std::mem::take(&mut block));
        }
        if !ends {
            block.push_str(line);
            block.push(' ');
        }
    }
    blocks.push(block);
    blocks
}

/// Returns the sentences of a block of text.
fn split_sentences(block: &str) -> Vec<String> {
    let spans: String = block
        .split('`')
        .enumerate()
        .map(|(at, part)| if at % 2 == 0 { part.to_owned() } else { "code".to_owned() })
        .collect();
    let (mut all, mut sentence) = (Vec::new(), Vec::new());
    for word in spans.split_whitespace() {
        sentence.push(word);
        let end = word.trim_end_matches([')', '"', '\'', '*', '_']);
        if end.ends_with(['.', '?', '!']) {
            all.push(std::mem::take(&mut sentence).join(" "));
        }
    }
    all.push(sentence.join(" "));
    all
}

#[test]
fn sentences_of_the_first_pages_are_short() {
    let (mut long, mut seen) = (Vec::new(), 0);
    for path in files_with(&["md"]) {
        let name = path.display().to_string();
        if !FIRST_PAGES
            .iter()
            .any(|page| name == *page || page.ends_with('/') && name.starts_with(page))
        {
            continue;
        }
        for sentence in text_blocks(&read(&path)).iter().flat_map(|block| split_sentences(block)) {
            let has_letters = |word: &&str| word.contains(char::is_alphanumeric);
            let words = sentence.split(' ').filter(has_letters).count();
            seen += usize::from(words > 0);
            if words > SENTENCE_MAX {
                long.push(format!("{name}: {words} words: {sentence}"));
            }
        }
    }
    assert!(seen > 300, "only {seen} sentences were looked at");
    report(&format!("sentences of more than {SENTENCE_MAX} words"), &long);
}

#[test]
fn sentences_are_found_where_they_end() {
    let page = "# Not this one\nOne `a. b` is. Two\nis\nhere: (yes).\n- An item\n```\ncode. code\n```\n| a | b |\n";
    let all: Vec<_> = text_blocks(page)
        .iter()
        .flat_map(|block| split_sentences(block))
        .filter(|sentence| !sentence.is_empty())
        .collect();
    assert_eq!(all, ["One code is.", "Two is here: (yes).", "- An item"]);
}

#[test]
fn the_architecture_is_a_map() {
    let lines = read(Path::new("ARCHITECTURE.md")).lines().count();
    assert!(lines <= ARCHITECTURE_LINES_MAX, "ARCHITECTURE.md has {lines} lines");
}

/// The code of the crates without tests: path and text.
fn product_code() -> Vec<(PathBuf, String)> {
    let in_product = |path: &PathBuf| {
        let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
        parts.first() == Some(&"crates")
            && parts.get(2) == Some(&"src")
            && !path.ends_with("tests.rs")
    };
    let product = files_with(&["rs"]).into_iter().filter(in_product);
    product.map(|path| (path.clone(), without_tests(&read(&path)))).collect()
}

/// The text of a file up to its module of unit tests.
fn without_tests(text: &str) -> String {
    let mut kept = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "#[cfg(test)]"
            && lines.peek().is_some_and(|next| next.starts_with("mod ") && next.ends_with('{'))
        {
            break;
        }
        kept.push(line);
    }
    kept.join("\n")
}

/// The word behind a keyword at the beginning of an item, if the line begins one.
fn name_after<'a>(line: &'a str, keyword: &str) -> Option<&'a str> {
    let mut rest = line.trim_start();
    for modifier in ["pub(crate) ", "pub(super) ", "pub ", "const ", "unsafe ", "extern \"C\" "] {
        rest = rest.strip_prefix(modifier).unwrap_or(rest);
    }
    let rest = rest.strip_prefix(keyword)?.strip_prefix(' ')?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    (end > 0).then(|| &rest[..end])
}

#[test]
fn functions_are_named_by_verb_and_noun() {
    let (mut all, mut short) = (0usize, 0usize);
    let mut by_crate: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (path, text) in product_code() {
        let name = path.iter().nth(1).map(|name| name.to_string_lossy().into_owned());
        let of_crate = by_crate.entry(name.unwrap_or_default()).or_default();
        for function in text.lines().filter_map(|line| name_after(line, "fn")) {
            let is_short = !function.trim_matches('_').contains('_');
            (all, short) = (all + 1, short + usize::from(is_short));
            *of_crate = (of_crate.0 + 1, of_crate.1 + usize::from(is_short));
        }
    }
    assert!(all > 1_000, "only {all} functions were found");
    let share = |(all, short): (usize, usize)| short * 100 / all.max(1);
    let rows: Vec<String> =
        by_crate.iter().map(|(name, counts)| format!("{name}: {} %", share(*counts))).collect();
    assert!(
        share((all, short)) <= ONE_WORD_MAX,
        "names of one word, of {all}: {}",
        rows.join(", ")
    );
}

#[test]
fn a_type_name_means_one_type() {
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in product_code() {
        for line in text.lines() {
            // A type of a trait's implementation is no type of its own.
            let alias = (!line.starts_with(' ')).then(|| name_after(line, "type")).flatten();
            let kinds = ["struct", "enum", "trait", "union"];
            let name = kinds.iter().find_map(|kind| name_after(line, kind)).or(alias);
            if let Some(name) = name {
                types.entry(name.to_owned()).or_default().push(path.display().to_string());
            }
        }
    }
    assert!(types.len() > 300, "only {} types were found", types.len());
    let twice = types.iter().filter(|(_, paths)| paths.len() > 1);
    let found: Vec<String> = twice.map(|(name, at)| format!("{name}: {}", at.join(", "))).collect();
    report("names that stand for several types", &found);
}

#[test]
fn steps_have_their_reasons() {
    let mut poor = Vec::new();
    for name in REASONED {
        let folder = Path::new("crates").join(name).join("src");
        let (mut lines, mut reasons) = (0usize, 0usize);
        for (_, text) in product_code().into_iter().filter(|(path, _)| path.starts_with(&folder)) {
            lines += text.lines().count();
            let is_reason = |line: &&str| {
                let line = line.trim_start();
                line.starts_with("//") && !line.starts_with("///") && !line.starts_with("//!")
            };
            reasons += text.lines().filter(is_reason).count();
        }
        assert!(lines > 1_000, "crates/{name} has {lines} lines");
        if reasons * 1_000 < lines * REASONS_MIN {
            let share = reasons as f64 * 100.0 / lines as f64;
            poor.push(format!("crates/{name}: {share:.1} % of {lines} lines"));
        }
    }
    report("crates with too few comments that give reasons", &poor);
}

#[test]
fn prose_is_found_where_it_is() {
    assert_eq!(comment_of("    /// Returns it."), Some(" Returns it."));
    assert_eq!(comment_of("let a = 1; // first"), Some(" first"));
    assert_eq!(comment_of("let a = \"http://host\";"), None);
    assert_eq!(comment_of("let a = \"a // b\";"), None);
    assert_eq!(name_after("    pub(crate) fn read_all(&self)", "fn"), Some("read_all"));
    assert_eq!(name_after("pub struct Volume<T> {", "struct"), Some("Volume"));
    assert_eq!(name_after("// fn none", "fn"), None);
    assert_eq!(without_tests("a\n#[cfg(test)]\nmod tests {\nb"), "a");
}
