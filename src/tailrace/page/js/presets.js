// Presets: several fields under one name, the server's own, the page's, and those that somebody keeps in this browser.
import { html, signal, useState } from "./lib.js";

const KEPT = "tailrace-presets";

// What each is good for; those of the server's names come with the server's values.
const SENTENCES = {
  greedy: "Always the likeliest token. The same answer each time; long texts tend to go round in circles.",
  precise: "Low temperature, and nothing that is far below the likeliest: facts, extraction, short answers.",
  balanced: "A little warmth with min-p as a net: a good start for conversation.",
  creative: "Warm, with XTC now and then leaving out the obvious choice: stories and ideas.",
  wild: "Hot, and held by top-nσ, which cuts by the shape of the logits: surprising and still grammatical.",
  "llama.cpp": "What llama.cpp does where nothing is asked for, in its order.",
  vllm: "What vLLM does where nothing is asked for: the model's own distribution.",
  "min-p": "Temperature 1 with min-p 0.1: follows the model where it is sure and lets it roam where it is not.",
  "top-p": "The classic nucleus: temperature 1, the likeliest tokens with 90 % of the mass.",
  mirostat: "Version 2 holds the surprise near 5 bits, whatever the text: even, neither dull nor wild.",
  code: "Cool and narrow, no penalties, which would punish the brackets and names that code repeats.",
  "no repeats": "DRY and a mild presence penalty, for models that go round in circles.",
  "model alone": "Nothing cut and nothing bent: the model as it is, with unlikely tokens included.",
};

const OWN = {
  "min-p": { temperature: 1, min_p: 0.1 },
  "top-p": { temperature: 1, top_p: 0.9 },
  mirostat: { temperature: 1, mirostat: 2, mirostat_tau: 5, mirostat_eta: 0.1 },
  code: { temperature: 0.2, top_p: 0.95 },
  "no repeats": { temperature: 0.8, min_p: 0.05, dry_multiplier: 0.8, presence_penalty: 0.2 },
  "model alone": { temperature: 1 },
};

const REPLACES = "A preset replaces what bends, cuts and biases; length, stops and seed stay.";
const REPLACED = new Set(["reshape", "truncation", "edit"]); // kinds that a preset replaces altogether

function readKept() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEPT)) ?? {};
    return Object.fromEntries(
      Object.entries(kept).filter(([, fields]) => fields && typeof fields === "object" && !Array.isArray(fields)),
    );
  } catch {
    return {};
  }
}

/** Name → fields, of those kept in this browser. */
export const kept = signal(readKept());

function keep(presets) {
  kept.value = presets;
  try {
    localStorage.setItem(KEPT, JSON.stringify(presets));
  } catch {
    // full, or not allowed: they last as long as the page
  }
}

export const keepPreset = (name, fields) => keep({ ...kept.value, [name]: fields });

export function forgetPreset(name) {
  const { [name]: _, ...rest } = kept.value;
  keep(rest);
}

/** All presets: {name, fields, sentence, mine}. */
export function presets(declared) {
  const given = { ...declared.presets, ...OWN };
  const all = Object.entries(given).map(([name, fields]) => ({
    name,
    fields,
    sentence: SENTENCES[name] ?? "",
    mine: false,
  }));
  const mine = Object.entries(kept.value).map(([name, fields]) => ({
    name,
    fields,
    sentence: "Yours, kept in this browser.",
    mine: true,
  }));
  return [...all, ...mine];
}

/** Parameters with a preset's fields in the place of all that bend or cut; the rest stays. A model's own default that
 * the preset doesn't name becomes neutral, so that a preset means the same on every model. */
export function applied(params, preset, declared, model) {
  const defaults = declared.defaults?.[model] ?? {};
  const kinds = new Map((declared.fields ?? []).map((field) => [field.name, field]));
  const replaced = (name) => REPLACED.has(kinds.get(name)?.kind) || name === "sampler_order";
  const rest = Object.fromEntries(Object.entries(params).filter(([name]) => !replaced(name)));
  const voided = preset.fields.mirostat ? (field) => field.voided_by?.includes("mirostat") : () => false;
  const off = Object.keys(defaults).filter(
    (name) => replaced(name) && !(name in preset.fields) && !voided(kinds.get(name)),
  );
  const neutral = off.map((name) => [name, kinds.get(name).neutral]);
  const wanted = Object.entries(preset.fields).filter(([name, value]) => {
    const start = name in defaults ? defaults[name] : kinds.get(name)?.neutral;
    return JSON.stringify(value) !== JSON.stringify(start);
  });
  return { ...rest, ...Object.fromEntries([...neutral, ...wanted]) };
}

/** The name of the preset that these parameters are, or "". */
export function nameOf(params, declared, model) {
  const sorted = (fields) => JSON.stringify(Object.entries(fields).sort(([a], [b]) => (a < b ? -1 : 1)));
  const now = sorted(params);
  return presets(declared).find((preset) => sorted(applied(params, preset, declared, model)) === now)?.name ?? "";
}

/** A choice of presets, with what each is good for; the present parameters may be kept under a name. */
export function Presets({ params, declared, model, label = "Preset" }) {
  const [naming, setNaming] = useState(false);
  const all = presets(declared);
  const name = nameOf(params.value, declared, model);
  const chosen = all.find((preset) => preset.name === name);
  const given = Object.keys(params.value).length > 0;
  const choose = (event) => {
    const preset = all.find((each) => each.name === event.target.value);
    if (preset) params.value = applied(params.value, preset, declared, model);
  };
  return html`<div class="presets">
    <label class="preset-choice">${label}
      <select value=${name} onChange=${choose}>
        <option value="" disabled=${name !== ""}>${given ? "your own values" : "the model's defaults"}</option>
        ${all.map((preset) => html`<option key=${preset.name} value=${preset.name}>${preset.name}</option>`)}
      </select>
    </label>
    ${
      chosen?.mine
        ? html`<button type="button" class="quiet" onClick=${() => forgetPreset(name)}>Delete the preset</button>`
        : html`<button type="button" class="quiet" aria-expanded=${naming}
          onClick=${() => setNaming(!naming)}>Save as a preset</button>`
    }
    ${naming && html`<${KeepAs} params=${params} done=${() => setNaming(false)} />`}
    <p class="preset-sentence">${chosen?.sentence ?? REPLACES}</p>
  </div>`;
}

function KeepAs({ params, done }) {
  const [name, setName] = useState("");
  const save = (event) => {
    event.preventDefault();
    const { seed: _, ...fields } = params.value;
    if (name.trim()) keepPreset(name.trim().slice(0, 60), fields);
    done();
  };
  return html`<form class="preset-keep" onSubmit=${save}>
    <input value=${name} onInput=${(event) => setName(event.target.value)} placeholder="name"
      aria-label="Name of the preset" maxlength="60" />
    <button type="submit">Save</button>
  </form>`;
}
