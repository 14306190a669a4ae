//! Locations of the files of an archive, by name: compact, built once, then only read.
//!
//! Names lie in one buffer, in the order of the archive; a list of member numbers is sorted by name. A member
//! costs its name and 24 bytes. When a name is there several times, the last one counts, as it does when an
//! archive is unpacked. A hard link is found at the location of the member it names. Folders, symbolic links
//! and devices have no bytes and are not kept.

use forebay_core::{ByteRange, Error, Kind, Result};

use super::{Member, MemberKind};

/// Limits of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TarIndexLimits {
    /// Members, at most.
    pub members_max: usize,
    /// Bytes of their names together, at most.
    pub names_bytes_max: usize,
}

impl Default for TarIndexLimits {
    /// Four million members, 256 MiB of names.
    fn default() -> Self {
        Self {
            members_max: 4 << 20,
            names_bytes_max: 256 << 20,
        }
    }
}

/// Location of the bytes of a member in the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberLocation {
    /// First byte.
    pub offset: u64,
    /// Number of bytes; may be none.
    pub bytes: u64,
}

impl MemberLocation {
    /// The location as a range; `None` if it has no bytes.
    #[must_use]
    pub fn range(self) -> Option<ByteRange> {
        ByteRange::new(self.offset, self.offset.saturating_add(self.bytes)).ok()
    }
}

/// The files of one archive.
#[derive(Debug, PartialEq, Eq)]
pub struct TarIndex {
    entries: Entries,
    /// Numbers of members, by name and then in order.
    by_name: Box<[u32]>,
}

/// Members in the order of the archive.
#[derive(Debug, Default, PartialEq, Eq)]
struct Entries {
    names: Vec<u8>,
    name_ends: Vec<u32>,
    locations: Vec<MemberLocation>,
    /// Numbers of those that have no location to be read at: sparse files and links to nothing. Sorted,
    /// nearly always empty.
    placeless: Vec<u32>,
}

impl Entries {
    fn name(&self, number: u32) -> &[u8] {
        let number = number as usize;
        let start = if number == 0 {
            0
        } else {
            self.name_ends[number - 1]
        };
        &self.names[start as usize..self.name_ends[number] as usize]
    }

    fn push(&mut self, name: &[u8], location: MemberLocation, limits: TarIndexLimits) -> Result<()> {
        let names_bytes = self.names.len() + name.len();
        let end = u32::try_from(names_bytes)
            .ok()
            .filter(|_| names_bytes <= limits.names_bytes_max && self.locations.len() < limits.members_max);
        let end = end.ok_or_else(|| too_many(limits))?;
        self.names.extend_from_slice(name);
        self.name_ends.push(end);
        self.locations.push(location);
        Ok(())
    }
}

/// Collects members; see [`TarIndex::builder`].
#[derive(Debug)]
pub struct TarIndexBuilder {
    entries: Entries,
    limits: TarIndexLimits,
    /// Hard links: number and target. Resolved at the end, when the index can be searched.
    links: Vec<(u32, Vec<u8>)>,
    links_bytes: usize,
}

impl TarIndexBuilder {
    /// Takes the next member in the order of the archive.
    pub fn add(&mut self, member: &Member) -> Result<()> {
        let location = MemberLocation {
            offset: member.offset,
            bytes: member.bytes,
        };
        let number = u32::try_from(self.entries.locations.len()).unwrap_or(u32::MAX);
        match &member.kind {
            MemberKind::File => self.entries.push(&member.name, location, self.limits),
            MemberKind::Sparse => {
                self.entries.push(&member.name, location, self.limits)?;
                self.entries.placeless.push(number);
                Ok(())
            }
            MemberKind::HardLink { target } => {
                self.entries.push(&member.name, location, self.limits)?;
                self.links_bytes += target.len();
                if self.links_bytes > self.limits.names_bytes_max {
                    return Err(too_many(self.limits));
                }
                self.links.push((number, target.clone()));
                Ok(())
            }
            MemberKind::Folder | MemberKind::Other => Ok(()),
        }
    }

