//! Selects the figures that a run of the suite takes, by the beginning of their names.

/// The parts of the suite. The name of every figure begins with that of its part.
pub const SUITE_PARTS: [&str; 14] = [
    "passthrough",
    "remote",
    "encryption",
    "copy",
    "mount",
    "mounts",
    "commands",
    "peers",
    "library",
    "preload",
    "servers",
    "large",
    "scaling",
    "smallfiles",
];

/// The beginning of the names of some figures, without commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(String);

/// Removes commas from a name: they separate the prefixes on the command line.
fn normalize_name(name: &str) -> String {
    name.replace(',', "").trim().to_lowercase()
}

impl Prefix {
    /// Parses a prefix of the command line.
    ///
    /// # Errors
    /// A sentence with the parts, when no figure can have such a name.
    pub fn parse(text: &str) -> Result<Prefix, String> {
        let prefix = Prefix(normalize_name(text));
        if prefix.0.is_empty() || !SUITE_PARTS.iter().any(|part| prefix.matches_part(part)) {
            return Err(format!("the names of figures begin with {}", SUITE_PARTS.join(", ")));
        }
        Ok(prefix)
    }

    /// Returns whether the part may have such figures, judging by the part's name.
    pub fn matches_part(&self, part: &str) -> bool {
        let first_word = self.0.split(' ').next().unwrap_or_default();
        if self.is_word_of_part() { first_word == part } else { part.starts_with(&self.0) }
    }

    /// Returns whether the figure's name begins with this prefix.
    pub fn matches_figure(&self, figure: &str) -> bool {
        let name = normalize_name(figure);
        // A part that is named in full is meant alone: "mount" is not the beginning of "mounts".
        name.strip_prefix(&self.0).is_some_and(|rest| {
            rest.is_empty() || rest.starts_with(' ') || !SUITE_PARTS.contains(&self.text())
        })
    }

    /// Returns whether the first word is the whole name of a part.
    fn is_word_of_part(&self) -> bool {
        self.0.split(' ').next().is_some_and(|word| SUITE_PARTS.contains(&word))
    }

    /// Returns the prefix as given, without its commas.
    pub fn text(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_chosen_by_the_beginning_of_their_names() {
        let prefix = |text| Prefix::parse(text).expect("a part begins so");
        let name = "passthrough write, cached, 4k";
        for text in ["pass", "passthrough", "passthrough write", "passthrough write cached 4k"] {
            assert!(
                prefix(text).matches_figure(name) && prefix(text).matches_part("passthrough"),
                "{text}"
            );
        }
        assert!(prefix("Mount Create").matches_figure("mount create, CPU"));
        assert!(!prefix("passthrough read").matches_figure(name));
        assert!(
            !prefix("mount").matches_figure(name) && !prefix("mount").matches_part("passthrough")
        );
        for (text, figure, part) in [
            ("mount", "mount create, CPU", "mount"),
            ("mounts", "mounts shared create", "mounts"),
            ("mounts shared", "mounts shared create", "mounts"),
        ] {
            assert!(
                prefix(text).matches_figure(figure) && prefix(text).matches_part(part),
                "{text}"
            );
        }
        assert!(!prefix("mount").matches_figure("mounts shared create"));
        assert!(!prefix("mount").matches_part("mounts") && !prefix("mounts").matches_part("mount"));
        assert!(prefix("mou").matches_part("mount") && prefix("mou").matches_part("mounts"));
        for text in ["", "write", "cached", "mountsx", "mountain"] {
            assert!(Prefix::parse(text).is_err_and(|e| e.contains("remote")), "{text}");
        }
    }
}
