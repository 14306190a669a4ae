//! Bytes of a file in a view: the header as it is, tensors out of the parts that have them, differences
//! undone, every block of a part proved by the side table.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use forebay_checkpoint::delta::chain::{Broken, Level, file_range, put_together};
use forebay_checkpoint::delta::{self, Decoder};
use forebay_checkpoint::manifest::Extent;
use forebay_checkpoint::plan;
use forebay_checkpoint::table::{BLOCK_BYTES, Table};
use forebay_checkpoint::whole::{StridedPart, WholeFile, WholeTensor};
use forebay_core::{ByteRange, Error, Kind, ObjectKey, Result, crc32c};
use forebay_engine::BucketLake;
use forebay_lake::ObjectMeta;
use forebay_reservoir::{SourceBlock, SourceStream, Urgency};
use futures::stream;
use futures::{StreamExt, TryStreamExt};

use super::{Body, FoundFile, StepView, highest, read_small};

/// Bytes that are put together at a time.
const CHUNK_BYTES: u64 = 1 << 20;
/// Chunks that are worked on at once.
const CHUNKS_MAX: usize = 4;

impl FoundFile {
    /// The bytes of a range of the file, in order.
    pub(super) fn fetch(self, bucket: &BucketLake, range: ByteRange, urgency: &Urgency) -> SourceStream {
        let (found, bucket, urgency) = (Arc::new(self), bucket.clone(), urgency.clone());
        let starts = (range.start()..range.end()).step_by(CHUNK_BYTES as usize);
        let chunks = starts.map(move |first| first..(first + CHUNK_BYTES).min(range.end()));
        let made = stream::iter(chunks).map(move |chunk| {
            let (found, bucket, urgency) = (Arc::clone(&found), bucket.clone(), urgency.clone());
            async move {
                found
                    .chunk(&bucket, chunk, &urgency)
                    .await
                    .map(SourceBlock::from_lake)
            }
        });
        made.buffered(CHUNKS_MAX).boxed()
    }

    async fn chunk(&self, bucket: &BucketLake, range: Range<u64>, urgency: &Urgency) -> Result<Bytes> {
        let file = &self.view.files[self.file];
        if range.end > file.bytes {
            let error = Error::new(Kind::OutOfRange, "the range ends past the end of the object");
            return Err(error.with("key", &file.name).with("object_bytes", file.bytes));
        }
        match &file.body {
            Body::Document(bytes) => Ok(bytes.slice(range.start as usize..range.end as usize)),
            Body::Tensors(whole) => self.view.compose(bucket, whole, range, urgency).await,
        }
    }
}

impl StepView {
    async fn compose(
        &self,
        bucket: &BucketLake,
        file: &WholeFile,
        range: Range<u64>,
        urgency: &Urgency,
    ) -> Result<Bytes> {
        let mut target = vec![0; (range.end - range.start) as usize];
        let header_end = range.end.min(file.header.len() as u64);
        if range.start < header_end {
            let header = &file.header[range.start as usize..header_end as usize];
            target[..header.len()].copy_from_slice(header);
        }
        for tensor in file.tensors_in(&range) {
            let first = range.start.max(tensor.first);
            let end = range.end.min(tensor.first + tensor.bytes);
            if first >= end {
                continue;
            }
            let place = (first - range.start) as usize..(end - range.start) as usize;
            let wanted = first - tensor.first..end - tensor.first;
            self.fill(bucket, tensor, wanted, &mut target[place], urgency)
                .await?;
        }
        Ok(target.into())
    }

    /// Fills `target` with these bytes of a tensor.
    async fn fill(
        &self,
        bucket: &BucketLake,
        tensor: &WholeTensor,
        wanted: Range<u64>,
        target: &mut [u8],
        urgency: &Urgency,
    ) -> Result<()> {
        let Some(found) = self.manifest.content.tensors.get(&tensor.name) else {
            return Err(Error::new(
                Kind::Internal,
                "a view shows a tensor that its step does not have",
            ));
        };
        for part in &found.parts {
            let strided = StridedPart {
                shape: &found.shape,
                part: &part.at,
                element_bytes: found.dtype.bytes(),
            };
            let needed = strided.part_bytes(&wanted);
            if needed.is_empty() {
                continue;
            }
            let blocks = plan::blocks_of(&needed);
            let proved = self
                .proved(bucket, &part.bytes, blocks.clone(), urgency)
                .await
                .map_err(|error| error.with("tensor", &tensor.name))?;
            let first = needed.start - blocks.start * BLOCK_BYTES;
            let source = &proved[first as usize..(first + needed.end - needed.start) as usize];
            strided.scatter(source, needed.start, &wanted, target);
        }
        Ok(())
    }

    /// Blocks of a part, each compared with its checksum.
    async fn proved(
        &self,
        bucket: &BucketLake,
        extent: &Extent,
        blocks: Range<u64>,
        urgency: &Urgency,
    ) -> Result<Vec<u8>> {
        let wanted = plan::bytes_of(&blocks, extent.bytes());
        let bytes = match extent.encoding {
            None => {
                let first = extent.range[0];
                let range = first + wanted.start..first + wanted.end;
                self.stored(bucket, extent.file, range, urgency).await?
            }
            Some(_) => {
                let frames = delta::frames_of(&wanted);
                let decoded = self.decoded(bucket, extent, &frames, urgency).await?;
                let first = wanted.start - delta::bytes_of(&frames, extent.bytes()).start;
                decoded[first as usize..(first + wanted.end - wanted.start) as usize].to_vec()
            }
        };
        self.compare(bucket, extent, blocks, &bytes).await?;
        Ok(bytes)
    }

