//! Slow clients behind links, scopes, stored and retained messages over links, and nodes that violate the protocol.

mod support;

use std::sync::{Arc, Mutex};

use busway_core::client::codec::More;
use busway_core::engine::retained::Kept;
use busway_core::engine::{Engine, Event, Limits};
use busway_core::log::append::Log;
use busway_core::log::Settings;
use busway_core::wire::frame::{code, flag, kind, scope, Writer};
use support::{Mesh, LIMITS};

fn scoped(scope: u8) -> More<'static> {
    More { each: u16::from(scope), ..More::default() }
}

/// Publishes until the publisher is blocked. Returns the number of messages.
fn fill(mesh: &mut Mesh, client: usize, topic: &str) -> usize {
    let payload = "x".repeat(10_000);
    let node = mesh.clients[client].node;
    for count in 1..10_000 {
        mesh.publish(client, topic, &payload);
        if !mesh.nodes[node].waiting().is_empty() {
            return count;
        }
    }
    panic!("nobody waits");
}

#[test]
fn who_publishes_to_a_slow_client_of_another_node_waits_and_nobody_else() {
    let mut mesh = Mesh::new(2);
    let (ann, amy, bob, eve) =
        (mesh.client(0, "ann"), mesh.client(0, "amy"), mesh.client(1, "bob"), mesh.client(1, "eve"));
    mesh.subscribe(bob, 1, "a", "", 0, &[]);
    mesh.subscribe(eve, 1, "b", "", 0, &[]);
    let slow = mesh.clients[bob].conn;
    mesh.nodes[1].set_writable(slow, false);
    let mut sent = fill(&mut mesh, ann, "a");
    assert!((100..150).contains(&sent), "{sent}");
    for _ in 0..5 {
        mesh.publish(ann, "a", "waits");
        sent += 1;
    }
    mesh.publish(amy, "b", "passes");
    assert_eq!(mesh.payloads(eve), [(vec![1], "passes".into())]);
    assert!(mesh.nodes[1].has_blocked());
    // Time passes; HOLD is repeated, so that the other node does not give bob up.
    for now in (0..190).step_by(20) {
        mesh.nodes.iter_mut().for_each(|node| node.tick(now));
        mesh.pump();
    }
    assert_eq!(mesh.nodes[0].waiting().len(), 1);
    mesh.nodes[1].set_writable(slow, true);
    let got = mesh.take(bob);
    assert_eq!(got.iter().filter(|one| one.kind == kind::DELIVER).count(), sent);
    assert!(mesh.nodes[0].waiting().is_empty() && got.iter().all(|one| one.kind != kind::MISSED));
}

#[test]
fn a_client_of_another_node_that_is_stuck_holds_nobody_up_for_ever() {
    let mut mesh = Mesh::new(2);
    let (ann, bob) = (mesh.client(0, "ann"), mesh.client(1, "bob"));
    mesh.subscribe(bob, 1, "a", "", 0, &[]);
    let slow = mesh.clients[bob].conn;
    mesh.nodes[1].set_writable(slow, false);
    let sent = fill(&mut mesh, ann, "a");
    for now in (0..1000).step_by(20) {
        mesh.nodes.iter_mut().for_each(|node| node.tick(now));
        mesh.pump();
    }
    assert!(mesh.nodes[0].waiting().is_empty());
    mesh.publish(ann, "a", "lost");
    mesh.nodes[1].set_writable(slow, true);
    let got = mesh.take(bob);
    let missed: u64 = got.iter().filter(|one| one.kind == kind::MISSED).map(|one| one.number).sum();
    let delivered = got.iter().filter(|one| one.kind == kind::DELIVER).count();
    assert_eq!((delivered + missed as usize, missed > 0), (sent + 1, true));
}

