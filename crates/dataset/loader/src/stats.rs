//! Why the consumer waited, and what was read: counted per batch, summed by the loader.
//!
//! A batch that was ready when it was asked for costs its hand-over. One that was not is waited for; that
//! wait is put down to what its fetcher did meanwhile, in proportion: a read that fetched something from the
//! lake is the lake's time, any other read the cache's, then places and checksums, then decoding. Bytes that
//! a prefetcher brought from the lake count there, and again as cache when the batch reads them.

use forebay_client::TierBytes;

/// Samples whose faults are kept word by word; further ones are only counted.
pub const BAD_SAMPLES_KEPT_MAX: usize = 1000;

/// Time by cause, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// Reads that had to wait for the lake.
    pub lake_ns: u64,
    /// Reads of what the node had.
    pub cache_ns: u64,
    /// Places, checksums, putting together.
    pub check_ns: u64,
    /// Decoding of fields, and packing them.
    pub decode_ns: u64,
}

impl Times {
    fn total_ns(&self) -> u64 {
        self.lake_ns + self.cache_ns + self.check_ns + self.decode_ns
    }

    pub(crate) fn add(&mut self, more: &Self) {
        self.lake_ns += more.lake_ns;
        self.cache_ns += more.cache_ns;
        self.check_ns += more.check_ns;
        self.decode_ns += more.decode_ns;
    }

    /// So much time, divided as these are.
    fn share(&self, wait_ns: u64) -> Self {
        let total = u128::from(self.total_ns().max(1));
        let part = |ns: u64| (u128::from(wait_ns) * u128::from(ns) / total) as u64;
        Self {
            lake_ns: part(self.lake_ns),
            cache_ns: part(self.cache_ns),
            check_ns: part(self.check_ns),
            decode_ns: part(self.decode_ns),
        }
    }
}

/// Cost of one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchStats {
    /// Time that the consumer waited, by cause.
    pub stall: Times,
    /// Time that the consumer waited although the batch was ready.
    pub hand_over_ns: u64,
    /// Time of the consumer between the batch before and the call for this one.
    pub user_ns: u64,
    /// Work of the fetcher for this batch, waited for or not.
    pub work: Times,
    /// Bytes by origin.
    pub sources: TierBytes,
}

impl BatchStats {
    /// Puts a wait down to its causes.
    pub(crate) fn waited(&mut self, wait_ns: u64, was_ready: bool) {
        if was_ready {
            self.hand_over_ns = wait_ns;
            return;
        }
        self.stall = self.work.share(wait_ns);
        self.hand_over_ns = wait_ns - self.stall.total_ns().min(wait_ns);
    }
}

/// A sample that could not be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadSample {
    /// The epoch.
    pub epoch: u64,
    /// The dataset of a mix.
    pub source: usize,
    /// Its number there.
    pub number: u64,
    /// Its shard.
    pub shard: String,
    /// Its key, if it has one.
    pub key: Option<String>,
    /// The error.
    pub reason: String,
    /// The sample that came in its place.
    pub substitute: Option<u64>,
}

/// Counters of a loader since it was made.
#[derive(Debug, Clone, Default)]
pub struct LoaderStats {
    /// Batches handed over.
    pub batches: u64,
    /// Samples in them.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time that the consumer waited, by cause.
    pub stall: Times,
    /// Time that it waited although the batch was ready.
    pub hand_over_ns: u64,
    /// Time of the consumer between batches.
    pub user_ns: u64,
    /// Work of the fetchers.
    pub work: Times,
    /// Bytes of batches by origin.
    pub sources: TierBytes,
    /// Bytes of the prefetcher by origin.
    pub prefetched: TierBytes,
    /// Samples that could not be used.
    pub bad_samples: u64,
    /// The first of them.
    pub bad: Vec<BadSample>,
}

impl LoaderStats {
    pub(crate) fn count(&mut self, batch: &BatchStats, samples: u64, bytes: u64, bad: &[BadSample]) {
        self.batches += 1;
        self.samples += samples;
        self.bytes += bytes;
        self.stall.add(&batch.stall);
        self.hand_over_ns += batch.hand_over_ns;
        self.user_ns += batch.user_ns;
        self.work.add(&batch.work);
        self.sources += batch.sources;
        self.bad_samples += bad.len() as u64;
        let room = BAD_SAMPLES_KEPT_MAX.saturating_sub(self.bad.len());
        self.bad.extend(bad.iter().take(room).cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_divided_by_what_was_done_meanwhile() {
        let mut batch = BatchStats {
            work: Times {
                lake_ns: 600,
                cache_ns: 200,
                check_ns: 100,
                decode_ns: 100,
            },
            ..BatchStats::default()
        };
        batch.waited(500, false);
        assert_eq!(
            batch.stall,
            Times {
                lake_ns: 300,
                cache_ns: 100,
                check_ns: 50,
                decode_ns: 50
            }
        );
        assert_eq!(batch.hand_over_ns, 0);
    }

    #[test]
    fn a_ready_batch_costs_only_its_hand_over() {
        let mut batch = BatchStats {
            work: Times {
                lake_ns: 600,
                ..Times::default()
            },
            ..BatchStats::default()
        };
        batch.waited(7, true);
        assert_eq!((batch.stall, batch.hand_over_ns), (Times::default(), 7));
    }
}
