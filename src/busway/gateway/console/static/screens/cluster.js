// @ts-check
/** Cluster: nodes and links as a diagram, round trips, mirrors and their lag, and who is missing. */

import {ask} from "../lib/bus.js";
import {ago, bytes, count, duration, plural, whole} from "../lib/format.js";
import {html} from "../lib/html.js";
import {usePoll} from "../lib/poll.js";
import {Table} from "../parts/table.js";
import {Badge, Card, Empty, Head, Pairs, Trouble} from "../parts/widgets.js";

const EVERY = 2500;
const WIDTH = 640;
const HEIGHT = 320;

/** @param {any} node */
function nameOf(node) {
  return node.name || node.guid.slice(0, 8);
}

export function ClusterScreen() {
  const {value, error} = usePoll(() => ask("$bus/cluster"), EVERY, []);
  if (!value) return html`<${Head} title="Cluster" /><${Trouble} error=${error} />`;
  if (!value.cluster) {
    return html`<${Head} title="Cluster" />
      <${Card} title="This broker is alone"><p>It is a node of no cluster. Start it with <code>--cluster NAME --servers HOST:PORT,…</code> to join one.</p><//>`;
  }
  return html`
    <${Head} title=${value.cluster} note=${`a cluster of ${plural(value.nodes.length, "node")}, as ${nameOf(value.nodes[0])} sees it`} />
    <${Trouble} error=${error} />
    <${Card} title="Nodes and links"><${Diagram} nodes=${value.nodes} missing=${value.missing} mirroring=${value.mirroring} /><//>
    <${Nodes} nodes=${value.nodes} />
    ${value.missing.length > 0 && html`<${Missing} missing=${value.missing} />`}
    <${Mirrors} mirroring=${value.mirroring} />
    ${value.lacking.length > 0 && html`<${Card} title="Definitions that nodes lack">
      <${Table} label="Definitions that nodes lack" rows=${value.lacking} columns=${[
        {name: "Definition", cell: (/** @type {any} */ row) => row.key || row.name},
        {name: "Node", cell: (/** @type {any} */ row) => row.node || "–"},
        {name: "Why", wide: true, cell: (/** @type {any} */ row) => row.text || row.why || row.error || "–"}]} />
    <//>`}`;
}

/** @param {any} node */
function tone(node) {
  return node.state === "linked" || node.state === "this" ? "ok" : node.state === "stopped" ? "warn" : "bad";
}

/**
 * This node in the middle, the others around it.
 * @param {{nodes: any[], missing: any[], mirroring: any}} props
 */
function Diagram({nodes, missing, mirroring}) {
  const [me, ...others] = nodes;
  const around = [...others, ...missing.map(one => ({name: one.name || one.addresses[0], guid: one.addresses[0] || one.name, state: one.state, link: null}))];
  const middle = {x: WIDTH / 2, y: HEIGHT / 2};
  const placed = around.map((node, at) => {
    const angle = -Math.PI / 2 + (2 * Math.PI * (at + (around.length === 2 ? 0.25 : 0))) / Math.max(around.length, 1) + (around.length === 2 ? -Math.PI / 4 + Math.PI / 4 : 0);
    const turned = around.length === 2 ? (at ? 0 : Math.PI) : angle;
    return {node, x: middle.x + Math.cos(turned) * (WIDTH / 2 - 90), y: middle.y + Math.sin(turned) * (HEIGHT / 2 - 44)};
  });
  const spoken = placed.map(({node}) => `${nameOf(node)} is ${node.state}`).join(", ");
  return html`<svg class="diagram" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label=${`${nameOf(me)}: ${spoken}`}>
    ${placed.map(({node, x, y}) => html`<g>
      <line class="link ${tone(node)}" x1=${middle.x} y1=${middle.y} x2=${x} y2=${y} />
      ${node.link?.round_trip !== undefined && node.link?.round_trip !== null && html`<g><rect class="trip-room" x=${(middle.x + x) / 2 - 34} y=${(middle.y + y) / 2 - 11} width="68" height="22" rx="11" /><text class="trip" x=${(middle.x + x) / 2} y=${(middle.y + y) / 2 + 4}>${duration(node.link.round_trip)}</text></g>`}
    </g>`)}
    <${Box} node=${me} x=${middle.x} y=${middle.y} own=${true} note=${mirroring.of ? `mirror of ${mirroring.of}` : "this node"} />
    ${placed.map(({node, x, y}) => html`<${Box} node=${node} x=${x} y=${y} own=${false} note=${node.state} />`)}
  </svg>`;
}

