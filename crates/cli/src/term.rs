//! The look of the output: colours on terminals only, tables, sizes, progress.

use anstyle::{AnsiColor, Style};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Green: in order.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// Yellow: not in order.
pub const WARN: Style = AnsiColor::Yellow.on_default();
/// Red: broken.
pub const BAD: Style = AnsiColor::Red.on_default().bold();
/// Headings.
pub const HEAD: Style = Style::new().bold();
/// Less important.
pub const DIM: Style = Style::new().dimmed();

/// Returns whether a stream gets colours: it is a terminal, and the user wants them
/// (<https://no-color.org>).
fn wants_colours(terminal: bool) -> bool {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    terminal && wanted && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// Standard output, buffered, with or without colours.
pub struct TermOutput {
    stream: io::BufWriter<io::StdoutLock<'static>>,
    colours: bool,
    /// Columns of the terminal; `None` if this is none, or does not know.
    columns: Option<usize>,
}

impl TermOutput {
    /// Takes standard output.
    pub fn new() -> TermOutput {
        let stream = io::stdout().lock();
        let colours = wants_colours(stream.is_terminal());
        let size = rustix::termios::tcgetwinsize(&stream).ok();
        let columns = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
        TermOutput { stream: io::BufWriter::new(stream), colours, columns }
    }

    /// Returns `text` in `style`, or plain without colours.
    pub fn paint_text(&self, style: Style, text: &str) -> String {
        paint_text(self.colours, style, text)
    }

    /// Writes one JSON object and a newline.
    pub fn write_json(&mut self, value: &impl serde::Serialize) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut self.stream, value)?;
        writeln!(self.stream)?;
        self.stream.flush()
    }

    /// Writes a table. On a terminal its lines fit the width; elsewhere no cell is shortened.
    pub fn write_table(&mut self, table: &TextTable) -> io::Result<()> {
        let text = table.render(self.colours, self.columns);
        self.stream.write_all(text.as_bytes())
    }
}

