// The branches of all conversations as a tree: walk, compare two, keep them as a file.
import { html, signal, useComputed, useEffect, useRef } from "./lib.js";
import { firstDifference } from "./branches.js";
import { exported, imported } from "./files.js";
import * as state from "./state.js";
import { Token, percent, plain } from "./text.js";
import { TokenSpans } from "./tokens.js";
import { modelProbability } from "./colour.js";

const chosen = signal([]); // ids of at most two answers that are compared
/** What was wrong with the file that was imported last; "" if nothing was. */
export const importTrouble = signal("");
const EXCERPT = 60; // characters

const NAMES = { user: "You", prompt: "Prompt", tool: "Tool", answer: "Answer" };

/** The beginning of a turn's text, or what is new in a branch. */
function excerpt(node) {
  if (node.kind !== "answer") return node.text.slice(0, EXCERPT);
  const { tokens, fork, error } = node.run.value;
  if (error) return "failed";
  const from = fork ? fork.at : 0;
  const text = tokens
    .slice(from, from + 24)
    .filter((token) => !token.special)
    .map((token) => token.text)
    .join("");
  return `${fork ? "… " : ""}${text.slice(0, EXCERPT)}`;
}

function Compared({ node }) {
  const at = chosen.value.indexOf(node.id);
  const toggle = () =>
    (chosen.value = at >= 0 ? chosen.value.filter((id) => id !== node.id) : [...chosen.value.slice(-1), node.id]);
  return html`<label class="check compare-mark"><input type="checkbox" checked=${at >= 0} onChange=${toggle}
    aria-label=${`Compare: ${plain(excerpt(node))}`} /></label>`;
}

function Node({ id }) {
  const node = state.tree.value.nodes[id];
  const shown = state.shownPath.value.some((each) => each.id === id);
  const { fork, tokens } = node.kind === "answer" ? node.run.value : {};
  return html`<li class=${shown ? "shown" : ""}>
    <div class="branch">
      ${node.kind === "answer" && html`<${Compared} node=${node} />`}
      <button type="button" class="branch-button" aria-current=${shown ? "true" : undefined}
        onClick=${() => state.walk(id)}>
        <span class="speaker">${NAMES[node.kind]}</span>
        ${fork && html`<span class="fork">↳ ${fork.at + 1}</span>`}
        <bdi class="excerpt">${plain(excerpt(node))}</bdi>
        ${tokens && html`<span class="quiet">${tokens.length}</span>`}
      </button>
    </div>
    ${node.children.length > 0 && html`<ul>${node.children.map((child) => html`<${Node} key=${child}
      id=${child} />`)}</ul>`}
  </li>`;
}

function Side({ node, marks, title }) {
  const selected = useComputed(() => (state.selection.value?.node === node.id ? state.selection.value.index : null));
  const onSelect = (index, open) => {
    state.walk(node.id);
    state.select(index === null ? null : node.id, index);
    if (open) state.panel.value = "ladder";
  };
  const root = useRef(null);
  useEffect(() => {
    const [list, mark] = [root.current.querySelector(".tokens"), root.current.querySelector(".mark")];
    if (mark)
      list.scrollTop += mark.getBoundingClientRect().top - list.getBoundingClientRect().top - list.clientHeight / 3;
  }, [node.id, marks.keys().next().value]);
  return html`<div class="compared" ref=${root}><h3>${title}</h3><${TokenSpans} run=${node.run} selected=${selected}
    onSelect=${onSelect} marks=${marks} title=${title} /></div>`;
}

/** Two answers under each other, with the first token that differs. */
function Comparison() {
  const { nodes } = state.tree.value;
  const two = chosen.value.map((id) => nodes[id]).filter(Boolean);
  if (two.length < 2)
    return html`<p class="quiet hint">Tick two answers to compare them. To branch, click a token, then a candidate that
      you would have liked better.</p>`;
  const [left, right] = two.map((node) => node.run.value.tokens);
  const at = firstDifference(left, right);
  const end = Math.min(left.length, right.length);
  const same = at === null && left.length === right.length;
  const marks = same ? new Map() : new Map([[at ?? end, "parts"]]);
  return html`<section class="comparison" aria-label="Two answers compared">
    <p role="status">${
      same
        ? "They are the same, token for token."
        : at === null
          ? `They are the same up to token ${end}, where one ends.`
          : html`They part at token ${at + 1}: <${Token}
            text=${left[at].record.token} /> (${percent(modelProbability(left[at].record))} to the model) and <${Token}
            text=${right[at].record.token} /> (${percent(modelProbability(right[at].record))}).`
    }</p>
    <${Side} node=${two[0]} marks=${marks} title="First" /><${Side} node=${two[1]} marks=${marks} title="Second" />
  </section>`;
}

/** Gives the browser a file to keep. */
export function save() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(exported(), null, 1)], { type: "application/json" }));
  link.download = "tailrace-conversations.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Reads a file of conversations, and shows the branches. */
async function load(event) {
  const [file] = event.target.files;
  event.target.value = "";
  if (!file) return;
  [state.view.value, state.panel.value] = ["talk", "branches"];
  try {
    imported(JSON.parse(await file.text()));
    importTrouble.value = "";
  } catch (error) {
    importTrouble.value = `${file.name}: ${error.message}`;
  }
}

/** A button that reads a file of conversations. */
export function Import() {
  return html`<label class="file"><span>Import</span><input type="file" accept="application/json,.json"
    onChange=${load} /></label>`;
}

/** The panel: all conversations, what two answers have in common, and files. */
export function Branches() {
  const { roots } = state.tree.value;
  return html`<div class="branches">
    ${roots.length ? html`<ul class="tree">${roots.map((id) => html`<${Node} key=${id} id=${id} />`)}</ul>
      <${Comparison} />` : html`<p class="quiet">Nothing has been said yet.</p>`}
    <div class="row files">
      <button type="button" disabled=${!roots.length || state.busy.value} onClick=${save}>Export as JSON</button>
    </div>
    ${importTrouble.value && html`<p class="error" role="alert">${importTrouble}</p>`}
  </div>`;
}