/** @param {{node: any, x: number, y: number, own: boolean, note: string}} props */
function Box({node, x, y, own, note}) {
  return html`<g transform="translate(${x} ${y})">
    <rect class="node ${own ? "own" : ""} ${tone(node)}" x="-76" y="-26" width="152" height="52" rx="8" />
    <text class="node-name" y="-3">${nameOf(node).slice(0, 18)}</text>
    <text class="node-note" y="15">${String(note).slice(0, 24)}</text>
  </g>`;
}

/** @param {{nodes: any[]}} props */
function Nodes({nodes}) {
  /** @type {import("../parts/table.js").Column<any>[]} */
  const columns = [
    {name: "Node", wide: true, cell: node => html`<b>${nameOf(node)}</b> <span class="muted mono">${node.guid.slice(0, 8)}</span>`},
    {name: "State", cell: node => html`<${Badge} tone=${tone(node)} title=${node.link?.why}>${node.state === "this" ? "this node" : node.state}<//>`},
    {name: "Round trip", number: true, cell: node => node.link?.round_trip ? duration(node.link.round_trip) : "–"},
    {name: "Addresses", spare: true, cell: node => html`<code class="topic">${node.addresses.join(", ")}</code>`},
    {name: "Started", spare: true, cell: node => html`<time title=${whole(node.started * 1000)}>${ago(node.started * 1000)}</time>`},
    {name: "In", number: true, spare: true, cell: node => node.link ? count(node.link.messages_in) : "–"},
    {name: "Out", number: true, spare: true, cell: node => node.link ? count(node.link.messages_out) : "–"},
    {name: "Waiting", number: true, spare: true, cell: node => node.link ? bytes(node.link.waiting) : "–"},
    {name: "Dropped", number: true, cell: node => node.link ? count(node.link.dropped) : "–"},
  ];
  return html`<${Card} title="Nodes"><${Table} label="Nodes" columns=${columns} rows=${nodes} keyOf=${(/** @type {any} */ node) => node.guid} /><//>`;
}

/** @param {{missing: any[]}} props */
function Missing({missing}) {
  const columns = [
    {name: "Server", wide: true, cell: (/** @type {any} */ one) => one.name || one.addresses.join(", ")},
    {name: "State", cell: (/** @type {any} */ one) => html`<${Badge} tone="bad">${one.state}<//>`},
    {name: "Why", wide: true, cell: (/** @type {any} */ one) => one.why || "–"},
  ];
  return html`<${Card} title="Servers that are missing"><${Table} label="Servers that are missing" columns=${columns} rows=${missing} /><//>`;
}

/** @param {{mirroring: any}} props */
function Mirrors({mirroring}) {
  const mirrors = mirroring.mirrors || [];
  const simple = Object.entries(mirroring).filter(([, value]) => typeof value === "string" || typeof value === "number" || typeof value === "boolean");
  const columns = [
    {name: "Mirror", wide: true, cell: (/** @type {any} */ mirror) => mirror.name || mirror.node || mirror.guid?.slice(0, 8)},
    {name: "Behind", number: true, cell: (/** @type {any} */ mirror) => mirror.behind ? plural(mirror.behind, "record") : "nothing"},
    {name: "State", cell: (/** @type {any} */ mirror) => html`<${Badge} tone=${mirror.complete === false ? "warn" : "ok"}>${mirror.state || "copies"}<//>`},
  ];
  return html`<div class="grid">
    <${Card} title="Mirrors of this node"><${Table} label="Mirrors of this node" columns=${columns} rows=${mirrors} empty="No node mirrors this one." /><//>
    <${Card} title="Mirroring">${simple.length ? html`<${Pairs} pairs=${simple.map(([name, value]) => [name.replaceAll("_", " "), String(value)])} />` : html`<${Empty}>This node mirrors no other one.<//>`}<//>
  </div>`;
}
