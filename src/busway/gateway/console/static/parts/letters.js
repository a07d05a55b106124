// @ts-check
/** Dead letters of a channel: the messages that failed too often, why, and how to send them back. */

import {useState} from "preact/hooks";
import {run} from "../lib/bus.js";
import {preview} from "../lib/decode.js";
import {count, moment, plural, whole} from "../lib/format.js";
import {html} from "../lib/html.js";
import {usePoll} from "../lib/poll.js";
import {to} from "../lib/route.js";
import {act, confirm, Drawer} from "./dialog.js";
import {fieldText, Payload} from "./message.js";
import {Search, Table} from "./table.js";
import {Badge, Button, Card, Pairs, Trouble} from "./widgets.js";

const MOST = 100;

/** @param {{channel: any, refresh: () => void}} props */
export function Letters({channel, refresh}) {
  const {stream, name} = channel;
  const [reason, setReason] = useState("");
  const [redriven, setRedriven] = useState(false);
  const [picked, setPicked] = useState(/** @type {any} */ (null));
  const question = {stream, channel: name, reason, redriven, most: MOST};
  const letters = usePoll(async () => (await run("letters", question)).letters, 0, [stream, name, reason, redriven, channel.dead]);
  const rows = letters.value || [];
  const open = rows.filter((/** @type {any} */ letter) => !letter.redriven && !letter.gone);

  /** @param {string[] | null} ids */
  const redrive = async ids => {
    if (!ids) {
      const text = html`<p>All dead letters ${reason ? html`whose reason contains <b>${reason}</b>` : ""} go back to the channel, which delivers them before new messages.</p>`;
      if (!await confirm({title: `Redrive the dead letters of ${name}?`, text, action: "Redrive", name})) return;
    }
    await act(() => run("redrive", {...question, ids}), result => [
      `${plural(result.redriven, "dead letter")} sent back`,
      result.before && `${count(result.before)} were sent back before`,
      result.gone && `${count(result.gone)} are gone from the stream`,
      result.left && `${count(result.left)} could not be sent back now: try again`,
    ].filter(Boolean).join("; "));
    setPicked(null);
    letters.refresh();
    refresh();
  };
  /** @type {import("./table.js").Column<any>[]} */
  const columns = [
    {name: "Failed", cell: letter => html`<time title=${whole(letter.died)}>${moment(letter.died)}</time>`},
    {name: "Reason", wide: true, cell: letter => html`${letter.reason || "–"}${letter.error && html` <${Badge} tone="bad">${letter.error}<//>`}${letter.redriven && html` <${Badge} tone="ok">redriven<//>`}${letter.gone && html` <${Badge}>gone<//>`}`},
    {name: "Topic", cell: letter => html`<code class="topic">${letter.topic}</code>`},
    {name: "Offset", number: true, spare: true, cell: letter => count(letter.offset)},
    {name: "Deliveries", number: true, spare: true, cell: letter => count(letter.deliveries)},
    {name: "Payload", spare: true, cell: letter => html`<code class="payload letter-payload">${preview(letter).slice(0, 80)}</code>`},
  ];
  if (!rows.length && !channel.dead && !reason && !redriven) {
    return letters.error ? html`<${Card} title="Dead letters"><${Trouble} error=${letters.error} /><//>` : null;
  }
  return html`<${Card} title="Dead letters" actions=${html`
      <label class="check"><input type="checkbox" checked=${redriven} onChange=${(/** @type {any} */ event) => setRedriven(event.target.checked)} /> redriven, too</label>
      <${Search} label="Search reasons" placeholder="Search reason" value=${reason} onInput=${setReason} />
      <${Button} disabled=${!open.length} onClick=${() => redrive(null)}>Redrive all…<//>`}>
    <${Trouble} error=${letters.error} />
    <${Table} label="Dead letters" columns=${columns} rows=${rows} keyOf=${(/** @type {any} */ letter) => letter.id} onRow=${setPicked} tall=${true} empty=${letters.value ? "No dead letter is left here." : "Loading…"} />
    ${rows.length === MOST && html`<p class="muted table-note">The last ${count(MOST)} are listed.</p>`}
    ${picked && html`<${LetterDrawer} letter=${picked} redrive=${redrive} onClose=${() => setPicked(null)} />`}
  <//>`;
}

/** @param {{letter: any, redrive: (ids: string[]) => Promise<void>, onClose: () => void}} props */
function LetterDrawer({letter, redrive, onClose}) {
  return html`<${Drawer} title="Dead letter" onClose=${onClose}>
    <${Pairs} pairs=${[
      ["Reason", html`<b>${letter.reason || "–"}</b>`],
      ["Exception", letter.error],
      ["Failed", whole(letter.died)],
      ["Deliveries", count(letter.deliveries)],
      ["Last consumer", letter.consumer],
      ["Topic", html`<a href=${to(["topics"], {path: letter.topic})}><code>${letter.topic}</code></a>`],
      ["Published", whole(letter.time)],
      ["Sender", letter.sender || "–"],
      ["Message", html`<a href=${to(["streams", letter.stream], {offset: letter.offset})}>${letter.stream}, offset ${count(letter.offset)}</a>`],
      ["State", letter.redriven ? "redriven" : letter.gone ? "gone: the stream no longer has the message" : "waits to be redriven"],
    ]} />
    ${letter.traceback && html`<h3>Traceback</h3><pre class="payload-text" tabindex="0">${letter.traceback}</pre>`}
    ${Object.keys(letter.fields).length > 0 && html`<h3>Fields</h3><${Pairs} pairs=${Object.entries(letter.fields).map(([name, value]) => [name, html`<code>${fieldText(value)}</code>`])} />`}
    <h3>Payload</h3>
    <${Payload} key=${letter.id} message=${letter} />
    <div class="actions"><${Button} tone="main" disabled=${letter.redriven || letter.gone} onClick=${() => redrive([letter.id])}>Redrive<//></div>
  <//>`;
}
