// @ts-check
/** Live charts over the last ten minutes, drawn by uPlot, with the current values in their heading. */

import {useEffect, useRef} from "preact/hooks";
import uPlot from "uplot";
import {html} from "../lib/html.js";
import {dark} from "../lib/theme.js";

/** @typedef {{name: string, values: (number | null)[], tone: "one" | "two" | "three" | "bad", fill?: boolean}} Line */

const LONGEST = 600;
const SHORTEST = 60;
const BINARY = Array.from({length: 40}, (_, power) => 2 ** power);
const STYLES = getComputedStyle(document.documentElement);

/** @param {string} name */
function color(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/**
 * @param {{title: string, times: number[], lines: Line[], shown: (value: number | null) => string, least?: number, binary?: boolean, note?: import("preact").ComponentChildren, height?: number}} props
 */
export function Chart({title, times, lines, shown, least = 1, binary = false, note, height = 150}) {
  const room = useRef(/** @type {HTMLDivElement | null} */ (null));
  const chart = useRef(/** @type {any} */ (null));
  const format = useRef(shown);
  format.current = shown;
  const names = lines.map(line => `${line.name} ${line.tone}`).join(",");

  useEffect(() => {
    const place = room.current;
    if (!place) return undefined;
    const made = new uPlot(options(lines, () => format.current, place.clientWidth, height, least, binary), [[], ...lines.map(() => [])], place);
    chart.current = made;
    const resize = new ResizeObserver(() => {
      if (place.clientWidth) made.setSize({width: place.clientWidth, height});
    });
    resize.observe(place);
    return () => {
      resize.disconnect();
      made.destroy();
      chart.current = null;
    };
  }, [names, dark.value, height]);

  useEffect(() => {
    const end = times.length ? times[times.length - 1] : Date.now() / 1000;
    chart.current?.setData([times, ...lines.map(line => line.values)], false);
    const span = times.length ? Math.min(Math.max(end - times[0], SHORTEST), LONGEST) : LONGEST;
    chart.current?.setScale("x", {min: end - span, max: end});
  }, [times, names, dark.value, height]);

  const last = lines.map(line => ({...line, now: lastOf(line.values)}));
  const spoken = `${title}: ${last.map(line => `${line.name} ${shown(line.now)}`).join(", ")}`;
  return html`<figure class="chart">
    <figcaption>
      <span class="chart-title">${title}</span>
      <span class="legend">${last.map(line => html`<span><i class="key ${line.tone}"></i>${line.name} <b>${shown(line.now)}</b></span>`)}</span>
    </figcaption>
    <div ref=${room} class="plot" role="img" aria-label=${spoken} style=${{height: `${height}px`}}></div>
    ${note && html`<p class="chart-note">${note}</p>`}
  </figure>`;
}

/** @param {(number | null)[]} values */
function lastOf(values) {
  for (let at = values.length - 1; at >= 0 && at > values.length - 5; at -= 1) {
    if (values[at] !== null && values[at] !== undefined) return values[at];
  }
  return null;
}

/**
 * @param {Line[]} lines @param {() => (value: number | null) => string} format
 * @param {number} width @param {number} height @param {number} least @param {boolean} binary
 */
function options(lines, format, width, height, least, binary) {
  const [muted, grid] = [color("muted"), color("line")];
  const font = `11px ${STYLES.getPropertyValue("--font") || "sans-serif"}`;
  const axis = {stroke: muted, grid: {stroke: grid, width: 1}, ticks: {show: false}, font};
  const hours = [[60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]];
  return {
    width: width || 300,
    height,
    padding: [8, 6, 0, 0],
    legend: {show: false},
    cursor: {drag: {x: false, y: false}, points: {size: 6}},
    scales: {x: {time: true}, y: {range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number | null} */ most) => [0, Math.max((most || 0) * 1.15, least)]}},
    axes: [
      {...axis, space: 70, size: 24, grid: {show: false}, values: hours},
      {...axis, size: binary ? 68 : 52, space: 32, ...(binary ? {incrs: BINARY} : {}), values: (/** @type {any} */ _, /** @type {number[]} */ splits) => splits.map(split => format()(split))},
    ],
    series: [{}, ...lines.map(line => ({
      stroke: color(`chart-${line.tone}`),
      fill: line.fill === false ? undefined : color(`chart-${line.tone}-fill`),
      width: 1.5,
      points: {show: false},
      spanGaps: false,
    }))],
  };
}
