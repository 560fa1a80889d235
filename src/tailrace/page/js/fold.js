// From the events of a stream to what an answer's signal holds.
import { Joiner } from "./text.js";

/**
 * Collects the events of a stream. The list of tokens is one and grows; what holds it is new each time.
 * before: tokens of the same stream that have come on another connection, or null; they keep their times.
 */
export class Fold {
  finish = null;
  #before;
  #tokens = [];
  #joiner = new Joiner();
  #content = "";
  #usage = null;
  #calls = [];
  #channel = "content";
  #begun = performance.now();
  #said = {};

  constructor(before = null) {
    this.#before = before;
    this.#begun -= before?.at(-1)?.time_ms ?? 0;
  }

  /** Whether all tokens that had come before have come again. */
  get hasCaughtUp() {
    return !this.#before || this.#tokens.length >= Math.max(this.#before.length, 1);
  }

  add(event) {
    if (event.usage) this.#usage = event.usage;
    if (event.sampling_params) this.#said.params = event.sampling_params;
    if (event.prompt_token_ids ?? event.choices?.[0]?.prompt_token_ids)
      this.#said.promptIds = event.prompt_token_ids ?? event.choices[0].prompt_token_ids;
    const [choice] = event.choices ?? [];
    if (!choice) return;
    const { content, reasoning_content, reasoning, tool_calls: calls } = choice.delta ?? { content: choice.text };
    const thought = reasoning_content ?? reasoning;
    if (content) [this.#content, this.#channel] = [this.#content + content, "content"];
    if (thought) this.#channel = "thought";
    if (calls) [this.#channel] = ["tool", calls.forEach((call) => this.#call(call))];
    const time = performance.now() - this.#begun;
    for (const record of choice.explanations ?? []) this.#token(record, time);
    if (choice.finish_reason) this.finish = choice.finish_reason;
  }

  #call({ index = 0, id, function: { name, arguments: more = "" } = {} }) {
    const call = (this.#calls[index] ??= { id, type: "function", function: { name: "", arguments: "" } });
    if (name) call.function.name += name;
    call.function.arguments += more;
  }

  #token(record, now) {
    const time_ms = this.#before?.[this.#tokens.length]?.time_ms ?? now;
    const special = record.bytes.length === 0;
    const text = special ? record.token : this.#joiner.push(record.bytes);
    this.#tokens.push({ record, time_ms, text, channel: this.#channel, special });
  }

  end() {
    const rest = this.#joiner.end();
    if (rest) this.#tokens.push({ ...this.#tokens.pop(), text: rest });
  }

  seen() {
    return {
      tokens: this.#tokens,
      usage: this.#usage,
      finish: this.finish,
      content: this.#content,
      calls: this.#calls,
      ...this.#said,
    };
  }
}
