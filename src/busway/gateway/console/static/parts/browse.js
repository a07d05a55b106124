// @ts-check
/** Stored messages of a stream, page by page: by offset, time, topic, field and text; and the replay of a range. */

import {useEffect, useState} from "preact/hooks";
import {address} from "../lib/address.js";
import {follow, run} from "../lib/bus.js";
import {count, fieldTime, moment, plural} from "../lib/format.js";
import {html} from "../lib/html.js";
import {route} from "../lib/route.js";
import {readSnippets} from "../lib/snippets.js";
import {act, Drawer} from "./dialog.js";
import {MessageDrawer, messageColumns} from "./message.js";
import {Table} from "./table.js";
import {ruleList} from "./tail.js";
import {Button, Card, CopyAs, Labelled, Trouble} from "./widgets.js";

const COUNT = 50;

/** @typedef {{rows: any[], begin: number, end: number, first: number, next: number}} Page */

/** @param {{stream: any}} props */
export function Browse({stream}) {
  const [form, setForm] = useState({
    pattern: route.value.query.pattern || "**", rules: "", text: "", from: route.value.query.offset ? "offset" : "newest",
    offset: route.value.query.offset || "", time: "", broker: "",
  });
  const [page, setPage] = useState(/** @type {Page | null} */ (null));
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const [picked, setPicked] = useState(/** @type {any} */ (null));
  const [replaying, setReplaying] = useState(false);
  const filter = {stream: stream.name, broker: form.broker || null, pattern: form.pattern.trim() || "**", where: ruleList(form.rules), text: form.text};

  /** @param {any} place */
  const load = async place => {
    setBusy(true);
    setError("");
    try {
      setPage(await run("page", {...filter, count: COUNT, ...place}));
    } catch (wrong) {
      setError(/** @type {Error} */ (wrong).message);
    }
    setBusy(false);
  };
  const start = () => {
    if (form.from === "offset") return load({offset: Number(form.offset) || 0, back: false});
    if (form.from === "time") return load({time: new Date(form.time).getTime() || Date.now(), back: false});
    return load({back: form.from === "newest"});
  };
  useEffect(() => { start(); }, [stream.name]);
  /** @param {string} name */
  const input = name => (/** @type {any} */ event) => setForm(before => ({...before, [name]: event.target.value}));
  /** @param {any} event */
  const chooseFrom = event => setForm(before => ({...before, from: event.target.value, time: before.time || fieldTime(Date.now() - 300_000)}));
  /** @param {Event} event */
  const submit = event => {
    event.preventDefault();
    start();
  };
  const shown = page ? page.rows.toReversed() : [];
  const others = stream.parts.filter((/** @type {any} */ part) => part.broker);
  return html`<${Card} title="Stored messages" actions=${html`
      <${Button} tone="quiet small" onClick=${() => setReplaying(true)}>Replay a range…<//>
      <${CopyAs} snippets=${() => readSnippets({...filter, begin: page?.begin || 0}, address())} />`}>
    <form class="form browse-form" onSubmit=${submit}>
      <${Labelled} label="From">
        <select name="from" value=${form.from} onChange=${chooseFrom}>
          <option value="newest">the newest</option><option value="oldest">the oldest</option>
          <option value="time">a time</option><option value="offset">an offset</option>
        </select><//>
      ${form.from === "time" && html`<${Labelled} label="Time"><input type="datetime-local" step="1" name="time" value=${form.time} onInput=${input("time")} /><//>`}
      ${form.from === "offset" && html`<${Labelled} label="Offset"><input type="number" min="0" name="offset" value=${form.offset} onInput=${input("offset")} /><//>`}
      <${Labelled} label="Topic pattern"><input class="mono" name="pattern" value=${form.pattern} spellcheck="false" onInput=${input("pattern")} /><//>
      <${Labelled} label="Field rules"><input class="mono" name="rules" value=${form.rules} placeholder="venue=krk" spellcheck="false" onInput=${input("rules")} /><//>
      <${Labelled} label="Payload contains"><input name="text" value=${form.text} spellcheck="false" onInput=${input("text")} /><//>
      ${others.length > 1 && html`<${Labelled} label="Node"><select name="broker" value=${form.broker} onChange=${input("broker")}>
        ${others.map((/** @type {any} */ part, /** @type {number} */ at) => html`<option value=${at ? part.broker : ""}>${part.node}</option>`)}</select><//>`}
      <div><button class="button main" type="submit" disabled=${busy}>${busy ? "Searching…" : "Show"}</button></div>
    </form>
    <${Trouble} error=${error} />
    ${page && html`
      <nav class="pager browse-pager" aria-label="Pages of messages">
        <span>${where(page)}</span>
        <button type="button" class="button quiet small" disabled=${busy || page.end >= page.next} onClick=${() => load({offset: page.end, back: false})}>Newer</button>
        <button type="button" class="button quiet small" disabled=${busy || page.begin <= page.first} onClick=${() => load({offset: page.begin, back: true})}>Older</button>
      </nav>
      <${Table} label="Stored messages" columns=${messageColumns({stored: true})} rows=${shown} keyOf=${(/** @type {any} */ row) => String(row.offset)} onRow=${setPicked} tall=${true} empty=${nothing(page)} />`}
    ${picked && html`<${MessageDrawer} message=${picked} onClose=${() => setPicked(null)} />`}
    ${replaying && html`<${ReplayDrawer} filter=${filter} page=${page} onClose=${() => setReplaying(false)} />`}
  <//>`;
}

