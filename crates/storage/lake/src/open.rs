//! From a URL to a lake.
//!
//! A URL says which store and which part of it; options, the URL's query, the environment and the AWS profile
//! files say how to reach it, in this order of rank. Secrets come from options, environment and files only: a
//! URL is printed in messages, so keys in it are refused.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Kind, Result};
use forebay_net::ClientTls;
use http::Uri;

use crate::backend::object_store;
use crate::backend::s3::S3Lake;
use crate::backend::s3::client::{BucketLocation, S3Client};
use crate::backend::s3::credentials::{Credentials, Keys};
use crate::backend::s3::profile::Profile;
use crate::{
    Admission, AdmissionOptions, FolderLake, Lake, MemoryLake, Prefixed, ThrottleOptions, Throttled,
};

const ACCEPTED: &str = "write a folder (/path or file:///path), s3://bucket[/prefix], gs://bucket[/prefix], \
                        az://container[/prefix] or memory://";
const REGION_DEFAULT: &str = "us-east-1";

/// Position of the bucket's name in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AddressStyle {
    /// `https://endpoint/bucket/key`.
    Path,
    /// `https://bucket.endpoint/key`.
    Virtual,
}

/// Access settings that neither the URL nor the environment gives. All fields may be left out.
#[derive(Clone, Default)]
pub struct OpenOptions {
    /// The S3 endpoint, `http://host:port`.
    pub endpoint: Option<String>,
    /// The S3 region.
    pub region: Option<String>,
    /// Position of the bucket's name.
    pub style: Option<AddressStyle>,
    /// The S3 access key id; only together with the secret.
    pub access_key_id: Option<String>,
    /// The S3 secret key.
    pub secret_access_key: Option<String>,
    /// The token of temporary S3 keys.
    pub session_token: Option<String>,
    /// Trust and identity towards an `https` endpoint; by default the machine's authorities are trusted.
    pub tls: ClientTls,
    /// The way to the lake that its readers take too; else its requests have one of their own.
    pub admission: Option<Arc<Admission>>,
}

impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenOptions")
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("style", &self.style)
            .field("has_keys", &self.secret_access_key.is_some())
            .finish_non_exhaustive()
    }
}

/// Opens a lake. Reads configuration files, does not talk to the lake yet.
pub async fn open(url: &str, options: &OpenOptions) -> Result<Arc<dyn Lake>> {
    let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let opened = async {
        let (url, slow) = split_throttle(url)?;
        let lake = open_with(&url, options, &env).await?;
        Ok(match slow {
            Some(slow) => Arc::new(Throttled::new(lake, slow)),
            None => lake,
        })
    };
    opened
        .await
        .map_err(|error: Error| error.with("lake", without_query(url)))
}

/// Takes `latency_ms` and `bytes_per_s` out of a URL: any lake can be made as slow as a far one, for trying
/// out.
fn split_throttle(url: &str) -> Result<(String, Option<ThrottleOptions>)> {
    let Some((place, query)) = url.split_once('?') else {
        return Ok((url.to_owned(), None));
    };
    let mut slow: Option<ThrottleOptions> = None;
    let mut rest = url::form_urlencoded::Serializer::new(String::new());
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let number = || {
            let number = value.parse::<u64>().ok().filter(|number| *number > 0);
            number.ok_or_else(|| {
                let message = "latency_ms and bytes_per_s of a lake's URL are whole numbers above 0";
                Error::new(Kind::InvalidInput, message).with("name", &name)
            })
        };
        match &*name {
            "latency_ms" => slow.get_or_insert_default().latency = Duration::from_millis(number()?),
            "bytes_per_s" => slow.get_or_insert_default().bytes_per_s = Some(number()?),
            _ => {
                rest.append_pair(&name, &value);
            }
        }
    }
    let rest = rest.finish();
    let url = if rest.is_empty() {
        place.to_owned()
    } else {
        format!("{place}?{rest}")
    };
    Ok((url, slow))
}

async fn open_with(
    url: &str,
    options: &OpenOptions,
    env: &(impl Fn(&str) -> Option<String> + Sync),
) -> Result<Arc<dyn Lake>> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return open_folder(PathBuf::from(url)).await;
    };
    match scheme {
        "file" => open_folder(folder_of(url)?).await,
        "memory" => Ok(under_prefix(Arc::new(MemoryLake::new()), without_query(rest))),
        "s3" => open_s3(&CloudUrl::parse(rest)?, options, env).await,
        "gs" => {
            let url = CloudUrl::parse(rest)?;
            Ok(under_prefix(
                Arc::new(object_store::open_gcs(&url.bucket)?),
                &url.prefix,
            ))
        }
        "az" => {
            let url = CloudUrl::parse(rest)?;
            Ok(under_prefix(
                Arc::new(object_store::open_azure(&url.bucket)?),
                &url.prefix,
            ))
        }
        _ => Err(wrong_url(&format!(
            "there is no lake with the scheme {scheme}://"
        ))),
    }
}

async fn open_folder(path: PathBuf) -> Result<Arc<dyn Lake>> {
    if path.as_os_str().is_empty() {
        return Err(wrong_url("the lake's URL is empty"));
    }
    let opened = tokio::task::spawn_blocking(move || FolderLake::open(path)).await;
    let lake =
        opened.map_err(|why| Error::new(Kind::Internal, "opening the folder stopped").caused_by(why))??;
    Ok(Arc::new(lake))
}

fn folder_of(url: &str) -> Result<PathBuf> {
    let parsed = url::Url::parse(url).map_err(|why| wrong_url("the file URL is malformed").caused_by(why))?;
    parsed
        .to_file_path()
        .map_err(|()| wrong_url("a file URL has three slashes and an absolute path: file:///path"))
}

