// The page's frame: bar, views, panels. What a panel shows is loaded when it is first opened.
import { effect, html, render, useEffect, useRef, useSignal } from "./lib.js";
import { hasKey, keyWanted, setKey } from "./api.js";
import { Conversation } from "./chat.js";
import { resumeAnswers } from "./generate.js";
import * as kept from "./kept.js";
import { Ladder } from "./ladder.js";
import { Starting } from "./server.js";
import * as state from "./state.js";
import { Branches, Import } from "./tree.js";

/** Which of the page's views is shown, and which panel beside the conversation. */
const { view, panel, knobsOpen } = state;

/** A component of a module that is fetched when it is first drawn. */
function lazy(path, name) {
  return function Lazy(props) {
    const found = useSignal(null);
    const failed = useSignal(false);
    useEffect(() => {
      import(path).then(
        (module) => (found.value = { Made: module[name] }),
        () => (failed.value = true),
      );
    }, []);
    if (failed.value) return html`<p class="quiet pad">This part could not be loaded.</p>`;
    if (!found.value) return html`<p class="quiet pad">Loading…</p>`;
    return html`<${found.value.Made} ...${props} />`;
  };
}

const Knobs = lazy("./knobs.js", "Knobs");
const Plots = lazy("./plots.js", "Plots");
const CodeView = lazy("./code.js", "CodeView");
const History = lazy("./history.js", "History");
const Compare = lazy("./compare.js", "Compare");
const ServerView = lazy("./server.js", "ServerView");

const PANELS = {
  ladder: ["Why", () => html`<${Ladder} />`],
  plots: [
    "Plots",
    () => html`<${Plots} run=${state.run} selected=${state.selectedIndex} onSelect=${state.selectInCurrent} />`,
  ],
  branches: ["Branches", () => html`<${Branches} />`],
  code: ["Code", () => html`<${CodeView} />`],
  history: ["History", () => html`<${History} />`],
};

const VIEWS = { talk: "Conversation", compare: "Side by side", server: "Server" };

