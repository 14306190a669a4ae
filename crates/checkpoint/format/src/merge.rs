//! Records of all ranks become what a manifest says: nothing missing, nothing twice.
//!
//! Pure. Records count files and tables from zero each; here every path is listed once and everything that
//! points to it is counted anew. A box that several ranks saved with the same bytes is named once (the lowest
//! rank's copy); with other bytes it is an error that names both ranks, because nobody can know which of them
//! is right. Whether parts cover their tensors is checked by [`crate::Manifest::encode`].

use std::collections::{BTreeSet, HashMap};

use forebay_core::{Error, Kind, Result, missing_ranks};
use serde_json::Value;

use crate::TensorBox;
use crate::manifest::{Content, Extent, Object, Record, Tensor, Tree};

/// Facts that all records must agree on.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    /// The step.
    pub step: u64,
    /// The attempt.
    pub name: &'a str,
    /// Ranks that save together.
    pub world_size: u32,
}

/// Merges the records of an attempt, one for each rank, in any order.
pub fn merge(attempt: Attempt<'_>, mut records: Vec<Record>) -> Result<Content> {
    records.sort_by_key(|record| record.rank);
    check_all_there(attempt, &records)?;
    let mut merged = Merged::default();
    for record in records {
        let rank = record.rank;
        merged.add(record).map_err(|error| error.with("rank", rank))?;
    }
    merged.content.tree = merged_tree(merged.trees)?;
    Ok(merged.content)
}

fn check_all_there(attempt: Attempt<'_>, records: &[Record]) -> Result<()> {
    for record in records {
        let is_of = (record.step, record.attempt.as_str(), record.world_size)
            == (attempt.step, attempt.name, attempt.world_size);
        if !is_of {
            let message =
                "a record is of another step, attempt or size of the world; give all ranks the same";
            return Err(Error::new(Kind::Conflict, message)
                .with("rank", record.rank)
                .with("step", record.step)
                .with("attempt", &record.attempt)
                .with("world_size", record.world_size));
        }
    }
    let there: BTreeSet<u32> = records.iter().map(|record| record.rank).collect();
    let is_foreign = there.last().is_some_and(|rank| *rank >= attempt.world_size);
    if there.len() != records.len() || is_foreign {
        return Err(Error::new(
            Kind::Corrupt,
            "a rank has two records, or there are more ranks than the world has",
        ));
    }
    if there.len() < attempt.world_size as usize {
        let message = "ranks are missing; nothing was committed";
        return Err(
            Error::new(Kind::Timeout, message).with("ranks", missing_ranks(attempt.world_size, &there))
        );
    }
    Ok(())
}

#[derive(Default)]
struct Merged {
    content: Content,
    /// Index of each path.
    files: HashMap<String, u32>,
    tables: HashMap<String, u32>,
    /// Rank and digest of each box of each tensor.
    boxes: HashMap<(String, TensorBox), (u32, String)>,
    /// Trees of the ranks, lowest rank first.
    trees: Vec<Tree>,
}

impl Merged {
    fn add(&mut self, record: Record) -> Result<()> {
        let rank = record.rank;
        let Content {
            files,
            tables,
            tensors,
            objects,
            tree,
            metadata,
            alarms,
        } = record.content;
        let mut indexes = ManifestIndexes::default();
        for file in files {
            let path = file.path.clone();
            indexes
                .files
                .push(index_of(&mut self.files, &mut self.content.files, path, file)?);
        }
        for table in tables {
            let path = table.path.clone();
            indexes
                .tables
                .push(index_of(&mut self.tables, &mut self.content.tables, path, table)?);
        }
        for (name, tensor) in tensors {
            self.add_tensor(rank, &name, tensor, &indexes)
                .map_err(|error| error.with("tensor", &name))?;
        }
        for (name, found) in objects {
            let known = self.content.objects.entry(name).or_default();
            for object in found {
                add_object(known, object, &indexes)?;
            }
        }
        if rank == 0 {
            self.content.metadata = metadata;
        }
        if self.trees.last() != Some(&tree) {
            self.trees.push(tree);
        }
        self.content.alarms.extend(alarms);
        Ok(())
    }

