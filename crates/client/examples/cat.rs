//! Writes an object to standard output: `cargo run -p forebay-client --example cat -- bucket/key [bucket/key
//! …]`.
//!
//! The bytes go from the node's memory to the output without a copy in between. What the reads cost is said
//! on standard error.

use std::io::Write;

use forebay_client::{Client, ClientOptions, ItemRange, Name};
use forebay_core::{Error, Kind, Result};

fn main() -> Result<()> {
    let client = Client::connect(ClientOptions::default())?;
    let mut output = std::io::stdout().lock();
    for name in std::env::args().skip(1) {
        let view = client.get(&Name::parse(&name)?, ItemRange::Whole, None)?;
        output
            .write_all(&view)
            .map_err(|why| Error::io("cannot write the output", why))?;
    }
    output
        .flush()
        .map_err(|why| Error::new(Kind::Io, "cannot write the output").caused_by(why))?;
    let stats = client.stats();
    eprintln!(
        "{} bytes mapped, {} copied; {} came from the lake",
        stats.mapped_bytes, stats.copied_bytes, stats.lake_bytes
    );
    Ok(())
}
