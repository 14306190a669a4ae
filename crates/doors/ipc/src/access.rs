//! Users: who may come in, and who may see which memory.
//!
//! A process is known by the user it runs as when it connects (`SO_PEERCRED`). The node's own user may do
//! everything; the users of `allow_uid` may use every bucket that names nobody; a bucket with `allow_uids`
//! belongs to those alone. Whoever maps a segment can read all of it, so the pages of such a bucket lie in
//! segments of their own: its trust domain. Domains are numbered by the position of the bucket in the
//! configuration, 0 is everything else.

use std::collections::{BTreeMap, BTreeSet};

use forebay_core::{BucketName, Error, Kind, Result};
use forebay_reservoir::TrustDomain;

/// The users and what they may use.
#[derive(Debug)]
pub struct Access {
    own_uid: u32,
    allowed: BTreeSet<u32>,
    closed: BTreeMap<BucketName, Closed>,
}

/// A bucket that names its users.
#[derive(Debug, Clone)]
pub struct ClosedBucket {
    /// Its name.
    pub name: BucketName,
    /// Domain of its memory; see [`trust_domain`].
    pub domain: TrustDomain,
    /// The users, besides the node's own.
    pub allow_uids: Vec<u32>,
}

#[derive(Debug)]
struct Closed {
    domain: TrustDomain,
    allowed: BTreeSet<u32>,
}

impl Access {
    /// Rules for the node's own user, for those that are allowed, and for those of buckets that name theirs.
    pub fn new(allow_uids: &[u32], closed: impl IntoIterator<Item = ClosedBucket>) -> Self {
        let closed = closed.into_iter().map(|bucket| {
            let closed = Closed {
                domain: bucket.domain,
                allowed: bucket.allow_uids.into_iter().collect(),
            };
            (bucket.name, closed)
        });
        Self {
            own_uid: rustix::process::geteuid().as_raw(),
            allowed: allow_uids.iter().copied().collect(),
            closed: closed.collect(),
        }
    }

    /// Returns whether processes of other users may come in at all.
    pub(crate) fn is_shared(&self) -> bool {
        let closed = self.closed.values().flat_map(|bucket| &bucket.allowed);
        self.allowed.iter().chain(closed).any(|uid| *uid != self.own_uid)
    }

    /// Returns whether a process of this user may connect.
    pub(crate) fn admits(&self, uid: u32) -> bool {
        let is_named = || self.closed.values().any(|bucket| bucket.allowed.contains(&uid));
        uid == self.own_uid || self.allowed.contains(&uid) || is_named()
    }

    /// `Denied` unless this user may use the bucket.
    pub(crate) fn check(&self, uid: u32, bucket: &BucketName) -> Result<()> {
        if self.may_use(uid, bucket) {
            return Ok(());
        }
        let message = "this user may not use the bucket; add the user id to its allow_uids or to allow_uid";
        Err(Error::new(Kind::Denied, message)
            .with("bucket", bucket)
            .with("uid", uid))
    }

    /// Returns whether this user may use the bucket.
    pub(crate) fn may_use(&self, uid: u32, bucket: &BucketName) -> bool {
        let allowed = self
            .closed
            .get(bucket)
            .map_or(&self.allowed, |closed| &closed.allowed);
        uid == self.own_uid || allowed.contains(&uid)
    }

    /// Returns whether this user may map memory of a domain.
    pub(crate) fn may_map(&self, uid: u32, domain: TrustDomain) -> bool {
        let closed = self.closed.values().find(|closed| closed.domain == domain);
        let allowed = closed.map_or(&self.allowed, |closed| &closed.allowed);
        uid == self.own_uid || allowed.contains(&uid)
    }
}

/// The domain of the bucket at this position of the configuration.
#[must_use]
pub fn trust_domain(index: usize, allow_uids: Option<&[u32]>) -> TrustDomain {
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
