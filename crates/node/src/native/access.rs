//! Who may come in, and who may see which memory.
//!
//! A process is known by the user it runs as when it connects (`SO_PEERCRED`). The node's own user may do everything; the users of
//! `allow_uid` may use every bucket that names nobody; a bucket with `allow_uids` belongs to those alone. Whoever maps a
//! segment can read all of it, so the pages of such a bucket lie in segments of their own: its trust domain. Domains are numbered
//! by the position of the bucket in the configuration, 0 is everything else.

use std::collections::{BTreeMap, BTreeSet};

use forebay_core::{BucketName, Error, Kind, Result};
use forebay_reservoir::TrustDomain;

use crate::options::NodeOptions;

/// The users and what they may use.
#[derive(Debug)]
pub(crate) struct Access {
    own_uid: u32,
    allowed: BTreeSet<u32>,
    closed: BTreeMap<BucketName, Closed>,
}

/// A bucket that names its users.
#[derive(Debug)]
struct Closed {
    domain: TrustDomain,
    allowed: BTreeSet<u32>,
}

impl Access {
    pub(super) fn new(options: &NodeOptions) -> Self {
        let closed = options.buckets.iter().enumerate().filter_map(|(index, bucket)| {
            let closed = Closed {
                domain: trust_domain(index, bucket.allow_uids.as_deref()),
                allowed: bucket.allow_uids.as_ref()?.iter().copied().collect(),
            };
            Some((bucket.name.clone(), closed))
        });
        Self {
            own_uid: rustix::process::geteuid().as_raw(),
            allowed: options.native.allow_uids.iter().copied().collect(),
            closed: closed.collect(),
        }
    }

    /// Whether processes of other users may come in at all.
    pub(super) fn is_shared(&self) -> bool {
        let closed = self.closed.values().flat_map(|bucket| &bucket.allowed);
        self.allowed.iter().chain(closed).any(|uid| *uid != self.own_uid)
    }

    /// Whether a process of this user may connect.
    pub(super) fn admits(&self, uid: u32) -> bool {
        let is_named = || self.closed.values().any(|bucket| bucket.allowed.contains(&uid));
        uid == self.own_uid || self.allowed.contains(&uid) || is_named()
    }

    /// `Denied` unless this user may use the bucket.
    pub(super) fn check(&self, uid: u32, bucket: &BucketName) -> Result<()> {
        if self.may_use(uid, bucket) {
            return Ok(());
        }
        let message = "this user may not use the bucket; add the user id to its allow_uids or to allow_uid";
        Err(Error::new(Kind::Denied, message)
            .with("bucket", bucket)
            .with("uid", uid))
    }

    /// Whether this user may use the bucket.
    pub(super) fn may_use(&self, uid: u32, bucket: &BucketName) -> bool {
        let allowed = self
            .closed
            .get(bucket)
            .map_or(&self.allowed, |closed| &closed.allowed);
        uid == self.own_uid || allowed.contains(&uid)
    }

    /// Whether this user may map memory of a domain.
    pub(super) fn may_map(&self, uid: u32, domain: TrustDomain) -> bool {
        let closed = self.closed.values().find(|closed| closed.domain == domain);
        let allowed = closed.map_or(&self.allowed, |closed| &closed.allowed);
        uid == self.own_uid || allowed.contains(&uid)
    }
}

/// The domain of the bucket at this position of the configuration.
pub(crate) fn trust_domain(index: usize, allow_uids: Option<&[u32]>) -> TrustDomain {
    let number = u32::try_from(index + 1).unwrap_or(u32::MAX);
    TrustDomain(if allow_uids.is_some() { number } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u32 = 10;
    const GUEST: u32 = 20;
    const PARTNER: u32 = 30;

    fn access() -> Access {
        let closed = Closed {
            domain: TrustDomain(3),
            allowed: [PARTNER].into(),
        };
        Access {
            own_uid: OWN,
            allowed: [GUEST].into(),
            closed: [(bucket("closed"), closed)].into(),
        }
    }

    fn bucket(name: &str) -> BucketName {
        BucketName::new(name).unwrap()
    }

    #[test]
    fn a_guest_sees_open_buckets_and_a_partner_only_his_own() {
        let access = access();
        let may = |uid| {
            let buckets = ["open", "closed"].map(|name| access.may_use(uid, &bucket(name)));
            let domains = [0, 3].map(|domain| access.may_map(uid, TrustDomain(domain)));
            assert_eq!(buckets, domains, "memory goes with the bucket");
            (access.admits(uid), buckets)
        };
        assert_eq!(may(OWN), (true, [true, true]));
        assert_eq!(may(GUEST), (true, [true, false]));
        assert_eq!(may(PARTNER), (true, [false, true]));
        assert_eq!(may(40), (false, [false, false]));
        assert_eq!(
            access.check(GUEST, &bucket("closed")).unwrap_err().kind(),
            Kind::Denied
        );
    }
}
