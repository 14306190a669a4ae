//! A hunt for wrong bytes: everything that the reservoir does, at once, for many seeds.
//!
//! Readers, readers that break off, readers that keep what they got and look at it again later, writes, new
//! versions, pins, evictions, a lake that fails and sends short bodies in odd chunks, a scrub, flipped bits
//! in RAM and overwritten bytes on NVMe. RAM is tiny, so that memory is reused all the time. Content says
//! whose it is, so a wrong byte tells where it came from. `FOREBAY_STRESS_SEEDS` makes the hunt longer.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::os::unix::fs::FileExt;
use std::path::Path;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{Kind, PAGE_BYTES, crc32c};
use futures::{Stream, StreamExt};
use parking_lot::RwLock;

use super::source::tag;
use super::*;
use crate::{SourceBlock, SourceStream, Urgency};

const SIZES: [u64; 12] = [
    1,
    4096,
    65_535,
    65_536,
    65_537,
    300_000,
    MIB - 1,
    MIB,
    MIB + 1,
    2 * MIB + 77,
    5 * MIB + 999,
    9 * MIB,
];
const VERSIONS: u8 = 3;
const HELD_MAX: usize = 6;

fn stressed(number: usize, version: u8) -> ObjectVersion {
    object(
        &format!("{}/{number}", number % 3),
        &version.to_string(),
        SIZES[number],
    )
}

/// The settings of one stress run.
#[derive(Debug, Clone, Copy)]
struct Plan {
    seed: u64,
    ram_bytes: u64,
    nvme_bytes: u64,
    tasks: u64,
    steps: u32,
    /// Flips bits in RAM. Then nobody keeps pieces: a lease is checked when it is handed out, not
    /// after.
    flips: bool,
}

/// Passes a lake on in chunks of odd sizes, with a failure now and then.
#[derive(Debug)]
struct Choppy {
    lake: Arc<FakeSource>,
    random: parking_lot::Mutex<fastrand::Rng>,
}

#[async_trait]
impl Source for Choppy {
    async fn fetch(
        &self,
        object: &ObjectVersion,
        range: ByteRange,
        urgency: &Urgency,
    ) -> Result<SourceStream> {
        let (chunk_bytes, is_short, fails, has_crcs) = {
            let mut random = self.random.lock();
            (
                random.usize(700..150_000),
                random.u8(..20) == 0,
                random.u8(..30) == 0,
                random.bool(),
            )
        };
        if fails {
            return Err(forebay_core::Error::new(
                Kind::Unavailable,
                "the lake was told to fail",
            ));
        }
        let body = self.lake.fetch(object, range, urgency).await?;
        let chunks = body.flat_map(move |chunk| {
            let chunk = chunk.map(|block| block.bytes).unwrap_or_default();
            let starts = (0..chunk.len()).step_by(chunk_bytes);
            let cut = starts.map(|start| {
                let bytes = chunk.slice(start..chunk.len().min(start + chunk_bytes));
                let crc32c = has_crcs.then(|| crc32c::crc32c(&bytes));
                Ok(SourceBlock {
                    crc32c,
                    ..SourceBlock::from_lake(bytes)
                })
            });
            let cut: Vec<_> = cut.collect();
            futures::stream::iter(cut)
        });
        let chunks_max = if is_short { 3 } else { usize::MAX };
        Ok(chunks.take(chunks_max).boxed())
    }
}

/// State that all tasks of a run share.
struct Stress {
    plan: Plan,
    reservoir: Arc<Reservoir>,
    source: Arc<dyn Source>,
    /// Held shared from the check inside the reservoir until the test has looked, exclusively while a bit
    /// flips.
    flips: RwLock<()>,
    nvme_dir: std::path::PathBuf,
}

impl Stress {
    async fn work(self: Arc<Self>, number: u64) {
        let mut random = fastrand::Rng::with_seed(self.plan.seed * 1000 + number);
        let mut held = VecDeque::new();
        for _ in 0..self.plan.steps {
            self.step(&mut random, &mut held).await;
            while held.len() > HELD_MAX {
                let (object, piece) = held.pop_front().expect("it is not empty");
                compare(&object, &piece, "kept for a while");
            }
            let stats = self.reservoir.stats();
            assert!(stats.ram_held_bytes <= self.plan.ram_bytes);
            assert!(stats.ram_used_bytes <= stats.ram_held_bytes);
        }
        for (object, piece) in held {
            compare(&object, &piece, "kept to the end");
        }
    }

