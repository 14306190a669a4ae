//! The documents of open uploads: what has been opened, which parts are there.
//!
//! `.forebay/uploads/<id>/upload.json` and `.forebay/uploads/<id>/part-00001.json`. Format:
//! docs/formats/bucket-documents.md.

use std::time::{Duration, SystemTime};

use forebay_core::{Error, Kind, ObjectKey, Result};
use forebay_lake::{Attributes, Lake, ListOptions, UploadId};
use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};

use super::{PartInfo, UploadInfo};
use crate::document;
use crate::{ChecksumKind, ObjectChecksum, Tag};

const UPLOADS_FOLDER: &str = ".forebay/uploads/";

/// Documents that are read at once.
const READS_IN_FLIGHT_MAX: usize = 16;

/// `upload.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct UploadDocument {
    pub(super) key: ObjectKey,
    /// The lake's id of this upload.
    pub(super) lake_upload: UploadId,
    pub(super) initiated_ms: u64,
    pub(super) attributes: Attributes,
    pub(super) tags: Vec<Tag>,
    pub(super) checksum: Option<(String, ChecksumKind)>,
}

/// `part-00001.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct PartDocument {
    number: u16,
    etag: String,
    bytes: u64,
    modified_ms: u64,
    checksums: Vec<ObjectChecksum>,
}

impl UploadDocument {
    pub(super) fn info(&self, id: &str) -> UploadInfo {
        UploadInfo {
            id: id.to_owned(),
            key: self.key.clone(),
            initiated: from_unix_ms(self.initiated_ms),
            checksum: self.checksum.clone(),
        }
    }
}

/// A new id: sorts by time and is unlike any other. It is a name, not a secret.
pub(super) fn new_id(now: SystemTime) -> String {
    let mut random = [0u8; 16];
    for chunk in random.chunks_mut(8) {
        chunk.copy_from_slice(&fastrand::u64(..).to_le_bytes());
    }
    format!("{:012x}{}", unix_ms(now), hex::encode(random))
}

/// Ids come back from clients, so they are checked before they become part of a key.
fn check_id(id: &str) -> Result<()> {
    let is_ours = id.len() == 44
        && id
            .bytes()
            .all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c));
    if is_ours { Ok(()) } else { Err(no_such_upload(id)) }
}

pub(super) fn no_such_upload(id: &str) -> Error {
    let shown: String = id.chars().take(64).collect();
    Error::new(
        Kind::NotFound,
        "there is no such upload; it was completed, aborted, or the id is wrong",
    )
    .with("code", "NoSuchUpload")
    .with("upload", shown)
}

fn key_of(id: &str, name: &str) -> Result<ObjectKey> {
    ObjectKey::new(&format!("{UPLOADS_FOLDER}{id}/{name}"))
}

pub(super) async fn write_upload(lake: &dyn Lake, id: &str, upload: &UploadDocument) -> Result<()> {
    document::write(lake, &key_of(id, "upload.json")?, upload).await
}

/// The upload of this id, which must be for this key.
pub(super) async fn read_upload(lake: &dyn Lake, id: &str, key: &ObjectKey) -> Result<UploadDocument> {
    check_id(id)?;
    let upload: Option<UploadDocument> = document::read(lake, &key_of(id, "upload.json")?).await?;
    upload
        .filter(|upload| upload.key == *key)
        .ok_or_else(|| no_such_upload(id))
}

pub(super) async fn write_part(lake: &dyn Lake, id: &str, part: &PartInfo) -> Result<()> {
    let document = PartDocument {
        number: part.number,
        etag: part.etag.clone(),
        bytes: part.bytes,
        modified_ms: unix_ms(part.modified),
        checksums: part.checksums.clone(),
    };
    document::write(lake, &key_of(id, &part_name(part.number))?, &document).await
}

fn part_name(number: u16) -> String {
    format!("part-{number:05}.json")
}

