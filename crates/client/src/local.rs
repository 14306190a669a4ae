//! The client of a node on the same host.
//!
//! Read in this order: `session.rs` (one mutex holds all that a process knows of its node), `pool.rs` (a
//! connection for each call, found again when the node was replaced), `connection.rs` (frames over a socket),
//! `read.rs` and `leased_item.rs` (reads), `segments.rs` and `view.rs` (mapped memory), `leases.rs` (who
//! still looks at it), `put.rs`, `long_put.rs` and `staging.rs` (writes), `save.rs` (steps of a training run).

mod connection;
mod leased_item;
mod leases;
mod long_put;
mod objects;
mod pool;
mod put;
mod read;
mod read_into;
mod save;
mod segments;
mod session;
mod staging;
mod view;

pub(crate) use connection::{Connection, dial};
pub(crate) use leased_item::LeasedItem;
pub(crate) use long_put::LocalWrite;
pub(crate) use save::LocalSave;
pub(crate) use session::{Link, Local, SessionState};
pub(crate) use staging::StagingBuffer;
pub(crate) use view::Mapped;
