// Why two runs with the same seed part at a token: where the ladders of the two records first differ. Pure functions.
import { fixed, label, percent } from "./text.js";

const SAME = 1e-4; // of a difference between two tokens' logarithms; beyond it a stage has moved them

const at = (record, id) => record.ids.indexOf(id);
const textOf = (record, id) => label(record.tokens?.[at(record, id)] ?? `#${id}`) || "nothing";
const quoted = (record, id) => `“${textOf(record, id)}”`;

/** The stages of a record in order: {name, fields, gap}. gap: ln of how far token a is ahead of token b behind it. */
function stages(record, a, b) {
  const [i, j] = [at(record, a), at(record, b)];
  const logits = (list) => gapOf(list[i], list[j], (x) => x);
  const shares = (list) => gapOf(list[i], list[j], Math.log);
  return [
    { name: "model", fields: {}, gap: logits(record.model.logits) },
    ...record.edits.map((step) => ({ name: step.method, fields: step.fields, gap: logits(step.logits) })),
    ...record.refinements.map((step) => ({ name: step.method, fields: step.fields, gap: shares(step.probabilities) })),
  ];
}

/** The difference of two values, one of which may be cut (null, or undefined where it is not shown). */
function gapOf(x, y, of) {
  if (x === undefined || y === undefined) return null;
  if (x === null && y === null) return "neither";
  if (x === null) return "only b";
  return y === null ? "only a" : of(x) - of(y);
}

const differ = (x, y) => (typeof x === "number" && typeof y === "number" ? Math.abs(x - y) > SAME : x !== y);

/**
 * Why record `left` gave another token than record `right`, of the same place and history: {stage, side, sentence}.
 * stage: the method at which the ladders differ, "model" or "draw". Both records show both tokens.
 */
export function reason(left, right, names = ["left", "right"]) {
  const [a, b] = [left.token_id, right.token_id];
  if (left.key !== right.key) return { stage: "draw", side: null, sentence: "The seeds differ, so the noise does." };
  const forced = [left, right].findIndex((record) => record.origin === "forced");
  if (forced >= 0) return { stage: "draw", side: forced, sentence: `In ${names[forced]} the token was forced.` };
  for (const [side, record, other] of [
    [0, left, b],
    [1, right, a],
  ]) {
    const by = at(record, other) < 0 ? "" : record.removed_by[at(record, other)];
    if (by)
      return {
        stage: by,
        side,
        sentence: `In ${names[side]} ${removal(record, other, by)}, which ${names[1 - side]} drew.`,
      };
  }
  const greedy = [left, right].findIndex((record) => record.origin === "greedy");
  if (greedy >= 0 && left.origin !== right.origin) {
    return {
      stage: "draw",
      side: greedy,
      sentence: `${capital(names[greedy])} takes the likeliest; ${names[1 - greedy]} draws, and the noise decided.`,
    };
  }
  const moved = firstMove(stages(left, a, b), stages(right, a, b));
  if (moved) return { ...moved, sentence: moves(moved, left, right, names, [a, b]) };
  return {
    stage: "draw",
    side: null,
    sentence:
      "The ladders are the same for both tokens: what was drafted, or another computation of the model, made the " +
      "difference.",
  };
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

function removal(record, id, by) {
  const place = at(record, id);
  if (by === "model") return `the model itself gave ${quoted(record, id)} no chance`;
  const step = record.refinements.find((each) => each.method === by);
  if (!step)
    return `${named(by, record.edits.find((each) => each.method === by)?.fields)} took out ${quoted(record, id)}`;
  const { probabilities } = record.edits.at(-1) ?? record.model;
  const before = record.refinements[record.refinements.indexOf(step) - 1]?.probabilities ?? probabilities;
  return `${named(by, step.fields)} cut ${quoted(record, id)} (it had ${percent(before[place])})`;
}

/** A method with what the request gave it: "top-p 0.9". */
export function named(method, fields = {}) {
  const values = Object.entries(fields ?? {});
  const name = method.replaceAll("_", "-");
  if (values.length === 1 && typeof values[0][1] !== "object") return `${name} ${values[0][1]}`;
  return values.length
    ? `${name} (${values.map(([field, value]) => `${field} ${JSON.stringify(value)}`).join(", ")})`
    : name;
}

/** The first stage that stands on one side only, or does something else on the other, and moved the two tokens. */
function firstMove(left, right) {
  if (differ(left[0].gap, right[0].gap)) return { stage: "model", side: null };
  let [i, j, gapLeft, gapRight] = [1, 1, left[0].gap, right[0].gap];
  while (i < left.length || j < right.length) {
    const [x, y] = [left[i], right[j]];
    if (x && y && x.name === y.name) {
      if (differ(x.gap, y.gap)) return { stage: x.name, side: null, fields: [x.fields, y.fields] };
      [gapLeft, gapRight, i, j] = [x.gap, y.gap, i + 1, j + 1];
      continue;
    }
    const alone = x && !right.slice(j).some((step) => step.name === x.name) ? 0 : y ? 1 : 0;
    const step = alone === 0 ? x : y;
    const before = alone === 0 ? gapLeft : gapRight;
    if (differ(step.gap, before)) return { stage: step.name, side: alone, fields: [step.fields] };
    if (alone === 0) [gapLeft, i] = [step.gap, i + 1];
    else [gapRight, j] = [step.gap, j + 1];
  }
  return null;
}

function moves({ stage, side, fields }, left, right, names, [a, b]) {
  if (stage === "model") return "The model's own logits differ already: another model, adapter, prompt or guidance.";
  const odds = `${quoted(left, a)} against ${quoted(left, b)}`;
  if (side !== null)
    return `${capital(named(stage, fields[0]))}, which only ${names[side]} has, moved ${odds}${margin(left, right)}.`;
  const both = [0, 1].map((side) => `${named(stage, fields[side])} in ${names[side]}`).join(" and ");
  return `${both} weigh ${odds} differently${margin(left, right)}.`;
}

function margin(left, right) {
  const least = Math.min(...[left, right].map((record) => record.draw.margin ?? Infinity));
  return Number.isFinite(least) ? `; the winner was ahead by ${fixed(least)} only` : "";
}
