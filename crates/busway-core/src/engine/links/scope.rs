//! Scopes of messages and subscriptions in a cluster.

use crate::engine::Engine;
use crate::matching::index::Subscription;
use crate::matching::route::{Member, Route};
use crate::matching::rule_filter::Asked;
use crate::wire::frame::{flag, scope};

/// True if a message with this scope matches a subscription's scope.
pub(in crate::engine) fn reaches(sub: &Subscription, scope: u8, remote: bool) -> bool {
    if sub.link {
        return !remote && scope != scope::LOCAL;
    }
    let from = if remote { scope::REMOTE } else { scope::LOCAL };
    scope != scope::REMOTE && (sub.scope == scope::GLOBAL || sub.scope == from)
}

/// The scope of a PUBLISH or PUSH; both bits are as none.
#[inline]
pub(in crate::engine) fn scope_of(frame: &[u8]) -> u8 {
    frame[6] & (scope::LOCAL | scope::REMOTE)
}

/// The scope of a REQUEST.
pub(in crate::engine) fn request_scope(frame: &[u8]) -> u8 {
    scope::of(frame[5], flag::LOCAL, flag::REMOTE)
}

impl Engine {
    /// The route of a message to our clients only, or to other nodes only.
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
