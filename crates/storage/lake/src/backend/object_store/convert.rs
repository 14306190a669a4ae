//! Between `object_store`'s values and ours.

use std::borrow::Cow;
use std::error::Error as StdError;

use forebay_core::{Error, Kind, ObjectKey, Result, Version};
use futures::StreamExt;
use object_store::path::Path;
use object_store::{Attribute, GetRange as StoreRange, PutMode as StoreMode, UpdateVersion};

use crate::{Attributes, ByteStream, GetOptions, GetRange, ObjectMeta, PutMode, PutReceipt, UpdateToken};

/// A key as a path; keys that are no paths are refused.
pub(super) fn path_of(key: &ObjectKey) -> Result<Path> {
    match Path::parse(key.as_str()) {
        Ok(path) if path.as_ref() == key.as_str() => Ok(path),
        _ => Err(Error::new(
            Kind::InvalidInput,
            "this lake takes only keys that are paths: no `..`, no `//`, no `/` at an end",
        )),
    }
}

/// Returns what an error of the store means.
pub(super) fn error_from(error: object_store::Error, on_412: Kind) -> Error {
    use object_store::Error as Store;
    let kind = match &error {
        Store::NotFound { .. } => Kind::NotFound,
        Store::AlreadyExists { .. } => Kind::AlreadyExists,
        Store::Precondition { .. } | Store::NotModified { .. } => on_412,
        Store::PermissionDenied { .. } | Store::Unauthenticated { .. } => Kind::Denied,
        Store::NotSupported { .. } | Store::NotImplemented { .. } => Kind::Unsupported,
        Store::InvalidPath { .. } => Kind::InvalidInput,
        _ => kind_of_status(status_in(&error)),
    };
    let message = match kind {
        Kind::NotFound => "not in the lake",
        Kind::AlreadyExists => "already in the lake",
        Kind::Denied => "the lake refuses access; check the credentials and their permissions",
        Kind::Throttled => "the lake asks us to slow down",
        Kind::Unavailable => "the lake cannot be reached or failed",
        _ => "the lake refused the request",
    };
    Error::new(kind, message).caused_by(error)
}

fn kind_of_status(status: Option<u16>) -> Kind {
    match status {
        Some(416) => Kind::OutOfRange,
        Some(429 | 503) => Kind::Throttled,
        Some(400..=499) => Kind::InvalidInput,
        _ => Kind::Unavailable,
    }
}

/// The HTTP status; `object_store` tells it only in its text.
fn status_in(error: &object_store::Error) -> Option<u16> {
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(cause) = next {
        let text = cause.to_string();
        if let Some((_, rest)) = text.split_once("status code: ") {
            return rest.get(..3)?.parse().ok();
        }
        next = cause.source();
    }
    None
}

pub(super) fn mode_of(mode: &PutMode) -> StoreMode {
    match mode {
        PutMode::Overwrite => StoreMode::Overwrite,
        PutMode::Create => StoreMode::Create,
        PutMode::Update(token) => StoreMode::Update(UpdateVersion {
            e_tag: token.etag.clone(),
            version: token.version.clone(),
        }),
    }
}

pub(super) fn get_options(options: &GetOptions) -> Result<object_store::GetOptions> {
    let range = match options.range {
        None => None,
        Some(GetRange::Bounded(range)) => Some(StoreRange::Bounded(range.start()..range.end())),
        Some(GetRange::From(start)) => Some(StoreRange::Offset(start)),
        Some(GetRange::Last(0)) => return Err(Error::new(Kind::OutOfRange, "the last 0 bytes are no range")),
        Some(GetRange::Last(bytes)) => Some(StoreRange::Suffix(bytes)),
    };
    let if_match = options.if_match.as_ref().map(|version| format!("\"{version}\""));
    Ok(object_store::GetOptions {
        range,
        if_match,
        ..object_store::GetOptions::default()
    })
}

pub(super) fn attributes_of(attributes: &Attributes) -> object_store::Attributes {
    let plain = [
        (Attribute::ContentType, &attributes.content_type),
        (Attribute::ContentEncoding, &attributes.content_encoding),
        (Attribute::ContentLanguage, &attributes.content_language),
        (Attribute::ContentDisposition, &attributes.content_disposition),
        (Attribute::CacheControl, &attributes.cache_control),
    ];
    let mut converted = object_store::Attributes::new();
    for (name, text) in plain {
        if let Some(text) = text {
            converted.insert(name, text.clone().into());
        }
    }
    for (name, text) in &attributes.user {
        converted.insert(Attribute::Metadata(Cow::Owned(name.clone())), text.clone().into());
    }
    converted
}

