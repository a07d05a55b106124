//! Two or three nodes: which clients receive messages over links, and the effects of a lost link.

mod support;

use busway_core::client::codec::More;
use busway_core::engine::Event;
use busway_core::wire::frame::{code, flag, kind};
use support::{equal, field, Mesh};

fn more(flags: u8, fields: &[u8]) -> More<'_> {
    More { flags, fields, ..More::default() }
}

#[test]
fn a_message_crosses_a_link_once_and_reaches_each_subscription() {
    for step in [1, 7, 1 << 20] {
        let mut mesh = Mesh::new(2);
        mesh.step = step;
        let (ann, bob, eve) = (mesh.client(0, "ann"), mesh.client(1, "bob"), mesh.client(1, "eve"));
        mesh.subscribe(bob, 1, "a/*", "", 0, &[]);
        mesh.subscribe(bob, 2, "**", "", 0, &[]);
        mesh.subscribe(eve, 7, "a/b", "", 0, &[]);
        mesh.subscribe(ann, 3, "a/b", "", 0, &[]);
        mesh.publish(ann, "a/b", "one");
        mesh.publish(bob, "a/b", "two");
        let got = mesh.take(bob);
        assert_eq!((got[0].ids.as_slice(), got[0].payload.as_slice()), (&[1, 2][..], &b"one"[..]));
        assert_eq!((got[0].topic.as_str(), got[0].sender.1.as_str(), got.len()), ("a/b", "ann", 2));
        assert_eq!(mesh.payloads(eve), [(vec![7], "one".into()), (vec![7], "two".into())]);
        assert_eq!(mesh.payloads(ann), [(vec![3], "one".into()), (vec![3], "two".into())]);
        // The last subscription at the node has ended: nothing crosses the link.
        mesh.end(bob, kind::UNSUBSCRIBE, 2);
        mesh.end(bob, kind::UNSUBSCRIBE, 1);
        mesh.leave(eve);
        mesh.cut = true;
        mesh.publish(ann, "a/b", "three");
        assert!(mesh.kept.is_empty());
        assert_eq!(mesh.payloads(ann), [(vec![3], "three".into())]);
    }
}

#[test]
fn a_link_knows_what_was_wanted_before_it() {
    let mut mesh = Mesh::new(0);
    mesh.nodes.extend((0..2).map(|_| busway_core::engine::Engine::new(support::LIMITS)));
    let (ann, bob) = (mesh.client(0, "ann"), mesh.client(1, "bob"));
    for sub in 0..500 {
        mesh.subscribe(bob, sub, &format!("some/rather/long/topic/{}/{sub}", "x".repeat(150)), "", 0, &[]);
    }
    mesh.subscribe(bob, 1000, "re:b.*", "", 0, &[]);
    let (near, _) = mesh.join(0, 1);
    let synced = |mesh: &Mesh| mesh.events.iter().filter(|(_, event)| matches!(event, Event::Synced(_))).count();
    assert_eq!(synced(&mesh), 2);
    mesh.publish(ann, &format!("some/rather/long/topic/{}/77", "x".repeat(150)), "there");
    mesh.publish(ann, "bcd", "expression");
    assert_eq!(mesh.payloads(bob), [(vec![77], "there".into()), (vec![1000], "expression".into())]);
    mesh.part(0, near);
    mesh.publish(ann, "bcd", "nobody");
    assert!(mesh.take(bob).is_empty());
    mesh.join(1, 0);
    mesh.publish(ann, "bcd", "again");
    assert_eq!(mesh.payloads(bob), [(vec![1000], "again".into())]);
}

#[test]
fn what_a_node_says_as_a_link_waits_until_we_are_one_too() {
    let mut mesh = Mesh::new(0);
    mesh.nodes.extend((0..2).map(|_| busway_core::engine::Engine::new(support::LIMITS)));
    let (ann, bob) = (mesh.client(0, "ann"), mesh.client(1, "bob"));
    mesh.subscribe(bob, 1, "a", "", 0, &[]);
    let (near, far) = mesh.dial(0, 1);
    mesh.nodes[0].node(near, 1, 5, b"proof", false);
    mesh.nodes[1].link(far).unwrap();
    mesh.pump();
    let heard: Vec<_> = mesh.events.drain(..).map(|(node, event)| (node, format!("{event:?}"))).collect();
    assert!(heard[0].1.starts_with("Welcome"), "{heard:?}");
    assert!(heard[1].0 == 1 && heard[1].1.contains("Node") && heard[1].1.contains("number: 5"), "{heard:?}");
    assert_eq!(heard.len(), 2);
    mesh.publish(ann, "a", "too early");
    mesh.nodes[0].link(near).unwrap();
    mesh.pump();
    mesh.publish(ann, "a", "now");
    assert_eq!(mesh.payloads(bob), [(vec![1], "now".into())]);
    assert!(mesh.nodes[0].link(near).is_err());
}

