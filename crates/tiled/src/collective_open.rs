//! The arguments of a collective open.

use crate::flags::Flags;
use crate::hints::{Environment, Hints};
use std::path::Path;

/// A collective open, as rank 0 begins it.
#[derive(Clone, Debug)]
pub struct CollectiveOpen<'a> {
    /// The file, as the program names it.
    pub path: &'a Path,
    /// The requested access.
    pub flags: Flags,
    /// Permissions of a new file, before umask.
    pub mode: u32,
    /// The hints of the program.
    pub hints: &'a Hints,
    /// The settings of the environment.
    pub environment: &'a Environment,
    /// Processes that take part.
    pub ranks: u32,
    /// The machine of all of them, 0 if there are several.
    pub machine: u32,
    /// For each rank, the number of its node, from 1, where the path lies on a mount of a volume.
    /// Empty where all ranks are on this node.
    pub nodes: &'a [u32],
}
