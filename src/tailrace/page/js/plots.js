// Plots over an answer: surprise and entropy, survivors, speed, and what became of guesses. A click selects the token;
// the selected token is marked in all of them. While an answer streams, one plot a frame is renewed, a few times a
// second: each takes a few milliseconds at 4,000 tokens.
import { html, uPlot, useEffect, useRef } from "./lib.js";
import { surprise } from "./colour.js";
import * as state from "./state.js";
import { fixed } from "./text.js";
import { speed } from "./speed.js";

const EVERY_MS = 250; // between two renewals while tokens come
const HEIGHT = 120;
const SHOWN_MOST = 20; // nats: a token that the model gave nothing is drawn there

/** How many tokens could be drawn in the end; null where the record does not say. */
export const survivors = (record) => record.refinements.at(-1)?.kept ?? record.edits.at(-1)?.left ?? null;

const COLUMNS = ["index", "surprise", "entropy", "survivors", "gap", "speed", "accepted", "refused", "share"];

/** The columns that the plots show; grows with a run's list of tokens. */
export class Series {
  constructor() {
    this.tokens = null;
    this.reset();
  }

  reset() {
    for (const name of COLUMNS) this[name] = [];
    this.stood = 0;
    this.guessed = 0;
  }

  /** Reads the tokens that are new. */
  update(tokens) {
    if (tokens !== this.tokens || tokens.length < this.index.length) this.reset();
    this.tokens = tokens;
    for (let i = this.index.length; i < tokens.length; i++) this.#add(tokens, i);
    return this;
  }

  #add(tokens, i) {
    const { record, time_ms: time } = tokens[i];
    this.index.push(i);
    this.surprise.push(Math.min(SHOWN_MOST, surprise(record)));
    this.entropy.push(record.model.entropy);
    this.survivors.push(survivors(record));
    this.gap.push(i ? time - tokens[i - 1].time_ms : null);
    this.speed.push(speed(tokens, i));
    const accepted = record.origin === "accepted";
    const refused = record.origin === "replaced";
    this.stood += accepted;
    this.guessed += accepted || refused;
    this.accepted.push(accepted ? 1 : null);
    this.refused.push(refused ? 0 : null);
    this.share.push(this.guessed ? this.stood / this.guessed : null);
  }
}

const line = (label, colour, more = {}) => ({
  label,
  stroke: () => hue(colour),
  width: 1.5,
  points: { show: false },
  spanGaps: true,
  ...more,
});
const dots = (label, colour) => ({
  label,
  stroke: () => hue(colour),
  paths: () => null,
  points: { show: true, size: 5, fill: () => hue(colour) },
});

// title; unit; which columns; series; whether the scale is logarithmic; whether there is anything to show
const PLOTS = [
  {
    name: "surprise",
    title: "Surprise and entropy",
    unit: "nats",
    columns: ["surprise", "entropy"],
    series: () => [line("surprise", "--plot-1"), line("entropy", "--plot-2")],
  },
  {
    name: "survivors",
    title: "Survivors",
    unit: "tokens that could come",
    columns: ["survivors"],
    log: true,
    series: () => [line("survivors", "--plot-3")],
    only: (series) => series.survivors.some((count) => count !== null),
  },
  {
    name: "speed",
    title: "Speed",
    unit: "tokens per second",
    columns: ["speed"],
    series: () => [line("tokens/s", "--plot-1")],
  },
  { name: "gap", title: "Time between tokens", unit: "ms", columns: ["gap"], series: () => [line("ms", "--plot-4")] },
  {
    name: "guesses",
    title: "Guesses",
    unit: "accepted 1, refused 0, and the share so far",
    columns: ["accepted", "refused", "share"],
    series: () => [dots("accepted", "--plot-3"), dots("refused", "--plot-4"), line("share", "--plot-2")],
    range: [-0.1, 1.1],
    only: (series) => series.guessed > 0,
  },
];

const hue = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#888";

/**
 * run: signal of {tokens, done}. selected: signal of an index or null. onSelect(index): a token was clicked.
 */
export function Plots({ run, selected = ofPage.selected, onSelect = ofPage.onSelect }) {
  const kept = useRef(null);
  kept.current ??= new Series();
  const series = kept.current.update(run.value.tokens);
  if (!series.index.length) return html`<p class="empty">Plots come with the first tokens of an answer.</p>`;
  const shown = PLOTS.filter((plot) => !plot.only || plot.only(series));
  return html`<div class="plots">
    ${shown.map((plot) => html`<${Plot} key=${plot.name} plot=${plot} series=${series} run=${run}
      selected=${selected} onSelect=${onSelect} />`)}
    <p class="quiet">Click a point to select its token; the arrow keys walk them.</p>
  </div>`;
}

// The page's own selection, where nobody gives another.
const ofPage = {
  selected: {
    get value() {
      return state.selection.value && state.selection.value.node === state.current.value?.id
        ? state.selection.value.index
        : null;
    },
  },
  onSelect: (index) => state.current.value && state.select(state.current.value.id, index),
};