#[test]
fn a_ping_comes_back_when_the_other_node_knows_everything() {
    let mut mesh = Mesh::new(2);
    let (near, far) = mesh.ends.iter().find(|((node, _), _)| *node == 0).map(|(near, far)| (near.1, far.1)).unwrap();
    let bob = mesh.client(1, "bob");
    mesh.subscribe(bob, 1, "a", "", 0, &[]);
    mesh.nodes[1].ping(far, 77);
    mesh.pump();
    let at_one =
        |(node, event): &(usize, Event)| *node == 1 && matches!(event, Event::Pong { conn, token: 77 } if *conn == far);
    assert!(mesh.events.iter().any(at_one));
    assert!(mesh.nodes[0].figures(near).contains(&("subscriptions", 1)));
}

#[test]
fn rules_are_asked_where_the_message_begins_and_where_it_ends() {
    let mut mesh = Mesh::new(2);
    let (ann, bob) = (mesh.client(0, "ann"), mesh.client(1, "bob"));
    mesh.subscribe(bob, 1, "a", "", 0, &equal("venue", "krk"));
    mesh.subscribe(bob, 2, "a", "", 0, &equal(".id", "ann"));
    let krk = field("venue", "krk");
    mesh.send(ann, kind::PUBLISH, "a", more(0, &krk), "krk");
    mesh.send(ann, kind::PUBLISH, "a", more(0, &field("venue", "waw")), "waw");
    assert_eq!(mesh.payloads(bob), [(vec![1, 2], "krk".into()), (vec![2], "waw".into())]);
    mesh.end(bob, kind::UNSUBSCRIBE, 2);
    mesh.cut = true;
    mesh.send(ann, kind::PUBLISH, "a", more(0, &field("venue", "waw")), "waw");
    mesh.pump();
    assert!(mesh.kept.is_empty(), "it matches nobody's rules");
    mesh.cut = false;
    // So many different rules that the other node gets an entry without rules.
    for sub in 10..40 {
        mesh.subscribe(bob, sub, "a", "", 0, &equal("venue", &format!("v{sub}")));
    }
    mesh.send(ann, kind::PUBLISH, "a", more(0, &field("venue", "v33")), "33");
    mesh.send(ann, kind::PUBLISH, "a", more(0, &krk), "krk");
    mesh.send(ann, kind::PUBLISH, "a", more(0, &field("venue", "none")), "none");
    assert_eq!(mesh.payloads(bob), [(vec![33], "33".into()), (vec![1], "krk".into())]);
    assert!(mesh.nodes[1].totals().contains(&("interest", 1)));
}

#[test]
fn runs_keep_their_order_and_their_senders() {
    let mut mesh = Mesh::new(2);
    let (ann, amy, bob) = (mesh.client(0, "ann"), mesh.client(0, "amy"), mesh.client(1, "bob"));
    let eve = mesh.client(1, "eve");
    mesh.subscribe(bob, 1, "a", "", 0, &[]);
    mesh.subscribe(eve, 1, "**", "", 0, &[]);
    let mut sent = Vec::new();
    for at in 0..2000 {
        let (who, topic) = (if at / 300 % 2 == 0 { ann } else { amy }, if at % 500 == 0 { "b" } else { "a" });
        mesh.send(who, kind::PUBLISH, topic, More::default(), &at.to_string());
        sent.push((who, topic, at.to_string()));
        if at % 100 == 99 {
            mesh.pump();
        }
    }
    let seen = |mesh: &mut Mesh, client: usize| -> Vec<_> {
        let got = mesh.take(client).into_iter();
        got.map(|one| (one.sender.1, one.topic, String::from_utf8(one.payload).unwrap())).collect()
    };
    let all: Vec<_> = sent
        .into_iter()
        .map(|(who, topic, text)| (if who == ann { "ann" } else { "amy" }.to_string(), topic.to_string(), text))
        .collect();
    assert_eq!(seen(&mut mesh, eve), all);
    let some: Vec<_> = all.into_iter().filter(|(_, topic, _)| topic == "a").collect();
    assert_eq!(seen(&mut mesh, bob), some);
}

