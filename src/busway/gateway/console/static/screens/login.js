// @ts-check
/** Login: as a user, or with a key of the door. */

import {useState} from "preact/hooks";
import {hello, login} from "../lib/bus.js";
import {html} from "../lib/html.js";
import {Button, Card, Labelled, Trouble} from "../parts/widgets.js";

export function LoginScreen() {
  const [key, setKey] = useState("");
  const [secret, setSecret] = useState("");
  const [error, setError] = useState("");
  const isKey = hello.value?.login === "key";
  const enter = async () => {
    setError("");
    try {
      await login(key, secret);
    } catch (wrong) {
      setError(/** @type {Error} */ (wrong).message);
    }
  };
  /** @param {Event} event */
  const submit = event => {
    event.preventDefault();
    enter();
  };
  return html`<div class="login"><${Card} title="Log in">
    <p class="muted">${isKey ? "This broker asks for a key. It stays in this tab, and the secret is never sent." : "Who are you? The login stays in this tab."}</p>
    <form class="login-form" onSubmit=${submit}>
      <${Labelled} label=${isKey ? "Key" : "User"}><input name="key" autocomplete="username" spellcheck="false" value=${key} onInput=${(/** @type {any} */ event) => setKey(event.target.value)} /><//>
      <${Labelled} label=${isKey ? "Secret" : "Password"}><input name="secret" type="password" autocomplete="current-password" value=${secret} onInput=${(/** @type {any} */ event) => setSecret(event.target.value)} /><//>
      <${Trouble} error=${error} />
      <${Button} tone="main" type="submit" disabled=${!key || !secret} onClick=${enter}>Log in<//>
    </form>
  <//></div>`;
}
