// The form: examples, what the fields mean together, and the request that they make.

import { labelOf } from "./words.js";

const at = (id) => document.getElementById(id);
const chosen = (name) => document.querySelector(`[name="${name}"]:checked`).value;

const ORDER = {
  type: "object",
  properties: {
    customer: { type: "string", maxLength: 30 },
    item: { type: "string", maxLength: 30 },
    quantity: { type: "integer", minimum: 1, maximum: 999 },
  },
  required: ["customer", "item", "quantity"],
  additionalProperties: false,
};

const TOOLS = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather of a city.",
      parameters: {
        type: "object",
        properties: {
          city: { type: "string", maxLength: 20 },
          unit: { type: "string", enum: ["celsius", "fahrenheit"] },
        },
        required: ["city", "unit"],
      },
    },
  },
];

export const EXAMPLES = [
  { name: "A story", prompt: "Write a short story about a dog and a ball.", shape: "free" },
  {
    name: "An order as JSON",
    prompt: "Turn this order into JSON.\nImogen from Delhi wants 6 blue lamps at $62.29 each.",
    shape: "json",
    text: JSON.stringify(ORDER, null, 2),
  },
  { name: "One of three", prompt: "What is the opposite of big?", shape: "choice", text: "fast\nsmall\ncold" },
  {
    name: "A date",
    prompt: "Write the date 7 March 2024 as YYYY-MM-DD.",
    shape: "regex",
    text: "\\d{4}-\\d{2}-\\d{2}",
  },
  { name: "A function", prompt: "Write a Python function that adds two numbers.", shape: "free" },
  {
    name: "A tool call",
    prompt: "What is the weather in Delhi in celsius?",
    shape: "tools",
    text: JSON.stringify(TOOLS, null, 2),
    call: "required",
  },
  {
    name: "Given words",
    prompt: "Write one sentence with: fox, school, hospital, dance.",
    shape: "free",
    wishes: "fox, school, hospital, dance",
    maxTokens: 40,
  },
];

const FOR_WISHES = "outrider-concepts"; // the model that configs/concepts.yaml serves

const LABELS = {
  json: "JSON schema, typed or pasted",
  choice: "Choices, one on each line",
  regex: "Pattern (a regular expression)",
  tools: "Tools as a JSON list, typed or pasted",
};

let served = "";

// Notes which model is served: some examples are for one of its kind.
export function noteModel(model) {
  served = model;
  showShape();
}

const wishes = () => at("wishes").value.split(",").map((word) => word.trim()).filter(Boolean);

export const shapeOf = () => chosen("shape");

// Shows the fields that the choices above them call for.
export function showShape() {
  const shape = shapeOf();
  at("shape-field").hidden = shape === "free";
  at("shape-text").required = shape !== "free";
  if (shape !== "free") at("shape-label").textContent = LABELS[shape];
  at("call-field").hidden = shape !== "tools";
  const isSteered = wishes().length > 0; // look-ahead decoding drafts in a way of its own
  at("speculation-field").hidden = at("race").hidden = isSteered;
  at("k-field").hidden = isSteered || chosen("speculation") !== "fixed";
  at("drafter-field").hidden = isSteered || chosen("speculation") === "off";
  at("wishes-hint").hidden = !isSteered;
  const other = served && served !== FOR_WISHES
    ? ` ${served} is not trained for that; the pair that configs/concepts.yaml serves is.`
    : "";
  at("wishes-hint").textContent = `Look-ahead decoding steers the text towards these words.${other}`;
  checkJson(shape);
}

export function fill(example) {
  at("prompt").value = example.prompt;
  document.querySelector(`[name="shape"][value="${example.shape}"]`).checked = true;
  at("shape-text").value = example.text ?? "";
  at("wishes").value = example.wishes ?? "";
  at("max-tokens").value = example.maxTokens ?? at("max-tokens").defaultValue;
  if (example.call) document.querySelector(`[name="call"][value="${example.call}"]`).checked = true;
  showShape();
}

// Lets the reader choose among the drafters that the service knows.
export function offerDrafters(names) {
  const options = names.map((name) => new Option(labelOf(name), name));
  at("drafter").replaceChildren(new Option("as configured", ""), ...options);
}

// The request as the API takes it. The service judges it: its refusals name the field.
export function bodyOf(model) {
  const body = {
    model,
    messages: [{ role: "user", content: at("prompt").value }],
    max_tokens: number("max-tokens"),
    temperature: number("temperature"),
    seed: number("seed"),
    stream: true,
    stream_options: { include_usage: true },
  };
  for (const name of ["max_tokens", "temperature", "seed"]) if (body[name] === null) delete body[name];
  const concepts = wishes(); // rounds are told of exact modes alone
  if (concepts.length) body.lookahead = { method: "cdsl", reward: { kind: "concepts", concepts } };
  else body.speculation = speculationOf();
  const shape = shapeOf();
  if (shape === "tools") {
    body.tools = parsed(at("shape-text").value);
    body.tool_choice = chosen("call");
  } else if (shape !== "free") {
    body.structured_outputs = outputsOf(shape, at("shape-text").value);
  }
  return body;
}

function speculationOf() {
  const asked = { details: true };
  const speculation = chosen("speculation");
  if (speculation === "off") asked.enabled = false;
  if (speculation === "fixed") asked.k = number("k") ?? 4;
  if (speculation !== "off" && at("drafter").value) asked.drafter = at("drafter").value;
  return asked;
}

function outputsOf(shape, text) {
  if (shape === "json") return { json: parsed(text) };
  if (shape === "choice") return { choice: text.split("\n").map((line) => line.trim()).filter(Boolean) };
  return { regex: text };
}

// What is no JSON goes to the service as it is, which says so.
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function checkJson(shape) {
  let problem = "";
  if ((shape === "json" || shape === "tools") && at("shape-text").value.trim()) {
    try {
      JSON.parse(at("shape-text").value);
    } catch (error) {
      problem = `This is not JSON: ${error.message}`;
    }
  }
  at("shape-text").setCustomValidity(problem);
}

function number(id) {
  return at(id).value === "" ? null : Number(at(id).value);
}
