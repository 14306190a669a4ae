//! `forebay cache warm|evict|pin|unpin PREFIX`: each starts a job.

use anyhow::anyhow;
use forebay_admin::api::CacheRequest;
use forebay_admin::jobs::JobInfo;

use crate::admin_client::AdminClient;
use crate::args::{CacheArgs, CacheVerb};
use crate::exit::{Exit, Outcome};
use crate::jobs;
use crate::output::Output;

pub(crate) async fn run(args: CacheArgs, output: Output) -> Outcome {
    let (verb, target) = match args.verb {
        CacheVerb::Warm(target) => ("warm", target),
        CacheVerb::Evict(target) => ("evict", target),
        CacheVerb::Pin(target) => ("pin", target),
        CacheVerb::Unpin(target) => ("unpin", target),
    };
    let request = request(&target.prefix)?;
    let client = AdminClient::new(&target.node)?;
    let job: JobInfo = client.post(&format!("/v1/cache/{verb}"), &request).await?;
    if target.wait {
        return jobs::wait(&client, &job.id, output).await;
    }
    output.data(&job);
    output.say(format!(
        "job {} started; wait for it with: forebay jobs wait {}",
        job.id, job.id
    ));
    Ok(())
}

/// `bucket`, `bucket/prefix`, `forebay://bucket/prefix`.
fn request(text: &str) -> Outcome<CacheRequest> {
    let bare = text.strip_prefix("forebay://").unwrap_or(text);
    let (bucket, prefix) = bare.split_once('/').unwrap_or((bare, ""));
    if bucket.is_empty() || bucket.contains(':') {
        return Err(Exit::usage(anyhow!(
            "'{text}' names no bucket; write for example bucket/prefix"
        )));
    }
    Ok(CacheRequest {
        bucket: bucket.to_owned(),
        prefix: prefix.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_read_with_and_without_scheme() {
        for text in ["data/train/", "forebay://data/train/"] {
            let request = request(text).unwrap();
            assert_eq!(
                (request.bucket.as_str(), request.prefix.as_str()),
                ("data", "train/")
            );
        }
        assert_eq!(request("data").unwrap().prefix, "");
        assert!(request("s3://data/x").unwrap_err().is_usage);
        assert!(request("/x").is_err());
    }
}
