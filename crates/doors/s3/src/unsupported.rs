//! Headers that ask for something Forebay does not do: refused by name, never ignored.
//!
//! Ignoring a wish for encryption, a lock or a grant would leave an object in a state that its owner did not
//! ask for. What only names the default (`STANDARD` storage, a `private` ACL) is accepted.

use http::{HeaderMap, HeaderValue};

use crate::refusal::Refusal;

/// Refuses a request that has such a header.
pub(crate) fn refuse_headers(headers: &HeaderMap) -> Result<(), Refusal> {
    // Saying that a bucket needs no object lock asks for nothing (rclone does it).
    let asks_for_nothing = |name: &str| {
        name == "x-amz-bucket-object-lock-enabled" && headers.get(name).is_some_and(|value| value == "false")
    };
    for (name, value) in headers {
        let name = name.as_str();
        if name.starts_with("x-amz-") && !asks_for_nothing(name) {
            refuse_name(name)?;
            refuse_value(name, value)?;
        }
    }
    Ok(())
}

/// Refuses what may be asked for, but not like this.
fn refuse_value(name: &str, value: &HeaderValue) -> Result<(), Refusal> {
    const DEFAULT_ACLS: [&str; 3] = ["private", "bucket-owner-full-control", "bucket-owner-read"];
    match name {
        "x-amz-storage-class" if value != "STANDARD" => Err(Refusal::bad(
            "InvalidStorageClass",
            "the only storage class here is STANDARD",
        )),
        "x-amz-acl" if !DEFAULT_ACLS.iter().any(|default| value == default) => {
            let message = "access is given by access keys and by public_read buckets, not by ACLs";
            Err(Refusal::bad("AccessControlListNotSupported", message))
        }
        _ => Ok(()),
    }
}

/// Refuses a presigned URL that carries such a header as a query parameter, as some SDKs do.
pub(crate) fn refuse_hoisted<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), Refusal> {
    for name in names {
        let name = name.to_ascii_lowercase();
        if name.starts_with("x-amz-") {
            refuse_name(&name)?;
        }
    }
    Ok(())
}

fn refuse_name(name: &str) -> Result<(), Refusal> {
    let what = if name.contains("server-side-encryption") {
        "server-side encryption"
    } else if name.starts_with("x-amz-object-lock-") || name == "x-amz-bucket-object-lock-enabled" {
        "object lock"
    } else if name.starts_with("x-amz-grant-") {
        "grants"
    } else if name == "x-amz-website-redirect-location" {
        "website redirects"
    } else if name == "x-amz-write-offset-bytes" {
        "appending to an object"
    } else {
        return Ok(());
    };
    Err(Refusal::not_implemented(format!(
        "{what} is not supported; leave out '{name}'"
    )))
}

#[cfg(test)]
mod tests {
    use http::header::HeaderName;

    use super::*;

    fn refused(name: &'static str, value: &'static str) -> Option<&'static str> {
        let headers = HeaderMap::from_iter([(HeaderName::from_static(name), value.parse().unwrap())]);
        refuse_headers(&headers).err().map(|refusal| refusal.code)
    }

    #[test]
    fn defaults_are_accepted() {
        assert_eq!(refused("x-amz-storage-class", "STANDARD"), None);
        assert_eq!(refused("x-amz-acl", "private"), None);
        assert_eq!(refused("x-amz-meta-object-lock-mode", "x"), None);
        assert_eq!(refused("x-amz-bucket-object-lock-enabled", "false"), None);
    }

    #[test]
    fn wishes_we_cannot_keep_are_refused() {
        assert_eq!(
            refused("x-amz-storage-class", "GLACIER"),
            Some("InvalidStorageClass")
        );
        assert_eq!(
            refused("x-amz-acl", "public-read"),
            Some("AccessControlListNotSupported")
        );
        assert_eq!(
            refused("x-amz-object-lock-mode", "COMPLIANCE"),
            Some("NotImplemented")
        );
        assert_eq!(refused("x-amz-grant-read", "id=1"), Some("NotImplemented"));
    }
}
