//! Tables for people: columns as wide as their widest cell, numbers to the right.

/// Rows of cells. The first row is the heading.
#[derive(Clone, Debug, Default)]
pub struct ReportTable {
    rows: Vec<Vec<String>>,
}

impl ReportTable {
    /// Creates a table with these headings.
    pub fn new(headings: &[&str]) -> ReportTable {
        ReportTable { rows: vec![headings.iter().map(|h| (*h).to_string()).collect()] }
    }

    /// Adds a row.
    pub fn add_row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Renders the lines, each ended by a newline. The first column is text, to the left.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| {
            self.rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (c, (cell, w)) in row.iter().zip(&widths).enumerate() {
                let pad = " ".repeat(w - cell.chars().count());
                match c {
                    0 => line += &format!("{cell}{pad}"),
                    _ => line += &format!("  {pad}{cell}"),
                }
            }
            out += line.trim_end();
            out.push('\n');
        }
        out
    }

    /// Renders the same as a Markdown table.
    pub fn render_markdown(&self) -> String {
        let mut out = String::new();
        for (i, row) in self.rows.iter().enumerate() {
            out += &format!("| {} |\n", row.join(" | "));
            if i == 0 {
                out += &format!("|---{}|\n", "|---:".repeat(row.len().saturating_sub(1)));
            }
        }
        out
    }
}

/// Formats a share of 0 to 1 as a percentage.
pub fn format_percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_plot::format_number;

    #[test]
    fn columns_line_up() {
        let mut table = ReportTable::new(&["phase", "ops/s"]);
        table.add_row(vec!["file create".into(), "12".into()]);
        table.add_row(vec!["é".into(), "3,456,789".into()]);
        assert_eq!(
            table.render(),
            "phase            ops/s\nfile create         12\né            3,456,789\n"
        );
        assert_eq!(
            table.render_markdown(),
            "| phase | ops/s |\n|---|---:|\n| file create | 12 |\n| é | 3,456,789 |\n"
        );
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(format_number(0.1234), "0.12");
        assert_eq!(format_number(12.345), "12.3");
        assert_eq!(format_number(123.4), "123");
        assert_eq!(format_number(1_234_567.0), "1,234,567");
        assert_eq!(format_number(-1234.0), "-1,234");
        assert_eq!(format_percent(0.256), "26 %");
    }
}