#[test]
fn a_group_has_one_taker_over_the_mesh_and_a_near_one_first() {
    let mut mesh = Mesh::new(3);
    let ann = mesh.client(0, "ann");
    let far: Vec<_> = [1, 1, 2].iter().enumerate().map(|(i, &node)| mesh.client(node, &format!("far{i}"))).collect();
    for &client in &far {
        mesh.subscribe(client, 1, "job", "workers", 0, &[]);
        mesh.subscribe(client, 2, "job", "", 0, &[]);
    }
    for round in 0..40 {
        mesh.publish(ann, "job", &round.to_string());
    }
    let got: Vec<Vec<_>> = far.iter().map(|&client| mesh.payloads(client)).collect();
    let alone = |ids: &[u32]| ids.contains(&2);
    assert!(got.iter().all(|all| all.len() == 40 && all.iter().all(|(ids, _)| alone(ids))), "{got:?}");
    let taken: Vec<usize> = got.iter().map(|all| all.iter().filter(|(ids, _)| ids.contains(&1)).count()).collect();
    assert_eq!(taken.iter().sum::<usize>(), 40);
    assert!(taken.iter().all(|&count| count >= 10), "{taken:?}");
    let near = mesh.client(0, "near");
    mesh.subscribe(near, 1, "job", "workers", 0, &[]);
    for round in 0..10 {
        mesh.publish(ann, "job", &round.to_string());
    }
    assert_eq!(mesh.take(near).len(), 10);
    assert!(far.iter().all(|&client| mesh.payloads(client).iter().all(|(ids, _)| ids == &[2])));
}

#[test]
fn listeners_get_copies_wherever_they_are() {
    let mut mesh = Mesh::new(2);
    let (ann, bob, eve) = (mesh.client(0, "ann"), mesh.client(1, "bob"), mesh.client(1, "eve"));
    mesh.subscribe(bob, 1, "a", "", flag::LISTEN, &[]);
    mesh.subscribe(eve, 1, "a", "", 0, &[]);
    mesh.send(ann, kind::PUSH, "a", More::default(), "push");
    mesh.send(ann, kind::REQUEST, "a", More::default(), "request");
    let got = mesh.take(bob);
    let marks: Vec<_> = got.iter().map(|one| (one.kind, one.flags & !flag::KEEP)).collect();
    assert_eq!(marks, [(kind::DELIVER, flag::PUSHED), (kind::DELIVER, flag::REQUESTED)]);
    let offers = mesh.take(eve);
    assert_eq!((offers.len(), offers[0].kind, offers[0].payload.as_slice()), (1, kind::OFFER, &b"push"[..]));
    let answers = mesh.take(ann);
    assert_eq!((answers.len(), answers[0].code), (1, code::NO_RESPONDERS));
}

#[test]
fn a_push_is_offered_near_first_then_node_by_node() {
    let mut mesh = Mesh::new(3);
    let ann = mesh.client(0, "ann");
    let near = mesh.client(0, "near");
    let far: Vec<_> = [1, 1, 2].iter().enumerate().map(|(i, &node)| mesh.client(node, &format!("far{i}"))).collect();
    for &client in far.iter().chain([&near]) {
        mesh.subscribe(client, 1, "job", "", 0, &[]);
    }
    let all: Vec<_> = [near].into_iter().chain(far.clone()).collect();
    for taken_by in 1..=4 {
        let number = mesh.send(ann, kind::PUSH, "job", More::default(), "job");
        let mut tried = Vec::new();
        loop {
            let offers: Vec<_> =
                all.iter().flat_map(|&client| mesh.take(client).into_iter().map(move |got| (client, got))).collect();
            let Some((client, offer)) = offers.first() else { break };
            assert_eq!(
                (offers.len(), offer.kind, offer.sender.1.as_str(), offer.topic.as_str()),
                (1, kind::OFFER, "ann", "job")
            );
            tried.push(*client);
            let refuse = if tried.len() == taken_by { code::OK } else { code::REFUSED };
            mesh.clients[*client].out.answer_offer(offer.number, refuse);
        }
        assert_eq!((tried.len(), tried[0]), (taken_by, near));
        // Both clients of one node come before the other node.
        let nodes: Vec<_> = tried.iter().map(|&client| mesh.clients[client].node).collect();
        assert!(!matches!(nodes[..], [0, 1, 2, 1]), "{nodes:?}");
        let result = mesh.result(ann);
        assert_eq!((result.number, result.code, result.ids[0]), (number, code::OK, 1));
    }
    // No consumer accepts it.
    mesh.send(ann, kind::PUSH, "job", More::default(), "job");
    for _ in 0..4 {
        for &client in &all {
            for offer in mesh.take(client) {
                mesh.clients[client].out.answer_offer(offer.number, code::TOO_MANY_PENDING);
            }
        }
    }
    assert_eq!(mesh.result(ann).code, code::TOO_MANY_PENDING);
    assert!(mesh.nodes.iter().all(|node| node.totals().contains(&("pending", 0))));
}

