// Tokens as spans: their colours, kinds, keyboard and legend. Drawn in pieces that stay as they are once they are full.
import { Memo, html, useEffect, useRef, useSignal } from "./lib.js";
import { ORIGINS, SCHEMES, drawProbability, level, surprise } from "./colour.js";
import { settings } from "./state.js";
import { fixed, hex, isThin, label, percent, shown } from "./text.js";

const PIECE = 64; // tokens that are drawn together

const layouts = new WeakMap(); // list of tokens → how far it is laid out, and its blocks

/** Blocks of a growing list of tokens: one channel and one paragraph each, so that a new token moves only the last. */
export function blocksOf(tokens) {
  let layout = layouts.get(tokens);
  if (!layout) layouts.set(tokens, (layout = { count: 0, blocks: [] }));
  const { blocks } = layout;
  for (; layout.count < tokens.length; layout.count++) {
    const { channel, text } = tokens[layout.count];
    let last = blocks.at(-1);
    if (!last || last.closed || last.channel !== channel)
      blocks.push((last = { start: layout.count, channel, closed: false }));
    last.end = layout.count + 1;
    last.closed = text.endsWith("\n");
  }
  return blocks;
}

/** A token in words: for its tip, and for those who hear it. */
export function describe(token, index, count) {
  const { record, text } = token;
  const name = token.special
    ? `the token ${text}`
    : text
      ? `“${label(text)}”`
      : `bytes ${hex(record.bytes)}, part of a character`;
  const [origin] = ORIGINS[record.origin];
  const channel = { thought: ", in a thought", tool: ", in a tool call" }[token.channel] ?? "";
  const numbers = `${percent(drawProbability(record))}, surprise ${fixed(surprise(record))}`;
  return `${name}: ${numbers}, ${origin}${channel}. Token ${index + 1} of ${count}.`;
}

/** A class for texts that nobody could see or point at: no whole character, one without width, line breaks. */
function shapeOf(text) {
  if (!text) return " part";
  if (isThin(text)) return " thin";
  return /^\n+$/.test(text) ? " break" : "";
}

class Piece extends Memo {
  render({ tokens, start, end, scheme, invisible, sel, marks }) {
    const spans = [];
    for (let i = start; i < end; i++) {
      const { record, text, special } = tokens[i];
      const kind = special ? " special" : shapeOf(text);
      const mark = marks.get(i);
      const state = `${i === sel ? " sel" : ""}${mark ? ` mark ${mark}` : ""}`;
      const name = `t l${level(scheme, record)} o-${record.origin}${kind}${state}`;
      spans.push(html`<span key=${i} class=${name} data-i=${i} data-hex=${text ? undefined : hex(record.bytes)}
        >${special ? label(text) : shown(text, invisible)}</span>`);
    }
    return spans;
  }
}

class Block extends Memo {
  render({ start, end, sel, ...rest }) {
    const pieces = [];
    for (let from = start; from < end; from += PIECE) {
      const to = Math.min(from + PIECE, end);
      pieces.push(
        html`<${Piece} key=${from} start=${from} end=${to} sel=${sel >= from && sel < to ? sel : -1} ...${rest} />`,
      );
    }
    return html`<div class="block" dir="auto">${pieces}</div>`;
  }
}

function sectionsOf(blocks) {
  const sections = [];
  for (const block of blocks) {
    if (sections.at(-1)?.channel === block.channel) sections.at(-1).blocks.push(block);
    else sections.push({ channel: block.channel, blocks: [block] });
  }
  return sections;
}

export function Section({ channel, count, children }) {
  if (channel === "thought") {
    return html`<details class="section thought" open><summary>Thought <span class="quiet">${count} tokens</span>
      </summary>${children}</details>`;
  }
  if (channel === "tool") return html`<div class="section tool"><div class="caption">Tool call</div>${children}</div>`;
  return html`<div class="section">${children}</div>`;
}

const NO_MARKS = new Map();

/** The same map as before, where the new one says the same: what stands beside it need not be drawn again. */
function useSteady(marks) {
  const kept = useRef(NO_MARKS);
  const wanted = marks?.value ?? marks ?? NO_MARKS;
  const same =
    wanted.size === kept.current.size && [...wanted].every(([index, mark]) => kept.current.get(index) === mark);
  if (!same) kept.current = wanted;
  return kept.current;
}

/**
 * The token in the line above (−1) or below (1) that lies closest to the column of this one. column: {index, x} of the
 * step before, so that a walk up and down keeps its column; null at its beginning.
 */
function beside(root, index, direction, column) {
  // the last of its boxes: the space that it begins with may have stayed in the line before
  const box = (span) => [...span.getClientRects()].at(-1) ?? span.getBoundingClientRect();
  const here = root.querySelector(`[data-i="${index}"]`);
  if (!here) return { index, x: null };
  const from = box(here);
  const x = column?.index === index ? column.x : from.left + from.width / 2;
  let best = null;
  for (let i = index + direction; ; i += direction) {
    const span = root.querySelector(`[data-i="${i}"]`);
    if (!span) break;
    const { left, right, top, bottom } = box(span);
    if (direction < 0 ? bottom > from.top + 2 : top < from.bottom - 2) continue;
    if (best && Math.abs(top - best.top) > 2) break;
    const far = left <= x && x <= right ? 0 : Math.min(Math.abs(left - x), Math.abs(right - x));
    if (!best || far < best.far) best = { i, far, top };
  }
  return { index: best?.i ?? index, x };
}

