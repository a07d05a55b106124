// @ts-check
/** Small parts of screens: cards, figures, badges, buttons, notes. */

import {useState} from "preact/hooks";
import {html} from "../lib/html.js";

/** @typedef {import("preact").ComponentChildren} Children */

/**
 * A block of a screen with a title.
 * @param {{title?: Children, actions?: Children, children?: Children, class?: string, label?: string}} props
 */
export function Card({title, actions, children, class: name = "", label}) {
  return html`<section class="card ${name}" aria-label=${label}>
    ${title && html`<header class="card-head"><h2>${title}</h2><div class="actions">${actions}</div></header>`}
    ${children}
  </section>`;
}

/**
 * The title of a screen, with a way back.
 * @param {{title: Children, back?: {href: string, text: string}, actions?: Children, note?: Children}} props
 */
export function Head({title, back, actions, note}) {
  return html`<header class="head">
    <div>
      ${back && html`<a class="back" href=${back.href}>← ${back.text}</a>`}
      <h1>${title}</h1>
      ${note && html`<p class="note">${note}</p>`}
    </div>
    <div class="actions">${actions}</div>
  </header>`;
}

/**
 * A figure with its name.
 * @param {{label: string, value: Children, note?: Children, href?: string, tone?: string}} props
 */
export function Figure({label, value, note, href, tone = ""}) {
  const body = html`<span class="figure-label">${label}</span>
    <span class="figure-value ${tone}">${value}</span>
    ${note && html`<span class="figure-note">${note}</span>`}`;
  return href ? html`<a class="figure" href=${href}>${body}</a>` : html`<div class="figure">${body}</div>`;
}

/** @param {{children: Children}} props */
export function Figures({children}) {
  return html`<div class="figures">${children}</div>`;
}

/** @param {{tone?: "ok" | "warn" | "bad" | "info" | "", children?: Children, title?: string}} props */
export function Badge({tone = "", children, title}) {
  return html`<span class="badge ${tone}" title=${title}>${children}</span>`;
}

/**
 * A button that shows that its action runs, and refuses a second click until it has ended.
 * @param {{onClick: () => unknown, children?: Children, tone?: string, disabled?: boolean, label?: string, title?: string, type?: string}} props
 */
export function Button({onClick, children, tone = "", disabled, label, title, type = "button"}) {
  const [busy, setBusy] = useState(false);
  const click = async () => {
    if (busy) return;
    setBusy(true);
    try {
      await onClick();
    } finally {
      setBusy(false);
    }
  };
  return html`<button type=${type} class="button ${tone}" disabled=${disabled || busy} aria-label=${label} title=${title} aria-busy=${busy} onClick=${click}>${children}</button>`;
}

/** What went wrong, if anything. @param {{error: string | undefined | null}} props */
export function Trouble({error}) {
  return error ? html`<p class="trouble" role="alert">${error}</p>` : null;
}

/** @param {{children: Children}} props */
export function Empty({children}) {
  return html`<p class="empty">${children}</p>`;
}

/**
 * A field with its name above.
 * @param {{label: string, children: Children, hint?: Children, class?: string}} props
 */
export function Labelled({label, children, hint, class: name = ""}) {
  return html`<label class="labelled ${name}"><span>${label}</span>${children}${hint && html`<small>${hint}</small>`}</label>`;
}

/**
 * Names and values in two columns.
 * @param {{pairs: [Children, Children][]}} props
 */
export function Pairs({pairs}) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return html`<dl class="pairs">${shown.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/**
 * A choice of one among few.
 * @param {{label: string, options: [string, string][], value: string, onChange: (value: string) => void}} props
 */
export function Choice({label, options, value, onChange}) {
  return html`<div class="choice" role="group" aria-label=${label}>
    ${options.map(([key, text]) => html`<button type="button" aria-pressed=${key === value} class=${key === value ? "chosen" : ""} onClick=${() => onChange(key)}>${text}</button>`)}
  </div>`;
}

/** A menu of texts to copy. @param {{snippets: () => Record<string, string>}} props */
export function CopyAs({snippets}) {
  const [copied, setCopied] = useState("");
  /** @param {string} name @param {string} text */
  const copy = async (name, text) => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(`${name} copied`);
    } catch {
      setCopied("select the text to copy it");
    }
  };
  return html`<details class="copy" onToggle=${() => setCopied("")}>
    <summary class="button quiet">Copy as…</summary>
    <div class="copy-menu">
      ${Object.entries(snippets()).map(([name, text]) => html`<div class="copy-item">
        <div class="copy-head"><strong>${name}</strong><button type="button" class="button quiet small" aria-label=${`Copy as ${name}`} onClick=${() => copy(name, text)}>Copy</button></div>
        <pre tabindex="0">${text}</pre>
      </div>`)}
      <p class="copied" role="status">${copied}</p>
    </div>
  </details>`;
}
