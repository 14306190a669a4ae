//! The index of a shard from DALI's `.idx` beside it, so that nothing of the shard has to be read.
//!
//! Such a file has places and no checksums, and nothing in it says which version of the shard it is about. So
//! it is used only when asked for, is compared with the shard at a few places (the header of the sample must
//! be there, with its size), and is never stored as an index of ours.

use forebay_client::{Client, ItemRange, Name};
use forebay_core::{Error, Kind, Result};
use forebay_dataset::foreign::{self, ForeignIndexSink};
use forebay_dataset::index::{ShardIndex, ShardIndexBuilder, ShardIndexOptions};
use forebay_dataset::shard::{Format, ShardRecord};

use crate::source::ShardObject;

/// Samples whose headers are compared.
const LOOKS: usize = 4;

/// The index of a shard, if there is such a file beside it.
///
/// Errors: `Corrupt` if the file cannot be read or does not fit the shard.
pub(super) fn shard(client: &Client, shard: &ShardObject, record: ShardRecord) -> Result<Option<ShardIndex>> {
    let Some((name, document)) = find(client, shard)? else {
        return Ok(None);
    };
    let about = |error: Error| error.with("index", &name).with("shard", &shard.name);
    let options = ShardIndexOptions {
        with_keys: document.starts_with(foreign::DALI_WITH_NAMES),
        columns: Vec::new(),
    };
    let mut places = ForeignIndexSink::new(ShardIndexBuilder::new(options), shard.bytes);
    match shard.format {
        Format::Tar => foreign::dali_tar(&document, &mut places),
        _ => foreign::dali_tfrecord(&document, &mut places),
    }
    .map_err(about)?;
    for (offset, bytes) in places.some(LOOKS) {
        let header = foreign::header_bytes(shard.format);
        let missing = || Error::new(Kind::Corrupt, foreign::DOES_NOT_FIT);
        let range = ItemRange::Range {
            offset: offset.checked_sub(header).ok_or_else(missing).map_err(about)?,
            length: header,
        };
        let view = client.get(&shard.name, range, Some(&shard.version))?;
        foreign::check_header(shard.format, &view, bytes).map_err(about)?;
    }
    Ok(Some(places.into_builder().finish(record)))
}

/// The file beside a shard.
fn find(client: &Client, shard: &ShardObject) -> Result<Option<(Name, Vec<u8>)>> {
    let key = shard.name.key();
    let bare = match shard.format {
        Format::Tar => key.strip_suffix(".tar"),
        Format::TfRecord => Some(key.strip_suffix(".tfrecord").unwrap_or(key)),
        _ => None,
    };
    let Some(bare) = bare else { return Ok(None) };
    for name in [
        format!("{bare}.idx"),
        format!("{key}.idx"),
        format!("{bare}.index"),
    ] {
        let name = Name::new(shard.name.bucket(), &name)?;
        match client.get(&name, ItemRange::Whole, None) {
            Ok(view) => return Ok(Some((name, view.to_vec()))),
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
