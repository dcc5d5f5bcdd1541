//! The results: as JSON, as tables, as plots.

use super::measure::Measurements;
use super::rows::{PredictCheck, PredictGrowth, PredictRow, PredictRows};
use super::times::{MeasuredPoint, MeasuredTimes};
use crate::error::{BenchError, path_error};
use crate::machine::Machine;
use crate::progress::print_progress;
use crate::table::{ReportTable, format_percent};
use serde::{Deserialize, Serialize};
use std::path::Path;
use tatami_bench_args::PredictArgs;
use tatami_plot::format_number;
use tatami_plot::{Plot, PlotLine};

/// The whole report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PredictReport {
    /// The command line.
    pub command: String,
    /// The machine of the measurements.
    pub machine: Machine,
    /// The costs of operations.
    pub times: MeasuredTimes,
    /// The measurements.
    pub points: Vec<MeasuredPoint>,
    /// Operations of each kind in a measurement.
    pub items: u64,
    /// The share of the CPU time that the host gave to others meanwhile.
    pub stolen: f64,
    /// Client processes for each server.
    pub clients: u32,
    /// Measured and predicted figures side by side.
    pub checks: Vec<PredictCheck>,
    /// The predictions.
    pub rows: Vec<PredictRow>,
    /// The spread of new directories over the servers.
    pub growths: Vec<PredictGrowth>,
}

/// The directories of the rows, and the names of their columns.
const PLACES: [(bool, &str); 2] = [(true, "one directory"), (false, "private")];
const OPERATIONS: [&str; 4] = ["create", "mkdir", "stat", "unlink"];

impl PredictReport {
    pub(super) fn new(
        (command, machine): (String, Machine),
        Measurements { times, points, items, stolen }: Measurements,
        args: &PredictArgs,
        PredictRows { rows, growths, checks }: PredictRows,
    ) -> PredictReport {
        let clients = args.clients;
        PredictReport {
            command,
            machine,
            times,
            points,
            items,
            stolen,
            clients,
            checks,
            rows,
            growths,
        }
    }

    /// Reads the report of an earlier run.
    ///
    /// # Errors
    /// A file that does not exist, or is no such report.
    pub fn read(file: &Path) -> Result<PredictReport, BenchError> {
        let text = std::fs::read_to_string(file).map_err(path_error("reading", file))?;
        serde_json::from_str(&text).map_err(|e| path_error("reading", file)(e.into()))
    }

