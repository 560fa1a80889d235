// All conversations with their branches as one JSON object, and back. What a file has is checked before it is kept.
import { batch, freshId, signal } from "./lib.js";
import * as state from "./state.js";

const FORMAT = "tailrace-conversations";
const VERSION = 1;
const KINDS = ["user", "prompt", "tool", "answer"];

/** What is kept of an answer: its request and its tokens with their records. */
function plain(node) {
  const { run, ...rest } = node;
  return run ? { ...rest, run: run.value } : rest;
}

/** {format, version, system, params, tree} of everything that was said. */
export function exported() {
  const { nodes, roots, chosen } = state.tree.value;
  const kept = Object.fromEntries(Object.entries(nodes).map(([id, node]) => [id, plain(node)]));
  return {
    format: FORMAT,
    version: VERSION,
    system: state.system.value,
    params: state.params.value,
    tree: { nodes: kept, roots, chosen },
  };
}

function demand(holds, message) {
  if (!holds) throw new Error(message);
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const isText = (value) => typeof value === "string";
const isList = Array.isArray;
const numbersOrNull = (list) => isList(list) && list.every((each) => each === null || typeof each === "number");

/** Raises Error unless the page can show this record. */
function checkRecord(record, where) {
  const n = record?.ids?.length;
  const wellFormed =
    isObject(record) &&
    isList(record.ids) &&
    Number.isInteger(record.token_id) &&
    isText(record.token) &&
    isList(record.bytes) &&
    isText(record.origin) &&
    isObject(record.model) &&
    numbersOrNull(record.model.probabilities) &&
    record.model.probabilities.length === n &&
    typeof record.model.entropy === "number" &&
    isObject(record.draw) &&
    numbersOrNull(record.draw.probabilities) &&
    record.draw.probabilities.length === n &&
    isList(record.draw.scores) &&
    isList(record.draw.noise) &&
    isList(record.edits) &&
    isList(record.refinements) &&
    isList(record.removed_by) &&
    numbersOrNull(record.model.ranks) &&
    numbersOrNull(record.model.logits);
  demand(wellFormed, `${where} has no whole record.`);
}

function checkRun(run, where) {
  demand(
    isObject(run) &&
      isList(run.tokens) &&
      isObject(run.request) &&
      isText(run.request.path) &&
      isObject(run.request.body),
    `${where} has no run.`,
  );
  demand(/^\/v1\/(chat\/)?completions$/.test(run.request.path), `${where}: its request goes to ${run.request.path}.`);
  demand(isText(run.content) && isList(run.calls), `${where} has no content.`);
  run.tokens.forEach((token, i) => {
    demand(
      isObject(token) && isText(token.text) && isText(token.channel) && typeof token.time_ms === "number",
      `${where}: token ${i + 1} is none.`,
    );
    checkRecord(token.record, `${where}: token ${i + 1}`);
  });
}

function checkNode(node, id, nodes) {
  const where = `The turn ${id}`;
  demand(isObject(node) && KINDS.includes(node.kind), `${where} is of no known kind.`);
  demand(
    isList(node.children) && node.children.every((child) => nodes[child]?.parent === id),
    `${where}: its children are not those of a tree.`,
  );
  demand(node.parent === null || isObject(nodes[node.parent]), `${where} stands below nothing.`);
  if (node.kind === "answer") checkRun(node.run, where);
  else demand(isText(node.text), `${where} has no text.`);
}

/** Every node is reached from a root, once. */
function checkShape({ nodes, roots }) {
  const seen = new Set();
  const waiting = [...roots];
  while (waiting.length) {
    const id = waiting.pop();
    demand(nodes[id] && !seen.has(id), "The turns are no tree.");
    seen.add(id);
    waiting.push(...nodes[id].children);
  }
  demand(seen.size === Object.keys(nodes).length, "Some turns hang on no conversation.");
}

/** Adds what a file has to what is there, and shows it. Raises Error, with what is wrong with it. */
export function imported(file) {
  demand(isObject(file) && file.format === FORMAT, "This is no export of tailrace's page.");
  demand(file.version === VERSION, `This export is of version ${file.version}; the page reads version ${VERSION}.`);
  const { tree } = file;
  demand(
    isObject(tree) && isObject(tree.nodes) && isList(tree.roots) && isObject(tree.chosen) && tree.roots.length > 0,
    "It has no turns.",
  );
  for (const [id, node] of Object.entries(tree.nodes)) checkNode(node, id, tree.nodes);
  demand(
    tree.roots.every((id) => tree.nodes[id]?.parent === null),
    "A conversation begins below another turn.",
  );
  checkShape(tree);
  add(tree, isText(file.system) ? file.system : "");
}

/** Under fresh ids, so that a file can be read twice. */
function add(tree, system) {
  const fresh = Object.fromEntries(Object.keys(tree.nodes).map((id) => [id, freshId("n")]));
  const nodes = {};
  for (const [id, node] of Object.entries(tree.nodes)) {
    const { run, ...rest } = node;
    const fork = run?.fork && fresh[run.fork.node] ? { ...run.fork, node: fresh[run.fork.node] } : null;
    nodes[fresh[id]] = {
      ...rest,
      id: fresh[id],
      parent: node.parent === null ? null : fresh[node.parent],
      children: node.children.map((child) => fresh[child]),
      ...(run ? { run: signal({ ...run, done: true, fork }) } : {}),
    };
  }
  const chosen = Object.fromEntries(
    Object.entries(tree.chosen)
      .filter(([id, child]) => fresh[child] && (id === "" || fresh[id]))
      .map(([id, child]) => [id && fresh[id], fresh[child]]),
  );
  batch(() => {
    const now = state.tree.value;
    state.tree.value = {
      nodes: { ...now.nodes, ...nodes },
      roots: [...now.roots, ...tree.roots.map((id) => fresh[id])],
      chosen: { ...now.chosen, "": fresh[tree.roots[0]], ...chosen },
    };
    if (system) state.system.value = system;
    state.select(null);
  });
}
