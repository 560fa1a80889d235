// What a knob does on one token, as a curve: how many candidates survive, and how much of the probability, for every
// value of the knob. Computed in the browser from the token's record, which shows some of the candidates only. A point
// is exact where these suffice; where they don't, the curve is dashed and says so.
import { html } from "./lib.js";
import { percent } from "./text.js";
import { slider } from "./fields.js";
import { fields } from "./state.js";

/**
 * The distribution that a refinement sees: {p: the shown probabilities, descending; rest: what all others have
 * together; total: how many tokens have any; bound: no other has more than this}. Null if nothing is known of it.
 */
export function before(record, method) {
  const earlier = stepsBefore(record, method);
  const last = earlier.at(-1);
  const found = last
    ? known(record, last.probabilities, last.kept)
    : known(record, edited(record), record.edits.at(-1)?.left ?? Infinity);
  return found.p.length ? found : null;
}

function stepsBefore(record, method) {
  const at = record.refinements.findIndex((step) => step.method === method);
  if (at >= 0) return record.refinements.slice(0, at);
  const order = fields.value.refinements ?? []; // the default order, which the request has not changed
  return record.refinements.filter((step) => order.indexOf(step.method) < order.indexOf(method));
}

/** Of probabilities of the shown tokens (null: cut) and a count of all that may come. */
function known(record, probabilities, total) {
  const p = probabilities.filter((each) => each !== null && each > 0).sort((a, b) => b - a);
  const sum = p.reduce((a, b) => a + b, 0);
  const rest = p.length >= total || sum > 1 - 1e-7 ? 0 : 1 - sum;
  return { p, rest, total, bound: rest ? boundOf(record, probabilities) : 0 };
}

/** What a token that is not shown has at most: less than the least of the likeliest that no edit has moved. */
function boundOf(record, probabilities) {
  const { ranks, logits } = record.model;
  const after = record.edits.at(-1)?.logits ?? logits;
  const seen = new Set(ranks);
  let last = 0;
  while (seen.has(last + 1)) last += 1;
  const least = probabilities.filter((p, i) => p !== null && ranks[i] <= last && logits[i] === after[i]);
  return least.length ? Math.min(...least) : 1;
}

/** Probabilities after the edits, of the shown tokens. */
const edited = (record) => record.edits.at(-1)?.probabilities ?? record.model.probabilities;

/** The n likeliest that are shown: {kept, mass, exact}. exact: no token that is not shown can be among them. */
function likeliest({ p, bound }, n) {
  return { kept: n, mass: p.slice(0, n).reduce((a, b) => a + b, 0), exact: n === 0 || p[n - 1] >= bound };
}

/** Those with at least this probability. */
function above(d, least) {
  const found = likeliest(d, Math.max(1, d.p.filter((p) => p >= least).length));
  return { ...found, exact: least > d.bound };
}

/** method → (distribution, value, context) → {kept, mass, exact}; what it keeps at a value of its field. */
export const CUTS = {
  top_k: (d, k) => {
    if (k <= 0 || k >= d.total) return all(d);
    return k <= d.p.length ? likeliest(d, k) : { ...likeliest(d, d.p.length), exact: false };
  },
  top_p: (d, share) => {
    if (share >= 1) return all(d);
    let mass = 0;
    for (let i = 0; i < d.p.length; i++) if ((mass += d.p[i]) >= share - 1e-9) return likeliest(d, i + 1);
    return { ...likeliest(d, d.p.length), exact: !d.rest };
  },
  min_p: (d, share) => (share <= 0 ? all(d) : above(d, share * d.p[0])),
  top_a: (d, a) => (a <= 0 ? all(d) : above(d, a * d.p[0] ** 2)),
  epsilon_cutoff: (d, least) => (least <= 0 ? all(d) : above(d, least)),
  eta_cutoff: (d, eta, entropy) => (eta <= 0 ? all(d) : above(d, Math.min(eta, Math.sqrt(eta) * Math.exp(-entropy)))),
  typical_p: (d, share, entropy) => {
    if (share >= 1) return all(d);
    const far = (p) => Math.abs(-Math.log(p) - entropy);
    const sorted = [...d.p].sort((a, b) => far(a) - far(b));
    const unseen = d.rest ? -Math.log(d.bound) - entropy : Infinity; // what is not shown is not nearer than this
    let mass = 0;
    for (let i = 0; i < sorted.length; i++) {
      if (far(sorted[i]) > unseen) return { kept: Math.max(1, i), mass, exact: false };
      mass += sorted[i];
      if (mass >= share - 1e-9) return { kept: i + 1, mass, exact: true };
    }
    return { kept: sorted.length, mass, exact: !d.rest };
  },
  xtc: (d, threshold) => {
    const tops = d.p.filter((p) => p >= threshold).length;
    if (tops < 2) return { ...all(d), exact: threshold > d.bound };
    const kept = (Number.isFinite(d.total) ? d.total : d.p.length) - tops + 1;
    const cut = d.p.slice(0, tops - 1).reduce((a, b) => a + b, 0);
    return { kept, mass: 1 - cut, exact: threshold > d.bound && (Number.isFinite(d.total) || !d.rest) };
  },
};