    async fn step(&self, random: &mut fastrand::Rng, held: &mut VecDeque<(ObjectVersion, Piece)>) {
        let object = stressed(random.usize(..SIZES.len()), random.u8(..VERSIONS));
        let (reservoir, prefix) = (&self.reservoir, format!("{}/", random.u8(..3)));
        match random.u8(..40) {
            0 => reservoir.forget(&object.bucket, &object.key),
            1 => reservoir.forget_others(&object),
            2 => drop(reservoir.evict(&bucket(), &prefix)),
            3 => drop(reservoir.pin(&bucket(), &prefix)),
            4 | 5 => drop(reservoir.unpin(&bucket(), "")),
            6..10 => self.write(&object, random).await,
            10..13 => self.damage(&object, random),
            13 => {
                // In order, so that read-ahead starts.
                for start in (0..object.bytes).step_by(100_000).take(12) {
                    let wanted = range(start, object.bytes.min(start + 100_000));
                    self.read(&object, wanted, usize::MAX, None).await;
                }
            }
            step => {
                let start = random.u64(..object.bytes);
                let end = random.u64(start..object.bytes) + 1;
                let wanted = if step < 26 {
                    whole(&object)
                } else {
                    range(start, end)
                };
                let pieces_max = if step % 4 == 0 {
                    random.usize(..4)
                } else {
                    usize::MAX
                };
                let keep = !self.plan.flips && random.u8(..4) == 0;
                self.read(&object, wanted, pieces_max, keep.then_some(held)).await;
            }
        }
    }

    async fn write(&self, object: &ObjectVersion, random: &mut fastrand::Rng) {
        let mut fill = self.reservoir.begin_fill(random.bool().then_some(object.bytes));
        for chunk in content(object, whole(object)).chunks(random.usize(1000..300_000)) {
            fill.push(&Bytes::copy_from_slice(chunk)).await;
        }
        if random.u8(..4) > 0 {
            self.reservoir.forget_others(object);
            fill.commit(object);
        }
    }

    /// Breaks a bit of RAM and some bytes on disk.
    fn damage(&self, object: &ObjectVersion, random: &mut fastrand::Rng) {
        if self.plan.flips {
            let _alone = self.flips.write();
            self.reservoir
                .debug_corrupt_ram(object, random.u64(..object.bytes));
        }
        let segment = self.nvme_dir.join("seg-00000.pages");
        if random.u8(..4) == 0
            && let Ok(file) = std::fs::OpenOptions::new().write(true).open(segment)
        {
            let units = file.metadata().unwrap().len() / 4096;
            if units > 1 {
                let offset = random.u64(1..units) * 4096 + random.u64(..4000);
                file.write_at(&[0xEE; 16], offset).unwrap();
            }
        }
    }

    async fn read(
        &self,
        object: &ObjectVersion,
        wanted: ByteRange,
        pieces_max: usize,
        mut keep: Option<&mut VecDeque<(ObjectVersion, Piece)>>,
    ) {
        let mut stream = self.reservoir.read(object, wanted, &self.source);
        let mut position = wanted.start();
        for _ in 0..pieces_max {
            let piece = match self.next(&mut stream, object).await {
                None => {
                    assert_eq!(position, wanted.end(), "a short answer looks whole");
                    return;
                }
                Some(Ok(piece)) => piece,
                Some(Err(error)) => {
                    let is_expected = matches!(error.kind(), Kind::Unavailable | Kind::Checksum | Kind::Busy);
                    assert!(is_expected, "{error:?}");
                    return;
                }
            };
            assert_eq!(piece.start, position);
            position += piece.bytes.len() as u64;
            assert!(position <= wanted.end());
            if let Some(held) = &mut keep {
                held.push_back((object.clone(), piece));
            }
        }
    }

    /// The next piece, compared before a bit can flip in it.
    async fn next(&self, stream: &mut crate::PieceStream, object: &ObjectVersion) -> Option<Result<Piece>> {
        std::future::poll_fn(|context| {
            let _quiet = self.flips.read();
            let next = std::pin::Pin::new(&mut *stream).poll_next(context);
            if let std::task::Poll::Ready(Some(Ok(piece))) = &next {
                compare(object, piece, "just handed out");
            }
            next
        })
        .await
    }
}

