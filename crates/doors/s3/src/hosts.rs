//! Virtual-hosted requests: `bucket.domain/key` instead of `domain/bucket/key`.
//!
//! With `s3_domain` they are served ([`BucketHosts`]); the domain itself and all other host names are
//! path-style, because people run nodes behind any name. Without it, a request whose host begins with the
//! name of a bucket that is there is refused with advice ([`HostCheck`]): taken for path-style, a listing
//! would give the list of buckets, and a PUT or DELETE of an object would make or remove a bucket.
//!
//! Limits: the check asks for buckets after the signature is verified, and remembers so many hosts for a few
//! seconds.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_core::BucketName;
use forebay_engine::Engine;
use http::HeaderMap;
use http::header::HOST;
use parking_lot::Mutex;
use s3s::host::{S3Host, VirtualHost};
use s3s::{S3Result, s3_error};

/// Hosts that are remembered, at most.
const HOSTS_MAX: usize = 256;

/// The time for which the answer about a host holds: a bucket of its name may come or go.
const HOST_KNOWN_FOR: Duration = Duration::from_secs(5);

/// A bucket's name has at least three characters, and a host this many parts that could be one, at most.
const PARTS_MAX: usize = 8;

/// The buckets of one domain.
#[derive(Debug)]
pub(crate) struct BucketHosts {
    domain: String,
}

impl BucketHosts {
    pub(crate) fn new(domain: &str) -> Self {
        Self {
            domain: domain.to_ascii_lowercase(),
        }
    }
}

impl S3Host for BucketHosts {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        let name = without_port(host);
        let virtual_host = VirtualHost::new(self.domain.as_str());
        let bucket_length = name.len().checked_sub(self.domain.len() + 1);
        let bucket = bucket_length.and_then(|length| {
            let (bucket, domain) = (name.get(..length)?, name.get(length..)?.strip_prefix('.')?);
            (!bucket.is_empty() && domain.eq_ignore_ascii_case(&self.domain)).then_some(bucket)
        });
        Ok(match bucket {
            // Host names know no case, names of buckets have lower case.
            Some(bucket) => virtual_host.with_bucket(bucket.to_ascii_lowercase()),
            None => virtual_host,
        })
    }
}

/// Finds requests that name their bucket in the host, where nobody expects it there.
#[derive(Debug)]
pub(crate) struct HostCheck {
    engine: Arc<Engine>,
    known: Mutex<HashMap<String, KnownHost>>,
}

/// An answer about a host: the bucket that it begins with, if there is one.
#[derive(Debug, Clone)]
struct KnownHost {
    asked: Instant,
    bucket: Option<BucketName>,
}

impl HostCheck {
    /// A check, unless a domain says what hosts mean.
    pub(crate) fn new(engine: &Arc<Engine>, domain: Option<&str>) -> Option<Self> {
        domain.is_none().then(|| Self {
            engine: Arc::clone(engine),
            known: Mutex::default(),
        })
    }

    /// Refuses a request whose host begins with the name of a bucket.
    pub(crate) async fn check(&self, headers: &HeaderMap) -> S3Result<()> {
        let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else {
            return Ok(());
        };
        let name = without_port(host).to_ascii_lowercase();
        if candidates(&name).is_empty() {
            return Ok(());
        }
        let Some(bucket) = self.bucket_of(&name).await else {
            return Ok(());
        };
        let domain = name.get(bucket.as_str().len() + 1..).unwrap_or_default();
        Err(s3_error!(
            InvalidRequest,
            "the host '{name}' begins with the name of the bucket '{bucket}', but this node serves path-style requests only; \
             set s3_domain = \"{domain}\" on the node to serve virtual-hosted ones, or s3_domain = \"{name}\" if that is the \
             node's own name, or use path style (boto3: Config(s3={{'addressing_style': 'path'}}))"
        ))
    }

    async fn bucket_of(&self, host: &str) -> Option<BucketName> {
        if let Some(known) = self.known.lock().get(host)
            && known.asked.elapsed() < HOST_KNOWN_FOR
        {
            return known.bucket.clone();
        }
        let mut bucket = None;
        for name in candidates(host) {
            // A lake that cannot be asked is no reason to refuse: the request itself will find out.
            if self.engine.head_bucket(&name).await.is_ok() {
                bucket = Some(name);
                break;
            }
        }
        let mut known = self.known.lock();
        if known.len() >= HOSTS_MAX {
            known.clear();
        }
        let answer = KnownHost {
            asked: Instant::now(),
            bucket: bucket.clone(),
        };
        known.insert(host.to_owned(), answer);
        bucket
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// The names of buckets that a host begins with; none if it is an address or a single word.
fn candidates(host: &str) -> Vec<BucketName> {
    let is_address = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    if is_address {
        return Vec::new();
    }
    let dots = host.match_indices('.').take(PARTS_MAX);
    dots.filter_map(|(at, _)| BucketName::new(&host[..at]).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_front_of_the_domain_only() {
        let hosts = BucketHosts::new("s3.Lab.example");
        let bucket = |host: &str| {
            let parsed = hosts.parse_host_header(host).unwrap();
            parsed.bucket().map(str::to_owned)
        };
        assert_eq!(bucket("data.s3.lab.example").as_deref(), Some("data"));
        assert_eq!(bucket("a.b.s3.lab.EXAMPLE:9000").as_deref(), Some("a.b"));
        for host in [
            "s3.lab.example",
            "s3.lab.example:80",
            "localhost",
            ".s3.lab.example",
            "xs3.lab.example",
            "é",
        ] {
            assert_eq!(bucket(host), None, "{host}");
        }
    }

    #[test]
    fn addresses_and_single_words_name_no_bucket() {
        for host in ["127.0.0.1", "[::1]", "::1", "localhost", "a.b", ""] {
            assert!(candidates(host).is_empty(), "{host}");
        }
        let names: Vec<_> = candidates("data.set.example.com")
            .iter()
            .map(|name| name.as_str().to_owned())
            .collect();
        assert_eq!(names, ["data", "data.set", "data.set.example"]);
    }
}