#[test]
fn a_consumer_that_says_hold_is_waited_for_over_a_link() {
    let mut mesh = Mesh::new(2);
    let (ann, bob) = (mesh.client(0, "ann"), mesh.client(1, "bob"));
    mesh.subscribe(bob, 1, "a", "", 0, &[]);
    mesh.subscribe(bob, 2, "b", "", 0, &[]);
    mesh.clients[bob].out.hold(1, true, 0);
    mesh.pump();
    mesh.publish(ann, "a", "on its way");
    mesh.publish(ann, "a", "waits");
    assert_eq!(mesh.nodes[0].waiting().len(), 1);
    let amy = mesh.client(0, "amy");
    mesh.publish(amy, "b", "passes");
    assert_eq!(mesh.payloads(bob), [(vec![1], "on its way".into()), (vec![2], "passes".into())]);
    // Much longer than a silent client is waited for.
    for taken in 1..40 {
        mesh.clients[bob].out.hold(1, true, taken);
        mesh.pump();
        mesh.nodes.iter_mut().for_each(|node| node.tick(taken * 50));
        mesh.pump();
    }
    assert_eq!(mesh.nodes[0].waiting().len(), 1);
    mesh.clients[bob].out.hold(1, false, 40);
    assert_eq!(mesh.payloads(bob), [(vec![1], "waits".into())]);
}

#[test]
fn what_a_crowded_link_drops_is_told_to_those_who_miss_it() {
    let mut mesh = Mesh::new(2);
    let (ann, bob) = (mesh.client(0, "ann"), mesh.client(1, "bob"));
    mesh.clients[bob].out.subscribe(1, "a", "", 0, 1, &[], &[]).unwrap();
    assert_eq!(mesh.result(bob).code, code::OK);
    let link = mesh.ends.keys().find(|(node, _)| *node == 0).unwrap().1;
    mesh.nodes[0].set_writable(link, false);
    for _ in 0..300 {
        mesh.publish(ann, "a", &"x".repeat(10_000));
    }
    mesh.nodes[0].set_writable(link, true);
    let got = mesh.take(bob);
    let missed: u64 = got.iter().filter(|one| one.kind == kind::MISSED).map(|one| one.number).sum();
    let delivered = got.iter().filter(|one| one.kind == kind::DELIVER).count() as u64;
    assert_eq!((delivered + missed, missed > 100, delivered > 90), (300, true, true));
}

#[test]
fn a_scope_says_how_far_a_message_goes_and_from_where_it_is_wanted() {
    let mut mesh = Mesh::new(2);
    let (ann, near, far) = (mesh.client(0, "ann"), mesh.client(0, "near"), mesh.client(1, "far"));
    for client in [near, far] {
        mesh.subscribe(client, 1, "a", "", 0, &[]);
        mesh.subscribe(client, 2, "a", "", flag::SUBSCRIBE_LOCAL, &[]);
        mesh.subscribe(client, 3, "a", "", flag::SUBSCRIBE_REMOTE, &[]);
    }
    for (scope, at_near, at_far) in [
        (scope::GLOBAL, vec![vec![1, 2]], vec![vec![1, 3]]),
        (scope::LOCAL, vec![vec![1, 2]], vec![]),
        (scope::REMOTE, vec![], vec![vec![1, 3]]),
    ] {
        mesh.send(ann, kind::PUBLISH, "a", scoped(scope), "message");
        let ids = |mesh: &mut Mesh, client| mesh.take(client).into_iter().map(|got| got.ids).collect::<Vec<_>>();
        assert_eq!((ids(&mut mesh, near), ids(&mut mesh, far)), (at_near, at_far), "{scope}");
    }
    // First without a scope of their own, since the route is another one.
    for client in [near, far] {
        mesh.subscribe(client, 9, "c", "", 0, &[]);
        mesh.subscribe(client, 8, "c", "g", 0, &[]);
    }
    for (scope, at_near, at_far) in [(scope::LOCAL, 1, 0), (scope::REMOTE, 0, 1), (scope::GLOBAL, 1, 1)] {
        mesh.send(ann, kind::PUBLISH, "c", scoped(scope), "message");
        assert_eq!((mesh.take(near).len(), mesh.take(far).len()), (at_near, at_far));
        mesh.send(ann, kind::PUSH, "c", scoped(scope), "push");
        let (one, other) = (mesh.take(near).len(), mesh.take(far).len());
        assert_eq!((one, other), if scope == scope::REMOTE { (0, 1) } else { (1, 0) });
    }
}

