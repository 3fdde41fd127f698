import "./browser_stubs";
import assert from "node:assert/strict";
import { test } from "node:test";
import { findMessage, parseEvent, readErrorMessage, SERVER_URL } from "../../../../router/http/page/sources/shell/api";
import { decodeFragment, shownRequestId } from "../../../../router/http/page/sources/shell/navigation";
import { describeOutcome } from "../../../../router/http/page/sources/shell/outcome";

test("events have a name and data, and comments are none", () => {
  assert.deepEqual(parseEvent("event: frame\nid: 3\ndata: {\ndata: }"), { name: "frame", data: "{\n}" });
  assert.equal(parseEvent(": ping"), null);
});

test("the server is where the page came from, behind any prefix", () => {
  assert.equal(SERVER_URL.href, "http://127.0.0.1:3000/weft/");
});

test("the message of an error is found in any dialect, and an answer without one is shown whole", () => {
  assert.equal(readErrorMessage('{"error": {"message": "too long", "type": "x"}}'), "too long");
  assert.equal(readErrorMessage('{"error": "too long", "error_type": "validation"}'), "too long");
  assert.equal(readErrorMessage('{"message": "too long"}'), "too long");
  assert.equal(readErrorMessage('{"error": {"error": "too long"}}'), "too long");
  for (const text of [
    '{"error": {"code": 7}}',
    '{"error": null}',
    '{"detail": "x"}',
    "[1]",
    "7",
    "null",
    "Bad gateway",
  ])
    assert.equal(readErrorMessage(text), text);
  assert.equal(findMessage({ error: { code: 7 } }), null);
});

test("a link that was cut off or mistyped names what stands there", () => {
  assert.equal(decodeFragment("a%2Fb"), "a/b");
  assert.equal(decodeFragment("%E0%A4%A"), "%E0%A4%A");
  assert.equal(shownRequestId.value, "50%");
});

test("a request has its state and its end in words", () => {
  const ended = { state: "over", error_type: null };
  assert.equal(describeOutcome({ ...ended, finish_reason: "eos_token" }), "finished: end of text");
  assert.equal(describeOutcome({ ...ended, finish_reason: null }), "finished");
  assert.equal(
    describeOutcome({ state: "over", error_type: "client_gone", finish_reason: null }),
    "ended: client gone",
  );
  assert.equal(describeOutcome({ state: "waiting", error_type: null, finish_reason: null }), "waiting");
});
