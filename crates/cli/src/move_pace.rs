//! The pace of work on many files in the background: how many at a time, and how fast.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Files that are moved at a time, unless the user names another number.
const FILES_AT_A_TIME: usize = 2;

/// The pace that the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveRate {
    /// So many files a second.
    Files(u64),
    /// So many bytes a second.
    Bytes(u64),
}

/// Reads a rate: a number of files, or of bytes with a unit.
///
/// # Errors
/// A sentence for a text that is none.
pub fn parse_rate(text: &str) -> Result<MoveRate, String> {
    let value = tatami_bench_args::size::parse(text)?;
    match (value, text.trim().ends_with(|last: char| last.is_ascii_digit())) {
        (0, _) => Err("a rate of nothing never ends".to_owned()),
        (files, true) => Ok(MoveRate::Files(files)),
        (bytes, false) => Ok(MoveRate::Bytes(bytes)),
    }
}

/// The options of commands that move many files.
#[derive(Debug, Default, PartialEq, Eq, clap::Args)]
pub struct PaceArgs {
    /// Move at most so many files a second, such as 200, or so many bytes, such as 20m
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    rate: Option<MoveRate>,
    /// Only count the files that would move
    #[arg(long)]
    pub dry_run: bool,
}

/// A clock that several threads ask before each file.
#[derive(Debug)]
pub struct MovePace {
    rate: Option<MoveRate>,
    /// The number of threads.
    pub threads: usize,
    next: Mutex<Instant>,
}

impl MovePace {
    /// `threads`: files at a time, a few by default.
    pub fn new(args: &PaceArgs, threads: Option<u16>) -> MovePace {
        let threads = threads.map_or(FILES_AT_A_TIME, usize::from);
        MovePace { rate: args.rate, threads, next: Mutex::new(Instant::now()) }
    }

    /// Waits until the next file may be moved.
    pub fn wait_for_turn(&self) {
        let wait = self.next.lock().saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            #[allow(clippy::disallowed_methods)] // the user has named the pace
            std::thread::sleep(wait);
        }
    }

    /// Records that a file of `bytes` bytes was moved.
    pub fn record_file(&self, bytes: u64) {
        let Some(rate) = self.rate else { return };
        let cost = cost_of_file(rate, bytes);
        let mut next = self.next.lock();
        *next = next.max(Instant::now()) + cost;
    }
}

fn cost_of_file(rate: MoveRate, bytes: u64) -> Duration {
    match rate {
        MoveRate::Files(files) => Duration::from_secs(1).div_f64(files.max(1) as f64),
        MoveRate::Bytes(each) => Duration::from_secs_f64(bytes as f64 / each.max(1) as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_one_of_files_or_of_bytes() {
        assert_eq!(parse_rate("200"), Ok(MoveRate::Files(200)));
        assert_eq!(parse_rate("20m"), Ok(MoveRate::Bytes(20 << 20)));
        assert_eq!(parse_rate("1K"), Ok(MoveRate::Bytes(1024)));
        assert!(parse_rate("0").is_err() && parse_rate("x").is_err() && parse_rate("").is_err());
    }

    #[test]
    fn each_file_costs_its_part_of_a_second() {
        let cost = cost_of_file(MoveRate::Files(4), 1 << 30);
        assert_eq!(cost, Duration::from_millis(250));
        let cost = cost_of_file(MoveRate::Bytes(1 << 20), 512 << 10);
        assert_eq!(cost, Duration::from_millis(500));
        assert_eq!(cost_of_file(MoveRate::Bytes(1), 0), Duration::ZERO);
    }

    #[test]
    fn a_pace_delays_the_next_file_only() {
        let args = PaceArgs { rate: Some(MoveRate::Files(1)), dry_run: false };
        let pace = MovePace::new(&args, Some(3));
        assert_eq!(pace.threads, 3);
        pace.wait_for_turn();
        let before = Instant::now();
        pace.record_file(7);
        assert!(*pace.next.lock() >= before + Duration::from_secs(1));
    }
}
