// The rungs of the ladder: the model, each edit, each refinement, the draw; bars of the same candidates on one axis.
import { html } from "./lib.js";
import { fields as declared, settings } from "./state.js";
import { Token, fixed, percent } from "./text.js";

const LEAST = 1e-6; // where the logarithmic axis begins
const FEW = 8; // candidates that are shown until more are asked for

/** Where a probability lies on the axis, 0 to 1. */
export function along(p, log) {
  if (!p || p <= 0) return 0;
  return log ? Math.max(0, 1 - Math.log10(Math.max(p, LEAST)) / Math.log10(LEAST)) : p;
}

const TICKS = {
  false: [
    [0, "0"],
    [0.25, "25 %"],
    [0.5, "50 %"],
    [0.75, "75 %"],
    [1, "100 %"],
  ],
  true: [
    [1e-6, "1e-6"],
    [1e-4, "0.01 %"],
    [1e-2, "1 %"],
    [1, "100 %"],
  ],
};

const ENDS = { model: "The model", draw: "The draw" }; // the first rung and the last one, which no method has

/** The title of a rung: the server's, or the method's name. */
export const titleOf = (method) =>
  ENDS[method] ??
  declared.value.titles?.[method] ??
  method.replaceAll("_", " ").replace(/^./, (first) => first.toUpperCase());

/** Lists of fields that would fill the head: how many entries, instead. */
function worded(value) {
  if (Array.isArray(value)) return value.length > 3 ? `${value.length} entries` : JSON.stringify(value);
  if (value && typeof value === "object") {
    const count = Object.keys(value).length;
    return count > 2 ? `${count} entries` : JSON.stringify(value);
  }
  return String(value);
}

/**
 * The record's steps in one shape: key, method, fields, sentence, before and after (probabilities of the shown tokens,
 * null: cannot come), boundary (or null), and facts in a few words.
 */
export function stepsOf(record) {
  const { sentences = {} } = record;
  const count = record.ids.length;
  const model = {
    key: "model",
    method: "model",
    fields: {},
    sentence: sentences.model,
    before: record.model.probabilities,
    after: record.model.probabilities,
    boundary: null,
    facts: `entropy ${fixed(record.model.entropy)} nats`,
  };
  const steps = [model];
  const push = (step) => steps.push({ ...step, before: steps.at(-1).after });
  record.edits.forEach((step, i) =>
    push({
      key: `edit-${step.method}`,
      method: step.method,
      fields: step.fields,
      sentence: sentences.edits?.[i],
      boundary: null,
      edit: true,
      after: step.logits.map((logit, j) => (logit === null ? null : step.probabilities[j])),
      facts: `${step.left} tokens left`,
    }),
  );
  record.refinements.forEach((step, i) =>
    push({
      key: `refine-${step.method}`,
      method: step.method,
      fields: step.fields,
      sentence: sentences.refinements?.[i],
      after: step.probabilities,
      boundary: step.boundary ?? null,
      facts: step.kept < step.before ? `${step.before} → ${step.kept} tokens` : `entropy ${fixed(step.entropy)} nats`,
    }),
  );
  push({
    key: "draw",
    method: "draw",
    fields: {},
    sentence: sentences.draw,
    boundary: null,
    after: record.draw.probabilities ?? Array(count).fill(null),
    facts: "",
  });
  return steps;
}

/** Which candidates are shown while not all are: the token, winner and runner-up, what can be drawn, the likeliest. */
export function fewOf(record) {
  const must = new Set([record.token_id, record.draw.winner, record.draw.runner_up]);
  const chance = (i) => record.draw.probabilities[i] ?? -1;
  const order = record.ids
    .map((_, i) => i)
    .sort((a, b) => must.has(record.ids[b]) - must.has(record.ids[a]) || chance(b) - chance(a) || a - b);
  const survivors = order.filter((i) => chance(i) > 0 || must.has(record.ids[i]));
  const cut = order.filter((i) => !survivors.includes(i));
  const wanted = [...survivors.slice(0, FEW - Math.min(3, cut.length)), ...cut];
  return wanted.slice(0, FEW).sort((a, b) => a - b);
}

/** What stands right of a candidate's name: bars of before and after, and the cut's boundary. */
function Bars({ step, before, after, log }) {
  const moved =
    after !== null &&
    before !== null &&
    step.key !== "model" &&
    Math.abs(along(before, log) - along(after, log)) > 0.004;
  return html`<span class="track">
    <span class="bar" style=${{ width: `${100 * along(after ?? before, log)}%` }}></span>
    ${moved && html`<span class="was" style=${{ left: `${100 * along(before, log)}%` }}></span>`}
    ${step.boundary !== null && html`<span class="boundary" style=${{ left: `${100 * along(step.boundary, log)}%` }}>
      </span>`}
  </span>`;
}

/** The race: from ln p, where a candidate starts, its noise carries it to its score. scale: score → 0 to 1. */
function Race({ record, i, scale }) {
  const [noise, score] = [record.draw.noise[i], record.draw.scores[i]];
  const [from, to] = [scale(score - noise), scale(score)];
  return html`<span class="track race">
    <span class="start" style=${{ left: `${100 * from}%` }}></span>
    <span class=${`run ${to < from ? "back" : ""}`}
      style=${{ left: `${100 * Math.min(from, to)}%`, width: `${100 * Math.abs(to - from)}%` }}></span>
    <span class="dot" style=${{ left: `${100 * to}%` }}></span>
  </span>`;
}

