// What the page knows: settings, the next request, the tree of branches, the selected token. All of it in signals.
import { batch, computed, freshId, lastingId, signal } from "./lib.js";
import { get } from "./api.js";
import * as branches from "./branches.js";

const stored = (() => {
  try {
    return JSON.parse(localStorage.getItem("tailrace-settings")) ?? {};
  } catch {
    return {};
  }
})();

/**
 * How things are shown; kept by the browser. form: answers of chats are "tokens" or "text" (Markdown). scheme: what
 * colours tokens; invisible: spaces and the like are drawn.
 */
export const settings = {
  form: signal(stored.form ?? "tokens"),
  scheme: signal(stored.scheme ?? "surprise"),
  invisible: signal(stored.invisible ?? false),
  theme: signal(stored.theme ?? "auto"),
  log: signal(stored.log ?? false),
  keepWithKey: signal(stored.keepWithKey ?? false), // conversations are kept although the server asks for a key
};

/** Keeps the settings; called in an effect. */
export function keepSettings() {
  const values = Object.fromEntries(Object.entries(settings).map(([name, each]) => [name, each.value]));
  try {
    localStorage.setItem("tailrace-settings", JSON.stringify(values));
  } catch {
    // full, or not allowed: they last as long as the page
  }
}

export const SMALL = { top: 3 }; // what a streamed record shows
export const LARGE = { top: 20 }; // what the ladder asks for

const wantedMode = signal("chat"); // of a conversation that has not begun
export const system = signal("");
/** Fields of the next request, without messages, prompt and what the page adds itself. */
export const params = signal({});
export const models = signal([]);
/** What /v1/models says of each. */
export const cards = signal([]);
export const model = signal("");
/** Declarations of all fields, by name; {} until they are there. */
export const fields = signal({});
export const tree = signal(branches.EMPTY);
/** {node, index} of the selected token, or null. */
export const selection = signal(null);
/** An answer outside the tree whose token is looked at ({id, run}): one of a comparison. Or null. */
export const visitor = signal(null);
/** The record of the selected token with more candidates, once it is there: {node, index, record}. */
export const detail = signal(null);

/** Which view and which panel beside the conversation is shown ("": none), and whether the parameters are. */
export const view = signal("talk");
export const panel = signal("");
export const knobsOpen = signal(matchMedia("(min-width: 1200px)").matches);
/** Why the server could not be asked; "" if it could. */
export const trouble = signal("");

/** Candidates that somebody asked for by name, at the selected token. */
export const extraIds = signal([]);

/** A run that has not begun: what an answer's signal holds. */
export const newRun = (request, fork = null) => ({
  tokens: [],
  done: false,
  usage: null,
  finish: null,
  error: null,
  content: "",
  calls: [],
  params: null, // what the server computes it with, as it says
  request,
  fork,
  stream: null, // the name of a request whose events can be asked for again
});

/** The turns that are shown. */
export const shownPath = computed(() => branches.path(tree.value));
/** "chat" or "completion": the kind of the conversation that is shown, or of the next one. */
export const mode = computed(() => {
  const [first] = shownPath.value;
  return first ? (first.kind === "prompt" ? "completion" : "chat") : wantedMode.value;
});
/** The last answer on the path, or that of the selected token. */
export const current = computed(() => {
  const at = selection.value;
  if (at && visitor.value?.id === at.node) return visitor.value;
  if (at && tree.value.nodes[at.node]) return tree.value.nodes[at.node];
  return shownPath.value.findLast((node) => node.kind === "answer") ?? null;
});
const idle = newRun(null);
/** {tokens: [{record, time_ms, text, channel}], done, usage, …} of the current answer. */
export const run = computed(() => current.value?.run.value ?? idle);
/** The record of the selected token, or null. */
export const record = computed(() => {
  const at = selection.value;
  const own = at && run.value.tokens[at.index]?.record;
  if (!own) return null;
  if (detail.value?.node !== at.node || detail.value.index !== at.index) return own;
  return completed(own, detail.value.record);
});

