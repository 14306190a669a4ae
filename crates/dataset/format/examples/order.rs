//! What an order costs: `cargo run --release -p forebay-dataset --example order`.
//!
//! Prints, for a thousand million samples in a hundred thousand shards: the time to the first sample, the
//! time per sample of walking on, of a single question in either direction, the memory, and how well the
//! samples are mixed.

use std::fs;
use std::hint::black_box;
use std::time::Instant;

use forebay_core::Result;
use forebay_dataset::order::{
    Fingerprint, Mix, Order, OrderOptions, Plan, Shape, ShardSize, Shuffle, Stop, Take, Window,
};

const SHARDS: u64 = 100_000;
const SAMPLES: u64 = 1_000_000_000;
const WALK: u64 = 5_000_000;
const QUESTIONS: u64 = 200_000;

fn main() -> Result<()> {
    let before = resident_mib();
    for (name, shuffle) in [
        ("global", Shuffle::Global),
        ("window of 2 GiB", Shuffle::Window(Window::bytes(2 << 30))),
        (
            "window of 262144 samples",
            Shuffle::Window(Window::samples(262_144)),
        ),
        (
            "window of 2 GiB, whole shards",
            Shuffle::Window(Window::bytes(2 << 30).whole_shards()),
        ),
    ] {
        let start = Instant::now();
        let plan = plan(shuffle)?;
        let order = plan.epoch(0);
        black_box(order.at(0));
        let started = start.elapsed();
        let start = Instant::now();
        black_box(plan.epoch(1).at(SAMPLES / 2));
        let resumed = start.elapsed();
        println!("{name}");
        println!("  first sample after {started:.1?}, another epoch at 50 % after {resumed:.1?}");
        println!(
            "  memory {} MiB more than at the start",
            resident_mib().saturating_sub(before)
        );
        walk(&order);
        let quality = order.quality(20_000);
        println!(
            "  neighbours are {} apart, {:.2} of perfect",
            quality.median_distance,
            quality.ratio()
        );
    }
    mixed()
}

fn plan(shuffle: Shuffle) -> Result<Plan> {
    let sizes = (0..SHARDS).map(|_| ShardSize {
        samples: SAMPLES / SHARDS,
        bytes: 500_000_000,
    });
    Plan::new(
        Shape::new(sizes, Fingerprint::of([]))?,
        OrderOptions {
            seed: 7,
            shuffle,
            take: Take::All,
        },
    )
}

fn walk(order: &Order) {
    let start = Instant::now();
    let sum = order.iter(0..WALK).fold(0_u64, u64::wrapping_add);
    println!("  walking on {:.1} ns a sample", nanoseconds(start, WALK));
    let start = Instant::now();
    let ask = |sum: u64, number: u64| sum ^ order.at(number * 4999).unwrap_or(0);
    let asked = (0..QUESTIONS).fold(sum, ask);
    println!("  a single position {:.1} ns", nanoseconds(start, QUESTIONS));
    let start = Instant::now();
    let find = |sum: u64, number: u64| sum ^ order.position_of(number * 4999).unwrap_or(0);
    black_box((0..QUESTIONS).fold(asked, find));
    println!(
        "  a single sample's position {:.1} ns",
        nanoseconds(start, QUESTIONS)
    );
}

fn mixed() -> Result<()> {
    let sources =
        [0.5, 0.3, 0.15, 0.05].map(|weight| Ok((plan(Shuffle::Window(Window::bytes(2 << 30)))?, weight)));
    let mix = Mix::new(sources.into_iter().collect::<Result<_>>()?, 1, Stop::Forever)?;
    let mut cursor = mix.cursor(0);
    black_box(cursor.at(0));
    let start = Instant::now();
    let take = |sum: u64, position: u64| sum ^ cursor.at(position).map_or(0, |(_, sample)| sample);
    black_box((0..WALK).fold(0, take));
    println!(
        "a mix of four such datasets: {:.1} ns a sample",
        nanoseconds(start, WALK)
    );
    Ok(())
}

fn nanoseconds(start: Instant, count: u64) -> f64 {
    start.elapsed().as_nanos() as f64 / count as f64
}

/// The memory of this process, as the system counts it.
fn resident_mib() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096 / (1 << 20)
}
