// Tools that zod makes of all its usual types, for OpenAI's client for JavaScript (its checks import this).

import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const SEVERAL = 2; // as many as the demo's window has room for
const ASKED = "Record that Imogen from Delhi wants 6 blue lamps at $62.29 each.";

// What OpenAI's own helpers make strict: every one of these is served as it says.
const STRICT = z.object({
  name: z.string().max(12),
  kind: z.enum(["lamp", "chair"]),
  only: z.literal("order"),
  quantity: z.number().int().min(1).max(99),
  price: z.number(),
  paid: z.boolean(),
  note: z.string().max(8).nullable(),
  tags: z.array(z.enum(["blue", "red"])).max(2),
  place: z.object({ city: z.string().max(10) }),
  either: z.union([z.boolean(), z.enum(["yes", "no"])]),
});

// What people write besides; the model may call such a tool or not.
const USUAL = {
  email: z.email(),
  url: z.url(),
  uuid: z.uuid(),
  guid: z.guid(),
  cuid: z.cuid2(),
  ulid: z.ulid(),
  date: z.iso.date(),
  time: z.iso.time(),
  datetime: z.iso.datetime(),
  duration: z.iso.duration(),
  ipv4: z.ipv4(),
  ipv6: z.ipv6(),
  cidr: z.cidrv4(),
  base64: z.base64(),
  e164: z.e164(),
  emoji: z.emoji(),
  jwt: z.jwt(),
  int: z.int(),
  int32: z.int32(),
  float64: z.float64(),
  positive: z.number().positive(),
  step: z.number().multipleOf(0.5),
  trimmed: z.string().min(1).max(40).trim(),
  password: z.string().regex(/^(?=.*\d)(?=.*[a-z]).{8,20}$/),
  slug: z.string().regex(/^[\w-.]+$/),
  begins: z.string().startsWith("a").includes("b").endsWith("c"),
  optional: z.string().optional(),
  nullish: z.string().nullish(),
  byDefault: z.number().default(3),
  caught: z.string().catch("x"),
  described: z.string().describe("what it is"),
  any: z.any(),
  unknown: z.unknown(),
  nothing: z.null(),
  literal: z.literal(["a", 1, null]),
  native: z.enum({ Up: "UP", Down: "DOWN" }),
  list: z.array(z.string()).nonempty(),
  tuple: z.tuple([z.string(), z.number()]),
  rest: z.tuple([z.string()], z.number()),
  record: z.record(z.string(), z.number()),
  partial: z.partialRecord(z.enum(["a", "b"]), z.string()),
  union: z.union([z.string(), z.number(), z.array(z.string())]),
  discriminated: z.discriminatedUnion("type", [
    z.object({ type: z.literal("a"), a: z.string() }),
    z.object({ type: z.literal("b"), b: z.number() }),
  ]),
  intersection: z.intersection(z.object({ a: z.string() }), z.object({ b: z.number() })),
  strict: z.strictObject({ a: z.string() }),
  loose: z.looseObject({ a: z.string() }),
  catchall: z.object({ a: z.string() }).catchall(z.number()),
  readonly: z.array(z.string()).readonly(),
  json: z.json(),
};
const TREE = z.object({ value: z.string(), get children() { return z.array(TREE); } });

export function addZodChecks(checks, { client, model, expect }) {
  const body = (options) => ({ model, messages: [{ role: "user", content: ASKED }], temperature: 0, max_tokens: 300, ...options });
  const tool = (name, schema, target) => ({
    type: "function",
    function: { name, description: "records something", parameters: z.toJSONSchema(schema, { target, unrepresentable: "any", io: "input" }) },
  });

  checks.set("zod: a strict tool of the types that OpenAI's helper takes", async () => {
    const record = zodFunction({ name: "record", parameters: STRICT });
    const only = { type: "function", function: { name: "record" } };
    const answer = await client.chat.completions.parse(body({ tools: [record], tool_choice: only }));
    const call = answer.choices[0].message.tool_calls[0];
    STRICT.parse(JSON.parse(call.function.arguments));
    return call.function.arguments;
  });

  checks.set("zod: a response format", async () => {
    const answer = await client.chat.completions.parse(body({ response_format: zodResponseFormat(STRICT, "order") }));
    return JSON.stringify(STRICT.parse(answer.choices[0].message.parsed));
  });

  for (const target of ["draft-2020-12", "draft-7", "draft-4"]) {
    checks.set(`zod: toJSONSchema (${target}), every usual type beside a plain tool`, async () => {
      const refused = [];
      for (const [name, type] of Object.entries(USUAL)) {
        const odd = tool("odd", z.object({ value: type }), target);
        const plain = tool("plain", z.object({ city: z.string().max(10) }), target);
        try {
          await client.chat.completions.create(body({ tools: [odd, plain], max_tokens: 8 }));
        } catch (error) {
          refused.push(`${name}: ${error.message}`);
        }
      }
      expect(!refused.length, `${refused.length} refused: ${refused.join("; ")}`);
      return `${Object.keys(USUAL).length} types`;
    });
  }

  checks.set("zod: a named call of every usual type parses", async () => {
    const wrong = [];
    let whole = 0;
    for (const [name, type] of Object.entries(USUAL)) {
      const only = { type: "function", function: { name: "odd" } };
      const odd = tool("odd", z.object({ value: type }), "draft-2020-12");
      try {
        const answer = await client.chat.completions.create(body({ tools: [odd], tool_choice: only, max_tokens: 60 }));
        if (answer.choices[0].finish_reason === "length") continue;
        JSON.parse(answer.choices[0].message.tool_calls[0].function.arguments);
        whole += 1;
      } catch (error) {
        wrong.push(`${name}: ${error.message}`);
      }
    }
    expect(!wrong.length, `${wrong.length} wrong: ${wrong.join("; ")}`);
    return `${whole} of ${Object.keys(USUAL).length} calls came to their end`;
  });

  checks.set("zod: tools of several types each, and a recursive one", async () => {
    const kinds = Object.entries(USUAL);
    const tree = tool("tree", TREE, "draft-2020-12");
    const refused = [];
    for (let first = 0; first < kinds.length; first += SEVERAL) {
      const fields = Object.fromEntries(kinds.slice(first, first + SEVERAL));
      try {
        await client.chat.completions.create(body({ tools: [tool("several", z.object(fields), "draft-2020-12"), tree], max_tokens: 8 }));
      } catch (error) {
        refused.push(`${Object.keys(fields)}: ${error.message}`);
      }
    }
    expect(!refused.length, `${refused.length} refused: ${refused.join("; ")}`);
    return `${kinds.length} types`;
  });
}
