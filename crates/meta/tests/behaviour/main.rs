//! The behaviour of a shard, seen from outside: one file a behaviour.

mod attributes;
mod batches;
mod checking;
mod crashes;
mod entries;
mod exactly_once;
mod harness;
mod inline;
mod jobs;
mod model;
mod model_run;
mod moves;
mod on_disk;
mod orphans;
mod permissions;
mod relayout;
mod renames;
mod tiled;
#[path = "../common/words.rs"]
mod words;
mod xattrs;
