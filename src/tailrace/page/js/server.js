// The server, live: what runs and waits, the KV cache, tokens per second, where a step's time goes. Read from /metrics
// about once a second while somebody looks.
import { html, signal, useEffect, useSignal } from "./lib.js";
import { get } from "./api.js";
import { cards } from "./state.js";
import { modelsIn, ofModel, parse, rates, reading } from "./metrics.js";
import { fixed } from "./text.js";

const EVERY_MS = 1000;
const KEPT = 120; // readings
const SPAN = 3; // readings between which a rate is taken: the engine sends its counters about once a second

/** Readings so far, the last one last: {now, rate}. */
const history = signal([]);
const status = signal(null);
const problem = signal("");
const model = signal("");
const models = signal([]);

/** Asks once. */
async function scrape() {
  try {
    const [text, said] = await Promise.all([get("/metrics"), get("/page/status").catch(() => null)]);
    const samples = parse(text);
    models.value = modelsIn(samples);
    const now = reading(ofModel(samples, model.value), performance.now() / 1000);
    const before = history.value.at(-SPAN)?.now ?? history.value[0]?.now;
    history.value = [...history.value, { now, rate: before ? rates(before, now) : null }].slice(-KEPT);
    status.value = said;
    problem.value = "";
  } catch (error) {
    problem.value = error.message;
  }
}

/** Asks again and again while the tab is seen; returns how to stop. */
function watch() {
  let timer = 0;
  let stopped = false;
  const turn = async () => {
    if (!document.hidden) await scrape();
    if (!stopped) timer = setTimeout(turn, EVERY_MS);
  };
  turn();
  return () => {
    stopped = true;
    clearTimeout(timer);
  };
}

const WORDS = {
  starting: "is loading",
  ready: "is ready",
  stalled: "has stalled",
  sleeping: "sleeps, and its memory is free: the next request loads it",
  loading: "was asleep, and is loading because a request waits",
  dead: "has ended",
  draining: "is shutting down",
};

