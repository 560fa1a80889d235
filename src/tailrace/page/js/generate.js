// From a turn to an answer: requests, their streams, branches, and records asked for afterwards.
import { batch, effect, lastingId, signal } from "./lib.js";
import { ApiError, cancel, post, resume, stream } from "./api.js";
import { above } from "./branches.js";
import { pageDefaults, startOf } from "./fields.js";
import { Fold } from "./fold.js";
import { mayKeep } from "./kept.js";
import * as state from "./state.js";

const LATEST_MS = 250; // an update waits for a frame, but in a hidden tab, where none comes, no longer than this

/** Runs `update` once in the next frame, however often it is asked for. */
export function perFrame(update) {
  let frame = 0;
  let timer = 0;
  const run = () => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
    frame = timer = 0;
    update();
  };
  const ask = () => {
    if (frame) return;
    frame = requestAnimationFrame(run);
    timer = setTimeout(run, LATEST_MS);
  };
  return { ask, now: run };
}

const stops = new Map(); // node id → AbortController

export const stop = (id) => stops.get(id)?.abort();
export const stopAll = () => stops.forEach((each) => each.abort());

/** Whether an answer has nothing that a model could read: it was refused, failed or was stopped at once. */
function isEmpty(node) {
  if (node.kind !== "answer") return false;
  const { content, calls } = node.run.value;
  return !content && !calls.length;
}

function messageOf(node) {
  if (node.kind === "user") return { role: "user", content: node.text };
  if (node.kind === "tool") return { role: "tool", tool_call_id: node.call, content: node.text };
  const { content, calls } = node.run.value;
  return { role: "assistant", content: content || null, ...(calls.length ? { tool_calls: calls } : {}) };
}

/** The request that answers the last of these turns. */
function requestFor(turns) {
  const { seed = Math.floor(Math.random() * 2 ** 31), ...params } = state.params.value;
  const model = state.model.value;
  const body = { model, ...pageDefaults(state.fields.value, model), ...params, seed };
  if (turns.at(-1).kind === "prompt") return { path: "/v1/completions", body: { ...body, prompt: turns.at(-1).text } };
  const system = state.system.value ? [{ role: "system", content: state.system.value }] : [];
  const messages = turns.filter((node) => !isEmpty(node)).map(messageOf);
  return { path: "/v1/chat/completions", body: { ...body, messages: [...system, ...messages] } };
}

/** What somebody says below `parent` (null: a new conversation), and the answer to it. */
export function say(kind, text, parent, more = {}) {
  const id = batch(() => state.grow({ kind, text, ...more }, parent));
  if (kind === "tool" && openCalls(id).length) return Promise.resolve();
  return answer(id);
}

/** Calls of the last answer above a node that no result has been given for. */
export function openCalls(id) {
  const turns = above(state.tree.value, id);
  const last = turns.findLastIndex((node) => node.kind === "answer");
  if (last < 0) return [];
  const given = turns.slice(last + 1).map((node) => node.call);
  return turns[last].run.value.calls.filter((call) => !given.includes(call.id));
}

/** An answer to a turn; with `fork` = {node, at, ids}, one that begins with these ids of another. */
export function answer(parent, request = requestFor(above(state.tree.value, parent)), fork = null) {
  const stream = state.fields.value.resumable && mayKeep() ? lastingId("page") : null;
  const run = signal({ ...state.newRun(request, fork), stream });
  const id = state.grow({ kind: "answer", run }, parent);
  return receive(id, run);
}

/** The same request and seed with an output that begins with these ids, of which `at` is the first new one. */
function answerForced(node, ids, changes, at = ids.length - 1) {
  const { request } = node.run.value;
  const forced = { ...request, body: { ...request.body, ...changes, forced_token_ids: ids } };
  return answer(node.parent, forced, { node: node.id, at, token: ids[at] });
}

const idsOf = (tokens) => tokens.map((token) => token.record.token_id);

/** Another candidate at one place of an answer, and what follows it. */
export function branch(node, at, tokenId, changes = {}) {
  state.select(null);
  const ended = answerForced(node, [...idsOf(node.run.value.tokens.slice(0, at)), tokenId], changes);
  selectWhenThere(state.tree.value.chosen[node.parent], at);
  return ended;
}

/** Whether an answer has no end of its own, so that more may follow it. */
export const isCut = ({ finish, tokens }) =>
  tokens.length > 0 && ["length", "stopped", "interrupted", "abort"].includes(finish);

/** What follows an answer that was cut: at its limit, as many tokens more as it has brought; else as for a new one. */
export function proceed(node) {
  const { request, tokens, finish } = node.run.value;
  const brought = finish === "length" ? tokens.length - (request.body.forced_token_ids?.length ?? 0) : 0;
  const { params, fields, model } = state;
  const limit = params.value.max_tokens ?? startOf({ name: "max_tokens" }, fields.value, model.value);
  return answerForced(node, idsOf(tokens), { max_tokens: tokens.length + (brought || limit) });
}

/** The text of an answer, without its thoughts and calls, as its tokens spell it. */
export const textOf = ({ tokens }) =>
  tokens
    .filter(isContent)
    .map((token) => token.text)
    .join("");

const isContent = ({ channel, special }) => channel === "content" && !special;

