//! The step that a save builds on: parts that it has already are referenced instead of written, and what
//! changed oddly since raises an alarm.
//!
//! A parent is chosen before the lease is written and looked at after it: whoever prunes removes manifests
//! first and looks for leases then, so one of the two sees the other (`forebay_checkpoint::attempt_lease`).
//! If it is gone by then, the save does without.
//!
//! Only parts of some size are reused: a part keeps the whole file in which it lies from being collected.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use forebay_checkpoint::manifest::{Alarm, AlarmKind, Content, Extent, Manifest, Part, StepRef};
use forebay_checkpoint::table::Table;
use forebay_checkpoint::{Dtype, TensorBox, names};
use forebay_core::{Error, Kind, Result};
use forebay_wire::saves::{AlarmPolicy, Differential};

use super::file::{WrittenFile, WrittenPart};
use super::run_lake::RunLake;
use super::{Save, documents};

/// Smaller parts are written again.
const REUSED_BYTES_MIN: u64 = 64 << 10;
/// Alarms of one rank that are kept.
const ALARMS_MAX: usize = 256;

/// A committed step, ready to be compared with.
#[derive(Debug)]
pub(super) struct Parent {
    manifest: Manifest,
    /// Tensor and number of a part, by digest.
    by_digest: HashMap<String, (String, usize)>,
    /// Its side tables, as far as they were needed.
    tables: tokio::sync::Mutex<HashMap<u32, Arc<Table>>>,
}

impl Parent {
    fn new(manifest: Manifest) -> Self {
        let mut by_digest = HashMap::new();
        for (name, tensor) in &manifest.content.tensors {
            for (number, part) in tensor.parts.iter().enumerate() {
                if part.bytes.bytes() >= REUSED_BYTES_MIN {
                    by_digest.insert(part.bytes.blake3.clone(), (name.clone(), number));
                }
            }
        }
        Self {
            manifest,
            by_digest,
            tables: tokio::sync::Mutex::default(),
        }
    }

    /// Returns which step it is.
    pub(super) fn step(&self) -> StepRef {
        StepRef {
            step: self.manifest.step,
            generation: self.manifest.generation,
        }
    }

    fn content(&self) -> &Content {
        &self.manifest.content
    }

    /// A part with these very bytes.
    pub(super) fn with_digest(&self, blake3: &str, bytes: u64) -> Option<&Part> {
        let (name, number) = self.by_digest.get(blake3)?;
        let part = self.content().tensors.get(name)?.parts.get(*number)?;
        (part.bytes.bytes() == bytes).then_some(part)
    }

    /// The same box of the same tensor.
    fn part_at(&self, name: &str, at: &TensorBox) -> Option<&Part> {
        let tensor = self.content().tensors.get(name)?;
        tensor.parts.iter().find(|part| part.at == *at)
    }

    /// Returns what a part of this tensor can be stored as the difference from.
    pub(super) fn base_of(&self, name: &str, dtype: Dtype, at: &TensorBox) -> Option<&Extent> {
        let tensor = self.content().tensors.get(name)?;
        let part = self.part_at(name, at).filter(|_| tensor.dtype == dtype)?;
        Some(&part.bytes)
    }

    /// The path of a file by its index.
    pub(super) fn path(&self, file: u32) -> &str {
        let found = self.content().files.get(file as usize);
        found.map_or("", |file| file.path.as_str())
    }

    /// Files and side tables that it needs.
    pub(super) fn paths(&self) -> HashSet<&str> {
        let files = self.content().files.iter().map(|file| file.path.as_str());
        let tables = self.content().tables.iter().map(|table| table.path.as_str());
        files.chain(tables).collect()
    }

    /// A side table, proved by its digest; read the first time.
    pub(super) async fn table(&self, lake: &RunLake, index: u32) -> Result<Arc<Table>> {
        // Held while it is read, so that it is read once.
        let mut tables = self.tables.lock().await;
        if let Some(known) = tables.get(&index) {
            return Ok(Arc::clone(known));
        }
        let damaged = || Error::new(Kind::Corrupt, "a side table of the parent is damaged or missing");
        let file = self.content().tables.get(index as usize).ok_or_else(damaged)?;
        let bytes = lake.read(&file.path).await?;
        let is_right = |bytes: &Vec<u8>| blake3::hash(bytes).to_hex().as_str() == file.blake3;
        let bytes = bytes
            .filter(is_right)
            .ok_or_else(|| damaged().with("file", &file.path))?;
        let table = Arc::new(Table::decode(&bytes)?);
        tables.insert(index, Arc::clone(&table));
        Ok(table)
    }

