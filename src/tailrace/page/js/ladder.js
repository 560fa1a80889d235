// The ladder of the selected token.
import { html } from "./lib.js";
import { record } from "./state.js";

export function Ladder() {
  return html`<p class="quiet pad">${record.value ? record.value.sentences?.draw : "Click a token."}</p>`;
}
