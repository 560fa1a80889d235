// A request as curl, Python and JSON, ready to copy, and what it was really computed with.
import { html, useComputed, useState } from "./lib.js";
import { hasKey } from "./api.js";
import { copyAndSay } from "./clipboard.js";
import * as state from "./state.js";
import { NO_FIELDS, used } from "./fields.js";

const INDENT = "  ";
// Characters that nobody sees, or that reorder what is seen: a copied command must not hide anything.
const UNSEEN = /[\p{Default_Ignorable_Code_Point}\p{Cf}\p{Cs}\u007f-\u009f\u2028\u2029]/gu;

const unit = (code) => `\\u${code.toString(16).padStart(4, "0")}`;
const jsonEscape = (found) => Array.from({ length: found.length }, (_, i) => unit(found.charCodeAt(i))).join("");
const pythonEscape = (found) =>
  found.length > 1 ? `\\U${found.codePointAt(0).toString(16).padStart(8, "0")}` : unit(found.charCodeAt(0));

/** The body as JSON, over several lines. */
export const asJson = (body) => JSON.stringify(body, null, INDENT).replace(UNSEEN, jsonEscape);

/** Text as one word of a POSIX shell. */
export const shellQuoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** The request as a command. base: the server's address, ending in "/". key: whether it needs one. */
export function asCurl({ path, body }, { base, key = false }) {
  const url = new URL(path.replace(/^\//, ""), base).href;
  const parts = [
    `curl ${body.stream ? "-N " : ""}${shellQuoted(url)}`,
    "-H 'content-type: application/json'",
    ...(key ? ['-H "authorization: Bearer $TAILRACE_API_KEY"'] : []),
    `-d ${shellQuoted(asJson(body))}`,
  ];
  return parts.join(" \\\n  ");
}

// What the openai package's own methods take; everything else goes into extra_body.
const TAKEN = {
  chat: new Set([
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "metadata",
    "model",
    "n",
    "parallel_tool_calls",
    "presence_penalty",
    "reasoning_effort",
    "response_format",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "temperature",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
  ]),
  completion: new Set([
    "best_of",
    "echo",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "model",
    "n",
    "presence_penalty",
    "prompt",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
  ]),
};

/** A value as a Python literal. */
export function pythonLiteral(value, indent = "") {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "number") return String(value);
  if (typeof value === "string") return JSON.stringify(value).replace(UNSEEN, pythonEscape);
  const deeper = `${indent}    `;
  const list = Array.isArray(value);
  const entries = list
    ? value.map((each) => pythonLiteral(each, deeper))
    : Object.entries(value).map(([name, each]) => `${pythonLiteral(name)}: ${pythonLiteral(each, deeper)}`);
  const [open, close] = list ? "[]" : "{}";
  const line = `${open}${entries.join(", ")}${close}`;
  if (line.length + indent.length <= 96 && !line.includes("\n")) return line;
  return `${open}\n${entries.map((entry) => `${deeper}${entry},\n`).join("")}${indent}${close}`;
}

const IDENTIFIER = /^[A-Za-z_]\w*$/;

/** The request as a program with the openai package. */
export function asPython({ path, body }, { base, key = false }) {
  const chat = path.includes("chat");
  const taken = TAKEN[chat ? "chat" : "completion"];
  const given = Object.entries(body);
  const own = given.filter(([name]) => taken.has(name) && IDENTIFIER.test(name));
  const extra = Object.fromEntries(given.filter(([name]) => !taken.has(name)));
  const words = own.map(([name, value]) => `    ${name}=${pythonLiteral(value, "    ")},\n`);
  if (Object.keys(extra).length) words.push(`    extra_body=${pythonLiteral(extra, "    ")},\n`);
  const url = new URL("v1", base).href;
  const secret = key ? 'os.environ["TAILRACE_API_KEY"]' : '"none"';
  const text = chat ? (body.stream ? ".delta.content" : ".message.content") : ".text";
  const lines = [
    ...(key ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${pythonLiteral(url)}, api_key=${secret})`,
    `answer = client.${chat ? "chat.completions" : "completions"}.create(`,
    `${words.join("")})`,
    ...(body.stream
      ? [
          "for chunk in answer:",
          "    if chunk.choices:",
          `        print(chunk.choices[0]${text} or "", end="", flush=True)`,
        ]
      : [`print(answer.choices[0]${text})`]),
  ];
  return `${lines.join("\n")}\n`;
}

const FORMS = [
  ["curl", asCurl],
  ["Python", asPython],
  ["JSON", ({ body }) => asJson(body)],
];

/**
 * The request of the answer that is shown, as code, and what it was computed with. request: a signal of {path, body}.
 * fields: a signal of the declarations. run: a signal of the answer's run.
 */
export function CodeView({ request = state.request, fields = state.fields, run = state.run }) {
  const params = useComputed(() => run.value.params); // not drawn again for each token
  const [form, setForm] = useState("curl");
  const [options, setOptions] = useState({ stream: true, explain: false });
  const [said, setSaid] = useState("");
  const { path, body } = request.value;
  const whole = { ...body, ...(options.stream ? { stream: true } : {}), ...(options.explain ? { explain: true } : {}) };
  const write = FORMS.find(([name]) => name === form)[1];
  const text = write({ path, body: whole }, { base: document.baseURI, key: hasKey() });
  const take = () => copyAndSay(text, setSaid);
  const option = (name, label) => html`<label class="check"><input type="checkbox" checked=${options[name]}
    onChange=${(event) => setOptions({ ...options, [name]: event.target.checked })} /><span>${label}</span></label>`;
  return html`<section class="code" aria-label="The request as code">
    <div class="code-tools">
      <div class="segments" role="radiogroup" aria-label="Language">
        ${FORMS.map(
          ([name]) => html`<label key=${name}>
          <input type="radio" name="code-form" checked=${name === form} onChange=${() => setForm(name)} />
          <span>${name}</span></label>`,
        )}
      </div>
      <button type="button" onClick=${take}>Copy</button>
      ${option("stream", "streamed")} ${option("explain", "with explanations")}
      <span role="status" class="said">${said}</span>
    </div>
    <pre tabindex="0" aria-label=${`The request as ${form}`}><code>${text}</code></pre>
    <${Used} params=${params.value} body=${body} fields=${fields} model=${body.model || state.model.value} />
  </section>`;
}

/** What an answer is really computed with, as the server says it, and whose choice each value is. */
export function Used({ params, body, fields, model }) {
  const declared = fields.value?.fields ? fields.value : NO_FIELDS;
  const list = params ? used(params, body, declared, model) : [];
  const row = ({ name, value, from }) => html`<tr key=${name}>
    <th scope="row">${name}</th><td><code>${JSON.stringify(value)}</code></td><td>${from}</td></tr>`;
  return html`<section class="used">
    <h3>What it is really computed with</h3>
    ${
      list.length > 0 &&
      html`<table>
        <thead><tr><th scope="col">field</th><th scope="col">value</th><th scope="col">from</th></tr></thead>
        <tbody>${list.map(row)}</tbody>
      </table>`
    }
    <p>${params ? "Every other field is neutral: its method is not run." : "The server says it with an answer."}</p>
  </section>`;
}
