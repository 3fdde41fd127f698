// Checks of a server with OpenAI's JavaScript client and Vercel's AI SDK: `node js_clients.mjs URL`.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, jsonSchema, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false;
const url = process.argv[2];
const MODEL = "weft/demo";
const COUNT = "Count to five.";
const WEATHER = "What is the weather in Paris?";
const AGE_SCHEMA = jsonSchema({
  type: "object", properties: { age: { type: "integer", minimum: 0, maximum: 120 } }, required: ["age"],
  additionalProperties: false });
const options = { baseURL: `${url}/v1`, apiKey: "none" };
const weather = tool({ description: "Tells the weather in a city.", inputSchema: z.object({ city: z.string() }) });

async function checkOpenAIClient() {
  const client = new OpenAI({ ...options, maxRetries: 0 });
  const messages = [{ role: "user", content: COUNT }];
  const whole = await client.chat.completions.create({ model: MODEL, messages, temperature: 0 });
  const stream = client.chat.completions.stream({ model: MODEL, messages, temperature: 0 });
  assert.equal(await stream.finalContent(), whole.choices[0].message.content);

  const response = await client.responses.create({ model: MODEL, input: COUNT, temperature: 0 });
  assert.equal(response.output_text, whole.choices[0].message.content);
  const types = [];
  const events = await client.responses.create({ model: MODEL, input: COUNT, temperature: 0, stream: true });
  for await (const event of events) types.push(event.type);
  assert.equal(types[0], "response.created");
  assert.equal(types.at(-1), "response.completed");
  await assert.rejects(
    client.responses.create({ model: MODEL, input: "x", previous_response_id: "resp_1" }),
    (error) => error.status === 400 && error.message.includes("nothing is stored"));

  const completion = await client.completions.create({
    model: MODEL, prompt: "Once", max_tokens: 2, echo: true, logprobs: 1 });
  assert.ok(completion.choices[0].text.startsWith("Once"));
  assert.equal(completion.choices[0].logprobs.tokens.length, completion.usage.total_tokens);
  assert.equal((await client.models.list()).data[0].id, MODEL);
}

async function checkProvider(model) {
  const count = { model, prompt: COUNT, temperature: 0, maxOutputTokens: 40 };
  const whole = await generateText(count);
  const stream = streamText(count);
  assert.equal(await stream.text, whole.text);
  assert.equal(await stream.finishReason, whole.finishReason);
  assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
  assert.ok(whole.usage.inputTokens > 0);

  const question = { model, prompt: WEATHER, tools: { weather }, toolChoice: "required", temperature: 0 };
  const [call] = (await generateText(question)).toolCalls;
  assert.equal(call.toolName, "weather");
  assert.equal(typeof call.input.city, "string");
  const parts = [];
  for await (const part of streamText(question).fullStream) parts.push(part);
  assert.equal(parts.find((part) => part.type === "error"), undefined);
  assert.deepEqual(parts.find((part) => part.type === "tool-call").input, call.input);

  const auto = await generateText({ ...count, prompt: "Hello!", tools: { weather } });
  assert.ok(auto.text.length > 0 || auto.toolCalls.length > 0);
  const { object } = await generateObject({ model, prompt: "How old is Ada?", schema: AGE_SCHEMA, temperature: 0 });
  assert.ok(Number.isInteger(object.age));
  await assert.rejects(
    generateText({ model, prompt: "x".repeat(100000), maxRetries: 0 }), (error) => /tokens/.test(error.message));
}

await checkOpenAIClient();
await checkProvider(createOpenAI(options)(MODEL)); // of the Responses API
await checkProvider(createOpenAI(options).chat(MODEL));
await checkProvider(createOpenAICompatible({
  ...options, name: "weft", includeUsage: true, supportsStructuredOutputs: true })(MODEL));
await checkProvider(createAnthropic(options)(MODEL));
