// @ts-check
/** A message: one line in a list, and all of it in a drawer with decoders for its payload. */

import {useEffect, useState} from "preact/hooks";
import {run} from "../lib/bus.js";
import {decoded, formOf, preview} from "../lib/decode.js";
import {bytes, clock, count, moment, whole} from "../lib/format.js";
import {html} from "../lib/html.js";
import {go, to} from "../lib/route.js";
import {Drawer} from "./dialog.js";
import {Badge, Button, Choice, Pairs, Trouble} from "./widgets.js";

/** @typedef {import("../lib/bus.js").Message} Message */

/** Fields in one line. @param {{fields: Record<string, any>}} props */
export function Fields({fields}) {
  const pairs = Object.entries(fields);
  return html`<span class="fields">${pairs.map(([name, value]) => html`<span class="field"><i>${name}</i>${fieldText(value)}</span>`)}</span>`;
}

/** @param {any} value */
export function fieldText(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** The columns of a list of messages. @param {{stored?: boolean}} [options] */
export function messageColumns({stored = false} = {}) {
  return [
    ...(stored ? [{name: "Offset", number: true, cell: (/** @type {Message} */ message) => html`<code>${count(message.offset)}</code>`}] : []),
    {name: "Time", cell: (/** @type {Message} */ message) => html`<time title=${whole(message.time)}>${stored ? moment(message.time) : clock(message.time)}</time>`},
    {name: "Topic", cell: (/** @type {Message} */ message) => html`<code class="topic">${message.topic}</code>${message.kind !== "publish" && html` <${Badge}>${message.kept ? "retained" : message.kind}<//>`}`},
    {name: "Sender", spare: true, cell: (/** @type {Message} */ message) => message.sender || "–"},
    {name: "Fields", spare: true, cell: (/** @type {Message} */ message) => html`<${Fields} fields=${message.fields} />`},
    {name: "Payload", wide: true, cell: (/** @type {Message} */ message) => html`<code class="payload">${preview(message)}</code>`},
    {name: "Size", number: true, spare: true, cell: (/** @type {Message} */ message) => bytes(message.size)},
  ];
}

/** A payload with a choice of decoders. @param {{message: {text?: string, base64?: string, size: number, cut: boolean}}} props */
export function Payload({message}) {
  const [form, setForm] = useState(/** @type {import("../lib/decode.js").Form} */ (formOf(message)));
  const {ok, text} = decoded(message, form);
  /** @type {[string, string][]} */
  const forms = [["json", "JSON"], ["msgpack", "MessagePack"], ["text", "Text"], ["hex", "Hex"]];
  return html`<div class="payload-view">
    <div class="payload-head">
      <${Choice} label="Decoder" options=${forms} value=${form} onChange=${setForm} />
      <span class="muted">${bytes(message.size)}</span>
      <${Button} tone="quiet small" onClick=${() => navigator.clipboard?.writeText(text)}>Copy<//>
    </div>
    <pre class="payload-text ${ok ? "" : "wrong"}" tabindex="0">${text || "(empty)"}</pre>
    ${message.cut && html`<p class="muted">The first ${bytes(message.text?.length ?? (message.base64 || "").length * 0.75)} of ${bytes(message.size)} are shown.</p>`}
  </div>`;
}

/**
 * All of a message at the side. The whole payload of a stored message is loaded.
 * @param {{message: Message, onClose: () => void}} props
 */
export function MessageDrawer({message: given, onClose}) {
  const [message, setMessage] = useState(given);
  const [error, setError] = useState("");
  const {stream, broker, offset} = given;
  useEffect(() => {
    setMessage(given);
    if (!given.cut || stream === undefined || offset === undefined) return;
    run("message", {stream, broker, offset}).then(setMessage, wrong => setError(wrong.message));
  }, [stream, broker, offset, given.id]);
  const again = () => {
    onClose();
    const fields = Object.entries(message.fields).map(([name, value]) => `${name}=${fieldText(value)}`);
    go(["publish"], {topic: message.topic, text: message.text ?? "", fields: fields.join("\n")});
  };
  const topicLink = html`<a href=${to(["topics"], {path: message.topic})}><code>${message.topic}</code></a>`;
  const place = stream !== undefined && html`<a href=${to(["streams", stream])}>${stream}</a>`;
  return html`<${Drawer} title="Message" onClose=${onClose}>
    <${Pairs} pairs=${[
      ["Topic", topicLink],
      ["Published", whole(message.time)],
      ["Stored", message.stored ? whole(message.stored) : ""],
      ["Sender", message.sender || "–"],
      ["Kind", message.kept ? `${message.kind}, retained` : message.kind],
      ["Stream", place && html`${place}, offset ${count(offset)}, sequence ${count(message.sequence)}`],
      ["Id", html`<code>${message.id}</code>`],
    ]} />
    ${Object.keys(message.fields).length > 0 && html`<h3>Fields</h3>
      <${Pairs} pairs=${Object.entries(message.fields).map(([name, value]) => [name, html`<code>${fieldText(value)}</code>`])} />`}
    <h3>Payload</h3>
    <${Trouble} error=${error} />
    <${Payload} key=${`${message.id} ${message.cut}`} message=${message} />
    <div class="actions"><${Button} tone="quiet" onClick=${again}>Publish again…<//></div>
  <//>`;
}
