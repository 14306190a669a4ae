//! Progress of long work on datasets, as a bar.

use forebay_core::Result;
use forebay_dataset_pack::{Progress, Work};

use super::Context;

impl Context {
    /// Runs work that can be interrupted, with a bar that is gone when it ends.
    pub(crate) fn with_progress<T>(&self, work: impl FnOnce(&Work<'_>) -> Result<T>) -> Result<T> {
        let bar = self.output.bar(0);
        let show = |progress: Progress| {
            if bar.message() != progress.stage.as_str() {
                bar.set_message(progress.stage.as_str());
            }
            bar.set_length(progress.bytes_total);
            bar.set_position(progress.bytes_done);
        };
        let done = work(&Work {
            interrupt: Some(self.interrupt.clone()),
            on_progress: Some(&show),
        });
        bar.finish_and_clear();
        done
    }
}
