// Uses every control of the page: `node drive_controls.mjs '{"url": ..., "chromium": ..., ...}'`.
import assert from "node:assert/strict";
import { TestedPage } from "./browser.mjs";

const settings = JSON.parse(process.argv[2]);
const tested = await TestedPage.open(settings);
const { page } = tested;

/** Wait until all answers that are shown have ended. */
async function waitForAnswers(count) {
  await tested.waitUntil(
    (wanted) =>
      document.querySelectorAll(".answer").length === wanted &&
      !document.querySelector(".answer.running") &&
      [...document.querySelectorAll(".composer button")].some((button) => button.textContent === "Send"),
    count,
  );
}

async function checkPlayground() {
  await tested.waitFor(".models label");
  if (settings.width < 900) await tested.press("Settings");
  await tested.examine("playground-empty");
  for (const name of ["pirate", "kjv"]) await tested.press(name, ".models");
  await tested.type("Temperature", "0");
  await tested.type("Message", "Tell me a story about a frog.");
  await tested.press("Send", ".composer");
  await waitForAnswers(3);
  await tested.waitUntil(() => document.querySelectorAll(".answer a[href^='#requests/']").length === 3);
  const facts = (await tested.read(".answer .facts")).join(" ");
  for (const name of ["queue", "first token", "tokens/s", "of it cached", "finish"])
    assert.ok(facts.includes(name), facts);
  await checkProbabilities();
  await tested.examine("playground-answers");
  await checkCopyAs();
  await checkBranches();
  for (const name of ["pirate", "kjv"]) await tested.press(name, ".models");
  await checkStop();
  await checkSchema();
  await checkTools();
  await checkHostileAnswers();
  await checkRaw();
}

async function checkProbabilities() {
  await tested.press("Probabilities", ".answer");
  await (await tested.waitFor(".tokens")).focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  assert.ok((await tested.read(".probability")).some((text) => text.includes("%")));
  await (await page.$$(".token"))[4].hover();
  await tested.waitFor(".token:nth-child(5).at");
}

async function checkCopyAs() {
  await tested.press("Copy as", ".answer");
  await tested.waitFor("dialog[open] .code-block");
  const marks = {
    curl: "curl",
    "Python: openai": "OpenAI(",
    "Python: huggingface_hub": "InferenceClient(",
    "Python: text_generation": "text_generation import",
    "Python: lorax": "lorax import",
    JavaScript: "fetch(",
  };
  for (const [client, mark] of Object.entries(marks)) {
    await tested.press(client, "dialog");
    await tested.waitUntil((text) => document.querySelector("dialog pre")?.textContent.includes(text), mark);
  }
  await tested.press("Copy", "dialog .code-block");
  await tested.examine("copy-as");
  await page.keyboard.press("Escape");
  await tested.waitUntil(() => !document.querySelector("dialog"));
}

async function checkBranches() {
  await tested.press("Edit", ".prompt");
  await tested.type("Your message, anew", "Count to three.");
  await tested.press("Send as a branch");
  await waitForAnswers(3);
  await tested.press("Retry", ".prompt");
  await waitForAnswers(3);
  assert.match((await tested.read(".branches"))[0], /3\/3/);
  await tested.press("Earlier version");
  await tested.press("Earlier version");
  await tested.waitUntil(() => document.querySelector(".prompt p").textContent.includes("frog"));
}

async function checkStop() {
  await tested.press("New", ".composer");
  await tested.type("Message", "Tell me a long story about a ship.");
  await tested.press("Send", ".composer");
  await tested.waitFor(".answer.running");
  await tested.press("Stop", ".composer");
  await tested.waitFor(".answer:not(.running)");
  await tested.press("New", ".composer");
}

async function checkSchema() {
  await tested.press("JSON schema", ".settings");
  await tested.press("Example", ".json-box[open]");
  await tested.type("Message", "How old is Ada?");
  await tested.press("Send", ".composer");
  await waitForAnswers(1);
  const [text] = await tested.read(".answer .markdown");
  assert.equal(typeof JSON.parse(text).age, "number");
  await tested.type("JSON schema", "{");
  await tested.press("Retry", ".prompt");
  assert.match(await (await tested.waitFor(".notice.error")).evaluate((element) => element.textContent), /not JSON/);
  await tested.press("Clear", ".json-box[open]");
  await tested.press("JSON schema", ".settings");
  await tested.press("New", ".composer");
}

async function checkTools() {
  await tested.press("Tools", ".settings");
  await tested.press("Example", ".json-box[open]");
  await tested.press("must call", ".json-box[open]");
  await tested.type("Message", "What is the weather in Paris?");
  await tested.press("Send", ".composer");
  await waitForAnswers(1);
  await tested.waitFor(".tool-card");
  await tested.examine("tool-call");
  await tested.type("Result of weather", "It rains.");
  await tested.press("may call", ".json-box[open]");
  await tested.press("Send results");
  await waitForAnswers(2);
  await tested.press("Clear", ".json-box[open]");
  await tested.press("New", ".composer");
}

