// Bytes of tokens → text, and what cannot be seen made visible. Text stays text: nothing here makes markup.
import { html } from "./lib.js";

/** Joins the bytes of successive tokens. A character that several tokens share belongs to the one that completes it. */
export class Joiner {
  #decoder = new TextDecoder("utf-8", { ignoreBOM: true });

  /** The text that is whole with these bytes; "" if they end within a character. */
  push(bytes) {
    return this.#decoder.decode(Uint8Array.from(bytes), { stream: true });
  }

  /** What is left of a character that never ended, as U+FFFD. */
  end() {
    return this.#decoder.decode();
  }
}

const NAMES = {
  0x00a0: "NBSP",
  0x00ad: "SHY",
  0x034f: "CGJ",
  0x061c: "ALM",
  0x115f: "HCF",
  0x1160: "HJF",
  0x17b4: "KIVAQ",
  0x17b5: "KIVAA",
  0x180e: "MVS",
  0x200b: "ZWSP",
  0x200c: "ZWNJ",
  0x200d: "ZWJ",
  0x200e: "LRM",
  0x200f: "RLM",
  0x2028: "LSEP",
  0x2029: "PSEP",
  0x202a: "LRE",
  0x202b: "RLE",
  0x202c: "PDF",
  0x202d: "LRO",
  0x202e: "RLO",
  0x202f: "NNBSP",
  0x2060: "WJ",
  0x2066: "LRI",
  0x2067: "RLI",
  0x2068: "FSI",
  0x2069: "PDI",
  0x3000: "IDSP",
  0x3164: "HF",
  0xfeff: "BOM",
  0xffa0: "HHF",
  0x007f: "DEL",
};
// What would reorder or silence what stands around it: always shown by name, in its own isolate.
const ACTING = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]/;
const HIDDEN = new RegExp(
  "[\\u0000-\\u0020\\u007f-\\u00a0\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180e\\u2000-\\u200f" +
    "\\u2028-\\u202f\\u205f-\\u206f\\u3000\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff9-\\ufffb" +
    "\\u{e0000}-\\u{e007f}\\u{e0100}-\\u{e01ef}]",
  "u",
);
// A text of these alone takes no room of its own.
const THIN = /^(?:[\u00ad\u034f\u061c\u180e\u200b-\u200f\u2060-\u2065\ufe00-\ufe0f\ufeff\u{e0000}-\u{e01ef}]|\p{M})+$/u;

/** Whether a text takes no room of its own, so that nobody could point at it. */
export const isThin = (text) => THIN.test(text);

const GRAPHIC = { 0x20: "·", 0x0a: "↵", 0x09: "⇥" };

/** A character's short name: "ZWSP", "U+0007". */
export function nameOf(character) {
  const code = character.codePointAt(0);
  return GRAPHIC[code] ?? NAMES[code] ?? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

/** The text in pieces, one after another: [text, name], the name "" where it shows itself. all: spaces too. */
export function pieces(text, all) {
  const wanted = all ? HIDDEN : ACTING;
  if (!wanted.test(text)) return text ? [[text, ""]] : [];
  const found = [];
  for (const character of text) {
    if (wanted.test(character)) found.push([character, nameOf(character)]);
    else if (found.length && !found.at(-1)[1]) found.at(-1)[0] += character;
    else found.push([character, ""]);
  }
  return found;
}

/** Nodes for a text. A copy of them has the true characters: a name is drawn by the style sheet. */
export function shown(text, all) {
  if (!(all ? HIDDEN : ACTING).test(text)) return text;
  return pieces(text, all).map(([piece, name]) =>
    name ? html`<bdi class="char" data-name=${name}>${piece}</bdi>` : piece,
  );
}

/** A token's text in one line, with everything visible: for labels and for people who hear it. */
export function label(text) {
  return pieces(text, true)
    .map(([piece, name]) => name || piece)
    .join("");
}

/** A text in one line, as it reads: only what would act on its surroundings is named. */
export const plain = (text) =>
  pieces(text.replace(/\s+/g, " "), false)
    .map(([piece, name]) => name || piece)
    .join("");

/** The bytes as hexadecimal digits. */
export const hex = (bytes) => bytes.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");

/** A token in a list or a heading: quoted by its box, isolated, everything visible. */
export function Token({ text, kind = "" }) {
  return html`<bdi class=${`token-label ${kind}`}>${shown(text, true)}</bdi>`;
}

const PERCENT = [
  new Intl.NumberFormat("en", { maximumFractionDigits: 0 }),
  new Intl.NumberFormat("en", { maximumSignificantDigits: 2 }),
];

/** A probability as people read it: "31 %", "0.42 %", "3e-7". */
export function percent(p) {
  if (p === null || p === undefined) return "–";
  if (p === 0) return "0 %";
  if (p < 1e-5) return p.toExponential(0);
  const value = p * 100;
  if (value > 99 && value < 100) return `${Math.min(99.99, value).toFixed(value > 99.9 ? 2 : 1)} %`;
  return `${PERCENT[value >= 10 ? 0 : 1].format(value)} %`;
}

/** A number with so many digits behind the point; "–" for none. */
export const fixed = (value, digits = 2) =>
  value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−");
