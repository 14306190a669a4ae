//! `forebay serve`: starts a node, says where it is, and stops it when told to.
//!
//! The first SIGTERM or SIGINT stops gracefully within the configured deadline, the second at once. Whatever
//! keeps the node from starting is a matter of configuration: one line, exit code 2.

use std::io::IsTerminal;
use std::path::Path;

use anyhow::Context;
use forebay_node::Node;
use forebay_node::config::Config;
use forebay_node::config::reference;
use forebay_node::keys::KeyFile;
use forebay_node::options::{NodeOptions, SocketSetting};
use forebay_node::value::Size;
use forebay_node::{descriptors, logging};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::ServeArgs;
use crate::config::resolve;
use crate::exit::{Exit, Outcome};
use crate::output::{Output, print_line};

/// A configuration with secrets that everybody can read is no reason not to start, but one to say so.
fn warn_of_open_secrets(config: Option<&Path>) {
    if let Some(file) = config
        && let Some(mode) = Config::open_secrets(file)
    {
        tracing::warn!(
            file = %file.display(),
            mode = format!("{mode:o}"),
            "everybody can read the secrets in the configuration; run chmod o-r on it, or use secret_file"
        );
    }
}

pub(crate) async fn run(args: ServeArgs, output: Output, program: &str) -> Outcome {
    let config = args.settings.config.clone();
    let options = resolve(args.settings)?;
    let log = logging::init(&options.log).map_err(Exit::usage)?;
    descriptors::raise_limit();
    warn_of_open_secrets(config.as_deref());
    let deadline = options.shutdown_deadline;
    let mut signals = Signals::new().context("cannot listen for signals")?;
    let mut node = tokio::select! {
        started = Node::start(options) => started.map_err(Exit::usage)?,
        () = signals.next() => return Ok(()),
    };
    announce(&node, output, program);
    let ready = node.wait_ready();
    let is_ready = tokio::select! {
        () = signals.next() => false,
        error = node.failed() => return Err(Exit::failure(error)),
        () = ready => true,
    };
    if is_ready {
        tracing::info!(s3 = shown(node.s3_url()), socket = socket(&node), "ready");
        if let Some(path) = &args.ready_file {
            write_ready_file(&node, path)?;
        }
        tokio::select! {
            () = signals.next() => {}
            error = node.failed() => return Err(Exit::failure(error)),
        }
    }
    tracing::info!(
        deadline_s = deadline.as_secs_f64(),
        "stopping; a second signal stops at once"
    );
    tokio::select! {
        () = node.shutdown(deadline) => {
            tracing::info!("stopped");
            Ok(())
        }
        () = signals.next() => {
            tracing::warn!("stopped at once by a second signal");
            drop(log);
            std::process::exit(130)
        }
    }
}

/// SIGTERM and SIGINT.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Written under another name and renamed, so that whoever waits for it reads all of it.
fn write_ready_file(node: &Node, path: &Path) -> Outcome {
    let document = addresses(node).to_string();
    let temporary = path.with_extension(format!("tmp{}", std::process::id()));
    std::fs::write(&temporary, document)
        .and_then(|()| std::fs::rename(&temporary, path))
        .with_context(|| format!("cannot write the ready file {}", path.display()))?;
    Ok(())
}

fn addresses(node: &Node) -> serde_json::Value {
    serde_json::json!({
        "s3": node.s3_url(),
        "admin": node.admin_url(),
        "socket": node.socket(),
        "peer": node.peer_addr().map(|addr| addr.to_string()),
        "data": node.options().data_dir,
        "pid": std::process::id(),
    })
}

