//! Object stores behind one trait.
//!
//! Read in this order: [`Lake`] (`lake.rs`), the stores (`backend/`), the decorators (`layer/`), the way to a
//! lake that every request takes (`admission/`), the read scheduler (`schedule/`). [`open`] turns a URL into a lake; [`selftest`] proves at start which promises it
//! keeps.
mod admission;
mod backend;
mod etag;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod get_range;
mod lake;
mod layer;
mod open;
mod operation;
mod schedule;
pub mod selftest;

pub use admission::{Admission, AdmissionOptions, AdmissionStats, LakeCondition};
pub use backend::folder::FolderLake;
pub use backend::memory::MemoryLake;
pub use get_range::resolve_range;
pub use lake::*;
pub use layer::clean_keys::CleanKeys;
pub use layer::counted::{Counted, LakeCounters, LakeCounts, RequestCount};
pub use layer::faulty::{Fault, FaultHook, Faulty};
pub use layer::prefixed::Prefixed;
pub use layer::retry::{RetryBudget, RetryPolicy};
pub use layer::throttled::{ThrottleOptions, Throttled};
pub use open::{AddressStyle, OpenOptions, open};
pub use operation::Operation;
pub use schedule::{FetchPriority, FetchUrgency, ReadScheduler, SchedulerOptions, SchedulerStats, plan};
pub use selftest::LakeReport;
