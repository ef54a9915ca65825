// The SDK against the scripted host.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import * as sdk from "../src/index.js";
import {
  ContextFull,
  Deadline,
  Model,
  NotFound,
  Problem,
  Refused,
  Request,
  Response,
  choose,
  configuration,
  fields,
  greedy,
  logSoftmax,
  nextMany,
  random,
  softmax,
  topP,
} from "../src/index.js";
import { fromHost } from "../src/errors.js";
import { around } from "../src/http.js";
import * as testing from "../src/testing.js";
import { END, Script } from "../src/testing.js";
import { decode, decodeLossy, encode } from "../src/utf8.js";

const script = (options) => new Script({ "12+7=": "19" }, options);

async function ask(settings) {
  const model = await Model.open();
  return model.sequence("12+7=").generate(8, settings).text();
}

test("a generation has chunks and an outcome", async () => {
  await script().run(async () => {
    const model = await Model.open();
    const sequence = model.sequence("12+7=");
    const generation = sequence.generate(8);
    const texts = [];
    for await (const { text } of generation) texts.push(text);
    const { finish, generatedTokens, promptTokens } = await generation.outcome();
    assert.deepEqual([texts, finish, generatedTokens, promptTokens], [["1", "9"], "end", 3, 5]);
    assert.equal(model.detokenize(sequence.tokens()), "12+7=19");
  });
});

test("leaving the loop cancels the generation", async () => {
  await script().run(async () => {
    const generation = (await Model.open()).sequence("12+7=").generate(8);
    for await (const _ of generation) break;
    assert.equal(await generation.text(), "");
  });
});

test("settings reach the host in order", async () => {
  const host = script();
  const settings = { topK: 3, temperature: 0.5, stop: "\n", seed: 7, penalties: { repeat: 1.5 }, logitBias: { 5: -1 } };
  assert.equal(await host.run(() => ask(settings)), "19");
  assert.deepEqual(host.generations[0].settings, [
    ["maxTokens", 8],
    ["penalties", { lastN: 64, repeat: 1.5, frequency: 0, presence: 0 }],
    ["logitBias", [[5, -1]]],
    ["temperature", 0.5],
    ["topK", 3],
    ["seed", 7],
    ["stop", "\n"],
  ]);
});

test("arguments of another type are errors", async () => {
  await script().run(async () => {
    const model = await Model.open();
    const sequence = model.sequence("12+7=");
    assert.throws(() => sequence.generate(1.5), TypeError);
    assert.throws(() => sequence.generate(8, { max_tokens: 5 }), /not a setting/);
    assert.throws(() => sequence.generate(8, { temperature: "0" }), TypeError);
    assert.throws(() => model.sequence({}), TypeError);
    assert.throws(() => sequence.append([-1]), TypeError);
    assert.throws(() => model.tokenize(undefined), /`text` is undefined/);
    assert.throws(() => sequence.generate(8, { penalties: { lastN: "all" } }), TypeError);
    assert.throws(() => sequence.generate(8, { logitBias: { 5: "much" } }), TypeError);
    // The bindings cannot take it.
    assert.equal(model.detokenize(model.tokenize("a\ud800")), "a\ufffd");
  });
});

test("stop and length end a generation", async () => {
  const run = (maxTokens, settings) =>
    script().run(async () => {
      const generation = (await Model.open()).sequence("12+7=").generate(maxTokens, settings);
      return [await generation.text(), (await generation.outcome()).finish];
    });
  assert.deepEqual(await run(1), ["1", "length"]);
  assert.deepEqual(await run(9, { stop: "9" }), ["1", "stop"]);
});

test("a fork computes the prompt once", async () => {
  const host = script();
  await host.run(async () => {
    const sequence = (await Model.open()).sequence("12+7=");
    const generations = [sequence.fork().generate(8), sequence.fork().generate(8)];
    assert.deepEqual(await Promise.all(generations.map((one) => one.text())), ["19", "19"]);
  });
  // Five tokens of the prompt, its last one again, and two tokens of each answer.
  assert.equal(host.computed, 5 + 1 + 4);
});

