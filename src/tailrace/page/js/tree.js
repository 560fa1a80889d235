// The branches of the conversation, as a tree.
import { html } from "./lib.js";
import { tree } from "./state.js";

export function Branches() {
  return html`<p class="quiet pad">${Object.keys(tree.value.nodes).length} turns.</p>`;
}
