//! The windowed shuffle of one epoch: runs of samples in a keyed order, cut into windows, samples permuted
//! inside each.
//!
//! A run is some consecutive samples of one shard. Runs are the same in every epoch ([`Runs`]), so that a
//! cache may keep what it has; an epoch ([`Windows`]) permutes them, lays them end to end and cuts this line
//! into windows of equal size. A run that lies on a cut belongs to two neighbouring windows, with its first
//! samples to the one and with the others to the next: no window is larger than asked for and none is a small
//! rest, which would mix badly.
//!
//! Memory: 8 to 16 bytes a run and 12 to 20 more for each epoch in use. There are at most as many runs as
//! shards plus 2^18.

use std::ops::Range;
use std::sync::Arc;

use super::key::{Key, Purpose};
use super::permutation::Permutation;
use super::shape::Shape;
use super::{Span, Window};

/// Runs that cutting may add to the shards.
const RUNS_ADDED_MAX: u64 = 1 << 18;

/// The runs that a dataset is cut into.
#[derive(Debug)]
pub(super) struct Runs {
    /// The first sample of each run, and at the end of all.
    first: Vec<u64>,
    /// The bytes of each run; empty if windows are in samples.
    bytes: Vec<u64>,
    /// Number of windows.
    windows: u64,
}

impl Runs {
    /// Cuts the shards so that a window has at least `runs_min` runs.
    pub(super) fn new(shape: &Shape, window: Window) -> Self {
        let by_bytes = matches!(window.span, Span::Bytes(_));
        let size_of = |shard: usize| {
            let range = shape.samples_of(shard);
            if by_bytes {
                shape.bytes_of(shard)
            } else {
                range.end - range.start
            }
        };
        let total = (0..shape.shards()).fold(0_u64, |sum, shard| sum.saturating_add(size_of(shard)));
        let span = window.span.size();
        let run_max = (span / u64::from(window.runs_min))
            .max(total / RUNS_ADDED_MAX)
            .max(1);
        let mut runs = Self {
            first: vec![0],
            bytes: Vec::new(),
            windows: total.div_ceil(span).clamp(1, shape.samples().max(1)),
        };
        for shard in 0..shape.shards() {
            let range = shape.samples_of(shard);
            let samples = range.end - range.start;
            let cuts = if window.runs_min == 1 {
                1
            } else {
                size_of(shard).div_ceil(run_max).clamp(1, samples.max(1))
            };
            for cut in 0..if samples == 0 { 0 } else { cuts } {
                let end = part(samples, cut + 1, cuts);
                runs.first.push(range.start + end);
                if by_bytes {
                    let bytes = shape.bytes_of(shard);
                    runs.bytes
                        .push(part(bytes, cut + 1, cuts) - part(bytes, cut, cuts));
                }
            }
        }
        runs
    }

    fn count(&self) -> usize {
        self.first.len() - 1
    }
}

/// `total * number / of`, without overflow.
fn part(total: u64, number: u64, of: u64) -> u64 {
    (u128::from(total) * u128::from(number) / u128::from(of.max(1))) as u64
}

/// The windows of one epoch.
#[derive(Debug)]
pub(super) struct Windows {
    runs: Arc<Runs>,
    key: Key,
    order: Permutation,
    /// Run in each slot of the line.
    slots: Vec<u32>,
    /// Start of each slot on the line, in samples, and at the end its length.
    starts: Vec<u64>,
    /// The same in bytes; empty if windows are in samples.
    starts_bytes: Vec<u64>,
}

/// A window, ready to be read.
#[derive(Debug, Clone)]
pub(super) struct Open {
    /// The positions of the epoch that it covers.
    pub(super) positions: Range<u64>,
    order: Permutation,
    slots: Range<usize>,
}

impl Windows {
    pub(super) fn new(runs: Arc<Runs>, key: Key) -> Self {
        let count = runs.count();
        let order = Permutation::new(key.derive(Purpose::Runs, 0), count as u64);
        let slots: Vec<u32> = (0..count as u64).map(|slot| order.at(slot) as u32).collect();
        let line = |size: &dyn Fn(usize) -> u64| {
            let mut starts = Vec::with_capacity(count + 1);
            starts.push(0_u64);
            let mut total = 0_u64;
            for run in &slots {
                total = total.saturating_add(size(*run as usize));
                starts.push(total);
            }
            starts
        };
        let starts = line(&|run| runs.first[run + 1] - runs.first[run]);
        let starts_bytes = if runs.bytes.is_empty() {
            Vec::new()
        } else {
            line(&|run| runs.bytes[run])
        };
        Self {
            runs,
            key,
            order,
            slots,
            starts,
            starts_bytes,
        }
    }

