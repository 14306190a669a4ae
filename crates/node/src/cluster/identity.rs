//! The identity of a node and the keys of its cluster.
//!
//! A node's identity is a key pair that it makes at its first start (`<data>/node.key`, mode 0600); the hash of the
//! public key is its id. The keys of a cluster lie in a folder that `forebay cluster init` makes and that every
//! host has: an authority (`ca.pem`, `ca.key`) and the secret of gossip (`gossip.key`). At each start a node
//! signs a certificate for itself that has its id as name. So whoever has the folder can be any node: it is the
//! cluster's secret, as a whole.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_cluster::{GossipKey, NodeId};
use forebay_core::{Clock, Error, Kind, Result};
use forebay_net::{ClientTls, Connector, ServerTls, TlsFiles};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::keys::{random_bytes, write_private};

const CA_CERT: &str = "ca.pem";
const CA_KEY: &str = "ca.key";
const GOSSIP_KEY: &str = "gossip.key";
const NODE_KEY: &str = "node.key";
const NODE_CERT: &str = "node.pem";

/// The identity of this node.
pub(crate) struct Identity {
    pub(crate) id: NodeId,
    key: KeyPair,
    key_path: PathBuf,
}

impl Identity {
    /// Reads the identity of a data folder, or makes it.
    pub(crate) fn ensure(data_dir: &Path) -> Result<Self> {
        let path = data_dir.join(NODE_KEY);
        let key = match fs::read_to_string(&path) {
            Ok(text) => KeyPair::from_pem(&text).map_err(|_| {
                let message = "the key of this node is damaged; remove it, and the node gets a new identity";
                Error::new(Kind::Corrupt, message).with("file", path.display())
            })?,
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => {
                let key = KeyPair::generate().map_err(no_key)?;
                write(&path, key.serialize_pem().as_bytes())?;
                key
            }
            Err(why) => return Err(cannot("read", &path, why)),
        };
        Ok(Self {
            id: NodeId::of_key(key.public_key_raw()),
            key,
            key_path: path,
        })
    }
}

/// The name of a node in its certificate.
pub(crate) fn certificate_name(id: NodeId) -> String {
    format!("{id}.node.forebay")
}

/// The keys of a cluster, and what a node makes of them.
pub(crate) struct ClusterKeys {
    pub(crate) gossip: GossipKey,
    pub(crate) server: Arc<ServerTls>,
    pub(crate) connector: Connector,
}

impl ClusterKeys {
    /// Reads the keys and signs the certificate of this node, which lies beside its key.
    pub(crate) fn load(folder: &Path, identity: &Identity, clock: &Arc<dyn Clock>) -> Result<Self> {
        let read = |name| {
            let path = folder.join(name);
            fs::read_to_string(&path)
                .map_err(|why| cannot("read", &path, why).with("setting", "cluster.keys"))
        };
        let ca_key = KeyPair::from_pem(&read(CA_KEY)?).map_err(|_| damaged(folder, CA_KEY))?;
        let mut gossip = [0; 32];
        hex::decode_to_slice(read(GOSSIP_KEY)?.trim(), &mut gossip)
            .map_err(|_| damaged(folder, GOSSIP_KEY))?;
        let mut params = CertificateParams::new(vec![certificate_name(identity.id)]).map_err(no_key)?;
        params
            .distinguished_name
            .push(DnType::CommonName, identity.id.to_string());
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let issuer = Issuer::new(authority_params(), ca_key);
        let certificate = params.signed_by(&identity.key, &issuer).map_err(no_key)?;
        let cert = identity.key_path.with_file_name(NODE_CERT);
        write(&cert, certificate.pem().as_bytes())?;
        let (ca, key) = (folder.join(CA_CERT), identity.key_path.clone());
        let files = TlsFiles {
            cert: cert.clone(),
            key: key.clone(),
            client_ca: Some(ca.clone()),
        };
        let client = ClientTls {
            ca: Some(ca),
            cert: Some(cert),
            key: Some(key),
        };
        Ok(Self {
            gossip: GossipKey::new(gossip),
            server: ServerTls::load(files, Arc::clone(clock))?,
            connector: Connector::tcp().with_tls(Arc::new(client.config()?)),
        })
    }
}

/// Makes the keys of a cluster in a new folder, readable by this user alone.
pub fn make_cluster_keys(folder: &Path) -> Result<()> {
    let made = fs::DirBuilder::new().mode(0o700).create(folder);
    made.map_err(|why| match why.kind() {
        std::io::ErrorKind::AlreadyExists => {
            let message = "the folder is there already; keys are never made anew in place: choose another, or \
                           remove it if no node uses it";
            Error::new(Kind::AlreadyExists, message).with("folder", folder.display())
        }
        _ => cannot("make", folder, why),
    })?;
    let key = KeyPair::generate().map_err(no_key)?;
    let certificate = authority_params().self_signed(&key).map_err(no_key)?;
    write(&folder.join(CA_KEY), key.serialize_pem().as_bytes())?;
    write(&folder.join(CA_CERT), certificate.pem().as_bytes())?;
    let gossip = hex::encode(random_bytes(32)?);
    write(&folder.join(GOSSIP_KEY), format!("{gossip}\n").as_bytes())
}

/// The authority of a cluster. The same words each time, so that its key alone makes it whole.
fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "forebay cluster");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    write_private(path, bytes).map_err(|why| cannot("write", path, why))
}

fn cannot(what: &str, path: &Path, why: std::io::Error) -> Error {
    Error::io(format!("cannot {what} the file: {why}"), why).with("file", path.display())
}

fn damaged(folder: &Path, name: &str) -> Error {
    let message = "a key of the cluster is damaged; copy the folder from another host again";
    Error::new(Kind::Corrupt, message)
        .with("file", folder.join(name).display())
        .with("setting", "cluster.keys")
}

fn no_key(why: rcgen::Error) -> Error {
    Error::new(Kind::Internal, "a key or certificate cannot be made").caused_by(why)
}