#[test]
fn a_scope_says_whose_services_are_asked() {
    let mut mesh = Mesh::new(2);
    let (ann, bob) = (mesh.client(0, "ann"), mesh.client(1, "bob"));
    assert_eq!(mesh.serve(bob, 1, "sum", 0), code::OK);
    // A local service may exist beside it, and is asked first.
    assert_eq!(mesh.serve(ann, 1, "sum", flag::LOCAL), code::OK);
    let request = |flags: u8| More { flags, ..More::default() };
    for (flags, here) in [(0, true), (flag::LOCAL, true), (flag::REMOTE, false)] {
        mesh.send(ann, kind::REQUEST, "sum", request(flags), "1+2");
        let calls = (mesh.take(ann).len(), mesh.take(bob).len());
        assert_eq!(calls, if here { (1, 0) } else { (0, 1) }, "{flags}");
    }
    mesh.end(bob, kind::UNSERVE, 1);
    let sol = mesh.client(1, "sol");
    mesh.send(sol, kind::REQUEST, "sum", More::default(), "1+2");
    assert_eq!(mesh.take(sol)[0].code, code::NO_RESPONDERS);
    assert_eq!(mesh.serve(sol, 1, "far", flag::REMOTE), code::OK);
    mesh.send(sol, kind::REQUEST, "far", More::default(), "mine");
    assert_eq!(mesh.take(sol)[0].code, code::NO_RESPONDERS);
    mesh.send(ann, kind::REQUEST, "far", More::default(), "theirs");
    assert_eq!(mesh.take(sol)[0].kind, kind::CALL);
}

#[test]
fn stored_messages_cross_links_with_their_stream() {
    let mut mesh = Mesh::new(2);
    let (ann, bob, eve) = (mesh.client(0, "ann"), mesh.client(1, "bob"), mesh.client(1, "eve"));
    let log = Arc::new(Mutex::new(Some(Log::memory(Settings::default(), 0))));
    mesh.nodes[0].add_stream(0, "orders", [7; 16], log, None);
    mesh.subscribe(bob, 1, "a", "", 0, &support::equal("venue", "krk"));
    mesh.subscribe(eve, 1, "a", "g", 0, &[]);
    let krk = support::field("venue", "krk");
    let durable = More { flags: flag::DURABLE, fields: &krk, ..More::default() };
    mesh.send(ann, kind::PUBLISH, "a", durable, "stored");
    mesh.send(ann, kind::PUBLISH, "a", More { flags: flag::DURABLE, ..More::default() }, "other");
    let got = mesh.take(bob);
    assert_eq!(got.len(), 1, "{got:?}");
    assert_eq!((got[0].kind, got[0].topic.as_str(), got[0].sender.1.as_str()), (kind::RECORD, "a", "orders"));
    assert_eq!(mesh.payloads(eve), [(vec![1], "stored".into()), (vec![1], "other".into())]);
    // A message with a scope can't be stored.
    let flags = flag::DURABLE;
    let number = mesh.send(ann, kind::PUBLISH, "a", More { flags, each: 1, ..More::default() }, "here");
    let told = mesh.result(ann);
    assert_eq!((told.number, told.code), (number, code::INVALID_SETTING));
}

/// A post of a client, as its node's driver receives it.
fn posted(mesh: &mut Mesh, client: usize, topic: &str) -> (u32, Vec<u8>) {
    mesh.send(client, kind::PUBLISH, topic, More { flags: flag::POST, ..More::default() }, "post");
    mesh.pump();
    let Some((_, Event::Keep { conn, frame, .. })) = mesh.events.pop() else { panic!() };
    (conn, frame)
}

