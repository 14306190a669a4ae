//! How `forebay://` finds its node: by its socket on this host, or by its S3 front door.
//!
//! What was typed counts first (`--node`, `--endpoint`), then the environment (`FOREBAY_NODE`, `FOREBAY_S3`), then the socket of this user's node if one
//! answers there, then the usual address of a front door. Over the socket no keys are needed: the kernel says who asks.

use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use forebay_client::{Client, ClientOptions, Credentials};
use forebay_core::{BucketName, Kind};
use forebay_lake::{AddressStyle, Lake, OpenOptions};
use forebay_node::config::reference;
use forebay_node::keys::KeyFile;

use super::aside::{aside, client_options};
use super::socket_lake::SocketLake;
use crate::admin_client::endpoint;
use crate::args::EndpointArgs;
use crate::exit::{Exit, Outcome};

/// How long a node may take to answer the door.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Where a front door is if nobody says it.
const ENDPOINT: &str = "http://127.0.0.1:9000";

/// The way to a node.
pub(crate) enum Way {
    /// Through its socket.
    Socket(Client),
    /// Through its S3 front door, at this address.
    FrontDoor(String),
}

/// What somebody said about the way.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Said {
    Socket(String),
    FrontDoor(String),
    Nothing,
}

/// Finds the node, and whether it is there.
pub(crate) async fn find(args: &EndpointArgs) -> Outcome<Way> {
    match said(args, |name| std::env::var(name).ok()) {
        Said::Socket(address) => Ok(Way::Socket(connect(Some(address)).await?)),
        Said::FrontDoor(text) => front_door(endpoint(&text)?).await,
        Said::Nothing => match connect(None).await {
            Ok(client) => Ok(Way::Socket(client)),
            Err(error) if error.kind() == Kind::Unavailable => front_door(ENDPOINT.to_owned()).await,
            Err(error) => Err(error.into()),
        },
    }
}

/// The node for commands about buckets; `None` where its admin API is to be asked, because that was named, or neither another way nor a socket is there.
pub(crate) async fn for_buckets(args: &EndpointArgs) -> Outcome<Option<Client>> {
    let is_typed = args.node_address.is_some() || args.endpoint.is_some();
    if args.node.admin.is_some() && !is_typed {
        return Ok(None);
    }
    match said(args, |name| std::env::var(name).ok()) {
        Said::Socket(address) => Ok(Some(connect(Some(address)).await?)),
        Said::FrontDoor(text) => by_front_door(args, endpoint(&text)?).await.map(Some),
        Said::Nothing => match connect(None).await {
            Ok(client) => Ok(Some(client)),
            Err(error) if error.kind() == Kind::Unavailable => Ok(None),
            Err(error) => Err(error.into()),
        },
    }
}

async fn by_front_door(args: &EndpointArgs, endpoint: String) -> Outcome<Client> {
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
        ..client_options(Some(endpoint))
    };
    Ok(aside(move || Client::connect(options)).await?)
}

fn said(args: &EndpointArgs, variable: impl Fn(&str) -> Option<String>) -> Said {
    let node = |address: String| {
        if address.starts_with("http://") || address.starts_with("https://") {
            Said::FrontDoor(address)
        } else {
            Said::Socket(address)
        }
    };
    let set = |name| variable(name).filter(|text| !text.is_empty());
    let typed = args.node_address.clone().map(node);
    let typed = typed.or_else(|| args.endpoint.clone().map(Said::FrontDoor));
    let found = typed.or_else(|| set("FOREBAY_NODE").map(node));
    let found = found.or_else(|| set("FOREBAY_S3").map(Said::FrontDoor));
    found.unwrap_or(Said::Nothing)
}

async fn connect(address: Option<String>) -> forebay_core::Result<Client> {
    let options = client_options(address);
    aside(move || Client::connect(options)).await
}

async fn front_door(endpoint: String) -> Outcome<Way> {
    if is_anyone_there(&endpoint).await? {
        return Ok(Way::FrontDoor(endpoint));
    }
    Err(Exit::failure(anyhow!(
        "no node at {endpoint}: nothing answers there; start one with 'forebay serve', or name one by --node or --endpoint"
    )))
}

/// A bucket of the node, seen as a lake.
pub(crate) async fn bucket(bucket: &BucketName, args: &EndpointArgs) -> Outcome<Arc<dyn Lake>> {
    let open = async |options: &OpenOptions| forebay_lake::open(&format!("s3://{bucket}"), options).await;
    match find(args).await? {
        Way::FrontDoor(endpoint) => Ok(open(&options(args, endpoint)?).await?),
        Way::Socket(client) => {
            // For large files alone, and only if there are keys.
            let url = client.s3_url().and_then(|url| endpoint(&url).ok());
            let front_door = match url.and_then(|url| options(args, url).ok()) {
                Some(options) if is_anyone_there(options.endpoint.as_deref().unwrap_or_default()).await? => {
                    open(&options).await.ok()
                }
                _ => None,
            };
            Ok(Arc::new(SocketLake::new(client, bucket.as_str(), front_door)))
        }
    }
}

/// How to use a front door, with the keys of the environment or of the node's key file.
fn options(args: &EndpointArgs, endpoint: String) -> Outcome<OpenOptions> {
    let set = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
    let (id, secret) = match (set(reference::ACCESS_KEY_ID), set(reference::SECRET_ACCESS_KEY)) {
        (Some(id), Some(secret)) => (id, secret),
        _ => key_of_file(args)?,
    };
    Ok(OpenOptions {
        endpoint: Some(endpoint),
        region: Some(args.region.clone()),
        style: Some(AddressStyle::Path),
        access_key_id: Some(id),
        secret_access_key: Some(secret),
        session_token: None,
    })
}

/// Asked first, because the lake's client would try for seconds and then speak of a lake.
async fn is_anyone_there(endpoint: &str) -> Outcome<bool> {
    let url = url::Url::parse(endpoint).map_err(Exit::usage)?;
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let connect = tokio::net::TcpStream::connect((host, url.port_or_known_default().unwrap_or(80)));
    let connected = tokio::time::timeout(CONNECT_TIME_MAX, connect).await;
    Ok(matches!(connected, Ok(Ok(_))))
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