test("a plugin chooses tokens", async () => {
  await script().run(async () => {
    const model = await Model.open();
    const sequence = model.sequence("12+7=");
    const chosen = [];
    for (;;) {
      const token = greedy(await sequence.next({ top: 2 }));
      if (token === END) break;
      chosen.push(token);
      sequence.append([token]);
    }
    assert.equal(model.detokenize(chosen), "19");
    const both = await nextMany([model.sequence("12+7="), model.sequence("12+7=1")]);
    assert.deepEqual(both.map(greedy), [...encode("19")]);
    const only = await model.sequence("12+7=").next({ only: [97] });
    assert.deepEqual(only.candidates, [{ token: 97, logit: 0 }]);
  });
});

test("errors have a status and a code", () => {
  for (const [error, status, code] of [
    [{ tag: "invalid", val: "x" }, 400, "invalid"],
    [{ tag: "not-found", val: "x" }, 404, "not-found"],
    [{ tag: "not-granted", val: "x" }, 403, "not-granted"],
    [{ tag: "failed", val: "x" }, 500, "failed"],
    [{ tag: "deadline" }, 504, "deadline"],
    [{ tag: "cancelled" }, 499, "cancelled"],
  ]) {
    const found = fromHost(Object.assign(new Error(), { payload: error }));
    assert.deepEqual([found.status, found.code], [status, code]);
  }
  const other = new Error("x");
  assert.equal(fromHost(other), other);
  const full = fromHost({ tag: "context-full", val: { needed: 9, limit: 8 } });
  assert.ok(full instanceof ContextFull);
  assert.deepEqual([full.needed, full.status], [9, 400]);
  const refused = fromHost({ tag: "refused", val: { reason: "full", retryAfterMs: 1500 } });
  assert.ok(refused instanceof Refused);
  assert.deepEqual(refused.headers, { "retry-after": "2" });
});

test("a handler answers and maps errors", async () => {
  const handle = async (request) => {
    const body = await request.json();
    if (body.fail) throw new Error("oops");
    return Response.json({ text: await ask(), path: request.path, max: request.query.max });
  };
  const post = (body) => script().call(handle, new Request("POST", "/a?max=5+6&max=7", { body }));
  assert.deepEqual((await post({})).json(), { text: "19", path: "/a", max: "5 6" });
  for (const [body, status, code] of [
    ["x", 400, "invalid-body"],
    [Uint8Array.of(0xff), 400, "invalid-body"],
    [new Uint8Array(2_000_000), 413, "body-too-large"],
    [{ fail: true }, 500, "plugin-failed"],
  ]) {
    const answered = await post(body);
    assert.deepEqual([answered.status, answered.json().code], [status, code]);
    assert.equal(answered.headers["content-type"], "application/problem+json");
  }
  const failing = new Script({ "12+7=": new Deadline() });
  assert.equal((await failing.call(handle, new Request("POST", "/", { body: {} }))).status, 504);
  const broken = script();
  assert.equal((await broken.call(() => "text", new Request("GET", "/"))).json().code, "plugin-failed");
  assert.match(broken.logged[0], /returned string; expected a Response/);
});

