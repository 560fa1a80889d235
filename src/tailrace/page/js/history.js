// The list of conversations: search, rename, delete, import and export.
import { html, signal, useSignal } from "./lib.js";
import { hasKey } from "./api.js";
import { below } from "./branches.js";
import { trouble } from "./kept.js";
import * as state from "./state.js";
import { plain } from "./text.js";
import { Import, save, importTrouble } from "./tree.js";

const TITLE = 60; // characters
const NOT_FOUND = "No conversation has these words.";
const wanted = signal("");

/** A conversation's name: the reader's own, or its first words. */
const titleOf = (root) => root.title || plain(root.text).slice(0, TITLE) || "(empty)";

/** Whether a conversation has these words, in lower case: in its name, in what was said, or in an answer. */
function has(root, words) {
  const turns = below(state.tree.value, root.id).map((node) => node.text ?? node.run.value.content);
  return [titleOf(root), ...turns].some((text) => text.toLowerCase().includes(words));
}

function Rename({ root, leave }) {
  const text = useSignal(titleOf(root));
  const submit = (event) => {
    event.preventDefault();
    state.change(root.id, { title: text.value.trim().slice(0, 200) });
    leave();
  };
  return html`<form class="row" onSubmit=${submit}><input class="grow" aria-label="Name of the conversation"
    value=${text} onInput=${(event) => (text.value = event.target.value)} /><button class="primary">Save</button>
    <button type="button" onClick=${leave}>Cancel</button></form>`;
}

function Entry({ root }) {
  const mode = useSignal("");
  const leave = () => (mode.value = "");
  if (mode.value === "rename") return html`<li><${Rename} root=${root} leave=${leave} /></li>`;
  const shown = state.shownPath.value[0]?.id === root.id;
  const answers = below(state.tree.value, root.id).filter((node) => node.kind === "answer").length;
  const remove = () => (mode.value === "delete" ? state.remove(root.id) : (mode.value = "delete"));
  return html`<li class=${shown ? "shown" : ""}><div class="branch">
    <button type="button" class="branch-button" aria-current=${shown ? "true" : undefined}
      onClick=${() => state.walk(root.id)}><bdi class="excerpt">${titleOf(root)}</bdi>
      <span class="quiet">${answers === 1 ? "1 answer" : `${answers} answers`}</span></button>
    <button type="button" class="quiet-button" onClick=${() => (mode.value = "rename")}>Rename</button>
    <button type="button" class="quiet-button" onClick=${remove} onBlur=${leave}
      >${mode.value === "delete" ? "Really delete?" : "Delete"}</button>
  </div></li>`;
}

/** The panel. */
export function History() {
  const { nodes, roots } = state.tree.value;
  const words = wanted.value.trim().toLowerCase();
  const found = roots.map((id) => nodes[id]).filter((root) => !words || has(root, words));
  const { keepWithKey } = state.settings;
  return html`<div class="branches">
    <div class="row"><input type="search" class="grow" aria-label="Find a conversation"
      placeholder="find a conversation" value=${wanted} onInput=${(event) => (wanted.value = event.target.value)} />
      <button type="button" onClick=${() => state.begin()}>New</button></div>
    <ul class="tree history">${found
      .toReversed()
      .map((root) => html`<${Entry} key=${root.id} root=${root} />`)}</ul>
    ${!found.length && html`<p class="quiet">${words ? NOT_FOUND : "Nothing has been said yet."}</p>`}
    <div class="row files"><button type="button" disabled=${!roots.length || state.busy.value}
      onClick=${save}>Export all</button><${Import} /></div>
    ${importTrouble.value && html`<p class="error" role="alert">${importTrouble}</p>`}
    ${
      hasKey() &&
      html`<label class="check"><input type="checkbox" checked=${keepWithKey.value}
        onChange=${(event) => (keepWithKey.value = event.target.checked)} /> Keep conversations in this browser,
        although the server asks for a key</label>`
    }
    ${trouble.value && html`<p class="error" role="alert">${trouble}</p>`}
  </div>`;
}
