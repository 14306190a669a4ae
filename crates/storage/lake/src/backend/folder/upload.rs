//! Multipart uploads: a private folder each, with a file for the upload and a file for every part.
//!
//! `uploads/<id>/upload.json` says which key and attributes the object will have; `uploads/<id>/<number>` is
//! a part, its bytes followed by their MD5 and a mark, put there by rename, so the same number again replaces
//! it whole. Completing copies the parts into a temporary file and publishes that like any other write; the
//! parts stay until then, so a completion that was killed or refused can be tried again. Uploads live until
//! completed or aborted.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use forebay_core::{Error, Kind, ObjectKey, Result};
use futures::TryStreamExt;
use rustix::fs::{fsync, renameat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::checked_json;
use super::copy::copy_bytes;
use super::key_path::KeyPath;
use super::off_runtime;
use super::publish::{NewObject, publish};
use super::temp::{Temp, discard_folder};
use super::tree::{Tree, create_file, explain, open_file, open_folder, read_small};
use super::writer::{Sink, write_all};
use crate::etag::{check_md5, check_part_number, check_part_order, missing_part, multipart_etag, parse_md5};
use crate::{Attributes, ByteStream, PartNumber, PartReceipt, PutOptions, PutReceipt, UploadId};

const AREA: &str = "uploads";
const FORMAT: &str = "forebay-folder-upload";
const FORMAT_VERSION: u32 = 1;
const RECORD_NAME: &str = "upload.json";

/// Stands behind the MD5 at the end of a part.
const PART_MARK: &[u8; 8] = b"fbpart01";
const PART_TAIL_BYTES: usize = 16 + PART_MARK.len();

#[derive(Debug, Serialize, Deserialize)]
struct UploadRecord {
    format: String,
    version: u32,
    key: ObjectKey,
    attributes: Attributes,
}

/// A part to store.
#[derive(Debug)]
pub(super) struct NewPart {
    pub(super) key: ObjectKey,
    pub(super) upload: UploadId,
    pub(super) number: PartNumber,
    pub(super) bytes: u64,
}

/// Opens an upload.
pub(super) fn start(tree: &Tree, key: &ObjectKey, attributes: Attributes) -> Result<UploadId> {
    KeyPath::new(key)?;
    let wrong = |errno: Errno| explain("cannot start an upload", errno);
    let id = format!("{:032x}", fastrand::u128(..));
    let uploads = tree.private(AREA).map_err(wrong)?;
    let folder = tree.sub_folder(uploads.as_fd(), &id).map_err(wrong)?;
    let record = UploadRecord {
        format: FORMAT.to_owned(),
        version: FORMAT_VERSION,
        key: key.clone(),
        attributes,
    };
    let mut file = create_file(folder.as_fd(), RECORD_NAME).map_err(wrong)?;
    file.write_all(&checked_json::encode(&record)?)
        .and_then(|()| file.sync_all())
        .map_err(|error| Error::io("cannot start an upload", error))?;
    fsync(&folder).map_err(wrong)?;
    Ok(UploadId(id))
}

/// Stores a part; the same number again replaces it.
pub(super) async fn store_part(tree: &Arc<Tree>, part: NewPart, mut body: ByteStream) -> Result<PartReceipt> {
    check_part_number(part.number)?;
    let opening = Arc::clone(tree);
    let (folder, temp, part) = off_runtime(move || {
        let (folder, _) = find(&opening, &part.key, &part.upload)?;
        Ok((folder, Temp::create(&opening)?, part))
    })
    .await?;
    let mut sink = Sink::new(temp);
    while let Some(bytes) = body.try_next().await? {
        sink.write(bytes).await?;
        check_size(
            part.bytes,
            sink.written_bytes(),
            sink.written_bytes() > part.bytes,
        )?;
    }
    check_size(
        part.bytes,
        sink.written_bytes(),
        sink.written_bytes() != part.bytes,
    )?;
    let (mut temp, rest) = sink.finish().await?;
    off_runtime(move || {
        write_all(&mut temp, &rest)?;
        keep_part(&folder, temp, &part)
    })
    .await
}

fn check_size(announced: u64, actual: u64, is_wrong: bool) -> Result<()> {
    if !is_wrong {
        return Ok(());
    }
    let error = Error::new(
        Kind::InvalidInput,
        "the part's body does not have the announced size",
    );
    Err(error.with("announced", announced).with("actual", actual))
}

fn keep_part(folder: &OwnedFd, mut temp: Temp, part: &NewPart) -> Result<PartReceipt> {
    let md5 = temp.md5();
    temp.append(&md5)?;
    temp.append(PART_MARK)?;
    temp.seal()?;
    let (temp_folder, temp_name) = temp.location();
    match renameat(temp_folder, temp_name, folder, part_name(part.number)) {
        Ok(()) => temp.published(),
        Err(Errno::NOENT) => return Err(no_such_upload(&part.upload)),
        Err(errno) => return Err(explain("cannot keep a part", errno)),
    }
    fsync(folder).map_err(|errno| explain("cannot sync an upload's folder", errno))?;
    Ok(PartReceipt {
        number: part.number,
        etag: hex::encode(md5),
        bytes: part.bytes,
    })
}

/// Joins the parts into the object. The attributes are those the upload was started with, as on S3.
pub(super) fn complete(
    tree: &Arc<Tree>,
    key: &ObjectKey,
    upload: &UploadId,
    parts: &[PartReceipt],
    options: &PutOptions,
) -> Result<PutReceipt> {
    check_part_order(parts)?;
    let (folder, record) = find(tree, key, upload)?;
    let mut temp = Temp::create(tree)?;
    let mut md5s = Vec::with_capacity(parts.len());
    for part in parts {
        let (file, bytes, md5) = open_part(&folder, part)?;
        match options.md5 {
            None => copy_bytes(&file, &temp, bytes)?,
            Some(_) => hash_bytes(&file, &mut temp, bytes)?,
        }
        md5s.push(md5);
    }
    if options.md5.is_some() {
        check_md5(options.md5, temp.md5())?;
    }
    let etag = multipart_etag(&md5s);
    let object = NewObject {
        key,
        etag: &etag,
        attributes: record.attributes,
        mode: &options.mode,
    };
    let receipt = publish(tree, temp, object)?;
    abort(tree, key, upload)?;
    Ok(receipt)
}

/// Forgets an upload; one that is not there is fine.
pub(super) fn abort(tree: &Tree, key: &ObjectKey, upload: &UploadId) -> Result<()> {
    match find(tree, key, upload) {
        Ok(_) => {}
        Err(error) if error.kind() == Kind::NotFound => return Ok(()),
        // Nobody can complete it any more, so the one who names its id may remove it.
        Err(error) if error.kind() == Kind::Corrupt => {}
        Err(error) => return Err(error),
    }
    let uploads = tree
        .private(AREA)
        .map_err(|errno| explain("cannot remove an upload", errno))?;
    discard_folder(tree, uploads.as_fd(), &upload.0)
}

/// The folder and the record of an upload. The id comes from outside, so it is checked before it is a path.
fn find(tree: &Tree, key: &ObjectKey, upload: &UploadId) -> Result<(OwnedFd, UploadRecord)> {
    let wrong = |errno: Errno| match errno {
        Errno::NOENT | Errno::NOTDIR => no_such_upload(upload),
        errno => explain("cannot open an upload", errno),
    };
    let is_ours = upload.0.len() == 32
        && upload
            .0
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if !is_ours {
        return Err(no_such_upload(upload));
    }
    let uploads = tree
        .private_if_made(AREA)
        .map_err(wrong)?
        .ok_or_else(|| no_such_upload(upload))?;
    let folder = open_folder(uploads.as_fd(), &upload.0).map_err(wrong)?;
    let file = read_small(folder.as_fd(), RECORD_NAME)?.ok_or_else(|| no_such_upload(upload))?;
    let record: UploadRecord = checked_json::decode(&file)
        .filter(|record: &UploadRecord| record.format == FORMAT && record.version == FORMAT_VERSION)
        .ok_or_else(|| {
            Error::new(
                Kind::Corrupt,
                "an upload's record is damaged or of a later version; abort the upload",
            )
            .with("upload", &upload.0)
        })?;
    if record.key != *key {
        return Err(no_such_upload(upload));
    }
    Ok((folder, record))
}

fn no_such_upload(upload: &UploadId) -> Error {
    Error::new(Kind::NotFound, "no such upload").with("upload", &upload.0)
}

fn part_name(number: PartNumber) -> String {
    format!("{number:05}")
}

/// A part's file, the number of its bytes, and their MD5, if it is the one that the caller means.
fn open_part(folder: &OwnedFd, part: &PartReceipt) -> Result<(File, u64, [u8; 16])> {
    let mut file = match open_file(folder.as_fd(), &part_name(part.number)) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Err(missing_part(part)),
        Err(errno) => return Err(explain("cannot open a part", errno)),
    };
    let unreadable = |error| Error::io("cannot read a part", error);
    let file_bytes = file.metadata().map_err(unreadable)?.len();
    let damaged =
        || Error::new(Kind::Corrupt, "a part's file is damaged; upload it again").with("part", part.number);
    let bytes = file_bytes
        .checked_sub(PART_TAIL_BYTES as u64)
        .ok_or_else(damaged)?;
    let mut tail = [0; PART_TAIL_BYTES];
    file.seek(SeekFrom::Start(bytes)).map_err(unreadable)?;
    file.read_exact(&mut tail).map_err(unreadable)?;
    file.seek(SeekFrom::Start(0)).map_err(unreadable)?;
    let (md5, mark) = tail.split_at(16);
    if mark != PART_MARK {
        return Err(damaged());
    }
    let md5: [u8; 16] = md5.try_into().map_err(|_| damaged())?;
    if parse_md5(&part.etag) != Some(md5) {
        return Err(missing_part(part));
    }
    Ok((file, bytes, md5))
}

fn hash_bytes(file: &File, temp: &mut Temp, bytes: u64) -> Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut rest = file.take(bytes);
    loop {
        match rest
            .read(&mut buffer)
            .map_err(|error| Error::io("cannot read a part", error))?
        {
            0 => return Ok(()),
            count => temp.write(&buffer[..count])?,
        }
    }
}
