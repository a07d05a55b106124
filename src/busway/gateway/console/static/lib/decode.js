// @ts-check
/** Decoders of payloads: JSON, MessagePack, text and hex. The payload of a message is text, or bytes in base64. */

/** @typedef {import("./bus.js").Message} Message */
/** @typedef {"json" | "msgpack" | "text" | "hex"} Form */

const DEEPEST = 64;
const HEX_ROWS = 4096;
const decoder = new TextDecoder("utf-8", {fatal: true});

/** The bytes of a payload. @param {{text?: string, base64?: string}} message */
export function payloadBytes(message) {
  if (message.text !== undefined) return new TextEncoder().encode(message.text);
  return Uint8Array.from(atob(message.base64 || ""), character => character.charCodeAt(0));
}

/**
 * The form that fits a payload best.
 * @param {{text?: string, base64?: string, cut?: boolean}} message @returns {Form}
 */
export function formOf(message) {
  if (message.text !== undefined) return /^\s*[[{"]/.test(message.text) && decoded(message, "json").ok ? "json" : "text";
  return !message.cut && decoded(message, "msgpack").ok ? "msgpack" : "hex";
}

/**
 * A payload as text for people, in a form.
 * @param {{text?: string, base64?: string, cut?: boolean}} message @param {Form} form
 * @returns {{ok: boolean, text: string}}
 */
export function decoded(message, form) {
  try {
    return {ok: true, text: shown(message, form)};
  } catch (error) {
    const cut = message.cut ? " Only its beginning is shown." : "";
    return {ok: false, text: `This payload is not ${form === "msgpack" ? "MessagePack" : form}: ${/** @type {Error} */ (error).message}.${cut}`};
  }
}

/** @param {{text?: string, base64?: string}} message @param {Form} form */
function shown(message, form) {
  switch (form) {
    case "json":
      return JSON.stringify(JSON.parse(textOf(message)), exact, 2);
    case "msgpack": {
      const data = payloadBytes(message);
      const reader = new Reader(data);
      const value = reader.value(0);
      if (reader.at !== data.length) throw new Error(`${data.length - reader.at} bytes follow the value`);
      return JSON.stringify(value, exact, 2);
    }
    case "hex":
      return hex(payloadBytes(message));
    default:
      return textOf(message);
  }
}

/** @param {{text?: string, base64?: string}} message */
function textOf(message) {
  return message.text !== undefined ? message.text : decoder.decode(payloadBytes(message));
}

/** @param {string} _ @param {any} value */
function exact(_, value) {
  return typeof value === "bigint" ? String(value) : value;
}

/** One line of a payload for a list. @param {{text?: string, base64?: string, size: number}} message */
export function preview(message) {
  if (message.text !== undefined) return message.text.slice(0, 300).replace(/\s+/g, " ");
  const data = payloadBytes(message).slice(0, 24);
  return Array.from(data, byte => byte.toString(16).padStart(2, "0")).join(" ");
}

/** @param {Uint8Array} data */
function hex(data) {
  const lines = [];
  for (let at = 0; at < data.length && lines.length < HEX_ROWS; at += 16) {
    const row = Array.from(data.subarray(at, at + 16));
    const codes = row.map(byte => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const signs = row.map(byte => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${codes}  ${signs}`);
  }
  return lines.join("\n");
}

/** Reads one MessagePack value. */
class Reader {
  /** @param {Uint8Array} data */
  constructor(data) {
    this.data = data;
    this.view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    this.at = 0;
  }

  /** @param {number} size */
  take(size) {
    if (this.at + size > this.data.length) throw new Error("it ends too early");
    this.at += size;
    return this.at - size;
  }

  /** A whole number of so many bytes. @param {number} size */
  natural(size) {
    const at = this.take(size);
    if (size === 1) return this.view.getUint8(at);
    if (size === 2) return this.view.getUint16(at);
    if (size === 4) return this.view.getUint32(at);
    return small(this.view.getBigUint64(at));
  }

  /** @param {number} size */
  integer(size) {
    const at = this.take(size);
    if (size === 1) return this.view.getInt8(at);
    if (size === 2) return this.view.getInt16(at);
    if (size === 4) return this.view.getInt32(at);
    return small(this.view.getBigInt64(at));
  }

  /** @param {number | bigint} size */
  text(size) {
    const at = this.take(Number(size));
    return decoder.decode(this.data.subarray(at, this.at));
  }

  /** @param {number | bigint} size */
  bytes(size) {
    const at = this.take(Number(size));
    return `0x${Array.from(this.data.subarray(at, this.at), byte => byte.toString(16).padStart(2, "0")).join("")}`;
  }

  /** @param {number | bigint} size @param {number} depth */
  list(size, depth) {
    const made = [];
    for (let item = 0; item < size; item += 1) made.push(this.value(depth + 1));
    return made;
  }

  /** @param {number | bigint} size @param {number} depth */
  map(size, depth) {
    /** @type {[string, any][]} */
    const made = [];
    for (let item = 0; item < size; item += 1) {
      const name = this.value(depth + 1);
      made.push([typeof name === "string" ? name : JSON.stringify(name, exact), this.value(depth + 1)]);
    }
    return Object.fromEntries(made);
  }

  /** @param {number} depth @returns {any} */
  value(depth) {
    if (depth > DEEPEST) throw new Error("it is nested too deeply");
    const kind = this.natural(1);
    if (kind < 0x80) return kind;
    if (kind < 0x90) return this.map(kind & 15, depth);
    if (kind < 0xa0) return this.list(kind & 15, depth);
    if (kind < 0xc0) return this.text(kind & 31);
    if (kind >= 0xe0) return Number(kind) - 256;
    const wide = [1, 2, 4, 8];
    if (kind >= 0xc4 && kind <= 0xc6) return this.bytes(this.natural(wide[Number(kind) - 0xc4]));
    if (kind >= 0xcc && kind <= 0xcf) return this.natural(wide[Number(kind) - 0xcc]);
    if (kind >= 0xd0 && kind <= 0xd3) return this.integer(wide[Number(kind) - 0xd0]);
    if (kind >= 0xd9 && kind <= 0xdb) return this.text(this.natural(wide[Number(kind) - 0xd9]));
    if (kind >= 0xd4 && kind <= 0xd8) return this.extension(1 << (Number(kind) - 0xd4));
    if (kind >= 0xc7 && kind <= 0xc9) return this.extension(this.natural(wide[Number(kind) - 0xc7]));
    switch (kind) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xca: return this.view.getFloat32(this.take(4));
      case 0xcb: return this.view.getFloat64(this.take(8));
      case 0xdc: return this.list(this.natural(2), depth);
      case 0xdd: return this.list(this.natural(4), depth);
      case 0xde: return this.map(this.natural(2), depth);
      case 0xdf: return this.map(this.natural(4), depth);
      default: throw new Error(`the byte 0x${kind.toString(16)} is reserved`);
    }
  }

  /** @param {number | bigint} size */
  extension(size) {
    const kind = this.integer(1);
    return {extension: kind, data: this.bytes(size)};
  }
}

/** @param {bigint} value */
function small(value) {
  return value >= Number.MIN_SAFE_INTEGER && value <= Number.MAX_SAFE_INTEGER ? Number(value) : value;
}
