// The conversation: turns, answers, and the field in which to write.
import { html, useComputed, useEffect, useRef, useSignal } from "./lib.js";
import { siblings } from "./branches.js";
import { copyAndSay } from "./clipboard.js";
import * as generate from "./generate.js";
import { pace } from "./speed.js";
import * as state from "./state.js";
import { Legend, TokenSpans } from "./tokens.js";
import { FormSwitch, Written, isText } from "./written.js";

const FAR_PX = 80; // who is further from the end than this reads, and is not scrolled along

/** Which of several siblings is shown, and the way to the others. */
function Siblings({ node }) {
  const all = siblings(state.tree.value, node.id);
  if (all.length < 2) return null;
  const at = all.indexOf(node.id);
  const step = (by) => state.walk(all[at + by]);
  return html`<span class="siblings" role="group" aria-label=${`Branch ${at + 1} of ${all.length}`}>
    <button type="button" class="icon" disabled=${at === 0} aria-label="Branch before"
      onClick=${() => step(-1)}>‹</button>
    <span>${at + 1}/${all.length}</span>
    <button type="button" class="icon" disabled=${at === all.length - 1} aria-label="Next branch"
      onClick=${() => step(1)}>›</button>
  </span>`;
}

/** A text field that grows with its text. Control or Command with Enter submits, with `enter` Enter alone. */
function Writing({ text, title, placeholder = "", rows = 1, enter, onSubmit, focus }) {
  const field = useRef(null);
  useEffect(() => {
    const { style } = field.current;
    style.height = "auto";
    style.height = `${field.current.scrollHeight + 2}px`;
  }, [text.value]);
  useEffect(() => focus && field.current.focus(), []);
  const onKeyDown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || !(enter || event.ctrlKey || event.metaKey))
      return;
    event.preventDefault();
    onSubmit?.();
  };
  return html`<textarea ref=${field} rows=${rows} dir="auto" aria-label=${title} placeholder=${placeholder}
    value=${text.value}
    onInput=${(event) => (text.value = event.target.value)} onKeyDown=${onKeyDown}></textarea>`;
}

const SPEAKERS = { user: "You", prompt: "Prompt", tool: "Tool" };

function Said({ node }) {
  const edited = useSignal(null);
  const text = useSignal(node.text);
  const open = () => {
    text.value = node.text;
    edited.value = true;
  };
  const send = () => {
    edited.value = null;
    generate.say(node.kind, text.value, node.parent, node.call ? { call: node.call } : {});
  };
  return html`<article class=${`turn said ${node.kind}`} aria-label=${SPEAKERS[node.kind]}>
    <div class="turn-head"><span class="speaker">${SPEAKERS[node.kind]}</span><${Siblings} node=${node} />
      ${!edited.value && html`<button type="button" class="quiet-button" onClick=${open}>Edit</button>`}</div>
    ${
      edited.value
        ? html`<div class="editing"><${Writing} text=${text} title="Edit what was said" focus onSubmit=${send} />
          <div class="row"><button type="button" class="primary" onClick=${send}>Send again</button>
          <button type="button" onClick=${() => (edited.value = null)}>Leave it</button></div></div>`
        : html`<div class="said-text" dir="auto">${node.text}</div>`
    }
  </article>`;
}

const ENDS = {
  length: "Cut at the limit of tokens",
  stopped: "Stopped by you",
  abort: "Ended early by the server",
  interrupted: "Interrupted: the page was closed while the answer came",
  tool_calls: "Calls a tool",
  repetition: "Ended: it repeated itself",
};

function Forked({ fork }) {
  const from = state.tree.value.nodes[fork.node];
  if (!from) return null;
  return html`<button type="button" class="quiet-button"
    onClick=${() => state.walk(from.id)}>Branched at token ${fork.at + 1}</button>`;
}

/** What can be done with an answer that has ended. */
function Actions({ node, onEdit }) {
  const said = useSignal("");
  const editable = !node.run.value.calls.length && generate.textOf(node.run.value);
  const take = () => copyAndSay(node.run.value.content, (note) => (said.value = note));
  return html`<span class="quiet" role="status">${said}</span>
    <button type="button" class="quiet-button" onClick=${take}>Copy</button>
    ${
      editable &&
      html`<button type="button" class="quiet-button" onClick=${onEdit}
      title="Another text beside this one, from which the model can go on">Edit</button>`
    }
    <button type="button" class="quiet-button" onClick=${() => generate.again(node)}
      title="The same turn once more, with the parameters as they stand now">Again</button>
    <button type="button" class="quiet-button" onClick=${() => state.remove(node.id)}
      title="Takes the answer away, with what follows it">Delete</button>`;
}

