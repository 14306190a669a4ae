//! The Rust client of a Forebay node, used by the `forebay` command and the Python package.
//!
//! On the host of a node it speaks over a Unix socket, and bytes are read where the node keeps them: in shared memory, under a
//! lease that ends with the last clone of a [`View`]. To a node elsewhere the same calls go over HTTP. All calls block, many
//! threads may share one [`Client`], and there are no threads of its own, so that a process may fork at any time (`fork.rs`).
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

mod ahead;
mod buffer;
mod client;
mod copy;
mod crew;
mod fork;
mod listing;
mod local;
mod name;
mod near;
mod options;
mod pieces;
mod region;
mod remote;
mod save;
mod stats;
mod view;
mod wait;
mod writer;

pub use buffer::WritableBuffer;
pub use client::{Client, PutOptions, PutReceipt, PutSource};
pub use copy::copy_past_cache;
pub use crew::{Crew, Member};
pub use forebay_checkpoint::manifest::ObjectKind;
pub use forebay_checkpoint::{Dtype, TensorBox};
pub use forebay_core::wire::{
    AlarmPolicy, Condition, Differential, Durability, Filled, Headers, Item, ItemRange, ListRequest, Listed,
    ListedObject, Loaded, ObjectName, ObjectStat, Plan, PlannedObject, SavePhase, SaveState, Sources,
    StagedIn,
};
pub use fork::{BeforeFork, tell_before_fork};
pub use listing::{Entry, ListOptions, Listing};
pub use name::Name;
pub use near::bring_near;
pub use options::{ClientOptions, Credentials, Interrupt};
pub use pieces::Pieces;
pub use region::Region;
pub use save::{Save, SaveOptions, StagedSave, Survives, TensorPart};
pub use stats::ClientStats;
pub use view::{View, ViewHandle};
pub use writer::ObjectWriter;
