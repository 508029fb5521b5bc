// Asks the API of the service that this page is from. Every failure is a sentence.

const BASE = new URL(".", document.baseURI);
const KEY_ITEM = "outrider-key";
const TRIES = 8; // of a stream that broke, without news between them
const FIRST_PAUSE_MS = 100; // another router is mostly there; doubles
const SILENCE_MS = 6_000; // a router that lives says so every 2 s (router.http.heartbeat_s)

export const apiRoot = new URL("v1", BASE).href;

export class Problem extends Error {
  constructor(message, status = 0, isBroken = false) {
    super(message);
    this.status = status;
    this.isBroken = isBroken; // a stream may go on elsewhere
  }
}

// A stream that a router had taken, or was silent about; not a service that cannot be reached.
class Broken extends Problem {
  constructor() {
    super("The stream broke off before its end.", 0, true);
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

// What the service says of itself: its OpenAPI page.
export async function description() {
  return (await ask("openapi.json", {})).json();
}

// The limits of `speculation.k` and `max_tokens` and the drafters, as the service publishes them.
export async function limits() {
  const shapes = (await description()).components.schemas;
  const { drafter } = shapes.SpeculationOptions.properties;
  return {
    drafters: (drafter.anyOf ?? [drafter]).flatMap((part) => part.enum ?? []),
    k: highest(shapes.SpeculationOptions.properties.k),
    maxTokens: highest(shapes.ChatCompletionRequest.properties.max_tokens),
  };
}

// The events of a streamed answer; ends with the stream, throws a Problem where it breaks for good.
// A broken stream goes on behind its last id, at whatever router answers. Events of one id belong
// together: what came of them before the break comes again. One that broke before its first id is
// asked for anew, because a browser drops what it had received and nobody had read.
export async function* streamed(body, signal) {
  const known = []; // ids of each choice's tokens up to the last id
  let lastId = null;
  let tries = 0;
  let wasReached = false;
  for (;;) {
    let pending = [];
    try {
      for await (const { event, id } of attempt(resumed(body, known), lastId, signal)) {
        pending.push(event);
        if (!id) continue;
        for (const one of pending) keepIds(known, one);
        lastId = id;
        tries = 0;
        yield* pending;
        pending = [];
      }
      return;
    } catch (error) {
      wasReached ||= lastId !== null || error instanceof Broken;
      if (!error.isBroken || !wasReached || tries === TRIES) throw error;
      await new Promise((done) => setTimeout(done, FIRST_PAUSE_MS * 2 ** tries));
      tries += 1;
    }
  }
}

// The body to send: tokens that go along are made again in few passes, or in none.
function resumed(body, known) {
  const ids = Array.from(known, (each) => each ?? []);
  const hasIds = ids.some((each) => each.length > 0);
  return { return_token_ids: true, ...body, ...(hasIds && { resume_token_ids: ids }) };
}

function keepIds(known, event) {
  for (const { index, token_ids: ids } of event.choices ?? []) {
    known[index] ??= [];
    known[index].push(...(ids ?? []));
  }
}

async function* attempt(body, lastId, signal) {
  const headers = { "content-type": "application/json" };
  if (lastId !== null) headers["last-event-id"] = lastId;
  const gaveUp = new AbortController();
  const either = signal ? AbortSignal.any([signal, gaveUp.signal]) : gaveUp.signal;
  const options = { method: "POST", headers, body: JSON.stringify(body), signal: either };
  const response = await inTime(ask("v1/chat/completions", options), gaveUp);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await inTime(reader.read(), gaveUp);
    if (done) throw new Broken();
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = field(block, "data");
      if (data === undefined) continue; // a sign of life
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Problem(event.error.message);
      yield { event, id: field(block, "id") };
    }
  }
}

// What comes next, or that nothing does for too long, as of a machine that is lost.
async function inTime(next, gaveUp) {
  let timer;
  const silence = new Promise((_, fail) => {
    timer = setTimeout(() => {
      fail(new Broken());
      gaveUp.abort();
    }, SILENCE_MS);
  });
  try {
    return await Promise.race([next, silence]);
  } catch (error) {
    throw error.name === "AbortError" || error instanceof Problem ? error : new Broken();
  } finally {
    clearTimeout(timer);
  }
}

function field(block, name) {
  const start = `${name}: `;
  return block.split("\n").find((line) => line.startsWith(start))?.slice(start.length);
}

async function ask(path, options) {
  const headers = { ...options.headers };
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  let response;
  try {
    response = await fetch(new URL(path, BASE), { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The service cannot be reached. Is it running?", 0, true);
  }
  if (response.ok) return response;
  const { status } = response;
  const isOurs = response.headers.get("content-type")?.startsWith("application/json");
  // A proxy that has just started knows no route yet, and says so in plain text.
  const isBroken = status >= 500 || status === 429 || (status === 404 && !isOurs);
  throw new Problem(await reason(response), status, isBroken);
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