    /// Returns what frames of an encoded part stand for; what is read of each extent of its chain is proved
    /// on the way.
    async fn decoded(
        &self,
        bucket: &BucketLake,
        extent: &Extent,
        frames: &Range<u64>,
        urgency: &Urgency,
    ) -> Result<Vec<u8>> {
        let mut read = Vec::with_capacity(1 + extent.depth());
        for extent in extent.chain() {
            let table = self.table(bucket, extent.table).await?;
            let range = file_range(extent, table, frames)?;
            let stored = self.stored(bucket, extent.file, range, urgency).await?;
            read.push((extent, table, stored));
        }
        let levels = read.iter().map(|(extent, table, stored)| Level {
            extent,
            table,
            stored,
        });
        let levels: Vec<Level<'_>> = levels.collect();
        let made = delta::bytes_of(frames, extent.bytes());
        let mut target = vec![0; (made.end - made.start) as usize];
        put_together(&levels, frames, &mut Decoder::new()?, &mut target).map_err(
            |Broken { level, error }| {
                let file = levels.get(level).map_or("", |level| self.path(level.extent.file));
                error.with("file", file)
            },
        )?;
        Ok(target)
    }

    /// Bytes of a file of the step as they lie there; not proved.
    async fn stored(
        &self,
        bucket: &BucketLake,
        file: u32,
        bytes: Range<u64>,
        urgency: &Urgency,
    ) -> Result<Vec<u8>> {
        if bytes.is_empty() {
            return Ok(Vec::new());
        }
        let source = self.source(bucket, file).await?;
        let range = ByteRange::new(bytes.start, bytes.end)?;
        let mut body = bucket.fetch(&source.key, &source.version, source.bytes, range, urgency)?;
        let mut read = Vec::with_capacity(range.len() as usize);
        while let Some(chunk) = body.try_next().await? {
            read.extend_from_slice(&chunk);
        }
        if read.len() as u64 == range.len() {
            return Ok(read);
        }
        Err(self.damaged(file, &bytes))
    }

    /// Compares blocks of an extent with the side table.
    async fn compare(
        &self,
        bucket: &BucketLake,
        extent: &Extent,
        blocks: Range<u64>,
        bytes: &[u8],
    ) -> Result<()> {
        let table = self.table(bucket, extent.table).await?;
        let crcs = table.part(extent.first_block, extent.bytes())?;
        let expected = crcs.get(blocks.start as usize..blocks.end as usize);
        let found = bytes.chunks(BLOCK_BYTES as usize).map(crc32c::crc32c);
        if found.eq(expected.unwrap_or_default().iter().copied()) {
            return Ok(());
        }
        Err(self.damaged(extent.file, &(extent.range[0]..extent.range[1])))
    }

    fn damaged(&self, file: u32, bytes: &Range<u64>) -> Error {
        let message = "bytes of a tensor do not match their checksum: the file is damaged; read another step";
        Error::new(Kind::Checksum, message)
            .with("file", self.path(file))
            .with("bytes", format!("{}-{}", bytes.start, bytes.end))
    }

    fn path(&self, file: u32) -> &str {
        let found = self.manifest.content.files.get(file as usize);
        found.map_or("", |file| file.path.as_str())
    }

    /// A file of the step as the lake has it.
    async fn source(&self, bucket: &BucketLake, file: u32) -> Result<&ObjectMeta> {
        let no_file = || Error::new(Kind::Corrupt, "a part lies in a file that is not listed");
        let named = self
            .manifest
            .content
            .files
            .get(file as usize)
            .ok_or_else(no_file)?;
        let cell = self.sources.get(file as usize).ok_or_else(no_file)?;
        cell.get_or_try_init(|| async {
            let key = ObjectKey::new(&format!("{}{}", self.root, named.path))?;
            let meta = match bucket.lake().head(&key).await {
                Err(error) if error.kind() == Kind::NotFound => {
                    return Err(self.missing(bucket, error).await);
                }
                other => other?,
            };
            if meta.bytes != named.bytes {
                let message = "a file of the step has another size than its manifest says: it is damaged";
                let error = Error::new(Kind::Corrupt, message).with("file", &key);
                return Err(error.with("bytes", meta.bytes).with("expected", named.bytes));
            }
            Ok(meta)
        })
        .await
    }

    /// A side table, proved by its digest.
    async fn table(&self, bucket: &BucketLake, index: u32) -> Result<&Table> {
        let no_table = || Error::new(Kind::Corrupt, "a part points to a side table that is not listed");
        let named = self
            .manifest
            .content
            .tables
            .get(index as usize)
            .ok_or_else(no_table)?;
        let cell = self.tables.get(index as usize).ok_or_else(no_table)?;
        cell.get_or_try_init(|| async {
            let key = ObjectKey::new(&format!("{}{}", self.root, named.path))?;
            let bytes = match read_small(bucket, &key, named.bytes).await {
                Err(error) if error.kind() == Kind::NotFound => {
                    return Err(self.missing(bucket, error).await);
                }
                other => other?,
            };
            if blake3::hash(&bytes).to_hex().as_str() != named.blake3 {
                let message = "a side table does not match its digest in the manifest: it is damaged";
                return Err(Error::new(Kind::Checksum, message).with("file", &key));
            }
            Table::decode(&bytes).map_err(|error| error.with("file", &key))
        })
        .await
    }

    /// A missing file of a step that is still there is damage; else the step was removed, and the reader
    /// shall hear so.
    async fn missing(&self, bucket: &BucketLake, error: Error) -> Error {
        match highest(bucket, &self.root, self.manifest.step).await {
            Ok(Some(listed)) if listed == self.listed => {
                let message = "a file of the step is missing: the step is damaged; read another one";
                Error::new(Kind::Corrupt, message).caused_by(error)
            }
            _ => error,
        }
    }
}
