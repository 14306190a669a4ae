//! The words that every Forebay crate shares: names, ranges, pages, errors, time.
//!
//! Nothing here does I/O, except that [`default_socket`] looks whether a folder is there. Read in this order:
//! [`Error`], [`BucketName`] and [`ObjectKey`], [`Version`], [`ByteRange`], [`ItemRange`], [`PageIndex`], [`Clock`].
//!
//! ```
//! use forebay_core::{ByteRange, PageIndex, PAGE_BYTES};
//!
//! let range = ByteRange::new(PAGE_BYTES - 1, PAGE_BYTES + 1).unwrap();
//! let pages: Vec<PageIndex> = range.pages().collect();
//! assert_eq!(pages, [PageIndex(0), PageIndex(1)]);
//! ```
#![forbid(unsafe_code)]

mod clock;
mod coalesce;
pub mod crc32c;
mod error;
mod item_range;
mod name;
mod page;
mod range;
mod ranks;
mod secret;
mod size;
mod socket_path;
mod tier;
mod version;
mod write_condition;

pub use clock::{Clock, ManualClock, SystemClock};
pub use coalesce::{CoalesceLimits, Coalesced, Run, coalesce};
pub use error::{Error, Kind, Result};
pub use item_range::ItemRange;
pub use name::{BucketName, KEY_BYTES_MAX, ObjectKey, RESERVED_PREFIX};
pub use page::{BLOCK_BYTES, BLOCKS_PER_PAGE, BlockMask, PAGE_BYTES, PageIndex, page_bytes, page_count};
pub use range::ByteRange;
pub use ranks::missing_ranks;
pub use secret::{HIDDEN, Secret};
pub use size::{format_bytes, parse_bytes};
pub use socket_path::{SOCKET_FILE, check_socket_folder, default_socket, make_socket_folder};
pub use tier::{Tier, TierBytes};
pub use version::Version;
pub use write_condition::WriteCondition;
