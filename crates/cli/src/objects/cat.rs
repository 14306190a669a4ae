//! `forebay cat`: objects to standard output, one after another.

use anyhow::Context;
use forebay_lake::GetOptions;
use forebay_transfer::OpenLocation;
use futures::TryStreamExt;
use tokio::io::AsyncWriteExt;

use super::node;
use crate::args::CatArgs;
use crate::exit::{Exit, Outcome};

pub(crate) async fn run(args: CatArgs) -> Outcome {
    let mut out = tokio::io::stdout();
    for location in &args.locations {
        let location = node::open(location, &args.endpoint).await?;
        match write(&location, &mut out).await {
            Err(exit) if is_closed_pipe(&exit) => return Ok(()),
            other => other?,
        }
    }
    out.flush()
        .await
        .or_else(|why| {
            if why.kind() == std::io::ErrorKind::BrokenPipe {
                Ok(())
            } else {
                Err(why)
            }
        })
        .map_err(Exit::failure)
}

async fn write(location: &OpenLocation, out: &mut tokio::io::Stdout) -> Outcome {
    match location {
        OpenLocation::Local(path) => {
            let mut file = tokio::fs::File::open(path)
                .await
                .with_context(|| format!("cannot read {}", path.display()))?;
            tokio::io::copy(&mut file, out).await.map_err(Exit::failure)?;
        }
        OpenLocation::Lake { lake, shown, key } => {
            let mut got = lake
                .get(&OpenLocation::object_key(key, shown)?, GetOptions::default())
                .await
                .map_err(|error| location.not_there(error))?;
            while let Some(bytes) = got.body.try_next().await? {
                out.write_all(&bytes).await.map_err(Exit::failure)?;
            }
        }
    }
    Ok(())
}

fn is_closed_pipe(exit: &Exit) -> bool {
    exit.error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|why| why.kind() == std::io::ErrorKind::BrokenPipe)
}
