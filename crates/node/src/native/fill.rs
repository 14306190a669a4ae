//! `Register` and `Fill`: bytes copied straight into memory of the client.
//!
//! The client brings a memfd. The node never maps it, because a mapping of somebody else's file can be pulled away from under it; it
//! writes with `pwrite`, which needs no trust. The memfd must be sealed against growing and shrinking, so that a write can neither move
//! its end nor find it gone. Pieces go out as they come from the reservoir, so a fill holds little memory however large the item is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use forebay_core::wire::{Answer, BATCH_ITEMS_MAX, Failure, Fill, Filled, Item, ItemRange, Sources};
use forebay_core::{ByteRange, Error, Kind, Result, Version};
use forebay_engine::{Conditions, Engine, ObjectInfo, ObjectRead, RangeRequest, ReadAnswer};
use forebay_reservoir::Tier;
use futures::{StreamExt, TryStreamExt, stream};
use rustix::fs::SealFlags;
use tokio::time::Instant;

use super::connection::Context;
use super::read;
use super::sessions::Region;

/// Items of one question that are copied at once.
const FILLS_MAX: usize = 8;
/// A write of more is not for a thread of the runtime.
const INLINE_BYTES_MAX: usize = 128 << 10;
/// How often an item starts again because the object changed.
const RESTARTS_MAX: usize = 3;

/// Where bytes go.
#[derive(Clone)]
enum Target {
    Region(Arc<Region>),
    Buffer(Arc<OwnedFd>, u64),
}

impl Target {
    fn bytes(&self) -> u64 {
        match self {
            Self::Region(region) => region.bytes,
            Self::Buffer(_, bytes) => *bytes,
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Region(region) => region.memfd.as_fd(),
            Self::Buffer(memfd, _) => memfd.as_fd(),
        }
    }
}

pub(super) fn register(context: &Context, bytes: u64, descriptor: Option<OwnedFd>) -> Result<Answer> {
    let wrong = |message: &str| Error::new(Kind::InvalidInput, message);
    let memfd =
        descriptor.ok_or_else(|| wrong("no descriptor came with the region; send one beside the message"))?;
    let seals = rustix::fs::fcntl_get_seals(&memfd).map_err(|why| {
        wrong("the region is no memfd that can be sealed; make it with MFD_ALLOW_SEALING").caused_by(why)
    })?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return Err(wrong(
            "the region can change its size; add the seals F_SEAL_SHRINK and F_SEAL_GROW",
        ));
    }
    let stat = rustix::fs::fstat(&memfd).map_err(|why| Error::io("cannot look at the region", why.into()))?;
    let found = u64::try_from(stat.st_size).unwrap_or(0);
    if found < bytes {
        let error = wrong("the region is smaller than it was said to be");
        return Err(error.with("bytes", bytes).with("found_bytes", found));
    }
    let number = context.parts.native.next_region();
    context.session.add_region(number, Region { memfd, bytes })?;
    Ok(Answer::Region { region: number })
}

pub(super) async fn answer(context: &Context, request: &Fill) -> Result<Answer> {
    if request.items.len() > BATCH_ITEMS_MAX {
        return Err(read::too_many(request.items.len()));
    }
    let target = target(context, request.region)?;
    let engine = context.parts.engine()?;
    let deadline = read::deadline(request.timeout_ms);
    let mut fills = Vec::with_capacity(request.items.len());
    for (item, at) in &request.items {
        fills.push(fill_in_time(context, engine, item, &target, *at, deadline));
    }
    Ok(Answer::Filled(
        stream::iter(fills).buffered(FILLS_MAX).collect().await,
    ))
}

async fn fill_in_time(
    context: &Context,
    engine: &Engine,
    item: &Item,
    target: &Target,
    at: u64,
    deadline: Instant,
) -> Result<Filled, Failure> {
    let filled = tokio::time::timeout_at(deadline, fill(context, engine, item, target, at)).await;
    let filled = filled.unwrap_or_else(|_| Err(read::too_late(item)));
    filled.map_err(|error| Failure::from(&error))
}

fn target(context: &Context, number: u64) -> Result<Target> {
    if let Some(region) = context.session.region(number) {
        return Ok(Target::Region(region));
    }
    match context.session.buffer_descriptor(number) {
        Some(buffer) => buffer.map(|(memfd, bytes)| Target::Buffer(Arc::new(memfd), bytes)),
        None => {
            let message = "there is no such region or buffer; register it first";
            Err(Error::new(Kind::NotFound, message).with("region", number))
        }
    }
}

