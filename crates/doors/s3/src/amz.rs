//! The `x-amz-*` names: one table that decides for headers and for the query of a presigned URL.
//!
//! Ignoring a wish for encryption, a lock or a grant would leave an object in a state that its owner did not
//! ask for; so what is not known here is refused by name, wherever it stands. What only names the default
//! (`STANDARD` storage, a `private` ACL) is accepted.
//!
//! Some SDKs (JavaScript, Ruby, Go) move headers into the query when they presign a URL. There they mean what
//! the header means: [`hoist`] copies them to the headers once the guard has passed. The signature covers the
//! whole query, and `s3s` verifies it before it acts on any of them. One exception: the checksum of an empty
//! body in a query was computed when the URL was signed, before there was a body (the JavaScript SDK does so
//! by default). It says nothing about the bytes that come, and is left out.

use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method};

use crate::checksum::{self, CheckedOnly};
use crate::refusal::Refusal;

/// The meaning of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// A part of the signature or of the framing of the body: each stands in its own place.
    Signature,
    /// The SHA-256 of the body; in a query there is none to be had.
    ContentDigest,
    /// Obeyed, in the query of a presigned URL as well.
    Obeyed,
    /// A checksum that is compared with the body of an object or part.
    CheckedOnly,
    /// Asks for nothing that could be done or left undone.
    Nothing,
    /// Something that is not done here.
    Unsupported(&'static str),
    /// Nobody knows.
    Unknown,
}

/// Names that are obeyed, by the operations or by their refusal where they do not apply.
const OBEYED: [&str; 29] = [
    "x-amz-acl",
    "x-amz-checksum-algorithm",
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-mode",
    "x-amz-checksum-sha1",
    "x-amz-checksum-sha256",
    "x-amz-checksum-type",
    "x-amz-copy-source",
    "x-amz-copy-source-if-match",
    "x-amz-copy-source-if-modified-since",
    "x-amz-copy-source-if-none-match",
    "x-amz-copy-source-if-unmodified-since",
    "x-amz-copy-source-range",
    "x-amz-if-match-initiated-time",
    "x-amz-if-match-last-modified-time",
    "x-amz-if-match-size",
    "x-amz-max-parts",
    "x-amz-metadata-directive",
    "x-amz-mp-object-size",
    "x-amz-object-attributes",
    "x-amz-object-ownership",
    "x-amz-optional-object-attributes",
    "x-amz-part-number-marker",
    "x-amz-storage-class",
    "x-amz-tagging",
    "x-amz-tagging-directive",
    "x-amz-bucket-object-lock-enabled",
];

/// Names that say who pays, who owns or who asks. There is one owner here, nobody pays, nothing is locked.
const NOTHING: [&str; 15] = [
    "x-amz-api-version", // the C++ SDK, so PyArrow too
    "x-amz-bypass-governance-retention",
    "x-amz-cf-id",
    "x-amz-confirm-remove-self-bucket-access",
    "x-amz-expected-bucket-owner",
    "x-amz-id-2",
    "x-amz-mfa",
    "x-amz-request-id",
    "x-amz-request-payer",
    "x-amz-sdk-checksum-algorithm",
    "x-amz-sdk-invocation-id",
    "x-amz-sdk-request",
    "x-amz-source-expected-bucket-owner",
    "x-amz-te",
    "x-amz-user-agent",
];

fn meaning(name: &str) -> Meaning {
    match name {
        "x-amz-algorithm"
        | "x-amz-credential"
        | "x-amz-date"
        | "x-amz-decoded-content-length"
        | "x-amz-expires"
        | "x-amz-security-token"
        | "x-amz-signature"
        | "x-amz-signedheaders"
        | "x-amz-trailer" => Meaning::Signature,
        "x-amz-content-sha256" => Meaning::ContentDigest,
        "x-amz-website-redirect-location" => Meaning::Unsupported("website redirects"),
        "x-amz-write-offset-bytes" => Meaning::Unsupported("appending to an object"),
        _ if name.contains("server-side-encryption") => Meaning::Unsupported("server-side encryption"),
        _ if name.starts_with("x-amz-object-lock-") => Meaning::Unsupported("object lock"),
        _ if name.starts_with("x-amz-grant-") => Meaning::Unsupported("grants"),
        _ if name.starts_with("x-amz-meta-") || OBEYED.contains(&name) => Meaning::Obeyed,
        _ if NOTHING.contains(&name) => Meaning::Nothing,
        _ if CheckedOnly::of_header(name).is_some() => Meaning::CheckedOnly,
        _ => Meaning::Unknown,
    }
}

