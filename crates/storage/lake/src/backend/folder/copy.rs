//! Copying inside the folder: by the kernel where the ETag is known, through the hash where it is not.
//!
//! `copy_file_range` shares blocks on file systems that can. An object whose ETag is its MD5 keeps it; a
//! foreign or multipart one is hashed on the way, because a copy is one object written in one piece and S3
//! says so by its ETag.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use forebay_core::{Error, Kind, ObjectKey, Result};

use super::lookup;
use super::publish::{NewObject, publish};
use super::read::PinnedFile;
use super::temp::Temp;
use super::tree::Tree;
use crate::etag::parse_md5;
use crate::{CopyOptions, PutMode, PutReceipt};

/// Copies one object over or beside another.
pub(super) fn copy(
    tree: &Arc<Tree>,
    from: &ObjectKey,
    to: &ObjectKey,
    options: CopyOptions,
) -> Result<PutReceipt> {
    super::key_path::KeyPath::new(to)?;
    let source = lookup::open(tree, from)?;
    super::check_version(options.if_match.as_ref(), &source.meta)?;
    let pinned = PinnedFile::new(source.file, source.stamp);
    let mut temp = Temp::create(tree)?;
    let etag = match parse_md5(source.meta.version.as_str()) {
        Some(_) => {
            copy_bytes(pinned.file(), &temp, source.stamp.bytes)?;
            pinned.check_unchanged()?;
            source.meta.version.as_str().to_owned()
        }
        None => {
            hash_bytes(&pinned, &mut temp, source.stamp.bytes)?;
            hex::encode(temp.md5())
        }
    };
    let attributes = options.attributes.unwrap_or(source.meta.attributes);
    publish(
        tree,
        temp,
        NewObject {
            key: to,
            etag: &etag,
            attributes,
            mode: &PutMode::Overwrite,
        },
    )
}

/// Appends the next `bytes` of a file to a temporary one, inside the kernel where it can (`std` knows how).
pub(super) fn copy_bytes(source: &File, temp: &Temp, bytes: u64) -> Result<()> {
    let copied = std::io::copy(&mut source.take(bytes), &mut temp.file())
        .map_err(|error| Error::io("cannot copy an object's bytes", error))?;
    if copied == bytes {
        return Ok(());
    }
    Err(
        Error::new(Kind::Unavailable, "a file ended before its bytes were copied")
            .with("missing", bytes - copied),
    )
}

fn hash_bytes(source: &PinnedFile, temp: &mut Temp, bytes: u64) -> Result<()> {
    let mut rest = 0..bytes;
    while !rest.is_empty() {
        let chunk = source.read_chunk(&rest)?;
        temp.write(&chunk)?;
        rest.start += chunk.len() as u64;
    }
    Ok(())
}
