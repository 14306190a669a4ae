//! The Rust client of a Forebay node, used by the `forebay` command and the Python package.
//!
//! On the host of a node it speaks over a Unix socket, and bytes are read where the node keeps them: in
//! shared memory, under a lease that ends with the last clone of a [`View`]. To a remote node the same calls
//! go over HTTP or HTTPS. All calls block, many threads may share one [`Client`], and there are no threads of
//! its own, so that a process may fork at any time (`fork.rs`).
//!
//! ```no_run
//! use forebay_client::{Client, ClientOptions, ItemRange, Name, PutOptions, PutSource};
//!
//! # fn main() -> forebay_core::Result<()> {
//! let client = Client::connect(ClientOptions::default())?;
//! let name = Name::parse("bucket/key")?;
//! client.put(&name, PutSource::Slice(b"hello"), PutOptions::default())?;
//! let view = client.get(&name, ItemRange::Whole, None)?;
//! assert_eq!(&view[..], b"hello");
//! # Ok(())
//! # }
//! ```

mod buffer;
mod client;
mod copy;
mod cpu_prefetch;
mod fork;
mod hints;
mod listing;
mod local;
mod name;
mod options;
pub mod parallel;
mod remote;
mod save;
mod scattered;
mod stats;
mod view;
mod wait;
mod worker_scope;
mod writer;

pub use buffer::WritableBuffer;
pub use client::{Client, PutOptions, PutReceipt, PutSource};
pub use copy::copy_past_cache;
pub use cpu_prefetch::prefetch_cache_lines;
pub use forebay_checkpoint::manifest::ObjectKind;
pub use forebay_checkpoint::{Dtype, TensorBox};
pub use forebay_core::WriteCondition;
pub use forebay_net::ClientTls;
pub use forebay_wire::loaders::LoaderReport;
pub use forebay_wire::objects::{
    ListRequest, Listed, ListedObject, ObjectStat, WorkingSet, WorkingSetObject,
};
pub use forebay_wire::saves::{AlarmPolicy, Differential, SavePhase, SaveState, StagedIn, Survives};
pub use forebay_wire::{Headers, Item, ItemRange, ObjectName, TierBytes};
pub use fork::{BeforeFork, tell_before_fork};
pub use listing::{Entry, ListOptions, Listing};
pub use name::Name;
pub use options::{ClientOptions, Credentials, Interrupt};
pub use save::{Save, SaveOptions, StagedSave, TensorPart};
pub use scattered::Scattered;
pub use stats::ClientStats;
pub use view::{View, ViewHandle};
pub use worker_scope::{Worker, WorkerScope};
pub use writer::ObjectWriter;
