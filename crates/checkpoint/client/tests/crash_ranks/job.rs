//! A step that several ranks save, and what it has to be afterwards.

use forebay_checkpoint::{Dtype, TensorBox, names};
use forebay_checkpoint_client::Root;
use forebay_client::SavePhase;
use forebay_client::{ObjectKind, SaveOptions, StagedIn, TensorPart};
use forebay_core::Result;

use crate::fixture::pattern;
use crate::fixture::process::{LONG, ROOT, connect};

/// Bytes of a tensor that is the same in every step, large enough to be reused, and of one that is not.
const FROZEN_BYTES: u64 = 128 << 10;
const FRESH_BYTES: u64 = 40_000;

/// A step that several ranks save.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) step: u64,
    pub(crate) attempt: u64,
    pub(crate) staged: StagedIn,
    /// The socket of the node of each rank.
    pub(crate) sockets: Vec<String>,
}

impl Job {
    pub(crate) fn text(&self) -> String {
        let staged = u8::from(self.staged == StagedIn::Nvme);
        format!(
            "{};{};{staged};{}",
            self.step,
            self.attempt,
            self.sockets.join(";")
        )
    }

    pub(crate) fn parse(text: &str) -> Self {
        let mut words = text.split(';');
        let mut number = || words.next().unwrap().parse::<u64>().unwrap();
        let (step, attempt, staged) = (number(), number(), number());
        Self {
            step,
            attempt,
            staged: if staged == 1 {
                StagedIn::Nvme
            } else {
                StagedIn::Ram
            },
            sockets: words.map(str::to_owned).collect(),
        }
    }

    fn world_size(&self) -> u32 {
        self.sockets.len() as u32
    }

    /// Saves the shares of all ranks from this process.
    pub(crate) fn save_all(&self) -> Result<()> {
        std::thread::scope(|scope| {
            let ranks = (0..self.world_size()).map(|rank| scope.spawn(move || self.save(rank)));
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().try_for_each(|rank| rank.join().unwrap())
        })
    }

    /// Saves the share of a rank and says on the way how far it is.
    fn save(&self, rank: u32) -> Result<()> {
        let client = connect(self.sockets[rank as usize].clone())?;
        let save = client.begin_save(SaveOptions {
            attempt: Some(names::attempt(self.attempt)),
            rank,
            world_size: self.world_size(),
            staged: self.staged,
            deadline: LONG,
            ..SaveOptions::new(ROOT, self.step)
        })?;
        for (name, bytes) in tensors(self.step, rank) {
            let shape = [bytes.len() as u64];
            let part = TensorPart {
                name: &name,
                dtype: Dtype::U8,
                global_shape: &shape,
                at: TensorBox::whole(&shape),
                bytes: &bytes,
            };
            save.write(&[part], 1)?;
        }
        save.object(&format!("rng{rank}"), ObjectKind::Bytes, &self.step.to_le_bytes())?;
        let id = save.stage()?.id;
        eprintln!("staged {rank}");
        if client.wait_save(&id, LONG)?.phase == SavePhase::Durable {
            eprintln!("durable {rank}");
        }
        Ok(())
    }
}

pub(crate) fn tensors(step: u64, rank: u32) -> [(String, Vec<u8>); 2] {
    let seed = u64::from(rank) + 1;
    [
        (format!("fresh{rank}"), pattern(100 * step + seed, FRESH_BYTES)),
        (format!("frozen{rank}"), pattern(seed, FROZEN_BYTES)),
    ]
}

/// A step that is visible is whole, and is what was saved.
pub(crate) fn check(root: &Root, step: u64, world_size: u32) {
    let found = root.step(step).unwrap();
    let verified = found.verify(1, &|_| {}).unwrap();
    assert!(verified.is_ok(), "{verified:?}");
    for rank in 0..world_size {
        for (name, bytes) in tensors(step, rank) {
            assert_eq!(found.whole_tensor(&name, 1).unwrap(), bytes, "{name}");
        }
        let object = found.object(&format!("rng{rank}"), None).unwrap().1;
        assert_eq!(object, step.to_le_bytes());
    }
}
