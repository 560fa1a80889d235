// The fields of a request, as the server declares them (page/fields.json): how one reads and checks what a person
// gives. No markup here.

/** What stands in the declarations' place until they are there. */
export const NO_FIELDS = { fields: [], kinds: {}, presets: {}, defaults: {}, voids: {} };

/** Kinds in the order in which they are shown, each with a heading. */
export const GROUPS = [
  ["truncation", "Which tokens may come"],
  ["reshape", "How their probabilities are bent"],
  ["edit", "Single tokens: penalties, biases, bans"],
  ["draw", "The draw"],
  ["stop", "Where it ends"],
  ["text", "What leaves text"],
  ["report", "What is reported"],
  ["engine", "How it is computed"],
];

/** Fields that most people look for, shown first. */
export const COMMON = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

/** Fields that the page gives by itself, or that would change what it can show: n, a whole output's beginning, …. */
export const OWN = new Set([
  "n",
  "explain",
  "forced_token_ids",
  "prompt_logprobs",
  "prompt_logprob_start",
  "prompt_logprob_token_ids",
  "prompt_logprobs_temperature",
  "logprobs",
  "logprob_token_ids",
  "logprobs_mode",
  "report_entropy",
  "return_sampling_mask",
]);

// The part of a range that people use, for sliders: [low, high, step].
const USUAL = {
  temperature: [0, 2, 0.01],
  dynatemp_range: [0, 2, 0.01],
  dynatemp_exponent: [0.1, 4, 0.1],
  smoothing_factor: [0, 5, 0.05],
  adaptive_decay: [0, 0.99, 0.01],
  top_k: [0, 200, 1],
  top_n_sigma: [0, 5, 0.05],
  min_p: [0, 0.5, 0.005],
  min_k_tau: [0, 20, 0.5],
  epsilon_cutoff: [0, 0.05, 0.0005],
  eta_cutoff: [0, 0.05, 0.0005],
  mirostat_tau: [0.5, 10, 0.1],
  mirostat_eta: [0, 1, 0.01],
  repetition_penalty: [0.8, 2, 0.01],
  encoder_repetition_penalty: [0.8, 2, 0.01],
  presence_penalty: [-2, 2, 0.05],
  frequency_penalty: [-2, 2, 0.05],
  dry_multiplier: [0, 5, 0.05],
  dry_base: [1, 4, 0.05],
  dry_allowed_length: [1, 20, 1],
  no_repeat_ngram_size: [0, 10, 1],
  encoder_no_repeat_ngram_size: [0, 10, 1],
  guidance_scale: [0, 10, 0.1],
  max_tokens: [1, 2048, 1],
  min_tokens: [0, 512, 1],
};

/** [low, high, step] of a field's slider, or null where a slider would help nobody. */
export function slider(field) {
  if (USUAL[field.name]) return USUAL[field.name];
  if (field.low === undefined || field.high - field.low > 100) return null;
  const span = field.high - field.low;
  return isWhole(field) ? [field.low, field.high, 1] : [field.low, field.high, span / 100];
}

const isWhole = (field) => Object.values(field.forms).every((form) => form === "integer");

/** The form of a field on an endpoint ("chat", "completion"), or undefined where it is not to be had. */
export const formOf = (field, mode) => field.forms[mode];

/** Values that the page gives where neither a person nor the model's defaults do: an answer has an end in sight. */
export const PAGE_DEFAULTS = { max_tokens: 512 };

/** The field's value if a person gives none: the model's own default, else the page's, else the neutral value. */
export function startOf(field, declared, model) {
  return declared.defaults?.[model]?.[field.name] ?? PAGE_DEFAULTS[field.name] ?? field.neutral ?? null;
}

/** The page's defaults for the fields that the model's own defaults leave open. */
export function pageDefaults(declared, model) {
  const own = declared.defaults?.[model] ?? {};
  return Object.fromEntries(Object.entries(PAGE_DEFAULTS).filter(([name]) => !(name in own)));
}

/** The groups that are not empty: [kind, heading, what they do, fields], the common ones first. */
export function grouped(declared, mode) {
  const known = (declared.fields ?? []).filter((field) => formOf(field, mode) && !OWN.has(field.name));
  const common = COMMON.map((name) => known.find((field) => field.name === name)).filter(Boolean);
  const rest = known.filter((field) => !COMMON.includes(field.name));
  const groups = GROUPS.map(([kind, heading]) => [
    kind,
    heading,
    declared.kinds?.[kind] ?? "",
    rest.filter((f) => f.kind === kind),
  ]);
  return [["common", "Most used", "", common], ...groups].filter(([, , , fields]) => fields.length);
}

const shownNumber = (value) => (Math.abs(value) >= 1e4 ? value.toLocaleString("en") : String(value)).replace("-", "−");

/** The range in words: "a number in [0, 1]"; "" without one. */
export function rangeOf(field) {
  if (field.low === undefined) return "";
  const [open, close] = [field.low_in === false ? "(" : "[", field.high_in === false ? ")" : "]"];
  const kind = isWhole(field) ? "an integer" : "a number";
  if (field.low < -Number.MAX_SAFE_INTEGER) return kind;
  if (field.high >= 2 ** 31 - 1) return `${kind} from ${shownNumber(field.low)} on`;
  return `${kind} in ${open}${shownNumber(field.low)}, ${shownNumber(field.high)}${close}`;
}

