//! Words as they stand in the line of a shell: with quotes, and split where the shell splits them.

/// A word without its quotes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ShellWord {
    /// Its bytes.
    pub text: Vec<u8>,
    /// Number of bytes in front that the shell does not replace: bash completes only the part
    /// behind the last `:` or `=`.
    pub kept: usize,
}

impl ShellWord {
    /// Returns a word that has no quotes.
    pub fn plain(word: &[u8]) -> ShellWord {
        ShellWord { text: word.to_vec(), kept: 0 }
    }

    /// Reads a word as the user has typed it, with the quotes of sh(1). The last quote may still be
    /// open. Variables and commands in the word are not expanded. `breaks` are the characters at
    /// which the shell splits words; it keeps those within quotes.
    pub fn from_typed(word: &[u8], breaks: &str) -> ShellWord {
        let mut read = ShellWord::default();
        let mut bytes = word.iter().copied();
        let mut quote = None;
        while let Some(byte) = bytes.next() {
            match (quote, byte) {
                (None, b'\'' | b'"') => {
                    quote = Some(byte);
                    // The word that the shell completes begins behind the quote.
                    read.kept = read.text.len();
                }
                (Some(open), _) if byte == open => quote = None,
                (None, b'\\') => read.text.extend(bytes.next()),
                (Some(b'"'), b'\\') => match bytes.next() {
                    Some(next @ (b'"' | b'\\' | b'$' | b'`')) => read.text.push(next),
                    next => read.text.extend([byte].into_iter().chain(next)),
                },
                (None, _) => {
                    read.text.push(byte);
                    if byte.is_ascii() && breaks.contains(char::from(byte)) {
                        read.kept = read.text.len();
                    }
                }
                (Some(_), _) => read.text.push(byte),
            }
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_go_and_breaks_count() {
        for (typed, text, kept) in [
            (":/hom", ":/hom", 1),
            ("--to=str", "--to=str", 5),
            (":/my\\ dir/", ":/my dir/", 1),
            (":/a\\:b", ":/a:b", 1),
            ("\":/my dir", ":/my dir", 0),
            ("':/a:b'", ":/a:b", 0),
            (":/'my dir/", ":/my dir/", 2),
            ("\"a\\\"b\\c", "a\"b\\c", 0),
            ("", "", 0),
            ("a\\", "a", 0),
        ] {
            let word = ShellWord::from_typed(typed.as_bytes(), " \t\n\"'@><=;|&(:");
            assert_eq!((word.text, word.kept), (text.as_bytes().to_vec(), kept), "{typed}");
        }
        assert_eq!(ShellWord::from_typed(b":/hom", "").kept, 0);
        assert_eq!(ShellWord::plain(b"\"a").text, b"\"a");
    }
}