#[test]
fn kept_messages_and_their_end_go_to_the_clients_of_each_node() {
    let mut mesh = Mesh::new(2);
    let (ann, bob, eve) = (mesh.client(0, "ann"), mesh.client(1, "bob"), mesh.client(1, "eve"));
    let dan = mesh.client(0, "dan");
    mesh.subscribe(bob, 1, "a", "", flag::WATCH, &[]);
    mesh.subscribe(eve, 1, "a", "", 0, &[]);
    mesh.subscribe(dan, 1, "a", "", flag::WATCH, &[]);
    let (conn, frame) = posted(&mut mesh, ann, "a");
    let (client, session) = (conn + 1, mesh.clients[ann].conn.into());
    let kept = Kept { client, session, name: "ann", flags: flag::POST, topic: "a", body: &frame[16..] };
    // The other node counts as one, and gets it from its own driver.
    assert_eq!(mesh.nodes[0].publish_kept(&kept, None), (2, vec![]));
    mesh.nodes[0].settle_held(conn);
    assert_eq!((mesh.take(dan).len(), mesh.take(bob).len()), (1, 0));
    assert_eq!(mesh.nodes[1].publish_kept(&kept, Some(&[])), (2, vec![]));
    for client in [bob, eve] {
        let got = mesh.take(client);
        assert_eq!((got.len(), got[0].flags & !flag::KEEP, got[0].sender.1.as_str()), (1, flag::POST, "ann"));
    }
    mesh.nodes[0].withdraw(&kept, false);
    assert_eq!((mesh.take(dan).len(), mesh.take(bob).len()), (1, 0));
    mesh.nodes[1].withdraw(&kept, true);
    let got = mesh.take(bob);
    assert_eq!((got.len(), got[0].flags & !flag::KEEP), (1, flag::POST | flag::WITHDRAWN));
    assert!(mesh.take(eve).is_empty());
}

#[test]
fn a_kept_message_is_for_one_member_of_a_group_in_the_mesh() {
    let mut mesh = Mesh::new(3);
    let (ann, bob, eve) = (mesh.client(0, "ann"), mesh.client(1, "bob"), mesh.client(2, "eve"));
    mesh.subscribe(bob, 1, "a", "g", 0, &[]);
    mesh.subscribe(eve, 1, "a", "g", 0, &[]);
    let (conn, frame) = posted(&mut mesh, ann, "a");
    let kept = Kept { client: 9, session: conn.into(), name: "ann", flags: flag::POST, topic: "a", body: &frame[16..] };
    let (receivers, served) = mesh.nodes[0].publish_kept(&kept, None);
    assert_eq!((receivers, served.as_slice()), (1, &["g".to_owned()][..]));
    mesh.nodes[0].settle_held(conn);
    mesh.pump();
    for node in [1, 2] {
        assert_eq!(mesh.nodes[node].publish_kept(&kept, Some(&served)), (0, vec![]));
    }
    assert_eq!(mesh.take(bob).len() + mesh.take(eve).len(), 1);
    // A group without members at that node: a member here gets it.
    assert_eq!(mesh.nodes[1].publish_kept(&kept, Some(&[])), (1, vec!["g".to_owned()]));
    assert_eq!((mesh.take(bob).len(), mesh.take(eve).len()), (1, 0));
    // A member at the same node comes first.
    let dan = mesh.client(0, "dan");
    mesh.subscribe(dan, 1, "a", "g", 0, &[]);
    assert_eq!(mesh.nodes[0].publish_kept(&kept, None).0, 1);
    assert_eq!((mesh.take(dan).len(), mesh.take(bob).len(), mesh.take(eve).len()), (1, 0, 0));
}

/// A node that is a link, and a connection that sends arbitrary frames to it.
fn link() -> (Engine, u32) {
    let mut engine = Engine::new(LIMITS);
    let conn = engine.connect();
    let mut hello = Vec::new();
    Writer::new(&mut hello, kind::HELLO, 0).u16(1).bytes(b"BWAY").bytes(b"node").end();
    engine.feed(conn, &hello);
    assert!(engine.admit_node(conn, 1, "node", 1, 1, b"welcome"));
    engine.link(conn).unwrap();
    engine.take_events();
    (engine, conn)
}