/** A field for another text of an answer. */
function Rewriting({ node, leave }) {
  const text = useSignal(generate.textOf(node.run.value));
  const problem = useSignal("");
  const save = () => {
    if (!text.value) return;
    generate.rewrite(node, text.value).then(leave, (error) => (problem.value = error.message));
  };
  return html`<div class="editing"><${Writing} text=${text} title="Edit the answer" focus onSubmit=${save} />
    ${problem.value && html`<p class="error" role="alert">${problem}</p>`}
    <div class="row"><button type="button" class="primary" disabled=${!text.value} onClick=${save}>Save as a
      branch</button> <button type="button" onClick=${leave}>Leave it</button></div></div>`;
}

function Answer({ node }) {
  const run = node.run.value;
  const edited = useSignal(false);
  const selected = useComputed(() => (state.selection.value?.node === node.id ? state.selection.value.index : null));
  const marks = useComputed(() => state.partings(node));
  const onSelect = (index, open) => {
    state.select(index === null ? null : node.id, index);
    if (index === null && state.panel.value === "ladder") state.panel.value = "";
    if (open) state.panel.value = "ladder";
  };
  const count = run.tokens.length > 0 ? `${run.tokens.length} tokens` : "";
  const facts = [count, run.done ? pace(run) : "…"].filter(Boolean).join(" · ");
  const waits = !run.done && !run.tokens.length && !run.content;
  return html`<article class="turn answer" aria-label="Answer">
    <div class="turn-head"><span class="speaker">Answer</span><${Siblings} node=${node} />
      ${run.fork && html`<${Forked} fork=${run.fork} />`}
      <span class="quiet facts">${facts}</span>
      ${run.done && !edited.value && html`<${Actions} node=${node} onEdit=${() => (edited.value = true)} />`}
    </div>
    ${edited.value && html`<${Rewriting} node=${node} leave=${() => (edited.value = false)} />`}
    ${waits && html`<div class="waiting" aria-hidden="true"><i></i><i></i><i></i></div>`}
    ${
      edited.value
        ? null
        : isText()
        ? html`<${Written} run=${run} />`
        : run.tokens.length > 0 &&
          html`<${TokenSpans} run=${node.run} selected=${selected} onSelect=${onSelect} marks=${marks} />`
    }
    ${run.error && html`<p class="error" role="alert">${run.error.message}</p>`}
    ${run.done && ENDS[run.finish] && html`<p class="quiet ending">${ENDS[run.finish]}. ${
      generate.isCut(run) && html`<button type="button" onClick=${() => generate.proceed(node)}>Continue</button>`
    }</p>`}
  </article>`;
}

/** Says when an answer begins and when it is there, with its text, to those who do not see it. Not each token. */
function Herald() {
  const said = useSignal("");
  const { current, run } = state;
  const phase = current.value?.kind === "answer" ? `${current.value.id} ${run.value.done}` : "";
  useEffect(() => {
    if (!phase) return;
    const { done, content, tokens, error } = run.value;
    if (!done) said.value = "The answer is being written.";
    else
      said.value = error
        ? `The answer failed: ${error.message}`
        : `The answer is there, ${tokens.length} tokens. ${content.slice(0, 2000)}`;
  }, [phase]);
  return html`<div class="heard" role="status" aria-live="polite">${said}</div>`;
}

