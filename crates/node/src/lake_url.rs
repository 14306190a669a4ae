//! The URL of a lake as configured: checked for credentials, with a form that may be shown.
//!
//! The lake crate opens URLs; this type only makes sure that none carries a secret (they belong into the
//! environment) and that a plain folder becomes an absolute one, so that messages say where it is.

use std::fmt;
use std::path::Path;

use forebay_core::{Error, Kind, Result};

const ACCEPTED: &str =
    "write a folder, file:///path, s3://bucket[/prefix], gs://bucket, az://container or memory://";

/// Parameters in a lake's URL; the last two make a lake slow, for trying out.
const KNOWN: [&str; 6] = [
    "endpoint",
    "region",
    "style",
    "anonymous",
    "latency_ms",
    "bytes_per_s",
];

/// A lake URL without secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct LakeUrl(String);

impl LakeUrl {
    /// Checks a URL or folder path.
    pub fn parse(text: &str) -> Result<Self> {
        if text.trim().is_empty() {
            return Err(Error::new(
                Kind::InvalidInput,
                format!("the lake is empty; {ACCEPTED}"),
            ));
        }
        let Some((scheme, _)) = text.split_once("://") else {
            return Self::folder(Path::new(text));
        };
        if !matches!(scheme, "file" | "s3" | "gs" | "az" | "memory") {
            let message = format!("'{scheme}://' is not a lake; {ACCEPTED}");
            return Err(Error::new(Kind::InvalidInput, message));
        }
        let url = url::Url::parse(text).map_err(|why| {
            Error::new(
                Kind::InvalidInput,
                format!("the lake is not a URL ({why}); {ACCEPTED}"),
            )
        })?;
        let endpoint_has_user = url
            .query_pairs()
            .filter_map(|(_, value)| url::Url::parse(&value).ok())
            .any(|inner| !inner.username().is_empty() || inner.password().is_some());
        if !url.username().is_empty() || url.password().is_some() || endpoint_has_user {
            let message = "the lake URL holds credentials; set them in the environment instead, \
                           for example AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
            return Err(Error::new(Kind::InvalidInput, message));
        }
        if let Some((name, _)) = url.query_pairs().find(|(name, _)| !KNOWN.contains(&&**name)) {
            let message = format!(
                "the lake URL has the unknown parameter '{name}'; known are {}",
                KNOWN.join(", ")
            );
            return Err(Error::new(Kind::InvalidInput, message));
        }
        Ok(Self(text.to_owned()))
    }

    /// A folder, made absolute.
    pub fn folder(path: &Path) -> Result<Self> {
        let absolute = std::path::absolute(path).map_err(|why| {
            Error::io(format!("cannot find the folder: {why}"), why).with("folder", path.display())
        })?;
        let url = url::Url::from_file_path(&absolute).map_err(|()| {
            Error::new(Kind::InvalidInput, "not a folder path").with("folder", path.display())
        })?;
        Ok(Self(url.into()))
    }

    /// The folder behind a `file://` URL.
    #[must_use]
    pub fn as_folder(&self) -> Option<std::path::PathBuf> {
        url::Url::parse(&self.0)
            .ok()
            .filter(|url| url.scheme() == "file")
            .and_then(|url| url.to_file_path().ok())
    }

    /// The URL; it holds no secret.
    #[must_use]
    pub fn shown(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for LakeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for LakeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_become_absolute_urls() {
        assert_eq!(LakeUrl::parse("/srv/lake").unwrap().shown(), "file:///srv/lake");
        assert!(LakeUrl::parse("lake").unwrap().shown().starts_with("file:///"));
        assert_eq!(
            LakeUrl::parse("/srv/my lake").unwrap().as_folder().unwrap(),
            Path::new("/srv/my lake")
        );
    }

    #[test]
    fn credentials_in_a_url_are_refused_and_not_repeated() {
        for text in [
            "s3://me:hunter2@bucket",
            "s3://bucket?endpoint=http://me:hunter2@host:9000",
        ] {
            let error = LakeUrl::parse(text).unwrap_err();
            assert!(error.to_string().contains("credentials"), "{error}");
            assert!(!error.to_string().contains("hunter2"));
        }
        let error = LakeUrl::parse("az://box?sig=hunter2").unwrap_err();
        assert!(!error.to_string().contains("hunter2"));
    }

    #[test]
    fn unknown_schemes_say_what_is_accepted() {
        assert!(
            LakeUrl::parse("ftp://x")
                .unwrap_err()
                .to_string()
                .contains("s3://bucket")
        );
        assert!(LakeUrl::parse("s3://bucket/prefix?endpoint=http://127.0.0.1:8333&style=path").is_ok());
    }
}
