// @ts-check
/** Publish: a message with fields, stored, delayed or retained. */

import {useState} from "preact/hooks";
import {address} from "../lib/address.js";
import {run} from "../lib/bus.js";
import {count, plural} from "../lib/format.js";
import {html} from "../lib/html.js";
import {route, to} from "../lib/route.js";
import {publishSnippets} from "../lib/snippets.js";
import {act} from "../parts/dialog.js";
import {Button, Card, Choice, CopyAs, Head, Labelled} from "../parts/widgets.js";

/** @type {[string, string, string][]} Kind, title, explanation. */
const KINDS = [
  ["publish", "Publish", "To all current subscribers. Nothing is stored."],
  ["durable", "Durable", "Stored in the stream of the topic, and delivered to subscribers and channels."],
  ["pin", "Retained", "Kept for new subscribers until it is unpinned, or replaced by a pin of the console on the same topic."],
  ["unpin", "Unpin", "Removes the retained message of the console on this topic with these fields."],
  ["push", "Push", "To exactly one subscriber that accepts it."],
];

export function PublishScreen() {
  const {topic: given = "", text: payload = "", fields: pairs = ""} = route.value.query;
  const [topic, setTopic] = useState(given);
  const [text, setText] = useState(payload);
  const [fields, setFields] = useState(pairs);
  const [kind, setKind] = useState("publish");
  const [delay, setDelay] = useState("");
  const [expires, setExpires] = useState("");
  const [last, setLast] = useState(/** @type {any} */ (null));
  const rules = fields.split("\n").map(line => line.trim()).filter(Boolean);
  const publish = async () => {
    const times = kind === "durable" ? {delay: Number(delay) || null, expires: Number(expires) || null} : {};
    /** @type {any} */
    let result = null;
    await act(async () => { result = await run("publish", {topic: topic.trim(), text, fields: rules, kind, ...times}); return result; }, told(kind, topic));
    setLast(result);
  };
  /** @param {Event} event */
  const submit = event => {
    event.preventDefault();
    publish();
  };
  /** @param {(text: string) => void} set */
  const input = set => (/** @type {any} */ event) => set(event.target.value);
  return html`
    <${Head} title="Publish" note="Send one message to the bus." />
    <${Card} class="publish-card" actions=${null}>
      <form class="form publish-form" onSubmit=${submit}>
        <div class="whole"><${Choice} label="Kind" options=${KINDS.map(([name, title]) => /** @type {[string, string]} */ ([name, title]))} value=${kind} onChange=${setKind} /><p class="muted kind-note">${KINDS.find(([name]) => name === kind)?.[2]}</p></div>
        <${Labelled} label="Topic" class="whole"><input class="mono" name="topic" required value=${topic} spellcheck="false" placeholder="price/eth/eur" onInput=${input(setTopic)} /><//>
        <${Labelled} label="Payload" class="whole" hint=${`${count(new TextEncoder().encode(text).length)} bytes`}><textarea name="payload" rows="8" spellcheck="false" value=${text} onInput=${input(setText)}></textarea><//>
        <${Labelled} label="Fields" class="whole" hint="One name=value on each line. A value that is JSON keeps its type."><textarea name="fields" rows="3" spellcheck="false" placeholder="venue=krk" value=${fields} onInput=${input(setFields)}></textarea><//>
        ${kind === "durable" && html`
          <${Labelled} label="Deliver after (seconds)"><input type="number" name="delay" min="0" step="any" value=${delay} onInput=${input(setDelay)} /><//>
          <${Labelled} label="Expires after (seconds)"><input type="number" name="expires" min="0" step="any" value=${expires} onInput=${input(setExpires)} /><//>`}
        <div class="actions whole">
          <${Button} tone="main" type="submit" disabled=${!topic.trim()} onClick=${publish}>${KINDS.find(([name]) => name === kind)?.[1]}<//>
          <${CopyAs} snippets=${() => publishSnippets({topic: topic.trim(), text, fields: rules, kind}, address())} />
          ${last?.stream && html`<a href=${to(["streams", last.stream], {offset: last.offset})}>Stored in ${last.stream} at offset ${count(last.offset)}</a>`}
        </div>
      </form>
    <//>`;
}

/** @param {string} kind @param {string} topic */
function told(kind, topic) {
  return (/** @type {any} */ result) => {
    if (result.stream) return `stored in ${result.stream} at offset ${count(result.offset)}`;
    if (kind === "pin") return `${topic} retains the message`;
    if (kind === "unpin") return result.removed ? `${topic} retains it no longer` : `the console retains nothing on ${topic} with these fields`;
    if (kind === "push") return "accepted by one subscriber";
    return result.receivers ? `delivered to ${plural(result.receivers, "connection")}` : "nobody subscribes to this topic, so nobody got it";
  };
}
