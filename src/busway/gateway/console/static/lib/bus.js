// @ts-check
/**
 * The connection of this tab with its broker: requests, tails, and reconnecting.
 *
 * The broker sends `hello` first, then `{id, status, body}` for each request and `{tail, rows, missed}` for tails.
 * A request whose connection is lost fails: nobody can know whether the broker has carried it out.
 */

import {signal} from "@preact/signals";
import {sign} from "./sign.js";

/** @typedef {{version: string, name: string, guid: string, login: "none" | "user" | "key", rights: Rights}} Hello */
/** @typedef {{user: string | null, everything: boolean, allow: string[], deny: string[]}} Rights */
/** @typedef {{rows: Message[], missed: number}} TailRows */
/**
 * @typedef {object} Message
 * @property {string} topic
 * @property {string} id
 * @property {number} time milliseconds since 1970
 * @property {string} sender
 * @property {string} kind
 * @property {Record<string, any>} fields
 * @property {number} size
 * @property {boolean} cut
 * @property {string} [text]
 * @property {string} [base64]
 * @property {string} [stream]
 * @property {string} [broker]
 * @property {number} [offset]
 * @property {number} [sequence]
 * @property {number} [stored]
 * @property {boolean} [kept]
 */

/** An answer with an error. */
export class Refusal extends Error {
  /** @param {number} status @param {string} text */
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

const LOST = "the connection was lost before the answer: the broker may or may not have done it, so look before you repeat it";
const FIRST_DELAY = 300;
const LONGEST_DELAY = 5000;
const PATIENCE = 8000;

/** "connecting", "login", "open" or "lost" */
export const state = signal("connecting");
/** @type {import("@preact/signals").Signal<Hello | null>} */
export const hello = signal(null);
/** Counts connections, so that screens load again after a restart of the broker. */
export const epoch = signal(0);

/** @type {WebSocket | null} */
let socket = null;
let number = 0;
let delay = FIRST_DELAY;
/** The login of this tab, for a new connection. It is stored nowhere. */
let credentials = {name: "", secret: ""};
/** @type {Map<number, {resolve: (body: any) => void, reject: (error: Error) => void}>} */
const waiting = new Map();
/** @type {Set<Tail>} */
const tails = new Set();
/** @type {Set<(progress: any) => void>} */
const progress = new Set();

/** Connect, and stay connected. */
export function connect() {
  const made = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/console/socket`);
  socket = made;
  made.onmessage = event => receive(JSON.parse(event.data));
  made.onclose = () => {
    if (socket !== made) return;
    socket = null;
    state.value = "lost";
    for (const {reject} of waiting.values()) reject(new Refusal(0, LOST));
    waiting.clear();
    for (const tail of tails) tail.number = 0;
    setTimeout(connect, delay * (0.8 + 0.4 * Math.random()));
    delay = Math.min(delay * 1.7, LONGEST_DELAY);
  };
}

/** @param {any} message */
function receive(message) {
  if (message.hello) return greet(message.hello);
  if (message.tail !== undefined) {
    for (const tail of tails) if (tail.number === message.tail) tail.receive(message);
    return;
  }
  if (message.replayed !== undefined) return progress.forEach(tell => tell(message));
  const request = waiting.get(message.id);
  if (!request) return;
  waiting.delete(message.id);
  if (message.status === 200) request.resolve(message.body);
  else request.reject(new Refusal(message.status, String(message.body)));
}

/** @param {Hello} found */
async function greet(found) {
  const before = hello.value;
  if (before && before.version !== found.version) return location.reload();
  hello.value = found;
  if (found.login === "none") return open();
  if (!credentials.name) state.value = "login";
  else await login(credentials.name, credentials.secret).catch(() => { state.value = "login"; });
}

function open() {
  delay = FIRST_DELAY;
  state.value = "open";
  epoch.value += 1;
  for (const tail of tails) tail.begin();
}

/**
 * Log in as a user with a password, or with a key of the door.
 * @param {string} name @param {string} secret
 */
export async function login(name, secret) {
  const request = {id: ++number, cmd: "login"};
  const isKey = hello.value?.login === "key";
  const rights = await send(isKey ? await sign({...request, timestamp: Date.now()}, name, secret) : {...request, user: name, password: secret});
  credentials = {name, secret};
  if (hello.value) hello.value = {...hello.value, rights};
  open();
}

/** Forget the login and connect anew. */
export function logout() {
  credentials = {name: "", secret: ""};
  socket?.close();
}

/** @param {any} request @returns {Promise<any>} */
function send(request) {
  return new Promise((resolve, reject) => {
    if (!socket || socket.readyState !== WebSocket.OPEN) return reject(new Refusal(0, "there is no connection to the broker"));
    waiting.set(request.id, {resolve, reject});
    socket.send(JSON.stringify(request));
  });
}

/** Wait until the tab is connected, for a few seconds. */
function ready() {
  if (state.value === "open") return Promise.resolve();
  return new Promise((resolve, reject) => {
    const stop = state.subscribe(now => {
      if (now === "open") setTimeout(() => { stop(); clearTimeout(timer); resolve(undefined); });
    });
    const timer = setTimeout(() => { stop(); reject(new Refusal(0, "there is no connection to the broker")); }, PATIENCE);
  });
}

/**
 * Run a command of the console.
 * @param {string} cmd @param {any} [args] @returns {Promise<any>}
 */
export async function run(cmd, args) {
  await ready();
  return send({id: ++number, cmd, args});
}

/**
 * Ask a service of the broker, such as `$bus/info`.
 * @param {string} topic @param {any} [body] @returns {Promise<any>}
 */
export function ask(topic, body) {
  return run("ask", {topic, body});
}

/**
 * Run a command and hear of its progress.
 * @param {string} cmd @param {any} args @param {(progress: any) => void} tell
 */
export async function follow(cmd, args, tell) {
  progress.add(tell);
  try {
    return await run(cmd, args);
  } finally {
    progress.delete(tell);
  }
}

/** A live tail. It begins again after the connection was lost. */
export class Tail {
  /**
   * @param {{pattern: string, where: string[], text: string}} question
   * @param {(rows: TailRows) => void} onRows
   * @param {(text: string) => void} onEnd
   */
  constructor(question, onRows, onEnd) {
    this.question = question;
    this.onRows = onRows;
    this.onEnd = onEnd;
    this.number = 0;
    this.missed = 0;
    this.before = 0;
    tails.add(this);
    this.begin();
  }

  async begin() {
    this.before = this.missed;
    try {
      const {tail} = await run("tail", this.question);
      if (!tails.has(this)) return void run("untail", tail).catch(() => undefined);
      this.number = tail;
    } catch (error) {
      if (error instanceof Refusal && error.status) this.fail(error.message);
    }
  }

  /** @param {any} message */
  receive(message) {
    if (message.ended) return this.fail(message.ended);
    this.missed = this.before + message.missed;
    this.onRows({rows: message.rows, missed: this.missed});
  }

  /** @param {string} text */
  fail(text) {
    tails.delete(this);
    this.onEnd(text);
  }

  stop() {
    if (tails.delete(this) && this.number) run("untail", this.number).catch(() => undefined);
  }
}
