// @ts-check
/** Tables: rows that may be links, columns that order them, a search field and pages. */

import {html} from "../lib/html.js";
import {count} from "../lib/format.js";
import {Empty} from "./widgets.js";

/** @typedef {import("preact").ComponentChildren} Children */
/**
 * @template T
 * @typedef {object} Column
 * @property {string} name
 * @property {(row: T) => Children} cell
 * @property {string} [order] the figure by which a click on the title orders the rows
 * @property {boolean} [number] right-aligned
 * @property {boolean} [wide] takes the room that is left
 * @property {boolean} [spare] left out on a narrow screen
 * @property {string} [hint]
 */

/**
 * @template T
 * @param {{
 *   label: string, columns: Column<T>[], rows: T[], empty?: Children, order?: string,
 *   onOrder?: (order: string) => void, keyOf?: (row: T) => string, onRow?: (row: T) => void, chosen?: string, tall?: boolean,
 * }} props
 */
export function Table({label, columns, rows, empty = "There is nothing here.", order, onOrder, keyOf, onRow, chosen, tall}) {
  if (!rows.length) return html`<${Empty}>${empty}<//>`;
  return html`<div class="table-room ${tall ? "tall" : ""}" tabindex="0" role="region" aria-label=${label}>
    <table>
      <caption class="unseen">${label}</caption>
      <thead><tr>${columns.map(column => html`<${Title} column=${column} order=${order} onOrder=${onOrder} />`)}</tr></thead>
      <tbody>${rows.map(row => html`<${Row} key=${keyOf?.(row)} row=${row} columns=${columns} onRow=${onRow} chosen=${!!chosen && keyOf?.(row) === chosen} />`)}</tbody>
    </table>
  </div>`;
}

/** @param {{column: Column<any>, order?: string, onOrder?: (order: string) => void}} props */
function Title({column, order, onOrder}) {
  const chosen = column.order !== undefined && column.order === order;
  const name = classes(column);
  const sort = chosen ? (column.order ? "descending" : "ascending") : undefined;
  if (column.order === undefined || !onOrder) return html`<th scope="col" class=${name} title=${column.hint}>${column.name}</th>`;
  const click = () => onOrder(/** @type {string} */ (column.order));
  return html`<th scope="col" class=${name} aria-sort=${sort} title=${column.hint}>
    <button type="button" class="order" onClick=${click}>${column.name}<span class="arrow" aria-hidden="true">${chosen ? (column.order ? "▼" : "▲") : "↕"}</span></button>
  </th>`;
}

/** @param {{row: any, columns: Column<any>[], onRow?: (row: any) => void, chosen: boolean}} props */
function Row({row, columns, onRow, chosen}) {
  const cells = columns.map(column => html`<td class=${classes(column)}>${column.cell(row)}</td>`);
  if (!onRow) return html`<tr>${cells}</tr>`;
  /** @param {KeyboardEvent} event */
  const key = event => {
    if (event.key === "Enter" && event.target === event.currentTarget) onRow(row);
  };
  return html`<tr class="pick ${chosen ? "chosen" : ""}" tabindex="0" onClick=${() => onRow(row)} onKeyDown=${key}>${cells}</tr>`;
}

/** @param {Column<any>} column */
function classes(column) {
  return [column.number && "number", column.wide && "wide", column.spare && "spare"].filter(Boolean).join(" ");
}

/**
 * A field that filters a list.
 * @param {{value: string, onInput: (text: string) => void, label: string, placeholder?: string}} props
 */
export function Search({value, onInput, label, placeholder}) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  /** @param {any} event */
  const input = event => {
    const text = event.target.value;
    clearTimeout(timer);
    timer = setTimeout(() => onInput(text), 200);
  };
  return html`<input type="search" class="search" aria-label=${label} placeholder=${placeholder || "Search"} value=${value} onInput=${input} />`;
}

/**
 * Links to the next and the previous page.
 * @param {{skip: number, most: number, total: number, onSkip: (skip: number) => void}} props
 */
export function Pager({skip, most, total, onSkip}) {
  if (total <= most && !skip) return null;
  const end = Math.min(skip + most, total);
  return html`<nav class="pager" aria-label="Pages">
    <span>${count(total ? skip + 1 : 0)}–${count(end)} of ${count(total)}</span>
    <button type="button" class="button quiet small" disabled=${!skip} onClick=${() => onSkip(Math.max(skip - most, 0))}>Previous</button>
    <button type="button" class="button quiet small" disabled=${end >= total} onClick=${() => onSkip(skip + most)}>Next</button>
  </nav>`;
}
