// Wires the page: the form, one run, the race, the request as code, the key.

import { AnswerView } from "./answer.js";
import { Problem, apiRoot, key, limits, servedModel, streamed } from "./client.js";
import { EXAMPLES, bodyOf, fill, noteModel, offerDrafters, showShape, shapeOf } from "./form.js";
import { Race } from "./race.js";
import { asCurl, asPython } from "./snippets.js";

const at = (id) => document.getElementById(id);
const single = new AnswerView(at("single"));
const race = new Race(at("lane-on"), at("lane-off"), at("verdict"));
const page = { model: "", needsKey: false, running: null };

async function connect() {
  try {
    const model = await servedModel();
    page.model = model.id;
    noteModel(model.id);
    at("model-name").textContent = `${model.id}, ${model.max_model_len} tokens`;
    at("model").querySelector(".dot").className = "dot online";
    showSnippet();
    const { drafters, k, maxTokens } = await limits();
    if (at("drafter").length !== drafters.length + 1) offerDrafters(drafters);
    at("k").max = k;
    at("max-tokens").max = maxTokens;
    clearProblem();
    return true;
  } catch (error) {
    at("model").querySelector(".dot").className = "dot offline";
    at("model-name").textContent = error.status === 401 ? "a key is needed" : "not connected";
    tell(error);
    return false;
  }
}

// Says what went wrong; where a key is missing, asks for it.
function tell(error) {
  if (error.name === "AbortError") return;
  if (error.status === 401) {
    page.needsKey = true;
    at("key-button").hidden = false;
    askForKey(key.get() ? "This key is not known here." : "");
    return;
  }
  at("problem").textContent = error instanceof Problem ? error.message : `This page failed: ${error.message}`;
  at("problem").hidden = false;
  if (!(error instanceof Problem)) console.error(error);
}

function clearProblem() {
  at("problem").hidden = true;
}

function say(text) {
  at("status").textContent = text;
}

// Runs `work` as the one thing that runs; Stop ends it.
async function exclusively(work) {
  if (!at("composer").reportValidity()) return;
  page.running?.abort();
  const running = (page.running = new AbortController());
  clearProblem();
  at("stop").hidden = false;
  try {
    if (page.model || (await connect())) await work(running.signal);
  } catch (error) {
    say("Stopped.");
    tell(error);
  } finally {
    if (page.running === running) {
      page.running = null;
      at("stop").hidden = true;
    }
  }
}

// On a narrow page answers are below the form: go there.
function show(id) {
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (at(id).getBoundingClientRect().top > innerHeight - 200) {
    at(id).scrollIntoView({ block: "start", behavior: calm ? "auto" : "smooth" });
  }
}

function run() {
  return exclusively(async (signal) => {
    at("versus").hidden = true;
    at("single").hidden = false;
    show("single");
    const body = bodyOf(page.model);
    single.clear({ mono: shapeOf() !== "free" });
    single.begin(performance.now());
    say("Writing.");
    try {
      for await (const event of streamed(body, signal)) single.take(event, performance.now());
      const told = `${single.calls.told()}${single.numTokens} tokens`;
      say(`Done: ${told} in ${single.seconds.toFixed(1)} seconds. ${single.steered}`.trim());
    } finally {
      single.end();
    }
  });
}

function runRace() {
  return exclusively(async (signal) => {
    at("single").hidden = true;
    at("versus").hidden = false;
    at("replay").hidden = true;
    show("versus");
    say("Racing.");
    await race.run(bodyOf(page.model), signal, { mono: shapeOf() !== "free" });
    at("replay").hidden = false;
    say(at("verdict").textContent);
  });
}

function showSnippet() {
  const isCurl = document.querySelector('[name="language"]:checked').value === "curl";
  const body = bodyOf(page.model || "MODEL");
  at("snippet").textContent = (isCurl ? asCurl : asPython)(apiRoot, body, page.needsKey);
}

function askForKey(problem) {
  at("key-problem").textContent = problem;
  at("key-problem").hidden = !problem;
  if (!at("key-dialog").open) at("key-dialog").showModal();
}

for (const example of EXAMPLES) {
  const chip = document.createElement("button");
  chip.type = "button";
  chip.textContent = example.name;
  chip.addEventListener("click", () => {
    fill(example);
    showSnippet();
  });
  at("examples").append(chip);
}

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
at("composer").addEventListener("input", () => {
  showShape();
  showSnippet();
});
at("race").addEventListener("click", runRace);
at("replay").addEventListener("click", () => race.replay());
at("stop").addEventListener("click", () => page.running?.abort());
at("request").addEventListener("change", showSnippet);
at("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(at("snippet").textContent);
    say("Copied.");
    at("copy").textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(at("snippet")); // no clipboard without TLS: at least select it
    at("copy").textContent = "Selected";
  }
  setTimeout(() => { at("copy").textContent = "Copy"; }, 1500);
});
at("key-button").addEventListener("click", () => askForKey(""));
at("key-cancel").addEventListener("click", () => at("key-dialog").close());
at("key-form").addEventListener("submit", () => {
  key.set(at("key").value.trim());
  at("key").value = "";
  connect();
});
document.addEventListener("keydown", (event) => {
  if (at("key-dialog").open) return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
  if (event.key === "Escape") page.running?.abort();
});

fill(EXAMPLES[0]);
showSnippet();
connect();
