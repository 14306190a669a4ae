//! The family of saves: checkpoints on their way from a trainer through staging memory to the lake.
//!
//! A save is opened (`BeginSave`), filled file by file from staging buffers (`SaveFile`, `SaveObject`) and
//! handed over (`StageSave`); from then on the node goes on alone and is asked how far it is (`SaveStates`).
//! The flow is docs/flows/checkpoint-save.md, what comes of it docs/formats/checkpoint.md.

use serde::{Deserialize, Serialize};

use crate::writes::StagedBytes;
use crate::{Failure, FamilyId, Message, ObjectName, bounded};

/// The family of saves.
pub const FAMILY: FamilyId = FamilyId {
    number: 4,
    version: 1,
    name: "saves",
};

/// A request of the family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Opens a save of a step.
    BeginSave(BeginSave),
    /// Gives a data file of a save.
    SaveFile(SaveFile),
    /// Gives an object of a save.
    SaveObject(SaveObject),
    /// Everything is there: from here on the node goes on without the client.
    StageSave {
        /// Name of the save.
        save: String,
    },
    /// Asks for the states of saves.
    SaveStates {
        /// This one; else all that the user may see.
        save: Option<String>,
        /// Waits so long for the end of the named one; 0 answers at once.
        wait_ms: u32,
    },
    /// Gives a save up; fine if it has ended already.
    AbortSave {
        /// Name of the save.
        save: String,
    },
}

/// An answer of the family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// To everything that has nothing to say but that it is done.
    Done,
    /// To `BeginSave`.
    Saving {
        /// Its name, for everything that follows.
        save: String,
        /// The attempt.
        attempt: String,
        /// Bytes of one data file, at most.
        file_bytes_max: u64,
    },
    /// To `StageSave` and `SaveStates`.
    Saves(Vec<SaveState>),
}

impl Message for Request {
    const FAMILY: FamilyId = FAMILY;
}

impl Message for Answer {
    const FAMILY: FamilyId = FAMILY;
}

impl crate::Request for Request {
    type Answer = Answer;
    const KINDS: &'static [&'static str] = &[
        "begin_save",
        "save_file",
        "save_object",
        "stage_save",
        "save_states",
        "abort_save",
    ];
}

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
    /// True if an existing step is replaced by its next generation; else it is an error.
    pub supersede: bool,
    /// Tier of the bytes when `StageSave` is answered.
    pub staged: StagedIn,
    /// True if parts get a SHA-256 as well.
    pub sha256: bool,
    /// Policy for what looks wrong.
    pub alarms: AlarmPolicy,
    /// True if parts that the parent has are referenced instead of written.
    pub reuse: bool,
    /// Policy for parts that changed.
    pub differential: Differential,
    /// Longest time until it is durable, from now on.
    pub deadline_ms: u64,
    /// The user's metadata, a JSON object; of rank 0 only.
    pub metadata: String,
    /// Tree that makes the state of names again, a JSON text.
    pub tree: String,
}

/// Tier of staged bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StagedIn {
    /// In memory of the node: they survive the trainer, not the node.
    Ram,
    /// On disk of the node and synced: they survive the node and the host.
    Nvme,
}

/// Failures that a save survives, as the node that holds it says. Each survives more than the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Survives {
    /// None: it is not staged, has failed, or lies in memory of the very process that saved.
    Nothing,
    /// Death of the process that saved: the node has the bytes in memory.
    Writer,
    /// Death of the node and power loss of the host as well: the bytes are synced to its disk.
    Node,
    /// Loss of all hosts: the step is in the lake.
    Everything,
}

impl Survives {
    /// Its name in Python and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Writer => "trainer",
            Self::Node => "node",
            Self::Everything => "everything",
        }
    }
}

/// Policy for parts that the parent has with other bytes: stored as their difference from it, or not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Differential {
    /// Never.
    #[default]
    Off,
    /// If it saves enough.
    Auto,
}

/// Policy for what looks wrong at commit.
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
    pub from: StagedBytes,
    /// The parts, in the order in which they lie there, without gaps.
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
    /// Offset of the part in it.
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
    pub from: StagedBytes,
}

/// Phase of a save.
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

    /// Returns whether nothing will change any more.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Durable | Self::Failed)
    }
}

/// State of a save in the node.
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
    /// Its phase.
    pub phase: SavePhase,
    /// Tier of the bytes while they are not durable.
    pub staged: StagedIn,
    /// Failures that it survives now.
    pub survives: Survives,
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
    /// Things that looked wrong: kind, tensor, message.
    pub alarms: Vec<(String, String, String)>,
    /// Why it failed, or the last error of the lake while it is tried again.
    pub last_error: Option<Failure>,
}
