// The panel of the selected token: where it stands, how it came, its ladder, what if, and the way to branch.
import { debounced, effect, html, signal, useSignal } from "./lib.js";
import { post } from "./api.js";
import { ORIGINS, drawProbability, surprise } from "./colour.js";
import { branch, explain } from "./generate.js";
import { Axis, Rung, fewOf, setActions, stepsOf } from "./rungs.js";
import * as state from "./state.js";
import { Token, fixed, percent } from "./text.js";
import { WhatIf, changes, outcome } from "./whatif.js";

const opened = signal(null); // [step's key, index among the candidates] whose reason is shown
const all = signal(false);
const trouble = signal("");

const WAIT_MS = 80; // who walks along the tokens passes by most of them

const askMore = debounced((at, ids) => {
  const still = () => state.selection.peek() === at && state.extraIds.peek() === ids;
  const node = state.current.peek();
  const guess = node.run.peek().tokens[at.index]?.record.draft?.token;
  explain(node, at.index, { ids: guess === undefined ? ids : [...ids, guess] }).then(
    ({ record, consistent, verdict }) =>
      still() && (state.detail.value = { ...at, record, verdict: consistent === false ? verdict : "" }),
    (error) => still() && (trouble.value = error.message),
  );
}, WAIT_MS);

/** Asks for more candidates than the live record has, whenever another token is selected. */
effect(() => {
  const at = state.selection.value;
  const ids = state.extraIds.value;
  trouble.value = "";
  askMore.cancel();
  if (at && state.panel.value === "ladder") askMore(at, ids);
});

/** Another token begins without changes, extra candidates and open reasons. */
effect(() => {
  if (state.selection.value === undefined) return;
  changes.value = {};
  opened.value = null;
  state.extraIds.value = [];
});

function takeBranch(tokenId, more = {}) {
  const { index } = state.selection.value;
  branch(state.current.value, index, tokenId, more);
}
const canBranch = () => state.current.value !== state.visitor.value;
setActions({ onBranch: (id) => takeBranch(id, changes.value), canBranch });

/** What a token ended, in words. */
const ENDED = {
  stop: "it ended the answer",
  length: "the answer was cut after it: the limit of tokens",
  grammar: "it completed what the grammar asks for, and so the answer",
  repetition: "the answer was ended after it: it repeated itself",
  thinking_token_budget: "the thought has used up its budget with it; what ends the thought is forced",
};

function Head({ token, record, index, count }) {
  const [origin, meaning] = ORIGINS[record.origin];
  const step = (by) => state.selectInCurrent(index + by);
  const end = record.ended ? `; ${ENDED[record.ended] ?? `it ended something (${record.ended})`}` : "";
  return html`<div class="ladder-head">
    <div class="ladder-title">
      <button type="button" class="icon" aria-label="Token before" disabled=${index === 0}
        onClick=${() => step(-1)}>‹</button>
      <h2><${Token} text=${token.special ? record.token : token.text || record.token} kind="big" /></h2>
      <button type="button" class="icon" aria-label="Next token" disabled=${index === count - 1}
        onClick=${() => step(1)}>›</button>
    </div>
    <dl class="numbers">
      <div><dt>chance</dt><dd>${percent(drawProbability(record))}</dd></div>
      <div><dt>surprise</dt><dd>${fixed(surprise(record))}</dd></div>
      <div><dt>entropy</dt><dd>${fixed(record.model.entropy)}</dd></div>
      <div><dt>margin</dt><dd>${fixed(record.draw.margin)}</dd></div>
      <div><dt>came</dt><dd title=${meaning}>${origin}</dd></div>
    </dl>
    <p class="quiet place">Token ${index + 1} of ${count}, position ${record.position}, key ${record.key}${end}.</p>
  </div>`;
}