/// Refuses a request that has a header of another meaning than it gets.
pub(crate) fn refuse_headers(method: &Method, is_document: bool, headers: &HeaderMap) -> Result<(), Refusal> {
    for (name, value) in headers {
        let name = name.as_str();
        if !name.starts_with("x-amz-") {
            continue;
        }
        match meaning(name) {
            Meaning::Signature | Meaning::ContentDigest | Meaning::Nothing => {}
            Meaning::Obeyed => refuse_value(name, value)?,
            // Only the bodies of objects and parts are compared with them.
            Meaning::CheckedOnly if method == Method::PUT && !is_document => {}
            other => return Err(refused(name, other)),
        }
    }
    Ok(())
}

/// Makes headers of the parameters of a presigned URL, or refuses them. The names are as they stand.
pub(crate) fn hoist<'a>(
    parameters: impl Iterator<Item = (&'a str, &'a str)>,
    headers: &mut HeaderMap,
) -> Result<(), Refusal> {
    let before = headers.clone();
    let mut hoisted: Vec<String> = Vec::new();
    for (name, value) in parameters {
        let name = name.to_ascii_lowercase();
        if !name.starts_with("x-amz-") {
            continue;
        }
        match meaning(&name) {
            Meaning::Signature if name != "x-amz-trailer" && name != "x-amz-decoded-content-length" => {
                continue;
            }
            Meaning::ContentDigest if value == "UNSIGNED-PAYLOAD" || value == EMPTY_SHA256 => continue,
            Meaning::Nothing => continue,
            Meaning::Obeyed | Meaning::CheckedOnly if checksum::is_of_nothing(&name, value) => continue,
            Meaning::Obeyed | Meaning::CheckedOnly => {}
            Meaning::Signature | Meaning::ContentDigest => {
                let message = format!("'{name}' cannot stand in the query; send it as a header");
                return Err(Refusal::bad("InvalidArgument", message));
            }
            other => return Err(refused(&name, other)),
        }
        if hoisted.contains(&name) {
            let message = format!("the parameter '{name}' may be given once only");
            return Err(Refusal::bad("InvalidArgument", message));
        }
        let (Ok(header), Ok(value)) = (
            HeaderName::from_bytes(name.as_bytes()),
            HeaderValue::from_bytes(value.as_bytes()),
        ) else {
            let message =
                format!("the parameter '{name}' cannot be a header: it has characters that none may have");
            return Err(Refusal::bad("InvalidArgument", message));
        };
        if before.get(&header).is_some_and(|other| *other != value) {
            let message = format!("'{name}' stands in the query and in a header, with two values");
            return Err(Refusal::bad("InvalidArgument", message));
        }
        headers.insert(header, value);
        hoisted.push(name);
    }
    Ok(())
}

/// Refuses such parameters where no signature says that they belong there.
pub(crate) fn refuse_parameters<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), Refusal> {
    for name in names {
        let name = name.to_ascii_lowercase();
        if name.starts_with("x-amz-") && meaning(&name) != Meaning::Nothing {
            let message =
                format!("'{name}' may stand in the query of a presigned URL only; send it as a header");
            return Err(Refusal::bad("InvalidArgument", message));
        }
    }
    Ok(())
}

const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

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
        // Saying that a bucket needs no object lock asks for nothing (rclone does it).
        "x-amz-bucket-object-lock-enabled" if value != "false" => {
            Err(refused(name, Meaning::Unsupported("object lock")))
        }
        _ => Ok(()),
    }
}

