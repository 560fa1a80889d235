// All conversations with their branches as one JSON object, and back. What a file has is checked before it is kept.
import { batch, lastingId, signal } from "./lib.js";
import { isObject, isRecord, isRequest, isRun, isText, isToken } from "./shapes.js";
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

function checkRun(run, where) {
  demand(isObject(run) && isRequest(run.request), `${where} has no run.`);
  demand(/^\/v1\/(chat\/)?completions$/.test(run.request.path), `${where}: its request goes to ${run.request.path}.`);
  demand(isRun(run), `${where} has no content.`);
  run.tokens.forEach((token, i) => {
    demand(isToken(token), `${where}: token ${i + 1} is none.`);
    demand(isRecord(token.record), `${where}: token ${i + 1} has no whole record.`);
  });
}

function checkNode(node, id, nodes) {
  const where = `The turn ${id}`;
  demand(isObject(node) && KINDS.includes(node.kind), `${where} is of no known kind.`);
  demand(
    Array.isArray(node.children) && node.children.every((child) => nodes[child]?.parent === id),
    `${where}: its children are not those of a tree.`,
  );
  demand(node.parent === null || isObject(nodes[node.parent]), `${where} stands below nothing.`);
  if (node.kind !== "answer") {
    demand(node.title === undefined || isText(node.title), `${where} has a name that is no text.`);
    demand(isText(node.text) && (node.kind !== "tool" || isText(node.call)), `${where} has no text.`);
    return;
  }
  demand(node.parent !== null, `${where} answers nothing.`);
  checkRun(node.run, where);
}

/** Every node is reached from a root, once; what is chosen below a node is a child of it. */
function checkShape({ nodes, roots, chosen }) {
  const seen = new Set();
  const waiting = [...roots];
  while (waiting.length) {
    const id = waiting.pop();
    demand(nodes[id] && !seen.has(id), "The turns are no tree.");
    seen.add(id);
    waiting.push(...nodes[id].children);
  }
  demand(seen.size === Object.keys(nodes).length, "Some turns hang on no conversation.");
  for (const [id, child] of Object.entries(chosen)) {
    const among = id === "" ? roots : Object.hasOwn(nodes, id) ? nodes[id].children : [];
    demand(among.includes(child), `What is shown below the turn ${id || "that begins"} does not stand there.`);
  }
}

/** Adds what a file has to what is there, and shows it. Raises Error, with what is wrong with it. */
export function imported(file) {
  demand(isObject(file) && file.format === FORMAT, "This is no export of tailrace's page.");
  demand(file.version === VERSION, `This export is of version ${file.version}; the page reads version ${VERSION}.`);
  const { tree } = file;
  demand(
    isObject(tree) &&
      isObject(tree.nodes) &&
      Array.isArray(tree.roots) &&
      isObject(tree.chosen) &&
      tree.roots.length > 0,
    "It has no turns.",
  );
  for (const [id, node] of Object.entries(tree.nodes)) checkNode(node, id, tree.nodes);
  demand(
    tree.roots.every((id) => tree.nodes[id]?.parent === null),
    "A conversation begins below another turn.",
  );
  checkShape(tree);
  add(tree, isText(file.system) ? file.system : "");
  if (isObject(file.params)) state.params.value = file.params;
}

/** Under fresh ids, so that a file can be read twice. */
function add(tree, system) {
  const fresh = Object.fromEntries(Object.keys(tree.nodes).map((id) => [id, lastingId("n")]));
  const nodes = {};
  for (const [id, node] of Object.entries(tree.nodes)) {
    const { run: kept, ...rest } = node;
    const run = node.kind === "answer" ? kept : null;
    const fork = run?.fork && fresh[run.fork.node] ? { ...run.fork, node: fresh[run.fork.node] } : null;
    nodes[fresh[id]] = {
      ...rest,
      id: fresh[id],
      parent: node.parent === null ? null : fresh[node.parent],
      children: node.children.map((child) => fresh[child]),
      ...(run ? { run: signal({ ...run, done: true, fork }) } : {}),
    };
  }
  const chosen = Object.fromEntries(Object.entries(tree.chosen).map(([id, child]) => [id && fresh[id], fresh[child]]));
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
