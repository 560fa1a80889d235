// What a user of the AI SDK sees of an answer that fails: before its first text and after it, and at the token limit.
// Writes one JSON line per answer: the text, the errors that were shown, and the reason of the end.
import { generateText, streamText } from 'ai';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';

const [url, name] = process.argv.slice(2);
const server = { baseURL: `${url}/v1`, apiKey: 'none', name };
const models = {
  messages: createAnthropic(server)(name),
  responses: createOpenAI(server)(name),
  chat: createOpenAI(server).chat(name),
  compatible: createOpenAICompatible(server)(name),
};
const script = (turn) => fetch(`${url}/script`, { method: 'POST', body: JSON.stringify([turn]) });
const describe = (error) => `${error?.message ?? JSON.stringify(error)}`.slice(0, 300);

async function generate(options) {
  try {
    const { text, finishReason } = await generateText(options);
    return { text, finishReason, errors: [] };
  } catch (error) {
    return { text: '', errors: [describe(error)] };
  }
}

async function stream(options) {
  const told = { text: '', errors: [] };
  const result = streamText({ ...options, onError: () => {} });
  for await (const part of result.fullStream) {
    if (part.type === 'text-delta') told.text += part.text;
    if (part.type === 'error') told.errors.push(describe(part.error));
    if (part.type === 'finish') told.finishReason = part.finishReason;
  }
  return told;
}

for (const [api, model] of Object.entries(models)) {
  for (const [how, ask] of Object.entries({ whole: generate, streamed: stream })) {
    for (const [what, text] of Object.entries({ early: '', late: 'Half an answer' })) {
      await script({ text, fails: true });
      const told = await ask({ model, prompt: 'Hello?', maxOutputTokens: 100, maxRetries: 0 });
      console.log(JSON.stringify({ api, how, what, ...told }));
    }
    await script({ text: 'A long answer' });
    const told = await ask({ model, prompt: 'Hello?', maxOutputTokens: 6, maxRetries: 0 });
    console.log(JSON.stringify({ api, how, what: 'limit', ...told }));
  }
}