async fn open_s3(
    url: &CloudUrl,
    options: &OpenOptions,
    env: &(impl Fn(&str) -> Option<String> + Sync),
) -> Result<Arc<dyn Lake>> {
    let profile = Profile::load(env).await?;
    let location = location_of(url, options, &profile, env)?;
    let credentials = match url.query("anonymous").as_deref() {
        Some("true" | "1") => Credentials::Anonymous,
        _ => Credentials::find(given_keys(options)?, &profile, env)?,
    };
    let name = format!("s3://{}", url.bucket);
    let own = || Admission::new(name.as_str(), AdmissionOptions::default());
    let admission = options.admission.clone().unwrap_or_else(own);
    let client = S3Client::new(location, credentials, &options.tls, admission)?;
    let lake = S3Lake::new(name, client);
    Ok(under_prefix(Arc::new(lake), &url.prefix))
}

fn given_keys(options: &OpenOptions) -> Result<Option<Keys>> {
    match (&options.access_key_id, &options.secret_access_key) {
        (Some(id), Some(secret)) => Ok(Some(Keys {
            id: id.clone(),
            secret: secret.clone(),
            token: options.session_token.clone(),
        })),
        (None, None) => Ok(None),
        _ => Err(Error::new(
            Kind::InvalidInput,
            "an access key id and a secret key go together; give both or none",
        )),
    }
}

fn location_of(
    url: &CloudUrl,
    options: &OpenOptions,
    profile: &Profile,
    env: &impl Fn(&str) -> Option<String>,
) -> Result<BucketLocation> {
    let of_profile = |name: &str| profile.get(name).map(str::to_owned);
    let region = (options.region.clone())
        .or_else(|| url.query("region"))
        .or_else(|| env("AWS_REGION"))
        .or_else(|| env("AWS_DEFAULT_REGION"))
        .or_else(|| of_profile("region"))
        .unwrap_or_else(|| REGION_DEFAULT.to_owned());
    let endpoint = (options.endpoint.clone())
        .or_else(|| url.query("endpoint"))
        .or_else(|| env("AWS_ENDPOINT_URL_S3"))
        .or_else(|| env("AWS_ENDPOINT_URL"))
        .or_else(|| env("AWS_ENDPOINT"))
        .or_else(|| of_profile("endpoint_url"));
    let style = match (options.style, url.query("style").as_deref()) {
        (Some(style), _) => style,
        (None, Some("path")) => AddressStyle::Path,
        (None, Some("virtual")) => AddressStyle::Virtual,
        (None, Some(_)) => return Err(wrong_url("style is either path or virtual")),
        // A dot in the name breaks the certificate of a virtual host; other servers mostly want paths.
        (None, None) if endpoint.is_none() && !url.bucket.contains('.') => AddressStyle::Virtual,
        (None, None) => AddressStyle::Path,
    };
    let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
    Ok(BucketLocation {
        endpoint: endpoint_of(&endpoint)?,
        region,
        bucket: url.bucket.clone(),
        style,
    })
}

fn endpoint_of(text: &str) -> Result<Uri> {
    let wrong = || {
        Error::new(
            Kind::InvalidInput,
            "an S3 endpoint is http://host[:port] or https://host[:port], without path and keys",
        )
    };
    let uri: Uri = text
        .trim_end_matches('/')
        .parse()
        .map_err(|why: http::uri::InvalidUri| wrong().caused_by(why))?;
    let has_keys = uri
        .authority()
        .is_none_or(|authority| authority.as_str().contains('@'));
    let is_plain = uri.path().trim_end_matches('/').is_empty() && uri.query().is_none();
    match uri.scheme_str() {
        Some("http" | "https") if is_plain && !has_keys => Ok(uri),
        _ => Err(wrong()),
    }
}

fn under_prefix(lake: Arc<dyn Lake>, prefix: &str) -> Arc<dyn Lake> {
    let prefix = prefix.trim_matches('/');
    if prefix.is_empty() {
        lake
    } else {
        Arc::new(Prefixed::new(lake, format!("{prefix}/")))
    }
}

fn wrong_url(why: &str) -> Error {
    Error::new(Kind::InvalidInput, format!("{why}; {ACCEPTED}"))
}

fn without_query(url: &str) -> &str {
    url.split_once('?').map_or(url, |(url, _)| url)
}

/// `bucket/prefix?name=value`.
#[derive(Debug)]
struct CloudUrl {
    bucket: String,
    prefix: String,
    query: Vec<(String, String)>,
}

impl CloudUrl {
    fn parse(rest: &str) -> Result<Self> {
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
        if bucket.contains('@') || bucket.contains(':') {
            return Err(wrong_url(
                "keys do not belong in a lake's URL; put them in the environment",
            ));
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if bucket.is_empty() || !bucket.chars().all(is_name) {
            return Err(wrong_url(
                "the bucket's name is missing or has illegal characters",
            ));
        }
        let query: Vec<(String, String)> = url::form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect();
        for (name, _) in &query {
            if !matches!(name.as_str(), "endpoint" | "region" | "style" | "anonymous") {
                let message =
                    "a lake's URL takes only endpoint, region, style and anonymous after the question mark";
                return Err(Error::new(Kind::InvalidInput, message).with("name", name));
            }
        }
        Ok(Self {
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            query,
        })
    }

    fn query(&self, name: &str) -> Option<String> {
        self.query
            .iter()
            .find(|(found, _)| found == name)
            .map(|(_, value)| value.clone())
    }
}

#[cfg(test)]
mod tests;