/** The live view. */
export function ServerView() {
  useEffect(watch, []);
  const last = history.value.at(-1);
  return html`<section class="server" aria-label="The server">
    <${Health} status=${status.value} />
    ${cards.value.map((card) => html`<p key=${card.id} class="quiet">${describeParsers(card)}</p>`)}
    ${problem.value && html`<p class="knob-error" role="alert">${problem.value}</p>`}
    ${
      models.value.length > 1 &&
      html`<label class="server-model">model
      <select value=${model.value} onChange=${(event) => ((model.value = event.target.value), (history.value = []))}>
        <option value="">all</option>
        ${models.value.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
      </select></label>`
    }
    ${
      last
        ? html`<${Tiles} last=${last} /><${StepParts} rate=${last.rate} />`
        : html`<p class="empty">Reading the metrics …</p>`
    }
  </section>`;
}

/** What reads a model's thoughts and calls. */
export function describeParsers({ id, reasoning_parser: thoughts, tool_parser: calls, tool_grammar: forced }) {
  const can = calls === "none" || forced ? "" : ", which can't be forced";
  return `${id}: thoughts by ${thoughts}, calls by ${calls}${can}`;
}

/** What /health says, in words; nothing before it has answered. */
export function Health({ status: said }) {
  if (!said) return null;
  const { status: condition, error, part, seconds, progress } = said.health;
  const which = said.models.length === 1 ? said.models[0] : `${said.models.length} models`;
  const about = progress === undefined ? "" : `: about ${Math.round(100 * progress)} %`;
  const since = seconds === undefined ? about : `: ${fixed(seconds, 1)} s in ${part}`;
  return html`<div class=${`health ${condition}`} role="status">
    <p><i class="lamp"></i> <strong>${which}</strong> ${WORDS[condition] ?? condition}${since}.
      <span class="quiet"> tailrace ${said.version}</span></p>
    ${Object.entries(said.loading ?? {}).map(([name, stage]) => html`<${Loading} key=${name} name=${name}
      stage=${stage} />`)}
    ${error && html`<p class="knob-error">${error}</p>`}
  </div>`;
}

// The parts of an engine's start (wire/pulse.py), in order.
const STAGES = {
  "": "starting the engine's process",
  weights: "reading and packing the weights, and a trial run",
  grammars: "starting what compiles grammars",
  cache: "making the KV cache",
};

/** Which part of its start a model is in. Parts take very different times, so there is no share. */
function Loading({ name, stage }) {
  const at = Object.keys(STAGES).indexOf(stage);
  return html`<ol class="loading" aria-label=${`${name} is loading`}>
    ${Object.entries(STAGES).map(
      ([part, words], i) => html`<li key=${part} class=${i < at ? "over" : i === at ? "now" : ""}
      aria-current=${i === at ? "step" : undefined}>${words}</li>`,
    )}
  </ol>`;
}

/** The state of a server that is not ready, until it is; then nothing. */
export function Starting() {
  const said = useSignal(null);
  useEffect(() => {
    let timer = 0;
    const ask = async () => {
      said.value = await get("/page/status").catch(() => null);
      if (said.value?.health.status !== "ready") timer = setTimeout(ask, EVERY_MS);
    };
    ask();
    return () => clearTimeout(timer);
  }, []);
  if (!said.value || said.value.health.status === "ready") return null;
  return html`<div class="starting"><${Health} status=${said.value} /></div>`;
}

const column = (of) => history.value.map(of);
const whole = (value) =>
  value === null || value === undefined ? "–" : value < 10 && value % 1 ? fixed(value, 1) : String(Math.round(value));
const percentage = (value) =>
  value === null || value === undefined
    ? "–"
    : `${value > 0 && value < 0.0005 ? "< 0.1" : fixed(100 * value, value > 0 && value < 0.1 ? 1 : 0)} %`;
const duration = (seconds) =>
  seconds === null || seconds === undefined
    ? "–"
    : seconds < 1
      ? `${fixed(seconds * 1000, seconds < 0.01 ? 1 : 0)} ms`
      : `${fixed(seconds, 1)} s`;

function Tiles({ last: { now, rate } }) {
  const tiles = [
    ["Tokens per second", whole(rate?.generated), "generated", column(({ rate: r }) => r?.generated)],
    [
      "Running",
      whole(now.running),
      now.slots === null ? "" : `of ${now.slots} slots`,
      column(({ now: n }) => n.running),
      now.slots,
    ],
    ["Waiting", whole(now.waiting), "for a slot", column(({ now: n }) => n.waiting)],
    ["KV cache", percentage(now.cache), "of its blocks in use", column(({ now: n }) => n.cache), 1],
    [
      "Prompt tokens per second",
      whole(rate?.prompt),
      now.counters.prompt
        ? `${percentage(now.counters.cached / now.counters.prompt)} from the prefix cache so far`
        : "",
      column(({ rate: r }) => r?.prompt),
    ],
    [
      "A step",
      duration(rate?.step_ms === null || !rate ? null : rate.step_ms / 1000),
      rate?.steps ? `${whole(rate.steps)} steps per second` : "",
      column(({ rate: r }) => r?.step_ms),
    ],
    ["First token", duration(rate?.first_s), "median of the last seconds", column(({ rate: r }) => r?.first_s)],
    ["Between tokens", duration(rate?.between_s), "median of the last seconds", column(({ rate: r }) => r?.between_s)],
  ];
  if (now.counters.drafted)
    tiles.push([
      "Guesses accepted",
      percentage(rate?.accepted ?? now.counters.accepted / now.counters.drafted),
      rate?.accepted === null ? "so far" : "of the last seconds",
      column(({ rate: r }) => r?.accepted),
      1,
    ]);
  return html`<dl class="tiles">${tiles.map(
    ([name, value, note, values, top]) => html`<div class="tile" key=${name}>
    <dt>${name}</dt><dd><span class="figure">${value}</span> <span class="quiet">${note}</span></dd>
    <${Spark} values=${values} top=${top} />
  </div>`,
  )}</dl>`;
}

const WIDTH = 120;
const HEIGHT = 28;

/** A line without axes: the last two minutes, or half of one until there is more. top: the scale's end; without it the
 * largest value. */
export function Spark({ values, top = null }) {
  const most = top || Math.max(...values.map((value) => value ?? 0), 1e-9);
  const x = (i) => WIDTH - ((values.length - 1 - i) * WIDTH) / (Math.max(values.length, KEPT / 4) - 1);
  const y = (value) => HEIGHT - 2 - (Math.min(value, most) / most) * (HEIGHT - 4);
  let [drawn, pen] = ["", "M"];
  values.forEach((value, i) => {
    if (value === null || value === undefined) pen = "M";
    else [drawn, pen] = [`${drawn}${pen}${x(i).toFixed(1)} ${y(value).toFixed(1)}`, "L"];
  });
  return html`<svg class="spark" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
    <path d=${drawn} /></svg>`;
}

const PART_WORDS = {
  plan: "plan",
  draft: "guess",
  forward: "the model",
  wait: "wait for the device",
  mask: "grammar masks",
  sample: "sample",
  verify: "verify guesses",
  commit: "commit",
  observe: "drafter looks on",
};

/** Where the time of the last steps went. */
function StepParts({ rate }) {
  const parts = Object.entries(rate?.parts ?? {}).sort(([, a], [, b]) => b - a);
  const sum = parts.reduce((all, [, value]) => all + value, 0);
  if (!sum) return html`<p class="quiet">No step was made in the last seconds: send something.</p>`;
  let at = 0;
  const placed = parts.map(([part, value], i) => {
    const from = at;
    at += value / sum;
    return { part, share: value / sum, from, i };
  });
  return html`<section class="step-parts">
    <h3>Where a step's time goes</h3>
    <svg viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">
      ${placed.map(({ part, share, from, i }) => html`<rect key=${part} class=${`part-${i % 6}`}
        x=${100 * from} width=${100 * share} y="0" height="6" />`)}
    </svg>
    <ul>${placed.map(({ part, share, i }) => html`<li key=${part}><i class=${`part-${i % 6}`}></i>${" "}
      ${PART_WORDS[part] ?? part} <span class="figure">${percentage(share)}</span></li>`)}</ul>
  </section>`;
}
