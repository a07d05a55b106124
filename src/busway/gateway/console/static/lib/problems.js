// @ts-check
/** What is wrong, in words: with the broker as a whole, and with a channel whose consumers are behind. Values only. */

import {bytes, duration, plural, rate} from "./format.js";
import {to} from "./route.js";

/** @typedef {{tone: "bad" | "warn" | "info", text: string, href?: string}} Problem */

const MANY = 5;
/** Seconds of arriving messages that are no backlog. */
const NORMAL = 3;

/**
 * The problems of a broker, the worst first.
 * @param {{info: any, streams: any[], channels: any[], clients: any[], cluster: any, growth: (name: string) => number, memory: number | null}} found
 * @returns {Problem[]}
 */
export function brokerProblems({info, streams, channels, clients, cluster, growth}) {
  /** @type {Problem[]} */
  const problems = [];
  /** @param {"bad" | "warn" | "info"} tone @param {string} text @param {string} [href] */
  const add = (tone, text, href) => problems.push({tone, text, href});
  const {disk} = info;
  if (disk?.low) add("bad", `The disk has ${bytes(disk.free)} free, less than the ${bytes(disk.floor)} that the broker keeps free: it refuses durable publishes.`, to(["streams"]));
  for (const stream of streams) {
    if (stream.stuck) add("bad", `Stream ${stream.name} can't write: ${stream.stuck}`, to(["streams", stream.name]));
    if (stream.damage) add("bad", `Stream ${stream.name} has ${plural(stream.damage, "damaged range")}.`, to(["streams", stream.name]));
    if (stream.mirrored === false) add("warn", `Stream ${stream.name} has no mirror now, so its messages have one copy.`, to(["streams", stream.name]));
  }
  for (const node of clusterNodes(cluster)) {
    if (node.state !== "linked" && !node.self) add("bad", `Node ${node.name || node.address} is ${node.state || "not linked"}.`, to(["cluster"]));
  }
  for (const channel of channels.slice(0, 200)) {
    for (const problem of channelProblems(channel)) problems.push({...problem, href: to(["channels", channel.stream, channel.name])});
  }
  const slow = clients.filter(isSlow);
  for (const client of slow.slice(0, MANY)) {
    add("warn", `Client ${client.name || client.client} reads too slowly: ${bytes(client.outbox_bytes)} wait for it, ${plural(client.messages_dropped, "message")} dropped.`, to(["clients"], {order: "slow"}));
  }
  if (slow.length > MANY) add("warn", `${plural(slow.length - MANY, "more client")} read too slowly.`, to(["clients"], {order: "slow"}));
  const errors = growth("errors");
  if (errors) add("bad", `The broker had ${plural(errors, "internal error")} in the last ten minutes; its log has the tracebacks.`);
  const refused = growth("refused");
  if (refused) add("warn", `${plural(refused, "connection")} refused in the last ten minutes.`, to(["clients"]));
  const faults = growth("faults");
  if (faults) add("warn", `${plural(faults, "connection")} closed in the last ten minutes because of errors of the client.`, to(["clients"]));
  const rejected = growth("messages_rejected");
  if (rejected) add("warn", `${plural(rejected, "message")} rejected with an error in the last ten minutes.`);
  return problems.sort((one, other) => weight(one) - weight(other));
}

/** @param {Problem} problem */
function weight({tone}) {
  return tone === "bad" ? 0 : tone === "warn" ? 1 : 2;
}

/** @param {any} client */
export function isSlow(client) {
  return client.state === "slowed" || client.held > 0 && client.messages_dropped > 0 && client.name !== "console";
}

/** The nodes of `$bus/cluster`, this one among them. @param {any} cluster @returns {any[]} */
export function clusterNodes(cluster) {
  return cluster?.nodes || [];
}

/** @param {any} channel @returns {Problem[]} */
function channelProblems(channel) {
  const name = `Channel ${channel.stream}/${channel.name}`;
  /** @type {Problem[]} */
  const problems = [];
  if (channel.dead) problems.push({tone: "warn", text: `${name} has moved ${plural(channel.dead, "message")} to its dead letters.`});
  if (channel.lost) problems.push({tone: "bad", text: `${name} has lost ${plural(channel.lost, "message")}: the stream removed them before they were completed.`});
  if (channel.paused && channel.lag) problems.push({tone: "warn", text: `${name} is paused with ${plural(channel.lag, "message")} to deliver.`});
  else if (channel.lag && !channel.consumers) problems.push({tone: "warn", text: `${name} has ${plural(channel.lag, "message")} to deliver and no consumer.`});
  if (channel.unreached?.length) problems.push({tone: "warn", text: `${name}: ${channel.unreached.join(", ")} can't be reached, so figures are missing.`});
  return problems;
}

/**
 * Whether a channel is behind: more messages wait than are at work or have arrived in the last seconds.
 * @param {any} channel @param {{arrives: number | null}} rates
 */
export function isBehind(channel, {arrives}) {
  return channel.lag > channel.in_flight + NORMAL * (arrives || 0);
}

/**
 * Why a channel is behind, or that it is not.
 * @param {any} channel @param {{arrives: number | null, completes: number | null}} rates
 * @returns {Problem[]}
 */
export function explainChannel(channel, {arrives, completes}) {
  /** @type {Problem[]} */
  const found = [];
  /** @param {"bad" | "warn" | "info"} tone @param {string} text */
  const add = (tone, text) => found.push({tone, text});
  const {lag, consumers, in_flight: flight, waiting} = channel;
  if (channel.paused) add("warn", `The channel is paused, so nothing is delivered. ${plural(lag, "message")} wait.`);
  if (!consumers && !channel.paused) add(lag ? "bad" : "info", lag ? `No consumer is connected. ${plural(lag, "message")} wait.` : "No consumer is connected, and no message waits.");
  const window = (channel.clients || []).reduce((/** @type {number} */ sum, /** @type {any} */ client) => sum + client.window, 0);
  if (lag && consumers && !channel.paused) {
    if (window && flight >= window) add("warn", `All ${plural(consumers, "consumer")} are busy: ${plural(flight, "message")} are in flight, as many as their windows allow. More consumers, a larger window or faster handlers help.`);
    if (completes !== null && arrives !== null) {
      const pace = `Messages arrive at ${rate(arrives)} and are completed at ${rate(completes)}`;
      if (!isBehind(channel, {arrives})) add("info", `${pace}: the consumers keep up.`);
      else if (arrives > completes * 1.02 + 0.05) add("bad", `${pace}: the lag grows.`);
      else if (completes > arrives) add("info", `${pace}: the channel catches up in about ${duration(lag / Math.max(completes - arrives, 0.001))}.`);
      else if (!completes) add("warn", `${pace}: consumers hold messages and complete none.`);
      else add("info", `${pace}.`);
    }
  }
  if (waiting) add("warn", `${plural(waiting, "message")} wait for their next delivery after a failure, or behind another one with the same key.`);
  if (channel.redelivered) add("info", `${plural(channel.redelivered, "message")} delivered again since the broker started.`);
  if (channel.dead) add("warn", `${plural(channel.dead, "message")} moved to the dead letters since the broker started.`);
  if (channel.lost) add("bad", `${plural(channel.lost, "message")} lost: the stream removed them before they were completed.`);
  if (!lag && !channel.paused) found.unshift({tone: "info", text: "The channel is up to date."});
  return found;
}
