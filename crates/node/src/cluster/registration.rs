//! Documents of a node of a cluster in the lake: the identity of the lake, and the number of each of its starts.
//!
//! Both are create-only documents. `.forebay/lake.json` holds a random id: two nodes whose lakes show the same one
//! have the same lake, whatever its URL says on each host. `.forebay/cluster/<name>/nodes/<id>/<number>.json` is
//! one start of one node; the next start takes the next number. A start that finds an earlier one of its own alive
//! at another address is a twin, and is refused: its data folder is a copy.

use bytes::Bytes;
use forebay_cluster::{Dial, Member, NodeId, who_answers};
use forebay_core::{Error, Kind, ObjectKey, Result};
use forebay_lake::{GetOptions, Lake, ListOptions, PutMode, PutOptions};
use futures::TryStreamExt;
use serde::{Deserialize, Serialize};

use crate::keys::random_bytes;

const LAKE_KEY: &str = ".forebay/lake.json";
const DOCUMENT_BYTES_MAX: u64 = 4 << 10;
/// Starts that may race for a number.
const TRIES_MAX: usize = 16;

#[derive(Debug, Serialize, Deserialize)]
struct LakeDocument {
    format: String,
    version: u32,
    id: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct StartDocument {
    format: String,
    version: u32,
    peer: String,
    nonce: String,
}

/// The identity of a lake: what its document says, made if there is none. A lake that cannot be written, or that
/// does not decide who was first, is known by its URL.
pub(super) async fn lake_identity(lake: &dyn Lake, creates_once: bool) -> Result<String> {
    let key = ObjectKey::new(LAKE_KEY)?;
    if let Some(found) = read::<LakeDocument>(lake, &key).await? {
        return Ok(found.id);
    }
    let by_url = || Ok(format!("url:{}", lake.url()));
    if !creates_once {
        return by_url();
    }
    let document = LakeDocument {
        format: "forebay-lake".into(),
        version: 1,
        id: hex::encode(random_bytes(16)?),
    };
    match create(lake, &key, &document).await {
        // Ours or another node's: the lake says which was first.
        Ok(()) => {}
        Err(error) if error.kind() == Kind::AlreadyExists => {}
        Err(error) if error.kind() == Kind::Denied => return by_url(),
        Err(error) => return Err(error),
    }
    let found = read::<LakeDocument>(lake, &key).await?;
    found.map_or_else(by_url, |found| Ok(found.id))
}

/// Registers a start of a node and returns its number.
pub(super) async fn register(lake: &dyn Lake, cluster: &str, own: &Member, dial: &dyn Dial) -> Result<u64> {
    let folder = format!(".forebay/cluster/{cluster}/nodes/{}/", own.id);
    for _ in 0..TRIES_MAX {
        let starts = starts_of(lake, &folder).await?;
        if let Some(last) = starts.last() {
            refuse_twin(lake, &format!("{folder}{last:020}.json"), own, dial).await?;
        }
        let number = starts.last().map_or(1, |last| last + 1);
        let document = StartDocument {
            format: "forebay-node-start".into(),
            version: 1,
            peer: own.addr.to_string(),
            nonce: hex::encode(random_bytes(16)?),
        };
        match create(
            lake,
            &ObjectKey::new(&format!("{folder}{number:020}.json"))?,
            &document,
        )
        .await
        {
            Ok(()) => {
                forget(lake, &folder, &starts).await;
                return Ok(number);
            }
            Err(error) if error.kind() == Kind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    let message =
        "other nodes with this node's identity start all the time; remove node.key from copied data folders";
    Err(Error::new(Kind::Conflict, message).with("node", own.id))
}

/// Numbers of earlier starts, in order. There are few: older ones are forgotten.
async fn starts_of(lake: &dyn Lake, folder: &str) -> Result<Vec<u64>> {
    let options = ListOptions {
        prefix: folder.to_owned(),
        ..ListOptions::default()
    };
    let page = lake.list(options).await?;
    let number = |key: &ObjectKey| {
        key.as_str()
            .strip_prefix(folder)?
            .strip_suffix(".json")?
            .parse()
            .ok()
    };
    Ok(page
        .objects
        .iter()
        .filter_map(|object| number(&object.key))
        .collect())
}

/// An error if the last start of this identity is alive at another address.
async fn refuse_twin(lake: &dyn Lake, key: &str, own: &Member, dial: &dyn Dial) -> Result<()> {
    let Some(last) = read::<StartDocument>(lake, &ObjectKey::new(key)?).await? else {
        return Ok(());
    };
    let Some(addr) = last.peer.parse().ok().filter(|addr| *addr != own.addr) else {
        return Ok(());
    };
    let member = Member { addr, ..own.clone() };
    match who_answers(dial, &member).await {
        Ok((id, _)) if id == own.id => Err(twin(own.id, &last.peer)),
        _ => Ok(()),
    }
}

fn twin(id: NodeId, peer: &str) -> Error {
    let message = "a node with the identity of this one runs already at another address, so this data folder is a \
                   copy; remove node.key from it, and this node gets an identity of its own";
    Error::new(Kind::InvalidInput, message)
        .with("node", id)
        .with("peer", peer)
}

/// Removes the documents of earlier starts but the last, as far as that goes.
async fn forget(lake: &dyn Lake, folder: &str, starts: &[u64]) {
    for number in starts.iter().rev().skip(1) {
        if let Ok(key) = ObjectKey::new(&format!("{folder}{number:020}.json"))
            && let Err(error) = lake.delete(&key).await
        {
            tracing::debug!(%error, %key, "the document of an old start could not be removed");
        }
    }
}

async fn create(lake: &dyn Lake, key: &ObjectKey, document: &impl Serialize) -> Result<()> {
    let body = serde_json::to_vec(document)
        .map_err(|why| Error::new(Kind::Internal, "a document cannot be written").caused_by(why))?;
    let options = PutOptions {
        mode: PutMode::Create,
        ..PutOptions::default()
    };
    lake.put(key, Bytes::from(body), options).await.map(|_| ())
}

async fn read<T: for<'de> Deserialize<'de>>(lake: &dyn Lake, key: &ObjectKey) -> Result<Option<T>> {
    let damaged = |why: String| {
        let message = format!("a document of the cluster is damaged ({why}); remove it from the lake");
        Error::new(Kind::Corrupt, message).with("key", key)
    };
    let found = match lake.get(key, GetOptions::default()).await {
        Ok(found) if found.bytes <= DOCUMENT_BYTES_MAX => found,
        Ok(_) => return Err(damaged("it is too large".into())),
        Err(error) if error.kind() == Kind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let chunks: Vec<Bytes> = found.body.try_collect().await?;
    let parsed = serde_json::from_slice(&chunks.concat());
    parsed.map(Some).map_err(|why| damaged(why.to_string()))
}
