// @ts-check
/** Users: who is logged in here and what it may do. */

import {hello} from "../lib/bus.js";
import {html} from "../lib/html.js";
import {Table} from "../parts/table.js";
import {Badge, Card, Head} from "../parts/widgets.js";

export function UsersScreen() {
  const rights = hello.value?.rights;
  const rows = [
    ...(rights?.deny || []).map(grant => ({grant, allowed: false})),
    ...(rights?.allow || []).map(grant => ({grant, allowed: true})),
  ];
  const columns = [
    {name: "Effect", cell: (/** @type {any} */ row) => html`<${Badge} tone=${row.allowed ? "ok" : "bad"}>${row.allowed ? "allow" : "deny"}<//>`},
    {name: "Verbs and topics", wide: true, cell: (/** @type {any} */ row) => html`<code class="grant">${row.grant}</code>`},
  ];
  return html`
    <${Head} title="Users" note="Who may do what." />
    ${rights?.everything ? html`<${Card} title="Everybody may do everything">
      <p>This broker has no users: every client that can connect may do everything. Start it with <code>--users FILE</code> to ask for a login.</p>
    <//>` : html`<${Card} title=${`Grants of ${rights?.user || "nobody"}`}>
      <${Table} label="Grants" rows=${rows} columns=${columns} empty="No grant." />
    <//>`}`;
}
