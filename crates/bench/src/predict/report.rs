//! The results: as JSON, as tables, as plots.

use super::PredictArgs;
use super::measure::Measured;
use super::rows::{Check, Growth, Row, Rows};
use super::times::{Point, Times};
use crate::error::{BenchError, at};
use crate::mpi::svg::{Line, Plot};
use crate::suite::Machine;
use crate::table::{Table, number, percent};
use crate::tell;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The whole report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The command line.
    pub command: String,
    /// The machine of the measurements.
    pub machine: Machine,
    /// The costs of operations.
    pub times: Times,
    /// The measurements.
    pub points: Vec<Point>,
    /// Operations of each kind in a measurement.
    pub items: u64,
    /// The share of the CPU time that the host gave to others meanwhile.
    pub stolen: f64,
    /// Client processes for each server.
    pub clients: u32,
    /// Measured and predicted figures side by side.
    pub checks: Vec<Check>,
    /// The predictions.
    pub rows: Vec<Row>,
    /// The spread of new directories over the servers.
    pub growths: Vec<Growth>,
}

/// The directories of the rows, and the names of their columns.
const PLACES: [(bool, &str); 2] = [(true, "one directory"), (false, "private")];
const OPERATIONS: [&str; 4] = ["create", "mkdir", "stat", "unlink"];

impl Report {
    pub(super) fn new(
        (command, machine): (String, Machine),
        Measured { times, points, items, stolen }: Measured,
        args: &PredictArgs,
        Rows { rows, growths, checks }: Rows,
    ) -> Report {
        let clients = args.clients;
        Report { command, machine, times, points, items, stolen, clients, checks, rows, growths }
    }

    /// Reads the report of an earlier run.
    ///
    /// # Errors
    /// A file that does not exist, or is no such report.
    pub fn read(file: &Path) -> Result<Report, BenchError> {
        let text = std::fs::read_to_string(file).map_err(at("reading", file))?;
        serde_json::from_str(&text).map_err(|e| at("reading", file)(e.into()))
    }

