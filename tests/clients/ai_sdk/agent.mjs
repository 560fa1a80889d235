// The AI SDK against a server whose model plays an agent's part (scripted_agent.py). It checks every answer against
// its own schemas. Writes one JSON line per conversation: what was asked, and what came of it.
import { generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool } from 'ai';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { z } from 'zod';

const [url, name] = process.argv.slice(2);
const server = { baseURL: `${url}/v1`, apiKey: 'none', name };
const models = {
  messages: createAnthropic(server)(name),
  responses: createOpenAI(server)(name),
  chat: createOpenAI(server).chat(name),
  compatible: createOpenAICompatible({ ...server, supportsStructuredOutputs: true })(name),
};
const tools = {
  get_weather: tool({
    description: 'The weather in a city',
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `sunny in ${city}`,
  }),
};
const schema = z.object({ city: z.string(), weather: z.string() });
const threeSteps = [
  { thought: 'Both, at once.', calls: [['get_weather', { city: 'Paris' }], ['get_weather', { city: 'Oslo' }]] },
  { calls: [['get_weather', { city: 'Rome' }]] },
  { text: 'All are sunny.' },
];
const script = (turns) => fetch(`${url}/script`, { method: 'POST', body: JSON.stringify(turns) });

// Each returns what a conversation came to.
async function generate(options) {
  return summary(await generateText(options));
}

async function stream(options) {
  const errors = [];
  const result = streamText({ ...options, onError: ({ error }) => errors.push(error) });
  let text = '';
  try {
    for await (const piece of result.textStream) text += piece;
    const [steps, finishReason] = [await result.steps, await result.finishReason];
    return summary({ text: steps.at(-1).text, steps, finishReason, streamed: text });
  } catch (error) {
    throw errors[0] ?? error;
  }
}

function summary({ text, steps, finishReason, streamed = text }) {
  const called = steps.map((step) => step.toolCalls.map((call) => call.input.city));
  const thought = steps[0].reasoningText ?? null;
  return { text, streamed, steps: steps.length, called, thought, finishReason };
}

const object = async (options) => ({ object: (await generateObject({ ...options, schema })).object });
const output = async (options) => ({
  object: (await generateText({ ...options, output: Output.object({ schema }) })).output,
});

async function streamedObject(options) {
  const errors = [];
  const result = streamObject({ ...options, schema, onError: ({ error }) => errors.push(error) });
  let partial = {};
  for await (partial of result.partialObjectStream);
  if (errors.length) throw errors[0];
  return { object: await result.object, partial };
}

async function streamedOutput(options) {
  const errors = [];
  const result = streamText({ ...options, output: Output.object({ schema }), onError: ({ error }) => errors.push(error) });
  let partial = {};
  for await (partial of result.partialOutputStream);
  if (errors.length) throw errors[0];
  return { object: await result.output, partial };
}

async function report(api, how, what, ask, options) {
  try {
    console.log(JSON.stringify({ api, how, what, ...(await ask(options)) }));
  } catch (error) {
    const cause = `${error} ${JSON.stringify(error.cause ?? error.responseBody ?? '')}`.slice(0, 2000);
    console.log(JSON.stringify({ api, how, what, error: cause }));
  }
}

for (const [api, model] of Object.entries(models)) {
  const plain = { model, maxOutputTokens: 500, maxRetries: 0, system: 'Be kind' };
  const asked = { ...plain, prompt: 'think: as JSON' };
  const works = { ...plain, tools, stopWhen: stepCountIs(5) };
  for (const [how, ask] of Object.entries({ whole: generate, streamed: stream })) {
    await report(api, how, 'plain', ask, { ...plain, prompt: 'Hello?' });
    await report(api, how, 'cut', ask, { ...plain, prompt: 'Hello?', maxOutputTokens: 2 });
    await report(api, how, 'called', ask, { ...works, prompt: 'Weather?' });
    await report(api, how, 'thought', ask, { ...works, prompt: 'think: weather?' });
    await script(threeSteps);
    await report(api, how, 'steps', ask, { ...works, prompt: 'Weather in three cities?' });
    await script([]);
  }
  await report(api, 'whole', 'object', object, asked);
  await report(api, 'streamed', 'object', streamedObject, asked);
  await report(api, 'whole', 'output', output, asked);
  await report(api, 'streamed', 'output', streamedOutput, asked);
}
