//! Saving a step of a training run: what the caller says, and the handle of a save that is being filled.
//!
//! Life cycle: [`Client::begin_save`] → [`Save::write`] and [`Save::object`], as often as needed and from
//! several threads → [`Save::stage`], from which on the node goes on alone, or a drop, which gives the save
//! up. What became of it is asked by [`Client::save_state`] and [`Client::wait_save`]. Only a node on this
//! host can save: the bytes are handed over in shared memory.

use std::fmt;
use std::time::Duration;

use forebay_checkpoint::manifest::ObjectKind;
use forebay_checkpoint::{Dtype, TensorBox};
use forebay_core::{BucketName, Error, Kind, ObjectKey, Result};
use forebay_wire::ObjectName;
use forebay_wire::saves::{AlarmPolicy, Differential, SaveState, StagedIn};

use crate::Client;
use crate::local::LocalSave;

/// Options of a save.
#[derive(Debug, Clone)]
pub struct SaveOptions {
    /// The run: `bucket/folder` or `forebay://bucket/folder`.
    pub root: String,
    /// The step.
    pub step: u64,
    /// The attempt, agreed on by all ranks ([`forebay_checkpoint::names::attempt`]); `None` is for a world of
    /// one.
    pub attempt: Option<String>,
    /// Whose save this is.
    pub rank: u32,
    /// Ranks that save together.
    pub world_size: u32,
    /// Replaces an existing step by its next generation; else it is `AlreadyExists`.
    pub supersede: bool,
    /// Tier that has the bytes when [`Save::stage`] returns.
    pub staged: StagedIn,
    /// Gives parts a SHA-256 as well.
    pub digest_sha256: bool,
    /// Reaction to data that looks wrong.
    pub alarms: AlarmPolicy,
    /// References parts that the parent has instead of writing them.
    pub reuse: bool,
    /// Stores parts that the parent has with other bytes as differences, where that saves enough.
    pub differential: Differential,
    /// Time that the save may take until it is durable. [`Save::write`] waits no longer for memory, either.
    pub deadline: Duration,
    /// User metadata of the step: a JSON object. That of rank 0 counts.
    pub metadata: String,
    /// Structure of the state over the names: a JSON text.
    pub tree: String,
}

impl SaveOptions {
    /// A save of a world of one, as most want it.
    #[must_use]
    pub fn new(root: &str, step: u64) -> Self {
        Self {
            root: root.to_owned(),
            step,
            attempt: None,
            rank: 0,
            world_size: 1,
            supersede: false,
            staged: StagedIn::Ram,
            digest_sha256: false,
            alarms: AlarmPolicy::Warn,
            reuse: true,
            differential: Differential::Off,
            deadline: Duration::from_secs(1800),
            metadata: "{}".to_owned(),
            tree: "null".to_owned(),
        }
    }

    /// The root in the words of the protocol.
    pub(crate) fn root_name(&self) -> Result<ObjectName> {
        root_name(&self.root)
    }
}

/// A root as people write it.
pub(crate) fn root_name(root: &str) -> Result<ObjectName> {
    let plain = root.strip_prefix("forebay://").unwrap_or(root);
    let (bucket, folder) = plain.split_once('/').unwrap_or((plain, ""));
    BucketName::new(bucket).map_err(|error| error.with("root", root))?;
    let folder = folder.trim_end_matches('/');
    if !folder.is_empty() {
        ObjectKey::new(folder).map_err(|error| error.with("root", root))?;
    }
    Ok(ObjectName {
        bucket: bucket.to_owned(),
        key: folder.to_owned(),
    })
}

/// A box of a tensor in memory of the caller.
#[derive(Debug, Clone)]
pub struct TensorPart<'a> {
    /// Full name of the tensor.
    pub name: &'a str,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Shape of the whole tensor.
    pub global_shape: &'a [u64],
    /// Box of it that this is.
    pub at: TensorBox,
    /// Its elements, in C order.
    pub bytes: &'a [u8],
}

