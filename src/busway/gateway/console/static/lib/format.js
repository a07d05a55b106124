// @ts-check
/** Numbers, sizes and times as people read them. Times are in the time zone of the browser. */

const WHOLE = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
const SHORT = new Intl.NumberFormat("en", {notation: "compact", maximumFractionDigits: 1});
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** A count with separators: 12,345. @param {number | null | undefined} value */
export function count(value) {
  return value === null || value === undefined || Number.isNaN(value) ? "–" : WHOLE.format(value);
}

/** A count in few characters: 12.3K. @param {number | null | undefined} value */
export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return Math.abs(value) < 10_000 ? WHOLE.format(value) : SHORT.format(value);
}

/** A number per second. @param {number | null | undefined} value */
export function rate(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0/s";
  if (value < 0.1) return "<0.1/s";
  return `${value < 10 ? value.toFixed(1) : short(Math.round(value))}/s`;
}

/** A number of bytes: 1.5 MiB. @param {number | null | undefined} value */
export function bytes(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  let unit = 0;
  let size = value;
  while (Math.abs(size) >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit && size < 100 ? size.toFixed(1) : Math.round(size)} ${UNITS[unit]}`;
}

/** Seconds as a duration: 3 h 5 min. @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? Number(seconds.toFixed(1)) : Math.round(seconds)} s`;
  if (seconds < 3600) return pair(seconds, 60, "min", 1, "s");
  if (seconds < 86400) return pair(seconds, 3600, "h", 60, "min");
  return pair(seconds, 86400, "d", 3600, "h");
}

/** @param {number} seconds @param {number} large @param {string} first @param {number} small @param {string} second */
function pair(seconds, large, first, small, second) {
  const whole = Math.floor(seconds / large);
  const rest = Math.floor((seconds - whole * large) / small);
  return rest ? `${whole} ${first} ${rest} ${second}` : `${whole} ${first}`;
}

const CLOCK = new Intl.DateTimeFormat(undefined, {hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23"});
const DAY = new Intl.DateTimeFormat(undefined, {year: "numeric", month: "2-digit", day: "2-digit"});
const ZONE = new Intl.DateTimeFormat(undefined, {timeZoneName: "short"});

/** The time of day, with milliseconds. @param {number} ms */
export function clock(ms) {
  return `${CLOCK.format(ms)}.${String(Math.floor(ms % 1000)).padStart(3, "0")}`;
}

/** Day and time; only the time if it is today. @param {number | null | undefined} ms */
export function moment(ms) {
  if (!ms) return "–";
  const day = DAY.format(ms);
  return day === DAY.format(Date.now()) ? clock(ms) : `${day} ${clock(ms)}`;
}

/** Day, time and zone. @param {number | null | undefined} ms */
export function whole(ms) {
  if (!ms) return "–";
  const zone = ZONE.formatToParts(ms).find(part => part.type === "timeZoneName");
  return `${DAY.format(ms)} ${clock(ms)} ${zone ? zone.value : ""}`;
}

/** How long ago: 5 s ago. @param {number | null | undefined} ms */
export function ago(ms) {
  return ms ? `${duration(Math.max(Math.round((Date.now() - ms) / 1000), 0))} ago` : "–";
}

/** One noun or several: 1 message, 2 messages. @param {number} number @param {string} one @param {string} [many] */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** Milliseconds as the value of a field for date and time. @param {number} ms */
export function fieldTime(ms) {
  const local = new Date(ms - new Date(ms).getTimezoneOffset() * 60_000);
  return local.toISOString().slice(0, 19);
}
