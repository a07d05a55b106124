//! How far messages go in a mesh, and from where they are wanted.

use crate::engine::Engine;
use crate::matching::index::Subscription;
use crate::matching::route::{Member, Route};
use crate::matching::rule_filter::Asked;
use crate::wire::frame::{flag, scope};

/// Whether a subscription is one for a message of this scope.
pub(in crate::engine) fn reaches(sub: &Subscription, scope: u8, far: bool) -> bool {
    if sub.link {
        return !far && scope != scope::LOCAL;
    }
    let from = if far { scope::REMOTE } else { scope::LOCAL };
    scope != scope::REMOTE && (sub.scope == scope::GLOBAL || sub.scope == from)
}

/// How far a PUBLISH or PUSH goes; both bits: as without.
#[inline]
pub(in crate::engine) fn scope_of(frame: &[u8]) -> u8 {
    frame[6] & (scope::LOCAL | scope::REMOTE)
}

/// Whose services a REQUEST is for.
pub(in crate::engine) fn request_scope(frame: &[u8]) -> u8 {
    scope::of(frame[5], flag::LOCAL, flag::REMOTE)
}

impl Engine {
    /// The way of a message to our clients alone, or to other nodes alone.
    #[cold]
    pub(in crate::engine) fn within(&mut self, scope: u8, route: &Route) -> Box<Route> {
        let mut wanted = std::mem::take(&mut self.wanted);
        let sub = |member: Member, group: u32| {
            let Member { conn, id, policy, echo, listen, watch, link } = member;
            let mut sub = Subscription::new(conn, id, group, policy, echo, listen);
            (sub.watch, sub.link) = (watch, link);
            sub
        };
        wanted.extend(route.alone().map(|member| sub(member, Subscription::ALONE)));
        wanted.extend(route.teams.iter().flat_map(|team| team.members.iter().map(|&member| sub(member, team.group))));
        wanted.retain(|sub| reaches(sub, scope, false));
        self.narrowed_to(wanted, Asked::default())
    }
}