/**
 * The record that came with a token, with the candidates of one that was asked for afterwards. What drafts had to do
 * with it only the first knows; where a rule took or replaced the token by chances of its own, only the first is true.
 */
function completed(own, later) {
  if (own.draft && own.draft.rule !== "exact") return own;
  return { ...later, origin: own.origin, draft: own.draft, ended: own.ended };
}

/** The index of the selected token in the current answer, or null. */
export const selectedIndex = computed(() => selection.value?.index ?? null);
export const selectInCurrent = (index) =>
  index === null || !current.value ? select(null) : select(current.value.id, index);

/** Any answer that still comes. */
export const busy = computed(() =>
  Object.values(tree.value.nodes).some((node) => node.kind === "answer" && !node.run.value.done),
);

/** Tokens that `node`'s parent's other children drew differently: a map of index → why, for the marks. */
export function partings(node) {
  const found = new Map();
  const nodes = tree.value.nodes;
  for (const id of branches.siblings(tree.value, node.id)) {
    if (id === node.id || nodes[id].kind !== "answer") continue;
    const at = branches.firstDifference(node.run.value.tokens, nodes[id].run.value.tokens);
    if (at !== null) found.set(at, "parts");
  }
  return found;
}

/** Selects a token, or none. */
export function select(node, index) {
  batch(() => {
    selection.value = node === null ? null : { node, index };
    detail.value = null;
  });
}

/** Looks at a token of an answer that is not in the tree. */
export function visit({ request, tokens, params }, index) {
  const run = signal({ ...newRun(request), tokens, params, done: true });
  batch(() => {
    visitor.value = { id: freshId("visitor"), kind: "answer", run };
    select(visitor.value.id, index);
    panel.value = "ladder";
  });
}

/** A node more below `parent`, on the path. Returns its id. */
export function grow(node, parent) {
  const id = lastingId("n");
  const begun = parent === null ? { begun: Date.now() } : {};
  tree.value = branches.added(tree.value, { ...node, ...begun, id }, parent);
  return id;
}

/** A node with other fields. */
export const change = (id, fields) => (tree.value = branches.changed(tree.value, id, fields));

/** Takes a turn away, with all that follows it. */
export function remove(id) {
  batch(() => {
    if (branches.below(tree.value, id).some((node) => node.id === selection.value?.node)) select(null);
    tree.value = branches.removed(tree.value, id);
  });
}

/** The path through a node. */
export function walk(id) {
  batch(() => {
    tree.value = branches.through(tree.value, id);
    const at = selection.value;
    if (at && !shownPath.value.some((node) => node.id === at.node)) select(null);
  });
}

/** A new conversation beside those that are there. kind: its mode. */
export function begin(kind = mode.value) {
  batch(() => {
    wantedMode.value = kind;
    const { "": _, ...chosen } = tree.value.chosen;
    tree.value = { ...tree.value, chosen };
    select(null);
  });
}

/** The request that would be sent with nothing more to say: for the view of its code. */
export const request = computed(() => {
  const answer = current.value;
  if (answer) return answer.run.value.request;
  const body = { model: model.value, ...params.value };
  return mode.value === "chat"
    ? {
        path: "/v1/chat/completions",
        body: { ...body, messages: system.value ? [{ role: "system", content: system.value }] : [] },
      }
    : { path: "/v1/completions", body: { ...body, prompt: "" } };
});

/** Asks the server what it serves. Raises ApiError. */
export async function load() {
  const listed = await get("/v1/models");
  models.value = listed.data.map((each) => each.id);
  cards.value = listed.data;
  if (!models.value.includes(model.value)) model.value = models.value[0] ?? "";
  const declared = await get("/page/fields.json").catch(() => ({}));
  fields.value = declared;
}
