// OpenAI's client for JavaScript in a page of another origin: named checks, as `checks.py` describes them.

import OpenAI, { NotFoundError } from "openai";

const STORY = "Write a short story about a dog and a ball.";

function expect(condition, what) {
  if (!condition) throw new Error(what);
}

export async function run({ root_url: rootUrl, model }, say) {
  expect(new URL(rootUrl).origin !== location.origin, "the page is of the server's own origin");
  const client = new OpenAI({ baseURL: `${rootUrl}/v1`, apiKey: "none", maxRetries: 0, dangerouslyAllowBrowser: true });
  const asked = { model, messages: [{ role: "user", content: STORY }], temperature: 0, max_tokens: 60 };
  const checks = new Map();

  checks.set("models: list", async () => {
    const names = [];
    for await (const one of client.models.list()) names.push(one.id);
    expect(names.includes(model), `${model} is not in ${names}`);
    return names.join();
  });

  checks.set("chat: whole and streamed are one text", async () => {
    const whole = await client.chat.completions.create(asked);
    const times = [];
    let text = "";
    for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
      times.push(performance.now());
      text += chunk.choices[0]?.delta.content ?? "";
    }
    expect(text && text === whole.choices[0].message.content, `the stream said ${text}`);
    expect(new Set(times).size > 2, "all came at once");
    return text;
  });

  checks.set("responses: streamed", async () => {
    let text = "";
    for await (const event of await client.responses.create({ model, input: STORY, max_output_tokens: 40, temperature: 0, stream: true })) {
      if (event.type === "response.output_text.delta") text += event.delta;
    }
    expect(text, "no text");
    return text;
  });

  checks.set("errors: the page may read a refusal and its request id", async () => {
    try {
      await client.chat.completions.create({ ...asked, model: "no-such-model" });
    } catch (error) {
      expect(error instanceof NotFoundError, `${error.constructor.name}: ${error.message}`);
      expect(error.requestID, "no x-request-id can be read");
      return error.message;
    }
    throw new Error("it was accepted");
  });

  checks.set("a stream is aborted", async () => {
    const stream = await client.chat.completions.create({ ...asked, max_tokens: 300, stream: true });
    for await (const _ of stream) {
      stream.controller.abort();
      break;
    }
    return "aborted";
  });

  await say({ checks: [...checks.keys()] });
  for (const [name, check] of checks) {
    try {
      await say({ check: name, ok: true, needs: "", detail: String(await check()).slice(0, 2000) });
    } catch (error) {
      await say({ check: name, ok: false, needs: "", detail: String(error.message).slice(0, 2000) });
    }
  }
}
