//! The lease of an attempt in the lake (`forebay_checkpoint::attempt_lease`): the first rank writes it, the
//! others find it, and those that go on after a restart renew it.
//!
//! Ranks of several nodes may renew at once. Each writes in the place of the very lease that it has read, and
//! reads again where that is another by then, so that nobody takes back the time that another was given. On a
//! lake without conditional updates the last one holds.

use bytes::Bytes;
use forebay_checkpoint::attempt_lease::AttemptLease;
use forebay_checkpoint::manifest::StepRef;
use forebay_checkpoint::names;
use forebay_core::{Error, Kind, Result, Version};
use tokio::time::Instant;

use super::save::Save;
use super::work::unix_ms;

/// Attempts to write a lease that others write too.
const TRIES_MAX: usize = 64;

/// Writes the lease of the attempt, or finds that of another rank.
pub(super) async fn take(save: &Save, parent: Option<StepRef>) -> Result<AttemptLease> {
    let now = save.clock.wall();
    let left = save.deadline.saturating_duration_since(Instant::now());
    let wanted = AttemptLease::new(
        save.begin.step,
        &save.attempt,
        parent,
        unix_ms(now),
        unix_ms(now + left),
    );
    let path = save.path(names::OPEN);
    for _ in 0..TRIES_MAX {
        let taken = if save.is_resumed {
            renew(save, &wanted, &path).await?
        } else {
            create_or_find(save, &wanted, &path).await?
        };
        if let Some(taken) = taken {
            return Ok(taken);
        }
    }
    let message = "the lease of a save is changed as fast as it can be written; save again";
    Err(Error::new(Kind::Conflict, message).with("lease", path))
}

/// Creates the lease, or finds that of another rank; `None` if that is gone again.
async fn create_or_find(save: &Save, wanted: &AttemptLease, path: &str) -> Result<Option<AttemptLease>> {
    if create(save, wanted, path).await? {
        return Ok(Some(wanted.clone()));
    }
    let found = save.persist("read the lease", || save.lake.read(path)).await?;
    let Some(found) = found else { return Ok(None) };
    let open = AttemptLease::decode(&found).map_err(|error| error.with("lease", path))?;
    Ok(Some(open))
}

/// A save that goes on after a restart has its time anew, on the parent that it had; no rank gets less time
/// than it was given. `None` if another rank was faster.
async fn renew(save: &Save, wanted: &AttemptLease, path: &str) -> Result<Option<AttemptLease>> {
    let found = save
        .persist("read the lease", || save.lake.read_version(path))
        .await?;
    let Some((old, version)) = found else {
        let created = create(save, wanted, path).await?;
        return Ok(created.then(|| wanted.clone()));
    };
    let renewed = match AttemptLease::decode(&old) {
        Ok(old) => {
            let renewed = wanted.clone().in_place_of(&old);
            if renewed == old {
                return Ok(Some(old));
            }
            renewed
        }
        // A lease that cannot be read protects nobody.
        Err(_) => wanted.clone(),
    };
    let replaced = replace(save, &renewed, path, version).await?;
    Ok(replaced.then_some(renewed))
}

/// Returns whether there was none.
async fn create(save: &Save, open: &AttemptLease, path: &str) -> Result<bool> {
    let bytes = Bytes::from(open.encode()?);
    let created = save.persist("write the lease", || save.lake.create(path, bytes.clone()));
    match created.await {
        Ok(()) => Ok(true),
        Err(error) if is_taken(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns whether the old one was still there.
async fn replace(save: &Save, open: &AttemptLease, path: &str, old: Version) -> Result<bool> {
    let bytes = Bytes::from(open.encode()?);
    let replaced = save.persist("renew the lease", || {
        save.lake.replace(path, bytes.clone(), old.clone())
    });
    match replaced.await {
        Ok(()) => Ok(true),
        Err(error) if is_taken(&error) || error.kind() == Kind::NotFound => Ok(false),
        Err(error) if error.kind() == Kind::Unsupported => {
            let pieces = [bytes];
            save.persist("renew the lease", || save.lake.put(path, &pieces))
                .await?;
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

fn is_taken(error: &Error) -> bool {
    matches!(error.kind(), Kind::PreconditionFailed | Kind::Conflict)
}

#[cfg(test)]
mod tests;
