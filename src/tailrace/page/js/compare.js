// Side by side: one prompt and one seed, two sets of parameters, streamed together; where they part, and why.
import { computed, effect, html, signal, useEffect, useMemo } from "./lib.js";
import { ApiError, post, stream } from "./api.js";
import { Fold, perFrame } from "./generate.js";
import { NO_FIELDS } from "./fields.js";
import { Knobs } from "./knobs.js";
import { firstDifference, reason } from "./parting.js";
import { Presets, applied, presets } from "./presets.js";
import * as state from "./state.js";
import { label as visible } from "./text.js";
import { TokenSpans } from "./tokens.js";

const SIDES = ["left", "right"];
const NAMES = { left: "the left one", right: "the right one" };

/** What the comparison holds; it outlives the view, so that one may look elsewhere and come back. */
export const comparison = {
  kind: signal("chat"),
  text: signal(""),
  seed: signal(1),
  length: signal(120),
  params: { left: signal({}), right: signal({}) },
  runs: { left: signal(state.newRun(null)), right: signal(state.newRun(null)) },
  selected: { left: signal(null), right: signal(null) },
  why: signal(null), // {index, stage, sentence, error} of the first difference
};

let abort = null;

/** Begins with what is on the page: its last prompt, its parameters on the left, and a preset on the right. */
export function takeOver() {
  const asked = state.shownPath.value.findLast((node) => node.kind === "user" || node.kind === "prompt");
  if (asked) {
    comparison.kind.value = asked.kind === "prompt" ? "completion" : "chat";
    comparison.text.value = asked.text;
  }
  const { seed, max_tokens, ...params } = state.params.value;
  if (seed !== undefined) comparison.seed.value = seed;
  if (max_tokens !== undefined) comparison.length.value = max_tokens;
  comparison.params.left.value = params;
  const declared = state.fields.value?.fields ? state.fields.value : NO_FIELDS;
  const other = presets(declared).find(({ name }) => name === "precise");
  comparison.params.right.value = other ? applied(params, other, declared, state.model.value) : params;
}

/** The request of one side. */
export function requestOf(side) {
  const { kind, text, seed, length, params } = comparison;
  const body = { ...(state.model.value ? { model: state.model.value } : {}), ...params[side].value, seed: seed.value, max_tokens: length.value };
  if (kind.value === "completion") return { path: "/v1/completions", body: { ...body, prompt: text.value } };
  const system = state.system.value ? [{ role: "system", content: state.system.value }] : [];
  return { path: "/v1/chat/completions", body: { ...body, messages: [...system, { role: "user", content: text.value }] } };
}

/** Runs both sides at once; resolves when both have ended. */
export async function runBoth() {
  stopBoth();
  abort = new AbortController();
  comparison.why.value = null;
  for (const side of SIDES) comparison.selected[side].value = null;
  await Promise.all(SIDES.map((side) => receive(side, abort.signal)));
}

export const stopBoth = () => abort?.abort();

async function receive(side, stopped) {
  const run = comparison.runs[side];
  const request = requestOf(side);
  const fold = new Fold();
  run.value = state.newRun(request);
  const frame = perFrame(() => (run.value = { ...run.value, ...fold.seen() }));
  let error = null;
  try {
    const asked = { ...request.body, stream_options: { include_usage: true }, explain: state.SMALL };
    await stream(request.path, asked, { signal: stopped, onEvent: (event) => (fold.add(event), frame.ask()) });
    if (!fold.finish) error = new ApiError("The answer was cut off: the connection ended before it did.");
  } catch (caught) {
    if (caught.name !== "AbortError") error = caught;
  }
  fold.end();
  frame.now();
  run.value = { ...run.value, done: true, error: error && { message: error.message } };
}

/** Where the two part: an index, or null. */
const parted = computed(() => firstDifference(comparison.runs.left.value.tokens, comparison.runs.right.value.tokens));

const marks = computed(() => (parted.value === null ? new Map() : new Map([[parted.value, "parts"]])));

/** A token's record on one side, with both tokens in it. Raises ApiError. */
async function recordOf(side, index, ids) {
  const { tokens, request } = comparison.runs[side].value;
  const answer = await post("/v1/explain", {
    ...request.body,
    output_token_ids: tokens.slice(0, index + 1).map((token) => token.record.token_id),
    positions: [index],
    explain: { top: 20, ids },
  });
  return answer.explanations[0];
}

/** Asks why they part at this index. */
async function explainParting(index) {
  const ids = SIDES.map((side) => comparison.runs[side].value.tokens[index].record.token_id);
  const asked = { index, ids: ids.join() };
  comparison.why.value = { ...asked, sentence: "", stage: "" };
  let found;
  try {
    const [left, right] = await Promise.all(SIDES.map((side) => recordOf(side, index, ids)));
    found = reason(left, right, SIDES.map((side) => NAMES[side]));
  } catch (error) {
    found = { stage: "", sentence: "", error: error.message };
  }
  if (comparison.why.value?.index === index && comparison.why.value.ids === asked.ids) comparison.why.value = { ...asked, ...found };
}

