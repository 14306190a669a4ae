//! `forebay dataset split`: one list of samples or shards per part, as a file each.

use anyhow::Context as _;
use forebay_core::Error;
use forebay_dataset::part::Members;
use forebay_dataset_pack::{PartShare, SplitOptions, SplitUnit, split};

use super::args::SplitArgs;
use super::{Context, open};
use crate::exit::Outcome;

pub(crate) fn run(args: &SplitArgs, context: &Context) -> Outcome {
    let options = SplitOptions {
        parts: PartShare::parse_list(&args.parts)?,
        seed: args.seed,
        unit: if args.by_shard {
            SplitUnit::Shards
        } else {
            SplitUnit::Samples
        },
    };
    let (_opened, dataset) = open::dataset(&args.source, context)?;
    std::fs::create_dir_all(&args.out).with_context(|| format!("cannot make {}", args.out.display()))?;
    let mut counts = Vec::new();
    split(&dataset, &options, |part, list| {
        let count = match &list.members {
            Members::Samples(numbers) => numbers.len(),
            Members::Shards(names) => names.len(),
        };
        let path = args.out.join(format!("{}.txt", part.name));
        let text = list.to_text(&format!("seed {} share {}", args.seed, part.share));
        std::fs::write(&path, text)
            .map_err(|why| Error::io(format!("cannot write {}", path.display()), why))?;
        counts.push((part.name.clone(), count, path.display().to_string()));
        Ok(())
    })?;
    let rows = counts
        .iter()
        .map(|(name, count, file)| serde_json::json!({"part": name, "count": count, "file": file}));
    context.output.data(&rows.collect::<Vec<_>>());
    for (name, count, file) in counts {
        let what = if args.by_shard { "shards" } else { "samples" };
        context.output.say(format!("{name}  {count} {what}  {file}"));
    }
    Ok(())
}
