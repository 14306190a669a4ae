//! From the kind of an error to the number that a system call ends with.

use forebay_core::{Error, Kind};
use fuser::Errno;

/// The number for an error. A version that is gone is `ESTALE`: an `open` that gets it is tried again by the
/// kernel, which then looks at the name anew.
pub(crate) fn errno_of(error: &Error) -> Errno {
    match error.kind() {
        Kind::NotFound | Kind::Changed | Kind::PreconditionFailed => Errno::ESTALE,
        Kind::AlreadyExists => Errno::EEXIST,
        Kind::InvalidInput => Errno::EINVAL,
        Kind::OutOfRange => Errno::EINVAL,
        Kind::Denied => Errno::EACCES,
        Kind::Unsupported => Errno::EOPNOTSUPP,
        Kind::Busy | Kind::Throttled => Errno::EAGAIN,
        Kind::Timeout => Errno::ETIMEDOUT,
        Kind::NoSpace => Errno::ENOSPC,
        Kind::Cancelled => Errno::EINTR,
        // Unavailable, Checksum, Corrupt, Conflict, Io, Internal, and what is new.
        _ => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_a_program_can_act_on_has_a_number_of_its_own() {
        let number = |kind| errno_of(&Error::new(kind, "no")).code();
        assert_eq!(number(Kind::Changed), libc::ESTALE);
        assert_eq!(number(Kind::NoSpace), libc::ENOSPC);
        assert_eq!(number(Kind::Denied), libc::EACCES);
        for kind in Kind::ALL {
            assert!(number(kind) > 0, "{kind}");
        }
    }
}
