//! From the bytes of a field to its value: images, JSON, `.npy`, text, numbers, tokens; and from the values
//! of a batch to one array.
//!
//! Pure: bytes in, values out, no I/O and no threads. Whatever the bytes claim, memory is bounded before it
//! is taken, and what cannot be decoded is an error of that sample. Image libraries live here and nowhere
//! else.
//!
//! ```
//! use forebay_decode::{Decoder, Value, pack};
//!
//! # fn main() -> forebay_core::Result<()> {
//! let decoder = Decoder::parse("int")?;
//! let values = vec![decoder.decode(b"7")?, decoder.decode(b" 8\n")?];
//! let packed = pack(&decoder, &values, &[b"7", b" 8\n"], Vec::with_capacity).unwrap();
//! assert_eq!((&*packed.dtype, packed.shape.as_slice()), ("<i8", [2].as_slice()));
//! assert!(Decoder::parse("rgb:short=256,crop=224").is_ok());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod decoder;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod image;
mod json;
mod npy;
mod orientation;
mod packed;
mod transforms;

pub use decoder::{Array, Data, Decoder, Shape, Value};
pub use image::{ImageDecoder, PIXELS_MAX_DEFAULT, Pixels};
pub use json::Json;
pub use packed::{Packed, pack};
