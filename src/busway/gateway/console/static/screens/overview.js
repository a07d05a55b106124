// @ts-check
/** Overview: what is wrong, the main figures, and charts of the last ten minutes. */

import {ask} from "../lib/bus.js";
import {bytes, count, duration, plural, rate, short} from "../lib/format.js";
import {html} from "../lib/html.js";
import {usePoll} from "../lib/poll.js";
import {brokerProblems} from "../lib/problems.js";
import {growth, latest, meanRate, perSecond, useSamples, values} from "../lib/rates.js";
import {to} from "../lib/route.js";
import {Chart} from "../parts/chart.js";
import {Table} from "../parts/table.js";
import {Badge, Card, Figure, Figures, Head, Trouble} from "../parts/widgets.js";

const EVERY = 2500;

/** All that the overview asks. A user who may not see a part gets the others. */
async function look() {
  /** @param {Promise<any>} request @param {any} otherwise */
  const or = (request, otherwise) => request.catch(() => otherwise);
  const [info, streams, channels, clients, cluster] = await Promise.all([
    ask("$bus/info", {connections: 0, streams: false}),
    or(ask("$bus/stream/list", {channels: false, most: 500}), {streams: [], total: 0}),
    or(ask("$bus/channel/list", {order: "lag", most: 200}), {channels: [], total: 0}),
    or(ask("$bus/connections", {order: "slow", most: 20}), {connections: [], total: 0}),
    or(ask("$bus/cluster"), null),
  ]);
  return {info, streams, channels, clients, cluster};
}

export function OverviewScreen() {
  const {value, error} = usePoll(look, EVERY, []);
  const samples = useSamples();
  if (!value) return html`<${Head} title="Overview" /><${Trouble} error=${error} />`;
  const {info, streams, channels, clients, cluster} = value;
  const {stats, disk} = info;
  const found = {
    info,
    streams: streams.streams,
    channels: channels.channels,
    clients: clients.connections,
    cluster,
    growth: (/** @type {string} */ name) => growth(samples, name),
    memory: latest(samples, "memory"),
  };
  const problems = brokerProblems(found);
  const dropped = growth(samples, "messages_dropped");
  const note = [info.cluster && `node of the cluster ${info.cluster}`, `up for ${duration(info.uptime)}`, info.addresses.join(", ")].filter(Boolean).join(" · ");
  return html`
    <${Head} title="Overview" note=${note} />
    <${Trouble} error=${error} />
    <${Problems} problems=${problems} />
    <${Figures}>
      <${Figure} label="Messages in" value=${rate(meanRate(samples, "messages_received"))} note=${`${short(stats.messages_received)} in all`} href=${to(["topics"])} />
      <${Figure} label="Messages out" value=${rate(meanRate(samples, "messages_delivered"))} note=${`${short(stats.messages_delivered)} in all`} href=${to(["topics"])} />
      <${Figure} label="Connections" value=${count(clients.total)} note=${plural(stats.subscriptions, "subscription")} href=${to(["clients"])} />
      <${Figure} label="Slow consumers" value=${count(stats.slow_consumers)} tone=${stats.slow_consumers ? "warn" : ""} note="read slower than written" href=${to(["clients"], {order: "slow"})} />
      <${Figure} label="Dropped, 10 min" value=${count(dropped)} tone=${dropped ? "warn" : ""} note="full queues of readers" />
      <${Figure} label="Errors, 10 min" value=${count(growth(samples, "errors") + growth(samples, "faults"))} tone=${growth(samples, "errors") ? "bad" : ""} note="of the broker and clients" />
    <//>
    <${Charts} samples=${samples} disk=${disk} />
    <div class="grid">
      <${Lagging} channels=${channels} />
      <${Busy} streams=${streams} />
    </div>`;
}

/** @param {{problems: import("../lib/problems.js").Problem[]}} props */
function Problems({problems}) {
  if (!problems.length) {
    return html`<${Card} class="problems-card" label="Problems"><p class="fine"><i class="dot ok"></i>Nothing is wrong.</p><//>`;
  }
  return html`<${Card} title=${plural(problems.length, "problem")} class="problems-card">
    <ul class="problems">${problems.slice(0, 12).map(({tone, text, href}) => html`<li><i class="dot ${tone}"></i><span>${href ? html`<a href=${href}>${text}</a>` : text}</span></li>`)}</ul>
    ${problems.length > 12 && html`<p class="muted">and ${count(problems.length - 12)} more</p>`}
  <//>`;
}

