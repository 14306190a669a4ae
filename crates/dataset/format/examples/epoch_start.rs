//! What the start of an epoch over 10^9 samples costs, as `cargo xtask bench dataset` reads it: one JSON
//! object per line with seconds and MiB. 100,000 shards, the window shuffle; each run makes its plan anew.

use std::fs;
use std::hint::black_box;
use std::time::Instant;

use forebay_core::Result;
use forebay_dataset::order::{Fingerprint, OrderOptions, Plan, Shape, ShardSize, Shuffle, Take, Window};

const SHARDS: u64 = 100_000;
const SAMPLES: u64 = 1_000_000_000;
const RUNS: usize = 5;

fn main() -> Result<()> {
    let before = resident_mib();
    let (mut starts, mut resumes, mut memory) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let start = Instant::now();
        let sizes = (0..SHARDS).map(|_| ShardSize {
            samples: SAMPLES / SHARDS,
            bytes: 500_000_000,
        });
        let options = OrderOptions {
            seed: 7,
            shuffle: Shuffle::Window(Window::bytes(2 << 30)),
            take: Take::All,
        };
        let plan = Plan::new(Shape::new(sizes, Fingerprint::of([]))?, options)?;
        let order = plan.epoch(0);
        black_box(order.at(0));
        starts.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        black_box(plan.epoch(1).at(SAMPLES / 2));
        resumes.push(start.elapsed().as_secs_f64());
        memory.push(resident_mib() - before);
    }
    for (name, samples) in [
        ("epoch start", starts),
        ("epoch at 50 %", resumes),
        ("epoch memory", memory),
    ] {
        println!("{{\"name\": \"{name}\", \"samples\": {samples:?}}}");
    }
    Ok(())
}

/// The memory of this process, as the system counts it.
fn resident_mib() -> f64 {
    let pages = fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').nth(1)?.parse::<f64>().ok());
    pages.unwrap_or(0.0) * 4096.0 / f64::from(1 << 20)
}
