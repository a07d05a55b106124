// @ts-check
/** Clients: who is connected, with rates and queues, the slow ones first; disconnects one. */

import {useRef} from "preact/hooks";
import {ask} from "../lib/bus.js";
import {bytes, count, plural, rate} from "../lib/format.js";
import {html} from "../lib/html.js";
import {usePoll} from "../lib/poll.js";
import {isSlow} from "../lib/problems.js";
import {refine, route, to} from "../lib/route.js";
import {act, confirm} from "../parts/dialog.js";
import {Pager, Search, Table} from "../parts/table.js";
import {Badge, Button, Card, Head, Trouble} from "../parts/widgets.js";

const EVERY = 2000;
const MOST = 50;

/** The rates of each connection, from two answers. @param {any} value */
function useRates(value) {
  const before = useRef({time: 0, counts: new Map(), rates: new Map(), value: null});
  if (value && before.current.value !== value) {
    const now = performance.now();
    const seconds = (now - before.current.time) / 1000;
    const [counts, rates] = [new Map(), new Map()];
    for (const {client, messages_received: into, messages_delivered: out} of value.connections) {
      counts.set(client, [into, out]);
      const old = before.current.counts.get(client);
      if (old && seconds > 0.2) rates.set(client, [(into - old[0]) / seconds, (out - old[1]) / seconds]);
    }
    before.current = {time: now, counts, rates, value};
  }
  return before.current.rates;
}

export function ClientsScreen() {
  const {search = "", order = "slow", skip = "0"} = route.value.query;
  const by = order === "name" ? "" : order;
  const polled = usePoll(() => ask("$bus/connections", {search, order: by, skip: Number(skip), most: MOST}), EVERY, [search, by, skip]);
  const {value, error, refresh} = polled;
  const rates = useRates(value);
  /** @param {any} client */
  const close = async client => {
    const name = client.name || String(client.client);
    const text = html`<p>Its connection ends with the reason “an operator has disconnected this client”. It may connect again by itself.</p>`;
    if (!await confirm({title: `Disconnect ${name}?`, text, action: "Disconnect", name, destructive: true})) return;
    await act(() => ask("$bus/connections/close", {client: client.client, name: client.name}), () => `${name} is disconnected`);
    refresh();
  };
  /** @type {import("../parts/table.js").Column<any>[]} */
  const columns = [
    {name: "Client", order: "", wide: true, cell: client => html`<b>${client.name || "–"}</b> <span class="muted">${client.client}</span>${client.node && html` <${Badge}>node<//>`}`},
    {name: "State", order: "slow", cell: client => isSlow(client) ? html`<${Badge} tone="warn">slow<//>` : html`<${Badge} tone=${client.state === "open" ? "ok" : ""}>${client.state}<//>`},
    {name: "User", spare: true, cell: client => client.user || client.peer_name || "–"},
    {name: "Address", spare: true, cell: client => html`${client.transport === "memory" ? "in the broker" : client.peer}`},
    {name: "In", number: true, order: "messages_received", cell: client => rate(rates.get(client.client)?.[0])},
    {name: "Out", number: true, order: "messages_delivered", cell: client => rate(rates.get(client.client)?.[1])},
    {name: "Queued", number: true, order: "outbox_bytes", cell: client => bytes(client.outbox_bytes + client.aside_bytes)},
    {name: "Dropped", number: true, order: "messages_dropped", cell: client => count(client.messages_dropped)},
    {name: "Subs", number: true, order: "subscriptions", spare: true, cell: client => count(client.subscriptions)},
    {name: "Services", number: true, order: "services", spare: true, cell: client => count(client.services)},
    {name: "", cell: client => client.node ? html`<a href=${to(["cluster"])}>Cluster</a>` : html`<${Button} tone="quiet small" label=${`Disconnect ${client.name || client.client}`} onClick=${() => close(client)}>Disconnect…<//>`},
  ];
  return html`
    <${Head} title="Clients" note=${value && plural(value.total, "connection")} actions=${html`<${Search} label="Search clients" placeholder="Search name or number" value=${search} onInput=${(/** @type {string} */ text) => refine({search: text, skip: ""})} />`} />
    <${Trouble} error=${error} />
    ${value && html`<${Card}>
      <${Table} label="Clients" columns=${columns} rows=${value.connections} order=${by} onOrder=${(/** @type {string} */ name) => refine({order: name || "name", skip: ""})} keyOf=${(/** @type {any} */ client) => String(client.client)} empty="No client matches." />
      <${Pager} skip=${Number(skip)} most=${MOST} total=${value.total} onSkip=${(/** @type {number} */ next) => refine({skip: next})} />
    <//>`}`;
}
