// The form: examples, what the fields mean together, and the request that they make.

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
];

const LABELS = {
  json: "JSON schema, typed or pasted",
  choice: "Choices, one on each line",
  regex: "Pattern (a regular expression)",
};

export const shapeOf = () => chosen("shape");

// Shows the fields that the choices above them call for.
export function showShape() {
  const shape = shapeOf();
  at("shape-field").hidden = shape === "free";
  at("shape-text").required = shape !== "free";
  if (shape !== "free") at("shape-label").textContent = LABELS[shape];
  at("k-field").hidden = chosen("speculation") !== "fixed";
  checkSchema(shape);
}

export function fill(example) {
  at("prompt").value = example.prompt;
  document.querySelector(`[name="shape"][value="${example.shape}"]`).checked = true;
  at("shape-text").value = example.text ?? "";
  showShape();
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
    speculation: { details: true },
  };
  for (const name of ["max_tokens", "temperature", "seed"]) if (body[name] === null) delete body[name];
  const speculation = chosen("speculation");
  if (speculation === "off") body.speculation.enabled = false;
  if (speculation === "fixed") body.speculation.k = number("k") ?? 4;
  const outputs = outputsOf(shapeOf(), at("shape-text").value);
  if (outputs) body.structured_outputs = outputs;
  return body;
}

function outputsOf(shape, text) {
  if (shape === "json") {
    try {
      return { json: JSON.parse(text) };
    } catch {
      return { json: text };
    }
  }
  if (shape === "choice") return { choice: text.split("\n").map((line) => line.trim()).filter(Boolean) };
  return shape === "regex" ? { regex: text } : null;
}

function checkSchema(shape) {
  let problem = "";
  if (shape === "json" && at("shape-text").value.trim()) {
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
