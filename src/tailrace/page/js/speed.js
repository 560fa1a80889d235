// The speed of an answer, from the times at which its tokens came.

const WINDOW = 16; // tokens
const LEAST_MS = 100; // the shortest time over which a speed is taken: tokens of one event come almost at once

/** Tokens per second at a token, over the WINDOW tokens before it and LEAST_MS at least; null at the beginning. */
export function speed(tokens, i) {
  const time = tokens[i].time_ms;
  let first = Math.max(0, i - WINDOW);
  while (first > 0 && time - tokens[first].time_ms < LEAST_MS) first--;
  const took = time - tokens[first].time_ms;
  return took < LEAST_MS ? null : ((i - first) * 1000) / took;
}

/** "31 tokens/s" over a whole answer; "" for one that is too short to have a speed. */
export function pace({ tokens }) {
  if (tokens.length < 2) return "";
  const took = tokens.at(-1).time_ms - tokens[0].time_ms;
  return took < LEAST_MS ? "" : `${(((tokens.length - 1) * 1000) / took).toFixed(0)} tokens/s`;
}
