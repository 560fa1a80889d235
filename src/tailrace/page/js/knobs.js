// Every knob of a request, in groups: a number with a slider, a choice, a list, …; what it does, where it is neutral,
// and its curve on the selected token. `params` holds only what differs from where the request would start by itself.
import { freshId, html, useDraft, useMemo, useState } from "./lib.js";
import { mode as pageMode, model as pageModel } from "./state.js";
import { Curve } from "./curves.js";
import {
  formOf,
  grouped,
  idle,
  neutralOf,
  NO_FIELDS,
  parse,
  rangeOf,
  shownValue,
  slider,
  startOf,
  withField,
} from "./fields.js";
import { Presets } from "./presets.js";
import { HIGHER } from "./words.js";

/**
 * The knobs of one set of parameters.
 *
 * params, fields, record: signals: what is given; the declarations; the selected token's record, or null.
 * presets: whether to show the choice of presets.
 */
export function Knobs({ params, fields, record, mode = pageMode.value, model = pageModel.value, presets = true }) {
  const [wanted, setWanted] = useState("");
  const declared = fields.value?.fields ? fields.value : NO_FIELDS;
  const groups = useMemo(() => grouped(declared, mode), [declared, mode]);
  const given = Object.keys(params.value).length;
  const words = wanted.trim().toLowerCase();
  const matches = (field) =>
    !words || `${field.name} ${field.name.replaceAll("_", "-")} ${field.doc}`.toLowerCase().includes(words);
  const shown = groups
    .map(([kind, heading, doc, list]) => [kind, heading, doc, list.filter(matches)])
    .filter(([, , , list]) => list.length);
  return html`<div class="knobs">
    ${presets && html`<${Presets} params=${params} declared=${declared} model=${model} />`}
    <div class="knob-tools">
      <input type="search" value=${wanted} onInput=${(event) => setWanted(event.target.value)}
        placeholder="find a knob" aria-label="Find a knob" />
      <button type="button" class="quiet" disabled=${!given}
        onClick=${() => (params.value = {})}>${given ? `Reset all (${given} changed)` : "Reset all"}</button>
    </div>
    ${shown.map(
      ([kind, heading, doc, list]) => html`<${Group} key=${kind} heading=${heading} doc=${doc} list=${list}
      open=${kind === "common" || words !== ""} context=${{ params, declared, record, mode, model }} />`,
    )}
    ${declared.fields.length && !shown.length ? html`<p class="empty">No knob of that name.</p>` : null}
    ${declared.fields.length ? null : html`<p class="empty">The knobs come as soon as the server answers.</p>`}
  </div>`;
}

function Group({ heading, doc, list, open, context }) {
  const given = list.filter((field) => field.name in context.params.value).length;
  return html`<details class="knob-group" open=${open || given > 0}>
    <summary>${heading}${given ? html` <span class="count"
      aria-label=${`${given} changed`}>${given}</span>` : null}</summary>
    ${doc && html`<p class="group-doc">${doc}</p>`}
    ${list.map((field) => html`<${Knob} key=${field.name} field=${field} ...${context} />`)}
  </details>`;
}

function Knob({ field, params, declared, record, mode, model }) {
  const id = useMemo(() => freshId("knob"), []);
  const form = formOf(field, mode);
  const start = startOf(field, declared, model);
  const given = field.name in params.value;
  const value = given ? params.value[field.name] : start;
  const [error, setError] = useState("");
  const set = (found) => {
    setError(found.error ?? "");
    if (!found.error) params.value = withField(params.value, field, found.value, start);
  };
  const why = given ? idle(field, params.value, declared, model) : "";
  const Input = INPUTS[form] ?? INPUTS.json;
  const fact = [rangeOf(field), field.choices?.length ? "" : `neutral: ${neutralOf(field)}`].filter(Boolean).join("; ");
  return html`<div class=${`knob ${given ? "given" : ""}`} data-field=${field.name}>
    <div class="knob-head">
      <label for=${id}>${field.name}</label>
      ${given && html`<button type="button" class="reset" onClick=${() => set({})}
        aria-label=${`Reset ${field.name}`} title="reset">↺</button>`}
    </div>
    <${Input} id=${id} field=${field} form=${form} value=${value} start=${start} given=${given}
      set=${set} described=${`${id}-doc`} bad=${error !== ""} />
    <${About} id=${`${id}-doc`} field=${field} fact=${fact} />
    ${error && html`<p class="knob-error" role="alert">${error}</p>`}
    ${why && html`<p class="knob-idle">It ${why}.</p>`}
    ${record?.value && html`<${Curve} field=${field} record=${record.value} value=${value} />`}
  </div>`;
}

