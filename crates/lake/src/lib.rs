//! Object stores behind one trait.
//!
//! Read in this order: [`Lake`] (`lake.rs`), the back-ends, the decorators, the scheduler.
mod lake;

pub use lake::*;
