// Markdown → nodes. The parser gives a list of tokens; no markup is made of text, and HTML stays text.
import { MarkdownIt, Memo, html, useRef, useSignal } from "./lib.js";
import { copyAndSay } from "./clipboard.js";
import { shown } from "./text.js";

const DEEPEST = 60; // levels of blocks; the parser drops what is deeper, so such a block is shown as it was written
const REST = 4; // while text streams, the parser rests this many times as long as it worked
const parser = MarkdownIt({ html: false, linkify: true, maxNesting: DEEPEST }).disable("image");
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
parser.validateLink = (address) => /^(?:https?:\/\/|mailto:)/i.test(address);

const NOTHING = { text: "", blocks: [], env: {}, end: -Infinity, cost: 0 };

/** The blocks of a list of tokens: [{line, source, tokens}]. first: line of the text at which the tokens begin. */
function splitBlocks(tokens, lines, first) {
  const blocks = [];
  for (const token of tokens) {
    if (token.level === 0 && token.nesting >= 0) {
      const [from, to] = token.map;
      const source = lines.slice(first + from, first + to).join("\n");
      blocks.push({ line: first + from, source, tokens: [] });
    }
    blocks.at(-1).tokens.push(token);
  }
  return blocks;
}

/**
 * Return {text, blocks, …} for a text. before: the result for a text that this one may continue. All its blocks but the
 * last two stay the same objects: a new line changes at most two ("1. a", then "2" that becomes "2. b").
 */
export function parse(text, before = NOTHING) {
  const begun = performance.now();
  const whole = text.replace(/\r\n?/g, "\n");
  const grows = before.text && whole.startsWith(before.text);
  const kept = grows ? before.blocks.slice(0, -2) : [];
  const first = (grows && before.blocks[kept.length]?.line) || 0;
  const lines = whole.split("\n");
  const env = grows ? before.env : {};
  const tokens = parser.parse(lines.slice(first).join("\n"), env);
  const blocks = [...kept, ...splitBlocks(tokens, lines, first)];
  const end = performance.now();
  return { text: whole, blocks, env, end, cost: end - begun };
}

function Code({ text, language }) {
  const said = useSignal("");
  const take = () => copyAndSay(text, (note) => (said.value = note));
  return html`<figure class="code-block">
    <figcaption><span>${shown(language, false)}</span><span class="quiet grow" role="status">${said}</span>
      <button type="button" class="quiet-button" aria-label="Copy the code" onClick=${take}>Copy</button></figcaption>
    <pre tabindex="0" dir="ltr"><code>${shown(text, false)}</code></pre>
  </figure>`;
}

/** A block of code has a line break at its end, which belongs to the fence. */
const drawCode = (token) =>
  html`<${Code} text=${token.content.replace(/\n$/, "")} language=${token.info.trim().split(/\s/)[0]} />`;

const LEAVES = {
  text: (token) => shown(token.content, false),
  inline: (token) => nodesOf(token.children),
  code_inline: (token) => html`<code>${shown(token.content, false)}</code>`,
  softbreak: () => html`<br />`, // models break lines where they mean it
  hardbreak: () => html`<br />`,
  hr: () => html`<hr />`,
  fence: drawCode,
  code_block: drawCode,
};

const link = (token, inner) => {
  const address = token.attrGet("href");
  return html`<a href=${address} title=${address} target="_blank" rel="noopener noreferrer">${inner}</a>`;
};
const cell = (token, inner) => {
  const side = /(left|center|right)$/.exec(token.attrGet("style") ?? "")?.[1];
  return html`<${token.tag} class=${side && `to-${side}`}>${inner}<//>`;
};
const PARENTS = {
  link_open: link,
  th_open: cell,
  td_open: cell,
  paragraph_open: (token, inner) => (token.hidden ? inner : html`<p>${inner}</p>`),
  heading_open: (token, inner) => html`<${`h${Math.min(6, Number(token.tag[1]) + 2)}`}>${inner}<//>`,
  ordered_list_open: (token, inner) => html`<ol start=${token.attrGet("start") ?? 1}>${inner}</ol>`,
  table_open: (_, inner) => html`<div class="wide" tabindex="0" role="group" aria-label="Table">
    <table>${inner}</table></div>`,
};
const drawParent = (token, inner) => html`<${token.tag}>${inner}<//>`;

/** Return the nodes of a list of tokens, whose opening and closing ones make the tree. */
function nodesOf(tokens) {
  const open = [{ nodes: [] }];
  for (const token of tokens) {
    if (token.nesting > 0) open.push({ token, nodes: [] });
    else if (token.nesting < 0) {
      const { token: opened, nodes } = open.pop();
      open.at(-1).nodes.push((PARENTS[opened.type] ?? drawParent)(opened, nodes));
    } else open.at(-1).nodes.push((LEAVES[token.type] ?? LEAVES.text)(token));
  }
  return open[0].nodes;
}

const isTooDeep = ({ tokens }) => tokens.some(({ level }) => level >= DEEPEST - 1);

class Block extends Memo {
  render({ block }) {
    const inner = isTooDeep(block)
      ? html`<p class="as-written">${shown(block.source, false)}</p>`
      : nodesOf(block.tokens);
    return html`<div class="prose-block" dir="auto">${inner}</div>`;
  }
}

/** Draws a text as Markdown. done: the text has ended; until then what is new may wait a moment, shown as it is. */
export function Markdown({ text, done }) {
  const parsed = useRef(NOTHING);
  const ended = useRef(false);
  const { end, cost } = parsed.current;
  if (done ? !ended.current || parsed.current.source !== text : performance.now() - end > REST * cost) {
    // a definition at the end gives an address to links before it: the whole text is read once more
    parsed.current = { ...parse(text, done ? NOTHING : parsed.current), source: text };
    ended.current = done;
  }
  const { source, blocks } = parsed.current;
  const rest = text.startsWith(source) ? text.slice(source.length) : "";
  return html`<div class="prose">
    ${blocks.map((block, index) => html`<${Block} key=${index} block=${block} />`)}
    ${rest.trim() && html`<div class="prose-block as-written">${shown(rest, false)}</div>`}
  </div>`;
}