test("fields are checked", async () => {
  const handle = async (request) =>
    Response.json(
      await request.fields({
        text: fields.string(),
        count: fields.integer(8, { least: 1, most: 64 }),
        heat: fields.number(1, { least: 0 }),
        loud: fields.boolean(false),
        tags: fields.array(fields.string(), ["a"], { least: 1, most: 2 }),
        any: fields.value(null),
      }),
    );
  const post = (body) => script().call(handle, new Request("POST", "/", { body }));
  const rest = { count: 8, heat: 1, loud: false, tags: ["a"], any: null };
  assert.deepEqual((await post({ text: "x", count: null })).json(), { text: "x", ...rest });
  const all = { text: "", count: 64, heat: 0.5, loud: true, tags: ["b", "c"], any: [{}] };
  assert.deepEqual((await post(all)).json(), all);
  for (const [body, code, detail] of [
    ["5", "invalid-body", "the body is 5; expected an object"],
    ["null", "invalid-body", "the body is null; expected an object"],
    [[1], "invalid-body", "the body is an array of 1 items; expected an object"],
    [{}, "invalid-text", "`text` is missing; expected a string"],
    [{ text: null }, "invalid-text", "`text` is null; expected a string"],
    ['{"text": "\\ud800"}', "invalid-text", '`text` is "\\ud800"; expected a string'],
    [{ text: "x", count: 65 }, "invalid-count", "`count` is 65; expected an integer from 1 to 64"],
    [{ text: "x", count: 1.5 }, "invalid-count", "`count` is 1.5; expected an integer from 1 to 64"],
    [{ text: "x", count: true }, "invalid-count", "`count` is true; expected an integer from 1 to 64"],
    [{ text: "x", heat: -1 }, "invalid-heat", "`heat` is -1; expected a number of at least 0"],
    ['{"text": "x", "heat": 1e999}', "invalid-heat", "`heat` is Infinity; expected a number of at least 0"],
    [{ text: "x", loud: 1 }, "invalid-loud", "`loud` is 1; expected true or false"],
    [{ text: "x", tags: [] }, "invalid-tags", "`tags` is an array of 0 items; expected an array of 1 to 2 items"],
    [{ text: "x", tags: ["a", 5] }, "invalid-tags", "`tags[1]` is 5; expected a string"],
    [{ text: "x", other: 1 }, "invalid-body", 'there is no field "other"; expected text, count, heat, loud, tags, any'],
  ]) {
    const answered = await post(body);
    assert.deepEqual([answered.status, answered.json().code, answered.json().detail], [400, code, detail]);
  }
});

test("a body comes in parts and is read once", async () => {
  const parts = async function* () {
    yield encode("12");
    yield encode("+7=");
  };
  const request = new Request("POST", "/", { body: parts() });
  assert.equal(await request.text(), "12+7=");
  assert.equal(await request.text(), "12+7=");
});

test("events are written, and an error is the last", async () => {
  const handle = async () =>
    Response.events(
      (async function* () {
        yield { n: 1 };
        yield "two\rlines";
        throw new Problem(409, "over", "it is over");
      })(),
    );
  const answered = await script().call(handle, new Request("GET", "/"));
  assert.equal(answered.headers["content-type"], "text/event-stream");
  const [first, second, last] = answered.events();
  assert.deepEqual([first, second, last.code], [{ n: 1 }, "two\nlines", "over"]);
  assert.match(answered.text(), /event: error\n/);
});

test("a writer learns that the client disconnected", async () => {
  let written = 0;
  let code;
  const handle = async () =>
    Response.events(async (events) => {
      try {
        for (; written < 100; written++) await events.json({ n: written });
      } catch (error) {
        code = error.code;
        throw error;
      }
    });
  const answered = await script().call(handle, new Request("GET", "/"), { disconnectAfter: 2 });
  assert.deepEqual(answered.events(), [{ n: 0 }, { n: 1 }]);
  assert.deepEqual([written, code], [2, "cancelled"]);
});

test("text events end with the outcome", async () => {
  const handle = async () => {
    const generation = (await Model.open()).sequence("12+7=").generate(8);
    return Response.textEvents(generation, (text) => ({ text }), async (events) => {
      await events.json({ tokens: (await generation.outcome()).generatedTokens });
    });
  };
  const answered = await script().call(handle, new Request("GET", "/"));
  assert.deepEqual(answered.events(), [{ text: "1" }, { text: "9" }, { tokens: 3 }]);
});

test("an event contains its text", () => {
  const { before, after } = around((text) => ({ a: text, b: 1 }));
  assert.deepEqual([decode(before), decode(after)], ['data: {"a":', ',"b":1}\n\n']);
  assert.throws(() => around(() => ({ a: 1 })), /contains the text/);
});

test("snapshots and the configuration", async () => {
  await script({ configuration: { tone: "dry" } }).run(async () => {
    const model = await Model.open();
    await model.sequence("12+7=").save("sum");
    const restored = await model.restore("sum");
    assert.equal(await restored.generate(8).text(), "19");
    await model.deleteSnapshot("sum");
    await assert.rejects(model.restore("sum"), NotFound);
    assert.deepEqual(configuration(), { tone: "dry" });
    assert.equal(model.requestCounts().maxRunning, 1);
  });
});

