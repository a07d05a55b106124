// @ts-check
/** Topics: the tree of topics in use with rates, and for one topic its users, retained messages and a live tail. */

import {useEffect, useRef, useState} from "preact/hooks";
import {ask} from "../lib/bus.js";
import {count, moment, plural, rate, short} from "../lib/format.js";
import {html} from "../lib/html.js";
import {usePoll} from "../lib/poll.js";
import {go, refine, route, to} from "../lib/route.js";
import {Payload} from "../parts/message.js";
import {Table} from "../parts/table.js";
import {TailCard} from "../parts/tail.js";
import {Badge, Card, Choice, Empty, Head, Labelled, Trouble} from "../parts/widgets.js";

const EVERY = 2000;
const LEVEL = 200;

/** @param {string} path @param {string} segment */
function below(path, segment) {
  return path ? `${path}/${segment}` : segment;
}

export function TopicsScreen() {
  const {path = "", tail, order = "messages"} = route.value.query;
  const isPattern = /[*]|^re:/.test(path);
  const pattern = tail ?? (path || "**");
  return html`
    <${Head} title=${path ? html`<code>${path}</code>` : "Topics"} back=${path ? {href: to(["topics"]), text: "All topics"} : undefined}
      note=${path ? undefined : "The topics that clients and nodes use now."} actions=${html`<${Jump} path=${path} />`} />
    <div class="split">
      <${Card} title="Tree" actions=${html`<${Choice} label="Order" options=${[["messages", "Busiest"], ["", "A–Z"]]} value=${order} onChange=${(/** @type {string} */ value) => refine({order: value || "name"})} />`}>
        <${Level} path="" order=${order === "name" ? "" : order} chosen=${path} depth=${0} />
      <//>
      <div>
        ${path && !isPattern && html`<${Topic} topic=${path} />`}
        <${TailCard} pattern=${pattern} onPattern=${(/** @type {string} */ value) => refine({tail: value})} />
      </div>
    </div>`;
}