pub(super) fn object_meta(
    key: &ObjectKey,
    meta: &object_store::ObjectMeta,
    attributes: &object_store::Attributes,
) -> Result<ObjectMeta> {
    let mut converted = Attributes::default();
    for (name, text) in attributes {
        let text = text.as_ref().to_owned();
        match name {
            Attribute::ContentType => converted.content_type = Some(text),
            Attribute::ContentEncoding => converted.content_encoding = Some(text),
            Attribute::ContentLanguage => converted.content_language = Some(text),
            Attribute::ContentDisposition => converted.content_disposition = Some(text),
            Attribute::CacheControl => converted.cache_control = Some(text),
            Attribute::Metadata(name) => {
                converted.user.insert(name.to_lowercase(), text);
            }
            _ => {}
        }
    }
    let version = version_of(meta)?;
    let token = UpdateToken {
        etag: meta.e_tag.clone(),
        version: meta.version.clone(),
    };
    let modified = meta.last_modified.into();
    Ok(ObjectMeta {
        key: key.clone(),
        bytes: meta.size,
        version,
        modified,
        attributes: converted,
        token,
    })
}

pub(super) fn version_of(meta: &object_store::ObjectMeta) -> Result<Version> {
    let etag = meta.e_tag.as_deref().filter(|etag| !etag.is_empty());
    etag.map(Version::new).ok_or_else(|| {
        Error::new(
            Kind::Unsupported,
            "the lake gives no ETag, so versions cannot be told apart",
        )
    })
}

/// `None` if the store did not name the version.
pub(super) fn receipt(result: &object_store::PutResult) -> Option<PutReceipt> {
    let version = Version::new(result.e_tag.as_deref()?);
    let token = UpdateToken {
        etag: result.e_tag.clone(),
        version: result.version.clone(),
    };
    Some(PutReceipt {
        version,
        token,
        modified: None,
    })
}

/// The stream with an error at its end if it has not exactly so many bytes.
pub(super) fn exactly(stream: ByteStream, bytes: u64) -> ByteStream {
    futures::stream::unfold(Some((stream, bytes)), |state| async move {
        let (mut stream, bytes_left) = state?;
        match stream.next().await {
            Some(Ok(chunk)) if chunk.len() as u64 <= bytes_left => {
                let bytes_left = bytes_left - chunk.len() as u64;
                Some((Ok(chunk), Some((stream, bytes_left))))
            }
            Some(Ok(_)) => Some((
                Err(Error::new(
                    Kind::Unavailable,
                    "more bytes came than were announced",
                )),
                None,
            )),
            Some(Err(error)) => Some((Err(error), None)),
            None if bytes_left > 0 => {
                let error = Error::new(Kind::Unavailable, "fewer bytes came than were announced");
                Some((Err(error.with("bytes_missing", bytes_left)), None))
            }
            None => None,
        }
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_no_paths_are_refused() {
        for key in ["dir/", "/a", "a//b", "a/../b", "."] {
            assert_eq!(
                path_of(&ObjectKey::new(key).unwrap()).unwrap_err().kind(),
                Kind::InvalidInput,
                "{key}"
            );
        }
        assert_eq!(
            path_of(&ObjectKey::new("a/b c%41").unwrap()).unwrap().as_ref(),
            "a/b c%41"
        );
    }

    #[test]
    fn the_status_is_found_in_the_text_of_a_cause() {
        let error = |text: &str| object_store::Error::Generic {
            store: "x",
            source: text.to_owned().into(),
        };
        let kind = |text: &str| error_from(error(text), Kind::Changed).kind();
        assert_eq!(
            kind("Server returned non-2xx status code: 429 Too Many: "),
            Kind::Throttled
        );
        assert_eq!(
            kind("Server returned non-2xx status code: 500 Oops: "),
            Kind::Unavailable
        );
        assert_eq!(
            kind("Server returned non-2xx status code: 416 Range: "),
            Kind::OutOfRange
        );
        assert_eq!(kind("connection refused"), Kind::Unavailable);
    }
}
