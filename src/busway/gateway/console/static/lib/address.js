// @ts-check
/** The address for native clients in examples. */

import {signal} from "@preact/signals";
import {ask, state} from "./bus.js";

const addresses = signal(/** @type {string[]} */ ([]));
const USUAL = "tcp://127.0.0.1:7420";

state.subscribe(now => {
  if (now !== "open" || addresses.peek().length) return;
  ask("$bus/info", {connections: 0, streams: false}).then(info => { addresses.value = info.addresses; }, () => undefined);
});

/** The first address of the broker for other processes. */
export function address() {
  return addresses.value.find(one => !one.startsWith("memory")) || USUAL;
}
