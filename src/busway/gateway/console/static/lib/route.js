// @ts-check
/** The address of the screen, in the part of the URL behind `#`: `#/channels/orders/billing?search=x`. */

import {signal} from "@preact/signals";

/** @typedef {{screen: string, path: string[], query: Record<string, string>}} Route */

/** @returns {Route} */
function current() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = (path || "").split("/").filter(Boolean).map(decodeURIComponent);
  return {screen: parts[0] || "overview", path: parts.slice(1), query: Object.fromEntries(new URLSearchParams(query))};
}

export const route = signal(current());
addEventListener("hashchange", () => {
  route.value = current();
});

/**
 * The link to a screen.
 * @param {string[]} path @param {Record<string, any>} [query]
 */
export function to(path, query = {}) {
  const some = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  const text = new URLSearchParams(some.map(([name, value]) => [name, String(value)])).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** @param {string[]} path @param {Record<string, any>} [query] */
export function go(path, query) {
  location.hash = to(path, query);
}

/**
 * Change some members of the query without a new entry in the browser's history.
 * @param {Record<string, any>} changes
 */
export function refine(changes) {
  const {screen, path, query} = route.value;
  history.replaceState(null, "", to([screen, ...path], {...query, ...changes}));
  route.value = current();
}