impl TensorPart<'_> {
    pub(crate) fn check(&self) -> Result<()> {
        let about = |error: Error| error.with("tensor", self.name);
        forebay_checkpoint::safetensors::check_name(self.name)?;
        self.at.check_within(self.global_shape).map_err(about)?;
        let bytes = self.at.elements().map_err(about)?.checked_mul(self.dtype.bytes());
        if bytes == Some(self.bytes.len() as u64) {
            return Ok(());
        }
        let message = "the memory of a tensor has another size than its shape and type say";
        Err(about(Error::new(Kind::InvalidInput, message))
            .with("bytes", self.bytes.len())
            .with("shape", format!("{:?}", self.at.shape))
            .with("dtype", self.dtype))
    }
}

/// A save that is being filled. Dropping it gives it up.
pub struct Save(pub(crate) LocalSave);

impl Save {
    /// Its name in the node.
    #[must_use]
    pub fn id(&self) -> &str {
        self.0.id()
    }

    /// The attempt.
    #[must_use]
    pub fn attempt(&self) -> &str {
        self.0.attempt()
    }

    /// Bytes of one data file, at most.
    #[must_use]
    pub fn file_bytes_max(&self) -> u64 {
        self.0.file_bytes_max()
    }

    /// Copies tensors into memory of the node with so many threads, file by file, and hands over each file
    /// when it is full. Waits while the node's memory is full. When this returns, the memory of the caller is
    /// not needed any more.
    pub fn write(&self, parts: &[TensorPart<'_>], threads: usize) -> Result<()> {
        self.0.write(parts, threads)
    }

    /// Adds state that is not a tensor.
    pub fn object(&self, name: &str, kind: ObjectKind, bytes: &[u8]) -> Result<()> {
        self.0.object(name, kind, bytes)
    }

    /// Hands the save over; from here on the node goes on alone.
    pub fn stage(self) -> Result<StagedSave> {
        self.0.stage()
    }

    /// Gives it up and waits until the node knows.
    pub fn abort(self) -> Result<()> {
        self.0.abort()
    }
}

impl fmt::Debug for Save {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Save")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

/// A save that was handed over.
#[derive(Debug, Clone)]
pub struct StagedSave {
    /// Its name in the node.
    pub id: String,
    /// The attempt.
    pub attempt: String,
    /// From `begin_save` until it was staged.
    pub stall: Duration,
    /// Of this, copying.
    pub copying: Duration,
    /// Of this, waiting for memory of the node.
    pub waiting: Duration,
    /// Bytes that were copied into memory of the node, once.
    pub copied_bytes: u64,
    /// State that the node reports, with the failures that the save survives.
    pub state: SaveState,
}

impl Client {
    /// Opens a save. `AlreadyExists` if the step is committed and not to be superseded, `Busy` while an older
    /// save is overdue.
    pub fn begin_save(&self, options: SaveOptions) -> Result<Save> {
        self.local_for_saves()?.begin_save(options).map(Save)
    }

    /// Returns how far a save is. `NotFound` if the node does not know it (any more).
    pub fn save_state(&self, id: &str) -> Result<SaveState> {
        self.local_for_saves()?.save_state(id)
    }

    /// Waits until a save is durable or has failed, which its state says; `Timeout` if it is neither by then.
    pub fn wait_save(&self, id: &str, timeout: Duration) -> Result<SaveState> {
        self.local_for_saves()?.wait_save(id, timeout)
    }

    /// The saves of a run that the node knows, oldest first.
    pub fn saves(&self, root: &str) -> Result<Vec<SaveState>> {
        let root = root_name(root)?;
        let mut states = self.local_for_saves()?.saves()?;
        states.retain(|state| state.root == root);
        Ok(states)
    }

    /// Gives a save up, also one that was staged; fine if it has ended already. Nothing of it becomes
    /// visible, unless it was committed before.
    pub fn abort_save(&self, id: &str) -> Result<()> {
        self.local_for_saves()?.abort_save(id)
    }

    /// All-gather between the ranks of this host: gives `payload`, returns what each rank gave.
    /// `key` names the all-gather and is new each time. `Timeout` names the ranks that did not come.
    pub fn all_gather(
        &self,
        key: &str,
        rank: u32,
        size: u32,
        payload: Vec<u8>,
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>> {
        self.local_for_saves()?
            .all_gather(key, rank, size, payload, timeout)
    }
}