    /// Writes the report as JSON.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn write(&self, file: &Path) -> Result<(), BenchError> {
        if let Some(dir) = file.parent() {
            std::fs::create_dir_all(dir).map_err(at("creating", dir))?;
        }
        std::fs::write(file, self.json()).map_err(at("writing", file))
    }

    pub(super) fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("reports are plain data") + "\n"
    }

    /// Renders the report for people, or as Markdown.
    pub fn render(&self, markdown: bool) -> String {
        let mut out = String::new();
        let mut show = |title: &str, table: &Table| {
            let heading = if markdown { format!("**{title}**\n\n") } else { format!("{title}\n") };
            let body = if markdown { table.markdown() } else { table.render() };
            out += &format!("{heading}{body}\n");
        };
        show("CPU time, µs", &self.costs());
        if !self.checks.is_empty() {
            show(
                "Measured and predicted: 4 client processes and all servers on one CPU",
                &self.checked(),
            );
        }
        for network in self.networks() {
            for (shared, place) in PLACES {
                let title = format!("{network}, {place}: operations/s, efficiency");
                show(&title, &self.rates(network, shared));
            }
        }
        show("Where the servers' time goes: create in one directory", &self.losses());
        show("A new directory spreads while all make files in it", &self.spreading());
        out
    }

    fn networks(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !names.contains(&row.network.as_str()) {
                names.push(&row.network);
            }
        }
        names
    }

    fn costs(&self) -> Table {
        let mut table = Table::new(&["", "create", "mkdir", "stat", "unlink"]);
        let Times { request, client, wake, send, message, record } = &self.times;
        for (name, each) in
            [("a server, for a request", request), ("a client, for a request", client)]
        {
            let cells = [each.create, each.mkdir, each.stat, each.unlink].map(number);
            table.row([vec![name.to_owned()], cells.to_vec()].concat());
        }
        for (name, value) in [
            ("a server, each time it is woken", wake),
            ("of a request: to send the answer", send),
            ("a message between servers, at each end", message),
            ("a record in one, at each end", record),
        ] {
            table.row(vec![
                name.into(),
                number(*value),
                String::new(),
                String::new(),
                String::new(),
            ]);
        }
        table
    }

    fn checked(&self) -> Table {
        let mut table = Table::new(&[
            "",
            "woken/op",
            "predicted",
            "servers' CPU, µs/op",
            "predicted",
            "ratio",
            "all CPU, µs/op",
            "predicted",
            "ratio",
            "op/s",
            "predicted",
            "ratio",
        ]);
        for check in &self.checks {
            let pair = |[measured, predicted]: [f64; 2]| {
                [number(measured), number(predicted), number(predicted / measured.max(1e-9))]
            };
            let plural = if check.servers == 1 { "server" } else { "servers" };
            let mut cells = vec![format!("{}, {} {plural}", check.operation, check.servers)];
            cells.extend(check.wakes.map(number));
            cells.extend([check.server_us, check.cpu_us, check.rate].into_iter().flat_map(pair));
            table.row(cells);
        }
        table
    }

    fn find(&self, network: &str, servers: u16, shared: bool, operation: &str) -> Option<&Row> {
        self.rows.iter().find(|row| {
            (row.network.as_str(), row.servers, row.shared) == (network, servers, shared)
                && row.operation == operation
                && !row.old
        })
    }

    fn servers(&self) -> Vec<u16> {
        let mut all: Vec<_> = self.rows.iter().map(|row| row.servers).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn rates(&self, network: &str, shared: bool) -> Table {
        let mut headings = vec!["servers"];
        OPERATIONS.iter().for_each(|operation| headings.extend([operation, ""]));
        let mut table = Table::new(&headings);
        for servers in self.servers() {
            let mut cells = vec![servers.to_string()];
            for operation in OPERATIONS {
                match self.find(network, servers, shared, operation) {
                    Some(row) => cells.extend([number(row.rate), number(row.efficiency)]),
                    None => cells.extend([String::new(), String::new()]),
                }
            }
            table.row(cells);
        }
        table
    }

    /// Returns the table of the smallest, a middle and the largest number of servers, and of
    /// displaced files.
    fn losses(&self) -> Table {
        let mut table = Table::new(&[
            "",
            "efficiency",
            "requests",
            "woken",
            "sent elsewhere",
            "second requests",
            "messages",
            "idle",
            "requests/op",
            "requests/round",
            "busiest",
        ]);
        let is_told = |row: &&Row| {
            row.shared && (row.operation == "create" || row.old) && {
                let all = self.servers();
                [all.first(), all.get(all.len() / 2), all.last()].contains(&Some(&row.servers))
            }
        };
        for row in self.rows.iter().filter(is_told) {
            let old = if row.old { " of displaced files" } else { "" };
            let name = format!("{}, {}: {}{old}", row.network, row.servers, row.operation);
            let parts = [row.own, row.woken, row.corrected, row.second, row.told, row.idle()];
            let mut cells = vec![name, number(row.efficiency)];
            cells.extend(parts.map(percent));
            cells.extend([number(row.requests), number(row.round), percent(row.busiest)]);
            table.row(cells);
        }
        table
    }

    fn spreading(&self) -> Table {
        let mut table = Table::new(&[
            "",
            "seconds",
            "entries",
            "complete",
            "requests/create",
            "longest queue",
            "largest share",
            "corrections of a newcomer",
        ]);
        for growth in self.growths.iter().filter(|growth| growth.servers > 1) {
            table.row(vec![
                format!("{}, {} servers", growth.network, growth.servers),
                number(growth.seconds),
                growth.entries.to_string(),
                if growth.complete { "yes" } else { "no" }.into(),
                number(growth.requests),
                growth.longest.to_string(),
                number(growth.largest),
                growth.newcomer.to_string(),
            ]);
        }
        table
    }

    /// Draws the plots into a directory.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn draw(&self, dir: &Path) -> Result<(), BenchError> {
        std::fs::create_dir_all(dir).map_err(at("creating", dir))?;
        let mut plots = vec![("efficiency".to_owned(), self.efficiency())];
        for network in self.networks() {
            plots.push((network.to_lowercase(), self.plot(network)));
        }
        for (name, plot) in plots {
            let path = dir.join(format!("predicted-{name}.svg"));
            std::fs::write(&path, plot.svg()).map_err(at("writing", &path))?;
            tell(&format!("plot: {}", path.display()));
        }
        Ok(())
    }

    fn line(&self, name: String, value: impl Fn(u16) -> Option<f64>) -> Line {
        Line { name, values: self.servers().into_iter().map(value).collect() }
    }

    fn steps(&self) -> Vec<String> {
        self.servers().iter().map(u16::to_string).collect()
    }

    fn plot(&self, network: &str) -> Plot {
        let mut lines = Vec::new();
        for (shared, place) in PLACES {
            for operation in &OPERATIONS[..3] {
                let value = |n| Some(self.find(network, n, shared, operation)?.rate);
                lines.push(self.line(format!("{operation}, {place}"), value));
            }
        }
        Plot {
            title: format!("Predicted: {network}"),
            across: "servers".into(),
            up: "operations/s".into(),
            steps: self.steps(),
            ratios: true,
            lines,
        }
    }

    fn efficiency(&self) -> Plot {
        let mut lines = Vec::new();
        for network in self.networks() {
            for (shared, place) in PLACES {
                let value = |n| Some(self.find(network, n, shared, "create")?.efficiency);
                lines.push(self.line(format!("{network}, {place}"), value));
            }
        }
        Plot {
            title: "Predicted: creates of a server, by those of one alone".into(),
            across: "servers".into(),
            up: "efficiency".into(),
            steps: self.steps(),
            ratios: false,
            lines,
        }
    }
}
