// Side by side: one prompt and one seed, two sets of parameters, streamed together; where they part, and why.
import { Memo, computed, effect, html, signal, useDraft, useEffect } from "./lib.js";
import { post } from "./api.js";
import { firstDifference } from "./branches.js";
import { explainBody, fill } from "./generate.js";
import { NO_FIELDS } from "./fields.js";
import { Knobs } from "./knobs.js";
import { reason } from "./parting.js";
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
  const other = presets(declared()).find(({ name }) => name === "precise");
  comparison.params.right.value = other ? applied(params, other, declared(), state.model.value) : params;
}

/** The request of one side. */
export function requestOf(side) {
  const { kind, text, seed, length, params } = comparison;
  const body = {
    ...(state.model.value ? { model: state.model.value } : {}),
    ...params[side].value,
    seed: seed.value,
    max_tokens: length.value,
  };
  if (kind.value === "completion") return { path: "/v1/completions", body: { ...body, prompt: text.value } };
  const system = state.system.value ? [{ role: "system", content: state.system.value }] : [];
  return {
    path: "/v1/chat/completions",
    body: { ...body, messages: [...system, { role: "user", content: text.value }] },
  };
}

/** Runs both sides at once; resolves when both have ended. */
export async function runBoth() {
  stopBoth();
  abort = new AbortController();
  comparison.why.value = null;
  for (const side of SIDES) {
    comparison.selected[side].value = null;
    comparison.runs[side].value = state.newRun(requestOf(side));
  }
  await Promise.all(SIDES.map((side) => fill(comparison.runs[side], abort.signal)));
}

export const stopBoth = () => abort?.abort();

/** Whether a side still comes. */
const busy = computed(() =>
  SIDES.some((side) => comparison.runs[side].value.request && !comparison.runs[side].value.done),
);

/** Where the two part: an index, or null. */
const parted = computed(() => firstDifference(comparison.runs.left.value.tokens, comparison.runs.right.value.tokens));

const marks = computed(() => (parted.value === null ? new Map() : new Map([[parted.value, "parts"]])));

/** A token's record on one side, with both tokens in it. Raises ApiError. */
async function recordOf(side, index, ids) {
  const body = explainBody({ run: comparison.runs[side] }, index, { ...state.LARGE, ids });
  return (await post("/v1/explain", body)).explanations[0];
}

/** Asks why they part at this index. */
async function explainParting(index) {
  const ids = SIDES.map((side) => comparison.runs[side].value.tokens[index].record.token_id);
  const asked = { index, ids: ids.join() };
  comparison.why.value = { ...asked, sentence: "", stage: "" };
  let found;
  try {
    const [left, right] = await Promise.all(SIDES.map((side) => recordOf(side, index, ids)));
    found = reason(
      left,
      right,
      SIDES.map((side) => NAMES[side]),
    );
  } catch (error) {
    found = { stage: "", sentence: "", error: error.message };
  }
  if (comparison.why.value?.index === index && comparison.why.value.ids === asked.ids)
    comparison.why.value = { ...asked, ...found };
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
  const { kind, text, seed, length } = comparison;
  const send = (event) => (event.preventDefault(), runBoth());
  const swap = () => {
    const { left, right } = comparison.params;
    [left.value, right.value] = [right.value, left.value];
  };
  return html`<section class="compare" aria-label="Side by side">
    <form class="compare-ask" onSubmit=${send}>
      <div class="compare-row">
        <div class="segments" role="radiogroup" aria-label="Kind">
          ${[
            ["chat", "Chat"],
            ["completion", "Completion"],
          ].map(
            ([name, title]) => html`<label key=${name}>
            <input type="radio" name="compare-kind" checked=${kind.value === name}
              onChange=${() => (kind.value = name)} /><span>${title}</span></label>`,
          )}
        </div>
        <${WholeNumber} title="seed" size="8" held=${seed} />
        <${WholeNumber} title="tokens" size="5" held=${length} least=${1} />
        <button type="button" class="quiet" onClick=${swap}>Swap sides</button>
      </div>
      <textarea rows="2" value=${text.value} aria-label="Prompt for both" placeholder="One prompt for both"
        onInput=${(event) => (text.value = event.target.value)} />
      ${/* two buttons by their keys: one that became the other while it is pressed would send the form */ ""}
      ${
        busy.value
          ? html`<button key="stop" type="button" onClick=${stopBoth}>Stop</button>`
          : html`<button key="run" type="submit" class="primary" disabled=${!text.value}>Run both</button>`
      }
    </form>
    <${Verdict} />
    <div class="sides">${SIDES.map((side) => html`<${Side} key=${side} side=${side} onOpen=${onOpen} />`)}</div>
  </section>`;
}

