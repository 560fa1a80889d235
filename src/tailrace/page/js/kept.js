// Conversations are kept in this browser (IndexedDB): each turn on its own, an answer's tokens in pieces, so that a
// stream adds to the database what is new. Nothing is kept for a server with API keys unless the reader wants it.
import { batch, effect, signal } from "./lib.js";
import { hasKey } from "./api.js";
import * as state from "./state.js";

const DATABASE = "tailrace";
const PIECE = 64; // tokens
const WAIT_MS = 1000; // between two writes of the tokens of an answer that still comes; all else is written at once
const RETRY_MS = 5000; // after a write that failed

/** Why conversations are not kept; "" if they are. */
export const trouble = signal("");

let database = null;
const written = new Map(); // id of a turn → {node, run, count}, as they were written; {} after a write that failed
let page = {}; // the page's own fields, as they were written
let timer = 0;
let due = Infinity; // when the timer fires

const done = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

function open() {
  const request = indexedDB.open(DATABASE, 1);
  request.onupgradeneeded = () => {
    for (const name of ["turns", "pieces", "page"]) request.result.createObjectStore(name);
  };
  return done(request);
}

/** Whether this server's conversations may be kept. */
export const mayKeep = () => !hasKey() || state.settings.keepWithKey.value;

/** Shows what was kept, and keeps what comes from now on. */
export async function begin() {
  try {
    database = await open();
    database.onclose = loseDatabase;
    restore(await readAll());
  } catch (error) {
    tell(error);
    return;
  }
  effect(() => plan(isOnlyGrowing() ? WAIT_MS : 0));
  addEventListener("pagehide", write);
  addEventListener("visibilitychange", () => document.hidden && write());
}

/** Whether nothing is new but tokens of answers that still come. Reads each signal that is kept. */
function isOnlyGrowing() {
  const wanted = mayKeep();
  const now = pageFields();
  let only = Object.keys(now).every((name) => now[name] === page[name]);
  for (const [id, node] of Object.entries(state.tree.value.nodes)) {
    const run = node.run?.value;
    const before = written.get(id);
    if (before?.node !== node || (run?.done && before.run !== run)) only = false;
  }
  return only || !wanted;
}

/** Writes after so many milliseconds, unless an earlier write is planned. */
function plan(wait) {
  const at = performance.now() + wait;
  if (at >= due) return;
  clearTimeout(timer);
  due = at;
  timer = setTimeout(write, wait);
}

const pageFields = () => ({
  chosen: state.tree.value.chosen,
  system: state.system.value,
  params: state.params.value,
});

function tell(error) {
  const full = error?.name === "QuotaExceededError";
  const reason = full ? "Its storage is full: delete conversations, or export them." : "Is this a private window?";
  trouble.value = `This browser does not keep the conversations. ${reason}`;
}

/** Says that the browser has taken the database away: somebody has cleared the site's data, or its file is broken. */
function loseDatabase() {
  database = null;
  trouble.value = "The browser has closed its store of conversations. Export them, then reload the page.";
}

async function readAll() {
  const access = database.transaction(["turns", "pieces", "page"]);
  const [turns, pieces, found] = await Promise.all([
    done(access.objectStore("turns").getAll()),
    done(access.objectStore("pieces").getAll()),
    done(access.objectStore("page").get("page")),
  ]);
  return { turns, pieces, page: found ?? {} };
}

/** Puts the turns that were kept into the tree. */
function restore({ turns, pieces, page: before }) {
  const tokens = new Map(turns.map(({ id }) => [id, []]));
  for (const piece of pieces.sort((a, b) => a.from - b.from)) tokens.get(piece.id)?.push(...piece.tokens);
  const nodes = {};
  for (const { run, ...node } of turns) {
    nodes[node.id] = run ? { ...node, run: signal({ ...run, tokens: tokens.get(node.id) }) } : node;
  }
  const whole = (id) => nodes[id] && (nodes[id].parent === null || whole(nodes[id].parent));
  for (const id of Object.keys(nodes)) if (!whole(id)) delete nodes[id];
  for (const node of Object.values(nodes)) node.children = node.children.filter((id) => nodes[id]);
  const roots = turns.filter((node) => nodes[node.id] && node.parent === null).sort((a, b) => a.begun - b.begun);
  batch(() => {
    const { tree } = state;
    const chosen = Object.fromEntries(Object.entries(before.chosen ?? {}).filter(([, child]) => nodes[child]));
    tree.value = {
      nodes: { ...nodes, ...tree.value.nodes },
      roots: [...roots.map(({ id }) => id), ...tree.value.roots],
      chosen: { ...chosen, ...tree.value.chosen },
    };
    state.system.value ||= before.system ?? "";
    if (!Object.keys(state.params.value).length) state.params.value = before.params ?? {};
  });
  for (const node of Object.values(nodes)) {
    const run = node.run?.peek();
    written.set(node.id, { node, run, count: run?.tokens.length ?? 0 });
  }
}

/** Writes what has changed since the last time. The transaction is committed even if the page ends now. */
function write() {
  clearTimeout(timer);
  due = Infinity;
  if (!mayKeep() || !database) return;
  const access = database.transaction(["turns", "pieces", "page"], "readwrite");
  const touched = [...putTurns(access), ...deleteTurns(access)];
  page = pageFields();
  access.objectStore("page").put(page, "page");
  access.oncomplete = () => (trouble.value = "");
  access.onabort = () => {
    for (const id of touched) written.set(id, {});
    page = {};
    tell(access.error);
    plan(RETRY_MS);
  };
  access.commit();
}

/** Writes the turns that are new or have changed. Returns their ids. */
function putTurns(access) {
  const [turns, pieces] = [access.objectStore("turns"), access.objectStore("pieces")];
  const touched = [];
  for (const [id, node] of Object.entries(state.tree.peek().nodes)) {
    const run = node.run?.peek();
    const before = written.get(id);
    if (before?.node === node && before.run === run) continue;
    const { tokens = [], ...rest } = run ?? {};
    turns.put({ ...node, run: run && rest }, id);
    const kept = before?.run?.tokens === tokens ? before.count : 0;
    for (let from = kept - (kept % PIECE); from < tokens.length; from += PIECE)
      pieces.put({ id, from, tokens: tokens.slice(from, from + PIECE) }, [id, from]);
    written.set(id, { node, run, count: Math.max(0, tokens.length - 1) }); // the last token may change
    touched.push(id);
  }
  return touched;
}

/** Deletes the turns that are gone. Returns their ids. */
function deleteTurns(access) {
  const { nodes } = state.tree.peek();
  const gone = [...written.keys()].filter((id) => !nodes[id]);
  for (const id of gone) {
    access.objectStore("turns").delete(id);
    access.objectStore("pieces").delete(IDBKeyRange.bound([id, 0], [id, Infinity]));
    written.delete(id);
  }
  return gone;
}