async fn fill(context: &Context, engine: &Engine, item: &Item, target: &Target, at: u64) -> Result<Filled> {
    let (bucket, key) = context.object(&item.object)?;
    let wanted = item.version.as_deref().map(Version::new);
    for _ in 0..RESTARTS_MAX {
        let info = engine.head(&bucket, &key).await?;
        if wanted.as_ref().is_some_and(|wanted| *wanted != info.version) {
            break;
        }
        let range = context.range_of(engine, &info, &item.range).await?;
        let bytes = range.map_or(0, ByteRange::len);
        if at.checked_add(bytes).is_none_or(|end| end > target.bytes()) {
            let error = Error::new(Kind::InvalidInput, "the item does not fit the region");
            return Err(error
                .with("item_bytes", bytes)
                .with("offset", at)
                .with("region_bytes", target.bytes()));
        }
        let mut filled = Filled {
            bytes,
            version: info.version.as_str().into(),
            sources: Sources::default(),
        };
        let Some(range) = range else {
            return Ok(filled);
        };
        match begin(engine, &info, range).await {
            Ok(read) => {
                filled.sources = copy(read, range, target, at).await?;
                return Ok(filled);
            }
            Err(error) if matches!(error.kind(), Kind::PreconditionFailed | Kind::Changed) => {}
            Err(error) => return Err(error),
        }
    }
    let message = "the object has another version now; read it without a version, or start again";
    Err(Error::new(Kind::Changed, message)
        .with("bucket", &bucket)
        .with("key", &key))
}

/// Starts a read of exactly this version.
async fn begin(engine: &Engine, info: &ObjectInfo, range: ByteRange) -> Result<ObjectRead> {
    let conditions = Conditions {
        if_match: Some(vec![info.version.as_str().into()]),
        ..Conditions::default()
    };
    let request = RangeRequest::Bounded {
        first: range.start(),
        last: range.end() - 1,
    };
    match engine.read(&info.bucket, &info.key, request, &conditions).await? {
        ReadAnswer::Object(read) => Ok(*read),
        ReadAnswer::NotModified(_) => Err(Error::new(Kind::Internal, "a read was answered by not modified")),
    }
}

async fn copy(mut read: ObjectRead, range: ByteRange, target: &Target, at: u64) -> Result<Sources> {
    let mut sources = Sources::default();
    while let Some(piece) = read.pieces.try_next().await? {
        let bytes = piece.bytes.len() as u64;
        match piece.tier {
            Tier::Ram => sources.ram += bytes,
            Tier::Nvme => sources.nvme += bytes,
            Tier::Lake => sources.lake += bytes,
        }
        let offset = at + (piece.start - range.start());
        if piece.bytes.len() <= INLINE_BYTES_MAX {
            write_all(target, &piece.bytes, offset)?;
        } else {
            write_aside(target.clone(), piece.bytes, offset).await?;
        }
    }
    sources.copied = sources.ram + sources.nvme + sources.lake;
    Ok(sources)
}

async fn write_aside(target: Target, bytes: Bytes, offset: u64) -> Result<()> {
    let written = tokio::task::spawn_blocking(move || write_all(&target, &bytes, offset)).await;
    written.map_err(|why| Error::new(Kind::Internal, "a copy was stopped").caused_by(why))?
}

fn write_all(target: &Target, mut bytes: &[u8], mut offset: u64) -> Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(target.as_fd(), bytes, offset) {
            Ok(0) => return Err(Error::new(Kind::Io, "the region takes no more bytes")),
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(why) => return Err(Error::io("cannot write to the region", why.into())),
        }
    }
    Ok(())
}

impl Context {
    /// Which bytes of this version are meant.
    pub(super) async fn range_of(
        &self,
        engine: &Engine,
        info: &ObjectInfo,
        range: &ItemRange,
    ) -> Result<Option<ByteRange>> {
        if let ItemRange::Member(name) = range {
            return self.parts.native.members.member_range(engine, info, name).await;
        }
        range
            .resolve(info.bytes)
            .map_err(|error| error.with("key", &info.key))
    }
}
