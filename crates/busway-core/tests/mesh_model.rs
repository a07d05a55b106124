//! Three nodes, random clients, subscriptions, groups, rules and publishes, against a model of ten lines.

mod support;

use std::collections::BTreeMap;

use busway_core::client::codec::More;
use busway_core::matching::topic::meet;
use busway_core::wire::frame::{flag, kind};
use support::{equal, field, Mesh};

/// Pseudo-random numbers, the same for each seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }

    fn pick<'a>(&mut self, some: &[&'a str]) -> &'a str {
        some[self.roll(some.len())]
    }
}

#[derive(Debug, Clone)]
struct Sub {
    client: usize,
    id: u32,
    pattern: &'static str,
    group: &'static str,
    venue: Option<String>,
    flags: u8,
}

const TOPICS: [&str; 5] = ["a", "a/b", "a/c", "b/c", "a/*"];
const PATTERNS: [&str; 6] = ["a", "a/*", "**", "a/b", "*/c", "re:a.*"];
const GROUPS: [&str; 4] = ["", "", "red", "blue"];

/// The possible receivers of a message: those outside of groups, and by group.
fn expected<'a>(
    subs: &'a [Sub],
    mesh: &Mesh,
    from: usize,
    topic: &str,
    venue: &str,
) -> (Vec<&'a Sub>, BTreeMap<&'a str, Vec<&'a Sub>>) {
    let node = |client: usize| mesh.clients[client].node;
    let wants = |sub: &&Sub| {
        let matches = if sub.pattern == "re:a.*" { topic.starts_with('a') } else { meet(sub.pattern, topic) };
        let near = node(sub.client) == node(from);
        let scope = sub.flags & if near { flag::SUBSCRIBE_REMOTE } else { flag::SUBSCRIBE_LOCAL } == 0;
        let own = sub.client == from && sub.flags & flag::NO_ECHO != 0;
        matches && scope && !own && sub.venue.as_ref().is_none_or(|wanted| wanted == venue)
    };
    let mut groups: BTreeMap<&str, Vec<&Sub>> = BTreeMap::new();
    for sub in subs.iter().filter(wants).filter(|sub| !sub.group.is_empty()) {
        groups.entry(sub.group).or_default().push(sub);
    }
    // Local members first.
    for members in groups.values_mut() {
        if members.iter().any(|sub| node(sub.client) == node(from)) {
            members.retain(|sub| node(sub.client) == node(from));
        }
    }
    (subs.iter().filter(wants).filter(|sub| sub.group.is_empty()).collect(), groups)
}

fn run(seed: u64) {
    let mut dice = Dice(seed);
    // So many rules on one pattern that other nodes get an entry without rules.
    let crowd = seed % 4 == 3;
    let mut mesh = Mesh::new(3);
    mesh.step = [1 << 20, 5, 100][dice.roll(3)];
    let clients: Vec<_> = (0..7).map(|i| mesh.client(i % 3, &format!("c{i}"))).collect();
    let (mut subs, mut last): (Vec<Sub>, u32) = (Vec::new(), 0);
    for round in 0..120 {
        match dice.roll(10) {
            0..=3 => {
                last += 1;
                let flags =
                    [0, 0, 0, flag::NO_ECHO, flag::SUBSCRIBE_LOCAL, flag::SUBSCRIBE_REMOTE, flag::WATCH][dice.roll(7)];
                let venue = (crowd || dice.roll(3) == 0).then(|| format!("v{}", dice.roll(25)));
                let (client, id) = (clients[dice.roll(if crowd { 2 } else { 7 })], last);
                let (mut pattern, mut group) = (dice.pick(&PATTERNS), dice.pick(&GROUPS));
                if crowd {
                    (pattern, group) = ("**", "");
                }
                let sub = Sub { client, id, pattern, group, venue, flags };
                let rules = sub.venue.as_ref().map_or_else(Vec::new, |venue| equal("venue", venue));
                mesh.subscribe(client, id, sub.pattern, sub.group, flags, &rules);
                subs.push(sub);
            }
            4 if !subs.is_empty() => {
                let gone = subs.swap_remove(dice.roll(subs.len()));
                mesh.end(gone.client, kind::UNSUBSCRIBE, gone.id);
            }
            5 => {
                // A link ends, and the other side opens it again.
                let mut links: Vec<_> = mesh.ends.iter().map(|(&near, &far)| (near, far)).collect();
                links.sort_unstable();
                let ((a, conn), (b, _)) = links[dice.roll(links.len())];
                mesh.part(a, conn);
                mesh.join(b, a);
            }
            _ => {
                let (from, topic) = (clients[dice.roll(7)], dice.pick(&TOPICS));
                let venue = format!("v{}", dice.roll(25));
                let fields = field("venue", &venue);
                let text = format!("{seed} {round}");
                let push = dice.roll(4) == 0;
                let more = More { fields: &fields, ..More::default() };
                mesh.send(from, if push { kind::PUSH } else { kind::PUBLISH }, topic, more, &text);
                mesh.pump();
                let mut got: Vec<(usize, u32)> = Vec::new();
                for &client in &clients {
                    let mut copies = 0;
                    for one in mesh.take(client) {
                        if one.kind == kind::RESULT {
                            continue;
                        }
                        assert_eq!(String::from_utf8(one.payload).unwrap(), text);
                        assert_eq!(one.sender.1, format!("c{from}"));
                        copies += 1;
                        got.extend(one.ids.iter().map(|&id| (client, id)));
                        if push {
                            mesh.clients[client].out.answer_offer(one.number, 0);
                        }
                    }
                    assert!(copies <= 1, "{copies} copies");
                }
                let (alone, groups) = expected(&subs, &mesh, from, topic, &venue);
                let among = |some: &[&Sub], one: &(usize, u32)| some.iter().any(|sub| (sub.client, sub.id) == *one);
                if push {
                    let mut all: Vec<_> = alone.into_iter().chain(groups.into_values().flatten()).collect();
                    let near = |sub: &&Sub| mesh.clients[sub.client].node == mesh.clients[from].node;
                    if all.iter().any(near) {
                        all.retain(near);
                    }
                    assert_eq!((got.len(), got.iter().all(|one| among(&all, one))), (all.len().min(1), true));
                    mesh.pump();
                    mesh.take(from);
                    continue;
                }
                let mut rest = got.clone();
                rest.retain(|one| !among(&alone, one));
                assert_eq!(got.len() - rest.len(), alone.len(), "round {round}: {got:?} for {alone:?}");
                assert_eq!(rest.len(), groups.len(), "round {round}: {rest:?} for {groups:?}");
                assert!(groups.values().all(|members| rest.iter().filter(|one| among(members, one)).count() == 1));
            }
        }
    }
    for client in clients {
        mesh.leave(client);
    }
    while let Some(&(node, conn)) = mesh.ends.keys().next() {
        mesh.part(node, conn);
    }
    for node in &mesh.nodes {
        let left = node.totals();
        for name in ["subscriptions", "interest", "groups", "topics", "pending"] {
            assert!(left.contains(&(name, 0)), "{name} is left: {left:?}");
        }
    }
}

#[test]
fn each_subscription_gets_each_message_once_and_each_group_one_taker() {
    let from = std::env::var("BUSWAY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    for seed in from..from + 80 {
        let run = std::panic::catch_unwind(|| run(seed));
        assert!(run.is_ok(), "seed {seed}");
    }
}
