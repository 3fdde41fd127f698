import "./browser_stubs";
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Row, Step } from "../../../../router/http/page/sources/batch/protocol";
import {
  countColumns,
  countLanes,
  findAt,
  findHollowLanes,
  getColumnX,
  type Layout,
  type View,
  type Weave,
} from "../../../../router/http/page/sources/batch/weave";

const LAYOUT: Layout = { columnWidth: 10, laneHeight: 20, width: 130, left: 30, top: 4, barHeight: 0 };

function makeStep(step: number, rows: Row[], changes: Partial<Step> = {}): Step {
  return {
    step,
    t: step,
    kind: "decode",
    ms: 1,
    wall_ms: 1,
    rows,
    admitted: [],
    finished: [],
    preempted: [],
    cancelled: [],
    running: rows.length,
    waiting: 0,
    blocks_used: 0,
    ...changes,
  };
}

function makeWeave(steps: Step[]): Weave {
  return { steps, sequences: new Map(), numLanes: 2, hollow: [] };
}

const live = (end: number): View => ({ end, isFromLeft: false, selectedId: null });

test("the last column ends at the right edge, also while the columns do not fill the width", () => {
  assert.equal(countColumns(LAYOUT), 10);
  assert.equal(getColumnX(LAYOUT, live(3), 2), 120);
  assert.equal(getColumnX(LAYOUT, live(25), 24), 120);
  assert.equal(getColumnX(LAYOUT, live(25), 15), 30);
});

test("a point of the canvas belongs to the row that is drawn there", () => {
  const weave = makeWeave([
    makeStep(7, [
      [0, 1, 1, "d"],
      [1, 2, 1, "d"],
    ]),
    makeStep(8, [[1, 2, 1, "d"]]),
  ]);
  assert.deepEqual(findAt(weave, LAYOUT, live(2), 115, 30)?.row, [1, 2, 1, "d"]);
  assert.equal(findAt(weave, LAYOUT, live(2), 125, 10)?.row, null);
  assert.equal(findAt(weave, LAYOUT, live(2), 125, 10)?.step.step, 8);
  assert.equal(findAt(weave, LAYOUT, live(2), 50, 10), null);
  assert.equal(findAt(weave, LAYOUT, live(2), 125, 60), null);
});

test("places of a static group are hollow from their request's end to the group's", () => {
  const steps = [
    makeStep(
      1,
      [
        [0, 1, 4, "f"],
        [1, 2, 4, "f"],
      ],
      {
        admitted: [
          [0, 1],
          [1, 2],
        ],
      },
    ),
    makeStep(
      2,
      [
        [0, 1, 1, "d"],
        [1, 2, 1, "d"],
      ],
      { finished: [[0, 1, "length"]] },
    ),
    makeStep(3, [[1, 2, 1, "d"]]),
    makeStep(4, [[1, 2, 1, "d"]], { finished: [[1, 2, "length"]] }),
    makeStep(5, [[0, 3, 4, "f"]], { admitted: [[0, 3]] }),
  ];
  assert.deepEqual(findHollowLanes(steps), [[], [], [0], [0], []]);
});

test("as many lanes are drawn as the stretch uses", () => {
  const steps = [makeStep(1, [[5, 1, 1, "d"]]), makeStep(2, [[1, 2, 1, "d"]])];
  assert.equal(countLanes(steps, 0, 2), 6);
  assert.equal(countLanes(steps, 1, 2), 2);
});
