//! From what was typed to a run: through a running node, or one inside of this process.

use anyhow::anyhow;
use forebay_checkpoint_client::{Root, Step};
use forebay_client::Client;
use forebay_core::Kind;
use forebay_node::EmbeddedNode;

use super::name::StepName;
use crate::blocking::Context;
use crate::embedded::{Access, Store, connect, store_of};
use crate::exit::{Exit, Outcome};
use crate::objects::location::Location;

/// A run that is open.
pub(crate) struct Run {
    pub(crate) root: Root,
    /// The run as it was typed.
    pub(crate) shown: String,
    /// Ends with this value, after the client's last call.
    _node: Option<EmbeddedNode>,
}

/// A URL of a node, running or embedded in this process, and a client for it.
pub(crate) struct ConnectedUrl {
    pub(crate) client: Client,
    /// `forebay://bucket/key`.
    pub(crate) url: String,
    /// Ends with this value, after the client's last call.
    node: Option<EmbeddedNode>,
}

impl ConnectedUrl {
    /// Opens what was typed. Blocks; not for a thread of an async runtime.
    pub(crate) fn open(text: &str, node: Option<&str>, access: Access, context: &Context) -> Outcome<Self> {
        let (store, url) = resolve(text, access)?;
        let (client, node) = connect(store.as_ref(), node, access, context)?;
        Ok(Self { client, url, node })
    }
}

impl Run {
    /// Opens a run.
    pub(crate) fn open(text: &str, node: Option<&str>, access: Access, context: &Context) -> Outcome<Self> {
        let at = ConnectedUrl::open(text, node, access, context)?;
        Ok(Self {
            root: Root::open(at.client, &at.url)?,
            shown: text.to_owned(),
            _node: at.node,
        })
    }

    /// The step that was typed, or the newest.
    pub(crate) fn step(&self, step: Option<u64>) -> Outcome<Step> {
        let step = match step {
            Some(step) => step,
            None => self.root.latest()?.ok_or_else(|| self.no_steps())?,
        };
        Ok(self.root.step(step)?)
    }

    fn no_steps(&self) -> Exit {
        Exit::failure(anyhow!(
            "{} has no committed step; forebay ckpt ls {} shows what is on its way",
            self.shown,
            self.shown
        ))
    }
}

/// Opens a run and the step of it that was typed.
pub(crate) fn step(name: &StepName, node: Option<&str>, context: &Context) -> Outcome<(Run, Step)> {
    let run = Run::open(&name.run, node, Access::Read, context)?;
    let step = run.step(name.step)?;
    Ok((run, step))
}

/// The store for a node inside, if one is needed, and the run in the words of the node.
fn resolve(text: &str, access: Access) -> Outcome<(Option<Store>, String)> {
    match text.parse::<Location>()? {
        Location::Node { bucket, key } => Ok((None, format!("forebay://{bucket}/{key}"))),
        other => {
            let (store, key) = store_of(other, true, access)?.ok_or_else(no_run)?;
            let run = format!("forebay://{}/{key}", store.bucket);
            Ok((Some(store), run))
        }
    }
}

fn no_run() -> Exit {
    Exit::usage(anyhow!(
        "name the bucket and the folder of the run: forebay://bucket/run"
    ))
}

/// Returns what a node that cannot save, or that is remote, knows of saves: nothing.
pub(crate) fn known_saves<T: Default>(asked: forebay_core::Result<T>) -> Outcome<T> {
    match asked {
        Err(error) if error.kind() == Kind::Unsupported => Ok(T::default()),
        other => Ok(other?),
    }
}
