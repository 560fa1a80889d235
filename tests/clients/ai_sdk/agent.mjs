// The AI SDK against a server whose model plays an agent's part (scripted_agent.py). It checks every answer against
// its own schemas. Writes one JSON line per conversation: what was asked, and what came of it.
import { generateText, stepCountIs, streamText, tool } from 'ai';
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
  compatible: createOpenAICompatible(server)(name),
};
const tools = {
  get_weather: tool({
    description: 'The weather in a city',
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `sunny in ${city}`,
  }),
};
const report = (fields) => console.log(JSON.stringify(fields));

async function ask(api, how, options) {
  try {
    if (how === 'whole') {
      const { text, steps, finishReason } = await generateText(options);
      report({ api, how, text, steps: steps.length, thought: steps[0].reasoningText ?? null, finishReason });
    } else {
      const errors = [];
      const stream = streamText({ ...options, onError: ({ error }) => errors.push(error) });
      const text = await stream.text;
      if (errors.length) throw errors[0];
      const steps = await stream.steps;
      const finishReason = await stream.finishReason;
      report({ api, how, text, steps: steps.length, thought: steps[0].reasoningText ?? null, finishReason });
    }
  } catch (error) {
    report({ api, how, error: `${error} ${JSON.stringify(error.cause ?? error.responseBody ?? '')}`.slice(0, 2000) });
  }
}

for (const [api, model] of Object.entries(models)) {
  const plain = { model, maxOutputTokens: 500, maxRetries: 0, system: 'Be kind' };
  for (const how of ['whole', 'streamed']) {
    await ask(api, how, { ...plain, prompt: 'Hello?' });
    await ask(api, how, { ...plain, prompt: 'Hello?', maxOutputTokens: 2 });
    for (const prompt of ['Weather?', 'think: weather?'])
      await ask(api, how, { ...plain, prompt, tools, stopWhen: stepCountIs(3) });
  }
}