function Plot({ plot, series, run, selected, onSelect }) {
  const box = useRef(null);
  const chart = useRef(null);
  const place = selected?.value ?? null;
  const count = series.index.length;
  const columns = () => [series.index, ...plot.columns.map((name) => series[name])];

  useEffect(() => {
    chart.current = made(plot, box.current, columns(), (index) => onSelect(index));
    const resize = new ResizeObserver(() => {
      const width = box.current?.clientWidth;
      if (width) chart.current?.setSize({ width, height: HEIGHT });
    });
    resize.observe(box.current);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const redraw = () => chart.current?.redraw(false, true);
    scheme.addEventListener("change", redraw);
    const themes = new MutationObserver(redraw);
    themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme", "class"] });
    return () => {
      scheme.removeEventListener("change", redraw);
      themes.disconnect();
      resize.disconnect();
      chart.current.destroy();
    };
  }, []);
  useEffect(() => renew(chart.current, columns, run.value.done), [series, series.tokens, count, run.value.done]);
  useEffect(() => {
    chart.current.marked = place;
    chart.current.redraw(false, false);
  }, [place]);

  const walk = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const to =
      event.key === "Home"
        ? 0
        : event.key === "End"
          ? count - 1
          : step
            ? Math.max(0, Math.min(count - 1, (place ?? -step) + step))
            : null;
    if (to === null) return;
    event.preventDefault();
    onSelect(to);
  };
  return html`<figure class="plot" data-plot=${plot.name}>
    <figcaption>${plot.title} <span class="unit">${plot.unit}</span>${" "}
      <output>${reading(plot, series, place)}</output></figcaption>
    <div ref=${box} class="plot-box" role="slider" tabindex="0" aria-label=${`${plot.title}, ${plot.unit}`}
      aria-valuemin="1" aria-valuemax=${count} aria-valuenow=${(place ?? 0) + 1}
      aria-valuetext=${place === null ? "no token selected" : `token ${place + 1}: ${reading(plot, series, place)}`}
      onKeyDown=${walk}></div>
  </figure>`;
}

/** What stands at a place, or the mean over all. */
function reading(plot, series, place) {
  return plot.columns
    .filter((name) => !["accepted", "refused"].includes(name))
    .map((name) => {
      const column = series[name];
      const value = place === null ? mean(column) : column[place];
      const digits = name === "survivors" || name === "speed" ? 0 : 2;
      return value === null || value === undefined
        ? "–"
        : `${plot.columns.length > 1 ? `${name} ` : ""}${fixed(value, digits)}${place === null ? " on average" : ""}`;
    })
    .join(", ");
}

function mean(column) {
  let [sum, count] = [0, 0];
  for (const value of column) if (value !== null) [sum, count] = [sum + value, count + 1];
  return count ? sum / count : null;
}

let queue = Promise.resolve(); // plots that are to be renewed, one in a frame

const nextFrame = () =>
  new Promise((done) => {
    const timer = setTimeout(done, EVERY_MS); // in a hidden tab no frame comes
    requestAnimationFrame(() => (clearTimeout(timer), done()));
  });

/** Gives a chart its data: at once where the run has ended, else a few times a second, and one chart a frame. */
function renew(chart, columns, done) {
  const give = () => {
    if (chart.gone) return;
    chart.renewed = performance.now();
    chart.setData(columns());
  };
  if (done) return give();
  if (chart.waiting) return;
  const turn = () => {
    queue = queue.then(nextFrame).then(() => {
      chart.waiting = 0;
      give();
    });
  };
  chart.waiting = setTimeout(turn, Math.max(0, (chart.renewed ?? 0) + EVERY_MS - performance.now()));
}

function made(plot, box, data, onSelect) {
  const axis = {
    stroke: () => hue("--plot-text"),
    grid: { stroke: () => hue("--plot-grid"), width: 1 },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
  };
  const scale = plot.log
    ? { distr: 3, range: (u, low, high) => [1, Math.max(10, high || 10)] }
    : { range: plot.range ?? ((u, low, high) => [0, (high || 1) * 1.08]) };
  const chart = new uPlot(
    {
      width: box.clientWidth || 300,
      height: HEIGHT,
      padding: [8, 8, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: true, y: false }, points: { size: 6 } },
      scales: { x: { time: false }, y: scale },
      axes: [
        { ...axis, size: 22, values: (u, all) => all.map((i) => (Number.isInteger(i) ? i + 1 : "")) },
        { ...axis, size: 44 },
      ],
      series: [{}, ...plot.series()],
      hooks: { draw: [drawMark], destroy: [(u) => ((u.gone = true), clearTimeout(u.waiting))] },
    },
    data,
    box,
  );
  let down = null;
  chart.over.addEventListener("pointerdown", (event) => (down = event.clientX));
  chart.over.addEventListener("click", (event) => {
    const index = chart.cursor.idx;
    if (down !== null && Math.abs(event.clientX - down) < 4 && index !== null && index !== undefined) onSelect(index);
  });
  return chart;
}

/** The line of the selected token. */
function drawMark(chart) {
  if (chart.marked === null || chart.marked === undefined) return;
  const { ctx, bbox } = chart;
  const x = Math.round(chart.valToPos(chart.marked, "x", true)) + 0.5;
  if (x < bbox.left || x > bbox.left + bbox.width) return;
  ctx.save();
  ctx.strokeStyle = hue("--plot-mark");
  ctx.lineWidth = devicePixelRatio;
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.restore();
}
