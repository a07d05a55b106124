// @ts-check
/** Channels: lag and consumers of each, and for one channel why it is behind, with pause, seek and dead letters. */

import {ask} from "../lib/bus.js";
import {count, duration, plural, rate} from "../lib/format.js";
import {html} from "../lib/html.js";
import {usePoll} from "../lib/poll.js";
import {explainChannel, isBehind} from "../lib/problems.js";
import {meanRate, perSecond, useSamples, values} from "../lib/rates.js";
import {go, refine, route, to} from "../lib/route.js";
import {Chart} from "../parts/chart.js";
import {act, confirm} from "../parts/dialog.js";
import {Letters} from "../parts/letters.js";
import {Seek} from "../parts/seek.js";
import {Pager, Search, Table} from "../parts/table.js";
import {Badge, Button, Card, Figure, Figures, Head, Pairs, Trouble} from "../parts/widgets.js";

const EVERY = 2500;
const MOST = 50;

export function ChannelsScreen() {
  const {search = "", order = "lag", skip = "0"} = route.value.query;
  const by = order === "name" ? "" : order;
  const {value, error} = usePoll(() => ask("$bus/channel/list", {search, order: by, skip: Number(skip), most: MOST}), EVERY, [search, by, skip]);
  /** @type {import("../parts/table.js").Column<any>[]} */
  const columns = [
    {name: "Channel", order: "", wide: true, cell: channel => html`<a href=${to(["channels", channel.stream, channel.name])}>${channel.stream}/${channel.name}</a>${channel.paused && html` <${Badge} tone="warn">paused<//>`}`},
    {name: "Lag", number: true, order: "lag", cell: channel => count(channel.lag)},
    {name: "In flight", number: true, order: "in_flight", spare: true, cell: channel => count(channel.in_flight)},
    {name: "Consumers", number: true, order: "consumers", cell: channel => channel.lag && !channel.consumers ? html`<${Badge} tone="bad">none<//>` : count(channel.consumers)},
    {name: "Redelivered", number: true, order: "redelivered", spare: true, cell: channel => count(channel.redelivered)},
    {name: "Dead letters", number: true, order: "dead", cell: channel => channel.dead ? html`<${Badge} tone="warn">${count(channel.dead)}<//>` : "0"},
    {name: "Lost", number: true, order: "lost", spare: true, cell: channel => channel.lost ? html`<${Badge} tone="bad">${count(channel.lost)}<//>` : "0"},
  ];
  return html`
    <${Head} title="Channels" note="Durable progress in a stream, shared by consumers that acknowledge." actions=${html`<${Search} label="Search channels" placeholder="Search channel or stream" value=${search} onInput=${(/** @type {string} */ text) => refine({search: text, skip: ""})} />`} />
    <${Trouble} error=${error} />
    ${value && html`<${Card}>
      <${Table} label="Channels" columns=${columns} rows=${value.channels} order=${by} onOrder=${(/** @type {string} */ name) => refine({order: name || "name", skip: ""})} keyOf=${(/** @type {any} */ channel) => `${channel.stream}/${channel.name}`} empty="No channel matches." />
      <${Pager} skip=${Number(skip)} most=${MOST} total=${value.total} onSkip=${(/** @type {number} */ next) => refine({skip: next})} />
    <//>`}`;
}

/** @param {{path: string[]}} props */
export function ChannelScreen({path: [stream, name]}) {
  const polled = usePoll(async () => (await ask("$bus/channel/list", {stream, channel: name})).channels[0], EVERY, [stream, name]);
  const place = `channel/${stream}/${name}`;
  const samples = useSamples([`${place}/lag`, `${place}/in_flight`, `${place}/floor`, `${place}/dead`, `stream/${stream}/end`]);
  const {value: channel, error, refresh} = polled;
  const title = `${stream}/${name}`;
  const head = (/** @type {any} */ actions) => html`<${Head} title=${title} back=${{href: to(["channels"]), text: "Channels"}} actions=${actions}
    note=${html`of the stream <a href=${to(["streams", stream])}>${stream}</a>`} />`;
  if (!channel) return html`${head(null)}<${Trouble} error=${error} />`;
  const arrives = meanRate(samples, `stream/${stream}/end`, 30);
  const completes = meanRate(samples, `${place}/floor`, 30);
  const reasons = explainChannel(channel, {arrives, completes});
  return html`
    ${head(html`<${Actions} channel=${channel} refresh=${refresh} />`)}
    <${Trouble} error=${error} />
    <${Card} title=${isBehind(channel, {arrives}) || channel.paused ? "Why it is behind" : "It is not behind"}>
      <ul class="explained">${reasons.map(reason => html`<li><i class="dot ${reason.tone === "info" ? "ok" : reason.tone}"></i><span>${reason.text}</span></li>`)}</ul>
    <//>
    <${Figures}>
      <${Figure} label="Lag" value=${count(channel.lag)} note="not completed" tone=${channel.lag && !channel.consumers ? "bad" : ""} />
      <${Figure} label="In flight" value=${count(channel.in_flight)} note="delivered, not acknowledged" />
      <${Figure} label="Waiting" value=${count(channel.waiting)} note="for their next delivery" />
      <${Figure} label="Consumers" value=${count(channel.consumers)} tone=${channel.consumers ? "" : "warn"} />
      <${Figure} label="Redelivered" value=${count(channel.redelivered)} note="since the start" />
      <${Figure} label="Dead letters" value=${count(channel.dead)} note="since the start" tone=${channel.dead ? "warn" : ""} />
    <//>
    <div class="grid">
      <${Card}><${Chart} title="Lag" times=${samples.times} shown=${count} least=${10} lines=${[
        {name: "lag", tone: "one", values: values(samples, `${place}/lag`)},
        {name: "in flight", tone: "three", values: values(samples, `${place}/in_flight`)}]} /><//>
      <${Card}><${Chart} title="Pace" times=${samples.times} shown=${rate} least=${5} lines=${[
        {name: "arrive", tone: "two", values: perSecond(samples, `stream/${stream}/end`)},
        {name: "completed", tone: "one", values: perSecond(samples, `${place}/floor`)}]} /><//>
    </div>
    <${Letters} channel=${channel} refresh=${refresh} />
    <div class="grid">
      <${Consumers} channel=${channel} />
      <${Card} title="Settings"><${Pairs} pairs=${settings(channel)} /><//>
    </div>
    ${channel.parts?.length > 1 && html`<${Parts} channel=${channel} />`}`;
}

/** @param {any} channel @returns {[string, any][]} */
function settings(channel) {
  return [
    ["Topics", html`<code>${channel.topic}</code>`],
    ["Lease", channel.lease ? duration(channel.lease) : "none"],
    ["Deliveries at most", channel.max_deliveries || "no limit"],
    ["Delays after failures", channel.backoff.map(duration).join(", ")],
    ["Dead letters to", channel.dead_letter ? html`<code>${channel.dead_letter.replace("{stream}", channel.stream).replace("{channel}", channel.name)}</code>` : "nowhere: they are dropped"],
    ["Order by", channel.order_by],
    ["Exclusive", channel.exclusive ? "yes, one consumer" : ""],
    ["Position", `completed below ${count(channel.floor)}, delivered below ${count(channel.cursor)}`],
  ];
}

/** @param {{channel: any, refresh: () => void}} props */
function Actions({channel, refresh}) {
  const {stream, name, paused} = channel;
  const pause = async () => {
    await act(() => ask("$bus/channel/update", {stream, channel: name, settings: {paused: !paused}}), () => `${stream}/${name} is ${paused ? "delivering again" : "paused"}`);
    refresh();
  };
  const remove = async () => {
    const text = html`<p>Its position and its progress are lost, and its consumers get an error. The messages stay in the stream.</p>`;
    if (!await confirm({title: `Remove the channel ${name}?`, text, action: "Remove", name, destructive: true})) return;
    if (await act(() => ask("$bus/channel/remove", {stream, channel: name}), () => `${stream}/${name} is removed`)) go(["channels"]);
  };
  return html`
    <${Button} onClick=${pause}>${paused ? "Resume" : "Pause"}<//>
    <${Seek} channel=${channel} refresh=${refresh} />
    <${Button} tone="danger" onClick=${remove}>Remove…<//>`;
}

/** @param {{channel: any}} props */
function Consumers({channel}) {
  /** @type {import("../parts/table.js").Column<any>[]} */
  const columns = [
    {name: "Consumer", wide: true, cell: client => client.node ? html`${client.name} <${Badge}>node<//>` : html`<a href=${to(["clients"], {search: client.name || client.client})}>${client.name || `client ${client.client}`}</a>`},
    {name: "In flight", number: true, cell: client => count(client.in_flight)},
    {name: "Window", number: true, cell: client => count(client.window)},
    {name: "State", cell: client => client.window && client.in_flight >= client.window ? html`<${Badge} tone="warn">busy<//>` : html`<${Badge} tone="ok">has room<//>`},
  ];
  return html`<${Card} title=${plural(channel.consumers, "consumer")}>
    <${Table} label="Consumers" rows=${channel.clients || []} columns=${columns} empty="No consumer is connected to this node." />
  <//>`;
}

/** @param {{channel: any}} props */
function Parts({channel}) {
  /** @type {import("../parts/table.js").Column<any>[]} */
  const columns = [
    {name: "Node", wide: true, cell: part => part.node},
    {name: "Lag", number: true, cell: part => count(part.lag)},
    {name: "In flight", number: true, cell: part => count(part.in_flight)},
    {name: "Consumers", number: true, cell: part => count(part.consumers)},
    {name: "Completed below", number: true, cell: part => count(part.floor)},
    {name: "State", cell: part => part.error ? html`<${Badge} tone="bad" title=${part.error}>not reached<//>` : html`<${Badge} tone="ok">reached<//>`},
  ];
  return html`<${Card} title="Parts by node"><${Table} label="Parts by node" rows=${channel.parts} columns=${columns} /><//>`;
}
