// @ts-check
/** The console: the frame around all screens, with navigation, connection state and theme. */

import {signal} from "@preact/signals";
import {render} from "preact";
import {useEffect, useRef} from "preact/hooks";
import {connect, hello, logout, state} from "./lib/bus.js";
import {html} from "./lib/html.js";
import {route, to} from "./lib/route.js";
import {nextTheme, theme} from "./lib/theme.js";
import {Dialogs} from "./parts/dialog.js";
import {icon} from "./parts/icons.js";
import {ChannelScreen, ChannelsScreen} from "./screens/channels.js";
import {ClientsScreen} from "./screens/clients.js";
import {ClusterScreen} from "./screens/cluster.js";
import {LoginScreen} from "./screens/login.js";
import {OverviewScreen} from "./screens/overview.js";
import {PublishScreen} from "./screens/publish.js";
import {ServicesScreen} from "./screens/services.js";
import {StreamScreen, StreamsScreen} from "./screens/streams.js";
import {TopicsScreen} from "./screens/topics.js";
import {UsersScreen} from "./screens/users.js";

/** @type {[string, string, any, any?][]} Name, title, screen, and the screen of one item. */
const SCREENS = [
  ["overview", "Overview", OverviewScreen],
  ["topics", "Topics", TopicsScreen],
  ["streams", "Streams", StreamsScreen, StreamScreen],
  ["channels", "Channels", ChannelsScreen, ChannelScreen],
  ["services", "Services", ServicesScreen],
  ["clients", "Clients", ClientsScreen],
  ["cluster", "Cluster", ClusterScreen],
  ["users", "Users", UsersScreen],
  ["publish", "Publish", PublishScreen],
];

/** Whether the navigation is open on a narrow screen. */
const open = signal(false);

function Navigation() {
  const {screen} = route.value;
  return html`<nav class="nav ${open.value ? "open" : ""}" aria-label="Screens">
    <a class="brand" href="#/overview"><span class="logo">${icon("logo")}</span>Busway</a>
    <ul>${SCREENS.map(([name, title]) => html`<li><a href=${to([name])} aria-current=${name === screen ? "page" : undefined} onClick=${() => { open.value = false; }}>${icon(name)}${title}</a></li>`)}</ul>
    <div class="nav-foot">${hello.value && html`<span class="muted">busway ${hello.value.version}</span>`}</div>
  </nav>`;
}

const STATES = {
  open: ["ok", "Connected"],
  connecting: ["warn", "Connecting"],
  login: ["warn", "Log in"],
  lost: ["bad", "Reconnecting"],
};

function Top() {
  const [tone, text] = STATES[/** @type {keyof STATES} */ (state.value)];
  const user = hello.value?.rights.user;
  return html`<header class="top">
    <button type="button" class="button quiet menu" aria-label="Menu" aria-expanded=${open.value} onClick=${() => { open.value = !open.value; }}>${icon("menu")}</button>
    <span class="broker">${hello.value?.name || "…"}</span>
    <span class="state" role="status"><i class="dot ${tone}"></i>${text}</span>
    <span class="gap"></span>
    ${user && html`<button type="button" class="button quiet" onClick=${logout}>${user} · Log out</button>`}
    <button type="button" class="button quiet" aria-label=${`Theme: ${theme.value}`} title=${`Theme: ${theme.value}`} onClick=${nextTheme}>${icon(theme.value)}</button>
  </header>`;
}

function Screen() {
  const {screen, path} = route.value;
  const found = SCREENS.find(([name]) => name === screen);
  if (state.value === "login") return html`<${LoginScreen} />`;
  if (!hello.value) return html`<p class="boot">Connecting to the broker…</p>`;
  if (!found) return html`<p class="empty">There is no screen ${screen}. <a href="#/overview">Overview</a></p>`;
  const [, , List, Item] = found;
  return path.length && Item ? html`<${Item} key=${path.join("/")} path=${path} />` : html`<${List} />`;
}

function App() {
  const room = useRef(/** @type {HTMLElement | null} */ (null));
  const {screen, path} = route.value;
  useEffect(() => {
    const title = SCREENS.find(([name]) => name === screen)?.[1] || "Console";
    document.title = `${[...path.slice(-1), title].join(" · ")} · ${hello.value?.name || "Busway"}`;
    room.current?.scrollTo(0, 0);
  }, [screen, path.join("/"), hello.value?.name]);
  return html`
    <a class="skip" href="#main" onClick=${(/** @type {Event} */ event) => { event.preventDefault(); room.current?.focus(); }}>Skip to the content</a>
    <${Navigation} />
    <div class="page">
      <${Top} />
      ${state.value === "lost" && html`<p class="banner" role="alert">The connection to the broker is lost. The console connects again by itself; the figures below are the last ones.</p>`}
      <main id="main" tabindex="-1" ref=${room}><${Screen} /></main>
    </div>
    <${Dialogs} />`;
}

/** Keys: `g` and the first letter of a screen open it, `/` goes to the search field. */
let pressed = "";
addEventListener("keydown", event => {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || /^(input|select|textarea)$/i.test(target.tagName)) return;
  if (event.key === "/") {
    const field = /** @type {HTMLElement | null} */ (document.querySelector("main input[type=search]"));
    if (field) {
      event.preventDefault();
      field.focus();
    }
  } else if (pressed === "g") {
    const keys = {o: "overview", t: "topics", s: "streams", c: "channels", v: "services", l: "clients", n: "cluster", u: "users", p: "publish"};
    const name = keys[/** @type {keyof keys} */ (event.key)];
    if (name) location.hash = to([name]);
  }
  pressed = event.key;
});

connect();
const place = document.getElementById("app");
if (place) {
  place.textContent = "";
  render(html`<${App} />`, place);
}
