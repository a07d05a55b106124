// @ts-check
/** Seek: moves a channel to another position, also by time, after a question. */

import {useState} from "preact/hooks";
import {ask} from "../lib/bus.js";
import {count, fieldTime, plural} from "../lib/format.js";
import {html} from "../lib/html.js";
import {act, confirm, Drawer} from "./dialog.js";
import {Button, Labelled} from "./widgets.js";

/** @param {{channel: any, refresh: () => void}} props */
export function Seek({channel, refresh}) {
  const [open, setOpen] = useState(false);
  return html`<${Button} onClick=${() => setOpen(true)}>Seek…<//>
    ${open && html`<${SeekDrawer} channel=${channel} refresh=${refresh} onClose=${() => setOpen(false)} />`}`;
}

/** @param {{channel: any, refresh: () => void, onClose: () => void}} props */
function SeekDrawer({channel, refresh, onClose}) {
  const {stream, name} = channel;
  const [kind, setKind] = useState("last");
  const [time, setTime] = useState(fieldTime(Date.now() - 3_600_000));
  const [offset, setOffset] = useState(String(channel.floor));
  /** @returns {[string, any]} */
  const start = () => {
    if (kind === "time") return ["time", new Date(time).getTime() * 1_000_000];
    if (kind === "offset") return ["offset", Number(offset)];
    return [kind, null];
  };
  const seek = async () => {
    const text = html`<p>Messages between the old and the new position are ${kind === "last" ? "skipped: consumers never get them" : "delivered again or skipped"}. Messages in flight are forgotten.</p>`;
    if (!await confirm({title: `Move the channel ${name}?`, text, action: "Move", name, destructive: true})) return;
    const done = await act(() => ask("$bus/channel/seek", {stream, channel: name, start: start()}), ({offset: at, parts}) =>
      `${stream}/${name} continues at offset ${count(at)}${Object.keys(parts).length > 1 ? ` here, and at ${plural(Object.keys(parts).length, "node")} in all` : ""}`);
    if (done) {
      refresh();
      onClose();
    }
  };
  return html`<${Drawer} title=${`Seek ${stream}/${name}`} onClose=${onClose}>
    <p class="muted">Completed below ${count(channel.floor)}, delivered below ${count(channel.cursor)}.</p>
    <div class="form seek-form">
      <${Labelled} label="Continue at"><select name="kind" value=${kind} onChange=${(/** @type {any} */ event) => setKind(event.target.value)}>
        <option value="last">the end: skip all stored messages</option>
        <option value="first">the first message: deliver all again</option>
        <option value="time">a time</option>
        <option value="offset">an offset of this node</option>
      </select><//>
      ${kind === "time" && html`<${Labelled} label="Time"><input type="datetime-local" step="1" name="time" value=${time} onInput=${(/** @type {any} */ event) => setTime(event.target.value)} /><//>`}
      ${kind === "offset" && html`<${Labelled} label="Offset"><input type="number" min="0" name="offset" value=${offset} onInput=${(/** @type {any} */ event) => setOffset(event.target.value)} /><//>`}
    </div>
    <div class="actions"><${Button} tone="bad" onClick=${seek}>Move…<//></div>
  <//>`;
}
