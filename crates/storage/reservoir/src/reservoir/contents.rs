//! The contents of the reservoir, by name: forget, evict, pin, ask.

use std::collections::HashSet;

use forebay_core::{BLOCK_BYTES, BlockMask, BucketName, ObjectKey, PageIndex, page_bytes, page_count};

use super::Reservoir;
use crate::{ObjectId, ObjectVersion, PageKey};

/// The pages that a cache command changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct CacheChange {
    /// Objects that it touched.
    pub objects: u64,
    /// Bytes of them in both tiers.
    pub bytes: u64,
}

/// The bytes of an object in each tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Residency {
    /// Bytes in RAM.
    pub ram_bytes: u64,
    /// Bytes on NVMe.
    pub nvme_bytes: u64,
}

/// Counts each object once, in whichever tiers it is.
#[derive(Default)]
struct Changes {
    objects: HashSet<ObjectId>,
    bytes: u64,
}

impl Changes {
    fn add(&mut self, id: ObjectId, bytes: u64) {
        if bytes > 0 {
            self.objects.insert(id);
            self.bytes += bytes;
        }
    }

    fn sum(&self) -> CacheChange {
        CacheChange {
            objects: self.objects.len() as u64,
            bytes: self.bytes,
        }
    }
}

impl Reservoir {
    /// Forgets all versions of an object, in both tiers, pinned or not. Leases stay good.
    pub fn forget(&self, bucket: &BucketName, key: &ObjectKey) {
        self.forget_versions(bucket, key, None);
    }

    /// Forgets all versions of an object but this one.
    pub fn forget_others(&self, object: &ObjectVersion) {
        self.forget_versions(&object.bucket, &object.key, Some(&ObjectId::of(object)));
    }

    fn forget_versions(&self, bucket: &BucketName, key: &ObjectKey, keep: Option<&ObjectId>) {
        for id in self.ram.index.versions(bucket, key) {
            if Some(&id) != keep {
                self.ram.forget(&id);
            }
        }
        if let Some(nvme) = &self.nvme {
            nvme.remove_versions(bucket, key, keep);
        }
    }

    /// Drops what is cached under a prefix from both tiers, except what is pinned.
    pub fn evict(&self, bucket: &BucketName, prefix: &str) -> CacheChange {
        let mut changes = Changes::default();
        for id in self.ram.index.under(bucket, prefix) {
            let is_pinned = self.ram.index.get(&id).is_none_or(|entry| entry.is_pinned());
            if !is_pinned {
                changes.add(id, self.ram.forget(&id));
            }
        }
        if let Some(nvme) = &self.nvme {
            for (object, bytes) in nvme.under(bucket, prefix) {
                let id = ObjectId::of(&object);
                if !self.ram.pins.covers(&object) {
                    nvme.remove(&id);
                    changes.add(id, bytes);
                }
            }
        }
        changes.sum()
    }

    /// Pins what is cached under a prefix, and what comes later. Pins are capped at three quarters of each
    /// budget; what comes past that is cached as usual.
    pub fn pin(&self, bucket: &BucketName, prefix: &str) -> CacheChange {
        self.ram.pins.add(bucket, prefix);
        let mut changes = Changes::default();
        for id in self.ram.index.under(bucket, prefix) {
            if let Some(entry) = self.ram.index.get(&id) {
                changes.add(id, self.ram.pin_entry(&entry));
            }
        }
        if let Some(nvme) = &self.nvme {
            for (object, bytes) in nvme.under(bucket, prefix) {
                if nvme.pin(&object) {
                    changes.add(ObjectId::of(&object), bytes);
                }
            }
        }
        changes.sum()
    }

    /// Removes the pins at and below a prefix; what they covered is cached as usual from now on.
    pub fn unpin(&self, bucket: &BucketName, prefix: &str) -> CacheChange {
        self.ram.pins.remove(bucket, prefix);
        let mut changes = Changes::default();
        for id in self.ram.index.under(bucket, prefix) {
            if let Some(entry) = self.ram.index.get(&id) {
                changes.add(id, self.ram.unpin_entry(&entry));
            }
        }
        if let Some(nvme) = &self.nvme {
            for (object, bytes) in nvme.under(bucket, prefix) {
                let id = ObjectId::of(&object);
                if !self.ram.pins.covers(&object) && nvme.unpin(&id) {
                    changes.add(id, bytes);
                }
            }
        }
        changes.sum()
    }

    /// Returns how much of an object is in each tier.
    #[must_use]
    pub fn resident(&self, object: &ObjectVersion) -> Residency {
        let id = ObjectId::of(object);
        let pages = self
            .ram
            .index
            .get(&id)
            .map(|entry| entry.pages())
            .unwrap_or_default();
        let in_page = |page: PageIndex, blocks: BlockMask| -> u64 {
            let bytes = page_bytes(object.bytes, page);
            blocks
                .blocks()
                .map(|block| {
                    bytes
                        .saturating_sub(u64::from(block) * BLOCK_BYTES)
                        .min(BLOCK_BYTES)
                })
                .sum()
        };
        let ram_bytes = pages
            .iter()
            .map(|page| in_page(page.key.page, page.frame.present()))
            .sum();
        let Some(nvme) = &self.nvme else {
            return Residency {
                ram_bytes,
                nvme_bytes: 0,
            };
        };
        let indices = (0..u32::try_from(page_count(object.bytes)).unwrap_or(u32::MAX)).map(PageIndex);
        let on_nvme = |page| {
            nvme.store
                .lookup(&PageKey { object: id, page })
                .map(|blocks| in_page(page, blocks))
        };
        Residency {
            ram_bytes,
            nvme_bytes: indices.filter_map(on_nvme).sum(),
        }
    }

    /// Flips a bit of a page in RAM, as a broken memory chip would; `false` if the byte is not there.
    #[cfg(any(test, feature = "testing"))]
    #[doc(hidden)]
    pub fn debug_corrupt_ram(&self, object: &ObjectVersion, offset: u64) -> bool {
        let Some(entry) = self.ram.index.get(&ObjectId::of(object)) else {
            return false;
        };
        let page = entry
            .pages()
            .into_iter()
            .find(|page| page.key.page.start() == offset - offset % forebay_core::PAGE_BYTES);
        page.is_some_and(|page| page.frame.flip_bit((offset % forebay_core::PAGE_BYTES) as usize))
    }
}
