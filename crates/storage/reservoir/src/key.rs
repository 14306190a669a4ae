//! Keys of pages.

use forebay_core::PageIndex;
use smallvec::SmallVec;

use crate::ObjectVersion;

/// The identity of one version of one object: a hash that nobody can make collide on purpose, so that a page
/// of one tenant can never answer for another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub [u8; 16]);

impl ObjectId {
    /// BLAKE3 over bucket, key, version and size, each with its length in front.
    #[must_use]
    pub fn of(object: &ObjectVersion) -> Self {
        // Gathered first: for so few bytes one call is several times quicker than a hasher that is fed.
        let mut fields = SmallVec::<[u8; 256]>::new();
        for field in [
            object.bucket.as_str(),
            object.key.as_str(),
            object.version.as_str(),
        ] {
            fields.extend_from_slice(&(field.len() as u64).to_le_bytes());
            fields.extend_from_slice(field.as_bytes());
        }
        fields.extend_from_slice(&object.bytes.to_le_bytes());
        let mut id = [0; 16];
        id.copy_from_slice(&blake3::hash(&fields).as_bytes()[..16]);
        Self(id)
    }
}

/// One page of one object version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageKey {
    /// The object version.
    pub object: ObjectId,
    /// The page.
    pub page: PageIndex,
}
