// @ts-check
/**
 * The broker's figures of the last ten minutes, from `$bus/rates`: kept by this tab and completed every second.
 *
 * Counters become rates here. A screen names the figures that it shows, and gets them for the whole time at once.
 */

import {useEffect, useState} from "preact/hooks";
import {ask, epoch} from "./bus.js";

const MOST = 600;
const EVERY = 1000;

/**
 * @typedef {object} Samples
 * @property {number[]} times seconds since 1970
 * @property {Record<string, (number | null)[]>} figures
 */

/** @type {Samples} */
const NOTHING = {times: [], figures: {}};

/**
 * The samples of these figures; without figures those of the broker as a whole.
 * @param {string[]} [figures]
 * @returns {Samples}
 */
export function useSamples(figures) {
  const [samples, setSamples] = useState(NOTHING);
  const key = figures ? figures.join("\n") : "";
  useEffect(() => {
    let live = true;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    let next = 0;
    let have = NOTHING;
    setSamples(NOTHING);
    const look = async () => {
      timer = undefined;
      if (!document.hidden) {
        try {
          const question = figures ? {since: next, figures} : {since: next};
          const found = await ask("$bus/rates", question);
          have = joined(have, next, found);
          next = found.first + found.times.length;
          if (live) setSamples(have);
        } catch {
          next = 0;
          have = NOTHING;
        }
      }
      if (live) timer = setTimeout(look, EVERY);
    };
    look();
    return () => {
      live = false;
      clearTimeout(timer);
    };
  }, [key, epoch.value]);
  return samples;
}

/** @param {Samples} before @param {number} next @param {any} found @returns {Samples} */
function joined(before, next, found) {
  if (found.first !== next || !before.times.length) return {times: found.times, figures: found.figures};
  const times = [...before.times, ...found.times].slice(-MOST);
  /** @type {Samples["figures"]} */
  const figures = {};
  for (const [name, values] of Object.entries(found.figures)) {
    const old = before.figures[name] || new Array(before.times.length).fill(null);
    figures[name] = [...old, .../** @type {(number | null)[]} */ (values)].slice(-MOST);
  }
  return {times, figures};
}

/**
 * The rate of a counter at each sample.
 * @param {Samples} samples @param {string} name @returns {(number | null)[]}
 */
export function perSecond({times, figures}, name) {
  const values = figures[name] || [];
  return times.map((time, at) => {
    const value = values[at];
    const before = at ? values[at - 1] : null;
    if (value === null || value === undefined || before === null || before === undefined) return null;
    return Math.max(value - before, 0) / Math.max(time - times[at - 1], 0.001);
  });
}

/** @param {Samples} samples @param {string} name @returns {(number | null)[]} */
export function values({times, figures}, name) {
  return figures[name] || times.map(() => null);
}

/**
 * The mean rate of a counter over the last seconds.
 * @param {Samples} samples @param {string} name @param {number} [seconds]
 */
export function meanRate({times, figures}, name, seconds = 10) {
  const all = figures[name] || [];
  const end = times.length - 1;
  let begin = end;
  while (begin > 0 && times[end] - times[begin] < seconds && isNumber(all[begin - 1])) begin -= 1;
  if (end < 1 || begin === end || !isNumber(all[end])) return null;
  return Math.max(/** @type {number} */ (all[end]) - /** @type {number} */ (all[begin]), 0) / (times[end] - times[begin]);
}

/** The last value of a figure. @param {Samples} samples @param {string} name */
export function latest({figures}, name) {
  const all = figures[name] || [];
  return all.length ? all[all.length - 1] : null;
}

/** How much a counter has grown within the samples. @param {Samples} samples @param {string} name */
export function growth({figures}, name) {
  const all = (figures[name] || []).filter(isNumber);
  return all.length ? Math.max(/** @type {number} */ (all[all.length - 1]) - /** @type {number} */ (all[0]), 0) : 0;
}

/** @param {unknown} value */
function isNumber(value) {
  return typeof value === "number";
}