#[test]
fn a_node_that_breaks_the_rules_is_cut_off() {
    let frame = |kind: u8, flags: u8, rest: &[u8]| {
        let mut out = Vec::new();
        Writer::new(&mut out, kind, flags).bytes(rest).end();
        out
    };
    let entry = |op: u8, flags: u8, policy: u8, id: u8, text: &[u8]| {
        [&[1, 0, op, flags, policy, 0, id, 0, 0, 0, text.len() as u8, 0], text, &[0; 6]].concat()
    };
    let bad = [
        (frame(kind::PUBLISH, 0, &[0; 26]), code::PROTOCOL),
        (frame(kind::PUSH, 0, &[0; 26]), code::PROTOCOL),
        (frame(kind::REQUEST, 0, &[0; 26]), code::PROTOCOL),
        (frame(kind::SUBSCRIBE, 0, &[0; 22]), code::PROTOCOL),
        (frame(kind::SERVE, 0, &[0; 16]), code::PROTOCOL),
        (frame(kind::CHANNEL, 0, &[0; 14]), code::PROTOCOL),
        (frame(kind::HELLO, 0, &[0; 14]), code::PROTOCOL),
        (frame(kind::RESULT, 0, &[0; 18]), code::PROTOCOL),
        (frame(kind::NODE, 0, &[0; 9]), code::PROTOCOL),
        (frame(kind::NODE, 2, &[0; 10]), code::PROTOCOL),
        (frame(kind::GAP, 0, &[0; 26]), code::PROTOCOL),
        (frame(kind::DELIVER, 0, &[0; 26]), code::PROTOCOL),
        (frame(kind::DELIVER, 0, &[[1].as_slice(), &[0; 29]].concat()), code::PROTOCOL),
        (frame(kind::SENDER, 0, &[0xff; 16]), code::PROTOCOL),
        (frame(kind::STREAM, 0, &[0; 10]), code::PROTOCOL),
        (frame(kind::RECORD, 0, &[0; 40]), code::PROTOCOL),
        (frame(kind::INTEREST, 2, &[0; 2]), code::PROTOCOL),
        (frame(kind::INTEREST, 0, &[1, 0, 9, 0, 0, 0, 1, 0, 0, 0]), code::PROTOCOL),
        (frame(kind::INTEREST, 0, &entry(1, 0, 3, 1, b"a")), code::PROTOCOL),
        (frame(kind::INTEREST, 0, &entry(1, 0x80, 0, 1, b"a")), code::PROTOCOL),
        (frame(kind::INTEREST, 0, &entry(1, 0, 0, 1, b"a//b")), code::INVALID_TOPIC),
        (frame(kind::INTEREST, 0, &entry(3, 0, 0, 1, b"a/*")), code::WILDCARD),
        (frame(kind::INTEREST, 0, &entry(3, 0, 0, 1, b"$bus/info")), code::RESERVED),
        (
            [frame(kind::INTEREST, 0, &entry(1, 0, 0, 1, b"a")), frame(kind::INTEREST, 0, &entry(1, 0, 0, 1, b"b"))]
                .concat(),
            code::PROTOCOL,
        ),
    ];
    let named = [frame(kind::TOPIC, 0, &[0, 0, 0, 0, 0, 0, b'a']), frame(kind::SENDER, 0, &[0; 14])].concat();
    let one = |more: &[u8]| [&[1, 0][..], &[0; 12], &[0; 16], more].concat();
    let garbage = [
        (frame(kind::DELIVER, flag::FIELDS, &one(&[9, 0, 0, 0, 1])), code::PROTOCOL),
        (frame(kind::DELIVER, flag::FIELDS, &one(&[1, 0, 0, 0, 7])), code::PROTOCOL),
        (frame(kind::DELIVER, flag::FIELDS, &one(&[4, 0, 0, 0, 0x81, 0xa1, b'.', 1])), code::PROTOCOL),
        (frame(kind::CALL, 0, &one(&[0; 7])), code::PROTOCOL),
        (frame(kind::OFFER, 0x80, &one(&[0; 8])), code::PROTOCOL),
        (frame(kind::REPLY, flag::FIELDS, &[&[0; 10][..], &[1, 0, 0, 0, 7]].concat()), code::PROTOCOL),
    ];
    let garbage = garbage.into_iter().map(|(bytes, code)| ([named.clone(), bytes].concat(), code));
    for (bytes, expected) in bad.into_iter().chain(garbage) {
        let (mut engine, conn) = link();
        engine.feed(conn, &bytes);
        let events = engine.take_events();
        assert!(
            matches!(&events[..], [Event::Fail { code, .. }] if *code == expected),
            "{bytes:02x?} {events:?} instead of {expected}"
        );
        engine.disconnect(conn);
        let left = engine.totals();
        assert!(left.contains(&("subscriptions", 0)) && left.contains(&("topics", 0)) && left.contains(&("links", 0)));
    }
    // Too much interest is announced.
    let (mut engine, conn) = link();
    engine.limits.links = 3;
    for id in 1..5 {
        engine.feed(conn, &frame(kind::INTEREST, 0, &entry(1, 0, 0, id, b"a")));
    }
    assert!(matches!(&engine.take_events()[..], [Event::Fail { code: code::TOO_MANY_SUBSCRIPTIONS, .. }]));
    assert!(Engine::new(busway_core::engine::Limits { links: 0, ..LIMITS }).link(0).is_err());
}