const WHOLE = /^-?\d{1,15}$/;

/** A field for a whole number. held: its signal, which changes with each number of at least `least` that is typed. */
function WholeNumber({ title, size, held, least = -Infinity }) {
  const [draft, type, leave] = useDraft(String(held.value));
  const onInput = (event) => {
    const text = event.target.value.trim();
    type(event.target.value);
    if (WHOLE.test(text) && Number(text) >= least) held.value = Number(text);
  };
  return html`<label>${title} <input type="text" inputmode="numeric" size=${size} value=${draft} onInput=${onInput}
    onBlur=${leave} /></label>`;
}

const LOOKING = "Looking for the stage at which the ladders differ …";

function Verdict() {
  const { runs, why } = comparison;
  const index = parted.value;
  const [left, right] = SIDES.map((side) => runs[side].value);
  if (!left.request)
    return html`<p class="verdict">Both sides get the same prompt, the same seed and so the same noise: what differs
      comes from the knobs.</p>`;
  if (index === null) {
    const said = busy.value
      ? "The same so far."
      : left.tokens.length === right.tokens.length
        ? "The same, token for token."
        : "The same, as far as the shorter one goes.";
    return html`<p class="verdict" role="status">${said}</p>`;
  }
  const [a, b] = [left, right].map((run) => visible(run.tokens[index].text) || visible(run.tokens[index].record.token));
  return html`<div class="verdict parted" role="status">
    <p><strong>They part at token ${index + 1}</strong>: <bdi class="token-label">${a}</bdi> on the left,
      <bdi class="token-label">${b}</bdi> on the right.</p>
    <p>${why.value?.sentence || (why.value?.error ? `The reason can't be had: ${why.value.error}` : LOOKING)}</p>
    <p class="quiet">From there on the histories differ: later tokens can't be compared one by one.</p>
  </div>`;
}

const declared = () => (state.fields.value?.fields ? state.fields.value : NO_FIELDS);

const chip = ([name, value]) => html`<code key=${name} class="chip">${name} ${JSON.stringify(value)}</code>`;

/** What one side is computed with. Not drawn again while its answer streams. */
class SideParams extends Memo {
  state = { open: false };

  render({ side }, { open }) {
    const params = comparison.params[side];
    const given = Object.entries(params.value);
    return html`<div class="side-params">
      <${Presets} params=${params} declared=${declared()} model=${state.model.value} />
      <p class="chips">${given.length ? given.map(chip) : "nothing changed"}</p>
      <details class="side-knobs" onToggle=${(event) => this.setState({ open: event.currentTarget.open })}>
        <summary>Change its knobs</summary>
        ${open && html`<${Knobs} params=${params} fields=${state.fields} record=${records[side]}
          mode=${comparison.kind.value} presets=${false} />`}
      </details>
    </div>`;
  }

  shouldComponentUpdate(props, next) {
    return next !== this.state || super.shouldComponentUpdate(props);
  }
}

/** The record of the token that is selected on a side, for the curves of its knobs. */
const records = Object.fromEntries(
  SIDES.map((side) => [
    side,
    computed(() => {
      const index = comparison.selected[side].value;
      return index === null ? null : (comparison.runs[side].value.tokens[index]?.record ?? null);
    }),
  ]),
);

function pick(side, index, open, onOpen) {
  const together = index === null || parted.value === null || index <= parted.value;
  for (const each of SIDES) comparison.selected[each].value = together || each === side ? index : null;
  if (open && onOpen && index !== null) onOpen({ side, index, run: comparison.runs[side].value });
}

const ending = (finish) => (finish === "stopped" ? ", stopped by you" : finish ? `, ended by ${finish}` : "");

function Side({ side, onOpen }) {
  const run = comparison.runs[side];
  const { tokens, error, request, finish } = run.value;
  const title = side === "left" ? "Left" : "Right";
  return html`<article class="side" aria-label=${title}>
    <h3>${title}</h3>
    <${SideParams} side=${side} />
    ${error && html`<p class="knob-error" role="alert">${error.message}</p>`}
    ${
      request &&
      html`<${TokenSpans} run=${run} selected=${comparison.selected[side]} marks=${marks} title=${`${title} answer`}
      onSelect=${(index, open) => pick(side, index, open, onOpen)} />`
    }
    ${request && html`<p class="quiet">${tokens.length} tokens${ending(finish)}</p>`}
  </article>`;
}
