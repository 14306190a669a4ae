//! Asking which node answers at an address: so that a node with a copied identity finds its twin before it starts.

use std::time::Duration;

use bytes::Bytes;
use forebay_core::{Error, Kind, Result};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};

use crate::peers::Dial;
use crate::protocol::NODE_PATH;
use crate::{Member, NodeId};

const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
const ANSWER_BYTES_MAX: usize = 4 << 10;

/// The node that answers at an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WhoAnswer {
    pub(crate) cluster: String,
    pub(crate) node: String,
    pub(crate) incarnation: u64,
    pub(crate) wire: u32,
}

/// The identity and start of the node that answers at a member's address, within two seconds.
pub async fn who_answers(dial: &dyn Dial, member: &Member) -> Result<(NodeId, u64)> {
    let asked = tokio::time::timeout(ANSWER_TIME_MAX, ask(dial, member)).await;
    let late = |_| Error::new(Kind::Timeout, "nobody says in time which node it is");
    let answer = asked.map_err(late)??;
    Ok((answer.node.parse()?, answer.incarnation))
}

async fn ask(dial: &dyn Dial, member: &Member) -> Result<WhoAnswer> {
    let broken = |why: String| Error::new(Kind::Unavailable, format!("no node answers there: {why}"));
    let stream = dial.dial(member).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|why| broken(why.to_string()))?;
    let request = Request::get(NODE_PATH)
        .header(hyper::header::HOST, member.addr.to_string())
        .body(Empty::<Bytes>::new())
        .map_err(|why| broken(why.to_string()))?;
    let asking = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|why| broken(why.to_string()))?;
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await;
        let body = body.map_err(|why| broken(why.to_string()))?;
        serde_json::from_slice(&body.to_bytes()).map_err(|why| broken(why.to_string()))
    };
    tokio::select! {
        answer = asking => answer,
        ended = connection => Err(broken(format!("the connection ended: {ended:?}"))),
    }
}
