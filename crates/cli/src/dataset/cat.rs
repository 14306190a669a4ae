//! `forebay dataset cat`: the bytes of one field, checked, on standard output.

use std::io::Write;

use anyhow::anyhow;

use super::args::CatArgs;
use super::{Context, head, open};
use crate::exit::{Exit, Outcome};

pub(crate) fn run(args: &CatArgs, context: &Context) -> Outcome {
    let (_opened, dataset) = open::dataset(&args.source, context)?;
    let number = head::number_of(&dataset, &args.sample, args.key)?;
    let sample = dataset.sample(number)?;
    let names = || {
        let names = sample.fields.iter().map(|field| field.name().to_string());
        names.collect::<Vec<_>>().join(", ")
    };
    let field = match (&args.field, sample.fields.as_slice()) {
        (Some(name), _) => sample
            .field(name)
            .ok_or_else(|| Exit::usage(anyhow!("the sample has no field {name}; it has {}", names())))?,
        (None, [one]) => one,
        (None, _) => {
            return Err(Exit::usage(anyhow!(
                "choose one of the fields with --field: {}",
                names()
            )));
        }
    };
    let mut out = std::io::stdout().lock();
    match out.write_all(field).and_then(|()| out.flush()) {
        Err(why) if why.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Exit::failure(anyhow!("cannot write to standard output: {why}")))
        }
        _ => Ok(()),
    }
}
