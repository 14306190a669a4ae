//! Names of user metadata: which are ours, and what a client's own name is kept under.
//!
//! Forebay keeps entries of its own (checksums, `Expires` …) beside those of the client, under names that
//! clients neither see nor set. A client that uses such a name itself (another Forebay whose lake is this
//! one) keeps it under an escaped one. Every edge passes names through here on their way in and out, so that
//! none of them can forge an entry of ours.

/// User metadata of ours starts with this.
const RESERVED_PREFIX: &str = "forebay-";
/// Put before a client's own name that starts like ours.
const ESCAPE: &str = "forebay-client-";

/// The name under which a client's entry lies in the lake.
#[must_use]
pub fn kept_metadata_name(name: String) -> String {
    if name.starts_with(RESERVED_PREFIX) {
        return format!("{ESCAPE}{name}");
    }
    name
}

/// The name under which clients see an entry; `None` for our own.
#[must_use]
pub fn shown_metadata_name(name: &str) -> Option<&str> {
    match name.strip_prefix(ESCAPE) {
        Some(name) => Some(name),
        None => Some(name).filter(|name| !name.starts_with(RESERVED_PREFIX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_like_ours_are_escaped_and_come_back() {
        for name in ["color", "forebay-checksums", "forebay-client-x"] {
            assert_eq!(shown_metadata_name(&kept_metadata_name(name.into())), Some(name));
        }
        assert_eq!(
            kept_metadata_name("forebay-checksums".into()),
            "forebay-client-forebay-checksums"
        );
    }

    #[test]
    fn our_own_entries_are_not_shown() {
        assert_eq!(shown_metadata_name("forebay-checksums"), None);
    }
}