#[test]
fn a_push_goes_elsewhere_when_its_link_or_its_taker_ends() {
    let mut mesh = Mesh::new(3);
    let (ann, bob, eve) = (mesh.client(0, "ann"), mesh.client(1, "bob"), mesh.client(2, "eve"));
    let amy = mesh.client(1, "amy");
    for client in [bob, eve, amy] {
        mesh.subscribe(client, 1, "job", "", 0, &[]);
    }
    mesh.send(ann, kind::PUSH, "job", More::default(), "job");
    let (mut left, mut now) = (vec![bob, eve, amy], None);
    let offered = |mesh: &mut Mesh, left: &[usize]| {
        left.iter().copied().find_map(|client| mesh.take(client).pop().map(|offer| (client, offer.number)))
    };
    while let Some((client, offer)) = offered(&mut mesh, &left) {
        left.retain(|&other| other != client);
        now = Some((client, offer));
        if left.is_empty() {
            break;
        }
        mesh.leave(client);
    }
    let (client, offer) = now.unwrap();
    mesh.clients[client].out.answer_offer(offer, code::OK);
    assert_eq!(mesh.result(ann).code, code::OK);

    let mut mesh = Mesh::new(3);
    let (ann, bob, eve) = (mesh.client(0, "ann"), mesh.client(1, "bob"), mesh.client(2, "eve"));
    mesh.subscribe(bob, 1, "job", "", 0, &[]);
    mesh.subscribe(eve, 1, "job", "", 0, &[]);
    mesh.send(ann, kind::PUSH, "job", More::default(), "job");
    let first = if mesh.take(bob).is_empty() { 2 } else { 1 };
    let link = mesh.ends.iter().find(|(near, far)| near.0 == 0 && far.0 == first).map(|(near, _)| near.1).unwrap();
    mesh.part(0, link);
    let second = if first == 1 { eve } else { bob };
    let offer = mesh.take(second);
    assert_eq!((offer.len(), offer[0].kind), (1, kind::OFFER));
    mesh.clients[second].out.answer_offer(offer[0].number, code::OK);
    assert_eq!(mesh.result(ann).code, code::OK);
}

#[test]
fn a_push_that_is_called_off_is_taken_back_on_the_other_node() {
    let mut mesh = Mesh::new(2);
    let (ann, bob) = (mesh.client(0, "ann"), mesh.client(1, "bob"));
    mesh.subscribe(bob, 5, "job", "", 0, &[]);
    mesh.publish(ann, "x", "so that the numbers differ");
    let number = mesh.send(ann, kind::PUSH, "job", More::default(), "job");
    let offer = mesh.take(bob).remove(0);
    mesh.clients[ann].out.cancel(number);
    let back = mesh.take(bob).remove(0);
    assert_eq!((back.kind, back.ids[0], back.number, back.sender.0), (kind::WITHDRAW, 5, number, offer.sender.0));
    mesh.clients[bob].out.answer_offer(offer.number, code::OK);
    mesh.pump();
    assert!(mesh.take(ann).is_empty());
    assert!(mesh.nodes.iter().all(|node| node.totals().contains(&("pending", 0))));
}