async function checkRaw() {
  await tested.press("Raw", ".settings");
  await tested.type("Text to go on with", "Once upon a time");
  await tested.press("Send", ".composer");
  await waitForAnswers(1);
  await tested.waitUntil(() => document.querySelectorAll(".token").length > 3);
  await tested.examine("raw");
  await tested.press("Chat", ".settings");
}

/** Have the page's next requests to `path` answered with this text, in the place of the server. */
async function answerWith(path, text) {
  await page.evaluate(
    (wanted, body) => {
      const { fetch } = window;
      window.fetch = (url, options) => {
        if (!String(url).includes(wanted)) return fetch(url, options);
        window.fetch = fetch;
        return Promise.resolve(new Response(body));
      };
    },
    path,
    text,
  );
}

/** Answers whose marks are nested too deeply, or that are tables of a million cells, are shown all the same. */
async function checkHostileAnswers() {
  const table = `${"a|".repeat(1500)}\n${"-|".repeat(1500)}\n${"|b|\n".repeat(800)}`;
  for (const content of [">".repeat(5000), "+ ".repeat(5000), "**a *b ".repeat(2000), table]) {
    const events = [{ delta: { content } }, { delta: {}, finish_reason: "stop" }].map(
      (choice) => `data: ${JSON.stringify({ choices: [choice] })}\n\n`,
    );
    await answerWith("v1/chat/completions", events.join(""));
    await tested.type("Message", "Hello");
    await tested.press("Send", ".composer");
    await waitForAnswers(1);
    assert.ok((await tested.read(".answer :is(.markdown, .raw-text)"))[0].length > 2000);
    await tested.press("New", ".composer");
  }
}

/** A pane that cannot show what the server answered says so, and the others go on. */
async function checkBrokenPane() {
  await tested.show("playground");
  await answerWith("v1/requests?", '{"requests": [{}]}');
  await tested.show("requests");
  await tested.waitUntil(() => document.querySelector(".notice.error")?.textContent.includes("cannot be shown"));
  await tested.press("Try again", "main");
  await tested.waitFor("tbody tr");
}

async function checkBatch() {
  await tested.show("batch");
  await tested.waitFor(".weave canvas");
  await tested.press("Send 24", ".load-controls");
  await tested.waitFor(".comparison");
  await tested.waitUntil(
    () =>
      document.querySelectorAll(".run figcaption b").length === 2 &&
      [...document.querySelectorAll(".run figcaption b")].every((element) => element.textContent.includes("steps")),
  );
  const [verdict] = await tested.read(".verdict");
  const [, continuous, fixed] = verdict.match(/24 requests in (\d+) steps.*Static: (\d+) steps/);
  assert.ok(Number(continuous) < Number(fixed), verdict);
  await tested.examine("batch");
  await checkCellsAreTheSteps();
  await page.select(".comparison select", "6");
  await tested.waitUntil((before) => document.querySelector(".verdict")?.textContent !== before, verdict);
  await tested.press("▶ Play again", ".comparison");
  for (const name of ["request", "tenant", "adapter"]) await tested.press(name, ".legend");
  await checkPauseAndKeys();
  await checkSteadyLoad();
  await checkExport();
}

/** Compare the canvas with the server's steps: a cell for each row, and nothing in free places. */
async function checkCellsAreTheSteps() {
  const { numCells, wrong } = await page.evaluate(async () => {
    const response = await fetch("v1/engine/events?since=0");
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    while (!text.includes("event: frame") || !text.endsWith("\n\n")) text += (await reader.read()).value;
    void reader.cancel();
    const { steps } = JSON.parse(text.split("event: frame")[1].split("data: ")[1].split("\n\n")[0]);
    const canvas = document.querySelector(".weave canvas");
    const scale = devicePixelRatio;
    const [left, top, column] = [30, 4, 6];
    const numLanes = Math.round((canvas.height / scale - top - 34) / 18);
    const width = Math.floor(canvas.width / scale);
    const shown = steps.slice(-Math.floor((width - left) / column));
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const readAlpha = (x, y) => data[4 * (Math.round(y * scale) * canvas.width + Math.round(x * scale)) + 3];
    const wrong = [];
    let numCells = 0;
    shown.forEach((step, index) => {
      const x = Math.max(left, width - shown.length * column) + index * column + 2;
      for (let lane = 0; lane < numLanes; lane += 1) {
        const isTaken = step.rows.some((row) => row[0] === lane);
        const alpha = readAlpha(x, top + lane * 18 + 4);
        numCells += isTaken;
        if (alpha > 10 !== isTaken) wrong.push([step.step, lane, isTaken, alpha]);
      }
    });
    return { numCells, wrong };
  });
  assert.ok(numCells > 20);
  assert.deepEqual(wrong, []);
}

