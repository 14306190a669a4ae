//! Steps of a training run, through the client: list, load, verify, compare, prune.
//!
//! Blocks and has threads of its own where that pays, like the loader (docs/decisions/0006-a-loader-crate.md). Read `root.rs` first.

mod root;

pub use root::Root;
