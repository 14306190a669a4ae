//! The way a file's bytes reach the reader, decided for the mount and for each inode.
//!
//! One inode is read either by the kernel itself (passthrough) or through its cache while anybody has it open: the
//! kernel refuses a mixture. So the choice is made when nobody has it open, and kept until nobody has. The rule is
//! [`Rule::text`], which `forebay mount --explain` prints.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_core::format_bytes;
use parking_lot::Mutex;

use crate::inode::Version;
use crate::options::{MountOptions, Passthrough};
use crate::whole_copy::{LARGE_BYTES_MIN, WholeCopies, WholeCopy};

/// The way of one open.
pub(crate) enum Mode {
    /// Through the kernel's cache.
    Cached,
    /// The kernel reads the copy.
    Passthrough(Arc<WholeCopy>),
    /// A copy has to be made first.
    CopyFirst,
}

/// Opens of one inode.
#[derive(Default)]
struct Opens {
    cached: usize,
    passthrough: Option<(usize, Arc<WholeCopy>)>,
    /// Bytes asked of the mount since it was opened.
    read_bytes: u64,
}

/// The choice of a mount.
pub(crate) struct Rule {
    opens: Mutex<HashMap<u64, Opens>>,
    passthrough: Passthrough,
    can_pass_through: AtomicBool,
}

impl Rule {
    pub(crate) fn new(options: &MountOptions) -> Self {
        Self {
            opens: Mutex::new(HashMap::new()),
            passthrough: options.passthrough,
            can_pass_through: AtomicBool::new(false),
        }
    }

    /// The kernel's word at the start, or its refusal later.
    pub(crate) fn set_passthrough(&self, can: bool) {
        self.can_pass_through.store(can, Ordering::Relaxed);
    }

    fn passes_through(&self) -> bool {
        self.passthrough != Passthrough::Off && self.can_pass_through.load(Ordering::Relaxed)
    }

    /// Chooses for an open and counts it; `CopyFirst` counts nothing.
    pub(crate) fn open(&self, number: u64, version: &Version, copies: &WholeCopies) -> Mode {
        let mut opens = self.opens.lock();
        if !self.passes_through() || !copies.fits(version.bytes) {
            opens.entry(number).or_default().cached += 1;
            return Mode::Cached;
        }
        let state = opens.entry(number).or_default();
        if state.cached > 0 {
            state.cached += 1;
            return Mode::Cached;
        }
        if let Some((count, copy)) = &mut state.passthrough {
            *count += 1;
            return Mode::Passthrough(Arc::clone(copy));
        }
        if let Some(copy) = copies.get(number) {
            state.passthrough = Some((1, Arc::clone(&copy)));
            return Mode::Passthrough(copy);
        }
        if self.passthrough == Passthrough::AtOpen {
            opens.remove(&number);
            return Mode::CopyFirst;
        }
        state.cached = 1;
        Mode::Cached
    }

    /// Counts an open through the cache, where a copy could not be made.
    pub(crate) fn open_cached(&self, number: u64) {
        let mut opens = self.opens.lock();
        opens.entry(number).or_default().cached += 1;
    }

    pub(crate) fn count_read(&self, number: u64, bytes: u64) {
        if let Some(state) = self.opens.lock().get_mut(&number) {
            state.read_bytes = state.read_bytes.saturating_add(bytes);
        }
    }

    /// Counts a close; true if the version should be copied now, for the opens to come.
    pub(crate) fn close(&self, number: u64, version: &Version, copies: &WholeCopies) -> bool {
        let mut opens = self.opens.lock();
        let Some(state) = opens.get_mut(&number) else {
            return false;
        };
        let was_cached = state.cached > 0;
        if was_cached {
            state.cached -= 1;
        } else if let Some((count, _)) = &mut state.passthrough {
            *count -= 1;
        }
        let is_idle = state.cached == 0 && state.passthrough.as_ref().is_none_or(|(count, _)| *count == 0);
        if !is_idle {
            return false;
        }
        let read = state.read_bytes;
        opens.remove(&number);
        let by_rule = self.passthrough == Passthrough::AfterRead && self.passes_through();
        was_cached && by_rule && copies.fits(version.bytes) && read >= version.bytes / 2
    }

