//! Saves that store what changed as its difference from the parent.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use std::time::Duration;

use fixture::{TestNode, pattern};
use forebay_checkpoint::manifest::DEPTH_MAX;
use forebay_checkpoint::retention::Policy;
use forebay_checkpoint::{Dtype, TensorBox};
use forebay_checkpoint_client::{PruneOptions, PruneSelection};
use forebay_client::{Differential, SaveOptions, TensorPart};
use forebay_client::{SavePhase, SaveState};

/// Long enough for any machine; a test that waits so long has failed.
const LONG: Duration = Duration::from_secs(120);
/// More than two frames.
const ELEMENTS: u64 = 600_000;
/// More frames than are looked at before a part is chosen.
const MANY: u64 = (4 << 18) + 5000;

/// Numbers whose lowest bytes differ here and there from step to step.
fn weights(step: u64) -> Vec<u8> {
    some_weights(step, ELEMENTS)
}

fn some_weights(step: u64, elements: u64) -> Vec<u8> {
    let mut bytes = pattern(1, 4 * elements);
    for (number, element) in bytes.chunks_mut(4).enumerate().step_by(16) {
        element[0] = element[0].wrapping_add((number as u64 * step % 251) as u8);
    }
    bytes
}

/// Bytes that have nothing in common with any others.
fn noise(bytes: u64) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn part<'a>(name: &'a str, shape: &'a [u64], bytes: &'a [u8]) -> TensorPart<'a> {
    TensorPart {
        name,
        dtype: Dtype::F32,
        global_shape: shape,
        at: TensorBox::whole(shape),
        bytes,
    }
}

fn save(node: &TestNode, step: u64, differential: Differential, parts: &[TensorPart<'_>]) -> SaveState {
    let options = SaveOptions {
        deadline: LONG,
        differential,
        ..SaveOptions::new("forebay://lake/run", step)
    };
    let save = node.client.begin_save(options).unwrap();
    save.write(parts, 2).unwrap();
    let staged = save.stage().unwrap();
    let state = node.client.wait_save(&staged.id, LONG).unwrap();
    assert_eq!(state.phase, SavePhase::Durable, "{state:?}");
    state
}

fn check(node: &TestNode, step: u64, bytes: &[u8]) {
    let step = node.root().step(step).unwrap();
    assert!(step.whole_tensor("w", 2).unwrap() == bytes);
    let verified = step.verify(2, &|_| {}).unwrap();
    assert!(verified.is_ok(), "{verified:?}");
}

#[test]
fn what_changed_a_little_is_a_difference_in_chains_of_bounded_length() {
    let node = TestNode::start();
    let last = DEPTH_MAX as u64 + 3;
    let mut depths = Vec::new();
    for step in 1..=last {
        let bytes = weights(step);
        let state = save(&node, step, Differential::Auto, &[part("w", &[ELEMENTS], &bytes)]);
        let extent = node.root().manifest(step).unwrap().content.tensors["w"].parts[0]
            .bytes
            .clone();
        depths.push(extent.depth());
        assert!(extent.chain_bytes() <= 2 * extent.bytes());
        let is_encoded = extent.encoding.is_some();
        assert_eq!(state.encoded_bytes, if is_encoded { 4 * ELEMENTS } else { 0 });
        assert_eq!(
            state.encoded_stored_bytes,
            if is_encoded { extent.stored_bytes() } else { 0 }
        );
        assert_eq!(state.written_bytes, extent.stored_bytes());
        assert!(!is_encoded || extent.stored_bytes() * 4 < extent.bytes());
    }
    assert_eq!(depths, [0, 1, 2, 3, 4, 0, 1]);
    for step in [2, 5, last] {
        check(&node, step, &weights(step));
    }
    let options = PruneOptions {
        selection: PruneSelection::ByPolicy(Policy {
            keep_last: 1,
            keep_every: Some(5),
        }),
        age_ms_min: 0,
        now_ms: 4_000_000_000_000,
        is_dry_run: false,
    };
    assert_eq!(node.root().prune(&options).unwrap().kept, [5, last]);
    for step in [5, last] {
        check(&node, step, &weights(step));
    }
}

#[test]
fn what_gains_nothing_and_what_nobody_asked_for_is_written_as_it_is() {
    let node = TestNode::start();
    let small = weights(1)[..4000].to_vec();
    let first = weights(1);
    save(
        &node,
        1,
        Differential::Auto,
        &[
            part("w", &[ELEMENTS], &first),
            part("n", &[ELEMENTS], &first),
            part("s", &[1000], &small),
        ],
    );
    let (second, noise) = (weights(2), noise(4 * ELEMENTS));
    let small = weights(2)[..4000].to_vec();
    let state = save(
        &node,
        2,
        Differential::Auto,
        &[
            part("w", &[ELEMENTS / 2, 2], &second),
            part("n", &[ELEMENTS], &noise),
            part("s", &[1000], &small),
        ],
    );
    assert_eq!(
        (state.encoded_bytes, state.written_bytes),
        (0, state.bytes),
        "another box, noise, small"
    );
    let third = weights(3);
    let state = save(
        &node,
        3,
        Differential::Off,
        &[part("w", &[ELEMENTS / 2, 2], &third)],
    );
    assert_eq!(
        (state.encoded_bytes, state.written_bytes),
        (0, state.bytes),
        "off"
    );
    check(&node, 3, &third);
}

#[test]
fn a_damaged_parent_costs_space_and_not_the_save() {
    let node = TestNode::start();
    let first = some_weights(1, MANY);
    save(&node, 1, Differential::Auto, &[part("w", &[MANY], &first)]);
    let manifest = node.root().manifest(1).unwrap();
    let extent = &manifest.content.tensors["w"].parts[0].bytes;
    let path = &manifest.content.files[extent.file as usize].path;
    let mut bytes = node.bytes(path);
    // Behind the frames that are looked at first, and in one of them.
    for byte in [extent.range[1] - 1, extent.range[0]] {
        bytes[byte as usize] ^= 1;
        node.put(path, &bytes);
        let step = 2 + u64::from(byte == extent.range[0]);
        // Each step has the damaged one as its parent.
        let second = some_weights(step, MANY);
        let state = save(&node, step, Differential::Auto, &[part("w", &[MANY], &second)]);
        assert_eq!((state.encoded_bytes, state.written_bytes), (0, state.bytes));
        check(&node, step, &second);
        if step == 2 {
            node.delete("steps/2/manifest-1.json");
        }
    }
}