    /// An extent of it with the indexes of another document, which lists what it points to.
    pub(super) fn borrow(
        &self,
        extent: &Extent,
        content: &mut Content,
        indexes: &mut DocumentIndexes,
    ) -> Extent {
        let known = self.content();
        extent.mapped(
            &mut |file| {
                let file = &known.files[file as usize];
                index_of(&mut content.files, &mut indexes.files, &file.path, file)
            },
            &mut |table| {
                let table = &known.tables[table as usize];
                index_of(&mut content.tables, &mut indexes.tables, &table.path, table)
            },
        )
    }
}

/// Indexes of files and tables of the parent in a document in the making.
#[derive(Debug, Default)]
pub(super) struct DocumentIndexes {
    files: HashMap<String, u32>,
    tables: HashMap<String, u32>,
}

fn index_of<T: Clone>(list: &mut Vec<T>, indexes: &mut HashMap<String, u32>, path: &str, one: &T) -> u32 {
    let next = u32::try_from(list.len()).unwrap_or(u32::MAX);
    *indexes.entry(path.to_owned()).or_insert_with(|| {
        list.push(one.clone());
        next
    })
}

/// Returns whether anything of a save depends on the step before.
fn needs_parent(save: &Save) -> bool {
    let begin = &save.begin;
    begin.reuse || begin.differential != Differential::Off || begin.alarms != AlarmPolicy::Off
}

/// The step that this save should build on, before its lease is written.
pub(super) async fn choose(save: &Save) -> Result<Option<StepRef>> {
    if !needs_parent(save) {
        return Ok(None);
    }
    save.persist("look for the latest step", || save.lake.latest())
        .await
}

/// The parent that the lease names, if it is still there and can be read.
pub(super) async fn find(save: &Save, named: Option<StepRef>) -> Result<Option<Arc<Parent>>> {
    let Some(named) = named else { return Ok(None) };
    if !needs_parent(save) {
        return Ok(None);
    }
    let path = names::manifest(named.step, named.generation);
    let found = save.persist("read the parent", || save.lake.read(&path)).await?;
    let Some(bytes) = found else { return Ok(None) };
    match documents::heavy(move || Manifest::decode_tensors(&bytes).map(Parent::new)).await {
        Ok(parent) => Ok(Some(Arc::new(parent))),
        Err(error) => {
            // Nothing of it is reused, so a damaged parent costs space and not the save.
            tracing::warn!(save = save.id, manifest = path, %error, "the parent of a step cannot be read; saving without it");
            Ok(None)
        }
    }
}

/// Returns what looks wrong with what a rank saves.
pub(super) fn alarms(save: &Save, parent: Option<&Parent>, files: &[WrittenFile]) -> Result<Vec<Alarm>> {
    if save.begin.alarms == AlarmPolicy::Off {
        return Ok(Vec::new());
    }
    let mut alarms = Vec::new();
    let (mut is_anything_there, mut is_anything_new) = (false, false);
    for part in files.iter().flat_map(|file| &file.parts) {
        let before = parent.and_then(|parent| parent.part_at(&part.name, &part.at));
        let is_same = before.is_some_and(|before| before.bytes.blake3 == part.digests.blake3);
        is_anything_there |= part.bytes() > 0;
        is_anything_new |= part.bytes() > 0 && !is_same;
        if !is_same && alarms.len() < ALARMS_MAX {
            alarms.extend(alarm(part, before.is_some()));
        }
    }
    let went_on = parent.filter(|parent| parent.step().step < save.begin.step);
    if let Some(parent) = went_on.filter(|_| is_anything_there && !is_anything_new) {
        let message = format!(
            "every tensor of rank {} is what it was in step {}: an old copy of the state may have been saved",
            save.begin.rank,
            parent.step().step
        );
        alarms.push(Alarm {
            kind: AlarmKind::Stale,
            name: String::new(),
            message,
        });
    }
    if let (AlarmPolicy::Refuse, Some(first)) = (save.begin.alarms, alarms.first()) {
        let message = format!(
            "the step was refused, because its state looks wrong: {}",
            first.message
        );
        return Err(Error::new(Kind::PreconditionFailed, message)
            .with("tensor", &first.name)
            .with("alarms", alarms.len()));
    }
    Ok(alarms)
}

fn alarm(part: &WrittenPart, was_there: bool) -> Option<Alarm> {
    let at = || format!("{} at {:?}", part.name, part.at.offset);
    let (kind, message) = if was_there && part.digests.is_zero {
        (
            AlarmKind::Zeroed,
            format!("{} is all zeros, and was not in the parent", at()),
        )
    } else if part.digests.not_finite > 0 {
        let elements = part.bytes() / part.dtype.bytes();
        let count = part.digests.not_finite;
        (
            AlarmKind::NotFinite,
            format!("{} has {count} NaN or infinite values of {elements}", at()),
        )
    } else {
        return None;
    };
    Some(Alarm {
        kind,
        name: part.name.clone(),
        message,
    })
}