/** The view. onOpen(side's record): where a token was opened, if the page shows its ladder. */
export function Compare({ onOpen = null }) {
  useEffect(() => {
    if (!comparison.text.value) takeOver();
    return effect(() => {
      const index = parted.value;
      if (index !== null && comparison.why.peek()?.index !== index) explainParting(index);
    });
  }, []);
  const { kind, text, seed, length, runs } = comparison;
  const busy = SIDES.some((side) => runs[side].value.request && !runs[side].value.done);
  const send = (event) => (event.preventDefault(), runBoth());
  const swap = () => {
    const { left, right } = comparison.params;
    [left.value, right.value] = [right.value, left.value];
  };
  return html`<section class="compare" aria-label="Side by side">
    <form class="compare-ask" onSubmit=${send}>
      <div class="compare-row">
        <div class="segments" role="radiogroup" aria-label="Kind">
          ${[["chat", "Chat"], ["completion", "Completion"]].map(([name, title]) => html`<label key=${name}>
            <input type="radio" name="compare-kind" checked=${kind.value === name} onChange=${() => (kind.value = name)} /><span>${title}</span></label>`)}
        </div>
        <label>seed <input type="text" inputmode="numeric" size="8" value=${seed.value}
          onInput=${(event) => (seed.value = whole(event.target.value, seed.value))} /></label>
        <label>tokens <input type="text" inputmode="numeric" size="5" value=${length.value}
          onInput=${(event) => (length.value = Math.max(1, whole(event.target.value, length.value)))} /></label>
        <button type="button" class="quiet" onClick=${swap}>Swap sides</button>
      </div>
      <textarea rows="2" value=${text.value} aria-label="Prompt for both" placeholder="One prompt for both"
        onInput=${(event) => (text.value = event.target.value)} />
      ${busy ? html`<button type="button" onClick=${stopBoth}>Stop</button>` : html`<button type="submit" class="primary" disabled=${!text.value}>Run both</button>`}
    </form>
    <${Verdict} busy=${busy} />
    <div class="sides">${SIDES.map((side) => html`<${Side} key=${side} side=${side} onOpen=${onOpen} />`)}</div>
  </section>`;
}

const whole = (text, otherwise) => (/^-?\d{1,15}$/.test(text.trim()) ? Number(text) : otherwise);

function Verdict({ busy }) {
  const { runs, why } = comparison;
  const index = parted.value;
  const [left, right] = SIDES.map((side) => runs[side].value);
  if (!left.request) return html`<p class="verdict">Both sides get the same prompt, the same seed and so the same noise: what differs comes from the knobs.</p>`;
  if (index === null) {
    const said = busy ? "The same so far." : left.tokens.length === right.tokens.length ? "The same, token for token." : "The same, as far as the shorter one goes.";
    return html`<p class="verdict" role="status">${said}</p>`;
  }
  const [a, b] = [left, right].map((run) => visible(run.tokens[index].text) || visible(run.tokens[index].record.token));
  return html`<div class="verdict parted" role="status">
    <p><strong>They part at token ${index + 1}</strong>: <bdi class="token-label">${a}</bdi> on the left, <bdi class="token-label">${b}</bdi> on the right.</p>
    <p>${why.value?.sentence || (why.value?.error ? `The reason can't be had: ${why.value.error}` : "Looking for the stage at which the ladders differ …")}</p>
    <p class="quiet">From there on the histories differ: later tokens can't be compared one by one.</p>
  </div>`;
}

function Side({ side, onOpen }) {
  const run = comparison.runs[side];
  const params = comparison.params[side];
  const selected = comparison.selected[side];
  const record = useMemo(() => computed(() => (selected.value === null ? null : run.value.tokens[selected.value]?.record ?? null)), []);
  const pick = (index, open) => {
    for (const each of SIDES) comparison.selected[each].value = index === null || parted.value === null || index <= parted.value ? index : each === side ? index : null;
    if (open && onOpen && index !== null) onOpen({ side, index, request: run.value.request, tokens: run.value.tokens });
  };
  const given = Object.entries(params.value);
  const { tokens, error, request, finish } = run.value;
  return html`<article class="side" aria-label=${side === "left" ? "Left" : "Right"}>
    <h3>${side === "left" ? "Left" : "Right"}</h3>
    <${Presets} params=${params} declared=${state.fields.value?.fields ? state.fields.value : NO_FIELDS} model=${state.model.value} />
    <p class="chips">${given.length ? given.map(([name, value]) => html`<code key=${name} class="chip">${name} ${JSON.stringify(value)}</code>`) : "nothing changed"}</p>
    <details class="side-knobs"><summary>Change its knobs</summary>
      <${Knobs} params=${params} fields=${state.fields} record=${record} mode=${comparison.kind.value} presets=${false} />
    </details>
    ${error && html`<p class="knob-error" role="alert">${error.message}</p>`}
    ${request && html`<${TokenSpans} run=${run} selected=${selected} onSelect=${pick} marks=${marks} title=${side === "left" ? "Left answer" : "Right answer"} />`}
    ${request && html`<p class="quiet">${tokens.length} tokens${finish ? `, ended by ${finish}` : ""}</p>`}
  </article>`;
}