/** The value at which a field does nothing, in words. */
export function neutralOf(field) {
  if (field.off) return field.off;
  if (field.neutral === undefined || field.neutral === null) return "not given";
  return String(field.neutral);
}

/** What a person typed → {value} or {error}; {} for nothing. */
export function parse(field, form, text) {
  if (text.trim() === "" && form !== "text") return {};
  return (PARSERS[form] ?? PARSERS.json)(field, text);
}

const PARSERS = {
  number: (field, text) => numeric(field, text, Number.isFinite, "a number"),
  integer: (field, text) => numeric(field, text, Number.isSafeInteger, "an integer"),
  text: (field, text) => (text === "" ? {} : { value: text }),
  texts: (field, text) => listed(field, lines(text).map(unescaped)),
  ids: (field, text) => {
    const ids = text.split(/[\s,]+/).filter(Boolean);
    const wrong = ids.find((id) => !/^\d{1,10}$/.test(id));
    return wrong === undefined ? listed(field, ids.map(Number)) : { error: `${JSON.stringify(wrong)} is no token id` };
  },
  map: (field, text) => {
    const found = {};
    for (const line of lines(text)) {
      const at = line.lastIndexOf("=");
      const value = Number(line.slice(at + 1));
      if (at < 1 || line.slice(at + 1).trim() === "" || !Number.isFinite(value)) {
        return { error: `each line is TEXT=NUMBER or ID=NUMBER, not ${JSON.stringify(line)}` };
      }
      found[unescaped(line.slice(0, at))] = value;
    }
    return { value: found };
  },
  json: (field, text) => {
    try {
      return { value: JSON.parse(text) };
    } catch (error) {
      return { error: `this is no JSON: ${error.message}` };
    }
  },
};

function numeric(field, text, accepted, kind) {
  const value = Number(text.trim().replace("−", "-"));
  if (!accepted(value)) return { error: `${field.name} must be ${kind}` };
  const { low = -Infinity, high = Infinity, low_in = true, high_in = true } = field;
  const inside = (low_in ? value >= low : value > low) && (high_in ? value <= high : value < high);
  return inside ? { value } : { error: `${field.name} must be ${rangeOf(field)}` };
}

function listed(field, value) {
  if (field.entries && value.length > field.entries) return { error: `at most ${field.entries} entries` };
  return { value };
}

const lines = (text) => text.split("\n").filter((line) => line !== "");
const ESCAPES = { "\\n": "\n", "\\t": "\t", "\\r": "\r", "\\\\": "\\" };
const unescaped = (text) => text.replace(/\\[ntr\\]/g, (found) => ESCAPES[found]);
const escaped = (text) =>
  text.replace(/[\\\n\t\r]/g, (found) => Object.entries(ESCAPES).find(([, to]) => to === found)[0]);

/** A value as a person would type it. */
export function shownValue(form, value) {
  if (value === null || value === undefined) return "";
  if (form === "texts") return [].concat(value).map(escaped).join("\n");
  if (form === "ids") return value.join(", ");
  if (form === "map")
    return Object.entries(value)
      .map(([key, bias]) => `${escaped(key)}=${bias}`)
      .join("\n");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** The parameters with a field at a value; undefined, and what it is without being given, leave it out. */
export function withField(params, field, value, start) {
  const { [field.name]: _, ...rest } = params;
  const same = value === undefined || JSON.stringify(value) === JSON.stringify(start);
  return same ? rest : { ...rest, [field.name]: value };
}

/** Why a field that is given does nothing, or would be refused; "" if it works. */
export function idle(field, params, declared, model) {
  const byName = new Map((declared.fields ?? []).map((each) => [each.name, each]));
  const at = (name) => params[name] ?? startOf(byName.get(name) ?? { name }, declared, model);
  const on = (name) => byName.has(name) && !isNeutral(byName.get(name), at(name));
  if (field.needs?.length && !field.needs.some(on)) return `does nothing without ${field.needs.join(" or ")}`;
  const by = (field.voided_by ?? []).find((name) => byName.has(name) && voids(byName.get(name), at(name)));
  return by ? `has no effect with ${declared.voids?.[by] ?? by}` : "";
}

/** Whether a field takes away the effect of others at this value: as soon as it acts; temperature only at 0. */
const voids = (field, value) => (field.name === "temperature" ? value === 0 : !isNeutral(field, value));

/** Whether a field does nothing at this value. */
export function isNeutral(field, value) {
  if (value === null || value === undefined) return true;
  if (field.off === "0 and below") return value <= 0;
  if (field.off === "below 0") return value < 0;
  return JSON.stringify(value) === JSON.stringify(field.neutral ?? null);
}

/**
 * Whose choice each field is that an answer was computed with: [{name, value, from}]. params: as the server says them,
 * with its own names; neutral fields are not among them.
 */
export function used(params, body, declared, model) {
  const from = (name) => {
    if ((OWN.has(name) && !(name in body)) || (name in PAGE_DEFAULTS && PAGE_DEFAULTS[name] === body[name]))
      return "this page";
    if (body[name] !== undefined && body[name] !== null) return "the request";
    if (name in (declared.presets?.[body.preset] ?? {})) return `the preset ${body.preset}`;
    return name in (declared.defaults?.[model] ?? {}) ? "the server's defaults for the model" : "the server";
  };
  return Object.entries(params).map(([name, value]) => ({ name, value, from: from(name) }));
}
