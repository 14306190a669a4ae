//! Route from `forebay://` to a node: by its socket on this host, or by its S3 endpoint.
//!
//! Arguments count first (`--node`, `--endpoint`), then the environment (`FOREBAY_NODE`, `FOREBAY_S3`), then
//! the socket of this user's node if one answers there, then the usual address of an S3 endpoint. Over the
//! socket no keys are needed: the kernel says who asks.

use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use forebay_client::{Client, ClientOptions, Credentials};
use forebay_core::{BucketName, Kind};
use forebay_lake::{AddressStyle, Admission, AdmissionOptions, Lake, OpenOptions};
use forebay_net::{ClientTls, Connector};
use forebay_node::config::reference;
use forebay_node::keys::KeyFile;
use forebay_transfer::{OpenLocation, SocketLake, client_options, spawn_client_call};

use super::location::Location;
use crate::admin_client::endpoint;
use crate::args::EndpointArgs;
use crate::exit::{Exit, Outcome};

/// Time limit of a connection attempt.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Longest wait of one request for a lake or a node that throttles or is away.
const PATIENCE: Duration = Duration::from_secs(300);

/// S3 endpoint if nobody says it.
const ENDPOINT: &str = "http://127.0.0.1:9000";

/// Route to a node.
pub(crate) enum NodeRoute {
    /// Through its socket.
    Socket(Client),
    /// Through its S3 endpoint, at this address.
    S3Endpoint(String),
}

/// Node that was named by an argument or the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
enum NodeChoice {
    Socket(String),
    S3Endpoint(String),
    Nothing,
}

/// Finds the node, and whether it is there.
pub(crate) async fn find(args: &EndpointArgs) -> Outcome<NodeRoute> {
    match node_choice(args, |name| std::env::var(name).ok()) {
        NodeChoice::Socket(address) => Ok(NodeRoute::Socket(connect(Some(address)).await?)),
        NodeChoice::S3Endpoint(text) => route_to_s3(args, endpoint(&text)?).await,
        NodeChoice::Nothing => match connect(None).await {
            Ok(client) => Ok(NodeRoute::Socket(client)),
            Err(error) if error.kind() == Kind::Unavailable => route_to_s3(args, ENDPOINT.to_owned()).await,
            Err(error) => Err(error.into()),
        },
    }
}

/// The node for commands about buckets; `None` where its admin API is to be asked, because that was named, or
/// neither another way nor a socket is there.
pub(crate) async fn for_buckets(args: &EndpointArgs) -> Outcome<Option<Client>> {
    let is_typed = args.node_address.is_some() || args.endpoint.is_some();
    if args.node.admin.is_some() && !is_typed {
        return Ok(None);
    }
    match node_choice(args, |name| std::env::var(name).ok()) {
        NodeChoice::Socket(address) => Ok(Some(connect(Some(address)).await?)),
        NodeChoice::S3Endpoint(text) => connect_by_s3(args, endpoint(&text)?).await.map(Some),
        NodeChoice::Nothing => match connect(None).await {
            Ok(client) => Ok(Some(client)),
            Err(error) if error.kind() == Kind::Unavailable => Ok(None),
            Err(error) => Err(error.into()),
        },
    }
}

async fn connect_by_s3(args: &EndpointArgs, endpoint: String) -> Outcome<Client> {
    let OpenOptions {
        access_key_id,
        secret_access_key,
        ..
    } = options(args, endpoint.clone())?;
    let keys = access_key_id.zip(secret_access_key);
    let options = ClientOptions {
        credentials: keys.map(|(access_key_id, secret_access_key)| Credentials {
            access_key_id,
            secret_access_key,
        }),
        tls: args.node.tls.client(),
        ..client_options(Some(endpoint))
    };
    Ok(spawn_client_call(move || Client::connect(options)).await?)
}

fn node_choice(args: &EndpointArgs, variable: impl Fn(&str) -> Option<String>) -> NodeChoice {
    let node = |address: String| {
        if address.starts_with("http://") || address.starts_with("https://") {
            NodeChoice::S3Endpoint(address)
        } else {
            NodeChoice::Socket(address)
        }
    };
    let set = |name| variable(name).filter(|text| !text.is_empty());
    let typed = args.node_address.clone().map(node);
    let typed = typed.or_else(|| args.endpoint.clone().map(NodeChoice::S3Endpoint));
    let found = typed.or_else(|| set("FOREBAY_NODE").map(node));
    let found = found.or_else(|| set("FOREBAY_S3").map(NodeChoice::S3Endpoint));
    found.unwrap_or(NodeChoice::Nothing)
}

async fn connect(address: Option<String>) -> forebay_core::Result<Client> {
    let options = client_options(address);
    spawn_client_call(move || Client::connect(options)).await
}

