//! Record of a rank: files, parts and objects with their proofs, and the side table
//! that goes with them.

use std::collections::BTreeMap;

use bytes::Bytes;
use forebay_checkpoint::hash::{DigestOptions, Digests, digest};
use forebay_checkpoint::manifest::{
    Content, DataFile, Extent, Object, ObjectKind, Part, Record, TableFile, Tensor,
};
use forebay_checkpoint::names;
use forebay_checkpoint::table::Table;
use forebay_core::{Error, Kind, Result};

use super::Save;
use super::file::{PartLocation, WrittenFile, WrittenPart};
use super::parent::{self, DocumentIndexes, Parent};

/// State that is not a tensor, as the client left it.
#[derive(Debug)]
pub(super) struct StagedObject {
    pub(super) kind: ObjectKind,
    pub(super) bytes: Bytes,
}

/// The documents of a rank.
#[derive(Debug)]
pub(super) struct RankDocuments {
    /// Path and bytes of the table.
    pub(super) table: (String, Bytes),
    /// Path and pieces of the objects, if there are any.
    pub(super) objects: Option<(String, Vec<Bytes>)>,
    pub(super) record: Record,
    /// The record as it lies in the lake.
    pub(super) record_bytes: Bytes,
}

/// Builds record, table and objects. Hashes objects, so it blocks.
pub(super) fn build(
    save: &Save,
    parent: Option<&Parent>,
    files: Vec<WrittenFile>,
    objects: BTreeMap<String, StagedObject>,
) -> Result<RankDocuments> {
    let path = save.path(&names::table_file(save.begin.rank));
    // The rank's own table is the first; what is in it is known at the end.
    let own_table = TableFile {
        path: path.clone(),
        bytes: 0,
        blake3: String::new(),
    };
    let mut building = RecordBuilder {
        content: Content {
            tables: vec![own_table],
            tree: save.tree.clone(),
            metadata: save.metadata.clone(),
            alarms: parent::alarms(save, parent, &files)?,
            ..Content::default()
        },
        table: Table::default(),
        parent,
        indexes: DocumentIndexes::default(),
    };
    save.set_alarms(&building.content.alarms);
    building.add_tensors(files)?;
    let objects = building.add_objects(save, objects);
    let RecordBuilder {
        mut content, table, ..
    } = building;
    let table = Bytes::from(table.encode());
    content.tables[0].bytes = table.len() as u64;
    content.tables[0].blake3 = blake3::hash(&table).to_hex().to_string();
    let begin = &save.begin;
    let mut record = Record::new(begin.step, &save.attempt, begin.rank, begin.world_size, content);
    let record_bytes = Bytes::from(record.encode()?);
    Ok(RankDocuments {
        table: (path, table),
        objects,
        record,
        record_bytes,
    })
}

/// Content in the making.
struct RecordBuilder<'a> {
    content: Content,
    table: Table,
    parent: Option<&'a Parent>,
    /// Indexes of files and tables of the parent.
    indexes: DocumentIndexes,
}

impl RecordBuilder<'_> {
    /// Lists files and tensors; blocks are counted in the order in which tensors and parts are named.
    fn add_tensors(&mut self, mut files: Vec<WrittenFile>) -> Result<()> {
        files.sort_by_key(|file| file.number);
        let mut tensors: BTreeMap<String, Vec<(u32, WrittenPart)>> = BTreeMap::new();
        for written in files {
            // No part lies in a file that was not written.
            let plain = written.file.map_or(Ok(u32::MAX), |file| self.list(file))?;
            let differences = written.differences.map_or(Ok(u32::MAX), |file| self.list(file))?;
            for part in written.parts {
                let file = match part.location {
                    PartLocation::Difference(_) => differences,
                    PartLocation::Here(_) | PartLocation::Parent(_) => plain,
                };
                tensors.entry(part.name.clone()).or_default().push((file, part));
            }
        }
        for (name, mut parts) in tensors {
            parts.sort_by(|(_, a), (_, b)| a.at.offset.cmp(&b.at.offset));
            let mut tensor = None;
            for (file, part) in parts {
                self.add_part(&mut tensor, file, part)
                    .map_err(|error| error.with("tensor", &name))?;
            }
            self.content.tensors.extend(tensor.map(|tensor| (name, tensor)));
        }
        Ok(())
    }

    fn list(&mut self, file: DataFile) -> Result<u32> {
        let index = u32::try_from(self.content.files.len())
            .map_err(|_| Error::new(Kind::InvalidInput, "a save has more files than can be counted"))?;
        self.content.files.push(file);
        Ok(index)
    }

    fn add_part(&mut self, tensor: &mut Option<Tensor>, file: u32, part: WrittenPart) -> Result<()> {
        let tensor = tensor.get_or_insert_with(|| Tensor {
            dtype: part.dtype,
            shape: part.tensor_shape.clone(),
            parts: Vec::new(),
        });
        if (tensor.dtype, &tensor.shape) != (part.dtype, &part.tensor_shape) {
            let message = "a tensor was saved with different types or shapes; give each its own name";
            return Err(Error::new(Kind::InvalidInput, message));
        }
        let bytes = match part.location {
            PartLocation::Here(range) => self.extent(file, range, &part.digests),
            PartLocation::Parent(extent) => self.borrow(&extent)?,
            PartLocation::Difference(difference) => {
                let base = self.borrow(difference.base())?;
                let first_block = self.table.add_encoded(&part.digests.crcs, difference.frames());
                difference.extent(file, base, part.digests.blake3.clone(), first_block)
            }
        };
        tensor.parts.push(Part {
            at: part.at,
            bytes,
            sha256: part.digests.sha256,
        });
        Ok(())
    }

    fn extent(&mut self, file: u32, range: [u64; 2], digests: &Digests) -> Extent {
        Extent {
            file,
            range,
            blake3: digests.blake3.clone(),
            table: 0,
            first_block: self.table.add(&digests.crcs),
            encoding: None,
        }
    }

    /// Returns what the parent has, with the indexes of this record.
    fn borrow(&mut self, extent: &Extent) -> Result<Extent> {
        let parent = self.parent;
        let parent =
            parent.ok_or_else(|| Error::new(Kind::Internal, "a part was reused without a parent"))?;
        Ok(parent.borrow(extent, &mut self.content, &mut self.indexes))
    }

    /// Lays objects one after the other into a file of their own.
    fn add_objects(
        &mut self,
        save: &Save,
        objects: BTreeMap<String, StagedObject>,
    ) -> Option<(String, Vec<Bytes>)> {
        let file = u32::try_from(self.content.files.len())
            .ok()
            .filter(|_| !objects.is_empty())?;
        let mut pieces = Vec::with_capacity(objects.len());
        let mut end = 0;
        for (name, StagedObject { kind, bytes }) in objects {
            let range = [end, end + bytes.len() as u64];
            end = range[1];
            let object = Object {
                ranks: vec![save.begin.rank],
                kind,
                bytes: self.extent(file, range, &digest(&bytes, DigestOptions::default())),
            };
            self.content.objects.insert(name, vec![object]);
            pieces.push(bytes);
        }
        let path = save.path(&names::objects_file(save.begin.rank));
        self.content.files.push(DataFile {
            path: path.clone(),
            bytes: end,
            data_start: 0,
            header_blake3: String::new(),
        });
        Some((path, pieces))
    }
}
