//! Parts as differences from the parent: chosen by a few frames of each, then encoded off the runtime and
//! streamed to the lake.
//!
//! For parts that the parent has with other bytes, and only where the save asks for it. A part's chain in the
//! parent is read through the engine, proved on the way, and put together frame by frame; nothing larger than
//! a few frames is ever held. Whatever goes wrong here, a damaged parent or a lake that does not answer,
//! costs space and not the save: such parts are written as they are.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use forebay_checkpoint::delta::chain::{Broken, Level, file_range, put_together};
use forebay_checkpoint::delta::{self, Decoder, Encoder, FRAME_BYTES, Frame, PROBE_FRAMES};
use forebay_checkpoint::manifest::{DataFile, Encoding, EncodingKind, Extent};
use forebay_checkpoint::names;
use forebay_checkpoint::table::Table;
use forebay_core::{Error, Kind, Result};

use super::Save;
use super::file::StagedFile;
use super::parent::Parent;
use super::saves::Saves;

/// Frames that are read, encoded and written at a time.
const WINDOW_FRAMES: u64 = 4;

/// A part that is in the lake as a difference.
#[derive(Debug)]
pub(super) struct Difference {
    /// Its range in its file.
    range: [u64; 2],
    frames: Vec<Frame>,
    element_bytes: u8,
    bytes: u64,
    /// Base that it differs from; indexes are those of the parent's manifest.
    base: Extent,
}

/// Differences of one staged file, by the number of the part, and the file in which they lie.
#[derive(Debug)]
pub(super) struct Differences {
    pub(super) file: DataFile,
    pub(super) parts: Vec<(usize, Difference)>,
}

impl Difference {
    /// Returns how many bytes come out.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// As its record says it; `base` is what it differs from, with the indexes of the record.
    pub(super) fn extent(self, file: u32, base: Extent, blake3: String, first_block: u64) -> Extent {
        Extent {
            file,
            range: self.range,
            blake3,
            table: 0,
            first_block,
            encoding: Some(Box::new(Encoding {
                kind: EncodingKind::XorGroupZstd,
                bytes: self.bytes,
                element_bytes: self.element_bytes,
                base,
            })),
        }
    }

    /// Returns what it differs from; indexes are those of the parent's manifest.
    pub(super) fn base(&self) -> &Extent {
        &self.base
    }

    /// Its frames, for the side table.
    pub(super) fn frames(&self) -> &[Frame] {
        &self.frames
    }
}

/// A part that is worth it, as a few frames of it say.
struct Chosen {
    number: usize,
    part: Source,
}

/// Bytes of a part, and what they differ from.
#[derive(Clone)]
struct Source {
    bytes: Bytes,
    element_bytes: u8,
    base: Extent,
    /// One for each extent of the chain.
    tables: Vec<Arc<Table>>,
}

/// Encoder and decoder, with the memory that they keep.
struct Codec {
    decoder: Decoder,
    encoder: Encoder,
}

/// Writes those of these parts as differences that are worth it; `None` if there are none, or it did not
/// work.
pub(super) async fn write(
    saves: &Saves,
    save: &Save,
    parent: &Parent,
    staged: &StagedFile,
    candidates: &[usize],
) -> Option<Differences> {
    let written = try_write(saves, save, parent, staged, candidates).await;
    written.unwrap_or_else(|error| {
        tracing::warn!(save = save.id, step = save.begin.step, %error, "differences from the parent could not be made; writing parts as they are");
        None
    })
}

async fn try_write(
    saves: &Saves,
    save: &Save,
    parent: &Parent,
    staged: &StagedFile,
    candidates: &[usize],
) -> Result<Option<Differences>> {
    let (mut codec, chosen) = choose(saves, save, parent, staged, candidates).await?;
    if chosen.is_empty() {
        return Ok(None);
    }
    let path = save.path(&names::delta_file(save.begin.rank, staged.number));
    let mut stream = save.lake.stream(&path).await?;
    let mut parts = Vec::with_capacity(chosen.len());
    let mut end = 0;
    for Chosen { number, part } in chosen {
        let first = end;
        let mut frames = Vec::new();
        let all = delta::frames(part.bytes.len() as u64);
        for window in (0..all).step_by(WINDOW_FRAMES as usize) {
            let window = window..(window + WINDOW_FRAMES).min(all);
            let encoded = encode(saves, save, parent, &part, window, codec).await;
            let (back, stored, some) = match encoded {
                Ok(encoded) => encoded,
                Err(error) => {
                    stream.abort().await;
                    return Err(error);
                }
            };
            codec = back;
            frames.extend(some);
            end += stored.len() as u64;
            if let Err(error) = stream.push(Bytes::from(stored)).await {
                stream.abort().await;
                return Err(error);
            }
        }
        let difference = Difference {
            range: [first, end],
            frames,
            element_bytes: part.element_bytes,
            bytes: part.bytes.len() as u64,
            base: part.base,
        };
        parts.push((number, difference));
    }
    stream.finish(forebay_engine::Finish::default()).await?;
    let file = DataFile {
        path,
        bytes: end,
        data_start: 0,
        header_blake3: String::new(),
    };
    Ok(Some(Differences { file, parts }))
}