#[test]
fn a_node_that_floods_a_slow_client_costs_no_more_than_twice_its_outbox() {
    let mut mesh = Mesh::new(2);
    let (ann, bob) = (mesh.client(0, "ann"), mesh.client(1, "bob"));
    mesh.subscribe(bob, 1, "a", "", 0, &[]);
    mesh.publish(ann, "a", "first");
    mesh.take(bob);
    let slow = mesh.clients[bob].conn;
    mesh.nodes[1].set_writable(slow, false);
    let link = mesh.ends.keys().find(|(node, _)| *node == 1).unwrap().1;
    let mut flood = Vec::new();
    for _ in 0..100 {
        let frame = Writer::new(&mut flood, kind::DELIVER, 0).u16(1).u32(0).u32(0).u32(1);
        frame.bytes(&vec![0; 50_016]).end();
    }
    mesh.cut = true;
    mesh.nodes[1].feed(link, &flood);
    assert!(mesh.nodes[1].outbox_bytes(slow) < 2 * LIMITS.outbox + 100_000);
    mesh.nodes[1].set_writable(slow, true);
    let got = mesh.take(bob);
    let missed: u64 = got.iter().filter(|one| one.kind == kind::MISSED).map(|one| one.number).sum();
    assert_eq!(got.iter().filter(|one| one.kind == kind::DELIVER).count() as u64 + missed, 100);
}

#[test]
fn an_id_that_is_gone_stands_for_nobody() {
    let mut mesh = Mesh::new(2);
    let (ann, bob) = (mesh.client(0, "ann"), mesh.client(1, "bob"));
    mesh.subscribe(bob, 1, "a", "g", 0, &[]);
    mesh.subscribe(bob, 2, "b", "", 0, &[]);
    mesh.publish(ann, "a", "first");
    // In flight while the group ends and a client subscribes alone: these messages were not for that subscription.
    mesh.cut = true;
    for _ in 0..5 {
        mesh.send(ann, kind::PUBLISH, "a", More::default(), "late");
    }
    mesh.pump();
    let late = std::mem::take(&mut mesh.kept);
    mesh.end(bob, kind::UNSUBSCRIBE, 1);
    mesh.subscribe(bob, 3, "a", "", 0, &[]);
    mesh.take(bob);
    for ((node, conn), bytes) in late.into_iter().chain(std::mem::take(&mut mesh.kept)) {
        mesh.nodes[node].feed(conn, &bytes);
    }
    mesh.cut = false;
    assert!(mesh.take(bob).is_empty());
    mesh.publish(ann, "a", "now");
    assert_eq!(mesh.payloads(bob), [(vec![3], "now".into())]);
}

#[test]
fn what_came_over_a_link_for_a_group_stays_on_its_node() {
    let mut mesh = Mesh::new(3);
    let (ann, bob, eve, amy) =
        (mesh.client(0, "ann"), mesh.client(1, "bob"), mesh.client(2, "eve"), mesh.client(1, "amy"));
    mesh.subscribe(bob, 1, "job", "g", 0, &[]);
    mesh.subscribe(eve, 1, "job", "g", 0, &[]);
    mesh.subscribe(bob, 2, "fill", "", 0, &[]);
    let slow = mesh.clients[bob].conn;
    mesh.nodes[1].set_writable(slow, false);
    let filled = (0..200).take_while(|_| {
        mesh.publish(amy, "fill", &"x".repeat(10_000));
        mesh.nodes[1].totals().contains(&("slow_consumers", 0))
    });
    assert!(filled.count() > 50);
    for round in 0..6 {
        mesh.publish(ann, "job", &round.to_string());
    }
    mesh.nodes[1].set_writable(slow, true);
    // The message in flight when bob had no room is delivered to bob; the others went to members with room.
    let jobs = mesh.take(bob).into_iter().filter(|one| one.topic == "job").count();
    assert_eq!((jobs, mesh.take(eve).len()), (1, 5));
}