function Draft({ record }) {
  const { draft } = record;
  if (!draft) return null;
  const at = record.ids.indexOf(draft.token);
  const guess = at < 0 ? `token ${draft.token}` : html`<${Token} text=${record.tokens[at]} />`;
  const numbers = [
    `p ${percent(draft.p)}`,
    ...(draft.q === undefined || draft.q === null ? [] : [`q ${percent(draft.q)}`]),
    ...(draft.bound === undefined || draft.bound === null ? [] : [`needed p above ${percent(draft.bound)}`]),
  ].join(", ");
  return html`<p class=${`draft ${record.origin}`}>
    ${draft.drafter || "The drafter"} guessed ${guess}, the ${ordinal(draft.place)} of its draft.
    The rule “${draft.rule}” ${record.origin === "accepted" ? "took it" : "refused it"} (${numbers}).</p>`;
}

const ordinal = (place) => ["first", "second", "third", "fourth", "fifth"][place] ?? `${place + 1}th`;

/** A text of one's own, of which the first token becomes a candidate. */
function Another() {
  const text = useSignal("");
  const said = useSignal("");
  const find = async (event) => {
    event.preventDefault();
    if (!text.value) return;
    try {
      const { tokens } = await post("/tokenize", {
        model: state.current.value.run.value.request.body.model,
        prompt: text.value,
        add_special_tokens: false,
      });
      if (!tokens.length) throw new Error("No token spells this.");
      state.extraIds.value = [...state.extraIds.value.slice(-50), tokens[0]];
      all.value = true;
      said.value =
        tokens.length > 1
          ? `These are ${tokens.length} tokens; the first is among the candidates.`
          : "It is among the candidates.";
    } catch (error) {
      said.value = error.message;
    }
  };
  return html`<form class="another" onSubmit=${find}>
    <input type="text" aria-label="Another token" placeholder="another token, with its space" value=${text}
      onInput=${(event) => (text.value = event.target.value)} />
    <button>Why not?</button><span class="quiet" role="status">${said}</span></form>`;
}

/** The panel. It shows the selected token of the current answer. */
export function Ladder() {
  const at = state.selection.value;
  const live = state.record.value;
  if (!at || !live)
    return html`<div class="pad quiet">
      <p>Click a token, or walk to one with the arrow keys and press Enter. Here you see how it came: what the model
        thought, what each step changed and cut, and how the draw went.</p></div>`;
  const { tokens } = state.run.value;
  const would = outcome.value?.record;
  const record = would ?? live;
  const steps = stepsOf(record);
  const few = fewOf(record);
  const other = all.value ? "fewer candidates" : `all ${record.ids.length} candidates`;
  const shown = all.value ? record.ids.map((_, i) => i) : few;
  return html`<div class="ladder">
    <${Head} token=${tokens[at.index]} record=${live} index=${at.index} count=${tokens.length} />
    <${Draft} record=${live} />
    ${trouble.value && html`<p class="error" role="alert">More candidates can't be had: ${trouble}</p>`}
    ${state.detail.value?.verdict && html`<p class="error" role="status">${state.detail.value.verdict}</p>`}
    <${WhatIf} record=${live} onBranch=${canBranch() ? takeBranch : null} />
    <div class="ladder-tools">
      <div class="segments" role="radiogroup" aria-label="Axis">
        ${[
          [false, "linear"],
          [true, "log"],
        ].map(
          ([
            log,
            title,
          ]) => html`<label key=${title}><input type="radio" name="axis" checked=${state.settings.log.value === log}
          onChange=${() => (state.settings.log.value = log)} /><span>${title}</span></label>`,
        )}
      </div>
      ${record.ids.length > few.length && html`<button type="button" class="quiet-button"
        aria-pressed=${all.value ? "true" : "false"}
        onClick=${() => (all.value = !all.value)}>${other}</button>`}
      ${would && html`<span class="tag">what if</span>`}
    </div>
    <${Axis} />
    <div class="rungs">
      ${steps.map((step) => html`<${Rung} key=${step.key} record=${record} step=${step} shown=${shown}
        opened=${opened.value} onOpen=${(place) => (opened.value = place)} />`)}
    </div>
    <${Another} />
  </div>`;
}