fn refused(name: &str, meaning: Meaning) -> Refusal {
    let message = match meaning {
        Meaning::Unsupported(what) => format!("{what} is not supported; leave out '{name}'"),
        Meaning::CheckedOnly => {
            format!("'{name}' is compared with the body of an object or part only; leave it out here")
        }
        _ if name.starts_with("x-amz-checksum-") => format!(
            "the checksum in '{name}' cannot be checked here; use one of {}",
            checksum::names()
        ),
        _ => format!("'{name}' is not known here, and could change what the request means; leave it out"),
    };
    Refusal::not_implemented(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &'static str, value: &'static str) -> Option<&'static str> {
        let headers = HeaderMap::from_iter([(HeaderName::from_static(name), value.parse().unwrap())]);
        refuse_headers(&Method::PUT, false, &headers)
            .err()
            .map(|refusal| refusal.code)
    }

    fn hoisted(parameters: &[(&str, &str)]) -> Result<HeaderMap, Refusal> {
        let mut headers = HeaderMap::new();
        hoist(parameters.iter().copied(), &mut headers)?;
        refuse_headers(&Method::PUT, false, &headers)?;
        Ok(headers)
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
        for (name, value, code) in [
            ("x-amz-storage-class", "GLACIER", "InvalidStorageClass"),
            ("x-amz-acl", "public-read", "AccessControlListNotSupported"),
            ("x-amz-object-lock-mode", "COMPLIANCE", "NotImplemented"),
            ("x-amz-bucket-object-lock-enabled", "true", "NotImplemented"),
            ("x-amz-grant-read", "id=1", "NotImplemented"),
            ("x-amz-checksum-foo", "AAAA", "NotImplemented"),
            ("x-amz-something-new", "1", "NotImplemented"),
        ] {
            assert_eq!(refused(name, value), Some(code), "{name}");
            assert_eq!(hoisted(&[(name, value)]).unwrap_err().code, code, "{name}");
        }
    }

    #[test]
    fn a_checksum_that_is_not_checked_is_refused_by_name() {
        let headers = HeaderMap::from_iter([(
            HeaderName::from_static("x-amz-checksum-md5"),
            HeaderValue::from_static("1B2M2Y8AsgTpgAmY7PhCfg=="),
        )]);
        assert_eq!(refuse_headers(&Method::PUT, false, &headers), Ok(()));
        for (method, is_document) in [(Method::POST, true), (Method::PUT, true), (Method::GET, false)] {
            let refusal = refuse_headers(&method, is_document, &headers).unwrap_err();
            assert!(refusal.message.contains("x-amz-checksum-md5"), "{refusal:?}");
        }
    }

    #[test]
    fn parameters_become_headers() {
        let headers = hoisted(&[
            ("X-Amz-Meta-Colour", "blue"),
            ("x-amz-tagging", "a=b"),
            ("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD"),
            ("X-Amz-Signature", "0"),
            ("x-amz-sdk-checksum-algorithm", "CRC32"),
            ("versionId", "1"),
        ])
        .unwrap();
        assert_eq!(headers.len(), 2);
        assert_eq!(headers["x-amz-meta-colour"], "blue");
        assert_eq!(headers["x-amz-tagging"], "a=b");
    }

    #[test]
    fn the_checksum_of_nothing_in_a_query_says_nothing() {
        let crc = [("x-amz-checksum-crc32", "AAAAAA==")];
        assert!(hoisted(&crc).unwrap().is_empty());
        assert_eq!(hoisted(&[("x-amz-checksum-crc32", "AAAAAQ==")]).unwrap().len(), 1);
        assert_eq!(refused("x-amz-checksum-crc32", "AAAAAA=="), None);
    }

    #[test]
    fn parameters_that_contradict_or_cannot_be_headers_are_refused() {
        for parameters in [
            [("x-amz-tagging", "a=b"), ("X-Amz-Tagging", "a=c")],
            [("x-amz-meta-a", "line\nbreak"), ("x-id", "PutObject")],
            [("x-amz-trailer", "x-amz-checksum-crc32"), ("x-id", "PutObject")],
            [("x-amz-content-sha256", "00"), ("x-id", "PutObject")],
        ] {
            assert_eq!(hoisted(&parameters).unwrap_err().code, "InvalidArgument");
        }
        let mut headers = HeaderMap::from_iter([(
            HeaderName::from_static("x-amz-tagging"),
            HeaderValue::from_static("a=b"),
        )]);
        let contradiction = hoist([("x-amz-tagging", "a=c")].into_iter(), &mut headers);
        assert_eq!(contradiction.unwrap_err().code, "InvalidArgument");
    }

    #[test]
    fn parameters_outside_presigned_urls_are_refused() {
        assert!(refuse_parameters(["x-amz-copy-source"].into_iter()).is_err());
        assert_eq!(
            refuse_parameters(["x-amz-user-agent", "prefix"].into_iter()),
            Ok(())
        );
    }
}
