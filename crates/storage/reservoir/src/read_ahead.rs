//! Read-ahead: notices sequential readers and says what to fetch before they ask.
//!
//! A pure decision. For each object a few streams are followed: where the next request would start if it were
//! sequential, and how many in a row were. From the third on, bytes ahead of the reader are fetched. The
//! window doubles whenever the reader has reached what was fetched for it, and halves when a stream goes away
//! with fetched bytes unread.
//!
//! Limits: objects and streams that are followed; the window. Fetching ahead is skipped when too much is in
//! flight (see `reservoir.rs`).

use std::collections::HashMap;

use forebay_core::{BLOCK_BYTES, ByteRange, PAGE_BYTES};

use crate::ObjectId;

/// Sequential requests after which read-ahead starts.
const STREAK_MIN: u32 = 3;
const WINDOW_BYTES_MIN: u64 = PAGE_BYTES;
/// A request that skips no more than this still counts as sequential.
const SKIP_BYTES_MAX: u64 = BLOCK_BYTES;
const STREAMS_PER_OBJECT_MAX: usize = 4;
const OBJECTS_MAX: usize = 1024;

/// All readers that are followed.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    window_bytes_max: u64,
    objects: HashMap<ObjectId, Streams>,
    requests: u64,
}

/// The readers of one object.
#[derive(Debug)]
struct Streams {
    streams: Vec<Stream>,
    /// The read-ahead that a new stream starts with: learned from those before.
    window_bytes: u64,
    last_request: u64,
}

#[derive(Debug)]
struct Stream {
    /// The position where a sequential reader would go on.
    next: u64,
    streak: u32,
    /// Fetched ahead up to here.
    fetched_to: u64,
    window_bytes: u64,
    last_request: u64,
}

impl ReadAhead {
    /// Follows nobody yet; a maximum below one page switches read-ahead off.
    pub(crate) fn new(window_bytes_max: u64) -> Self {
        Self {
            window_bytes_max,
            objects: HashMap::new(),
            requests: 0,
        }
    }

    /// A request came in; what should be fetched ahead of the next one, if anything.
    pub(crate) fn observe(&mut self, id: ObjectId, range: ByteRange, object_bytes: u64) -> Option<ByteRange> {
        let covers_all = range.len() >= object_bytes;
        if self.window_bytes_max < WINDOW_BYTES_MIN || covers_all {
            return None;
        }
        self.requests += 1;
        let (now, max) = (self.requests, self.window_bytes_max);
        if !self.objects.contains_key(&id) && self.objects.len() >= OBJECTS_MAX {
            let oldest = self
                .objects
                .iter()
                .min_by_key(|(_, streams)| streams.last_request)
                .map(|(id, _)| *id);
            oldest.and_then(|oldest| self.objects.remove(&oldest));
        }
        let streams = self.objects.entry(id).or_insert_with(|| Streams {
            streams: Vec::new(),
            window_bytes: WINDOW_BYTES_MIN,
            last_request: now,
        });
        streams.last_request = now;
        streams.observe(range, object_bytes, now, max)
    }
}

impl Streams {
    fn observe(&mut self, range: ByteRange, object_bytes: u64, now: u64, max: u64) -> Option<ByteRange> {
        let goes_on =
            |stream: &&mut Stream| (stream.next..=stream.next + SKIP_BYTES_MAX).contains(&range.start());
        if let Some(stream) = self.streams.iter_mut().find(goes_on) {
            stream.last_request = now;
            stream.streak = stream.streak.saturating_add(1);
            stream.next = range.end();
            let ahead = stream.ahead(range, object_bytes, max);
            self.window_bytes = self.window_bytes.max(stream.window_bytes);
            return ahead;
        }
        self.make_room();
        let window_bytes = self.window_bytes;
        let stream = Stream {
            next: range.end(),
            streak: 1,
            fetched_to: 0,
            window_bytes,
            last_request: now,
        };
        self.streams.push(stream);
        None
    }

    /// Drops the stream that was quiet for longest; unread bytes mean that the window was too large.
    fn make_room(&mut self) {
        if self.streams.len() < STREAMS_PER_OBJECT_MAX {
            return;
        }
        let quietest = (0..self.streams.len()).min_by_key(|index| self.streams[*index].last_request);
        let Some(stream) = quietest.map(|index| self.streams.swap_remove(index)) else {
            return;
        };
        if stream.fetched_to > stream.next {
            self.window_bytes = (self.window_bytes / 2).max(WINDOW_BYTES_MIN);
        }
    }
}

