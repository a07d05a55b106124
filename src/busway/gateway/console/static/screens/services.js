// @ts-check
/** Services: who answers requests on which topic, with load and failures; and a form to try one. */

import {useState} from "preact/hooks";
import {address} from "../lib/address.js";
import {ask, run} from "../lib/bus.js";
import {count, duration, plural} from "../lib/format.js";
import {html} from "../lib/html.js";
import {usePoll} from "../lib/poll.js";
import {refine, route, to} from "../lib/route.js";
import {requestSnippets} from "../lib/snippets.js";
import {Payload} from "../parts/message.js";
import {emptyOf, SchemaForm} from "../parts/schema_form.js";
import {Search, Table} from "../parts/table.js";
import {Badge, Button, Card, Choice, CopyAs, Head, Labelled, Trouble} from "../parts/widgets.js";

const EVERY = 2500;

export function ServicesScreen() {
  const {search = "", topic = ""} = route.value.query;
  const {value, error} = usePoll(() => ask("$bus/services", {search, most: 200}), EVERY, [search]);
  /** @type {import("../parts/table.js").Column<any>[]} */
  const columns = [
    {name: "Topic", wide: true, cell: service => html`<code>${service.topic}</code>`},
    {name: "Providers", number: true, cell: service => count(service.providers.length)},
    {name: "Kind", cell: service => html`<${Badge}>${service.shared ? "shared" : "exclusive"}<//>`},
    {name: "In progress", number: true, spare: true, cell: service => service.shared ? count(service.running) : "–"},
    {name: "Answered", number: true, spare: true, cell: service => service.shared ? count(service.calls) : "–"},
    {name: "Failures in a row", number: true, cell: service => service.failures ? html`<${Badge} tone="warn">${count(service.failures)}<//>` : service.shared ? "0" : "–"},
  ];
  const chosen = value?.services.find((/** @type {any} */ service) => service.topic === topic);
  return html`
    <${Head} title="Services" note="Clients that answer requests. Choose one to try it." actions=${html`<${Search} label="Search services" placeholder="Search topic" value=${search} onInput=${(/** @type {string} */ text) => refine({search: text})} />`} />
    <${Trouble} error=${error} />
    ${value && html`<${Card}>
      <${Table} label="Services" columns=${columns} rows=${value.services} keyOf=${(/** @type {any} */ service) => service.topic} chosen=${topic} onRow=${(/** @type {any} */ service) => refine({topic: service.topic})} empty="No client serves a topic." />
    <//>`}
    ${topic && html`<${Try} key=${topic} topic=${topic} schema=${chosen?.schema || null} />`}
    ${chosen && html`<${Providers} service=${chosen} />`}`;
}

/** @param {{service: any}} props */
function Providers({service}) {
  /** @type {import("../parts/table.js").Column<any>[]} */
  const columns = [
    {name: "Provider", wide: true, cell: provider => provider.node ? html`${provider.name} <${Badge}>node<//>` : html`<a href=${to(["clients"], {search: provider.name || provider.client})}>${provider.name || `client ${provider.client}`}</a>`},
    {name: "In progress", number: true, cell: provider => service.shared ? count(provider.running) : "–"},
    {name: "Answered", number: true, cell: provider => service.shared ? count(provider.calls) : "–"},
    {name: "State", cell: provider => html`<${Badge} tone=${provider.state === "willing" ? "ok" : "warn"}>${provider.state}<//>`},
  ];
  return html`<${Card} title=${plural(service.providers.length, "provider")}><${Table} label="Providers" columns=${columns} rows=${service.providers} /><//>`;
}

/** @param {{topic: string, schema: any}} props */
function Try({topic, schema}) {
  const [mode, setMode] = useState(schema ? "form" : "json");
  const [value, setValue] = useState(/** @type {any} */ (schema ? emptyOf(schema) : {}));
  const [text, setText] = useState(schema ? JSON.stringify(emptyOf(schema), null, 2) : "");
  const [timeout, setTimeout] = useState("10");
  const [result, setResult] = useState(/** @type {any} */ (null));
  const payload = mode === "form" ? JSON.stringify(value) : text;
  const send = async () => {
    const started = performance.now();
    try {
      const reply = await run("call", {topic, text: payload, timeout: Number(timeout) || 10});
      setResult({reply, seconds: (performance.now() - started) / 1000});
    } catch (wrong) {
      setResult({error: /** @type {Error} */ (wrong).message, seconds: (performance.now() - started) / 1000});
    }
  };
  /** @param {string} chosen */
  const choose = chosen => {
    if (chosen === "json") setText(JSON.stringify(value, null, 2));
    setMode(chosen);
  };
  return html`<${Card} title=${html`Try <code>${topic}</code>`} actions=${html`
      ${schema && html`<${Choice} label="Input" options=${[["form", "Form"], ["json", "Text"]]} value=${mode} onChange=${choose} />`}
      <${CopyAs} snippets=${() => requestSnippets({topic, text: payload}, address())} />`}>
    <div class="form try-form">
      ${mode === "form" ? html`<div class="whole"><${SchemaForm} schema=${schema} root=${schema} value=${value} onChange=${setValue} name="Request" /></div>`
        : html`<${Labelled} label="Payload" class="whole"><textarea name="payload" rows="6" spellcheck="false" placeholder='[1, 2]' value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)}></textarea><//>`}
      <${Labelled} label="Timeout (seconds)"><input type="number" min="0.1" max="60" step="any" value=${timeout} onInput=${(/** @type {any} */ event) => setTimeout(event.target.value)} /><//>
      <div class="actions"><${Button} tone="main" onClick=${send}>Send the request<//></div>
    </div>
    ${result && html`<h3>${result.error ? "Error" : "Reply"} <span class="muted">after ${duration(result.seconds)}</span></h3>
      ${result.error ? html`<${Trouble} error=${result.error} />` : html`<${Payload} key=${result.reply.id + result.seconds} message=${result.reply} />`}`}
  <//>`;
}
