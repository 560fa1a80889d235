// Conversations are kept in this browser (IndexedDB): each turn on its own, an answer's tokens in pieces, so that a
// stream adds to the database what is new. Nothing is kept for a server with API keys unless the reader wants it.
import { batch, effect, signal } from "./lib.js";
import { hasKey } from "./api.js";
import * as state from "./state.js";

const DATABASE = "tailrace";
const PIECE = 64; // tokens
const WAIT_MS = 1000; // between two writes while an answer comes
const SOON_MS = 20;

/** Why conversations are not kept; "" if they are. */
export const trouble = signal("");

let database = null;
const written = new Map(); // id of a turn → {node, run}, as they were written
let timer = 0;

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
    restore(await readAll());
  } catch (error) {
    tell(error);
    return;
  }
  effect(() => {
    for (const node of Object.values(state.tree.value.nodes)) node.run?.value;
    [state.system.value, state.params.value, state.settings.keepWithKey.value].length;
    timer ||= setTimeout(write, state.busy.value ? WAIT_MS : SOON_MS);
  });
  addEventListener("pagehide", () => (clearTimeout(timer), write()));
}

function tell(error) {
  const full = error?.name === "QuotaExceededError";
  const reason = full ? "Its storage is full: delete conversations, or export them." : "Is this a private window?";
  trouble.value = `This browser does not keep the conversations. ${reason}`;
}

async function readAll() {
  const access = database.transaction(["turns", "pieces", "page"]);
  const [turns, pieces, page] = await Promise.all([
    done(access.objectStore("turns").getAll()),
    done(access.objectStore("pieces").getAll()),
    done(access.objectStore("page").get("page")),
  ]);
  return { turns, pieces, page: page ?? {} };
}

/** Puts the turns that were kept into the tree. An answer that was still coming has ended with the page. */
function restore({ turns, pieces, page }) {
  const tokens = new Map(turns.map(({ id }) => [id, []]));
  for (const piece of pieces.sort((a, b) => a.from - b.from)) tokens.get(piece.id)?.push(...piece.tokens);
  const nodes = {};
  for (const { run, ...node } of turns) {
    const ended = run && (run.done ? run : { ...run, done: true, finish: "interrupted" });
    nodes[node.id] = run ? { ...node, run: signal({ ...ended, tokens: tokens.get(node.id) }) } : node;
  }
  const whole = (id) => nodes[id] && (nodes[id].parent === null || whole(nodes[id].parent));
  for (const id of Object.keys(nodes)) if (!whole(id)) delete nodes[id];
  for (const node of Object.values(nodes)) node.children = node.children.filter((id) => nodes[id]);
  const roots = turns.filter((node) => nodes[node.id] && node.parent === null).sort((a, b) => a.begun - b.begun);
  batch(() => {
    const { tree } = state;
    const chosen = Object.fromEntries(Object.entries(page.chosen ?? {}).filter(([, child]) => nodes[child]));
    tree.value = {
      nodes: { ...nodes, ...tree.value.nodes },
      roots: [...roots.map(({ id }) => id), ...tree.value.roots],
      chosen: { ...chosen, ...tree.value.chosen },
    };
    state.system.value ||= page.system ?? "";
    if (!Object.keys(state.params.value).length) state.params.value = page.params ?? {};
  });
  for (const node of Object.values(nodes)) {
    const run = node.run?.peek();
    written.set(node.id, { node, run, count: run?.tokens.length ?? 0 });
  }
}

/** Writes what has changed since the last time. */
function write() {
  timer = 0;
  if (!mayKeep() || !database) return;
  const { nodes, chosen } = state.tree.peek();
  const access = database.transaction(["turns", "pieces", "page"], "readwrite");
  access.onabort = () => tell(access.error);
  access.oncomplete = () => (trouble.value = "");
  const [turns, pieces] = [access.objectStore("turns"), access.objectStore("pieces")];
  for (const [id, node] of Object.entries(nodes)) {
    const run = node.run?.peek();
    const before = written.get(id);
    if (before?.node === node && before.run === run) continue;
    const { tokens = [], ...rest } = run ?? {};
    turns.put({ ...node, run: run && rest }, id);
    const kept = before?.run?.tokens === tokens ? before.count : 0;
    for (let from = kept - (kept % PIECE); from < tokens.length; from += PIECE)
      pieces.put({ id, from, tokens: tokens.slice(from, from + PIECE) }, [id, from]);
    written.set(id, { node, run, count: Math.max(0, tokens.length - 1) }); // the last token may change
  }
  for (const id of written.keys()) {
    if (nodes[id]) continue;
    turns.delete(id);
    pieces.delete(IDBKeyRange.bound([id, 0], [id, Infinity]));
    written.delete(id);
  }
  const page = { chosen, system: state.system.peek(), params: state.params.peek() };
  access.objectStore("page").put(page, "page");
}
