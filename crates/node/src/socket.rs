//! The socket for clients on this host, composed: who may come in, limits, and the families that are served.

use std::sync::Arc;

use async_trait::async_trait;
use forebay_checkpoint_node::{GroupFamily, Saves, SavesFamily};
use forebay_core::{ByteRange, Result};
use forebay_engine::{Engine, EngineSource, ObjectInfo};
use forebay_ipc::{Access, ClosedBucket, Ipc, IpcLimits, IpcServices, Listener, Members, trust_domain};
use forebay_s3::MemberIndex;

use crate::options::NodeOptions;
use crate::services::Services;

/// The users of the socket, as the configuration says.
pub(crate) fn access(options: &NodeOptions) -> Arc<Access> {
    let closed = options.buckets.iter().enumerate().filter_map(|(index, bucket)| {
        let allow_uids = bucket.allow_uids.clone()?;
        Some(ClosedBucket {
            name: bucket.name.clone(),
            domain: trust_domain(index, Some(&allow_uids)),
            allow_uids,
        })
    });
    Arc::new(Access::new(&options.ipc.allow_uids, closed))
}

/// Opens the socket where the options say; `None` if there is to be none.
pub(crate) fn open(options: &NodeOptions, access: &Access) -> Result<Option<Listener>> {
    Listener::open(&options.ipc.socket, access)
}

/// The state of the socket, with the families of the door and of the saver.
pub(crate) fn compose(
    options: &NodeOptions,
    access: Arc<Access>,
    services: IpcServices,
    saves: &Arc<Saves>,
) -> Result<Arc<Ipc>> {
    let limits = IpcLimits {
        connections_max: options.ipc.connections_max,
        client_lease_bytes_max: options.ipc.client_lease_bytes_max,
        lease_timeout: options.ipc.lease_timeout,
    };
    let engine: Arc<dyn EngineSource> = Arc::clone(&services.engine);
    let mut ipc = Ipc::new(limits, access, services)?;
    ipc.register(Arc::new(SavesFamily::new(Arc::clone(saves), engine)))?;
    ipc.register(Arc::new(GroupFamily::default()))?;
    Ok(Arc::new(ipc))
}

/// Serves the socket until the node stops; what was handed over is finished, saves as well.
pub(crate) async fn serve(services: Arc<Services>, listener: Listener) -> Result<()> {
    forebay_ipc::run(Arc::clone(&services.ipc), listener).await?;
    services.saves.finish().await;
    Ok(())
}

/// Indexes of tar shards, for batches over HTTP.
#[derive(Debug)]
pub(crate) struct BatchMembers(pub(crate) Arc<Members>);

#[async_trait]
impl MemberIndex for BatchMembers {
    async fn member_range(
        &self,
        engine: &Engine,
        object: &ObjectInfo,
        name: &str,
    ) -> Result<Option<ByteRange>> {
        self.0.member_range(engine, object, name).await
    }
}