    #[cfg(test)]
    fn open_inodes(&self) -> usize {
        self.opens.lock().len()
    }

    /// The way of an inode and why, for `user.forebay.mode`.
    pub(crate) fn explain(&self, number: u64, version: &Version, copies: &WholeCopies) -> String {
        if !self.passes_through() {
            return "cached: this mount does not pass through".into();
        }
        if version.bytes < LARGE_BYTES_MIN {
            return format!("cached: smaller than {}", format_bytes(LARGE_BYTES_MIN));
        }
        if !copies.fits(version.bytes) {
            return "cached: larger than the memory for whole copies".into();
        }
        let opens = self.opens.lock();
        match opens.get(&number) {
            Some(state) if state.cached > 0 => {
                "cached: open so; decided again when nobody has it open".into()
            }
            Some(_) => "passthrough: open so".into(),
            None if copies.get(number).is_some() => "passthrough: a whole copy is there".into(),
            None if self.passthrough == Passthrough::AtOpen => {
                "passthrough: copied whole at the next open".into()
            }
            None => "cached: not read by half yet".into(),
        }
    }

    /// The rule in words.
    pub(crate) fn text(&self, options: &MountOptions) -> String {
        let large = format_bytes(LARGE_BYTES_MIN);
        let memory = format_bytes(options.passthrough_bytes_max);
        if options.immutable {
            return "no_open: objects are promised never to be replaced, so opens and closes cost nothing; all reads go \
                    through the kernel's cache"
                .into();
        }
        let when = match options.passthrough {
            _ if !self.can_pass_through.load(Ordering::Relaxed) => {
                return "cached: every file goes through the kernel's cache; this kernel or these rights do not allow \
                        passthrough (Linux 6.9 and CAP_SYS_ADMIN)"
                    .into();
            }
            Passthrough::Off => {
                return "cached: every file goes through the kernel's cache; passthrough is off".into();
            }
            Passthrough::AfterRead => "once half of it was read and nobody has it open",
            Passthrough::AtOpen => "when it is opened first",
        };
        format!(
            "smaller than {large}: through the kernel's cache; {large} to {memory}: copied whole {when}, then read by \
             the kernel itself (passthrough); larger: through the kernel's cache"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn large() -> Version {
        Version {
            key: "a".into(),
            etag: "1".into(),
            bytes: LARGE_BYTES_MIN,
            modified: 0,
        }
    }

    fn rule(passthrough: Passthrough) -> (Rule, WholeCopies) {
        let options = MountOptions {
            passthrough,
            ..MountOptions::new("b", "", "/nowhere")
        };
        let rule = Rule::new(&options);
        rule.set_passthrough(true);
        (rule, WholeCopies::new(1 << 30))
    }

    #[test]
    fn a_large_file_that_was_read_is_copied_when_nobody_has_it_open() {
        let (rule, copies) = rule(Passthrough::AfterRead);
        let version = large();
        assert!(matches!(rule.open(2, &version, &copies), Mode::Cached));
        assert!(matches!(rule.open(2, &version, &copies), Mode::Cached));
        rule.count_read(2, version.bytes);
        assert!(!rule.close(2, &version, &copies), "somebody has it open");
        assert!(rule.close(2, &version, &copies));
        assert_eq!(rule.open_inodes(), 0);
    }

    #[test]
    fn a_file_of_which_little_was_read_is_not_copied() {
        let (rule, copies) = rule(Passthrough::AfterRead);
        let version = large();
        assert!(matches!(rule.open(2, &version, &copies), Mode::Cached));
        rule.count_read(2, 4096);
        assert!(!rule.close(2, &version, &copies));
    }

    #[test]
    fn at_open_a_large_file_is_copied_first_and_a_small_one_never() {
        let (rule, copies) = rule(Passthrough::AtOpen);
        assert!(matches!(rule.open(2, &large(), &copies), Mode::CopyFirst));
        let small = Version { bytes: 5, ..large() };
        assert!(matches!(rule.open(3, &small, &copies), Mode::Cached));
        rule.set_passthrough(false);
        assert!(matches!(rule.open(2, &large(), &copies), Mode::Cached));
    }
}