/** @param {Page} page */
function where({rows, begin, end}) {
  if (!rows.length) return `searched offsets ${count(begin)} to ${count(end)}`;
  return `${plural(rows.length, "message")}, ${moment(rows[0].time)} to ${moment(rows[rows.length - 1].time)}`;
}

/** @param {Page} page */
function nothing({begin, end, first, next}) {
  if (first >= next) return "The stream is empty.";
  return begin <= first && end >= next ? "No stored message matches." : "No message in this range matches. Search on with Older or Newer.";
}

/** @param {{filter: any, page: Page | null, onClose: () => void}} props */
function ReplayDrawer({filter, page, onClose}) {
  const rows = page?.rows || [];
  const [form, setForm] = useState({
    begin: String(rows[0]?.offset ?? page?.begin ?? 0), end: String((rows[rows.length - 1]?.offset ?? 0) + 1), topic: "", durable: false,
  });
  const [done, setDone] = useState("");
  /** @param {string} name */
  const input = name => (/** @type {any} */ event) => setForm(before => ({...before, [name]: event.target.value}));
  const replay = async () => {
    const question = {...filter, begin: Number(form.begin), end: Number(form.end), topic: form.topic.trim(), durable: form.durable};
    const ended = await act(
      () => follow("replay", question, progress => setDone(`${plural(progress.replayed, "message")} so far`)),
      result => `${plural(result.replayed, "message")} published again${result.complete ? "" : `, the most at a time: continue after the last one`}`,
    );
    if (ended) onClose();
  };
  return html`<${Drawer} title="Replay a range" onClose=${onClose}>
    <p class="muted">Publishes the messages of a range of offsets that match the filter again, in their order.</p>
    <div class="form replay-form">
      <${Labelled} label="First offset"><input type="number" min="0" name="begin" value=${form.begin} onInput=${input("begin")} /><//>
      <${Labelled} label="Before offset"><input type="number" min="0" name="end" value=${form.end} onInput=${input("end")} /><//>
      <${Labelled} label="To topic" class="whole" hint="Empty: the topic of each message."><input class="mono" name="topic" value=${form.topic} spellcheck="false" onInput=${input("topic")} /><//>
      <label class="check whole"><input type="checkbox" checked=${form.durable} onChange=${(/** @type {any} */ event) => setForm(before => ({...before, durable: event.target.checked}))} /> Store them again (durable)</label>
    </div>
    <div class="actions"><${Button} tone="main" onClick=${replay}>Replay<//><span class="muted" role="status">${done}</span></div>
  <//>`;
}
