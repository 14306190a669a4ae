//! The corpus of a fuzz target as an ordinary test.
//!
//! Every file of `fuzz/corpus/<target>/` is played, then mutations of the files: always the same ones, so
//! that a failure is there again in the next run. What a long run of libFuzzer finds is added to the corpus
//! and so stays found.

use std::path::Path;

/// Mutations of each file.
const MUTATIONS: usize = 400;
/// Larger files are played as they are; to mutate them would only be slow.
const MUTATED_BYTES_MAX: usize = 4096;

/// Plays the corpus of a target to its entry point.
///
/// # Panics
/// If there is no corpus, or the entry point does; the input is then printed in hex.
pub fn replay_corpus(target: &str, entry: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let files =
        std::fs::read_dir(&folder).unwrap_or_else(|why| panic!("no corpus at {}: {why}", folder.display()));
    let mut paths: Vec<_> = files.flatten().map(|file| file.path()).collect();
    paths.sort();
    assert!(paths.len() >= 5, "{} has hardly anything in it", folder.display());
    for (seed, path) in paths.iter().enumerate() {
        let input = std::fs::read(path).unwrap_or_else(|why| panic!("cannot read {}: {why}", path.display()));
        play(entry, &input, &path.display().to_string());
        if input.len() > MUTATED_BYTES_MAX {
            continue;
        }
        let mut random = fastrand::Rng::with_seed(seed as u64);
        for round in 0..MUTATIONS {
            let mutated = mutate(&input, &mut random);
            play(
                entry,
                &mutated,
                &format!("mutation {round} of {}", path.display()),
            );
        }
    }
}

fn play(entry: fn(&[u8]), input: &[u8], name: &str) {
    if let Err(panic) = std::panic::catch_unwind(|| entry(input)) {
        let shown: String = input.iter().take(300).map(|byte| format!("{byte:02x}")).collect();
        println!("{name} ({} bytes): {shown}", input.len());
        std::panic::resume_unwind(panic);
    }
}

/// Changes a few bytes: flips, replaces, removes, inserts, repeats.
fn mutate(input: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    const TELLING: &[u8] = b"\0\r\n-=,;/.0159afF+ \xff";
    let mut bytes = input.to_vec();
    for _ in 0..random.usize(1..=4) {
        let at = random.usize(0..=bytes.len());
        let telling = TELLING[random.usize(..TELLING.len())];
        match random.u8(0..5) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.u8(0..8),
            1 if at < bytes.len() => bytes[at] = telling,
            2 if at < bytes.len() => {
                bytes.remove(at);
            }
            3 => bytes.insert(at, telling),
            _ => bytes.extend_from_within(at..),
        }
    }
    bytes
}
