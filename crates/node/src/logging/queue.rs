//! Log lines on their way out: whoever logs leaves a line in memory, one thread writes many at once.
//!
//! A line used to be a `write(2)` on the task that answered the request, and a reader of the log who stood
//! still held all requests up. Now a line costs a copy, and the writer takes what has gathered every few
//! milliseconds. What may wait is bounded: past that, ordinary lines are dropped and counted; warnings and
//! errors have as much room again, and past that they are written by whoever logs them, so they are never
//! lost. Life: from `logging::init` until the [`super::Log`] is dropped, which writes the rest; a panic
//! writes it too. Only kill -9 loses what was not yet written.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Ordinary lines that may wait.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Warnings and errors may wait up to here.
const WAITING_BYTES_MAX_URGENT: usize = 2 * WAITING_BYTES_MAX;
/// Time that lines gather, unless one is urgent or half of the room is taken.
const GATHER_DELAY_MAX: Duration = Duration::from_millis(10);

/// Urgency of a line: may it be dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    /// It may, when the reader of the log is behind.
    Ordinary,
    /// Never: a warning or an error.
    Urgent,
}

/// Lines that wait, and where they go.
pub(super) struct Queue<W> {
    waiting: Mutex<Waiting>,
    has_work: Condvar,
    out: Mutex<Out<W>>,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    lines: Vec<u8>,
    is_urgent: bool,
    is_over: bool,
}

struct Out<W> {
    to: W,
    /// Empty between two writes; its memory and that of the waiting lines change places.
    taken: Vec<u8>,
}

impl<W: Write> Queue<W> {
    pub(super) fn new(to: W) -> Self {
        Self {
            waiting: Mutex::default(),
            has_work: Condvar::new(),
            out: Mutex::new(Out {
                to,
                taken: Vec::new(),
            }),
            dropped: AtomicU64::new(0),
        }
    }

    /// Ordinary lines dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Leaves a whole line. Blocks only if it is urgent and there is no room for it.
    pub(super) fn push(&self, line: &[u8], urgency: Urgency) {
        let is_urgent = urgency == Urgency::Urgent;
        let bytes_max = if is_urgent {
            WAITING_BYTES_MAX_URGENT
        } else {
            WAITING_BYTES_MAX
        };
        let mut waiting = self.waiting.lock();
        if waiting.lines.len() + line.len() <= bytes_max {
            let was_empty = waiting.lines.is_empty();
            waiting.lines.extend_from_slice(line);
            waiting.is_urgent |= is_urgent;
            let is_worth_a_call = was_empty || is_urgent || waiting.lines.len() > WAITING_BYTES_MAX / 2;
            drop(waiting);
            if is_worth_a_call {
                self.has_work.notify_one();
            }
            return;
        }
        drop(waiting);
        if is_urgent {
            // If nobody reads the log at all, there is nobody to tell.
            let _ = self.out.lock().to.write_all(line);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The writer's loop, until [`Self::end`]. `says_dropped` is told how many lines were dropped since it
    /// was last told.
    pub(super) fn write_until_end(&self, says_dropped: impl Fn(u64)) {
        let mut said = 0;
        while self.wait_for_work() {
            self.write_waiting(&mut self.out.lock());
            let dropped = self.dropped();
            if dropped > said {
                says_dropped(dropped - said);
                said = dropped;
            }
        }
    }

    /// Waits until there is something to write; false at the end.
    fn wait_for_work(&self) -> bool {
        let mut waiting = self.waiting.lock();
        while waiting.lines.is_empty() {
            if waiting.is_over {
                return false;
            }
            self.has_work.wait(&mut waiting);
        }
        if !waiting.is_urgent && !waiting.is_over {
            self.has_work.wait_for(&mut waiting, GATHER_DELAY_MAX);
        }
        true
    }

    fn write_waiting(&self, out: &mut Out<W>) {
        {
            let mut waiting = self.waiting.lock();
            std::mem::swap(&mut waiting.lines, &mut out.taken);
            waiting.is_urgent = false;
        }
        let _ = out.to.write_all(&out.taken);
        out.taken.clear();
    }

    /// Writes what waits, on this thread. False if whoever reads the log stands still.
    pub(super) fn flush_within(&self, wait_max: Duration) -> bool {
        let out = self.out.try_lock_for(wait_max);
        out.map(|mut out| self.write_waiting(&mut out)).is_some()
    }

    /// The writer's loop ends when everything is written.
    pub(super) fn end(&self) {
        self.waiting.lock().is_over = true;
        self.has_work.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Tells of every write, and ends it when it is told to.
    struct Slow {
        wrote: Sender<Vec<u8>>,
        go_on: Receiver<()>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let _ = self.wrote.send(bytes.to_vec());
            let _ = self.go_on.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_gather_and_are_written_in_order_also_the_last_ones() {
        let queue = Queue::new(Vec::new());
        queue.push(b"a\n", Urgency::Ordinary);
        queue.push(b"b\n", Urgency::Urgent);
        queue.end();
        queue.write_until_end(|_| panic!("nothing was dropped"));
        queue.push(b"late\n", Urgency::Ordinary);
        assert!(queue.flush_within(Duration::ZERO));
        assert_eq!(queue.out.lock().to, b"a\nb\nlate\n");
    }

    #[test]
    fn a_reader_that_stands_still_costs_ordinary_lines_and_no_warning() {
        let ((wrote, written), (go_on, wait)) = (channel(), channel());
        let queue = Arc::new(Queue::new(Slow { wrote, go_on: wait }));
        let (say, said) = channel();
        let writer = std::thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.write_until_end(|dropped| say.send(dropped).unwrap())
        });
        queue.push(b"first\n", Urgency::Urgent);
        assert_eq!(
            written.recv().unwrap(),
            b"first\n",
            "the writer hangs in this one"
        );
        let line = [b'x'; 1024];
        for _ in 0..1500 {
            queue.push(&line, Urgency::Ordinary);
        }
        queue.push(b"warning\n", Urgency::Urgent);
        assert_eq!(queue.dropped(), 1500 - 1024);
        assert!(queue.waiting.lock().lines.len() <= WAITING_BYTES_MAX_URGENT);
        queue.end();
        drop(go_on);
        writer.join().unwrap();
        let rest: Vec<u8> = written.iter().take(1).flatten().collect();
        assert!(rest.ends_with(b"warning\n") && rest.len() == 1024 * 1024 + 8);
        assert_eq!(said.iter().sum::<u64>(), 1500 - 1024);
    }

    #[test]
    fn a_warning_without_room_is_written_by_its_own_thread() {
        let queue = Queue::new(Vec::new());
        let line = vec![b'w'; WAITING_BYTES_MAX_URGENT];
        queue.push(&line, Urgency::Urgent);
        queue.push(b"one more\n", Urgency::Urgent);
        assert_eq!(queue.out.lock().to, b"one more\n");
    }
}
