//! `forebay dataset split`: divides a dataset into named parts, as lists of sample numbers or of shards.
//!
//! The samples (or shards) are shuffled as a loader shuffles globally, by the seed, and cut at the shares: so the same dataset, seed and shares give the same parts
//! everywhere, no sample is in two of them, and no key has to be hashed. A list is sorted, one number or name per line, below
//! comments that say what it is of: a dataset that is opened with it (`part=` in Python) refuses it for other versions of the data. What the shares leave is in no part.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use forebay_core::Result;
use forebay_dataset::order::{Fingerprint, OrderOptions, Plan, Shape, ShardSize, Shuffle};
use forebay_dataset::part::{Members, PartList};
use forebay_loader::Dataset;

use super::args::SplitArgs;
use super::{Context, open};
use crate::exit::{Exit, Outcome};

/// More parts are a slip of the finger.
const PARTS_MAX: usize = 1000;
/// What sums of shares may be off by.
const ROUNDING: f64 = 1e-9;

/// A part as it was typed.
#[derive(Debug, Clone, PartialEq)]
struct Part {
    name: String,
    share: f64,
}

pub(crate) fn run(args: &SplitArgs, context: &Context) -> Outcome {
    let parts = parse(&args.parts).map_err(|why| Exit::usage(anyhow!(why)))?;
    let (_opened, dataset) = open::dataset(&args.source, context)?;
    let shape = if args.by_shard {
        shards(&dataset)?
    } else {
        Arc::clone(dataset.shape())
    };
    let total = shape.samples();
    let options = OrderOptions {
        seed: args.seed,
        shuffle: Shuffle::Global,
        ..OrderOptions::default()
    };
    let order = Plan::new(shape, options)?.epoch(0);
    std::fs::create_dir_all(&args.out).with_context(|| format!("cannot make {}", args.out.display()))?;
    let mut counts = Vec::new();
    let mut share = 0.0;
    let mut first = 0;
    for part in &parts {
        share += part.share;
        let end = ((total as f64 * share).round() as u64).min(total);
        let mut members: Vec<u64> = order.iter(first..end).collect();
        members.sort_unstable();
        let path = args.out.join(format!("{}.txt", part.name));
        counts.push((part.name.as_str(), members.len(), path.display().to_string()));
        write(&path, &list(args, part, &dataset, members)?)?;
        first = end;
    }
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

/// Every shard as one sample.
fn shards(dataset: &Dataset) -> Result<Arc<Shape>> {
    let one = ShardSize { samples: 1, bytes: 0 };
    let count = dataset.shape().shards();
    Shape::new((0..count).map(|_| one), Fingerprint::of([])).map(Arc::new)
}

fn list(args: &SplitArgs, part: &Part, dataset: &Dataset, members: Vec<u64>) -> Result<String> {
    let members = if args.by_shard {
        let name = |member: &u64| {
            let number = u32::try_from(*member).unwrap_or(u32::MAX);
            Ok(dataset.index().shard(number)?.name().to_owned())
        };
        Members::Shards(members.iter().map(name).collect::<Result<_>>()?)
    } else {
        Members::Samples(members)
    };
    let list = PartList {
        name: part.name.clone(),
        fingerprint: dataset.shape().fingerprint(),
        members,
    };
    Ok(list.to_text(&format!("seed {} share {}", args.seed, part.share)))
}

fn write(path: &Path, text: &str) -> Outcome {
    Ok(std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?)
}

fn parse(text: &str) -> std::result::Result<Vec<Part>, String> {
    let mut parts: Vec<Part> = Vec::new();
    for one in text.split(',') {
        let (name, share) = one.split_once('=').ok_or("write parts as train=0.9,val=0.1")?;
        let is_name = |one: char| one.is_ascii_alphanumeric() || matches!(one, '-' | '_');
        if name.is_empty() || !name.chars().all(is_name) {
            return Err(format!(
                "'{name}' is no name of a part: use letters, digits, - and _"
            ));
        }
        let share: f64 = share
            .parse()
            .map_err(|_| format!("'{share}' is no share; write a number such as 0.9"))?;
        if !(share > 0.0 && share <= 1.0) {
            return Err(format!("a share is above 0 and at most 1, not {share}"));
        }
        if parts.iter().any(|part| part.name == name) {
            return Err(format!("there are two parts called {name}"));
        }
        parts.push(Part {
            name: name.to_owned(),
            share,
        });
    }
    let sum: f64 = parts.iter().map(|part| part.share).sum();
    if sum > 1.0 + ROUNDING || parts.len() > PARTS_MAX {
        return Err(format!(
            "the shares add up to {sum}; at most 1 is there to divide"
        ));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_and_nonsense_is_refused() {
        let parts = parse("train=0.9,val=0.1").unwrap();
        assert_eq!(
            parts[1],
            Part {
                name: "val".into(),
                share: 0.1
            }
        );
        assert_eq!(parse("a=0.3,b=0.3,c=0.4").unwrap().len(), 3);
        for bad in [
            "",
            "train",
            "a=0",
            "a=1.5",
            "a=x",
            "a=0.6,b=0.6",
            "a=0.1,a=0.1",
            "../a=0.5",
            "=0.5",
            "a=NaN",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