/// Parts with a number above `after`, ascending, at most `limit`.
pub(super) async fn read_parts(lake: &dyn Lake, id: &str, after: u16, limit: usize) -> Result<Vec<PartInfo>> {
    let prefix = format!("{UPLOADS_FOLDER}{id}/part-");
    let start_after = (after > 0).then(|| format!("{UPLOADS_FOLDER}{id}/{}", part_name(after)));
    let keys = list_keys(lake, prefix, start_after, limit).await?;
    let parts: Vec<Option<PartDocument>> = stream::iter(keys)
        .map(|key| async move { document::read(lake, &key).await })
        .buffered(READS_IN_FLIGHT_MAX)
        .try_collect()
        .await?;
    let to_info = |part: PartDocument| PartInfo {
        number: part.number,
        etag: part.etag,
        bytes: part.bytes,
        modified: from_unix_ms(part.modified_ms),
        checksums: part.checksums,
    };
    Ok(parts.into_iter().flatten().map(to_info).collect())
}

/// All open uploads.
pub(super) async fn read_uploads(lake: &dyn Lake) -> Result<Vec<UploadInfo>> {
    let mut ids = Vec::new();
    let mut options = ListOptions {
        prefix: UPLOADS_FOLDER.into(),
        delimiter: Some("/".into()),
        ..ListOptions::default()
    };
    loop {
        let page = lake.list(options.clone()).await?;
        ids.extend(
            page.prefixes
                .iter()
                .map(|prefix| prefix[UPLOADS_FOLDER.len()..].trim_end_matches('/').to_owned()),
        );
        match page.next {
            Some(next) => options.start_after = Some(next),
            None => break,
        }
    }
    let uploads: Vec<Option<UploadInfo>> = stream::iter(ids)
        .map(|id| async move {
            let upload: Option<UploadDocument> = document::read(lake, &key_of(&id, "upload.json")?).await?;
            Ok::<_, Error>(upload.map(|upload| upload.info(&id)))
        })
        .buffered(READS_IN_FLIGHT_MAX)
        .try_collect()
        .await?;
    Ok(uploads.into_iter().flatten().collect())
}

/// Removes all documents of an upload, `upload.json` last, so that an interrupted removal can be repeated.
pub(super) async fn remove(lake: &dyn Lake, id: &str) -> Result<()> {
    let keys = list_keys(lake, format!("{UPLOADS_FOLDER}{id}/part-"), None, usize::MAX).await?;
    stream::iter(keys)
        .map(|key| async move { lake.delete(&key).await })
        .buffer_unordered(READS_IN_FLIGHT_MAX)
        .try_collect::<()>()
        .await?;
    lake.delete(&key_of(id, "upload.json")?).await
}

async fn list_keys(
    lake: &dyn Lake,
    prefix: String,
    start_after: Option<String>,
    limit: usize,
) -> Result<Vec<ObjectKey>> {
    let mut keys = Vec::new();
    let mut options = ListOptions {
        prefix,
        start_after,
        ..ListOptions::default()
    };
    loop {
        let page = lake.list(options.clone()).await?;
        keys.extend(page.objects.into_iter().map(|object| object.key));
        match page.next {
            Some(next) if keys.len() < limit => options.start_after = Some(next),
            _ => break,
        }
    }
    keys.truncate(limit);
    Ok(keys)
}

fn unix_ms(time: SystemTime) -> u64 {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn from_unix_ms(ms: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH
        .checked_add(Duration::from_millis(ms))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_from_clients_cannot_leave_the_folder() {
        let id = new_id(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
        assert!(check_id(&id).is_ok(), "{id}");
        for bad in [
            "",
            "../../x",
            "a/b",
            &"A".repeat(44),
            &"g".repeat(44),
            &"0".repeat(45),
        ] {
            assert_eq!(check_id(bad).unwrap_err().kind(), Kind::NotFound);
        }
    }
}
