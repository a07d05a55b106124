// @ts-check
/** A live tail: the messages of a pattern as they are published, as many as a person can read, and the number of others. */

import {useEffect, useRef, useState} from "preact/hooks";
import {Tail} from "../lib/bus.js";
import {count} from "../lib/format.js";
import {html} from "../lib/html.js";
import {subscribeSnippets} from "../lib/snippets.js";
import {address} from "../lib/address.js";
import {MessageDrawer, messageColumns} from "./message.js";
import {Table} from "./table.js";
import {Badge, Button, Card, CopyAs, Empty, Labelled, Trouble} from "./widgets.js";

/** @typedef {import("../lib/bus.js").Message} Message */

const KEPT = 500;
const SHOWN = 100;

/**
 * Rows of a tail, newest first, and what the broker has left out.
 * @param {{pattern: string, where: string[], text: string}} question @param {boolean} paused
 */
function useTail({pattern, where, text}, paused) {
  const [rows, setRows] = useState(/** @type {(Message & {key: number})[]} */ ([]));
  const [missed, setMissed] = useState(0);
  const [error, setError] = useState("");
  const numbers = useRef(0);
  const held = useRef(/** @type {(Message & {key: number})[]} */ ([]));
  const still = useRef(paused);
  still.current = paused;
  const key = JSON.stringify([pattern, where, text]);
  useEffect(() => {
    held.current = [];
    setRows([]);
    setMissed(0);
    setError("");
    const tail = new Tail({pattern, where, text}, found => {
      const fresh = found.rows.map(row => ({...row, key: ++numbers.current})).reverse();
      held.current = [...fresh, ...held.current].slice(0, KEPT);
      setMissed(found.missed);
      if (!still.current) setRows(held.current);
    }, setError);
    return () => tail.stop();
  }, [key]);
  useEffect(() => {
    if (!paused) setRows(held.current);
  }, [paused]);
  const clear = () => {
    held.current = [];
    setRows([]);
  };
  return {rows, missed, error, clear, received: numbers.current};
}

/**
 * @param {{pattern: string, onPattern: (pattern: string) => void}} props
 */
export function TailCard({pattern, onPattern}) {
  const [written, setWritten] = useState(pattern);
  const [rules, setRules] = useState("");
  const [text, setText] = useState("");
  const [question, setQuestion] = useState({pattern, where: /** @type {string[]} */ ([]), text: ""});
  const [paused, setPaused] = useState(false);
  const [picked, setPicked] = useState(/** @type {Message | null} */ (null));
  useEffect(() => {
    setWritten(pattern);
    setQuestion(before => ({...before, pattern}));
  }, [pattern]);
  const {rows, missed, error, clear, received} = useTail(question, paused);
  /** @param {Event} event */
  const apply = event => {
    event.preventDefault();
    setQuestion({pattern: written.trim(), where: ruleList(rules), text});
    if (written.trim() !== pattern) onPattern(written.trim());
  };
  /** @param {(text: string) => void} set */
  const input = set => (/** @type {any} */ event) => set(event.target.value);
  return html`<${Card} title="Live tail" actions=${html`
      <span class="muted" role="status">${count(received)} shown${missed ? html`, <b class="left-out">${count(missed)} left out</b>` : ""}</span>
      ${paused && html`<${Badge} tone="warn">paused<//>`}
      <${Button} tone="small" onClick=${() => setPaused(!paused)}>${paused ? "Continue" : "Pause"}<//>
      <${Button} tone="quiet small" onClick=${clear}>Clear<//>
      <${CopyAs} snippets=${() => subscribeSnippets(question, address())} />`}>
    <form class="form tail-form" onSubmit=${apply}>
      <${Labelled} label="Topic pattern"><input class="mono" name="pattern" value=${written} spellcheck="false" onInput=${input(setWritten)} /><//>
      <${Labelled} label="Field rules"><input class="mono" name="rules" value=${rules} spellcheck="false" placeholder="venue=krk, size=expr:value > 5" onInput=${input(setRules)} /><//>
      <${Labelled} label="Payload contains"><input name="text" value=${text} spellcheck="false" onInput=${input(setText)} /><//>
      <div><button class="button main" type="submit">Apply</button></div>
    </form>
    <${Trouble} error=${error} />
    ${missed > 0 && html`<p class="muted tail-note">More messages are published than a person can read: the tail shows a sample, and the broker counts the others.</p>`}
    ${rows.length ? html`<${Table} label="Messages" columns=${messageColumns()} rows=${rows.slice(0, SHOWN)} keyOf=${(/** @type {any} */ row) => String(row.key)} onRow=${setPicked} tall=${true} />`
      : html`<${Empty}>Waiting for messages that match <code>${question.pattern || "(empty)"}</code>…<//>`}
    ${picked && html`<${MessageDrawer} message=${picked} onClose=${() => setPicked(null)} />`}
  <//>`;
}

/** Rules separated by commas outside of brackets and quotes. @param {string} text */
export function ruleList(text) {
  const found = [];
  let [depth, quoted, current] = [0, false, ""];
  for (const sign of text) {
    if (sign === '"') quoted = !quoted;
    if (!quoted && "[({".includes(sign)) depth += 1;
    if (!quoted && "])}".includes(sign)) depth -= 1;
    if (sign === "," && depth <= 0 && !quoted) {
      found.push(current.trim());
      current = "";
    } else current += sign;
  }
  return [...found, current.trim()].filter(Boolean);
}
