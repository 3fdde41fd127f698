import "./browser_stubs";
import assert from "node:assert/strict";
import { test } from "node:test";
import { describeRow, describeStep } from "../../../../router/http/page/sources/batch/describe";
import type { Row, Step } from "../../../../router/http/page/sources/batch/protocol";

function makeStep(rows: Row[], changes: Partial<Step> = {}): Step {
  return { step: 696, kind: "decode", wall_ms: 5, rows, finished: [], cancelled: [], waiting: 0, ...changes } as Step;
}

test("a row says what was computed, and for what", () => {
  assert.equal(describeRow([0, 7, 1, "d"], "request 7", false), "1 token of request 7");
  assert.equal(describeRow([0, 7, 3, "d"], "request 7", false), "3 tokens of request 7");
  assert.equal(describeRow([0, 7, 0, "d"], "request 7", false), "computed ahead in vain: request 7 had ended");
  assert.equal(describeRow([0, 7, 64, "p"], "request 7", false), "a part of its prompt, 64 tokens, of request 7");
});

test("with --recompute a row is a token and all before it", () => {
  assert.equal(
    describeRow([0, 7, 64, "f"], "request 7", true),
    "a token of request 7, recomputed with all 64 before it",
  );
});

test("the batch at rest does not look as if its last request still ran", () => {
  const words = "Nothing runs. Step 696 was the last.";
  assert.equal(describeStep(makeStep([[0, 7, 1, "d"]], { finished: [[0, 7, "length"]] }), true), words);
  assert.equal(describeStep(makeStep([[0, 7, 0, "d"]]), true), words);
  assert.equal(describeStep(makeStep([], { kind: "idle" }), true), words);
});

test("a step in which something runs or waits, or that others followed, says how full it was", () => {
  const words = "Step 696: 1 in the batch, 0 waiting, 5.0 ms.";
  assert.equal(describeStep(makeStep([[0, 7, 1, "d"]]), true), words);
  assert.equal(describeStep(makeStep([[0, 7, 0, "d"]]), false), words);
  assert.match(describeStep(makeStep([[0, 7, 0, "d"]], { waiting: 2 }), true), /2 waiting/);
});
