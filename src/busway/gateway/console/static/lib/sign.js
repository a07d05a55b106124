// @ts-check
/** Signs requests with a key of the door: HMAC-SHA256 over the request as compact JSON with sorted members. */

const encoder = new TextEncoder();

/** @param {any} value @returns {string} */
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const names = Object.keys(value).filter(name => value[name] !== null && value[name] !== undefined).sort();
  return `{${names.map(name => `${JSON.stringify(name)}:${canonical(value[name])}`).join(",")}}`;
}

/**
 * The request with its key and signature.
 * @param {Record<string, any>} request @param {string} apiKey @param {string} secretKey
 */
export async function sign(request, apiKey, secretKey) {
  if (!crypto.subtle) {
    throw new Error("this browser signs requests only over HTTPS or on localhost: open the console by one of them");
  }
  const whole = {...request, apiKey};
  const algorithm = {name: "HMAC", hash: "SHA-256"};
  const key = await crypto.subtle.importKey("raw", encoder.encode(secretKey), algorithm, false, ["sign"]);
  const made = new Uint8Array(await crypto.subtle.sign("HMAC", key, encoder.encode(canonical(whole))));
  const signature = Array.from(made, byte => byte.toString(16).padStart(2, "0")).join("").toUpperCase();
  return {...whole, signature};
}
