// Shows the OpenAPI page to people, at /docs.

import { description, key } from "./client.js";

const MAX_DEPTH = 4;

function element(tag, text, ...children) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  made.append(...children);
  return made;
}

function named(schema, page) {
  const ref = schema.$ref;
  return ref ? [ref.split("/").pop(), page.components.schemas[ref.split("/").pop()]] : ["", schema];
}

function limits(schema) {
  const words = { minimum: "from", maximum: "to", exclusiveMinimum: "above", exclusiveMaximum: "below",
    minLength: "characters from", maxLength: "characters to", minItems: "items from",
    maxItems: "items to", maxProperties: "fields to", pattern: "pattern" };
  return Object.keys(words).filter((key) => key in schema).map((key) => `${words[key]} ${schema[key]}`).join(", ");
}

function kind(schema, page, depth) {
  if (schema === true) return "anything";
  const [name, shape] = named(schema, page);
  if (name) return name;
  if (depth > MAX_DEPTH) return "...";
  const options = shape.anyOf || shape.oneOf;
  if (options) return [...new Set(options.map((one) => kind(one, page, depth + 1)))].join(" or ");
  if (shape.enum) return shape.enum.map((one) => JSON.stringify(one)).join(" or ");
  if ("const" in shape) return JSON.stringify(shape.const);
  if (shape.type === "array") return `list of ${kind(shape.items || true, page, depth + 1)}`;
  const bounds = limits(shape);
  return (shape.type || "anything") + (bounds ? ` (${bounds})` : "");
}

function fields(title, schema, page) {
  const rows = Object.entries(schema.properties || {}).map(([name, one]) => {
    const isRequired = (schema.required || []).includes(name);
    const fallback = "default" in one ? `default ${JSON.stringify(one.default)}` : "";
    const notes = [isRequired ? "required" : fallback, one.description || ""].filter(Boolean).join(". ");
    const head = element("th", "", element("code", name));
    head.scope = "row";
    return element("tr", "", head, element("td", kind(one, page, 0)), element("td", notes));
  });
  const columns = ["Field", "Value", "Notes"].map((text) => {
    const head = element("th", text);
    head.scope = "col";
    return head;
  });
  const table = element("table", "", element("caption", title),
    element("thead", "", element("tr", "", ...columns)), element("tbody", "", ...rows));
  const box = element("div", "", table);
  box.className = "table";
  box.tabIndex = 0;
  return box;
}

function shapes(content, page, seen) {
  const found = [];
  const visit = (schema, depth) => {
    if (!schema || typeof schema !== "object" || depth > 12) return;
    const [name, shape] = named(schema, page);
    if (name && seen.has(name)) return;
    if (name) {
      seen.add(name);
      if (shape.properties) found.push([name, shape]);
    }
    const inner = [...(shape.anyOf || []), ...(shape.oneOf || []), shape.items,
      ...Object.values(shape.properties || {})];
    inner.forEach((one) => visit(one, depth + 1));
  };
  Object.values(content || {}).forEach((one) => visit(one.schema, 0));
  return found.map(([name, shape]) => fields(name, shape, page));
}

function route(path, method, operation, page) {
  const title = element("summary", "", element("span", method.toUpperCase()), element("code", path), element("span", ` ${operation.summary}`));
  title.firstChild.className = "method";
  const made = element("details", "", title);
  made.className = "route";
  made.id = operation.operationId;
  if (operation.security.length) made.append(element("p", "Asks for an API key: Authorization: Bearer KEY."));
  if (operation.requestBody) made.append(...shapes(operation.requestBody.content, page, new Set()));
  for (const [status, answer] of Object.entries(operation.responses)) {
    const inner = element("details", "", element("summary", `${status}: ${answer.description}`));
    inner.append(...shapes(answer.content, page, new Set()));
    for (const one of Object.values(answer.content || {})) {
      if (one.schema.description) inner.append(element("p", one.schema.description));
    }
    made.append(inner);
  }
  return made;
}

function askForKey(wasWrong) {
  document.getElementById("about").textContent = wasWrong
    ? "This key is not known here."
    : "This service describes itself to those who have a key. It is kept in this tab, and sent to this service alone.";
  document.getElementById("key-form").hidden = false;
  document.getElementById("key").focus();
}

async function show() {
  const page = await description();
  document.getElementById("key-form").hidden = true;
  document.title = `${page.info.title} API`;
  document.getElementById("title").textContent = `${page.info.title} ${page.info.version}`;
  document.getElementById("about").textContent = page.info.description;
  const routes = document.getElementById("routes");
  for (const [path, methods] of Object.entries(page.paths)) {
    for (const [method, operation] of Object.entries(methods)) routes.append(route(path, method, operation, page));
  }
}

function showOrTell() {
  show().catch((error) => {
    if (error.status === 401) return askForKey(Boolean(key.get()));
    document.getElementById("about").textContent = `The description cannot be shown: ${error.message}`;
  });
}

document.getElementById("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(document.getElementById("key").value.trim());
  document.getElementById("key").value = "";
  showOrTell();
});
showOrTell();