fn announce(node: &Node, output: Output, program: &str) {
    if output.json {
        print_line(&addresses(node).to_string());
    } else if std::io::stdout().is_terminal() {
        // In one write, so that no log line falls into it.
        print_line(&screen(node, program).join("\n"));
    } else {
        print_line(&format!("s3 {}", shown(node.s3_url())));
        print_line(&format!("admin {}", shown(node.admin_url())));
        print_line(&format!("socket {}", socket(node)));
        print_line(&format!("keys {}", keys(node)));
    }
    if !std::io::stdout().is_terminal()
        && let Some(warning) = exposure(node)
    {
        tracing::warn!("{warning}");
    }
    match (node.why_not_ready(), node.lake_trouble()) {
        (Some(reason), _) => tracing::warn!(reason, "not ready yet; what is cached is served"),
        (None, Some(reason)) => {
            tracing::warn!(reason, "ready without a lake; its buckets answer with errors");
        }
        (None, None) => {}
    }
}

/// Warns of endpoints that others can reach and that are not encrypted.
fn exposure(node: &Node) -> Option<String> {
    let urls = node.exposed_urls();
    (!urls.is_empty()).then(|| {
        format!(
            "traffic to {} is not encrypted; give a certificate by --tls-cert and --tls-key (docs/guides/tls.md)",
            urls.join(" and ")
        )
    })
}

fn shown(address: Option<String>) -> String {
    address.unwrap_or_else(|| "off".to_owned())
}

fn socket(node: &Node) -> String {
    shown(node.socket().map(|path| path.display().to_string()))
}

fn keys(node: &Node) -> String {
    match node.options().keys.first() {
        Some(key) => format!("as configured; the first is {}", key.id),
        None => KeyFile::path(&node.options().data_dir).display().to_string(),
    }
}

fn screen(node: &Node, program: &str) -> Vec<String> {
    let options = node.options();
    let nvme = match options.nvme_bytes {
        0 => "off".to_owned(),
        bytes => format!("{} in {}", Size(bytes).rounded(), options.nvme_dir().display()),
    };
    let mut lines = vec![
        format!("Forebay {}", env!("CARGO_PKG_VERSION")),
        String::new(),
        format!(
            "  S3        {}  (region {})",
            shown(node.s3_url()),
            options.region
        ),
        format!("  Admin     {}", shown(node.admin_url())),
        format!("  Socket    {}", socket(node)),
        format!("  Lake      {}", options.lake),
        format!("  RAM tier  {}", Size(options.ram_bytes).rounded()),
        format!("  NVMe tier {nvme}"),
        format!("  Keys      {}", keys(node)),
    ];
    lines.extend(exposure(node).map(|warning| format!("  Warning   {warning}")));
    lines.extend([String::new(), "Try it in another terminal:".to_owned()]);
    lines.extend(exports(node, options).map(|line| format!("  {line}")));
    // As it was started, so that the commands can be pasted: `cargo run` puts nothing on the PATH.
    lines.extend([
        format!("  {program} bucket create demo"),
        format!("  {program} cp /etc/hostname forebay://demo/hello.txt"),
        format!("  {program} cat forebay://demo/hello.txt"),
        String::new(),
    ]);
    lines
}

/// Returns what the commands need to find this node, if it is not where they look first.
fn exports(node: &Node, options: &NodeOptions) -> impl Iterator<Item = String> {
    let mut words = Vec::new();
    if let Some(url) = node.s3_url().filter(|url| url != "http://127.0.0.1:9000") {
        words.push(format!("FOREBAY_S3={url}"));
    }
    if let Some(url) = node.admin_url().filter(|url| url != "http://127.0.0.1:9001") {
        words.push(format!("FOREBAY_ADMIN={url}"));
    }
    if let (Some(path), SocketSetting::Chosen(_)) = (node.socket(), &options.ipc.socket) {
        words.push(format!("FOREBAY_NODE={}", path.display()));
    }
    if options.tls.is_some() {
        words.push("FOREBAY_CA=…".to_owned());
    }
    if !options.keys.is_empty() {
        words.push(format!(
            "{}=… {}=…",
            reference::ACCESS_KEY_ID,
            reference::SECRET_ACCESS_KEY
        ));
    } else if options.data_dir != Path::new("./forebay-data") {
        words.push(format!("FOREBAY_DATA={}", options.data_dir.display()));
    }
    (!words.is_empty())
        .then(|| format!("export {}", words.join(" ")))
        .into_iter()
}
