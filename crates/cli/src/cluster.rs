//! `forebay cluster init`: makes the keys that nodes on several hosts share.

use forebay_node::make_cluster_keys;

use crate::args::{ClusterArgs, ClusterVerb};
use crate::exit::{Exit, Outcome};
use crate::output::Output;

pub(crate) fn run(args: &ClusterArgs, output: Output) -> Outcome {
    let ClusterVerb::Init { folder } = &args.verb;
    make_cluster_keys(folder).map_err(Exit::usage)?;
    let shown = folder.display();
    output.data(&serde_json::json!({ "keys": folder }));
    output.say(format!(
        "Made the keys of a cluster in {shown}. Whoever has them is a node: copy them by a safe way, e.g.\n  \
         scp -rp {shown} HOST:\n\
         The first node:\n  \
         forebay serve --cluster NAME --cluster-keys {shown} --peer ADDRESS:9002 --lake URL\n\
         Every other host:\n  \
         forebay serve --cluster NAME --cluster-keys {shown} --peer ITS-ADDRESS:9002 --lake URL --join ADDRESS:9002"
    ));
    Ok(())
}