test("wrong responses are named", async () => {
  const nothing = new Uint8Array();
  for (const [wrong, detail] of [
    [() => Response.text(Model.open()), "`text` is a promise; expected a string: is an `await` missing?"],
    [() => Model.open().sequence("1"), "Model.open(...).sequence is not a function: is an `await` missing?"],
    [() => new Response("text"), "`body` is string; expected bytes"],
    [() => Response.text("text", 99), "`status` is 99; expected an integer from 200 to 599"],
    [() => new Response(nothing, { headers: { "a b": "c" } }), 'a header has the name "a b"; expected letters'],
    [() => new Response(nothing, { headers: { a: 5 } }), "`a` is number; expected a string"],
    [() => new Response(nothing, { headers: { a: "b\nc" } }), 'the header a is "b\\nc"; expected a string without control'],
    [() => new Response(nothing, { headers: { Connection: "close" } }), "the plugin sets the header Connection"],
    [() => new Problem(200, "code", "detail"), "`status` is 200; expected an integer from 400 to 599"],
  ]) {
    const answered = await script().call(async () => wrong(), new Request("GET", "/"));
    const problem = answered.json();
    assert.deepEqual([problem.status, problem.code], [500, "plugin-failed"]);
    const expected = `the plugin failed: TypeError: ${detail}`;
    assert.equal(problem.detail.slice(0, expected.length), expected);
  }
});

test("a prompt or model that is not in the script is an error", async () => {
  const other = async () => (await Model.open()).sequence("what?").generate(8).text();
  await assert.rejects(script().run(other), /no answer/);
  await assert.rejects(script().run(() => Model.open("other")), /no model/);
  await assert.rejects(Model.open(), /there is no host/);
});

test("special tokens need permission", async () => {
  await script().run(async () => {
    const model = await Model.open();
    assert.equal(model.tokenize("a<|im_end|>").length, 11);
    assert.deepEqual(model.tokenize("a<|im_end|>", { special: true }), [97, 258]);
    const [one, same] = await model.embed(["ab", "ba"]);
    assert.deepEqual(one, same);
  });
});

test("samplers compute probabilities", () => {
  const near = (one, other) => assert.ok(Math.abs(one - other) < 1e-9, `${one} is not ${other}`);
  softmax([0, 0]).forEach((value) => near(value, 0.5));
  near(logSoftmax([1000, 0])[0], 0);
  topP([0.1, 0.6, 0.3], 0.7).forEach((value, index) => near(value, [0, 2 / 3, 1 / 3][index]));
  const candidates = [
    { token: 5, logit: 1 },
    { token: 6, logit: 0 },
  ];
  const generator = random(1);
  const drawn = Array.from({ length: 2000 }, () => choose({ candidates }, generator));
  const share = drawn.filter((token) => token === 5).length / 2000;
  assert.ok(share > 0.68 && share < 0.78, String(share));
  assert.equal(choose({ candidates }, generator, 0), 5);
  assert.deepEqual([random(3)(), random(4)() === random(3)()], [random(3)(), false]);
});

test("UTF-8 is converted both ways", () => {
  for (const text of ["", "a", "äß", "€", "😀", "x".repeat(10_000)]) {
    const bytes = encode(text);
    assert.deepEqual([...bytes], [...new TextEncoder().encode(text)]);
    assert.equal(decode(bytes), text);
  }
  assert.equal(decode(encode("\ud800")), "\ufffd");
  assert.throws(() => decode(Uint8Array.of(0x61, 0xc3)));
  assert.equal(decodeLossy(Uint8Array.of(0x61, 0xc3, 0x62, 0xe2, 0x82, 0xac)), "a\ufffdb€");
});

test("every export has a type", () => {
  for (const [module, file] of [
    [sdk, "../index.d.ts"],
    [testing, "../testing.d.ts"],
  ]) {
    const types = readFileSync(new URL(file, import.meta.url), "utf8");
    const declared = [...types.matchAll(/^export (?:declare )?(?:class|function|const) (\w+)/gm)].map(([, name]) => name);
    assert.deepEqual([...new Set(declared)].sort(), Object.keys(module).sort());
  }
});