/// Those of these parts that are worth it.
async fn choose(
    saves: &Saves,
    save: &Save,
    parent: &Parent,
    staged: &StagedFile,
    candidates: &[usize],
) -> Result<(Codec, Vec<Chosen>)> {
    let mut codec = Codec {
        decoder: Decoder::new()?,
        encoder: Encoder::new()?,
    };
    let mut chosen = Vec::new();
    for number in candidates {
        let Some(part) = source(save, parent, staged, *number).await? else {
            continue;
        };
        let worth;
        (codec, worth) = is_worth(saves, save, parent, &part, codec).await?;
        if worth {
            chosen.push(Chosen {
                number: *number,
                part,
            });
        }
    }
    Ok((codec, chosen))
}

/// Returns what a part can differ from, if its chain may become longer.
async fn source(save: &Save, parent: &Parent, staged: &StagedFile, number: usize) -> Result<Option<Source>> {
    let (part, bytes) = staged.part(number);
    let base = parent.base_of(&part.name, part.dtype, &part.at);
    let Some(base) = base.filter(|base| delta::may_follow(base, bytes.len() as u64)) else {
        return Ok(None);
    };
    let mut tables = Vec::with_capacity(1 + base.depth());
    for extent in base.chain() {
        tables.push(parent.table(&save.lake, extent.table).await?);
    }
    Ok(Some(Source {
        bytes,
        element_bytes: delta::element_bytes(part.dtype),
        base: base.clone(),
        tables,
    }))
}

/// Looks at a few frames, from all over the part.
async fn is_worth(
    saves: &Saves,
    save: &Save,
    parent: &Parent,
    part: &Source,
    mut codec: Codec,
) -> Result<(Codec, bool)> {
    let bytes = part.bytes.len() as u64;
    let all = delta::frames(bytes);
    let probes = all.min(PROBE_FRAMES);
    let (mut probed_bytes, mut stored_bytes) = (0, 0);
    for probe in 0..probes {
        let frame = probe * all / probes;
        let (back, stored, _) = encode(saves, save, parent, part, frame..frame + 1, codec).await?;
        codec = back;
        let range = delta::bytes_of(&(frame..frame + 1), bytes);
        probed_bytes += range.end - range.start;
        stored_bytes += stored.len() as u64;
    }
    // Rounded up: all frames together, if they are like these.
    let likely_bytes =
        (u128::from(stored_bytes) * u128::from(bytes)).div_ceil(u128::from(probed_bytes.max(1)));
    let likely_bytes = u64::try_from(likely_bytes).unwrap_or(u64::MAX);
    let worth = delta::is_worth(bytes, likely_bytes) && delta::is_cheap_to_read(&part.base, likely_bytes);
    Ok((codec, worth))
}

/// Reads these frames of the base and encodes the part's, on a thread for such work.
async fn encode(
    saves: &Saves,
    save: &Save,
    parent: &Parent,
    part: &Source,
    frames: Range<u64>,
    mut codec: Codec,
) -> Result<(Codec, Vec<u8>, Vec<Frame>)> {
    let mut stored = Vec::with_capacity(part.tables.len());
    for (extent, table) in part.base.chain().zip(&part.tables) {
        let range = file_range(extent, table, &frames)?;
        stored.push(save.lake.read_range(parent.path(extent.file), range).await?);
    }
    let part = part.clone();
    let _permit = saves.hashing_permit().await?;
    let encode = move || {
        let (stored, frames) = part.encode(&stored, &frames, &mut codec)?;
        Ok((codec, stored, frames))
    };
    tokio::task::spawn_blocking(encode)
        .await
        .map_err(|why| Error::new(Kind::Internal, "an encoding was stopped").caused_by(why))?
}

impl Source {
    /// Blocks.
    fn encode(
        &self,
        stored: &[Vec<u8>],
        frames: &Range<u64>,
        codec: &mut Codec,
    ) -> Result<(Vec<u8>, Vec<Frame>)> {
        let range = delta::bytes_of(frames, self.bytes.len() as u64);
        let bytes = &self.bytes[range.start as usize..range.end as usize];
        let levels: Vec<Level<'_>> = self
            .base
            .chain()
            .zip(&self.tables)
            .zip(stored)
            .map(|((extent, table), stored)| Level {
                extent,
                table,
                stored,
            })
            .collect();
        let mut base = vec![0; bytes.len()];
        put_together(&levels, frames, &mut codec.decoder, &mut base).map_err(|Broken { error, .. }| error)?;
        let mut out = Vec::new();
        let mut made = Vec::new();
        let frame_bytes = FRAME_BYTES as usize;
        for (bytes, base) in bytes.chunks(frame_bytes).zip(base.chunks(frame_bytes)) {
            made.push(codec.encoder.frame(bytes, base, self.element_bytes, &mut out)?);
        }
        Ok((out, made))
    }
}