/** What a field does: a few words about numbers, and the declaration behind them. */
function About({ id, field, fact }) {
  const doc = html`${sentence(field.doc)} <span class="fact">${fact}</span>`;
  const words = HIGHER[field.name];
  if (!words) return html`<p class="knob-doc" id=${id}>${doc}</p>`;
  return html`<details class="knob-doc"><summary id=${id}>Higher: ${words}.</summary><p>${doc}</p></details>`;
}

const sentence = (text) => (/[.!?]$/.test(text) ? text : `${text}.`);

function NumberInput({ id, field, form, value, set, described, bad }) {
  const [draft, type, leave] = useDraft(shownValue(form, value));
  const span = slider(field);
  const step = span ? span[2] : form === "integer" ? 1 : "any";
  const give = (text) => (type(text), set(parse(field, form, text)));
  return html`<div class="number">
    ${
      span &&
      html`<input type="range" min=${span[0]} max=${span[1]} step=${step} value=${value ?? span[0]}
      aria-label=${`${field.name}, slider`} aria-describedby=${described}
      onInput=${(event) => (leave(), set({ value: Number(event.target.value) }))} />`
    }
    <input id=${id} type="text" inputmode=${form === "integer" ? "numeric" : "decimal"} value=${draft}
      autocomplete="off"
      placeholder=${field.neutral === undefined || field.neutral === null ? "–" : ""}
      aria-describedby=${described} aria-invalid=${bad}
      onInput=${(event) => give(event.target.value)} onBlur=${leave} />
  </div>`;
}

function Switch({ id, field, value, set, described }) {
  return html`<input id=${id} type="checkbox" role="switch" checked=${value === true} aria-describedby=${described}
    onChange=${({ target }) => set(target.checked || field.neutral === true ? { value: target.checked } : {})} />`;
}

function Choice({ id, field, value, set, described }) {
  return html`<select id=${id} value=${value ?? ""} aria-describedby=${described}
    onChange=${(event) => set(event.target.value ? { value: event.target.value } : {})}>
    ${value === null && html`<option value="">not given</option>`}
    ${field.choices.map((choice) => html`<option key=${choice} value=${choice}>${choice}</option>`)}
  </select>`;
}

const HINTS = {
  texts: "one per line; \\n is a line break",
  ids: "token ids, separated by commas",
  map: "one per line: TEXT=1.5 or ID=-100",
  text: "",
  json: "JSON",
};
const EXAMPLES = {
  watermark: '{"kind": "kgw", "key": 42}',
  structured_outputs: '{"json_object": true}',
  speculation: '{"max_drafts": 0}',
  repetition_detection: '{"max_pattern_size": 32, "min_count": 4}',
  exponential_decay_length_penalty: "[100, 1.05]",
  sequence_bias: '[["the", -2.0]]',
  processors: '{"name": {}}',
  sampler_order: "top_k",
};

function Area({ id, field, form, value, set, described, bad }) {
  const [draft, type, leave] = useDraft(shownValue(form, value));
  const rows = Math.min(6, Math.max(1, draft.split("\n").length));
  const give = (text) => {
    type(text);
    const found = parse(field, form, text);
    const empty = found.value && typeof found.value === "object" && !Object.keys(found.value).length;
    set(empty && form !== "json" ? {} : found);
  };
  return html`<textarea id=${id} rows=${rows} value=${draft} placeholder=${EXAMPLES[field.name] ?? HINTS[form]}
    spellcheck=${false} aria-describedby=${described} aria-invalid=${bad}
    onInput=${(event) => give(event.target.value)} onBlur=${leave} />`;
}

const INPUTS = {
  number: NumberInput,
  integer: NumberInput,
  switch: Switch,
  choice: Choice,
  text: Area,
  texts: Area,
  ids: Area,
  map: Area,
  json: Area,
};
