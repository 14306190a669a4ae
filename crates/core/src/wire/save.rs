//! Saving a step of a training run: what a client says, and what the node knows about it.
//!
//! A save is opened (`BeginSave`), filled file by file from staging buffers (`SaveFile`, `SaveObject`) and handed over (`StageSave`); from then on the
//! node goes on alone and is asked how far it is (`SaveStates`). The flow is docs/flows/checkpoint-save.md, what comes of it
//! docs/formats/checkpoint.md.

use serde::{Deserialize, Serialize};

use super::answer::Failure;
use super::bounded;
use super::request::{ObjectName, WrittenFrom};

/// Opens a save of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeginSave {
    /// Bucket, and the folder of the run without a slash at its end; may be empty.
    pub root: ObjectName,
    /// The step.
    pub step: u64,
    /// The attempt, the same on all ranks; `None` is for a world of one, and the node chooses.
    pub attempt: Option<String>,
    /// Whose save it is.
    pub rank: u32,
    /// Ranks that save together.
    pub world_size: u32,
    /// Whether an existing step is replaced by its next generation; else it is an error.
    pub supersede: bool,
    /// Where the bytes are when `StageSave` is answered.
    pub staged: StagedIn,
    /// Whether parts get a SHA-256 as well.
    pub sha256: bool,
    /// What happens when something looks wrong.
    pub alarms: AlarmPolicy,
    /// Whether parts that the parent has are referenced instead of written.
    pub reuse: bool,
    /// Whether parts that changed are stored as differences.
    pub differential: Differential,
    /// How long the save may take until it is durable, from now on.
    pub deadline_ms: u64,
    /// What the user wants to remember, a JSON object; of rank 0 only.
    pub metadata: String,
    /// How names make up the state again, a JSON text.
    pub tree: String,
}

/// Where staged bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StagedIn {
    /// In memory of the node: they survive the trainer, not the node.
    Ram,
    /// On disk of the node and synced: they survive the node and the host.
    Nvme,
}

/// Whether parts that the parent has with other bytes are stored as their difference from it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Differential {
    /// Never.
    #[default]
    Off,
    /// Where it saves enough.
    Auto,
}

/// What happens when something looks wrong at commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AlarmPolicy {
    /// It is kept in the manifest and logged.
    Warn,
    /// The save fails, nothing becomes visible.
    Refuse,
    /// Nobody looks.
    Off,
}

/// A full data file: its tensors lie one after the other in a staging buffer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveFile {
    /// The save.
    pub save: String,
    /// The bytes.
    pub from: WrittenFrom,
    /// What they are, in the order in which they lie there, without gaps.
    #[serde(deserialize_with = "bounded::items")]
    pub parts: Vec<SavePart>,
}

/// A part of a tensor on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavePart {
    /// Full name of the tensor.
    pub name: String,
    /// Type of its elements, safetensors' word.
    pub dtype: String,
    /// Shape of the whole tensor.
    #[serde(deserialize_with = "bounded::dimensions")]
    pub tensor_shape: Vec<u64>,
    /// Where the part begins in it.
    #[serde(deserialize_with = "bounded::dimensions")]
    pub offset: Vec<u64>,
    /// Shape of the part.
    #[serde(deserialize_with = "bounded::dimensions")]
    pub shape: Vec<u64>,
}

/// State that is not a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveObject {
    /// The save.
    pub save: String,
    /// Full name.
    pub name: String,
    /// `json`, `bytes` or `pickle`.
    pub kind: String,
    /// The bytes.
    pub from: WrittenFrom,
}

/// One rank's part in an exchange between all ranks of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gather {
    /// Names the exchange: the same on all ranks, another one each time.
    pub key: String,
    /// Who gives this.
    pub rank: u32,
    /// How many there are.
    pub size: u32,
    /// What it gives.
    pub payload: Vec<u8>,
    /// How long to wait for the others.
    pub timeout_ms: u32,
}

/// How far a save is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SavePhase {
    /// The client still fills it.
    Open,
    /// The node has everything and goes on alone.
    Staged,
    /// The step is committed.
    Durable,
    /// It has failed, or was given up; nothing of it is visible.
    Failed,
}

impl SavePhase {
    /// Its name in JSON and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Staged => "staged",
            Self::Durable => "durable",
            Self::Failed => "failed",
        }
    }

    /// Whether nothing will change any more.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Durable | Self::Failed)
    }
}

/// What the node knows about a save.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveState {
    /// Its name in this node: attempt and rank.
    pub id: String,
    /// Bucket and folder of the run.
    pub root: ObjectName,
    /// The step.
    pub step: u64,
    /// The attempt.
    pub attempt: String,
    /// Whose save it is.
    pub rank: u32,
    /// Ranks that save together.
    pub world_size: u32,
    /// How far it is.
    pub phase: SavePhase,
    /// Where the bytes are while they are not durable.
    pub staged: StagedIn,
    /// The generation of the commit; 0 before it.
    pub generation: u32,
    /// The step whose files may be reused, and its generation.
    pub parent: Option<(u64, u32)>,
    /// Bytes of tensors and objects that this rank saves.
    pub bytes: u64,
    /// Of these, bytes that were written to the lake.
    pub written_bytes: u64,
    /// Of these, bytes that the parent had already.
    pub reused_bytes: u64,
    /// Of these, bytes that are stored as differences from the parent …
    pub encoded_bytes: u64,
    /// … and what those take in the lake; among the written ones.
    pub encoded_stored_bytes: u64,
    /// Data files that were written.
    pub files: u32,
    /// Milliseconds since it was begun.
    pub age_ms: u64,
    /// Milliseconds from the beginning until it was staged.
    pub staged_ms: Option<u64>,
    /// Milliseconds from the beginning until it was over.
    pub ended_ms: Option<u64>,
    /// What looked wrong: kind, tensor, message.
    pub alarms: Vec<(String, String, String)>,
    /// Why it failed, or the last trouble with the lake while it is tried again.
    pub trouble: Option<Failure>,
}
