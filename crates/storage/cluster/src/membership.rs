//! The members as one node sees them: a trait, so that tests inject what gossip would say.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::{Member, NodeId};

/// The members at one moment. It routes and never decides: another node may see others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    own: NodeId,
    members: Vec<Member>,
    owners: Vec<Member>,
}

impl View {
    /// A view of the node `own`. Of several members of one id the one of the latest start counts.
    #[must_use]
    pub fn new(own: NodeId, mut members: Vec<Member>) -> Self {
        members.sort_by_key(|member| (member.id, std::cmp::Reverse(member.incarnation)));
        members.dedup_by_key(|member| member.id);
        let owners = members.iter().filter(|member| member.owns()).cloned().collect();
        Self { own, members, owners }
    }

    /// The node whose view it is.
    #[must_use]
    pub fn own(&self) -> NodeId {
        self.own
    }

    /// All members, the node itself included, by id.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The members that own stripes.
    #[must_use]
    pub fn owners(&self) -> &[Member] {
        &self.owners
    }
}

/// Knows who is there now.
pub trait Membership: Send + Sync + fmt::Debug + 'static {
    /// The members at this moment. Cheap: called for every miss.
    fn view(&self) -> Arc<View>;
}

/// Members that somebody sets. For tests and simulations.
#[derive(Debug)]
pub struct FixedMembers {
    view: RwLock<Arc<View>>,
}

impl FixedMembers {
    /// Sees these members.
    #[must_use]
    pub fn new(own: NodeId, members: Vec<Member>) -> Self {
        Self {
            view: RwLock::new(Arc::new(View::new(own, members))),
        }
    }

    /// Sees others from now on.
    pub fn set(&self, members: Vec<Member>) {
        let own = self.view.read().own();
        *self.view.write() = Arc::new(View::new(own, members));
    }
}

impl Membership for FixedMembers {
    fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemberState, WIRE_VERSION};

    #[test]
    fn the_latest_start_of_a_node_counts() {
        let old = Member::for_test(1, 10);
        let new = Member {
            incarnation: 2,
            weight: 20,
            ..old.clone()
        };
        let view = View::new(old.id, vec![old.clone(), new.clone()]);
        assert_eq!(view.members(), std::slice::from_ref(&new));
        assert_eq!(View::new(old.id, vec![new.clone(), old]).members(), [new]);
    }

    #[test]
    fn members_that_leave_or_speak_another_version_own_nothing() {
        let serving = Member::for_test(1, 10);
        let leaving = Member {
            state: MemberState::Leaving,
            ..Member::for_test(2, 10)
        };
        let newer = Member {
            wire: WIRE_VERSION + 1,
            ..Member::for_test(3, 10)
        };
        let view = View::new(serving.id, vec![serving.clone(), leaving, newer]);
        assert_eq!(view.members().len(), 3);
        assert_eq!(view.owners(), [serving]);
    }
}
