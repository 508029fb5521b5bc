// OpenAI's client for JavaScript: named checks, one JSON line each, as `checks.py` describes them.

import OpenAI, { APIUserAbortError, BadRequestError, NotFoundError } from "openai";

import { addZodChecks } from "./zod_checks.mjs";

const [rootUrl, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${rootUrl}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000 });

const STORY = "Write a short story about a dog and a ball.";
const ORDER = "Turn this order into JSON.\nImogen from Delhi wants 6 blue lamps at $62.29 each.";
const SCHEMA = {
  type: "object",
  properties: {
    customer: { type: "string" },
    item: { type: "string" },
    quantity: { type: "integer" },
    price: { type: "number" },
    city: { type: "string" },
  },
  required: ["customer", "item", "quantity", "price", "city"],
  additionalProperties: false,
};
const ORDERED = { customer: "Imogen", quantity: 6, price: 62.29, city: "Delhi" };
const FORMAT = { type: "json_schema", json_schema: { name: "order", strict: true, schema: SCHEMA } };
const RECORD = { type: "function", function: { name: "record", parameters: SCHEMA } };

const checks = new Map();

function expect(condition, what) {
  if (!condition) throw new Error(what);
}

function expectOrder(text) {
  const found = JSON.parse(text);
  const isRight = Object.entries(ORDERED).every(([name, value]) => found[name] === value);
  expect(isRight && found.item.includes("lamp"), `${ORDER} became ${text}`);
  return text;
}

const asked = (text, options = {}) => ({ model, messages: [{ role: "user", content: text }], temperature: 0, ...options });

async function raised(kind, call) {
  try {
    await call();
  } catch (error) {
    expect(error instanceof kind, `${error.constructor.name} instead of ${kind.name}: ${error}`);
    return error;
  }
  throw new Error(`nothing was raised, ${kind.name} expected`);
}

checks.set("models: list", async () => {
  const names = [];
  for await (const one of client.models.list()) names.push(one.id);
  expect(names.includes(model), `${model} is not in ${names}`);
  return names.join();
});

checks.set("chat: whole and streamed are one text", async () => {
  const body = asked(STORY, { max_completion_tokens: 40, seed: 7, temperature: 0.7 });
  const whole = await client.chat.completions.create(body);
  let text = "";
  let usage = null;
  for await (const chunk of await client.chat.completions.create({ ...body, stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  expect(text && text === whole.choices[0].message.content, `the stream said ${text}`);
  expect(usage.completion_tokens === whole.usage.completion_tokens, `usage ${JSON.stringify(usage)}`);
  return text;
});

checks.set("chat: parse a schema", async () => {
  const answer = await client.chat.completions.parse(asked(ORDER, { response_format: FORMAT }));
  return expectOrder(answer.choices[0].message.content);
});

checks.set("chat: stream helper", async () => {
  const stream = client.chat.completions.stream(asked(ORDER, { response_format: FORMAT }));
  let snapshot = "";
  stream.on("content", (_, all) => { snapshot = all; });
  const final = await stream.finalContent();
  expect(final === snapshot, `the stream said ${snapshot}`);
  return expectOrder(final);
});

checks.set("tools: a required call, and its result sent back", async () => {
  const body = asked(ORDER, { tools: [RECORD], max_tokens: 120 });
  const first = await client.chat.completions.create({ ...body, tool_choice: "required", parallel_tool_calls: false });
  const { message, finish_reason: reason } = first.choices[0];
  expect(reason === "tool_calls" && message.tool_calls.length === 1, JSON.stringify(first.choices[0]));
  const found = expectOrder(message.tool_calls[0].function.arguments);
  const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: "recorded" };
  const after = await client.chat.completions.create({ ...body, messages: [...body.messages, message, result], tool_choice: "none" });
  expect(after.choices[0].finish_reason, "no finish reason");
  return found;
});

checks.set("tools: a stream of a named call", async () => {
  const choice = { type: "function", function: { name: "record" } };
  const stream = client.chat.completions.stream(asked(ORDER, { tools: [RECORD], tool_choice: choice, max_tokens: 120 }));
  let parts = 0;
  stream.on("tool_calls.function.arguments.delta", () => { parts += 1; });
  const final = await stream.finalChatCompletion();
  expect(parts > 1, `${parts} parts of the arguments`);
  return expectOrder(final.choices[0].message.tool_calls[0].function.arguments);
});

checks.set("tools: runTools", async () => {
  const calls = [];
  const city = { type: "object", properties: { city: { type: "string", maxLength: 20 } }, required: ["city"] };
  const weather = {
    type: "function",
    function: { name: "weather", parameters: city, parse: JSON.parse, function: (given) => { calls.push(given.city); return "sunny"; } },
  };
  const only = { type: "function", function: { name: "weather" } };
  const runner = client.chat.completions.runTools(asked("What is the weather in Delhi?", { tools: [weather], tool_choice: only, max_tokens: 60 }));
  await runner.done();
  expect(calls.length === 1, `called with ${JSON.stringify(calls)}`);
  return calls.join();
});

checks.set("responses: whole and streamed are one text", async () => {
  const body = { model, input: STORY, max_output_tokens: 40, temperature: 0 };
  const whole = await client.responses.create(body);
  let text = "";
  let last = null;
  for await (const event of await client.responses.create({ ...body, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
    last = event;
  }
  expect(text && text === whole.output_text, `the stream said ${text}`);
  expect(["response.completed", "response.incomplete"].includes(last.type), `the last event is ${last.type}`);
  return text;
});

checks.set("responses: parse a schema", async () => {
  const format = { type: "json_schema", name: "order", strict: true, schema: SCHEMA };
  const answer = await client.responses.parse({ model, input: ORDER, temperature: 0, text: { format } });
  return expectOrder(answer.output_text);
});

checks.set("errors: unknown model, bad value", async () => {
  const found = [
    await raised(NotFoundError, () => client.chat.completions.create({ ...asked(STORY), model: "no-such-model" })),
    await raised(BadRequestError, () => client.chat.completions.create(asked(STORY, { temperature: 9 }))),
  ];
  return found.map((error) => error.message).join("; ");
});

checks.set("a stream is aborted", async () => {
  const stream = client.chat.completions.stream(asked(STORY, { max_tokens: 200 }));
  stream.on("content", () => stream.abort());
  await raised(APIUserAbortError, () => stream.done());
  return "aborted";
});

addZodChecks(checks, { client, model, expect });

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

say({ checks: [...checks.keys()] });
for (const [name, check] of checks) {
  try {
    say({ check: name, ok: true, needs: "", detail: String(await check()).slice(0, 2000) });
  } catch (error) {
    say({ check: name, ok: false, needs: "", detail: String(error.message).slice(0, 2000) });
  }
}
