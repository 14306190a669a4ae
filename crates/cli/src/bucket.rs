//! `forebay bucket ls|create`.

use forebay_node::admin::api::{Bucket, CreateBucket};

use crate::admin_client::AdminClient;
use crate::args::{BucketArgs, BucketVerb, NodeArgs};
use crate::exit::Outcome;
use crate::output::Output;

pub(crate) async fn run(args: BucketArgs, output: Output) -> Outcome {
    match args.verb {
        BucketVerb::Ls(node) => list(&node, output).await,
        BucketVerb::Create { name, node } => {
            let request = CreateBucket { name };
            AdminClient::new(&node)?
                .post_only("/v1/buckets", &request)
                .await?;
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

async fn list(node: &NodeArgs, output: Output) -> Outcome {
    let buckets: Vec<Bucket> = AdminClient::new(node)?.get("/v1/buckets").await?;
    for bucket in &buckets {
        output.data(bucket);
        output.say(format!("forebay://{}/", bucket.name));
    }
    Ok(())
}