    /// The index of what was added.
    #[must_use]
    pub fn finish(self) -> TarIndex {
        let mut entries = self.entries;
        let count = u32::try_from(entries.locations.len()).expect("the number of members is limited");
        let mut by_name: Box<[u32]> = (0..count).collect();
        by_name.sort_unstable_by(|one, other| {
            entries
                .name(*one)
                .cmp(entries.name(*other))
                .then_with(|| one.cmp(other))
        });
        entries.names.shrink_to_fit();
        let mut index = TarIndex { entries, by_name };
        index.resolve_links(&self.links);
        index
    }
}

impl TarIndex {
    /// An empty index to fill.
    #[must_use]
    pub fn builder(limits: TarIndexLimits) -> TarIndexBuilder {
        TarIndexBuilder {
            entries: Entries::default(),
            limits,
            links: Vec::new(),
            links_bytes: 0,
        }
    }

    /// Returns where the member of this name lies: the last one if there are several. A name without `./` in
    /// front also finds one with it.
    ///
    /// Errors: `NotFound`; `Unsupported` for a file with holes, whose content does not lie in one location.
    pub fn find(&self, name: &str) -> Result<MemberLocation> {
        let number = self
            .last_of(name.as_bytes(), u32::MAX)
            .or_else(|| self.last_of(format!("./{name}").as_bytes(), u32::MAX))
            .ok_or_else(|| self.no_such_member(name))?;
        if self.entries.placeless.binary_search(&number).is_ok() {
            let message = "the member is a sparse file or a link to nothing and cannot be read in location; \
                           pack the archive without --sparse";
            return Err(Error::new(Kind::Unsupported, message).with("member", name));
        }
        Ok(self.entries.locations[number as usize])
    }

    /// Returns how many members there are, repeated names included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.locations.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Names and locations in the order of the archive.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], MemberLocation)> {
        (0_u32..)
            .zip(&self.entries.locations)
            .map(|(number, location)| (self.entries.name(number), *location))
    }

    /// Bytes of memory that the index takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let entries = &self.entries;
        size_of::<Self>()
            + entries.names.capacity()
            + entries.name_ends.capacity() * size_of::<u32>()
            + entries.locations.capacity() * size_of::<MemberLocation>()
            + entries.placeless.capacity() * size_of::<u32>()
            + self.by_name.len() * size_of::<u32>()
    }

    /// The last member of this name before `end`.
    fn last_of(&self, name: &[u8], end: u32) -> Option<u32> {
        let after = self
            .by_name
            .partition_point(|number| (self.entries.name(*number), *number) < (name, end));
        let number = *self.by_name.get(after.checked_sub(1)?)?;
        (self.entries.name(number) == name).then_some(number)
    }

    /// Gives every hard link the location of the member it names, which came before it.
    fn resolve_links(&mut self, links: &[(u32, Vec<u8>)]) {
        let mut dangling = Vec::new();
        for (link, target) in links {
            let has_place = |number: &u32| {
                self.entries.placeless.binary_search(number).is_err()
                    && dangling.binary_search(number).is_err()
            };
            match self.last_of(target, *link).filter(has_place) {
                Some(number) => {
                    self.entries.locations[*link as usize] = self.entries.locations[number as usize];
                }
                None => dangling.push(*link),
            }
        }
        self.entries.placeless.extend(dangling);
        self.entries.placeless.sort_unstable();
    }

    fn no_such_member(&self, name: &str) -> Error {
        let message =
            "the archive has no such member; a name is compared whole, with its folders (see: tar -tf)";
        let error = Error::new(Kind::NotFound, message).with("member", name);
        let error = error.with("members", self.len());
        match self.iter().next() {
            Some((first, _)) => error.with("first_member", String::from_utf8_lossy(first)),
            None => error,
        }
    }
}

fn too_many(limits: TarIndexLimits) -> Error {
    let message = "the archive has more members than can be indexed; pack it into smaller shards";
    Error::new(Kind::Unsupported, message)
        .with("members_max", limits.members_max)
        .with("names_bytes_max", limits.names_bytes_max)
}

#[cfg(test)]
mod tests;
