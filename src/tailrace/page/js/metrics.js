// Prometheus' text → what the live view shows. Pure functions.

const LINE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"/g;
const ESCAPED = { "\\n": "\n", '\\"': '"', "\\\\": "\\" };

/** The samples of an exposition: [{name, labels, value}]. Lines that are none are left out. */
export function parse(text) {
  const found = [];
  for (const line of text.split("\n")) {
    const parts = line[0] === "#" ? null : LINE.exec(line);
    if (!parts) continue;
    const labels = {};
    for (const [, name, value] of (parts[2] ?? "").matchAll(LABEL))
      labels[name] = value.replace(/\\[n"\\]/g, (each) => ESCAPED[each]);
    found.push({ name: parts[1], labels, value: numberOf(parts[3]) });
  }
  return found;
}

const numberOf = (text) => ({ "+Inf": Infinity, "-Inf": -Infinity, NaN: NaN })[text] ?? Number(text);

/** The samples of one model; those without a name belong to all. "" takes every model. */
export const ofModel = (samples, model) =>
  samples.filter(({ labels }) => !model || !labels.model_name || labels.model_name === model);

/** Names of the models in the samples. */
export const modelsIn = (samples) => [...new Set(samples.map(({ labels }) => labels.model_name).filter(Boolean))];

/** The sum of a metric over its samples; null if there is none. */
export function total(samples, name) {
  const values = samples.filter((sample) => sample.name === name);
  return values.length ? values.reduce((sum, { value }) => sum + value, 0) : null;
}

/** label value → sum, of a metric. */
export function byLabel(samples, name, label) {
  const found = {};
  for (const sample of samples)
    if (sample.name === name && sample.labels[label] !== undefined)
      found[sample.labels[label]] = (found[sample.labels[label]] ?? 0) + sample.value;
  return found;
}

/** bound → count, of a histogram's buckets, over all its samples. */
export function buckets(samples, name) {
  const found = new Map();
  for (const { name: each, labels, value } of samples)
    if (each === `${name}_bucket`) found.set(numberOf(labels.le), (found.get(numberOf(labels.le)) ?? 0) + value);
  return [...found].sort(([a], [b]) => a - b);
}

/** The value below which a share of what came between two scrapes lies, by the buckets; null if nothing came. */
export function quantile(before, now, share) {
  const earlier = new Map(before);
  const counts = now.map(([bound, count]) => [bound, count - (earlier.get(bound) ?? 0)]);
  const all = counts.at(-1)?.[1] ?? 0;
  if (!(all > 0)) return null;
  let [low, below] = [0, 0];
  for (const [bound, count] of counts) {
    if (count >= share * all)
      return Number.isFinite(bound) ? low + ((bound - low) * (share * all - below)) / (count - below || 1) : low;
    [low, below] = [bound, count];
  }
  return low;
}

const PARTS = "tailrace_engine_step_seconds_total";
const WAITED = ["receive", "send"]; // around the step

/** What one scrape says: numbers that stand for themselves, and counters. */
export function reading(samples, time_s) {
  const sum = (name) => total(samples, `tailrace_${name}`);
  return {
    time_s,
    running: sum("num_requests_running"),
    waiting: sum("num_requests_waiting"),
    slots: sum("num_slots"),
    slots_used: sum("num_slots_used"),
    cache: largest(samples, "tailrace_kv_cache_usage_ratio"),
    counters: {
      generated: sum("generation_tokens_total"),
      prompt: sum("prompt_tokens_total"),
      cached: sum("prompt_tokens_cached_total"),
      steps: sum("engine_steps_total"),
      drafted: sum("spec_draft_tokens_total"),
      accepted: sum("spec_accepted_tokens_total"),
      preempted: sum("num_preemptions_total"),
    },
    parts: byLabel(samples, PARTS, "part"),
    first: buckets(samples, "tailrace_time_to_first_token_seconds"),
    between: buckets(samples, "tailrace_inter_token_latency_seconds"),
    lag: buckets(samples, "tailrace_event_loop_lag_seconds"),
  };
}

function largest(samples, name) {
  const values = samples.filter((sample) => sample.name === name).map(({ value }) => value);
  return values.length ? Math.max(...values) : null;
}

/** What happened between two readings, per second; null where a counter went back (the engine is a new one). */
export function rates(before, now) {
  const seconds = now.time_s - before.time_s;
  const per = (name) => {
    const [a, b] = [before.counters[name], now.counters[name]];
    return a === null || b === null || b < a || !(seconds > 0) ? null : (b - a) / seconds;
  };
  const steps = per("steps");
  const parts = Object.fromEntries(
    Object.entries(now.parts)
      .map(([part, value]) => [part, Math.max(0, value - (before.parts[part] ?? 0))])
      .filter(([part, value]) => value > 0 && !WAITED.includes(part)),
  );
  const busy = Object.values(parts).reduce((a, b) => a + b, 0);
  const drafted = per("drafted");
  return {
    generated: per("generated"),
    prompt: per("prompt"),
    steps,
    parts,
    step_ms: steps ? (busy / (steps * seconds)) * 1000 : null,
    accepted: drafted ? per("accepted") / drafted : null,
    first_s: quantile(before.first, now.first, 0.5),
    between_s: quantile(before.between, now.between, 0.5),
    lag_s: quantile(before.lag, now.lag, 0.99),
  };
}
