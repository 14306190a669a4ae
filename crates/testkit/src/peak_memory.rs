//! Peak memory of a piece of work, as the kernel counts it.

use std::fs;

/// Measures the most memory that this process has from `start` on. Only means something if nothing else runs
/// in the process meanwhile.
#[derive(Debug)]
pub struct PeakMemory {
    before: u64,
}

impl PeakMemory {
    /// Begins to measure.
    #[must_use]
    pub fn start() -> Self {
        // The kernel forgets the highest mark there was.
        fs::write("/proc/self/clear_refs", "5").expect("a process may reset its own mark");
        Self {
            before: resident_max(),
        }
    }

    /// Returns how much more than in the beginning there was at some time.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        resident_max().saturating_sub(self.before)
    }
}

fn resident_max() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("there is /proc");
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<u64>().ok())
        .expect("the kernel counts")
        * 1024
}
