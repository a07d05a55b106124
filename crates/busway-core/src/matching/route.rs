//! The receivers of a topic's messages: the result of the index, arranged for sending and cached until interest
//! changes.

use crate::matching::index::{Index, Subscription};
use crate::matching::rule_filter::Choice;
use crate::wire::frame::{policy, scope};

/// A connection that gets each message, with its subscriptions.
#[derive(Debug)]
pub struct Target {
    pub conn: u32,
    pub policy: u8,
    /// The start of its ids in `Route::ids`.
    pub from: usize,
    pub to: usize,
    /// The topic's last slot on that connection.
    pub slot: u32,
    /// Some of its subscriptions exclude messages of the connection itself.
    pub picky: bool,
    /// Another node.
    pub link: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct Member {
    pub conn: u32,
    pub id: u32,
    pub policy: u8,
    pub echo: bool,
    pub listen: bool,
    pub watch: bool,
    pub link: bool,
}

/// A group: one of its members gets each message.
#[derive(Debug)]
pub struct Team {
    pub group: u32,
    pub members: Vec<Member>,
}

#[derive(Debug, Default)]
pub struct Route {
    pub epoch: u64,
    pub targets: Vec<Target>,
    pub ids: Vec<u32>,
    pub echo: Vec<bool>,
    pub listen: Vec<bool>,
    pub watch: Vec<bool>,
    pub teams: Vec<Team>,
    /// A connection is reached both directly and through groups, so its ids must be merged.
    pub overlap: bool,
    /// Some subscriptions have rules or a scope: the receivers are selected for each message.
    pub choice: Option<Box<Choice>>,
    /// Matching the expressions exceeded the limit: no subscriber gets the messages, and the publisher gets an error.
    pub too_complex: bool,
}

/// The strictest policy, if a connection's subscriptions differ.
fn stricter(a: u8, b: u8) -> u8 {
    let rank = |p: u8| match p {
        policy::BLOCK => 0,
        policy::DISCONNECT => 1,
        policy::DROP_NEW => 2,
        _ => 3,
    };
    if rank(a) <= rank(b) {
        a
    } else {
        b
    }
}

impl Route {
    pub fn build(index: &mut Index, topic: &str, epoch: u64) -> Self {
        let mut keys = Vec::new();
        if !index.matches(topic, &mut keys) {
            return Self { epoch, too_complex: true, ..Self::default() };
        }
        index.withhold(topic, &mut keys);
        let mut route = Self { epoch, ..Self::default() };
        if keys.iter().any(|&key| index.rules(key).is_some() || index.get(key).scope != scope::GLOBAL) {
            route.choice = Some(Box::new(Choice::new(index, &keys)));
        } else {
            route.fill(&mut keys.iter().map(|&key| *index.get(key)).collect());
        }
        route
    }

    /// Arranges these subscriptions only.
    pub fn fill(&mut self, subs: &mut Vec<Subscription>) {
        self.targets.clear();
        self.ids.clear();
        self.echo.clear();
        self.listen.clear();
        self.watch.clear();
        self.teams.clear();
        // In a group other nodes come last, see `Engine::pick`.
        let behind = |sub: &Subscription| sub.link && sub.group != Subscription::ALONE;
        subs.sort_unstable_by_key(|sub| (sub.group, behind(sub), sub.conn, sub.id));
        for sub in subs {
            if sub.group == Subscription::ALONE {
                self.add(sub);
            } else {
                self.add_member(sub);
            }
        }
        self.overlap = self.teams.len() > 1
            || self.teams.iter().any(|team| {
                team.members.iter().any(|m| self.targets.binary_search_by_key(&m.conn, |target| target.conn).is_ok())
            });
    }

    fn add(&mut self, sub: &Subscription) {
        let at = self.ids.len();
        if self.targets.last().is_none_or(|last| last.conn != sub.conn) {
            let (conn, policy) = (sub.conn, sub.policy);
            self.targets.push(Target { conn, policy, from: at, to: at, slot: u32::MAX, picky: false, link: sub.link });
        }
        self.ids.push(sub.id);
        self.echo.push(sub.echo);
        self.listen.push(sub.listen);
        self.watch.push(sub.watch);
        if let Some(target) = self.targets.last_mut() {
            target.to = at + 1;
            target.picky |= !sub.echo;
            target.policy = stricter(target.policy, sub.policy);
        }
    }

    fn add_member(&mut self, sub: &Subscription) {
        let Subscription { conn, id, policy, echo, listen, watch, link, .. } = *sub;
        let member = Member { conn, id, policy, echo, listen, watch, link };
        match self.teams.last_mut() {
            Some(team) if team.group == sub.group => team.members.push(member),
            _ => self.teams.push(Team { group: sub.group, members: vec![member] }),
        }
    }

    /// All subscriptions that could receive a message alone.
    pub fn takers(&self) -> impl Iterator<Item = Member> + '_ {
        self.alone().chain(self.teams.iter().flat_map(|team| team.members.iter().copied())).filter(|m| !m.listen)
    }

    /// All subscriptions outside of groups.
    pub fn alone(&self) -> impl Iterator<Item = Member> + '_ {
        self.targets.iter().flat_map(|target| {
            (target.from..target.to).map(|i| Member {
                conn: target.conn,
                id: self.ids[i],
                policy: target.policy,
                echo: self.echo[i],
                listen: self.listen[i],
                watch: self.watch[i],
                link: target.link,
            })
        })
    }
}
