// @ts-check
/** Icons of the navigation, as lines on a grid of 20 by 20. */

import {html} from "../lib/html.js";

/** @type {Record<string, string>} */
const PATHS = {
  logo: "M3 7h14M3 13h14M8 7a1.6 1.6 0 1 0-3.2 0 1.6 1.6 0 0 0 3.2 0M15.2 13a1.6 1.6 0 1 0-3.2 0 1.6 1.6 0 0 0 3.2 0",
  overview: "M3 16V9M8 16V4M13 16v-5M18 16V7",
  topics: "M4 4v12M4 7h6M4 13h6M13 7h3M13 13h3",
  streams: "M3 5h14M3 10h14M3 15h9",
  channels: "M3 6h7l3 4h4M3 14h7l3-4",
  services: "M5 4h10v4H5zM5 12h10v4H5zM8 6h0M8 14h0",
  clients: "M10 9.5a3 3 0 1 0 0-6 3 3 0 0 0 0 6M4 17c.6-3.4 3-5 6-5s5.400 1.600 6 5",
  cluster: "M10 3.500v3M5 14l3-3M15 14l-3-3M12 9a2 2 0 1 1-4 0 2 2 0 0 1 4 0M6 15.500a1.500 1.500 0 1 1-3 0 1.500 1.500 0 0 1 3 0M17 15.500a1.500 1.500 0 1 1-3 0 1.500 1.500 0 0 1 3 0M11 3a1 1 0 1 1-2 0 1 1 0 0 1 2 0",
  users: "M10 3l6 2.500v4c0 4-2.600 6.300-6 7.500-3.400-1.200-6-3.500-6-7.500v-4zM7.500 10l2 2 3.500-4",
  publish: "M3 10l14-6-4 13-3.500-5zM9.500 12L17 4",
  menu: "M3 5h14M3 10h14M3 15h14",
  system: "M4 4h12v9H4zM8 17h4M10 13v4",
  light: "M10 13.500a3.500 3.500 0 1 0 0-7 3.500 3.500 0 0 0 0 7M10 2v1.500M10 16.500V18M2 10h1.500M16.500 10H18M4.300 4.300l1 1M14.700 14.700l1 1M4.300 15.700l1-1M14.700 5.300l1-1",
  dark: "M16 12A6.500 6.500 0 0 1 8 4a6.500 6.500 0 1 0 8 8",
};

/** @param {string} name */
export function icon(name) {
  return html`<svg class="icon" viewBox="0 0 20 20" aria-hidden="true"><path d=${PATHS[name] || PATHS.overview} /></svg>`;
}
