// Asks the API of the service that this page is from. Every failure is a sentence.

const BASE = new URL(".", document.baseURI);
const KEY_ITEM = "outrider-key";

export const apiRoot = new URL("v1", BASE).href;

export class Problem extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY_ITEM) ?? "",
  set: (value) => sessionStorage.setItem(KEY_ITEM, value),
};

// The served model: its name, and the tokens that prompt and answer have together.
export async function servedModel() {
  const response = await ask("v1/models", {});
  const [model] = (await response.json()).data;
  return model;
}

// The limits of `speculation.k` and `max_tokens` and the drafters, as the service publishes them.
export async function limits() {
  const page = await (await ask("openapi.json", {})).json();
  const shapes = page.components.schemas;
  const { drafter } = shapes.SpeculationOptions.properties;
  return {
    drafters: (drafter.anyOf ?? [drafter]).flatMap((part) => part.enum ?? []),
    k: highest(shapes.SpeculationOptions.properties.k),
    maxTokens: highest(shapes.ChatCompletionRequest.properties.max_tokens),
  };
}

// The events of a streamed answer; ends with the stream, throws a Problem where it breaks.
export async function* streamed(body, signal) {
  const response = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Problem("The stream broke off before its end.");
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Problem(event.error.message);
      yield event;
    }
  }
}

async function ask(path, options) {
  const headers = { ...options.headers };
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  let response;
  try {
    response = await fetch(new URL(path, BASE), { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The service cannot be reached. Is it running?");
  }
  if (response.ok) return response;
  throw new Problem(await reason(response), response.status);
}

async function reason(response) {
  let said = "";
  try {
    said = (await response.json()).error.message;
  } catch {
    said = `HTTP ${response.status}`;
  }
  const wait = response.headers.get("retry-after");
  return wait ? `${said} (try again in ${wait} s)` : said;
}

function highest(schema) {
  const parts = schema.anyOf ?? [schema];
  return parts.find((part) => "maximum" in part)?.maximum;
}