function all(d) {
  const counted = Number.isFinite(d.total);
  return { kept: counted ? d.total : d.p.length, mass: 1, exact: counted || !d.rest, all: true };
}

// field → the method whose cut it turns
const TURNS = {
  top_k: "top_k",
  top_p: "top_p",
  min_p: "min_p",
  top_a: "top_a",
  epsilon_cutoff: "epsilon_cutoff",
  eta_cutoff: "eta_cutoff",
  typical_p: "typical_p",
  xtc_threshold: "xtc",
};
const POINTS = 80;

/** Values of a field for a curve, over its slider. */
function values(field) {
  const [low, high, step] = slider(field);
  const count = Math.min(POINTS, Math.max(2, Math.round((high - low) / step)));
  const found = Array.from({ length: count + 1 }, (_, i) => low + ((high - low) * i) / count);
  return step >= 1 ? [...new Set(found.map(Math.round))] : found;
}

/**
 * The curve of a truncation's field: {x, kept, mass, exact, off (it cuts nothing there)} lists, shown: how many
 * candidates are known, at(value): one point; null where the field has no curve or the record none of its numbers.
 */
export function survival(field, record) {
  const method = TURNS[field.name];
  if (!method || !record) return null;
  const d = before(record, method);
  if (!d) return null;
  const entropy = stepsBefore(record, method).at(-1)?.entropy ?? record.model.entropy;
  const x = values(field);
  const points = x.map((value) => CUTS[method](d, value, entropy));
  return {
    x,
    kept: points.map((p) => p.kept),
    mass: points.map((p) => p.mass),
    exact: points.map((p) => p.exact),
    off: points.map((p) => p.all ?? false),
    shown: d.p.length,
    at: (value) => CUTS[method](d, value, entropy),
  };
}

/** How temperature shares the probability among the shown candidates: {x, lines: per candidate, i: their places}. */
export function warmth(field, record, most = 5) {
  if (field.name !== "temperature" || !record) return null;
  const p = edited(record);
  const known = p
    .map((each, i) => [each, i])
    .filter(([each]) => each !== null && each > 0)
    .sort((a, b) => b[0] - a[0]);
  if (known.length < 2) return null;
  const at = (t) => {
    const top = Math.log(known[0][0]);
    const weights = known.map(([each]) =>
      t <= 0 ? (each === known[0][0] ? 1 : 0) : Math.exp((Math.log(each) - top) / t),
    );
    const sum = weights.reduce((a, b) => a + b, 0);
    return weights.map((w) => w / sum);
  };
  const x = values(field);
  const shares = x.map(at);
  const shown = known.slice(0, most);
  return {
    x,
    lines: shown.map((_, i) => shares.map((each) => each[i])),
    places: shown.map(([, i]) => i),
    shown: known.length,
    at,
  };
}

const WIDTH = 260;
const HEIGHT = 64;
const PAD = 3;

const scaler = (low, high, size, pad) => (value) => pad + ((value - low) / (high - low || 1)) * (size - 2 * pad);

