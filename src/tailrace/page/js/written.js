// An answer as text: thoughts and content as Markdown, calls as they were written. And the switch to it.
import { html } from "./lib.js";
import { Markdown } from "./markdown.js";
import { mode, settings } from "./state.js";
import { shown } from "./text.js";
import { Section } from "./tokens.js";

/** Whether answers are shown as text: a chat's, if one has chosen so. */
export const isText = () => mode.value === "chat" && settings.form.value === "text";

const FORMS = { tokens: "Tokens", text: "Text" };

/** The choice between tokens and text. Raw text has no Markdown, so it has no choice. */
export function FormSwitch() {
  if (mode.value !== "chat") return null;
  return html`<div class="segments" role="radiogroup" aria-label="Show answers as">
    ${Object.entries(FORMS).map(
      ([name, title]) => html`<label key=${name}><input type="radio" name="form" checked=${settings.form.value === name}
        onChange=${() => (settings.form.value = name)} /><span>${title}</span></label>`,
    )}
  </div>`;
}

/** Draws the run {tokens, content, calls, done} of an answer. */
export function Written({ run }) {
  const { tokens, content, calls, done } = run;
  const thoughts = tokens.filter(({ channel, special }) => channel === "thought" && !special);
  return html`<div class="written" aria-busy=${!done}>
    ${
      thoughts.length > 0 &&
      html`<${Section} channel="thought" count=${thoughts.length}>
      <${Markdown} text=${thoughts.map(({ text }) => text).join("")} done=${done} /><//>`
    }
    ${content && html`<${Section}><${Markdown} text=${content} done=${done} /><//>`}
    ${calls.map(
      ({ id, function: call }) => html`<${Section} key=${id} channel="tool">
      <div class="plain-call">${shown(`${call.name}(${call.arguments})`, false)}</div><//>`,
    )}
  </div>`;
}