/// Panics with whose bytes they are if a piece is not what it should be.
fn compare(object: &ObjectVersion, piece: &Piece, when: &str) {
    let expected = content(object, range(piece.start, piece.start + piece.bytes.len() as u64));
    if piece.bytes[..] == expected[..] {
        return;
    }
    let wrong: Vec<usize> = (0..expected.len())
        .filter(|at| piece.bytes[*at] != expected[*at])
        .collect();
    let mut report = format!(
        "{} wrong bytes of {} in a piece at {} of {object:?} from {:?}, {when}:",
        wrong.len(),
        expected.len(),
        piece.start,
        piece.tier,
    );
    for at in [wrong[0], wrong[wrong.len() / 2], wrong[wrong.len() - 1]] {
        let offset = piece.start + at as u64;
        let word_start = (offset / 8 * 8).saturating_sub(piece.start) as usize;
        let found: Vec<u8> = piece.bytes[word_start..].iter().copied().take(8).collect();
        let _ = write!(
            report,
            " at {offset} (page {}) {}",
            offset / PAGE_BYTES,
            whose(&found)
        );
    }
    panic!("{report}");
}

/// Returns which object and offset a word belongs to.
fn whose(word: &[u8]) -> String {
    let Ok(word) = <[u8; 8]>::try_from(word) else {
        return format!("{word:02x?}");
    };
    let word = u64::from_le_bytes(word);
    let all = (0..SIZES.len()).flat_map(|number| (0..VERSIONS).map(move |version| stressed(number, version)));
    let owner = all
        .into_iter()
        .find(|object| u64::from(tag(object)) == word >> 32);
    let owner = owner.map(|object| format!("{} version {}", object.key, object.version));
    let offset = (word & u64::from(u32::MAX)) * 8;
    format!(
        "{word:016x}: {} offset {offset}",
        owner.unwrap_or_else(|| "nobody's".to_owned())
    )
}

async fn run(plan: Plan, dir: &Path) {
    let options = ReservoirOptions {
        nvme_bytes: plan.nvme_bytes,
        nvme_dir: dir.to_owned(),
        read_ahead_bytes_max: 2 * MIB,
        scrub_period: Duration::from_millis(60),
        ..options(plan.ram_bytes)
    };
    let source = Arc::new(Choppy {
        lake: FakeSource::new(),
        random: parking_lot::Mutex::new(fastrand::Rng::with_seed(plan.seed)),
    });
    let stress = Arc::new(Stress {
        plan,
        reservoir: Reservoir::open(options).await.unwrap(),
        source,
        flips: RwLock::default(),
        nvme_dir: dir.to_owned(),
    });
    let tasks: Vec<_> = (0..plan.tasks)
        .map(|number| tokio::spawn(Arc::clone(&stress).work(number)))
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let reservoir = &stress.reservoir;
    reservoir.shutdown(Duration::from_secs(10)).await;
    reservoir.unpin(&bucket(), "");
    reservoir.evict(&bucket(), "");
    let stats = reservoir.stats();
    assert_eq!(
        (stats.ram_used_bytes, stats.ram_pages, stats.leased_pages),
        (0, 0, 0)
    );
}

/// Seeds that a run of the test goes through.
fn seeds() -> std::ops::Range<u64> {
    let seeds = std::env::var("FOREBAY_STRESS_SEEDS")
        .ok()
        .and_then(|seeds| seeds.parse().ok());
    0..seeds.unwrap_or(1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_that_happens_at_once_gives_a_wrong_byte() {
    for seed in seeds() {
        let dir = tempfile::tempdir().unwrap();
        for (round, flips) in [(0, false), (1, true), (2, false)] {
            let plan = Plan {
                seed: seed * 10 + round,
                ram_bytes: [8 * MIB, 3 * MIB, 20 * MIB][seed as usize % 3],
                nvme_bytes: 24 * MIB,
                tasks: 10,
                steps: 40,
                flips,
            };
            run(plan, dir.path()).await; // The folder stays: each round starts warm.
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_nvme_nothing_that_happens_at_once_gives_a_wrong_byte() {
    for seed in seeds() {
        let plan = Plan {
            seed: seed * 10 + 5,
            ram_bytes: [2 * MIB, 6 * MIB, 16 * MIB + 5][seed as usize % 3],
            nvme_bytes: 0,
            tasks: 10,
            steps: 40,
            flips: seed % 2 == 1,
        };
        run(plan, Path::new("")).await;
    }
}