    /// Returns how many windows there are.
    pub(super) fn count(&self) -> u64 {
        self.runs.windows
    }

    /// The positions of a window.
    pub(super) fn positions(&self, window: u64) -> Range<u64> {
        self.start(window)..self.start(window + 1)
    }

    fn samples(&self) -> u64 {
        self.starts[self.slots.len()]
    }

    fn start(&self, window: u64) -> u64 {
        let count = self.count();
        if window == 0 {
            return 0;
        }
        if window >= count {
            return self.samples();
        }
        if self.starts_bytes.is_empty() {
            return part(self.samples(), window, count);
        }
        let target = part(self.starts_bytes[self.slots.len()], window, count);
        let slot = slot_at(&self.starts_bytes, target);
        let bytes = self.starts_bytes[slot + 1] - self.starts_bytes[slot];
        let samples = self.starts[slot + 1] - self.starts[slot];
        self.starts[slot] + part(samples, target - self.starts_bytes[slot], bytes)
    }

    /// The window that a position lies in.
    pub(super) fn window_at(&self, position: u64) -> u64 {
        let (mut low, mut high) = (0, self.count());
        if self.starts_bytes.is_empty() {
            let guess = part(self.count(), position, self.samples());
            (low, high) = (guess, (guess + 2).min(high));
        }
        // The last window that starts at or before the position; those before it may be empty.
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.start(middle) <= position {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Makes a window ready.
    pub(super) fn open(&self, window: u64) -> Open {
        let positions = self.positions(window);
        Open {
            order: Permutation::new(
                self.key.derive(Purpose::Window, window),
                positions.end - positions.start,
            ),
            slots: self.slots_of(&positions),
            positions,
        }
    }

    fn slots_of(&self, positions: &Range<u64>) -> Range<usize> {
        if positions.is_empty() {
            return 0..0;
        }
        slot_at(&self.starts, positions.start)..slot_at(&self.starts, positions.end - 1) + 1
    }

    /// The sample at a position of an open window.
    pub(super) fn at(&self, open: &Open, position: u64) -> u64 {
        let line = open.positions.start + open.order.at(position - open.positions.start);
        let starts = &self.starts[open.slots.start..open.slots.end];
        let slot = open.slots.start + starts.partition_point(|start| *start <= line) - 1;
        self.runs.first[self.slots[slot] as usize] + (line - self.starts[slot])
    }

    /// The position of a sample.
    pub(super) fn position_of(&self, sample: u64) -> u64 {
        let line = self.line_of(sample);
        let open = self.open(self.window_at(line));
        open.positions.start + open.order.inverse(line - open.positions.start)
    }

    /// Returns where a sample lies on the line of runs.
    fn line_of(&self, sample: u64) -> u64 {
        let run = slot_at(&self.runs.first, sample);
        let slot = self.order.inverse(run as u64) as usize;
        self.starts[slot] + (sample - self.runs.first[run])
    }

    /// The samples of a window, as ranges, in the order of the line.
    pub(super) fn ranges(&self, window: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let positions = self.positions(window);
        self.slots_of(&positions).map(move |slot| {
            let first = self.runs.first[self.slots[slot] as usize];
            let from = positions.start.max(self.starts[slot]) - self.starts[slot];
            let to = positions.end.min(self.starts[slot + 1]) - self.starts[slot];
            first + from..first + to
        })
    }

    /// Returns where some consecutive samples are used: for each stretch of them its window's positions.
    pub(super) fn uses(&self, samples: Range<u64>) -> Vec<(Range<u64>, Range<u64>)> {
        let mut uses = Vec::new();
        let mut sample = samples.start;
        while sample < samples.end {
            let run = slot_at(&self.runs.first, sample);
            let line = self.line_of(sample);
            let positions = self.positions(self.window_at(line));
            let stretch = (positions.end - line).min(self.runs.first[run + 1] - sample);
            let end = samples.end.min(sample + stretch);
            uses.push((positions, sample..end));
            sample = end;
        }
        uses.sort_by_key(|(positions, _)| positions.start);
        uses
    }
}

/// The slot that a place of the line lies in; slots without length are passed over.
fn slot_at(starts: &[u64], place: u64) -> usize {
    starts.partition_point(|start| *start <= place) - 1
}
