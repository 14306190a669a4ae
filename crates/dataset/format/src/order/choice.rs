//! Choice of the next source in a mix: random, yet in exact proportion at every moment, and a pure function
//! of the position.
//!
//! Drawing at random would be off by the square root of the number of draws, and rounds of a fixed pattern
//! would always give the same rank the same source. Instead, for two sources: cut the positions into strata
//! of `total / light` each, where `light` is the smaller weight, and give the lighter source one position in
//! each stratum, at a place chosen by the key. So after `t` positions it has had `t x light / total` of them,
//! rounded down or up, and no pattern repeats. More sources form a binary tree of such choices: with `k` of
//! them, the count of each is off by less than `log2(k) + 1`. Everything has a closed form, in both
//! directions: which source at a position, how many of a source before it, and where the n-th of a source is.

use super::key::{Key, Purpose};

/// The tree of choices.
#[derive(Debug, Clone)]
pub(super) struct Choice {
    nodes: Vec<Node>,
    root: Branch,
    /// Path from the root to each source: the nodes, and whether the source is on the light side.
    paths: Vec<Vec<(usize, Side)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Light,
    Heavy,
}

#[derive(Debug, Clone, Copy)]
enum Branch {
    Node(usize),
    Source(usize),
}

/// A choice between two branches.
#[derive(Debug, Clone)]
struct Node {
    key: Key,
    light: u128,
    heavy: u128,
    light_branch: Branch,
    heavy_branch: Branch,
}

impl Choice {
    /// Weights are at least 1 and their sum is below 2^62; there is at least one.
    pub(super) fn new(seed: u64, weights: &[u64]) -> Self {
        let key = Key::new(seed).derive(Purpose::Mix, 0);
        let mut choice = Self {
            nodes: Vec::new(),
            root: Branch::Source(0),
            paths: vec![Vec::new(); weights.len()],
        };
        choice.root = choice.grow(key, weights, 0);
        for source in 0..weights.len() {
            choice.paths[source].reverse();
        }
        choice
    }

    /// Makes the branch for these weights, which belong to the sources from `first` on.
    fn grow(&mut self, key: Key, weights: &[u64], first: usize) -> Branch {
        if weights.len() == 1 {
            return Branch::Source(first);
        }
        let (low, high) = weights.split_at(weights.len() / 2);
        let middle = first + low.len();
        let branches = (self.grow(key, low, first), self.grow(key, high, middle));
        let sum = |weights: &[u64]| weights.iter().map(|weight| u128::from(*weight)).sum::<u128>();
        let (low_sum, high_sum) = (sum(low), sum(high));
        let low_side = if low_sum <= high_sum {
            Side::Light
        } else {
            Side::Heavy
        };
        let high_side = if low_side == Side::Light {
            Side::Heavy
        } else {
            Side::Light
        };
        let number = self.nodes.len();
        for source in first..first + weights.len() {
            self.paths[source].push((number, if source < middle { low_side } else { high_side }));
        }
        let low_is_light = low_side == Side::Light;
        self.nodes.push(Node {
            key: key.derive(Purpose::Mix, number as u64),
            light: low_sum.min(high_sum),
            heavy: low_sum.max(high_sum),
            light_branch: if low_is_light { branches.0 } else { branches.1 },
            heavy_branch: if low_is_light { branches.1 } else { branches.0 },
        });
        Branch::Node(number)
    }

    /// The source at a position, and how many times it came before.
    pub(super) fn at(&self, mut position: u64) -> (usize, u64) {
        let mut branch = self.root;
        loop {
            match branch {
                Branch::Source(source) => return (source, position),
                Branch::Node(number) => {
                    let node = &self.nodes[number];
                    let (before, here) = node.light_before(position);
                    (position, branch) = match here {
                        Side::Light => (before, node.light_branch),
                        Side::Heavy => (position - before, node.heavy_branch),
                    };
                }
            }
        }
    }

    /// Returns how many times a source comes before a position.
    pub(super) fn count(&self, source: usize, position: u64) -> u64 {
        self.paths[source]
            .iter()
            .fold(position, |position, (number, side)| {
                let before = self.nodes[*number].light_before(position).0;
                if *side == Side::Light {
                    before
                } else {
                    position - before
                }
            })
    }

    /// The position where a source comes for the `number`-th time, from 0; `u64::MAX` if that is too far
    /// away.
    pub(super) fn position(&self, source: usize, number: u64) -> u64 {
        self.paths[source]
            .iter()
            .rev()
            .fold(number, |number, (node, side)| {
                let node = &self.nodes[*node];
                let position = match side {
                    Side::Light => node.light_place(u128::from(number)),
                    Side::Heavy => node.heavy_place(u128::from(number)),
                };
                u64::try_from(position).unwrap_or(u64::MAX)
            })
    }
}

impl Node {
    /// Returns where a stratum starts.
    fn start(&self, stratum: u128) -> u128 {
        (stratum * (self.light + self.heavy)).div_ceil(self.light)
    }

    /// The place of the light branch in a stratum, which has at least two places.
    fn light_place(&self, stratum: u128) -> u128 {
        let (start, end) = (self.start(stratum), self.start(stratum + 1));
        start + u128::from(self.key.below(stratum as u64, (end - start) as u64))
    }

    /// The place where the heavy branch comes for the `number`-th time.
    fn heavy_place(&self, number: u128) -> u128 {
        let stratum = number * self.light / self.heavy;
        let before = (stratum * self.heavy).div_ceil(self.light);
        let place = self.start(stratum) + (number - before);
        if place >= self.light_place(stratum) {
            place + 1
        } else {
            place
        }
    }

    /// Returns how often the light branch comes before a position, and which branch comes there.
    fn light_before(&self, position: u64) -> (u64, Side) {
        let position = u128::from(position);
        let stratum = position * self.light / (self.light + self.heavy);
        let place = self.light_place(stratum);
        let before = stratum + u128::from(place < position);
        (
            before as u64,
            if place == position {
                Side::Light
            } else {
                Side::Heavy
            },
        )
    }
}