/** From the least start or score to the largest, with some room. */
function scaleOf(record, shown) {
  const ends = shown.flatMap((i) =>
    record.draw.scores[i] === null ? [] : [record.draw.scores[i], record.draw.scores[i] - record.draw.noise[i]],
  );
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const span = high - low || 1;
  return (score) => 0.02 + (0.96 * (score - low)) / span;
}

/** What became of a candidate in a step: "" if it can still come, "cut" here, or "gone" before. */
const fateOf = (before, after) => (after !== null ? "" : before !== null ? "cut" : "gone");

function Row({ record, step, i, open, onOpen, log, scale }) {
  const id = record.ids[i];
  const [before, after] = [step.before[i] ?? null, step.after[i] ?? null];
  const fate = fateOf(before, after);
  const draw = step.key === "draw";
  const { winner, runner_up: second } = record.draw;
  const roles = [
    id === record.token_id && "came",
    draw && id === winner && "winner",
    draw && id === second && "runner-up",
  ].filter(Boolean);
  const text = record.tokens?.[i] ?? `#${id}`;
  const chance = fate === "gone" ? "" : percent(after ?? before);
  const value = !draw ? chance : fate ? "cut" : fixed(record.draw.scores[i]);
  const by = fate === "gone" ? `cut by ${titleOf(record.removed_by[i] || "an earlier step")}` : fate && "cut here";
  const said = [by, ...roles]
    .filter(Boolean)
    .map((each) => `, ${each}`)
    .join("");
  return html`<li class=${`candidate ${fate} ${roles.join(" ")}${open ? " open" : ""}`}>
    <button type="button" class="candidate-button" aria-expanded=${open ? "true" : "false"}
      onClick=${() => onOpen(open ? null : i)}>
      <span class="candidate-name"><${Token} text=${text} /></span>
      ${draw && !fate ? html`<${Race} record=${record} i=${i} scale=${scale} />` : draw ? html`<span class="track race">
        </span>` : html`<${Bars} step=${step} before=${before} after=${after} log=${log} />`}
      <span class="candidate-value">${value}</span>${said && html`<span class="heard">${said}</span>`}
    </button>
    ${open && html`<${Why} record=${record} i=${i} text=${text} />`}
  </li>`;
}

let actions = {};

/** What can be done with a candidate: onBranch(token id), if canBranch(). Set once by the ladder. */
export const setActions = (given) => (actions = given);

function Why({ record, i, text }) {
  const id = record.ids[i];
  const came = id === record.token_id;
  const { sentences = {} } = record;
  const { conditional, unconditional } = record.model;
  const facts = [
    `token ${id}`,
    `rank ${record.model.ranks[i]}`,
    `logit ${fixed(record.model.logits[i])}`,
    ...(conditional && unconditional
      ? [`with the prompt ${fixed(conditional[i])}, without ${fixed(unconditional[i])}`]
      : []),
  ];
  const [noise, score] = [record.draw.noise[i], record.draw.scores[i]];
  const sum =
    score === null || score === undefined || record.draw.greedy
      ? ""
      : `ln of the chance ${fixed(score - noise)}, noise ${fixed(noise)}, score ${fixed(score)}`;
  return html`<div class="why">
    <p><b>${came ? "Why this one?" : "Why not this one?"}</b> ${came ? sentences.draw : sentences.why_not?.[i]}</p>
    <p class="quiet">${facts.join(" · ")}${sum && html`<br />${sum}`}</p>
    ${!came && actions.canBranch?.() && html`<button type="button" class="primary small"
      onClick=${() => actions.onBranch(id)}>Continue with <${Token} text=${text} /> instead</button>`}
  </div>`;
}

const GREEDY = "the largest logit wins";
const RACE = "score = ln chance (│) + noise; the largest wins";

/** A field's name at the head of a rung; none where the head says it already. */
const nameIn = ({ method, fields }, name) =>
  name === method && Object.keys(fields).length === 1 ? "" : `${name.replaceAll("_", " ")} `;

/** One step: its head, its sentence, and the bars. open: [step's key, index of the candidate] whose reason is shown. */
export function Rung({ record, step, shown, opened, onOpen }) {
  const log = settings.log.value;
  const draw = step.key === "draw";
  const scale = draw ? scaleOf(record, shown) : null;
  const fields = Object.entries(step.fields ?? {});
  return html`<section class=${`rung ${draw ? "draw" : ""}`} aria-label=${titleOf(step.method)}>
    <div class="rung-head"><h3>${titleOf(step.method)}</h3>
      ${fields.map(([name, value]) => html`<code key=${name}
        title=${name}>${nameIn(step, name)}<b>${worded(value)}</b></code>`)}
      <span class="quiet facts">${step.facts}</span></div>
    ${step.sentence && html`<p class="sentence">${step.sentence}</p>`}
    ${draw && html`<div class="score-heads"
      aria-hidden="true">${record.draw.greedy ? GREEDY : RACE}</div>`}
    <ul class=${`candidates ${log ? "log" : ""}`}>
      ${shown.map(
        (i) => html`<${Row} key=${record.ids[i]} record=${record} step=${step} i=${i} log=${log} scale=${scale}
        open=${opened?.[0] === step.key && opened[1] === i}
          onOpen=${(at) => onOpen(at === null ? null : [step.key, at])} />`,
      )}
    </ul>
  </section>`;
}

/** The axis of all rungs. */
export function Axis() {
  const log = settings.log.value;
  return html`<div class="axis" aria-hidden="true"><span class="candidate-name"></span><span class="track">
    ${TICKS[log].map(([p, text]) => html`<i key=${p} style=${{ left: `${100 * along(p, log)}%` }}>${text}</i>`)}</span>
      <span class="candidate-value"></span></div>`;
}
