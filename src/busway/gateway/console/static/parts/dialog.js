// @ts-check
/** Questions before actions, and reports after them. A destructive action asks for the name of what it destroys. */

import {signal} from "@preact/signals";
import {useEffect, useRef, useState} from "preact/hooks";
import {html} from "../lib/html.js";

/**
 * @typedef {object} Question
 * @property {string} title
 * @property {import("preact").ComponentChildren} text
 * @property {string} action the text of the button
 * @property {string} [name] the name that the user has to write
 * @property {boolean} [destructive]
 * @property {(yes: boolean) => void} [answer]
 */

/** @type {import("@preact/signals").Signal<Question | null>} */
const question = signal(null);
/** @type {import("@preact/signals").Signal<{id: number, tone: string, text: string}[]>} */
const reports = signal([]);
let numbers = 0;
const SHOWN = {ok: 6000, bad: 15_000};

/** Ask, and return whether the user agrees. @param {Question} asked @returns {Promise<boolean>} */
export function confirm(asked) {
  return new Promise(resolve => {
    question.value = {...asked, answer: yes => { question.value = null; resolve(yes); }};
  });
}

/** Report the result of an action. @param {"ok" | "bad"} tone @param {string} text */
export function report(tone, text) {
  const id = ++numbers;
  reports.value = [...reports.value.slice(-3), {id, tone, text}];
  setTimeout(() => dismiss(id), SHOWN[tone]);
}

/** @param {number} id */
function dismiss(id) {
  reports.value = reports.value.filter(one => one.id !== id);
}

/**
 * Carry out an action, and report its result or its error.
 * @param {() => Promise<any>} action @param {(result: any) => string} done
 */
export async function act(action, done) {
  try {
    report("ok", done(await action()));
    return true;
  } catch (error) {
    report("bad", /** @type {Error} */ (error).message);
    return false;
  }
}

/** The open question and the reports; once in the page. */
export function Dialogs() {
  return html`
    ${question.value && html`<${Dialog} key=${question.value.title} asked=${question.value} />`}
    <div class="reports" role="status" aria-live="polite">
      ${reports.value.map(one => html`<div key=${one.id} class="report ${one.tone}">
        <span>${one.text}</span>
        <button type="button" class="button quiet small" aria-label="Dismiss" onClick=${() => dismiss(one.id)}>×</button>
      </div>`)}
    </div>`;
}

/** @param {{asked: Question}} props */
function Dialog({asked}) {
  const [written, setWritten] = useState("");
  const room = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    const found = room.current;
    found?.showModal();
    return () => found?.close();
  }, []);
  const ready = !asked.name || written === asked.name;
  /** @param {Event} event */
  const submit = event => {
    event.preventDefault();
    if (ready) asked.answer?.(true);
  };
  return html`<dialog ref=${room} class="dialog" aria-labelledby="dialog-title" onCancel=${() => asked.answer?.(false)}>
    <form onSubmit=${submit}>
      <h2 id="dialog-title">${asked.title}</h2>
      <div class="dialog-text">${asked.text}</div>
      ${asked.name && html`<label class="labelled"><span>Write <code>${asked.name}</code> to confirm</span>
        <input autocomplete="off" spellcheck="false" value=${written} onInput=${(/** @type {any} */ event) => setWritten(event.target.value)} /></label>`}
      <div class="dialog-actions">
        <button type="button" class="button quiet" onClick=${() => asked.answer?.(false)}>Cancel</button>
        <button type="submit" class="button ${asked.destructive ? "bad" : "main"}" disabled=${!ready}>${asked.action}</button>
      </div>
    </form>
  </dialog>`;
}

/**
 * A panel at the side, for details of a row. Escape closes it.
 * @param {{title: import("preact").ComponentChildren, onClose: () => void, children: import("preact").ComponentChildren}} props
 */
export function Drawer({title, onClose, children}) {
  const room = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    const found = room.current;
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    found?.showModal();
    return () => {
      found?.close();
      before?.focus?.();
    };
  }, []);
  /** @param {MouseEvent} event */
  const outside = event => {
    if (event.target === room.current) onClose();
  };
  return html`<dialog ref=${room} class="drawer" aria-label="Details" onClick=${outside} onCancel=${onClose}>
    <div class="drawer-room">
      <header class="drawer-head"><h2>${title}</h2><button type="button" class="button quiet" aria-label="Close" onClick=${onClose}>×</button></header>
      ${children}
    </div>
  </dialog>`;
}
