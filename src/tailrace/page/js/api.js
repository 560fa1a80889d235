// Calls of the server: JSON, streams of events, API keys.
import { signal } from "./lib.js";

const KEPT = "tailrace-key";
const PARTING_MS = 500; // a page that is left loses its connections a moment before it ends

/** Whether a call was refused for want of a key, so that the page asks for one. */
export const keyWanted = signal(false);

/** What the server refused, or how a call failed. */
export class ApiError extends Error {
  constructor(message, { status = 0, param = null, code = null, isLost = false } = {}) {
    super(message);
    Object.assign(this, { status, param, code, isLost });
  }
}

/** Keeps the key in this tab until it is closed; "" forgets it. */
export function setKey(key) {
  if (key) sessionStorage.setItem(KEPT, key);
  else sessionStorage.removeItem(KEPT);
  keyWanted.value = false;
}

export const hasKey = () => sessionStorage.getItem(KEPT) !== null;

/**
 * Throws what a lost connection means; AbortError as it is. The pause keeps a page that is being left from taking its
 * own end for the server's.
 */
async function refuseLostConnection(error, message) {
  if (error.name === "AbortError") throw error;
  await new Promise((resolve) => setTimeout(resolve, PARTING_MS));
  throw new ApiError(message, { isLost: true });
}

const SILENT = "The server does not answer.";
const BROKEN = "The connection to the server broke before the answer ended. Is the server still running?";

async function call(path, init = {}) {
  const key = sessionStorage.getItem(KEPT);
  const headers = {
    ...init.headers,
    ...(init.body ? { "content-type": "application/json" } : {}),
    ...(key ? { authorization: `Bearer ${key}` } : {}),
  };
  const asked = fetch(path.replace(/^\//, ""), { ...init, headers });
  const response = await asked.catch((error) => refuseLostConnection(error, SILENT));
  if (response.ok) return response;
  if (response.status === 401) keyWanted.value = true;
  throw refusal(await response.text(), response.status);
}

function refusal(text, status) {
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    // not JSON: a proxy's answer
  }
  return new ApiError(error.message ?? `The server answered with status ${status}.`, {
    status,
    ...error,
    message: undefined,
  });
}

/** The JSON, or the text, of a GET. Raises ApiError. */
export async function get(path) {
  const response = await call(path);
  return (response.headers.get("content-type") ?? "").includes("json") ? response.json() : response.text();
}

/** The JSON answer to a body. Raises ApiError; AbortError if `signal` fires. */
export async function post(path, body, { signal } = {}) {
  return (await call(path, { method: "POST", body: JSON.stringify(body), signal })).json();
}

/** Server-sent events, with the rest that is no whole event yet. */
export function events(text) {
  const parts = text.split(/\r?\n\r?\n/);
  const rest = parts.pop();
  const found = parts.map((part) =>
    part
      .split(/\r?\n/)
      .filter((line) => line.startsWith("data:"))
      .map((line) => line.slice(5).replace(/^ /, ""))
      .join("\n"),
  );
  return [found.filter(Boolean), rest];
}

/**
 * Sends a body and calls `onEvent(object)` for each event of the stream, in order; resolves at its end. name: of the
 * request, for `resume` and `cancel`.
 * Raises ApiError where the server refuses or fails, also on the way; AbortError if `signal` fires.
 */
export async function stream(path, body, { onEvent, signal, name }) {
  const headers = name ? { "x-request-id": name } : {};
  const sent = { method: "POST", body: JSON.stringify({ ...body, stream: true }), signal, headers };
  await readEvents(await call(path, sent), onEvent);
}

const ID_PREFIXES = { "/v1/chat/completions": "chatcmpl", "/v1/completions": "cmpl" };

/** All events of a resumable request once more, and those that still come. Raises as `stream` does. */
export async function resume(path, name, { onEvent, signal }) {
  await readEvents(await call(`${path}/${ID_PREFIXES[path]}-${name}`, { signal }), onEvent);
}

/** Ends a request that would go on without a reader. It may have ended. */
export const cancel = (name) => call(`/v1/requests/${name}`, { method: "DELETE" }).catch(() => null);

async function readEvents(response, onEvent) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read().catch((error) => refuseLostConnection(error, BROKEN));
    if (done) return;
    let found;
    [found, rest] = events(rest + value);
    for (const data of found) {
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(event.error.message, { ...event.error, message: undefined });
      onEvent(event);
    }
  }
}
