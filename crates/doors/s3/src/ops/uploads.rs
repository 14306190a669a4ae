//! Listings of multipart uploads: the parts of one, and all open ones of a bucket.
//!
//! The engine gives all open uploads of a prefix in order; paging and grouping at a delimiter is done here by
//! a pure function.

use forebay_engine::{ChecksumKind, PartInfo, UploadInfo};
use s3s::dto::*;
use s3s::{S3Response, s3_error};

use super::{Request, Response};
use crate::checksum::{Values, kind_name};
use crate::map;
use crate::operations::Operations;
use crate::ops::list::{Names, max_keys};

/// `ListParts`.
pub(crate) async fn list_parts(
    operations: &Operations,
    request: Request<ListPartsInput>,
) -> Response<ListPartsOutput> {
    let input = &request.input;
    let (bucket, key) = (map::bucket(&input.bucket)?, map::writable_key(&input.key)?);
    let max_parts = max_keys(input.max_parts)?;
    let marker = input.part_number_marker.unwrap_or(0);
    let after = u16::try_from(marker)
        .map_err(|_| s3_error!(InvalidArgument, "part-number-marker is out of range"))?;
    let limit = usize::try_from(max_parts).expect("checked to be positive");
    let listed = operations
        .engine
        .list_parts(&bucket, &key, &input.upload_id, after, limit)
        .await;
    let (upload, parts, is_truncated) = listed.map_err(|error| map::failure(&error, &request.extensions))?;
    let next = parts.last().map_or(marker, |part| i32::from(part.number));
    Ok(S3Response::new(ListPartsOutput {
        bucket: Some(input.bucket.clone()),
        checksum_algorithm: upload
            .checksum
            .as_ref()
            .map(|(name, _)| ChecksumAlgorithm::from(name.clone())),
        checksum_type: upload.checksum.as_ref().map(|(_, kind)| checksum_type(*kind)),
        initiator: Some(initiator()),
        is_truncated: Some(is_truncated && max_parts > 0),
        key: Some(input.key.clone()),
        max_parts: Some(max_parts),
        next_part_number_marker: Some(next),
        owner: Some(map::owner()),
        part_number_marker: Some(marker),
        parts: Some(parts.iter().map(part_dto).collect()),
        storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
        upload_id: Some(input.upload_id.clone()),
        ..Default::default()
    }))
}

/// `ListMultipartUploads`.
pub(crate) async fn list(
    operations: &Operations,
    request: Request<ListMultipartUploadsInput>,
) -> Response<ListMultipartUploadsOutput> {
    let input = request.input;
    let bucket = map::bucket(&input.bucket)?;
    let names = Names::new(input.encoding_type.as_ref())?;
    let max_uploads = max_keys(input.max_uploads)?;
    let prefix = input.prefix.clone().unwrap_or_default();
    let listed = operations.engine.list_uploads(&bucket, &prefix).await;
    let uploads = listed.map_err(|error| map::failure(&error, &request.extensions))?;
    let paging = Paging {
        prefix: &prefix,
        delimiter: input
            .delimiter
            .as_deref()
            .filter(|delimiter| !delimiter.is_empty()),
        key_marker: input.key_marker.as_deref().unwrap_or_default(),
        upload_marker: input.upload_id_marker.as_deref().unwrap_or_default(),
        limit: usize::try_from(max_uploads).expect("checked to be positive"),
    };
    let page = paging.cut(uploads);
    let (next_key_marker, next_upload_id_marker) = page.next.unzip();
    let to_prefix = |prefix: &String| CommonPrefix {
        prefix: Some(names.show(prefix)),
    };
    Ok(S3Response::new(ListMultipartUploadsOutput {
        bucket: Some(input.bucket),
        common_prefixes: (!page.prefixes.is_empty()).then(|| page.prefixes.iter().map(to_prefix).collect()),
        delimiter: input.delimiter.map(|delimiter| names.show(&delimiter)),
        encoding_type: input.encoding_type,
        is_truncated: Some(next_key_marker.is_some()),
        key_marker: Some(names.show(&input.key_marker.unwrap_or_default())),
        max_uploads: Some(max_uploads),
        next_key_marker: next_key_marker.map(|key| names.show(&key)),
        next_upload_id_marker,
        prefix: Some(names.show(&prefix)),
        upload_id_marker: input.upload_id_marker,
        uploads: Some(
            page.uploads
                .into_iter()
                .map(|upload| upload_dto(upload, names))
                .collect(),
        ),
        ..Default::default()
    }))
}

fn checksum_type(kind: ChecksumKind) -> ChecksumType {
    ChecksumType::from_static(kind_name(kind))
}

fn initiator() -> Initiator {
    Initiator {
        display_name: Some("forebay".to_owned()),
        id: Some("forebay".to_owned()),
    }
}

