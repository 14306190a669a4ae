//! `forebay bucket ls|create`: through the node that `ls` and `cp` would go to, or the admin API where that
//! is named.

use anyhow::anyhow;
use forebay_admin::api::{Bucket, CreateBucket};
use forebay_client::Client;
use forebay_transfer::spawn_client_call;
use serde::Serialize;

use crate::admin_client::AdminClient;
use crate::args::{BucketArgs, BucketVerb, EndpointArgs, NodeArgs};
use crate::exit::{Exit, Outcome};
use crate::objects::node;
use crate::output::Output;

/// A bucket as it is shown.
#[derive(Serialize)]
struct Shown {
    name: String,
    /// Time of its creation; the admin API alone knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<String>,
}

pub(crate) async fn run(args: BucketArgs, output: Output) -> Outcome {
    match args.verb {
        BucketVerb::Ls(endpoint) => {
            for bucket in list(&endpoint).await? {
                output.data(&bucket);
                output.say(format!("forebay://{}/", bucket.name));
            }
            Ok(())
        }
        BucketVerb::Create { name, endpoint } => {
            let request = CreateBucket { name };
            match node::for_buckets(&endpoint).await? {
                Some(client) => create(client, request.name.clone()).await?,
                None => {
                    let admin = AdminClient::new(&endpoint.node)?;
                    admin.post_only("/v1/buckets", &request).await?;
                }
            }
            output.data(&request);
            output.say(format!("made forebay://{}/", request.name));
            Ok(())
        }
    }
}

/// The names of all buckets.
pub(crate) async fn names(node: &NodeArgs) -> Outcome<Vec<String>> {
    let buckets: Vec<Bucket> = AdminClient::new(node)?.get("/v1/buckets").await?;
    Ok(buckets.into_iter().map(|bucket| bucket.name).collect())
}

async fn list(endpoint: &EndpointArgs) -> Outcome<Vec<Shown>> {
    if let Some(client) = node::for_buckets(endpoint).await? {
        let names = spawn_client_call(move || client.buckets()).await?.into_iter();
        let shown = names.map(|name| Shown { name, created: None });
        return Ok(shown.collect());
    }
    let buckets: Vec<Bucket> = AdminClient::new(&endpoint.node)?.get("/v1/buckets").await?;
    let shown = buckets.into_iter().map(|bucket| Shown {
        name: bucket.name,
        created: Some(bucket.created),
    });
    Ok(shown.collect())
}

/// Makes a bucket. Clients do not mind one that is there; who types a command wants to know.
async fn create(client: Client, name: String) -> Outcome {
    let exists = spawn_client_call(move || {
        let exists = client.buckets()?.contains(&name);
        if !exists {
            client.create_bucket(&name)?;
        }
        Ok(exists)
    });
    if exists.await? {
        return Err(Exit::failure(anyhow!("this bucket exists already")));
    }
    Ok(())
}
