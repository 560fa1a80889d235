// What if: other values of the knobs at one token, under the same noise; the server says what would have come.
import { computed, debounced, effect, html, signal, useDraft, useSignal } from "./lib.js";
import { idle, parse, slider, startOf } from "./fields.js";
import { explain } from "./generate.js";
import * as state from "./state.js";
import { Token, percent } from "./text.js";
import { HIGHER } from "./words.js";

const WAIT_MS = 90;
const ALWAYS = ["temperature", "top_p", "top_k", "min_p"];
const KINDS = new Set(["truncation", "reshape", "edit"]);

/** Fields with other values than the request's, for the selected token. */
export const changes = signal({});
/** {record} under these changes; {error} where they are refused; null without any. */
export const outcome = signal(null);

const declared = computed(() => new Map((state.fields.value.fields ?? []).map((field) => [field.name, field])));
const endpoint = computed(() =>
  state.current.value?.run.value.request?.path.includes("chat") ? "chat" : "completion",
);

/** Whether a field can be tried here: a number that changes what may come. */
const tried = (field) => KINDS.has(field.kind) && ["number", "integer"].includes(field.forms[endpoint.value]);

const unfolded = signal(false);

let latest = 0;
const ask = debounced(async (node, index, whatIf, extra) => {
  const mine = ++latest;
  let found;
  try {
    found = { record: (await explain(node, index, { whatIf, ids: extra })).record };
  } catch (error) {
    found = { error: error.message };
  }
  if (mine === latest) outcome.value = found;
}, WAIT_MS);

/** Asks whenever a knob moves, as long as the page lives. */
effect(() => {
  const at = state.selection.value;
  const node = state.current.value;
  const whatIf = changes.value;
  ask.cancel();
  latest++;
  if (!at || !Object.keys(whatIf).length) {
    outcome.value = null;
    return;
  }
  ask(node, at.index, whatIf, state.extraIds.peek());
});

const without = (object, name) => Object.fromEntries(Object.entries(object).filter(([key]) => key !== name));

function Knob({ field, base }) {
  const error = useSignal("");
  const { name } = field;
  const changed = name in changes.value;
  const value = changed ? changes.value[name] : base;
  const range = slider(field);
  const set = (next) =>
    (changes.value = next === base ? without(changes.value, name) : { ...changes.value, [name]: next });
  const [draft, type, leave] = useDraft(String(value ?? ""));
  const typed = (event) => {
    const found = parse(field, field.forms[endpoint.value], event.target.value);
    error.value = found.error ?? "";
    if (!found.error) set(found.value ?? base);
  };
  const why = idle(
    field,
    { ...state.current.value.run.value.request.body, ...changes.value },
    state.fields.value,
    state.model.value,
  );
  return html`<div class=${`try ${changed ? "changed" : ""}`}>
    <span class="try-name" title=${`Higher: ${HIGHER[name]}. ${field.doc}.`}>${name.replaceAll("_", " ")}</span>
    ${
      range
        ? html`<input type="range" aria-label=${`${name}, slider`} min=${range[0]} max=${range[1]} step=${range[2]}
          value=${value} onInput=${(event) => (leave(), set(Number(event.target.value)))} />`
        : html`<span class="grow"></span>`
    }
    <input type="text" inputmode="decimal" class="number" aria-label=${name} value=${draft}
      onInput=${(event) => type(event.target.value)} onChange=${typed} onBlur=${leave} />
    <button type="button" class="icon" aria-label=${`${name} as it was`} title="As it was" disabled=${!changed}
      onClick=${() => (changes.value = without(changes.value, name))}>↺</button>
    ${(error.value || (changed && why)) && html`<p class="try-note"
      role="status">${error.value || `${name} ${why}`}</p>`}
  </div>`;
}

/** What the changes would have done, in one sentence. */
function Verdict({ record, onBranch }) {
  if (!outcome.value) return null;
  if (outcome.value.error) return html`<p class="error" role="alert">${outcome.value.error}</p>`;
  const would = outcome.value.record;
  const id = would.draw.winner;
  const at = would.ids.indexOf(id);
  const other = id !== record.token_id;
  const count = would.refinements.length ? would.refinements.at(-1).kept : would.edits.at(-1)?.left;
  return html`<div class=${`verdict-box ${other ? "other" : ""}`} role="status">
    <p>${other ? html`<${Token} text=${would.tokens[at]} /> would have come instead` : html`<${Token}
      text=${would.token} /> would still have come`}${" "}
    (${percent(would.draw.probabilities[at])}${count ? `; ${count} could be drawn` : ""}).</p>
    ${other && onBranch && html`<button type="button" class="primary small"
      onClick=${() => onBranch(id)}>Go on from there</button>`}
  </div>`;
}

/** The knobs for the selected token, whose record is given. onBranch(token id, changes): goes on with another. */
export function WhatIf({ record, onBranch }) {
  const { body } = state.current.value.run.value.request;
  const used = [...record.edits, ...record.refinements].flatMap((step) => Object.keys(step.fields));
  const added = useSignal([]);
  const names = [...new Set([...ALWAYS, ...used, ...added.value, ...Object.keys(changes.value)])];
  const all = declared.value;
  const shown = names.map((name) => all.get(name)).filter((field) => field && tried(field));
  const more = [...all.values()].filter((field) => tried(field) && !names.includes(field.name));
  const changed = Object.keys(changes.value).length > 0;
  if (!shown.length) return null;
  return html`<details class="whatif" open=${unfolded.value}
    onToggle=${(event) => (unfolded.value = event.currentTarget.open)}>
    <summary><b>What if …</b> <span class="quiet">other knobs, the same noise</span></summary>
    <${Verdict} record=${record} onBranch=${onBranch && ((id) => onBranch(id, changes.value))} />
    ${shown.map((field) => html`<${Knob} key=${field.name} field=${field}
      base=${body[field.name] ?? startOf(field, state.fields.value, state.model.value)} />`)}
    <div class="row">
      ${
        more.length > 0 &&
        html`<select aria-label="Another knob" value="" onChange=${(event) => {
          added.value = [...added.value, event.target.value];
          event.target.value = "";
        }}>
        <option value="">another knob …</option>${more.map((field) => html`<option key=${field.name}
          value=${field.name}>${field.name}</option>`)}</select>`
      }
      ${changed && html`<button type="button" onClick=${() => (changes.value = {})}>All as it was</button>`}
    </div>
  </details>`;
}