/** A field to go to a topic directly. @param {{path: string}} props */
function Jump({path}) {
  const [written, setWritten] = useState(path);
  useEffect(() => setWritten(path), [path]);
  /** @param {Event} event */
  const submit = event => {
    event.preventDefault();
    go(["topics"], {path: written.trim().replace(/^\//, "")});
  };
  return html`<form onSubmit=${submit}><input type="search" class="search mono" aria-label="Go to a topic" placeholder="Go to a topic" value=${written} spellcheck="false" onInput=${(/** @type {any} */ event) => setWritten(event.target.value)} /></form>`;
}

/**
 * One level of the tree, which is asked for while it is open.
 * @param {{path: string, order: string, chosen: string, depth: number}} props
 */
function Level({path, order, chosen, depth}) {
  const [begins, setBegins] = useState("");
  const {value, error} = usePoll(() => ask("$bus/topics", {path, begins, order, most: LEVEL}), EVERY, [path, begins, order]);
  const rates = useRates(value);
  if (!value) return html`<${Trouble} error=${error} />${!error && html`<p class="muted">Loading…</p>`}`;
  const rest = value.total - value.branches.length;
  return html`
    <${Trouble} error=${error} />
    ${(rest > 0 || begins) && html`<${Labelled} label="Begins with"><input class="mono" value=${begins} spellcheck="false" onInput=${(/** @type {any} */ event) => setBegins(event.target.value)} /><//>`}
    ${!value.branches.length && html`<${Empty}>${depth ? "Nothing is below this." : "No topic is in use. Publish a message to see its topic here."}<//>`}
    <ul class="tree">${value.branches.map((/** @type {any} */ branch) => html`<${Branch} key=${branch.segment} branch=${branch} path=${below(path, branch.segment)} order=${order} chosen=${chosen} rate=${rates.get(branch.segment)} depth=${depth} />`)}</ul>
    ${rest > 0 && html`<p class="muted">${plural(rest, "more branch", "more branches")} with fewer messages or later names. Write the beginning of a name to find one.</p>`}
    ${value.others.topics > 0 && html`<p class="muted">${plural(value.others.topics, "topic")} more are not listed by name.</p>`}`;
}

/** The rate of each branch, from two answers. @param {any} value */
function useRates(value) {
  const before = useRef({time: 0, counts: new Map(), rates: new Map(), value: null});
  if (value && before.current.value !== value) {
    const now = performance.now();
    const counts = new Map(value.branches.map((/** @type {any} */ branch) => [branch.segment, branch.messages]));
    const rates = new Map();
    const seconds = (now - before.current.time) / 1000;
    for (const [segment, messages] of counts) {
      const old = before.current.counts.get(segment);
      if (old !== undefined && seconds > 0.2) rates.set(segment, Math.max(messages - old, 0) / seconds);
    }
    before.current = {time: now, counts, rates, value};
  }
  return before.current.rates;
}

/**
 * @param {{branch: any, path: string, order: string, chosen: string, rate: number | undefined, depth: number}} props
 */
function Branch({branch, path, order, chosen, rate: current, depth}) {
  const inside = branch.topics > (branch.leaf ? 1 : 0) || branch.kept > 0 && !branch.leaf;
  const [open, setOpen] = useState(chosen.startsWith(`${path}/`));
  useEffect(() => {
    if (chosen.startsWith(`${path}/`)) setOpen(true);
  }, [chosen]);
  const query = branch.leaf || !inside ? {path} : {path, tail: `${path}/**`};
  return html`<li>
    <div class="branch ${chosen === path ? "chosen" : ""}">
      ${inside ? html`<button type="button" class="twist" aria-expanded=${open} aria-label=${`${open ? "Close" : "Open"} ${path}`} onClick=${() => setOpen(!open)}>${open ? "▼" : "▶"}</button>` : html`<span class="twist"></span>`}
      <a href=${to(["topics"], {...query, order})} title=${path}>${branch.segment || "(empty)"}</a>
      ${branch.kept > 0 && html`<${Badge} tone="info" title="retained messages">${short(branch.kept)}<//>`}
      <span class="muted" title=${`${count(branch.topics)} topics, ${count(branch.messages)} messages`}>${current ? rate(current) : inside ? short(branch.topics) : ""}</span>
    </div>
    ${open && html`<${Level} path=${path} order=${order} chosen=${chosen} depth=${depth + 1} />`}
  </li>`;
}

/** Who uses a topic, and what it retains. @param {{topic: string}} props */
function Topic({topic}) {
  const {value, error} = usePoll(async () => {
    const [users, kept] = await Promise.all([ask("$bus/topic", {topic}), ask("$bus/kept", {pattern: topic, most: 20}).catch(() => ({kept: [], total: 0}))]);
    return {users, kept};
  }, EVERY, [topic]);
  if (!value) return html`<${Trouble} error=${error} />`;
  const {users, kept} = value;
  const client = (/** @type {any} */ row) => row.node ? html`${row.name} <${Badge}>node<//>` : html`<a href=${to(["clients"], {search: row.name || row.client})}>${row.name || `client ${row.client}`}</a>`;
  const publishers = [
    {name: "Publisher", wide: true, cell: client},
    {name: "Address", spare: true, cell: (/** @type {any} */ row) => row.peer},
    {name: "Messages, all topics", number: true, cell: (/** @type {any} */ row) => count(row.messages_received)},
  ];
  const subscribers = [
    {name: "Subscriber", wide: true, cell: client},
    {name: "Group", cell: (/** @type {any} */ row) => row.group || "–"},
  ];
  return html`
    <div class="grid">
      <${Card} title=${plural(users.publisher_count, "publisher")}>
        <${Table} label="Publishers" rows=${users.publishers} columns=${publishers} empty="No connected client has published here." />
      <//>
      <${Card} title=${plural(users.subscription_count, "subscription")}>
        <${Table} label="Subscriptions" rows=${users.subscriptions} columns=${subscribers} empty="Nobody subscribes, so messages are not delivered." />
      <//>
    </div>
    <p class="muted topic-note">${plural(users.messages, "message")} since the topic is in use · durable publishes go to the stream <a href=${to(["streams", users.stream || "default"], {pattern: topic})}>${users.stream || "default"}</a></p>
    ${kept.kept.map((/** @type {any} */ one) => html`<${Card} title="Retained value" actions=${html`<span class="muted">${one.kind} by ${one.sender || "–"}, ${moment(one.time / 1e6)}</span>`}>
      <${Payload} key=${one.id} message=${keptPayload(one)} />
    <//>`)}`;
}

/** @param {any} one */
function keptPayload(one) {
  const {payload, size} = one;
  if (payload === null) return {text: "", size, cut: true};
  return typeof payload === "string" ? {text: payload, size, cut: false} : {base64: payload.base64, size, cut: false};
}
