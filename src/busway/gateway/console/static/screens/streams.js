// @ts-check
/** Streams: size, rate, retention and safety of each, and for one stream its stored messages. */

import {ask} from "../lib/bus.js";
import {bytes, count, duration, plural, rate, whole} from "../lib/format.js";
import {html} from "../lib/html.js";
import {usePoll} from "../lib/poll.js";
import {latest, meanRate, perSecond, useSamples, values} from "../lib/rates.js";
import {refine, route, to} from "../lib/route.js";
import {Browse} from "../parts/browse.js";
import {Chart} from "../parts/chart.js";
import {Pager, Search, Table} from "../parts/table.js";
import {Badge, Card, Figure, Figures, Head, Pairs, Trouble} from "../parts/widgets.js";

const EVERY = 2500;
const MOST = 50;

/** Where a stream stands: safe or not. @param {{stream: any}} props */
function Safety({stream}) {
  if (stream.stuck) return html`<${Badge} tone="bad" title=${stream.stuck}>can't write<//>`;
  if (stream.damage) return html`<${Badge} tone="bad">damaged<//>`;
  if (stream.mirrored === false) return html`<${Badge} tone="warn">no mirror<//>`;
  return html`<${Badge}>${stream.level}<//>`;
}

/** The limits of a stream in words. @param {any} stream */
export function retention(stream) {
  const limits = [
    stream.max_age && duration(stream.max_age),
    stream.max_bytes && bytes(stream.max_bytes),
    stream.max_count && plural(stream.max_count, "message"),
  ].filter(Boolean);
  const until = stream.retain_until ? `until ${stream.retain_until} has them` : "";
  return [limits.join(" or ") || "for ever", until].filter(Boolean).join(", ");
}

export function StreamsScreen() {
  const {search = "", order = "", skip = "0"} = route.value.query;
  const {value, error} = usePoll(() => ask("$bus/stream/list", {search, order, skip: Number(skip), most: MOST, channels: false}), EVERY, [search, order, skip]);
  const rows = value?.streams || [];
  const samples = useSamples(rows.map((/** @type {any} */ stream) => `stream/${stream.name}/end`));
  /** @type {import("../parts/table.js").Column<any>[]} */
  const columns = [
    {name: "Stream", order: "", wide: true, cell: stream => html`<a href=${to(["streams", stream.name])}>${stream.name}</a>`},
    {name: "Topics", spare: true, cell: stream => html`<code class="topic">${stream.topics.join(", ") || "all others"}</code>`},
    {name: "Messages", number: true, cell: stream => count(stream.next - stream.first)},
    {name: "Size", number: true, order: "bytes", cell: stream => bytes(stream.bytes)},
    {name: "Rate", number: true, cell: stream => rate(meanRate(samples, `stream/${stream.name}/end`))},
    {name: "Retention", spare: true, cell: retention},
    {name: "Store", spare: true, cell: stream => stream.store},
    {name: "Safety", cell: stream => html`<${Safety} stream=${stream} />`},
  ];
  return html`
    <${Head} title="Streams" note="Stored messages of topics, in order." actions=${html`<${Search} label="Search streams" placeholder="Search name or topic" value=${search} onInput=${(/** @type {string} */ text) => refine({search: text, skip: ""})} />`} />
    <${Trouble} error=${error} />
    ${value && html`<${Card}>
      <${Table} label="Streams" columns=${columns} rows=${rows} order=${order} onOrder=${(/** @type {string} */ name) => refine({order: name, skip: ""})} keyOf=${(/** @type {any} */ stream) => stream.name} empty="No stream matches." />
      <${Pager} skip=${Number(skip)} most=${MOST} total=${value.total} onSkip=${(/** @type {number} */ to) => refine({skip: to})} />
    <//>`}`;
}

/** @param {{path: string[]}} props */
export function StreamScreen({path: [name]}) {
  const {value, error} = usePoll(async () => (await ask("$bus/stream/list", {name, parts: true})).streams[0], EVERY, [name]);
  const samples = useSamples([`stream/${name}/end`, `stream/${name}/bytes`]);
  const head = html`<${Head} title=${name} back=${{href: to(["streams"]), text: "Streams"}} note=${value && (value.topics.join(", ") || "durable messages of topics that no other stream claims")} />`;
  if (!value) return html`${head}<${Trouble} error=${error} />`;
  const now = meanRate(samples, `stream/${name}/end`);
  return html`
    ${head}
    <${Trouble} error=${error} />
    <${Figures}>
      <${Figure} label="Messages" value=${count(value.next - value.first)} note=${`offsets ${count(value.first)} to ${count(value.next)}`} />
      <${Figure} label="Rate" value=${rate(now)} note="of the last 10 s" />
      <${Figure} label="Size" value=${bytes(latest(samples, `stream/${name}/bytes`) ?? value.bytes)} note=${plural(value.buckets, "file")} />
      <${Figure} label="Topics" value=${count(value.topic_count)} />
      <${Figure} label="Safety" value=${value.level} note=${value.mirrored === null ? "not mirrored" : value.mirrored ? "mirrored now" : "the mirror is away"} tone=${value.stuck || value.damage ? "bad" : value.mirrored === false ? "warn" : ""} />
      <${Figure} label="Channels" value=${count(value.channels.length)} href=${to(["channels"], {search: name})} />
    <//>
    <${Browse} stream=${value} />
    <div class="grid">
      <${Card}><${Chart} title="Stored messages" times=${samples.times} shown=${rate} least=${5} lines=${[{name: "stored", tone: "one", values: perSecond(samples, `stream/${name}/end`)}]} /><//>
      <${Card}><${Chart} title="Size" times=${samples.times} shown=${bytes} least=${1024 * 1024} binary lines=${[{name: "on disk", tone: "two", values: values(samples, `stream/${name}/bytes`)}]} /><//>
    </div>
    <div class="grid">
      <${Card} title="Settings"><${Pairs} pairs=${settings(value)} /><//>
      <${Parts} stream=${value} />
    </div>`;
}

/** @param {any} stream @returns {[string, any][]} */
function settings(stream) {
  return [
    ["Retention", retention(stream)],
    ["Store", stream.store],
    ["Safety", stream.safety],
    ["Deduplicates for", duration(stream.once)],
    ["Waiting for their time", stream.waiting ? plural(stream.waiting, "message") : ""],
    ["Kept for a channel", stream.held ? `${plural(stream.held, "message")}, ${bytes(stream.held_bytes)}, since ${whole(stream.held_since * 1000)}` : ""],
    ["Damage", stream.damage ? plural(stream.damage, "range") : ""],
    ["Note", stream.note],
    ["Former topics", stream.former.join(", ")],
  ];
}

/** The part of a stream at each node. @param {{stream: any}} props */
function Parts({stream}) {
  /** @type {import("../parts/table.js").Column<any>[]} */
  const columns = [
    {name: "Node", wide: true, cell: part => part.node},
    {name: "Messages", number: true, cell: part => part.error ? "–" : count(part.next - part.first)},
    {name: "Size", number: true, cell: part => part.error ? "–" : bytes(part.bytes)},
    {name: "State", cell: part => part.error ? html`<${Badge} tone="bad" title=${part.error}>not reached<//>` : part.mirrored === false ? html`<${Badge} tone="warn">mirror away<//>` : part.mirrored ? html`<${Badge} tone="ok">mirrored<//>` : html`<${Badge}>one copy<//>`},
  ];
  return html`<${Card} title="Parts by node"><${Table} label="Parts by node" rows=${stream.parts} columns=${columns} /><//>`;
}