#[test]
fn nonsense_about_missed_messages_is_not_passed_on() {
    let mut mesh = Mesh::new(2);
    let bob = mesh.client(1, "bob");
    mesh.subscribe(bob, 1, "a", "", 0, &[]);
    let link = mesh.ends.keys().find(|(node, _)| *node == 1).unwrap().1;
    let mut frames = Vec::new();
    for count in [0, u64::MAX, u64::MAX] {
        Writer::new(&mut frames, kind::MISSED, 0).u16(0).u32(1).u64(count).end();
    }
    mesh.nodes[1].feed(link, &frames);
    let told: Vec<u64> = mesh.take(bob).iter().map(|one| one.number).collect();
    assert_eq!(told, [2 * u64::from(u32::MAX)]);
}

/// The connections of the link between the first two nodes.
fn link_between(mesh: &Mesh) -> (u32, u32) {
    let (from, to) = mesh.ends.iter().find(|(from, _)| from.0 == 0).unwrap();
    (from.1, to.1)
}

#[test]
fn what_is_too_long_for_a_node_is_not_sent_to_it_but_told() {
    let mut mesh = Mesh::new(2);
    let (ann, bob) = (mesh.client(0, "ann"), mesh.client(1, "bob"));
    mesh.subscribe(bob, 1, "a", "", 0, &[]);
    mesh.subscribe(bob, 2, "b", "", 0, &[]);
    let link = link_between(&mesh);
    mesh.nodes[0].limit_link(link.0, 1000);
    // HEAD and the 16 bytes of a body: the longest one that fits, alone and after others.
    let (fits, long) = ("x".repeat(1000 - 32), "x".repeat(1000 - 31));
    for payload in ["short", &fits, &long, "short", &long] {
        mesh.publish(ann, "a", payload);
    }
    let got = mesh.take(bob);
    let kinds: Vec<_> = got.iter().map(|one| (one.kind, one.payload.len(), one.number)).collect();
    let (deliver, missed) = (kind::DELIVER, kind::MISSED);
    assert_eq!(kinds, [(deliver, 5, 0), (deliver, 968, 0), (missed, 0, 1), (deliver, 5, 0), (missed, 0, 1)]);
    mesh.send(ann, kind::PUSH, "b", More::default(), &long);
    assert_eq!(mesh.result(ann).code, code::FRAME_TOO_LARGE);
    assert_eq!(mesh.nodes[0].totals().iter().find(|(name, _)| *name == "links"), Some(&("links", 1)));
}

#[test]
fn messages_behind_each_other_are_looked_at_one_by_one_when_a_node_takes_less() {
    let mut mesh = Mesh::new(2);
    let (ann, bob) = (mesh.client(0, "ann"), mesh.client(1, "bob"));
    mesh.subscribe(bob, 1, "a", "", 0, &[]);
    let link = link_between(&mesh);
    mesh.nodes[0].limit_link(link.0, 100);
    mesh.publish(ann, "a", "first");
    mesh.take(bob);
    // In one call, so that they are copied as a run.
    let slot = mesh.clients[ann].out.slot("a").unwrap();
    for size in [10, 20, 200, 30] {
        mesh.clients[ann].out.message(kind::PUBLISH, slot, More::default(), &vec![b'x'; size]);
    }
    mesh.pump();
    let sizes: Vec<_> = mesh.take(bob).iter().map(|one| (one.kind, one.payload.len())).collect();
    let (deliver, missed) = (kind::DELIVER, kind::MISSED);
    assert_eq!(sizes, [(deliver, 10), (deliver, 20), (missed, 0), (deliver, 30)]);
}