#[test]
fn a_service_answers_requests_of_other_nodes() {
    let mut mesh = Mesh::new(2);
    let (ann, bob) = (mesh.client(0, "ann"), mesh.client(1, "bob"));
    assert_eq!(mesh.serve(bob, 9, "sum", 0), code::OK);
    let number = mesh.send(ann, kind::REQUEST, "sum", more(0, &field("a", "b")), "1+2");
    let call = mesh.take(bob).remove(0);
    assert_eq!((call.kind, call.ids[0], call.sender.1.as_str(), call.topic.as_str()), (kind::CALL, 9, "ann", "sum"));
    let out = &mut mesh.clients[bob].out;
    out.reply(call.number, 0, flag::PARTIAL, &[], b"part").unwrap();
    out.reply(call.number, 0, 0, &[], b"3").unwrap();
    let replies = mesh.take(ann);
    let said: Vec<_> = replies.iter().map(|one| (one.number, one.flags, one.payload.as_slice())).collect();
    assert_eq!(said, [(number, flag::PARTIAL, &b"part"[..]), (number, 0, &b"3"[..])]);
    // With GATHER the reply names the provider, not its node.
    mesh.send(ann, kind::REQUEST, "sum", more(flag::GATHER, &[]), "1+2");
    let call = mesh.take(bob).remove(0);
    mesh.clients[bob].out.reply(call.number, 0, 0, &[], b"3").unwrap();
    let reply = mesh.take(ann).remove(0);
    assert!(reply.flags & flag::FIELDS != 0 && String::from_utf8_lossy(&reply.payload).contains("bob"), "{reply:?}");
    // The request is cancelled; then the service ends.
    let number = mesh.send(ann, kind::REQUEST, "sum", More::default(), "late");
    mesh.pump();
    mesh.clients[ann].out.cancel(number);
    mesh.pump();
    assert!(mesh.nodes.iter().all(|node| node.totals().contains(&("pending", 0))));
    mesh.end(bob, kind::UNSERVE, 9);
    mesh.send(ann, kind::REQUEST, "sum", More::default(), "gone");
    assert_eq!(mesh.take(ann)[0].code, code::NO_RESPONDERS);
}

#[test]
fn a_call_fails_when_its_link_or_its_service_ends() {
    let mut mesh = Mesh::new(2);
    let (ann, bob) = (mesh.client(0, "ann"), mesh.client(1, "bob"));
    assert_eq!(mesh.serve(bob, 9, "sum", 0), code::OK);
    mesh.send(ann, kind::REQUEST, "sum", More::default(), "one");
    mesh.pump();
    mesh.leave(bob);
    assert_eq!(mesh.take(ann)[0].code, code::SERVICE_GONE);
    let bob = mesh.client(1, "bob");
    assert_eq!(mesh.serve(bob, 9, "sum", 0), code::OK);
    mesh.send(ann, kind::REQUEST, "sum", More::default(), "two");
    mesh.pump();
    let link = mesh.ends.keys().find(|(node, _)| *node == 0).unwrap().1;
    mesh.part(0, link);
    assert_eq!(mesh.take(ann)[0].code, code::SERVICE_GONE);
    mesh.send(ann, kind::REQUEST, "sum", More::default(), "three");
    assert_eq!(mesh.take(ann)[0].code, code::NO_RESPONDERS);
    assert!(mesh.nodes.iter().all(|node| node.totals().contains(&("pending", 0))));
}

#[test]
fn a_topic_has_one_service_over_the_mesh() {
    let mut mesh = Mesh::new(2);
    let (ann, bob) = (mesh.client(0, "ann"), mesh.client(1, "bob"));
    assert_eq!(mesh.serve(bob, 9, "sum", 0), code::OK);
    assert_eq!(mesh.serve(ann, 1, "sum", 0), code::SERVICE_TAKEN);
    assert_eq!(mesh.serve(ann, 1, "sum", flag::SHARED), code::SERVICE_TAKEN);
    mesh.end(bob, kind::UNSERVE, 9);
    assert_eq!(mesh.serve(ann, 1, "sum", 0), code::OK);
    mesh.end(ann, kind::UNSERVE, 1);
    // Both at once: each serves its own clients, and the drivers get a conflict.
    mesh.events.clear();
    mesh.cut = true;
    assert_eq!(mesh.serve(ann, 1, "sum", 0), code::OK);
    assert_eq!(mesh.serve(bob, 9, "sum", 0), code::OK);
    mesh.cut = false;
    for ((node, conn), bytes) in std::mem::take(&mut mesh.kept) {
        mesh.nodes[node].feed(conn, &bytes);
    }
    mesh.pump();
    let told: Vec<_> = mesh.events.iter().filter(|(_, event)| matches!(event, Event::Conflict { .. })).collect();
    assert_eq!(told.len(), 2);
    mesh.send(ann, kind::REQUEST, "sum", More::default(), "mine");
    assert_eq!((mesh.take(bob).len(), mesh.take(ann)[0].kind), (0, kind::CALL));
}