/** Tabs after the pattern of WAI-ARIA: one is reached by Tab, the others by the arrow keys. */
function Tabs({ names, chosen, title, id }) {
  const list = Object.keys(names);
  const onKeyDown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    chosen.value = list[(list.indexOf(chosen.value) + step + list.length) % list.length];
    event.currentTarget.children[list.indexOf(chosen.value)].focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${title} onKeyDown=${onKeyDown}>
    ${list.map(
      (
        name,
      ) => html`<button key=${name} role="tab" type="button" id=${`${id}-${name}`}
        aria-selected=${chosen.value === name ? "true" : "false"}
      aria-controls=${chosen.value === name ? `${id}-panel` : undefined} tabindex=${chosen.value === name ? 0 : -1}
        onClick=${() => (chosen.value = name)}>${names[name]}</button>`,
    )}
  </div>`;
}

const THEMES = { auto: ["◐", "Theme: as the system"], light: ["☀", "Theme: light"], dark: ["☾", "Theme: dark"] };

/** Opens a panel beside the conversation, or closes it. */
function PanelButton({ name, title }) {
  const open = panel.value === name && view.value !== "server";
  const onClick = () => {
    if (view.value === "server") view.value = "talk";
    panel.value = open ? "" : name;
  };
  return html`<button type="button" class="quiet-button" aria-pressed=${open ? "true" : "false"}
    onClick=${onClick}>${title}</button>`;
}

function Bar() {
  const theme = state.settings.theme.value;
  const next = { auto: "light", light: "dark", dark: "auto" }[theme];
  return html`<header class="bar">
    <div class="brand"><img src="page/icon.svg" alt="" width="24" height="24" /><h1>tailrace</h1></div>
    ${
      state.models.value.length > 1
        ? html`<select class="model" aria-label="Model" value=${state.model.value}
          onChange=${(event) => (state.model.value = event.target.value)}>
          ${state.models.value.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select>`
        : html`<span class="model" title="Model">${state.model}</span>`
    }
    <nav aria-label="Views"><${Tabs} names=${VIEWS} chosen=${view} title="Views" id="view" /></nav>
    <div class="bar-panels" role="group" aria-label="Panels">
      ${Object.entries(PANELS).map(([name, [title]]) => html`<${PanelButton} key=${name} name=${name}
        title=${title} />`)}<${Import} /></div>
    <button type="button" class="icon" aria-label=${THEMES[theme][1]} title=${THEMES[theme][1]}
      onClick=${() => (state.settings.theme.value = next)}>${THEMES[theme][0]}</button>
  </header>`;
}

/** Asks for the key in a modal dialog: nothing behind it can be reached, and it stays until there is a key. */
function KeyDialog() {
  const typed = useSignal("");
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  const onSubmit = (event) => {
    event.preventDefault();
    setKey(typed.value.trim());
    start();
  };
  const keepOpen = (event) => (event.key === "Escape" ? event.preventDefault() : null);
  return html`<dialog ref=${dialog} class="ask-key" aria-labelledby="key-title" onKeyDown=${keepOpen}
    onCancel=${(event) => event.preventDefault()}><form onSubmit=${onSubmit}>
    <h2 id="key-title">API key</h2>
    <p>${hasKey() ? "The server did not take this key." : "This server asks for an API key."} The key stays in this
      tab and is gone when you close it.</p>
    <input type="password" aria-label="API key" autocomplete="off" autofocus value=${typed}
      onInput=${(event) => (typed.value = event.target.value)} />
    <button class="primary" disabled=${!typed.value.trim()}>Use this key</button>
  </form></dialog>`;
}

/** Closes the panel; the keyboard goes back to the tokens. */
function closePanel() {
  panel.value = "";
  state.select(null);
  document.querySelector(".turn.answer:last-of-type .tokens, .tokens")?.focus({ preventScroll: true });
}

const onEscape = (event) => {
  if (event.key !== "Escape" || !panel.value || event.defaultPrevented) return;
  event.preventDefault();
  closePanel();
};

function SidePanel() {
  const names = Object.fromEntries(Object.entries(PANELS).map(([name, [title]]) => [name, title]));
  return html`<aside class="side-panel" aria-label="Explanation" hidden=${!panel.value}>
    <div class="panel-head"><${Tabs} names=${names} chosen=${panel} title="Explanation" id="panel" />
      <button type="button" class="icon" aria-label="Close the panel" onClick=${closePanel}>✕</button></div>
    ${panel.value && html`<div class="panel-body" role="tabpanel" id="panel-panel"
      aria-labelledby=${`panel-${panel.value}`} tabindex="0">${PANELS[panel.value][1]()}</div>`}
  </aside>`;
}

function Talk() {
  return html`<div class=${`talk${panel.value ? " with-panel" : ""}${knobsOpen.value ? " with-knobs" : ""}`}
    onKeyDown=${onEscape}>
    <aside class="knobs-panel" aria-label="Parameters" hidden=${!knobsOpen.value}>
      <div class="panel-head"><h2>Parameters</h2><button type="button" class="icon" aria-label="Close the parameters"
        onClick=${() => (knobsOpen.value = false)}>✕</button></div>
      ${knobsOpen.value && html`<${Knobs} params=${state.params} fields=${state.fields} record=${state.record} />`}
    </aside>
    <main class="conversation-column"><${Conversation} /></main>
    <${SidePanel} />
  </div>`;
}

function Sides() {
  const onOpen = ({ index, run }) => state.visit(run, index);
  return html`<div class=${`talk${panel.value ? " with-panel" : ""}`} onKeyDown=${onEscape}>
    <main class="view"><${Compare} onOpen=${onOpen} /></main>
    <${SidePanel} />
  </div>`;
}

function App() {
  return html`<div class="app">
    <${Bar} />
    <${Starting} />
    <div class="view-body" role="tabpanel" id="view-panel" aria-labelledby=${`view-${view.value}`}>
      ${view.value === "talk" && html`<${Talk} />`}
      ${view.value === "compare" && html`<${Sides} />`}
      ${view.value === "server" && html`<main class="view"><${ServerView} /></main>`}
    </div>
    ${keyWanted.value && html`<${KeyDialog} />`}
  </div>`;
}

const RETRY_MS = 2000;

/** Asks what the server serves, again and again while it does not answer yet. */
function start() {
  state.load().then(
    () => (state.trouble.value = ""),
    (error) => {
      if (keyWanted.value) return;
      state.trouble.value = error.message;
      setTimeout(start, RETRY_MS);
    },
  );
}

/** A comparison's token is looked at only beside the comparison. */
effect(() => {
  if (view.value !== "compare" && state.visitor.peek() && state.selection.peek()?.node === state.visitor.peek().id)
    state.select(null);
});
effect(() => {
  document.documentElement.dataset.theme = state.settings.theme.value;
  state.keepSettings();
});
render(html`<${App} />`, document.getElementById("app"));
start();
kept.begin().then(resumeAnswers);
