//! Object stores behind one trait.
//!
//! Read in this order: [`Lake`] (`lake.rs`), the back-ends, the decorators, the scheduler.
mod etag;
mod folder;
mod get_range;
mod lake;
mod memory;

pub use folder::FolderLake;
pub use get_range::resolve_range;
mod retry;
mod scheduler;

pub use lake::*;
pub use memory::MemoryLake;
pub use retry::{RetryBudget, RetryPolicy};
pub use scheduler::{FetchPriority, ReadScheduler, SchedulerOptions, SchedulerStats, plan};