#[test]
fn calls_and_replies_that_are_too_long_for_a_node_are_errors() {
    let mut mesh = Mesh::new(2);
    let (ann, bob) = (mesh.client(0, "ann"), mesh.client(1, "bob"));
    assert_eq!(mesh.serve(bob, 1, "sum", 0), code::OK);
    let link = link_between(&mesh);
    mesh.nodes[0].limit_link(link.0, 1000);
    mesh.nodes[1].limit_link(link.1, 500);
    mesh.send(ann, kind::REQUEST, "sum", More::default(), &"x".repeat(2000));
    assert_eq!(mesh.take(ann).last().map(|one| one.code), Some(code::FRAME_TOO_LARGE));
    mesh.send(ann, kind::REQUEST, "sum", More::default(), "short");
    let call = mesh.take(bob).last().unwrap().number;
    mesh.clients[bob].out.reply(call, 0, 0, &[], &vec![b'x'; 600]).unwrap();
    mesh.pump();
    let got = mesh.take(ann);
    assert_eq!((got.len(), got[0].kind, got[0].code), (1, kind::REPLY, code::FRAME_TOO_LARGE));
}

#[test]
fn topics_of_a_node_with_a_higher_limit_are_taken() {
    let mut mesh = Mesh { step: 1 << 20, ..Mesh::default() };
    mesh.nodes.extend([Engine::new(LIMITS), Engine::new(Limits { topic: 10, ..LIMITS })]);
    let (ann, bob) = (mesh.client(0, "ann"), mesh.client(1, "bob"));
    let long = "a/long/topic/of/node/0";
    mesh.subscribe(ann, 1, long, "", 0, &[]);
    assert_eq!(mesh.serve(ann, 2, long, 0), code::OK);
    mesh.subscribe(bob, 1, "a/**", "", 0, &[]);
    mesh.join(0, 1);
    mesh.publish(ann, long, "x");
    assert_eq!(mesh.payloads(bob), [(vec![1], "x".into())]);
}

#[test]
fn in_a_group_a_long_message_goes_to_a_node_that_takes_it() {
    let mut mesh = Mesh::new(3);
    let (ann, bob, eve) = (mesh.client(0, "ann"), mesh.client(1, "bob"), mesh.client(2, "eve"));
    for client in [bob, eve] {
        mesh.subscribe(client, 1, "a", "g", 0, &[]);
    }
    let small = mesh.ends.iter().find(|(from, to)| from.0 == 0 && to.0 == 1).unwrap().0 .1;
    mesh.nodes[0].limit_link(small, 1000);
    for _ in 0..10 {
        mesh.publish(ann, "a", &"x".repeat(2000));
        mesh.publish(ann, "a", "short");
        mesh.publish(ann, "a", "short");
    }
    let (of_bob, of_eve) = (mesh.take(bob), mesh.take(eve));
    assert!(of_bob.iter().all(|one| one.kind == kind::DELIVER && one.payload.len() == 5) && !of_bob.is_empty());
    assert_eq!(of_eve.iter().filter(|one| one.payload.len() == 2000).count(), 10);
    assert_eq!(of_bob.len() + of_eve.len(), 30);
}

#[test]
fn who_wants_room_for_a_subscription_that_takes_nothing_is_told_when_it_does() {
    let mut mesh = Mesh::new(1);
    let bob = mesh.client(0, "bob");
    mesh.subscribe(bob, 1, "a", "", 0, &[]);
    mesh.subscribe(bob, 2, "b", "", 0, &[]);
    mesh.clients[bob].out.hold(1, true, 0);
    mesh.pump();
    let conn = mesh.clients[bob].conn;
    let engine = &mut mesh.nodes[0];
    let told = |engine: &mut Engine| engine.take_events().iter().any(|event| matches!(event, Event::Room(_)));
    told(engine);
    assert!(!engine.has_room(conn, 1));
    engine.want_room(conn, Some(1));
    assert!(!told(engine), "it would ask again and be told again, for ever");
    engine.want_room(conn, Some(2));
    assert!(told(engine));
    engine.want_room(conn, None);
    assert!(told(engine));
    engine.want_room(conn, Some(1));
    mesh.clients[bob].out.hold(1, false, 0);
    mesh.pump();
    assert!(mesh.events.iter().any(|(_, event)| matches!(event, Event::Room(_))), "now it takes something");
}
