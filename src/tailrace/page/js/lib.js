// What every module takes from vendor/, in one place.
import { Component, Fragment, createRef, h, render } from "../vendor/preact.js";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact-hooks.js";
import {
  batch,
  computed,
  effect,
  signal,
  untracked,
  useComputed,
  useSignal,
  useSignalEffect,
} from "../vendor/signals.js";
import htm from "../vendor/htm.js";
import MarkdownIt from "../vendor/markdown-it.js";
import uPlot from "../vendor/uplot.js";

export const html = htm.bind(h);
export { Component, Fragment, createRef, h, render };
export { useEffect, useLayoutEffect, useMemo, useRef, useState };
export { batch, computed, effect, signal, untracked, useComputed, useSignal, useSignalEffect };
export { MarkdownIt, uPlot };

/** A component that is drawn again only if one of its properties is another object or number. */
export class Memo extends Component {
  shouldComponentUpdate(next) {
    for (const name in next) if (next[name] !== this.props[name]) return true;
    return false;
  }
}

/**
 * The text of a field that somebody may be editing: [text, type(text), leave()]. It follows `shown`, but not between
 * `type`, called with each input, and `leave`, called when the field loses the focus.
 */
export function useDraft(shown) {
  const [draft, setDraft] = useState(null);
  return [draft ?? shown, setDraft, () => setDraft(null)];
}

let lastId = 0;

/** An id that nothing else on the page has. */
export const freshId = (prefix) => `${prefix}-${++lastId}`;

const LOADED = Array.from(crypto.getRandomValues(new Uint32Array(2)), (part) => part.toString(36)).join("");

/** An id that nothing has on this page, or has had on an earlier one: turns are kept under their ids. */
export const lastingId = (prefix) => freshId(`${prefix}-${LOADED}`);

/** The last of several calls, `wait` milliseconds after it. */
export function debounced(call, wait) {
  let timer = 0;
  const later = (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...args), wait);
  };
  later.cancel = () => clearTimeout(timer);
  return later;
}
