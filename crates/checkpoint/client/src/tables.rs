//! Side tables of a step: read when they are first needed, proved by their digest, kept.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use forebay_checkpoint::manifest::Extent;
use forebay_checkpoint::table::Table;
use forebay_core::{Error, Kind, Result};
use parking_lot::Mutex;

use crate::step::Step;

/// The tables that were needed so far, by their index in the manifest.
#[derive(Debug, Default)]
pub(crate) struct Tables(Mutex<BTreeMap<u32, Arc<Table>>>);

/// Tables at hand, for extents that were named before.
pub(crate) type Proofs = BTreeMap<u32, Arc<Table>>;

impl Step {
    /// The tables that prove these extents and what they are made from.
    pub(crate) fn proofs<'a>(&self, extents: impl Iterator<Item = &'a Extent>) -> Result<Proofs> {
        let mut proofs = Proofs::new();
        for extent in extents.flat_map(Extent::chain) {
            if let Entry::Vacant(vacant) = proofs.entry(extent.table) {
                vacant.insert(self.table(extent.table)?);
            }
        }
        Ok(proofs)
    }

    /// One table; read from the lake the first time.
    pub(crate) fn table(&self, index: u32) -> Result<Arc<Table>> {
        if let Some(known) = self.tables.0.lock().get(&index) {
            return Ok(Arc::clone(known));
        }
        let table = Arc::new(self.read_table(index)?);
        self.tables.0.lock().insert(index, Arc::clone(&table));
        Ok(table)
    }

    /// Reads a table and compares its digest.
    pub(crate) fn read_table(&self, index: u32) -> Result<Table> {
        let no_table = || Error::new(Kind::Corrupt, "a part points to a side table that is not listed");
        let file = self
            .manifest
            .content
            .tables
            .get(index as usize)
            .ok_or_else(no_table)?;
        let damaged = |kind: Kind, message: &str| Error::new(kind, message).with("file", &file.path);
        let view = self.file(&file.path)?;
        if view.len() as u64 != file.bytes {
            let error = damaged(
                Kind::Corrupt,
                "a side table has another size than the manifest says",
            );
            return Err(error.with("bytes", view.len()).with("expected", file.bytes));
        }
        if blake3::hash(&view).to_hex().as_str() != file.blake3 {
            return Err(damaged(
                Kind::Checksum,
                "a side table does not match its digest in the manifest: it is damaged",
            ));
        }
        Table::decode(&view).map_err(|error| error.with("file", &file.path))
    }
}

/// The checksums of an extent's blocks.
pub(crate) fn crcs<'a>(proofs: &'a Proofs, extent: &Extent) -> Result<&'a [u32]> {
    table(proofs, extent)?.part(extent.first_block, extent.bytes())
}

/// The table of an extent.
pub(crate) fn table<'a>(proofs: &'a Proofs, extent: &Extent) -> Result<&'a Table> {
    let table = proofs.get(&extent.table);
    let table = table.ok_or_else(|| Error::new(Kind::Internal, "a side table was not read before"))?;
    Ok(table)
}
