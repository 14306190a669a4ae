//! The headers that HTTP and S3 clients attach to an object, besides user metadata.

use serde::{Deserialize, Serialize};

/// Headers that are kept beside the bytes of an object and given back with them, as they were set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Headers {
    /// `Content-Type`.
    pub content_type: Option<String>,
    /// `Content-Encoding`.
    pub content_encoding: Option<String>,
    /// `Content-Language`.
    pub content_language: Option<String>,
    /// `Content-Disposition`.
    pub content_disposition: Option<String>,
    /// `Cache-Control`.
    pub cache_control: Option<String>,
}

impl Headers {
    /// Each of them with its name in lower case, said or not.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, Option<&str>)> {
        [
            ("content-type", &self.content_type),
            ("content-encoding", &self.content_encoding),
            ("content-language", &self.content_language),
            ("content-disposition", &self.content_disposition),
            ("cache-control", &self.cache_control),
        ]
        .into_iter()
        .map(|(name, value)| (name, value.as_deref()))
    }

    /// Those that `find` knows the value of, by their names in lower case.
    #[must_use]
    pub fn find(find: impl Fn(&str) -> Option<String>) -> Self {
        Self {
            content_type: find("content-type"),
            content_encoding: find("content-encoding"),
            content_language: find("content-language"),
            content_disposition: find("content-disposition"),
            cache_control: find("cache-control"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_by_name_is_found_by_name() {
        let headers = Headers {
            content_type: Some("text/plain".into()),
            content_encoding: Some("gzip".into()),
            content_language: Some("en".into()),
            content_disposition: Some("inline".into()),
            cache_control: Some("no-store".into()),
        };
        let told: Vec<_> = headers.fields().collect();
        let find = |name: &str| {
            let field = told.iter().find(|(known, _)| *known == name)?;
            field.1.map(str::to_owned)
        };
        assert_eq!(Headers::find(find), headers);
    }
}
