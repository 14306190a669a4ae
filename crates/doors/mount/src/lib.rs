//! A bucket as a folder: FUSE on top of the client, so it works through the node of the host or an embedded one.
//!
//! The inode of a file is a version of an object. Descriptors and maps stay with theirs while the object is
//! replaced; a new open sees the new one; nothing is ever mixed. Flows: docs/flows/mount-read.md,
//! mount-write.md.
//!
//! ```no_run
//! use forebay_client::{Client, ClientOptions};
//! use forebay_mount::{Mount, MountOptions};
//! use std::time::Duration;
//!
//! # fn main() -> forebay_core::Result<()> {
//! let client = Client::connect(ClientOptions::default())?;
//! let mount = Mount::start(client, MountOptions::new("models", "", "/mnt/models"))?;
//! println!("{}", mount.explain());
//! mount.unmount(Duration::from_secs(10))
//! # }
//! ```

mod counters;
mod errno;
mod filesystem;
mod folders;
mod handles;
mod inode;
mod keeper;
mod mode;
mod open_file;
mod options;
mod probe;
mod recent;
mod requests;
mod session;
mod shared;
mod staged;
mod tree;
mod whole_copy;
mod write_requests;
mod writes;
mod xattr;

pub use counters::{Counter, Counters};
pub use options::{Fsync, MountOptions, Passthrough};
pub use probe::{Offers, probe};
pub use session::{Detach, Mount, unmount};