/** A path through points; breaks where `wanted` is false. */
function path(x, y, wanted) {
  let drawn = "";
  let pen = "M";
  for (let i = 0; i < x.length; i++) {
    if (!wanted(i)) pen = "M";
    else [drawn, pen] = [`${drawn}${pen}${x[i].toFixed(1)} ${y[i].toFixed(1)}`, "L"];
  }
  return drawn;
}

/** The curve of a field on a token, with a line at the present value. Nothing where there is none. */
export function Curve({ field, record, value }) {
  const cut = survival(field, record);
  if (cut) return SurvivalCurve({ curve: cut, value, field });
  const warm = warmth(field, record);
  return warm ? WarmthCurve({ curve: warm, value, record }) : null;
}

function SurvivalCurve({ curve, value, field }) {
  const sx = scaler(curve.x[0], curve.x.at(-1), WIDTH, PAD);
  const most = Math.max(...curve.kept.filter((_, i) => !curve.off[i]), 2);
  const sy = (kept) => HEIGHT - PAD - (Math.log(Math.max(1, kept)) / Math.log(most)) * (HEIGHT - 2 * PAD);
  const sm = (mass) => HEIGHT - PAD - mass * (HEIGHT - 2 * PAD);
  const [x, kept, mass] = [curve.x.map(sx), curve.kept.map(sy), curve.mass.map(sm)];
  const near = (i) => !curve.off[i] && (curve.exact[i] || (curve.exact[i - 1] && !curve.off[i - 1]));
  const unsure = (i) => !curve.off[i] && !curve.exact[i];
  const now = value === null || value === undefined ? null : curve.at(value);
  const inside = value >= curve.x[0] && value <= curve.x.at(-1);
  const known = curve.exact.every(Boolean);
  const words = now ? saying(now) : "";
  return html`<figure class="curve">
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img"
      aria-label=${`${field.name} on this token. ${words}`}>
      <path class="curve-mass" d=${path(x, mass, near)} />
      <path class="curve-mass unsure" d=${path(x, mass, unsure)} />
      <path class="curve-kept" d=${path(x, kept, near)} />
      <path class="curve-kept unsure" d=${path(x, kept, unsure)} />
      ${now && inside && html`<line class="curve-now" x1=${sx(value)} x2=${sx(value)} y1="0" y2=${HEIGHT} />`}
    </svg>
    <figcaption>${words}${" "}
      <span class="curve-legend"><i class="key-kept"></i> survivors <i class="key-mass"></i> mass</span>${" "}
      ${known ? null : html`<span
        class="unsure-note">Dashed: at least so many; the record shows ${curve.shown}.</span>`}
    </figcaption>
  </figure>`;
}

function saying({ kept, mass, exact, all: everything }) {
  if (everything) return "Cuts nothing here.";
  const atLeast = exact ? "" : "at least ";
  const tokens = `${kept.toLocaleString("en")} ${kept === 1 ? "token" : "tokens"}`;
  return `Keeps ${atLeast}${tokens}, ${atLeast}${percent(Math.min(1, mass))} of the mass.`;
}

function WarmthCurve({ curve, value, record }) {
  const sx = scaler(curve.x[0], curve.x.at(-1), WIDTH, PAD);
  const sy = (share) => HEIGHT - PAD - share * (HEIGHT - 2 * PAD);
  const x = curve.x.map(sx);
  const inside = value >= curve.x[0] && value <= curve.x.at(-1);
  const first = percent(curve.at(value ?? 1)[0]);
  return html`<figure class="curve">
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img"
      aria-label=${`temperature on this token: the likeliest has ${first}`}>
      ${curve.lines.map((line, i) => html`<path key=${i} class=${`curve-share share-${i}`}
        d=${path(x, line.map(sy), () => true)} />`)}
      ${inside && html`<line class="curve-now" x1=${sx(value)} x2=${sx(value)} y1="0" y2=${HEIGHT} />`}
    </svg>
    <figcaption>The likeliest has ${first}, <bdi class="token-label">${record.tokens?.[curve.places[0]] ?? ""}</bdi>.
      <span class="unsure-note"> Shares among the ${curve.shown} candidates that are shown.</span></figcaption>
  </figure>`;
}
