import "./browser_stubs";
import assert from "node:assert/strict";
import { test } from "node:test";
import { toSquares } from "../../../../router/http/page/sources/batch/block_map";
import { History, MAX_STEPS } from "../../../../router/http/page/sources/batch/history";
import { makePrompts } from "../../../../router/http/page/sources/batch/load";
import type { Frame, Step } from "../../../../router/http/page/sources/batch/protocol";
import { parseEvent, SERVER_URL } from "../../../../router/http/page/sources/shell/api";

function makeFrame(steps: number[]): Frame {
  return { t: 0, sequences: [], steps: steps.map((step) => ({ step, kind: "decode", rows: [] }) as unknown as Step) };
}

test("steps that come again after a lost connection are not drawn twice", () => {
  const history = new History();
  history.addFrame(makeFrame([1, 2]));
  history.addFrame(makeFrame([2, 3]));
  assert.deepEqual(
    history.steps.map(({ step }) => step),
    [1, 2, 3],
  );
});

test("the oldest steps are forgotten", () => {
  const history = new History();
  history.addFrame(makeFrame(Array.from({ length: MAX_STEPS + 5 }, (_, index) => index)));
  assert.equal(history.steps.length, MAX_STEPS);
  assert.equal(history.steps[0]!.step, 5);
});

test("a square of several blocks shows the one that is held, then shared, then cached", () => {
  assert.deepEqual(
    toSquares(
      [
        [-2, 1],
        [7, 1],
        [-1, 1],
        [0, 3],
      ],
      1,
    ),
    [-2, 7, -1, 0, 0, 0],
  );
  assert.deepEqual(
    toSquares(
      [
        [-2, 1],
        [7, 1],
        [-1, 1],
        [0, 3],
      ],
      2,
    ),
    [7, -1, 0],
  );
});

test("a burst has prompts of mixed length for the model and its adapters", () => {
  const prompts = makePrompts(24, ["base", "pirate"], 0);
  assert.equal(prompts.length, 24);
  assert.ok(new Set(prompts.map(({ text }) => text.length)).size > 4);
  assert.deepEqual(new Set(prompts.map(({ model }) => model)), new Set(["base", "pirate"]));
});

test("events have a name and data, and comments are none", () => {
  assert.deepEqual(parseEvent("event: frame\nid: 3\ndata: {\ndata: }"), { name: "frame", data: "{\n}" });
  assert.equal(parseEvent(": ping"), null);
});

test("the server is where the page came from, behind any prefix", () => {
  assert.equal(SERVER_URL.href, "http://127.0.0.1:3000/weft/");
});
