// A request as a command and as a program. What is not OpenAI's own goes into `extra_body`.

const EXTENSIONS = new Set(["speculation", "lookahead", "structured_outputs", "cache_salt"]);

export function asCurl(root, body, needsKey) {
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  const key = needsKey ? ` \\\n  -H "authorization: Bearer $OUTRIDER_API_KEY"` : "";
  return `curl -sN ${root}/chat/completions \\
  -H 'content-type: application/json'${key} -d '${json}'`;
}

export function asPython(root, body, needsKey) {
  const own = Object.entries(body).filter(([name]) => !EXTENSIONS.has(name) && !name.startsWith("stream"));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => EXTENSIONS.has(name)));
  const lines = own.map(([name, value]) => `    ${name}=${literal(value, 1)},`);
  if (Object.keys(extra).length) lines.push(`    extra_body=${literal(extra, 1)},`);
  const key = needsKey ? 'os.environ["OUTRIDER_API_KEY"]' : '"none"';
  return `${needsKey ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${literal(root)}, api_key=${key})
answer = client.chat.completions.create(
${lines.join("\n")}
)
print(answer.choices[0].message.${"tools" in body ? "model_dump_json()" : "content"})
`;
}

// A JSON value as Python writes it.
function literal(value, depth = 0) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const pad = "    ".repeat(depth + 1);
  const items = Array.isArray(value)
    ? value.map((item) => literal(item, depth + 1))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${literal(item, depth + 1)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  if (!items.length) return open + close;
  const flat = `${open}${items.join(", ")}${close}`;
  if (flat.length < 70 && !flat.includes("\n")) return flat;
  return `${open}\n${items.map((item) => `${pad}${item},\n`).join("")}${"    ".repeat(depth)}${close}`;
}
