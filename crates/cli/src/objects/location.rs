//! Location of an object, a prefix or a file, as people type it. Nothing is opened here.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use forebay_core::{BucketName, Error, Kind, Result};
use forebay_node::lake_url::LakeUrl;

/// Location of objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Location {
    /// All buckets of a node: `forebay://`.
    Buckets,
    /// In a bucket of a node: `forebay://bucket/key`.
    Node {
        /// The bucket.
        bucket: BucketName,
        /// A key or prefix, maybe empty.
        key: String,
    },
    /// In a lake: `s3://bucket/key?endpoint=…`.
    Lake {
        /// The URL of the store, without the key.
        store: String,
        /// The same for people, without parameters, ending with `/`.
        shown: String,
        /// A key or prefix, maybe empty.
        key: String,
    },
    /// A file or folder of this machine: a path or `file:///path`.
    Local(PathBuf),
}

impl FromStr for Location {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some((scheme, rest)) = text.split_once("://") else {
            if text.is_empty() {
                return Err(Error::new(Kind::InvalidInput, "a location must not be empty"));
            }
            return Ok(Self::Local(PathBuf::from(text)));
        };
        match scheme {
            "forebay" => node(rest),
            "file" => file(text),
            "s3" | "gs" | "az" => lake(text, scheme, rest),
            _ => {
                let message = format!(
                    "'{scheme}://' is not known; write forebay://bucket/key, s3://bucket/key, gs://bucket/key, \
                     az://container/key or a path"
                );
                Err(Error::new(Kind::InvalidInput, message))
            }
        }
    }
}

fn node(rest: &str) -> Result<Location> {
    if rest.is_empty() {
        return Ok(Location::Buckets);
    }
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    Ok(Location::Node {
        bucket: BucketName::new(bucket)?,
        key: key.to_owned(),
    })
}

fn file(text: &str) -> Result<Location> {
    let path = url::Url::parse(text).ok().and_then(|url| url.to_file_path().ok());
    path.map(Location::Local).ok_or_else(|| {
        Error::new(
            Kind::InvalidInput,
            format!("'{text}' is not a file URL; write file:///path"),
        )
    })
}

fn lake(text: &str, scheme: &str, rest: &str) -> Result<Location> {
    LakeUrl::parse(text)?;
    // Keys are taken as they are typed, without decoding, as other S3 tools do.
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
    if bucket.is_empty() {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("'{text}' names no bucket"),
        ));
    }
    let separator = if query.is_empty() { "" } else { "?" };
    Ok(Location::Lake {
        store: format!("{scheme}://{bucket}{separator}{query}"),
        shown: format!("{scheme}://{bucket}/"),
        key: key.to_owned(),
    })
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buckets => f.write_str("forebay://"),
            Self::Node { bucket, key } => write!(f, "forebay://{bucket}/{key}"),
            Self::Lake { shown, key, .. } => write!(f, "{shown}{key}"),
            Self::Local(path) => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_are_read() {
        let parse = |text: &str| text.parse::<Location>().unwrap();
        assert_eq!(parse("forebay://"), Location::Buckets);
        let Location::Node { bucket, key } = parse("forebay://data/a/b c") else {
            panic!("a node")
        };
        assert_eq!((bucket.as_str(), key.as_str()), ("data", "a/b c"));
        let Location::Lake { store, shown, key } = parse("s3://box/a/b?endpoint=http://h:1&style=path")
        else {
            panic!("a lake")
        };
        assert_eq!(
            (store.as_str(), shown.as_str(), key.as_str()),
            ("s3://box?endpoint=http://h:1&style=path", "s3://box/", "a/b")
        );
        assert_eq!(parse("file:///tmp/x"), Location::Local("/tmp/x".into()));
        assert_eq!(parse("some/path"), Location::Local("some/path".into()));
    }

    #[test]
    fn wrong_forms_say_what_is_accepted() {
        for text in [
            "ftp://x/y",
            "forebay://No/x",
            "s3:///key",
            "",
            "s3://me:pass@box/x",
            "file://host/x",
        ] {
            let error = text.parse::<Location>().unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidInput, "{text}");
            assert!(!error.to_string().contains("pass@"), "{error}");
        }
    }
}
