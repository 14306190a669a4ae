//! Object stores behind one trait.
//!
//! Read in this order: [`Lake`] (`lake.rs`), the back-ends, the decorators, the scheduler.
mod cloud;
mod counted;
mod etag;
mod faulty;
mod folder;
#[doc(hidden)]
pub mod fuzzing;
mod get_range;
mod lake;
mod memory;
mod open;
mod operation;
mod prefixed;
mod retry;
mod scheduler;
pub mod selftest;
mod throttled;

pub use counted::{Counted, LakeCounters, LakeCounts, RequestCount};
pub use faulty::{Fault, FaultHook, Faulty};
pub use folder::FolderLake;
pub use get_range::resolve_range;
pub use lake::*;
pub use memory::MemoryLake;
pub use open::{AddressStyle, OpenOptions, open};
pub use operation::Operation;
pub use prefixed::Prefixed;
pub use retry::{RetryBudget, RetryPolicy};
pub use scheduler::{FetchPriority, FetchUrgency, ReadScheduler, SchedulerOptions, SchedulerStats, plan};
pub use selftest::LakeReport;
pub use throttled::{ThrottleOptions, Throttled};
