//! Checkpoints as they lie in a lake: what a step is made of, and what proves it.
//!
//! Everything here is pure: bytes go in, documents and plans come out; reading and writing is the caller's
//! business. Read `manifest.rs` (the commit of a step), then `names.rs` (where things lie), then `shape.rs`
//! (boxes of tensors). The format is described in docs/formats/checkpoint.md.
#![forbid(unsafe_code)]

pub mod assign;
pub mod attempt_lease;
pub mod delta;
pub mod diff;
mod dtype;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod hash;
pub mod header;
pub mod manifest;
pub mod merge;
pub mod names;
pub mod pack;
pub mod plan;
pub mod retention;
pub mod safetensors;
pub mod shape;
pub mod table;
pub mod torch;
pub mod whole;
pub mod zip;

pub use dtype::Dtype;
pub use manifest::Manifest;
pub use shape::TensorBox;
