//! The arguments of the workloads of small files: regions and smallfiles.

use crate::size;
use crate::workloads::parse_procs;
use std::path::PathBuf;
use tatami_wire::object::REGION_MAX;

/// Most threads that use the engine at a time.
pub const DEPTH_MAX: usize = 256;
/// Most bytes of a small file.
const SMALL_MAX: u64 = 64 << 20;

fn parse_depth(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=DEPTH_MAX).contains(&n) => Ok(n),
        _ => Err(format!("a depth is 1 to {DEPTH_MAX}")),
    }
}

/// Parses a size that is at least one byte, and at most `most`.
fn parse_bounded(text: &str, most: u64) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    match (1..=most).contains(&bytes) {
        true => Ok(bytes),
        false => Err(format!("it is 1 to {} bytes", size::format_size(most))),
    }
}

/// Options of `tatami bench regions`.
#[derive(Clone, Debug, clap::Args)]
pub struct RegionsArgs {
    /// Empty partition, loop device or file for the objects. The run overwrites all of it (default:
    /// a file below --work)
    #[arg(long, value_name = "PATH")]
    pub device: Option<PathBuf>,
    /// Directory for the journal, on the disk to be measured
    #[arg(long, default_value = "bench-results/work-regions", value_hint = clap::ValueHint::DirPath)]
    pub work: PathBuf,
    /// Objects that are made, changed and read at each depth
    #[arg(short = 'n', long, default_value_t = 32_768, value_parser = clap::value_parser!(u64).range(64..=100_000_000))]
    pub objects: u64,
    /// Bytes of an object (k, m)
    #[arg(long, default_value = "4k", value_parser = |text: &str| parse_bounded(text, REGION_MAX))]
    pub size: u64,
    /// Numbers of threads, each with one operation at a time; also the depths of fio
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4,16,64", value_parser = parse_depth)]
    pub depth: Vec<usize>,
    /// From which the order of objects follows
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What keeps the bytes of small files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SmallFileKind {
    /// A file of a node's disk for each.
    File,
    /// Regions of a device of each node.
    Region,
    /// Beside the inode, in the metadata.
    Inline,
}

impl SmallFileKind {
    /// All kinds.
    pub const ALL: [SmallFileKind; 3] =
        [SmallFileKind::File, SmallFileKind::Region, SmallFileKind::Inline];

    /// Returns its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            SmallFileKind::File => "file",
            SmallFileKind::Region => "region",
            SmallFileKind::Inline => "inline",
        }
    }
}

/// The paths of one directory of a peer, at least one: the same directory on several mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerPaths(pub Vec<PathBuf>);

impl PeerPaths {
    /// Parses paths with commas in between.
    ///
    /// # Errors
    /// A sentence for a path that is missing.
    fn parse(text: &str) -> Result<PeerPaths, String> {
        let paths: Vec<PathBuf> = text.split(',').map(PathBuf::from).collect();
        match paths.iter().any(|path| path.as_os_str().is_empty()) {
            true => Err("a path is missing: write DIR, or DIR,DIR for several mounts".into()),
            false => Ok(PeerPaths(paths)),
        }
    }
}

/// Options of `tatami bench smallfiles`.
#[derive(Clone, Debug, clap::Args)]
pub struct SmallfilesArgs {
    /// Directory to work in, on any file system. Several: the same directory on several mounts,
    /// which the processes take in turn (default: a volume of its own, with four mounts)
    #[arg(value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// Files of the data set
    #[arg(short = 'n', long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub files: u64,
    /// Directories of the data set
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub directories: u64,
    /// Bytes of a file (k, m)
    #[arg(short = 's', long, default_value = "4k", value_parser = |text: &str| parse_bounded(text, SMALL_MAX))]
    pub size: u64,
    /// Number of processes
    #[arg(short = 'p', long, default_value_t = 8, value_parser = parse_procs)]
    pub procs: usize,
    /// What keeps the bytes of the volume's files. Several: a volume for each, in turn
    #[arg(
        long,
        value_name = "KIND",
        value_delimiter = ',',
        default_value = "region",
        conflicts_with = "dirs"
    )]
    pub kind: Vec<SmallFileKind>,
    /// All kinds
    #[arg(long, conflicts_with_all = ["dirs", "kind"])]
    pub all_kinds: bool,
    /// The same in this directory of another file system, in turn; the first one is the baseline.
    /// Paths of one directory on several mounts have commas in between
    #[arg(long, value_name = "DIR", value_parser = PeerPaths::parse)]
    pub peer: Vec<PeerPaths>,
    /// Directory for the volumes, on the disk to be measured
    #[arg(long, default_value = "bench-results/work-smallfiles", value_hint = clap::ValueHint::DirPath)]
    pub work: PathBuf,
    /// From which the order of reads follows
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The tatami command that starts volumes, if it is not the one beside this program
    #[arg(long, hide = true)]
    pub program: Option<PathBuf>,
}

impl SmallfilesArgs {
    /// Returns the kinds of the volumes that are measured, each once.
    pub fn volume_kinds(&self) -> Vec<SmallFileKind> {
        if !self.dirs.is_empty() {
            return Vec::new();
        }
        let wanted = |kind: &SmallFileKind| self.all_kinds || self.kind.contains(kind);
        SmallFileKind::ALL.into_iter().filter(wanted).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, clap::Parser)]
    struct SmallfilesLine {
        #[command(flatten)]
        args: SmallfilesArgs,
    }

    fn parse_line(line: &str) -> Result<SmallfilesArgs, clap::Error> {
        let words = ["smallfiles"].into_iter().chain(line.split_whitespace());
        SmallfilesLine::try_parse_from(words).map(|line| line.args)
    }

    #[test]
    fn kinds_are_those_of_own_volumes_alone() {
        let kinds = |line| parse_line(line).expect("a good line").volume_kinds();
        assert_eq!(kinds(""), [SmallFileKind::Region]);
        assert_eq!(kinds("--all-kinds"), SmallFileKind::ALL);
        let two = [SmallFileKind::File, SmallFileKind::Inline];
        assert_eq!(kinds("--kind inline,file,inline"), two);
        assert_eq!(kinds("/a /b"), []);
        for wrong in ["--kind tape", "--all-kinds --kind file", "/a --kind file", "-p 0", "-s 0"] {
            assert!(parse_line(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_peer_has_one_path_or_several() {
        let peers = parse_line("--peer /a --peer /b,/c").expect("a good line").peer;
        let paths = |names: &[&str]| PeerPaths(names.iter().map(PathBuf::from).collect());
        assert_eq!(peers, [paths(&["/a"]), paths(&["/b", "/c"])]);
        assert!(parse_line("--peer /a,").is_err_and(|e| e.to_string().contains("missing")));
    }

    #[test]
    fn sizes_and_depths_have_bounds() {
        assert_eq!(parse_bounded("64k", SMALL_MAX), Ok(64 << 10));
        assert!(parse_bounded("0", SMALL_MAX).is_err() && parse_bounded("1g", SMALL_MAX).is_err());
        assert_eq!((parse_depth("64"), parse_depth("0").is_err()), (Ok(64), true));
    }
}