async function checkPauseAndKeys() {
  await tested.press("❚❚ Pause", ".weave-controls");
  const canvas = await tested.waitFor(".weave-canvas");
  await canvas.focus();
  const read = () => page.$eval(".weave canvas", (element) => element.getAttribute("aria-label"));
  const before = await read();
  for (let press = 0; press < 20; press += 1) await page.keyboard.press("ArrowLeft");
  await tested.waitUntil(
    (words) => document.querySelector(".weave canvas").getAttribute("aria-label") !== words,
    before,
  );
  await page.keyboard.press("ArrowDown");
  await tested.waitFor("section.card .timeline");
  await tested.examine("batch-request");
  await page.keyboard.press("Escape");
  await page.keyboard.press("End");
  await tested.waitUntil(() => document.querySelector(".weave-controls").textContent.includes("Pause"));
  await tested.type("Width", "3");
  await tested.type("Steps back", "1");
  await tested.press("▶ Live", ".weave-controls");
  await canvas.click({ offset: { x: settings.width - 90, y: 10 } });
  await page.mouse.move(1, 1);
}

async function checkSteadyLoad() {
  await tested.type("Steady load", "15");
  await tested.waitUntil(() => /[1-9]\d* in the batch/.test(document.querySelector(".weave-hit").textContent));
  await tested.press("Stop the load", ".load-controls");
  await tested.waitUntil(() => document.querySelector(".load-controls").textContent.includes("0 a second"));
}

async function checkExport() {
  const link = page.waitForFunction(() => window.exportedName);
  await page.evaluate(() => {
    HTMLAnchorElement.prototype.click = function click() {
      window.exportedName = this.download;
    };
  });
  await tested.press("Export trace", ".load-controls");
  assert.match(await (await link).jsonValue(), /^weft-trace-.*\.json$/);
  await page.reload();
  await tested.waitFor(".page-header");
}

async function checkRequests() {
  await checkBrokenPane();
  await tested.show("requests/%E0%A4%A");
  await tested.waitFor(".request-detail .notice.error");
  await tested.show("requests");
  await tested.waitFor("tbody tr");
  const countRows = () => page.$$eval("tbody tr", (rows) => rows.length);
  const all = await countRows();
  await tested.type("Adapter", "pirate");
  await tested.waitUntil((count) => document.querySelectorAll("tbody tr").length < count, all);
  await tested.type("Adapter", "");
  await tested.type("End", "length");
  await tested.type("State", "over");
  await tested.type("Slower than", "1");
  await tested.waitUntil(() =>
    [...document.querySelectorAll("tbody tr")].every((row) => row.textContent.includes("max tokens")),
  );
  await tested.press("", "tbody tr");
  await tested.waitFor(".request-detail .interval-bar rect");
  await tested.press("Route and headers", ".request-detail");
  assert.match((await tested.read(".request-detail .fact-list"))[0], /POST \/v1\/(chat\/)?completions/);
  await tested.examine("requests");
  await tested.press("Close", ".request-detail");
  await tested.waitUntil(() => !document.querySelector(".request-detail"));
}

async function checkServer() {
  await tested.show("server");
  await tested.waitFor(".server-columns");
  await tested.waitUntil(() =>
    document.querySelector("[aria-label='Table of settings']")?.textContent.includes("flag"),
  );
  const countSettings = () => page.$$eval("[aria-label='Table of settings'] tbody tr", (rows) => rows.length);
  const numChanged = await countSettings();
  await tested.press("also those with their default");
  await tested.waitUntil(
    (count) => document.querySelectorAll("[aria-label='Table of settings'] tbody tr").length > count + 50,
    numChanged,
  );
  await tested.examine("server");
  await tested.type("Adapter, by its name", "shout");
  await tested.press("Load", ".load-adapter");
  await tested.waitUntil(() => document.querySelector("[aria-label='Unload shout']"));
  await tested.press("Unload shout");
  await tested.waitUntil(() => !document.querySelector("[aria-label='Unload shout']"));
  await tested.type("Adapter, by its name", "no-such-adapter");
  await tested.press("Load", ".load-adapter");
  await tested.waitFor(".notice.error");
}

async function checkHeader() {
  const readTheme = () => page.$eval("html", (element) => element.dataset.theme);
  const before = await readTheme();
  await tested.press(before === "dark" ? "Light colours" : "Dark colours");
  assert.notEqual(await readTheme(), before);
  await tested.press("Key", ".page-header");
  await tested.waitFor("dialog[open] input");
  await tested.examine("key");
  await page.keyboard.press("Escape");
  await page.evaluate(() => localStorage.clear());
}

async function checkDocs() {
  await page.goto(`${settings.url}/docs`, { waitUntil: "domcontentloaded" });
  await page.waitForSelector("h1");
  await tested.examine("docs");
}

await checkPlayground();
await checkBatch();
await checkRequests();
await checkServer();
await checkHeader();
await checkDocs();
await tested.close();