impl Write for TermOutput {
    fn write(&mut self, b: &[u8]) -> io::Result<usize> {
        let written = self.stream.write(b)?;
        if let Some(last) = b[..written].last() {
            IN_LINE.store(*last != b'\n', Relaxed);
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn paint_text(on: bool, style: Style, text: &str) -> String {
    if on && !text.is_empty() { format!("{style}{text}{style:#}") } else { text.to_owned() }
}

/// Prints an error or a warning to standard error, its first word in colour.
pub fn print_error(text: &str) {
    let (first, rest) = text.split_once(' ').unwrap_or((text, ""));
    print_line(|on| format!("{} {rest}", paint_text(on, BAD, first)));
}

/// Prints a note that is no error to standard error.
pub fn print_note(text: &str) {
    print_line(|on| paint_text(on, WARN, text));
}

fn print_line(text: impl FnOnce(bool) -> String) {
    BARS.suspend(|| {
        let mut stream = io::stderr().lock();
        let on = wants_colours(stream.is_terminal());
        // There is no other way to report that standard error is closed.
        let _ = writeln!(stream, "{}", text(on));
    });
}

/// Blanks between two columns.
const GAP: usize = 2;
/// A column of text is not made narrower than this, in characters.
const SHORTEST_CELL: usize = 8;

/// Rows of text under headings, in columns as wide as needed.
#[derive(Default)]
pub struct TextTable {
    heads: Vec<(&'static str, bool)>,
    rows: Vec<Vec<(String, Style)>>,
}

impl TextTable {
    /// Columns by heading; those that begin with `>` are aligned to the right.
    pub fn new(heads: &[&'static str]) -> TextTable {
        let heads = heads
            .iter()
            .map(|h| h.strip_prefix('>').map_or((*h, false), |right| (right, true)))
            .collect();
        TextTable { heads, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn add_row<const N: usize>(&mut self, cells: [(String, Style); N]) {
        self.add_cells(cells.into());
    }

    /// Adds a row to a table with a variable number of columns.
    pub fn add_cells(&mut self, cells: Vec<(String, Style)>) {
        debug_assert_eq!(cells.len(), self.heads.len());
        self.rows.push(cells);
    }

    /// Returns the width of each column. If all together are wider than `limit`, the widest column
    /// of text gives way, and then the next one. A number is never shortened.
    fn column_widths(&self, limit: Option<usize>) -> Vec<usize> {
        let width = |i: usize| {
            let cells = self.rows.iter().map(|row| row[i].0.chars().count());
            cells.chain([self.heads[i].0.len()]).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..self.heads.len()).map(width).collect();
        let Some(limit) = limit else { return widths };
        loop {
            let total = widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
            let texts = (0..widths.len()).filter(|i| !self.heads[*i].1);
            let shortest = |i: usize| self.heads[i].0.len().max(SHORTEST_CELL);
            let widest = texts.filter(|i| widths[*i] > shortest(*i)).max_by_key(|i| widths[*i]);
            let Some(widest) = widest.filter(|_| total > limit) else { return widths };
            let fitting = widths[widest].saturating_sub(total - limit);
            widths[widest] = fitting.max(shortest(widest));
        }
    }

    fn render(&self, colours: bool, limit: Option<usize>) -> String {
        let widths = self.column_widths(limit);
        let mut text = String::new();
        let mut line = |cells: &mut dyn Iterator<Item = (&str, Style)>| {
            let mut row = String::new();
            for (i, (cell, style)) in cells.enumerate() {
                let cell = shorten_cell(cell, widths[i]);
                let pad = " ".repeat(widths[i] - cell.chars().count());
                let cell = paint_text(colours, style, &cell);
                // Writing to a String cannot fail.
                let _ = if self.heads[i].1 {
                    write!(row, "{pad}{cell}  ")
                } else {
                    write!(row, "{cell}{pad}  ")
                };
            }
            text.push_str(row.trim_end());
            text.push('\n');
        };
        line(&mut self.heads.iter().map(|(h, _)| (*h, HEAD)));
        for row in &self.rows {
            line(&mut row.iter().map(|(cell, style)| (cell.as_str(), *style)));
        }
        text
    }
}

/// Shortens a text to `width` characters. A path loses its middle: paths of one table often begin
/// alike. Another text loses its end.
fn shorten_cell(text: &str, width: usize) -> Cow<'_, str> {
    let length = text.chars().count();
    if length <= width {
        return Cow::Borrowed(text);
    }
    let kept = width.saturating_sub(1);
    let tail = if text.starts_with('/') { kept * 2 / 3 } else { 0 };
    let head = text.chars().take(kept - tail);
    Cow::Owned(head.chain(['…']).chain(text.chars().skip(length - tail)).collect())
}

/// Formats bytes for people: `1.5 GiB`.
pub fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would print as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Formats bytes as ls(1) and du(1) do with `-h`: `1.5K`, rounded up, without a blank for scripts
/// that split columns.
pub fn format_short_size(bytes: u64) -> String {
    const UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];
    if bytes < 1024 {
        return bytes.to_string();
    }
    let mut unit = 0;
    let mut scale = 1024_u64;
    // 1023.5 units and more round up to one of the next.
    while unit + 1 < UNITS.len() && bytes.div_ceil(scale) >= 1024 {
        scale *= 1024;
        unit += 1;
    }
    let tenths = u128::from(bytes) * 10;
    let tenths = tenths.div_ceil(u128::from(scale));
    match tenths {
        0..100 => format!("{}.{}{}", tenths / 10, tenths % 10, UNITS[unit]),
        _ => format!("{}{}", bytes.div_ceil(scale), UNITS[unit]),
    }
}

/// Returns the columns of the terminal on standard output; `None` if it is none.
pub fn output_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (io::stdout().is_terminal() && size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Formats seconds for people: `2 h 5 min`.
pub fn format_duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86400, seconds % 86400 / 3600),
    }
}

/// Makes a name safe to print. Control characters could drive a terminal, so they are shown as
/// `\x..`.
pub fn escape_name(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() {
                text.extend(c.escape_default());
            } else {
                text.push(c);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Formats a share as a bar of up to 20 blocks.
pub fn share_bar(share: f64) -> String {
    let blocks = (share * 20.0).round().clamp(0.0, 20.0) as usize;
    format!("{:3.0}% {}", share * 100.0, "█".repeat(blocks))
}

/// All bars and lines that are updated in place.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);
/// The last byte on standard output does not end a line.
static IN_LINE: AtomicBool = AtomicBool::new(false);

/// Returns a line on a terminal that is updated in place, below all bars; `None` elsewhere.
pub fn new_line(text: &str) -> Option<ProgressBar> {
    if !wants_colours(io::stderr().is_terminal()) {
        return None;
    }
    if io::stdout().is_terminal() && IN_LINE.swap(false, Relaxed) {
        // The update would erase the output before it.
        let _ = writeln!(io::stderr());
    }
    let style = ProgressStyle::with_template("{msg}").expect("the template is fixed and right");
    let line = BARS.add(ProgressBar::new_spinner().with_style(style));
    line.set_message(text.to_owned());
    Some(line)
}

/// Removes a line of [`new_line`].
pub fn remove_line(line: &ProgressBar) {
    line.finish_and_clear();
    BARS.remove(line);
}

/// Returns a spinner on a terminal, a hidden one elsewhere.
pub fn new_spinner(text: &str) -> ProgressBar {
    if !wants_colours(io::stderr().is_terminal()) {
        return ProgressBar::hidden();
    }
    let bar = BARS.add(ProgressBar::new_spinner()).with_message(text.to_owned());
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Returns a bar that counts things on a terminal, a hidden one elsewhere.
pub fn count_bar(total: u64, what: &str) -> ProgressBar {
    if !wants_colours(io::stderr().is_terminal()) {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg:20!} {wide_bar} {pos}/{len} {eta}")
        .expect("the template is fixed and right");
    BARS.add(ProgressBar::new(total)).with_style(style).with_message(what.to_owned())
}

/// Returns a bar that counts bytes on a terminal, a hidden one elsewhere.
pub fn byte_bar(total: u64) -> ProgressBar {
    if !wants_colours(io::stderr().is_terminal()) {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(
        "{msg:20!} {prefix} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
    )
    .expect("the template is fixed and right");
    BARS.add(ProgressBar::new(total)).with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_read_well() {
        assert_eq!(format_size(0), "0 B");
        assert_eq!(format_size(1023), "1023 B");
        assert_eq!(format_size(1536), "1.5 KiB");
        assert_eq!(format_size(1 << 30), "1.0 GiB");
        assert_eq!(format_size(u64::MAX), "16.0 EiB");
        assert_eq!(format_duration(59), "59 s");
        assert_eq!(format_duration(7500), "2 h 5 min");
    }

    /// The expected values are those of coreutils 9.1.
    #[test]
    fn short_sizes_are_those_of_ls() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10_000, "9.8K"),
            (10_188, "10K"),
            (10_241, "11K"),
            (1_048_575, "1.0M"),
            (1_047_552, "1023K"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(format_short_size(bytes), text, "{bytes}");
        }
    }

    #[test]
    fn columns_line_up() {
        let mut table = TextTable::new(&["NAME", ">SIZE"]);
        table.add_row([("a".into(), GOOD), ("10".into(), DIM)]);
        table.add_row([("long".into(), BAD), ("5".into(), DIM)]);
        assert_eq!(table.render(false, None), "NAME  SIZE\na       10\nlong     5\n");
        assert!(table.render(true, None).contains("\u{1b}["));
    }

    #[test]
    fn a_table_that_is_too_wide_shortens_its_widest_text() {
        let mut table = TextTable::new(&["NAME", "PATH", ">SIZE"]);
        let cells = ["a name", "/var/lib/tatami/somewhere/node1", "1234567"];
        table.add_row(cells.map(|cell| (cell.to_owned(), DIM)));
        assert!(table.render(false, Some(80)).contains("/var/lib/tatami/somewhere/node1"));
        let text = table.render(false, Some(40));
        assert_eq!(text.lines().map(|l| l.chars().count()).max(), Some(40), "{text}");
        assert!(text.contains("…") && text.contains("/node1"), "{text}");
        assert!(text.contains("a name") && text.contains("1234567"), "{text}");
        // Where even the shortest cells do not fit, lines are longer; no number is cut.
        let text = table.render(false, Some(5));
        assert!(text.contains("1234567") && text.contains("…"), "{text}");
        assert_eq!(shorten_cell("not running", 8), "not run…");
        assert_eq!(shorten_cell("/a/b/c/node12", 8), "/a/…de12");
    }

    #[test]
    fn names_cannot_drive_the_terminal() {
        assert_eq!(escape_name(b"a\x1b[31mb\xff"), "a\\u{1b}[31mb\\xff");
    }
}