    /// Writes the report as JSON.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn write(&self, file: &Path) -> Result<(), BenchError> {
        if let Some(dir) = file.parent() {
            std::fs::create_dir_all(dir).map_err(path_error("creating", dir))?;
        }
        std::fs::write(file, self.to_json()).map_err(path_error("writing", file))
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("reports are plain data") + "\n"
    }

    /// Renders the report for people, or as Markdown.
    pub fn render(&self, markdown: bool) -> String {
        let mut out = String::new();
        let mut show = |title: &str, table: &ReportTable| {
            let heading = if markdown { format!("**{title}**\n\n") } else { format!("{title}\n") };
            let body = if markdown { table.render_markdown() } else { table.render() };
            out += &format!("{heading}{body}\n");
        };
        show("CPU time, µs", &self.costs_table());
        if !self.checks.is_empty() {
            show(
                "Measured and predicted: 4 client processes and all servers on one CPU",
                &self.checks_table(),
            );
        }
        for network in self.network_names() {
            for (shared, place) in PLACES {
                let title = format!("{network}, {place}: operations/s, efficiency");
                show(&title, &self.rates_table(network, shared));
            }
        }
        show("Where the servers' time goes: create in one directory", &self.losses_table());
        show("A new directory spreads while all make files in it", &self.growth_table());
        out
    }

    fn network_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !names.contains(&row.network.as_str()) {
                names.push(&row.network);
            }
        }
        names
    }

    fn costs_table(&self) -> ReportTable {
        let mut table = ReportTable::new(&["", "create", "mkdir", "stat", "unlink"]);
        let MeasuredTimes { request, client, wake, send, message, record } = &self.times;
        for (name, each) in
            [("a server, for a request", request), ("a client, for a request", client)]
        {
            let cells = [each.create, each.mkdir, each.stat, each.unlink].map(format_number);
            table.add_row([vec![name.to_owned()], cells.to_vec()].concat());
        }
        for (name, value) in [
            ("a server, each time it is woken", wake),
            ("of a request: to send the answer", send),
            ("a message between servers, at each end", message),
            ("a record in one, at each end", record),
        ] {
            table.add_row(vec![
                name.into(),
                format_number(*value),
                String::new(),
                String::new(),
                String::new(),
            ]);
        }
        table
    }

    fn checks_table(&self) -> ReportTable {
        let mut table = ReportTable::new(&[
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
                [
                    format_number(measured),
                    format_number(predicted),
                    format_number(predicted / measured.max(1e-9)),
                ]
            };
            let plural = if check.servers == 1 { "server" } else { "servers" };
            let mut cells = vec![format!("{}, {} {plural}", check.operation, check.servers)];
            cells.extend(check.wakes.map(format_number));
            cells.extend([check.server_us, check.cpu_us, check.rate].into_iter().flat_map(pair));
            table.add_row(cells);
        }
        table
    }

    fn find_row(
        &self,
        network: &str,
        servers: u16,
        shared: bool,
        operation: &str,
    ) -> Option<&PredictRow> {
        self.rows.iter().find(|row| {
            (row.network.as_str(), row.servers, row.shared) == (network, servers, shared)
                && row.operation == operation
                && !row.old
        })
    }

    fn server_counts(&self) -> Vec<u16> {
        let mut all: Vec<_> = self.rows.iter().map(|row| row.servers).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn rates_table(&self, network: &str, shared: bool) -> ReportTable {
        let mut headings = vec!["servers"];
        OPERATIONS.iter().for_each(|operation| headings.extend([operation, ""]));
        let mut table = ReportTable::new(&headings);
        for servers in self.server_counts() {
            let mut cells = vec![servers.to_string()];
            for operation in OPERATIONS {
                match self.find_row(network, servers, shared, operation) {
                    Some(row) => {
                        cells.extend([format_number(row.rate), format_number(row.efficiency)])
                    }
                    None => cells.extend([String::new(), String::new()]),
                }
            }
            table.add_row(cells);
        }
        table
    }

    /// Returns the table of the smallest, a middle and the largest number of servers, and of
    /// displaced files.
    fn losses_table(&self) -> ReportTable {
        let mut table = ReportTable::new(&[
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
        let is_told = |row: &&PredictRow| {
            row.shared && (row.operation == "create" || row.old) && {
                let all = self.server_counts();
                [all.first(), all.get(all.len() / 2), all.last()].contains(&Some(&row.servers))
            }
        };
        for row in self.rows.iter().filter(is_told) {
            let old = if row.old { " of displaced files" } else { "" };
            let name = format!("{}, {}: {}{old}", row.network, row.servers, row.operation);
            let parts = [row.own, row.woken, row.corrected, row.second, row.peer, row.idle_share()];
            let mut cells = vec![name, format_number(row.efficiency)];
            cells.extend(parts.map(format_percent));
            cells.extend([
                format_number(row.requests),
                format_number(row.round),
                format_percent(row.busiest),
            ]);
            table.add_row(cells);
        }
        table
    }

    fn growth_table(&self) -> ReportTable {
        let mut table = ReportTable::new(&[
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
            table.add_row(vec![
                format!("{}, {} servers", growth.network, growth.servers),
                format_number(growth.seconds),
                growth.entries.to_string(),
                if growth.complete { "yes" } else { "no" }.into(),
                format_number(growth.requests),
                growth.longest.to_string(),
                format_number(growth.largest),
                growth.newcomer.to_string(),
            ]);
        }
        table
    }

    /// Draws the plots into a directory.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn draw_plots(&self, dir: &Path) -> Result<(), BenchError> {
        std::fs::create_dir_all(dir).map_err(path_error("creating", dir))?;
        let mut plots = vec![("efficiency".to_owned(), self.efficiency_plot())];
        for network in self.network_names() {
            plots.push((network.to_lowercase(), self.network_plot(network)));
        }
        for (name, plot) in plots {
            let path = dir.join(format!("predicted-{name}.svg"));
            plot.draw(&path)?;
            print_progress(&format!("plot: {}", path.display()));
        }
        Ok(())
    }

    fn build_line(&self, name: String, value: impl Fn(u16) -> Option<f64>) -> PlotLine {
        PlotLine { name, values: self.server_counts().into_iter().map(value).collect() }
    }

    fn step_labels(&self) -> Vec<String> {
        self.server_counts().iter().map(u16::to_string).collect()
    }

    fn network_plot(&self, network: &str) -> Plot {
        let mut lines = Vec::new();
        for (shared, place) in PLACES {
            for operation in &OPERATIONS[..3] {
                let value = |n| Some(self.find_row(network, n, shared, operation)?.rate);
                lines.push(self.build_line(format!("{operation}, {place}"), value));
            }
        }
        Plot {
            title: format!("Predicted: {network}"),
            across: "servers".into(),
            up: "operations/s".into(),
            steps: self.step_labels(),
            ratios: true,
            lines,
        }
    }

    fn efficiency_plot(&self) -> Plot {
        let mut lines = Vec::new();
        for network in self.network_names() {
            for (shared, place) in PLACES {
                let value = |n| Some(self.find_row(network, n, shared, "create")?.efficiency);
                lines.push(self.build_line(format!("{network}, {place}"), value));
            }
        }
        Plot {
            title: "Predicted: creates of a server, by those of one alone".into(),
            across: "servers".into(),
            up: "efficiency".into(),
            steps: self.step_labels(),
            ratios: false,
            lines,
        }
    }
}