/** How many tokens stay if an answer gets another text, and the rest of that text. */
export function commonTokens(tokens, text) {
  const first = tokens.findIndex(isContent);
  let kept = Math.max(first, 0);
  let at = 0;
  for (let i = kept; i < tokens.length && text.startsWith(tokens[i].text, at); i++) {
    if (!isContent(tokens[i])) break;
    if (!tokens[i].text) continue; // a part of a character that a later token completes
    at += tokens[i].text.length;
    kept = i + 1;
  }
  return { kept, rest: text.slice(at) };
}

/** An answer with another text: a branch, with records of the text's tokens. More may follow. Raises ApiError. */
export async function rewrite(node, text) {
  const { tokens, request } = node.run.value;
  const { kept, rest } = commonTokens(tokens, text);
  const ids = idsOf(tokens.slice(0, kept));
  const asked = { model: request.body.model, prompt: rest, add_special_tokens: false };
  if (rest) ids.push(...(await post("/tokenize", asked)).tokens);
  answerForced(node, ids, { max_tokens: ids.length }, Math.min(kept, ids.length - 1));
}

/** Selects the token with which a branch begins, once it is there, unless another has been selected. */
function selectWhenThere(id, index) {
  const { run } = state.tree.value.nodes[id];
  const dispose = effect(() => {
    const { tokens, done } = run.value;
    const there = tokens.length > index;
    if (!there && !done) return;
    queueMicrotask(() => {
      dispose();
      const shown = state.shownPath.peek().some((node) => node.id === id);
      if (there && shown && !state.selection.peek()) state.select(id, index);
    });
  });
}

/** The same request with another seed or other parameters. */
export const again = (node) => answer(node.parent);

async function receive(id, run, again = false) {
  const abort = new AbortController();
  stops.set(id, abort);
  await fill(run, abort.signal, again);
  stops.delete(id);
}

/** Goes on with answers that were coming when the page was left. Without their streams they end with what came. */
export function resumeAnswers() {
  for (const { id, run } of Object.values(state.tree.value.nodes))
    if (run && !run.value.done && !stops.has(id)) receive(id, run, true);
}

/** What the page asks for with every request. Its own fields, not those of the knobs (fields.js: OWN). */
const ASKED = {
  stream_options: { include_usage: true },
  explain: state.SMALL,
  return_token_ids: true,
  return_sampling_params: true,
};

/**
 * Streams the answer to a run's request into its signal, until another request is in it. Raises nothing.
 * again: the request was sent by a page that has been left; its stream is asked for all events once more.
 */
export async function fill(run, stopped, again = false) {
  const { request, stream: name } = run.value;
  let fold = null;
  const write = (more) => {
    if (run.value.request === request) run.value = { ...run.value, ...more };
  };
  const frame = perFrame(() => fold.hasCaughtUp && write(fold.seen()));
  const begin = (before) => (fold = new Fold(before));
  const onEvent = (event) => (fold.add(event), frame.ask());
  let error = null;
  try {
    await receiveEvents(run, { signal: stopped, onEvent, begin, again });
    if (!fold.finish) error = new ApiError("The answer was cut off: the connection ended before it did.");
  } catch (caught) {
    if (caught.name !== "AbortError") error = caught;
    else fold.finish = "stopped";
    if (name && !error) cancel(name);
  }
  fold.end();
  frame.now();
  if (!fold.hasCaughtUp) write({ finish: fold.finish ?? (again ? "interrupted" : null) });
  if (again && !fold.hasCaughtUp) error = null;
  write({ done: true, error: error && { message: error.message, param: error.param } });
}

/** Sends the request, and asks for its stream again if the connection is lost. begin(tokens so far) comes before. */
async function receiveEvents(run, { begin, again, ...options }) {
  const { request, stream: name } = run.value;
  let lost = null;
  if (!again) {
    begin(null);
    const body = { ...request.body, ...ASKED, ...(name ? { resumable: true } : {}) };
    lost = await stream(request.path, body, { ...options, name }).catch((error) => error);
    if (!lost) return;
    if (!name || !lost.isLost) throw lost;
  }
  begin(run.value.tokens);
  if (!name) return;
  await resume(request.path, name, options).catch((error) => {
    throw error.name === "AbortError" ? error : (lost ?? error);
  });
}

const asked = new Map(); // what has been asked → the answer's promise
const MOST_KEPT = 300;

/** The body of POST /v1/explain for one token of an answer. */
export function explainBody(node, index, explain = state.LARGE, whatIf = null) {
  const { request, tokens } = node.run.value;
  return {
    ...request.body,
    output_token_ids: tokens.slice(0, index + 1).map((token) => token.record.token_id),
    positions: [index],
    explain,
    ...(request.body.seed === undefined || request.body.seed === null ? { key: tokens[index].record.key } : {}),
    ...(whatIf ? { what_if: whatIf } : {}),
  };
}

/** Asks for a token's record with more candidates, or under other parameters. Raises ApiError. */
export async function explain(node, index, { top = state.LARGE.top, ids = [], whatIf = null } = {}) {
  const name = JSON.stringify([node.id, index, top, ids, whatIf]);
  if (!asked.has(name)) {
    if (asked.size >= MOST_KEPT) asked.delete(asked.keys().next().value);
    const answered = post("/v1/explain", explainBody(node, index, ids.length ? { top, ids } : { top }, whatIf));
    answered.catch(() => asked.delete(name));
    asked.set(name, answered);
  }
  const { explanations, consistent, verdict } = await asked.get(name);
  return { record: explanations[0], consistent, verdict };
}
