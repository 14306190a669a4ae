//! Request for a save, checked before anything is made for it.

use std::sync::Arc;

use forebay_checkpoint::manifest::Tree;
use forebay_checkpoint::names;
use forebay_core::{BucketName, Error, Kind, Result};
use forebay_engine::Engine;
use forebay_wire::saves::BeginSave;
use serde_json::{Map, Value};

use super::run_lake::RunLake;

/// Ranks that save together.
const WORLD_SIZE_MAX: u32 = 1 << 16;
/// Bytes of the metadata of a step.
const METADATA_BYTES_MAX: usize = 1 << 20;
/// Numbers in JSON are exact up to here.
const STEP_MAX: u64 = 1 << 53;

/// Process that fills a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// The process of the node itself, which dies with it.
    ThisProcess,
    /// Another process.
    OtherProcess,
}

/// A save that is to begin; its request was checked.
#[derive(Debug)]
pub struct NewSave {
    pub(crate) begin: BeginSave,
    pub(crate) lake: RunLake,
    pub(crate) attempt: String,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) tree: Tree,
    pub(crate) writer: Writer,
}

impl NewSave {
    /// Checks a request for a save below a bucket of this engine. `InvalidInput` says what is wrong with it.
    pub fn parse(engine: Arc<Engine>, bucket: BucketName, begin: BeginSave, writer: Writer) -> Result<Self> {
        let lake = RunLake::new(engine, bucket, &begin.root.key)?;
        check(&begin)?;
        Ok(Self {
            attempt: attempt_of(&begin)?,
            metadata: metadata(&begin.metadata)?,
            tree: Tree::parse(&begin.tree)?,
            lake,
            begin,
            writer,
        })
    }
}

fn check(begin: &BeginSave) -> Result<()> {
    let wrong = |message: &str| Err(Error::new(Kind::InvalidInput, message));
    if begin.rank >= begin.world_size || begin.world_size > WORLD_SIZE_MAX {
        return wrong("ranks count from zero and are at most 65536");
    }
    if begin.step > STEP_MAX {
        return wrong("a step is a number up to 2^53");
    }
    if begin.deadline_ms == 0 {
        return wrong("a save needs a deadline; give it some milliseconds");
    }
    Ok(())
}

fn metadata(text: &str) -> Result<Map<String, Value>> {
    let wrong = || {
        Error::new(
            Kind::InvalidInput,
            "the metadata of a step is a JSON object of at most 1 MiB",
        )
    };
    if text.len() > METADATA_BYTES_MAX {
        return Err(wrong());
    }
    serde_json::from_str(text).map_err(|why| wrong().caused_by(why))
}

/// The attempt of a save: that of the request, or a new one for a world of one.
fn attempt_of(begin: &BeginSave) -> Result<String> {
    let wrong = |message: &str| Err(Error::new(Kind::InvalidInput, message));
    match &begin.attempt {
        Some(attempt) if names::is_attempt(attempt) => Ok(attempt.clone()),
        Some(_) => wrong("the name of an attempt is a- and 16 hexadecimal digits"),
        None if begin.world_size == 1 => Ok(names::attempt(random()?)),
        None => wrong("ranks that save together need the same attempt; agree on one and name it"),
    }
}

fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            .map_err(|why| Error::io("the kernel gives no random bytes", why.into()))?;
    }
    Ok(u64::from_le_bytes(bytes))
}