    fn add_tensor(&mut self, rank: u32, name: &str, tensor: Tensor, indexes: &ManifestIndexes) -> Result<()> {
        let known = self
            .content
            .tensors
            .entry(name.to_owned())
            .or_insert_with(|| Tensor {
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                parts: Vec::new(),
            });
        if (known.dtype, &known.shape) != (tensor.dtype, &tensor.shape) {
            let message = "ranks saved a tensor with different types or shapes; give each its own name";
            return Err(Error::new(Kind::InvalidInput, message)
                .with("shape", format!("{:?}", tensor.shape))
                .with("other_shape", format!("{:?}", known.shape)));
        }
        for mut part in tensor.parts {
            let key = (name.to_owned(), part.at.clone());
            if let Some((other, digest)) = self.boxes.get(&key) {
                if *digest == part.bytes.blake3 {
                    continue;
                }
                let message =
                    "two ranks saved the same part of a tensor with different bytes; they should be replicas";
                return Err(Error::new(Kind::InvalidInput, message).with("other_rank", other));
            }
            self.boxes.insert(key, (rank, part.bytes.blake3.clone()));
            indexes.translate(&mut part.bytes)?;
            known.parts.push(part);
        }
        Ok(())
    }
}

/// Indexes in the manifest of files and tables of one record.
#[derive(Default)]
struct ManifestIndexes {
    files: Vec<u32>,
    tables: Vec<u32>,
}

impl ManifestIndexes {
    /// Counts anew, also in what an encoded part differs from; decoding has seen to it that the chain is
    /// short.
    fn translate(&self, extent: &mut Extent) -> Result<()> {
        let file = self.files.get(extent.file as usize);
        let table = self.tables.get(extent.table as usize);
        let (Some(file), Some(table)) = (file, table) else {
            let message = "a record points to a file or table that it does not list";
            return Err(Error::new(Kind::Corrupt, message));
        };
        (extent.file, extent.table) = (*file, *table);
        match &mut extent.encoding {
            Some(encoding) => self.translate(&mut encoding.base),
            None => Ok(()),
        }
    }
}

/// The index of a path in a list; two records that name it must say the same about it.
fn index_of<T: PartialEq>(
    known: &mut HashMap<String, u32>,
    all: &mut Vec<T>,
    path: String,
    one: T,
) -> Result<u32> {
    if let Some(index) = known.get(&path) {
        if all[*index as usize] == one {
            return Ok(*index);
        }
        return Err(
            Error::new(Kind::Corrupt, "records say different things about a file").with("path", path),
        );
    }
    let index = u32::try_from(all.len())
        .map_err(|_| Error::new(Kind::InvalidInput, "a step has more files than can be counted"))?;
    all.push(one);
    known.insert(path, index);
    Ok(index)
}

/// Equal content is listed once, with all its ranks.
fn add_object(known: &mut Vec<Object>, mut object: Object, indexes: &ManifestIndexes) -> Result<()> {
    let same = known.iter_mut().find(|other| {
        (other.kind, &other.bytes.blake3, other.bytes.bytes())
            == (object.kind, &object.bytes.blake3, object.bytes.bytes())
    });
    if let Some(other) = same {
        other.ranks.append(&mut object.ranks);
        other.ranks.sort_unstable();
        other.ranks.dedup();
        return Ok(());
    }
    indexes.translate(&mut object.bytes)?;
    known.push(object);
    Ok(())
}

/// One tree for all ranks. It is looked into only where ranks say different things.
fn merged_tree(mut trees: Vec<Tree>) -> Result<Tree> {
    trees.retain(|tree| *tree != Tree::default());
    if trees.len() < 2 {
        return Ok(trees.pop().unwrap_or_default());
    }
    let mut merged = Value::Null;
    for tree in trees {
        add_tree(&mut merged, tree.value()?);
    }
    Ok(Tree::from(&merged))
}

/// Ranks may know different branches; where two say something about the same one, the lower rank holds.
fn add_tree(known: &mut Value, tree: Value) {
    match (known, tree) {
        (Value::Object(known), Value::Object(tree)) => {
            for (name, branch) in tree {
                add_tree(known.entry(name).or_insert(Value::Null), branch);
            }
        }
        (known @ Value::Null, tree) => *known = tree,
        _ => {}
    }
}

#[cfg(test)]
mod tests;
