//! `forebay status`: tiers, hit rates, lake traffic, what is in flight.

use std::time::Duration;

use forebay_admin::api::{Status, Tier};
use forebay_core::format_bytes;

use crate::admin_client::AdminClient;
use crate::args::NodeArgs;
use crate::exit::Outcome;
use crate::output::Output;

pub(crate) async fn run(args: &NodeArgs, output: Output) -> Outcome {
    let status: Status = AdminClient::new(args)?.get("/v1/status").await?;
    output.data(&status);
    let uptime = humantime::format_duration(Duration::from_secs(status.uptime_seconds));
    let state = if status.ready { "ready" } else { "not ready" };
    output.say(format!(
        "Forebay {} is {state}, up {uptime} (pid {})",
        status.version, status.pid
    ));
    let socket = status.socket.as_deref().unwrap_or("off");
    output.say(format!("S3 {}, socket {socket}\n", status.s3));
    output.table(
        ["TIER", "USED", "BUDGET", "PAGES", "EVICTED"],
        [row("ram", status.ram), row("nvme", status.nvme)],
    );
    output.say("");
    let served = status.served;
    let ratio = served.hit_ratio.map_or("no reads yet".to_owned(), |ratio| {
        format!("{:.1} % without waiting for the lake", ratio * 100.0)
    });
    output.say(format!(
        "served    {} from ram, {} from nvme, {} from other nodes, {} from the lake ({ratio})",
        format_bytes(served.ram_bytes),
        format_bytes(served.nvme_bytes),
        format_bytes(served.peer_bytes),
        format_bytes(served.lake_bytes)
    ));
    output.say(format!("pinned    {}", format_bytes(status.pinned_bytes)));
    output.say(format!(
        "corrupt   {} blocks found and fetched again",
        status.corrupt_blocks
    ));
    let clients = status.clients;
    output.say(format!(
        "clients   {} on this host hold {} views ({}), staging {} of {}",
        clients.sessions,
        clients.leases,
        format_bytes(clients.leased_bytes),
        format_bytes(clients.staging_used_bytes),
        format_bytes(clients.staging_budget_bytes)
    ));
    let flight = status.in_flight;
    output.say(format!(
        "in flight {} requests ({}), {} leased pages, {} jobs\n",
        flight.s3_requests,
        format_bytes(flight.s3_bytes),
        flight.leased_pages,
        flight.jobs
    ));
    let lakes = status.lakes.into_iter().map(|lake| {
        [
            lake.bucket
                .map_or(lake.url.clone(), |bucket| format!("{} ({bucket})", lake.url)),
            if lake.up { "up" } else { "down" }.to_owned(),
            lake.requests.to_string(),
            lake.failed_requests.to_string(),
            format_bytes(lake.read_bytes),
            format_bytes(lake.written_bytes),
            lake.finding,
        ]
    });
    output.table(
        [
            "LAKE", "STATE", "REQUESTS", "FAILED", "READ", "WRITTEN", "FINDING",
        ],
        lakes,
    );
    Ok(())
}

fn row(name: &str, tier: Tier) -> [String; 5] {
    let budget = if tier.budget_bytes == 0 {
        "off".to_owned()
    } else {
        format_bytes(tier.budget_bytes)
    };
    [
        name.to_owned(),
        format_bytes(tier.used_bytes),
        budget,
        tier.pages.to_string(),
        tier.evicted_pages.to_string(),
    ]
}
