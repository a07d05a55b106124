// @ts-check
/** "Copy as": the same action as a command, as Python, or as a request to the HTTP port. */

/** @param {string} text */
function shell(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** @param {string} text */
function python(text) {
  return JSON.stringify(text).replace(/[\u007f-\uffff]/g, sign => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** @param {string} rule */
function pythonRule(rule) {
  const at = rule.indexOf("=");
  if (rule.startsWith("expr:")) return `busway.expr(${python(rule.slice(5))})`;
  if (at < 0) return `${python(rule)}: busway.ANY`;
  const name = rule.slice(0, at);
  const value = rule.slice(at + 1);
  if (value.startsWith("expr:")) return `${python(name)}: busway.expr(${python(value.slice(5))})`;
  if (value.startsWith("re:")) return `${python(name)}: re.compile(${python(value.slice(3))})`;
  return `${python(name)}: ${pythonValue(value)}`;
}

/** @param {string} text */
function pythonValue(text) {
  if (text === "true") return "True";
  if (text === "false") return "False";
  if (text === "null") return "None";
  return /^-?\d+(\.\d+)?$/.test(text) ? text : python(text);
}

/** @param {string[]} rules */
function pythonRules(rules) {
  if (rules.length === 1 && rules[0].startsWith("expr:")) return pythonRule(rules[0]);
  return `{${rules.map(pythonRule).join(", ")}}`;
}

/**
 * A subscription.
 * @param {{pattern: string, where: string[]}} question @param {string} url
 */
export function subscribeSnippets({pattern, where}, url) {
  const rules = where.length ? `, where=${pythonRules(where)}` : "";
  return {
    Python: `import busway\n\nasync with busway.connect("${url}") as bus, bus.subscribe(${python(pattern)}${rules}) as messages:\n    async for message in messages:\n        print(message.topic, message.payload)`,
    CLI: `busway sub --url ${url} ${shell(pattern)}${where.map(rule => ` --where ${shell(rule)}`).join("")}`,
  };
}

/**
 * A publish.
 * @param {{topic: string, text: string, fields: string[], kind: string}} message @param {string} url
 */
export function publishSnippets({topic, text, fields, kind}, url) {
  const pairs = fields.map(pair => {
    const at = pair.indexOf("=");
    return `${python(pair.slice(0, at))}: ${pythonValue(pair.slice(at + 1))}`;
  });
  const more = `${pairs.length ? `, fields={${pairs.join(", ")}}` : ""}${kind === "durable" ? ", durable=True" : ""}`;
  const verb = kind === "durable" ? "publish" : kind;
  const command = kind === "publish" || kind === "durable" ? "pub" : kind;
  const flags = `${fields.map(pair => ` -f ${shell(pair)}`).join("")}${kind === "durable" ? " --durable" : ""}`;
  /** @type {Record<string, string>} */
  const made = {
    Python: `import busway\n\nasync with busway.connect("${url}") as bus:\n    await bus.${verb}(${python(topic)}, ${python(text)}${more})`,
    CLI: `busway ${command} --url ${url} ${shell(topic)} ${shell(text)}${flags}`,
  };
  if (kind === "durable" || kind === "publish") {
    const head = Object.entries({specversion: "1.0", type: "message", source: "/curl", id: "1"});
    const headers = head.map(([name, value]) => ` -H ${shell(`ce-${name}: ${value}`)}`).join("");
    made.curl = `curl -X POST ${location.origin}/events/${encodeURI(topic)}${headers} -d ${shell(text)}`;
  }
  return made;
}

/**
 * Reading stored messages.
 * @param {{stream: string, begin: number, pattern: string, where: string[]}} question @param {string} url
 */
export function readSnippets({stream, begin, pattern, where}, url) {
  const topic = pattern && pattern !== "**" ? `, topic=${python(pattern)}` : "";
  const rules = where.length ? `, where=${pythonRules(where)}` : "";
  return {
    Python: `import busway\n\nasync with busway.connect("${url}") as bus:\n    stream = await bus.stream(${python(stream)})\n    async for messages in stream.read(${begin}${topic}${rules}):\n        for message in messages:\n            print(message.offset, message.topic, message.payload)`,
    CLI: `busway replay --url ${url} ${shell(stream)} --since ${begin}${topic ? ` --topic ${shell(pattern)}` : ""}${where.map(rule => ` --where ${shell(rule)}`).join("")}`,
  };
}

/** A request. @param {{topic: string, text: string}} request @param {string} url */
export function requestSnippets({topic, text}, url) {
  return {
    Python: `import busway\n\nasync with busway.connect("${url}") as bus:\n    reply = await bus.request(${python(topic)}, ${python(text)})\n    print(reply.payload)`,
    CLI: `busway req --url ${url} ${shell(topic)} ${shell(text)}`,
    curl: `curl -X POST ${location.origin}/${encodeURI(topic)} -d ${shell(text)}`,
  };
}