/** @param {{samples: import("../lib/rates.js").Samples, disk: any}} props */
function Charts({samples, disk}) {
  const {times} = samples;
  const processor = perSecond(samples, "cpu_seconds").map(value => value === null ? null : value * 100);
  const percent = (/** @type {number | null} */ value) => value === null ? "–" : `${value.toFixed(0)} %`;
  return html`<div class="grid">
    <${Card}><${Chart} title="Messages" times=${times} shown=${rate} least=${10} lines=${[
      {name: "in", tone: "one", values: perSecond(samples, "messages_received")},
      {name: "out", tone: "two", values: perSecond(samples, "messages_delivered")}]} /><//>
    <${Card}><${Chart} title="Data" times=${times} shown=${(/** @type {number | null} */ value) => value === null ? "–" : `${bytes(value)}/s`} least=${1024} binary lines=${[
      {name: "in", tone: "one", values: perSecond(samples, "received_bytes")},
      {name: "out", tone: "two", values: perSecond(samples, "delivered_bytes")}]} /><//>
    <${Card}><${Chart} title="Connections" times=${times} shown=${short} least=${5} lines=${[
      {name: "open", tone: "one", values: values(samples, "connections")},
      {name: "slow", tone: "bad", values: values(samples, "slow_consumers")}]} /><//>
    <${Card}><${Chart} title="Dropped and rejected" times=${times} shown=${rate} least=${1} lines=${[
      {name: "dropped", tone: "bad", values: perSecond(samples, "messages_dropped")},
      {name: "rejected", tone: "three", values: perSecond(samples, "messages_rejected")}]} /><//>
    <${Card}><${Chart} title="Memory of the broker" times=${times} shown=${bytes} least=${64 * 1024 * 1024} binary lines=${[
      {name: "resident", tone: "one", values: values(samples, "memory")},
      {name: "outboxes", tone: "three", values: values(samples, "outbox_bytes")}]} /><//>
    <${Card}><${Chart} title=${disk ? "Processor and disk" : "Processor"} times=${times} shown=${percent} least=${100} lines=${[
      {name: "processor", tone: "one", values: processor}]}
      note=${disk && `The disk has ${bytes(disk.free)} free; durable publishes are refused below ${bytes(disk.floor)}.`} /><//>
  </div>`;
}

/** @param {{channels: any}} props */
function Lagging({channels}) {
  const rows = channels.channels.slice(0, 6);
  const columns = [
    {name: "Channel", wide: true, cell: (/** @type {any} */ channel) => html`<a href=${to(["channels", channel.stream, channel.name])}>${channel.stream}/${channel.name}</a>`},
    {name: "Lag", number: true, cell: (/** @type {any} */ channel) => count(channel.lag)},
    {name: "In flight", number: true, cell: (/** @type {any} */ channel) => count(channel.in_flight)},
    {name: "Consumers", number: true, cell: (/** @type {any} */ channel) => channel.paused ? html`<${Badge} tone="warn">paused<//>` : count(channel.consumers)},
  ];
  return html`<${Card} title="Channels with the largest lag" actions=${html`<a href=${to(["channels"])}>All ${count(channels.total)}</a>`}>
    <${Table} label="Channels with the largest lag" rows=${rows} columns=${columns} empty="There is no channel." />
  <//>`;
}

/** @param {{streams: any}} props */
function Busy({streams}) {
  const rows = streams.streams.toSorted((/** @type {any} */ one, /** @type {any} */ other) => other.bytes - one.bytes).slice(0, 6);
  const columns = [
    {name: "Stream", wide: true, cell: (/** @type {any} */ stream) => html`<a href=${to(["streams", stream.name])}>${stream.name}</a>`},
    {name: "Messages", number: true, cell: (/** @type {any} */ stream) => count(stream.next - stream.first)},
    {name: "Size", number: true, cell: (/** @type {any} */ stream) => bytes(stream.bytes)},
    {name: "Safety", cell: (/** @type {any} */ stream) => html`<${Badge}>${stream.level}<//>`},
  ];
  return html`<${Card} title="Largest streams" actions=${html`<a href=${to(["streams"])}>All ${count(streams.total)}</a>`}>
    <${Table} label="Largest streams" rows=${rows} columns=${columns} empty="There is no stream." />
  <//>`;
}