function Composer() {
  const text = useSignal("");
  const last = state.shownPath.value.at(-1);
  const [call] = last ? generate.openCalls(last.id) : [];
  const raw = state.mode.value === "completion";
  const busy = state.busy.value;
  const send = () => {
    if (busy || (!text.value.trim() && !raw) || !text.value) return;
    const parent = raw ? null : (last?.id ?? null);
    const kind = raw ? "prompt" : call ? "tool" : "user";
    generate.say(kind, text.value, parent, call ? { call: call.id } : {});
    text.value = "";
  };
  const rawHint = "Text to continue (Ctrl+Enter sends)";
  const placeholder = raw ? rawHint : call ? `What ${call.function.name} returned` : "Say something";
  return html`<form class="composer" onSubmit=${(event) => (event.preventDefault(), send())}>
    <div class="composer-box">
      <${Writing} text=${text} title=${placeholder} placeholder=${placeholder} enter=${!raw} onSubmit=${send} focus />
      <div class="composer-row">
        <div class="segments" role="radiogroup" aria-label="Kind of request">
          ${[
            ["chat", "Chat"],
            ["completion", "Raw text"],
          ].map(
            ([name, title]) => html`<label key=${name}>
            <input type="radio" name="mode" checked=${state.mode.value === name}
              onChange=${() => state.begin(name)} /><span>${title}</span></label>`,
          )}
        </div>
        <button type="button" class="quiet-button" aria-pressed=${state.knobsOpen.value ? "true" : "false"}
          onClick=${() => (state.knobsOpen.value = !state.knobsOpen.value)}>Parameters</button>
        <span class="grow"></span>
        ${
          busy
            ? html`<button key="stop" type="button" class="primary stop" onClick=${generate.stopAll}>Stop</button>`
            : html`<button key="send" class="primary"
              disabled=${!text.value.trim()}>${raw ? "Continue" : "Send"}</button>`
        }
      </div>
    </div>
  </form>`;
}

function System() {
  if (state.mode.value !== "chat") return null;
  return html`<details class="system" open=${Boolean(state.system.peek())}>
    <summary>System prompt${state.system.value ? "" : html` <span class="quiet">none</span>`}</summary>
    <${Writing} text=${state.system} title="System prompt" rows=${2}
      placeholder="What the model is told before the conversation" /></details>`;
}

const STARTS = {
  chat: ["Write a haiku about a river.", "Name three odd animals.", "Explain what a tailrace is."],
  completion: ["Once upon a time", "The three laws of", "def fibonacci(n):"],
};

function Welcome() {
  const { mode } = state;
  return html`<div class="welcome">
    <h2>See why each token came</h2>
    <p>Send something. Every token is coloured by how surprising it was; click one to see how it was chosen, change a
      knob to see what would have come instead, or take another road from there.</p>
    <div class="starts">${STARTS[mode.value].map((text) => html`<button key=${text} type="button"
      onClick=${() => generate.say(mode.value === "chat" ? "user" : "prompt", text, null)}>${text}</button>`)}</div>
  </div>`;
}

/** Scrolls along with what is written, for who is at its end. */
function useFollowing(scroller, version) {
  const follows = useRef(true);
  useEffect(() => {
    const element = scroller.current;
    const onScroll = () => (follows.current = element.scrollHeight - element.scrollTop - element.clientHeight < FAR_PX);
    element.addEventListener("scroll", onScroll, { passive: true });
    return () => element.removeEventListener("scroll", onScroll);
  }, []);
  useEffect(() => {
    if (follows.current && !state.selection.peek()) scroller.current.scrollTop = scroller.current.scrollHeight;
  }, [version]);
}

export function Conversation() {
  const scroller = useRef(null);
  const turns = state.shownPath.value;
  const last = turns.at(-1);
  const run = last?.run?.value;
  const version = `${last?.id} ${run?.tokens.length} ${run?.done}`;
  useFollowing(scroller, version);
  return html`<div class="scroller" ref=${scroller}>
      <div class="thread">
        <div class="thread-head"><${System} />
          ${turns.length > 0 && html`<button type="button" class="quiet-button"
            onClick=${() => state.begin()}>New conversation</button>`}</div>
        ${turns.length ? null : html`<${Welcome} />`}
        ${turns.map((node) => (node.kind === "answer" ? html`<${Answer} key=${node.id} node=${node} />` : html`<${Said}
          key=${node.id} node=${node} />`))}
      </div>
    </div>
    <${Herald} />
    <div class="foot">
      ${state.trouble.value && html`<p class="error" role="alert">${state.trouble} Trying again…</p>`}
      ${turns.length > 0 && html`<div class="foot-row"><${FormSwitch} />
        ${!isText() && html`<${Legend} run=${state.run} />`}</div>`}
      <${Composer} />
    </div>`;
}
