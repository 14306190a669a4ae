//! Script of a crash: who dies where, and what happens before they come back.

use forebay_client::StagedIn;

use crate::fixture::process::all_points;

/// Later than any lease.
pub(crate) const LATER_MS: u64 = 4_000_000_000_000;
/// Those that one comes to which goes on after a restart and finds that its parent is gone.
pub(crate) const AGAIN: [&str; 6] = [
    "before-lease",
    "before-withdrawal",
    "after-withdrawal",
    "before-file",
    "before-record",
    "before-commit",
];

/// Numbers that look random and come again with their seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((word ^ (word >> 31)) % bound as u64) as usize
    }

    fn is_one_of(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// Fate of the save of step 2.
#[derive(Debug, Clone)]
pub(crate) struct Story {
    /// The node of each rank; 0 has rank 0.
    pub(crate) nodes: Vec<usize>,
    pub(crate) staged: StagedIn,
    /// The victim, the point where it dies, and at which pass of that point.
    pub(crate) victim: usize,
    pub(crate) label: &'static str,
    pub(crate) hits: usize,
    /// Processes that go with it.
    pub(crate) trainer_dies: bool,
    pub(crate) others_die: bool,
    /// Step 1 is pruned while all nodes are dead and leases are over, and what was not committed is collected
    /// too if it is this old.
    pub(crate) pruned: Option<u64>,
    /// Point where the second incarnation of the victim dies.
    pub(crate) again: Option<&'static str>,
}

impl Story {
    pub(crate) fn plain(nodes: &[usize], victim: usize, label: &'static str) -> Self {
        Self {
            nodes: nodes.to_vec(),
            staged: StagedIn::Nvme,
            victim,
            label,
            hits: 1,
            trainer_dies: false,
            others_die: false,
            pruned: None,
            again: None,
        }
    }

    pub(crate) fn by_seed(seed: u64) -> Self {
        let mut random = Random(seed);
        let points: Vec<_> = all_points().collect();
        let mut nodes = vec![0];
        for _ in 0..=random.below(3) {
            nodes.push(random.below(2));
        }
        let count = nodes.iter().max().unwrap() + 1;
        let others_die = random.is_one_of(2);
        let victim = random.below(count);
        Self {
            staged: if random.is_one_of(5) {
                StagedIn::Ram
            } else {
                StagedIn::Nvme
            },
            victim,
            label: points[random.below(points.len())],
            hits: 1 + random.below(3),
            trainer_dies: random.is_one_of(2),
            pruned: match random.below(4) {
                age @ (0 | 1) if others_die || count == 1 => Some(age as u64 * LATER_MS),
                _ => None,
            },
            others_die,
            again: random.is_one_of(2).then(|| AGAIN[random.below(AGAIN.len())]),
            nodes,
        }
    }

    pub(crate) fn world_size(&self) -> u32 {
        self.nodes.len() as u32
    }

    pub(crate) fn node_count(&self) -> usize {
        self.nodes.iter().max().map_or(0, |highest| highest + 1)
    }
}
