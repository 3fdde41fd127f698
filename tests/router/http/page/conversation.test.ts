import "./browser_stubs";
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  addBranch,
  listShown,
  makeExchange,
  toMessages,
} from "../../../../router/http/page/sources/playground/conversation";

function answer(exchange: ReturnType<typeof makeExchange>, texts: Record<string, string>): void {
  for (const given of exchange.answers) given.text = texts[given.model]!;
}

test("an edit goes on beside what it replaces, which can be shown again", () => {
  const root = makeExchange("", []);
  const first = makeExchange("one", ["a"]);
  addBranch(root, first);
  addBranch(first, makeExchange("two", ["a"]));
  addBranch(root, makeExchange("other", ["a"]));
  assert.deepEqual(
    listShown(root).map((exchange) => exchange.prompt),
    ["other"],
  );
  root.shownBranch = 0;
  assert.deepEqual(
    listShown(root).map((exchange) => exchange.prompt),
    ["one", "two"],
  );
});

test("each model goes on from its own answers", () => {
  const first = makeExchange("hi", ["base", "pirate"]);
  answer(first, { base: "hello", pirate: "ahoy" });
  const path = [first, makeExchange("and?", ["base", "pirate"])];
  assert.deepEqual(toMessages(path, "pirate", "Be brief."), [
    { role: "system", content: "Be brief." },
    { role: "user", content: "hi" },
    { role: "assistant", content: "ahoy" },
    { role: "user", content: "and?" },
  ]);
});

test("results of tools follow the calls that they belong to", () => {
  const first = makeExchange("weather?", ["base"]);
  first.answers[0]!.toolCalls.push({ id: "call_1", name: "weather", arguments: "{}" });
  const path = [first, makeExchange("", ["base"], [{ id: "call_1", content: "rain" }])];
  assert.deepEqual(toMessages(path, "base", ""), [
    { role: "user", content: "weather?" },
    {
      role: "assistant",
      content: null,
      tool_calls: [{ id: "call_1", type: "function", function: { name: "weather", arguments: "{}" } }],
    },
    { role: "tool", content: "rain", tool_call_id: "call_1" },
  ]);
});