fn part_dto(part: &PartInfo) -> Part {
    let values = Values::of(&part.checksums);
    Part {
        checksum_crc32: values.crc32,
        checksum_crc32c: values.crc32c,
        checksum_crc64nvme: values.crc64nvme,
        checksum_sha1: values.sha1,
        checksum_sha256: values.sha256,
        e_tag: Some(map::etag(&part.etag)),
        last_modified: Some(map::timestamp(part.modified)),
        part_number: Some(i32::from(part.number)),
        size: Some(map::size(part.bytes)),
    }
}

fn upload_dto(upload: UploadInfo, names: Names) -> MultipartUpload {
    MultipartUpload {
        checksum_algorithm: upload
            .checksum
            .as_ref()
            .map(|(name, _)| ChecksumAlgorithm::from(name.clone())),
        checksum_type: upload.checksum.as_ref().map(|(_, kind)| checksum_type(*kind)),
        initiated: Some(map::timestamp(upload.initiated)),
        initiator: Some(initiator()),
        key: Some(names.show(upload.key.as_str())),
        owner: Some(map::owner()),
        storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
        upload_id: Some(upload.id),
    }
}

/// Query of the list of uploads.
struct Paging<'a> {
    prefix: &'a str,
    delimiter: Option<&'a str>,
    key_marker: &'a str,
    upload_marker: &'a str,
    limit: usize,
}

/// One page of it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Page {
    uploads: Vec<UploadInfo>,
    prefixes: Vec<String>,
    /// The markers of the next page.
    next: Option<(String, String)>,
}

impl Paging<'_> {
    /// Cuts one page out of all uploads, which are sorted by key and id.
    fn cut(&self, uploads: Vec<UploadInfo>) -> Page {
        let mut page = Page::default();
        let mut last = None;
        for upload in uploads {
            let group = self.group(upload.key.as_str());
            if !self.is_after_markers(&upload, group.as_deref())
                || group.is_some() && page.prefixes.last() == group.as_ref()
            {
                continue;
            }
            if page.uploads.len() + page.prefixes.len() == self.limit {
                page.next = last;
                break;
            }
            match group {
                Some(prefix) => {
                    last = Some((prefix.clone(), String::new()));
                    page.prefixes.push(prefix);
                }
                None => {
                    last = Some((upload.key.to_string(), upload.id.clone()));
                    page.uploads.push(upload);
                }
            }
        }
        page
    }

    fn group(&self, key: &str) -> Option<String> {
        let delimiter = self.delimiter?;
        let rest = key.strip_prefix(self.prefix)?;
        rest.find(delimiter)
            .map(|at| key[..self.prefix.len() + at + delimiter.len()].to_owned())
    }

    /// Without an upload marker the marker key itself is done; with one, its later uploads still come.
    fn is_after_markers(&self, upload: &UploadInfo, group: Option<&str>) -> bool {
        if self.key_marker.is_empty() {
            return true;
        }
        if let Some(group) = group {
            return group > self.key_marker;
        }
        let key = upload.key.as_str();
        key > self.key_marker
            || (key == self.key_marker
                && !self.upload_marker.is_empty()
                && upload.id.as_str() > self.upload_marker)
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn upload(key: &str, id: &str) -> UploadInfo {
        UploadInfo {
            id: id.to_owned(),
            key: forebay_core::ObjectKey::new(key).unwrap(),
            initiated: SystemTime::UNIX_EPOCH,
            checksum: None,
        }
    }

    fn all() -> Vec<UploadInfo> {
        vec![
            upload("a", "1"),
            upload("a", "2"),
            upload("d/x", "1"),
            upload("d/y", "1"),
            upload("e", "1"),
        ]
    }

    fn pages(delimiter: Option<&str>, limit: usize) -> Vec<String> {
        let (mut key_marker, mut upload_marker) = (String::new(), String::new());
        let mut seen = Vec::new();
        loop {
            let paging = Paging {
                prefix: "",
                delimiter,
                key_marker: &key_marker,
                upload_marker: &upload_marker,
                limit,
            };
            let page = paging.cut(all());
            assert!(page.uploads.len() + page.prefixes.len() <= limit);
            seen.extend(
                page.uploads
                    .iter()
                    .map(|upload| format!("{}#{}", upload.key, upload.id)),
            );
            seen.extend(page.prefixes);
            match page.next {
                Some(next) => (key_marker, upload_marker) = next,
                None => return seen,
            }
        }
    }

    #[test]
    fn pages_of_any_size_show_every_upload_once() {
        for limit in 1..7 {
            assert_eq!(
                pages(None, limit),
                ["a#1", "a#2", "d/x#1", "d/y#1", "e#1"],
                "{limit}"
            );
        }
    }

    #[test]
    fn grouped_pages_show_every_prefix_once() {
        for limit in 1..7 {
            let mut seen = pages(Some("/"), limit);
            seen.sort();
            assert_eq!(seen, ["a#1", "a#2", "d/", "e#1"], "{limit}");
        }
    }

    #[test]
    fn an_empty_page_is_the_last() {
        let paging = Paging {
            prefix: "",
            delimiter: None,
            key_marker: "",
            upload_marker: "",
            limit: 0,
        };
        assert_eq!(paging.cut(all()), Page::default());
    }
}