#[test]
fn a_shared_service_of_another_node_is_the_drivers_matter() {
    let mut mesh = Mesh::new(2);
    let (ann, bob) = (mesh.client(0, "ann"), mesh.client(1, "bob"));
    assert_eq!(mesh.serve(bob, 9, "sum", flag::SHARED | flag::ASKS), code::OK);
    let (conn, service) = mesh
        .events
        .iter()
        .find_map(|(node, event)| match event {
            Event::Provider { conn, service, topic, flags: 3 } if *node == 0 && topic == "sum" => {
                Some((*conn, *service))
            }
            _ => None,
        })
        .unwrap();
    let number = mesh.send(ann, kind::REQUEST, "sum", More::default(), "1+2");
    mesh.events.clear();
    mesh.pump();
    let Some((0, Event::Request { conn: origin, topic, frame, .. })) = mesh.events.pop() else { panic!() };
    assert!(mesh.nodes[0].pass(true, (conn, service), 5, origin, &topic, &frame));
    mesh.pump();
    let Some((1, Event::Ask { conn: back, number: asked, .. })) = mesh.events.pop() else { panic!() };
    mesh.nodes[1].willing(back, asked, code::OK);
    mesh.pump();
    assert!(matches!(mesh.events.pop(), Some((0, Event::Accept { call: 5, code: 0, .. }))));
    assert!(mesh.nodes[0].pass(false, (conn, service), 5, origin, &topic, &frame));
    mesh.pump();
    // The driver there chooses; the provider sees the requester.
    let Some((1, Event::Request { conn: back, number: called, topic, frame, remote: true })) = mesh.events.pop() else {
        panic!()
    };
    assert!(mesh.nodes[1].pass(false, (mesh.clients[bob].conn, 9), 7, back, &topic, &frame));
    let call = mesh.take(bob).remove(0);
    assert_eq!((call.sender.1.as_str(), call.payload.as_slice()), ("ann", &b"1+2"[..]));
    mesh.clients[bob].out.reply(call.number, 0, 0, &[], b"3").unwrap();
    mesh.pump();
    assert!(matches!(mesh.events.pop(), Some((1, Event::Answer { .. }))));
    mesh.nodes[1].answer(back, called, 0, 0, &[], b"3");
    mesh.pump();
    assert!(matches!(mesh.events.pop(), Some((0, Event::Answer { .. }))));
    mesh.nodes[0].answer(origin, number, 0, 0, &[], b"3");
    assert_eq!(mesh.take(ann)[0].payload, b"3");
    mesh.end(bob, kind::UNSERVE, 9);
    assert!(mesh.events.iter().any(|(node, event)| *node == 0 && matches!(event, Event::Unserve { .. })));
}

#[test]
fn links_favour_none_of_our_clients() {
    let mut mesh = Mesh::new(3);
    let ann = mesh.client(0, "ann");
    let near: Vec<_> = (0..3).map(|i| mesh.client(0, &format!("near{i}"))).collect();
    for &client in near.iter().chain(&[mesh.client(1, "far"), mesh.client(2, "far")]) {
        mesh.subscribe(client, 1, "job", "", 0, &[]);
        mesh.subscribe(client, 2, "work", "g", 0, &[]);
    }
    let mut taken = [0; 3];
    for _ in 0..30 {
        mesh.send(ann, kind::PUSH, "job", More::default(), "job");
        mesh.publish(ann, "work", "work");
        for (at, &client) in near.iter().enumerate() {
            for got in mesh.take(client) {
                taken[at] += 1;
                if got.kind == kind::OFFER {
                    mesh.clients[client].out.answer_offer(got.number, code::OK);
                }
            }
        }
    }
    assert_eq!(taken, [20, 20, 20]);
}
