//! `forebay nodes`: the nodes of the cluster, as one of them sees them.

use forebay_admin::api::ClusterNode;
use forebay_core::format_bytes;

use crate::admin_client::AdminClient;
use crate::args::NodeArgs;
use crate::exit::Outcome;
use crate::output::Output;

pub(crate) async fn run(args: &NodeArgs, output: Output) -> Outcome {
    let nodes: Vec<ClusterNode> = AdminClient::new(args)?.get("/v1/nodes").await?;
    output.data(&nodes);
    if nodes.is_empty() {
        output.say("This node is in no cluster; start it with --cluster NAME.");
        return Ok(());
    }
    let rows = nodes.into_iter().map(|node| {
        let state = match (node.is_self, node.is_passed_by) {
            (true, _) => format!("{} (this node)", node.state),
            (false, true) => format!("{}, passed by", node.state),
            (false, false) => node.state,
        };
        [
            node.id,
            node.peer,
            state,
            node.weight.to_string(),
            format_bytes(node.received_bytes),
            format_bytes(node.sent_bytes),
            node.fallbacks.to_string(),
        ]
    });
    output.table(
        ["NODE", "PEER", "STATE", "WEIGHT", "FROM IT", "TO IT", "FALLBACKS"],
        rows,
    );
    Ok(())
}