impl Stream {
    fn ahead(&mut self, range: ByteRange, object_bytes: u64, max: u64) -> Option<ByteRange> {
        if self.streak < STREAK_MIN {
            return None;
        }
        let unread = self.fetched_to.saturating_sub(self.next);
        if unread > self.window_bytes / 2 {
            return None;
        }
        if range.start() < self.fetched_to {
            self.window_bytes *= 2;
        }
        self.window_bytes = self.window_bytes.max(2 * range.len()).min(max);
        let start = self.next.max(self.fetched_to);
        let end = (self.next + self.window_bytes)
            .next_multiple_of(PAGE_BYTES)
            .min(object_bytes);
        let ahead = ByteRange::new(start, end).ok()?;
        self.fetched_to = end;
        Some(ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const ID: ObjectId = ObjectId([1; 16]);

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange::new(start, end).unwrap()
    }

    #[test]
    fn the_third_request_in_a_row_starts_it() {
        let mut ahead = ReadAhead::new(64 * MIB);
        assert_eq!(ahead.observe(ID, range(0, 1000), 100 * MIB), None);
        assert_eq!(ahead.observe(ID, range(1000, 2000), 100 * MIB), None);
        let first = ahead.observe(ID, range(2000, 3000), 100 * MIB).unwrap();
        assert_eq!((first.start(), first.end() % MIB), (3000, 0));
    }

    #[test]
    fn random_requests_never_start_it() {
        let mut ahead = ReadAhead::new(64 * MIB);
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            let start = random.u64(..1000) * MIB;
            assert_eq!(ahead.observe(ID, range(start, start + 52_000), 2000 * MIB), None);
        }
    }

    #[test]
    fn the_window_grows_to_its_maximum_and_nothing_is_fetched_twice() {
        let mut ahead = ReadAhead::new(16 * MIB);
        let (mut fetched_to, mut largest) = (0, 0);
        for number in 0..200 {
            if let Some(more) = ahead.observe(ID, range(number * MIB, (number + 1) * MIB), 1000 * MIB) {
                assert!(more.start() >= fetched_to && more.start() > number * MIB);
                assert!(more.end() <= (number + 1) * MIB + 16 * MIB);
                fetched_to = more.end();
                largest = largest.max(more.end() - (number + 1) * MIB);
            }
        }
        assert_eq!(largest, 16 * MIB);
        assert!(fetched_to >= 200 * MIB);
    }

    #[test]
    fn it_stops_at_the_end_of_the_object() {
        let mut ahead = ReadAhead::new(64 * MIB);
        let object_bytes = 3 * MIB + 5;
        for number in 0..2 {
            ahead.observe(ID, range(number * MIB, (number + 1) * MIB), object_bytes);
        }
        assert_eq!(
            ahead.observe(ID, range(2 * MIB, 3 * MIB), object_bytes),
            Some(range(3 * MIB, object_bytes))
        );
        assert_eq!(
            ahead.observe(ID, range(3 * MIB, object_bytes), object_bytes),
            None
        );
    }

    #[test]
    fn streams_that_leave_bytes_unread_shrink_the_window() {
        let mut ahead = ReadAhead::new(64 * MIB);
        let run = |ahead: &mut ReadAhead, start: u64, requests: u64| {
            let mut last = None;
            for number in 0..requests {
                let from = start + number * MIB;
                last = ahead.observe(ID, range(from, from + MIB), u64::MAX / 2).or(last);
            }
            last.map_or(0, |range| range.end() - (start + requests * MIB))
        };
        run(&mut ahead, 0, 100);
        let learned = ahead.objects[&ID].window_bytes;
        for number in 1..20 {
            run(&mut ahead, number << 40, 3);
        }
        assert!(ahead.objects[&ID].window_bytes < learned);
    }

    #[test]
    fn followed_objects_are_bounded() {
        let mut ahead = ReadAhead::new(64 * MIB);
        for number in 0..5000u32 {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&number.to_le_bytes());
            ahead.observe(ObjectId(id), range(0, 10), 100 * MIB);
        }
        assert!(ahead.objects.len() <= OBJECTS_MAX);
    }
}