async fn route_to_s3(args: &EndpointArgs, endpoint: String) -> Outcome<NodeRoute> {
    if is_anyone_there(&endpoint, &args.node.tls.client()).await? {
        return Ok(NodeRoute::S3Endpoint(endpoint));
    }
    Err(Exit::failure(anyhow!(
        "no node at {endpoint}: nothing answers there; start one with 'forebay serve', or name one by --node or --endpoint"
    )))
}

/// Opens a location. Nothing is asked of a lake yet; of a node, whether it is there.
pub(crate) async fn open(location: &Location, args: &EndpointArgs) -> Outcome<OpenLocation> {
    match location {
        Location::Buckets => Err(Exit::usage(anyhow!("name a bucket: forebay://bucket/…"))),
        Location::Local(path) => Ok(OpenLocation::Local(path.clone())),
        Location::Lake { store, shown, key } => {
            let options = OpenOptions {
                admission: Some(patient(shown)),
                ..OpenOptions::default()
            };
            let lake = forebay_lake::open(store, &options).await?;
            Ok(OpenLocation::Lake {
                lake,
                shown: shown.clone(),
                key: key.clone(),
            })
        }
        Location::Node { bucket: name, key } => Ok(OpenLocation::Lake {
            lake: bucket(name, args).await?,
            shown: format!("forebay://{name}/"),
            key: key.clone(),
        }),
    }
}

/// A bucket of the node, seen as a lake.
async fn bucket(bucket: &BucketName, args: &EndpointArgs) -> Outcome<Arc<dyn Lake>> {
    let open = async |options: &OpenOptions| forebay_lake::open(&format!("s3://{bucket}"), options).await;
    match find(args).await? {
        NodeRoute::S3Endpoint(endpoint) => Ok(open(&options(args, endpoint)?).await?),
        NodeRoute::Socket(client) => {
            // For large files alone, and only if there are keys.
            let url = client.s3_url().and_then(|url| endpoint(&url).ok());
            let s3_endpoint = match url.and_then(|url| options(args, url).ok()) {
                Some(options) => {
                    let endpoint = options.endpoint.as_deref().unwrap_or_default();
                    // One that is not trusted from here is no loss: the socket does it all.
                    match is_anyone_there(endpoint, &options.tls).await {
                        Ok(true) => open(&options).await.ok(),
                        _ => None,
                    }
                }
                None => None,
            };
            Ok(Arc::new(SocketLake::new(client, bucket.as_str(), s3_endpoint)))
        }
    }
}

/// A way to a lake or a node that waits while it throttles or is away: a copy of many files goes on by itself.
fn patient(name: &str) -> Arc<Admission> {
    let options = AdmissionOptions {
        patience: PATIENCE,
        ..AdmissionOptions::default()
    };
    Admission::new(name, options)
}

/// Returns how to use an S3 endpoint, with the keys of the environment or of the node's key file.
fn options(args: &EndpointArgs, endpoint: String) -> Outcome<OpenOptions> {
    let set = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
    let (id, secret) = match (set(reference::ACCESS_KEY_ID), set(reference::SECRET_ACCESS_KEY)) {
        (Some(id), Some(secret)) => (id, secret),
        _ => key_of_file(args)?,
    };
    Ok(OpenOptions {
        admission: Some(patient(&endpoint)),
        endpoint: Some(endpoint),
        region: Some(args.region.clone()),
        style: Some(AddressStyle::Path),
        access_key_id: Some(id),
        secret_access_key: Some(secret),
        session_token: None,
        tls: args.node.tls.client(),
    })
}

/// Asked first, because the lake's client would try for seconds and then speak of a lake. A node that is there
/// and whose certificate is refused is an error that says what to do.
async fn is_anyone_there(endpoint: &str, tls: &ClientTls) -> Outcome<bool> {
    let url = url::Url::parse(endpoint).map_err(Exit::usage)?;
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let connector = match url.scheme() {
        "https" => Connector::tcp().with_tls(Arc::new(tls.config().map_err(Exit::usage)?)),
        _ => Connector::tcp(),
    };
    let connect = connector.connect(host, url.port_or_known_default().unwrap_or(80));
    match tokio::time::timeout(CONNECT_TIME_MAX, connect).await {
        Ok(Ok(_)) => Ok(true),
        Ok(Err(error)) if !matches!(error.kind(), Kind::Unavailable | Kind::Timeout) => Err(error.into()),
        _ => Ok(false),
    }
}

fn key_of_file(args: &EndpointArgs) -> Outcome<(String, String)> {
    let path = KeyFile::path(&args.node.data);
    let file = KeyFile::read(&path).map_err(Exit::usage)?;
    let key = file.and_then(|file| file.access_key_id.zip(file.secret_access_key));
    let Some((id, secret)) = key else {
        let (id, secret) = (reference::ACCESS_KEY_ID, reference::SECRET_ACCESS_KEY);
        let message = format!(
            "no keys for the node: set {id} and {secret}, or FOREBAY_DATA to its data folder ({} has none)",
            path.display()
        );
        return Err(Exit::usage(anyhow!(message)));
    };
    Ok((id, secret.reveal().to_owned()))
}
