import "./browser_stubs";
import assert from "node:assert/strict";
import { test } from "node:test";
import { toSquares } from "../../../../router/http/page/sources/batch/block_map";
import { History, history, MAX_STEPS } from "../../../../router/http/page/sources/batch/history";
import { makePrompts } from "../../../../router/http/page/sources/batch/load";
import type { EngineState, Frame, ServerState, Step } from "../../../../router/http/page/sources/batch/protocol";
import { selectedId } from "../../../../router/http/page/sources/batch/view_state";
import { comparison, comparisonError } from "../../../../router/http/page/sources/batch/comparison";
import { setApiKey } from "../../../../router/http/page/sources/shell/api";

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

function makeState(server: Partial<ServerState>): EngineState {
  const queue = { length: 0, tokens: 0, waiting: [] };
  return { t: 0, step: 3, server, running: [], queue, causes: {} } as unknown as EngineState;
}

test("a frame says that the server is no longer ready, or is again", () => {
  const history = new History();
  history.addState(makeState({ model: "demo", ready: true, not_ready_reason: null, has_shards: true }));
  history.addFrame({
    ...makeFrame([4]),
    server: { ready: false, not_ready_reason: "the shards are lost", has_shards: false },
  });
  assert.deepEqual(
    [history.server?.model, history.server?.ready, history.server?.not_ready_reason, history.server?.has_shards],
    ["demo", false, "the shards are lost", false],
  );
  history.addFrame(makeFrame([5]));
  assert.equal(history.server?.ready, false);
  history.addFrame({ ...makeFrame([6]), server: { ready: true, not_ready_reason: null, has_shards: true } });
  assert.deepEqual([history.server?.ready, history.server?.not_ready_reason], [true, null]);
});

test("another key sees nothing of what the last one saw", () => {
  setApiKey("sk-one");
  history.addState(makeState({ model: "demo" }));
  history.addFrame(makeFrame([1, 2]));
  selectedId.value = 7;
  comparisonError.value = "Too many requests.";
  setApiKey("sk-one");
  assert.equal(history.steps.length, 2);
  setApiKey("sk-two");
  assert.deepEqual([history.steps, history.sequences.size, history.server, history.samples], [[], 0, null, []]);
  assert.deepEqual([selectedId.value, comparison.value, comparisonError.value], [null, null, ""]);
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
