// @ts-check
/** A form for a value that a JSON Schema describes, as msgspec writes it for declared requests. */

import {html} from "../lib/html.js";

const DEEPEST = 6;

/** @param {any} schema @param {any} root */
function resolved(schema, root) {
  if (schema?.$ref) {
    const name = schema.$ref.split("/").pop();
    return {...(root.$defs?.[name] || {}), ...schema, $ref: undefined};
  }
  const options = schema?.anyOf?.filter((/** @type {any} */ option) => option.type !== "null");
  return options?.length === 1 ? {...resolved(options[0], root), optional: true, default: schema.default} : schema || {};
}

/** A value to begin with. @param {any} schema @param {any} [root] @param {number} [depth] @returns {any} */
export function emptyOf(schema, root = schema, depth = 0) {
  const found = resolved(schema, root);
  if (found.default !== undefined) return found.default;
  if (found.optional || depth > DEEPEST) return null;
  if (found.enum) return found.enum[0];
  if (found.const !== undefined) return found.const;
  switch (found.type) {
    case "object":
      return Object.fromEntries(Object.entries(found.properties || {}).map(([name, part]) => [name, emptyOf(part, root, depth + 1)]));
    case "array": return [];
    case "integer":
    case "number": return found.minimum ?? 0;
    case "boolean": return false;
    case "string": return "";
    default: return null;
  }
}

/**
 * @param {{schema: any, root: any, value: any, onChange: (value: any) => void, name: string, depth?: number}} props
 */
export function SchemaForm({schema, root, value, onChange, name, depth = 0}) {
  const found = resolved(schema, root);
  if (found.type === "object" && found.properties && depth < DEEPEST) {
    const parts = Object.entries(found.properties);
    return html`<fieldset class="schema"><legend>${found.title || name}</legend>
      ${found.description && html`<p class="muted">${found.description}</p>`}
      ${parts.map(([part, inner]) => html`<${SchemaForm} key=${part} schema=${inner} root=${root} name=${part} depth=${depth + 1}
        value=${value?.[part]} onChange=${(/** @type {any} */ changed) => onChange({...value, [part]: changed})} />`)}
    </fieldset>`;
  }
  const label = `${name}${found.optional ? " (optional)" : ""}`;
  if (found.type === "boolean") {
    return html`<label class="check"><input type="checkbox" checked=${!!value} onChange=${(/** @type {any} */ event) => onChange(event.target.checked)} /> ${label}</label>`;
  }
  if (found.enum) {
    return html`<label class="labelled"><span>${label}</span><select value=${String(value)} onChange=${(/** @type {any} */ event) => onChange(found.enum.find((/** @type {any} */ one) => String(one) === event.target.value))}>
      ${found.enum.map((/** @type {any} */ one) => html`<option value=${String(one)}>${String(one)}</option>`)}</select></label>`;
  }
  if (found.type === "integer" || found.type === "number") {
    return html`<label class="labelled"><span>${label}</span><input type="number" step=${found.type === "integer" ? 1 : "any"} min=${found.minimum} max=${found.maximum} value=${value ?? ""}
      onInput=${(/** @type {any} */ event) => onChange(event.target.value === "" ? null : Number(event.target.value))} /></label>`;
  }
  if (found.type === "string") {
    return html`<label class="labelled"><span>${label}</span><input value=${value ?? ""} onInput=${(/** @type {any} */ event) => onChange(event.target.value === "" && found.optional ? null : event.target.value)} /></label>`;
  }
  return html`<${JsonField} label=${label} value=${value} onChange=${onChange} />`;
}

/** A value of another type, as JSON. @param {{label: string, value: any, onChange: (value: any) => void}} props */
function JsonField({label, value, onChange}) {
  /** @param {any} event */
  const input = event => {
    try {
      onChange(JSON.parse(event.target.value));
      event.target.setCustomValidity("");
    } catch {
      event.target.setCustomValidity("This is not JSON.");
    }
    event.target.reportValidity();
  };
  return html`<label class="labelled"><span>${label}</span><textarea class="mono" rows="2" spellcheck="false" onChange=${input}>${JSON.stringify(value)}</textarea><small>JSON</small></label>`;
}