/**
 * An answer's tokens. run: signal of {tokens: [{record, time_ms, text, channel, special}], done}. selected: signal of
 * an index or null. onSelect(index or null, open): a token was walked to, opened (clicked, Enter) or left (Escape).
 * marks: map, or signal of one, of index → class name ("parts": others differ here).
 */
export function TokenSpans({ run, selected, onSelect, marks, title = "Answer" }) {
  const root = useRef(null);
  const heard = useSignal("");
  const { tokens, done } = run.value;
  const scheme = settings.scheme.value;
  const invisible = settings.invisible.value;
  const sel = selected?.value ?? -1;
  const steady = useSteady(marks);
  const draw = { tokens, scheme, invisible, marks: steady };
  useEffect(() => {
    if (sel >= 0) root.current.querySelector(`[data-i="${sel}"]`)?.scrollIntoView({ block: "nearest" });
  }, [sel]);

  const column = useRef(null);
  const vertical = (from, direction) => {
    column.current = beside(root.current, from, direction, column.current);
    go(column.current.index, false);
  };
  const go = (index, open) => {
    const to = Math.max(0, Math.min(index, tokens.length - 1));
    heard.value = describe(tokens[to], to, tokens.length);
    onSelect(to, open);
  };
  const onKeyDown = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !tokens.length || event.target.closest("summary")) return;
    const here = sel < 0 ? 0 : sel;
    const moves = {
      ArrowRight: () => go(sel + 1, false),
      ArrowLeft: () => go(here - 1, false),
      ArrowUp: () => vertical(here, -1),
      ArrowDown: () => vertical(here, 1),
      Home: () => go(0, false),
      End: () => go(tokens.length - 1, false),
      Enter: () => go(here, true),
      Escape: () => onSelect(null, false),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    if (event.key !== "ArrowUp" && event.key !== "ArrowDown") column.current = null;
    moves[event.key]();
  };
  const indexAt = (event) => Number(event.target.closest?.("[data-i]")?.dataset.i ?? -1);
  const onClick = (event) => {
    const index = indexAt(event);
    if (index >= 0 && getSelection().isCollapsed) go(index, true);
  };
  const onPointerOver = (event) => {
    const index = indexAt(event);
    if (index >= 0 && tokens[index])
      event.target.closest("[data-i]").title = describe(tokens[index], index, tokens.length);
  };

  return html`<div class="tokens-frame">
    <div class=${`tokens s-${scheme}${invisible ? " invisible" : ""}`} ref=${root} tabindex="0" role="group"
      aria-busy=${!done}
      aria-label=${`${title}: ${tokens.length} tokens. Arrow keys walk them, Enter explains one.`}
      onKeyDown=${onKeyDown} onClick=${onClick} onPointerOver=${onPointerOver}>
      ${sectionsOf(blocksOf(tokens)).map(
        ({ channel, blocks }) => html`
        <${Section} key=${blocks[0].start} channel=${channel} count=${blocks.at(-1).end - blocks[0].start}>
          ${blocks.map(
            ({ start, end }) => html`<${Block} key=${start} start=${start} end=${end} ...${draw}
            sel=${sel >= start && sel < end ? sel : -1} done=${done || end < tokens.length} />`,
          )}
        <//>`,
      )}
    </div>
    <div class="heard" aria-live="polite">${heard}</div>
  </div>`;
}

const KINDS = { forced: "forced", accepted: "guessed", replaced: "in place of a refused guess" };

/** What the colours mean, and their switch. run: of the answer whose kinds are named. */
export function Legend({ run }) {
  const scheme = settings.scheme.value;
  const { bounds, ends, unit, shown: names } = SCHEMES[scheme];
  const { tokens } = run.value;
  const kinds = Object.keys(KINDS).filter((origin) => tokens.some((token) => token.record.origin === origin));
  return html`<div class="legend">
    <div class="segments" role="radiogroup" aria-label="Colour tokens by">
      ${Object.entries(SCHEMES).map(
        ([name, { title }]) => html`<label key=${name}>
        <input type="radio" name="scheme" checked=${scheme === name} onChange=${() => (settings.scheme.value = name)} />
          <span>${title}</span>
      </label>`,
      )}
    </div>
    <div class=${`ramp s-${scheme}`}>
      <span>${ends[0]}</span>
      ${[0, ...bounds].map((bound, i) => html`<i key=${i} class=${`t l${i}`}
        title=${i ? `${names?.[i - 1] ?? `from ${bound}`} ${unit}` : `below ${names?.[0] ?? bounds[0]} ${unit}`}></i>`)}
      <span>${ends[1]}</span>
    </div>
    <button type="button" class="quiet-button mark-toggle" aria-pressed=${settings.invisible.value ? "true" : "false"}
      title="Show spaces and hidden characters"
      aria-label="Show spaces and hidden characters"
        onClick=${() => (settings.invisible.value = !settings.invisible.value)}>¶</button>
    ${kinds.length > 0 && html`<div class="kinds">${kinds.map((origin) => html`<span key=${origin}
      class=${`t o-${origin}`} title=${ORIGINS[origin][1]}>${KINDS[origin]}</span>`)}</div>`}
  </div>`;
}
