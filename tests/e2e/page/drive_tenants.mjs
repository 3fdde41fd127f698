// Two tenants and a server with keys: `node drive_tenants.mjs '{"url": ..., "keys": [...], ...}'`.
import assert from "node:assert/strict";
import { TestedPage } from "./browser.mjs";

const settings = JSON.parse(process.argv[2]);
const [admin, user] = settings.keys;

async function openWithKey(key) {
  const tested = await TestedPage.open(settings);
  await tested.show("batch");
  await tested.waitFor("dialog[open]");
  await tested.type("Key", key);
  await tested.press("Use this key", "dialog");
  await tested.waitUntil(() => !document.querySelector("dialog"));
  await tested.waitUntil(() => document.querySelector(".blocks small").textContent.includes("blocks held"));
  return tested;
}

async function checkKeyIsAskedOnce(tested) {
  await tested.page.reload();
  await tested.show("batch");
  await tested.waitUntil(() => document.querySelector(".blocks small").textContent.includes("blocks held"));
  assert.equal(await tested.page.$("dialog"), null);
  assert.match((await tested.read(".header-actions"))[0], /Key ✓/);
}

async function checkWrongKey() {
  const tested = await TestedPage.open(settings);
  await tested.show("batch");
  await tested.waitFor("dialog[open]");
  await tested.examine("key-asked");
  await tested.type("Key", "wrong");
  await tested.press("Use this key", "dialog");
  await tested.waitFor("dialog[open]");
  await tested.page.keyboard.press("Escape");
  await tested.waitFor(".notice.error");
  await tested.close();
}

/** Choose the last row, and return what the page says about it. */
async function readLastRow(tested) {
  await tested.waitUntil(() => /Step \d+/.test(document.querySelector(".weave-hit").textContent));
  await (await tested.waitFor(".weave-canvas")).focus();
  await tested.page.keyboard.press("ArrowDown");
  return (await tested.waitFor("section[aria-label^='Request ']")).evaluate((element) => element.textContent);
}

/** With another key the page shows nothing of what the last one could see. */
async function checkKeyIsChanged(tested, key) {
  await tested.show("batch");
  await tested.waitFor(".comparison");
  await tested.press("Key", ".page-header");
  await tested.type("Key", key);
  await tested.press("Use this key", "dialog");
  await tested.waitUntil(() => !document.querySelector(".comparison, section[aria-label^='Request ']"));
  assert.match(await readLastRow(tested), /belongs to another tenant/);
}

const mine = await openWithKey(admin);
const theirs = await openWithKey(user);
await checkKeyIsAskedOnce(theirs);
await mine.press("Send 24", ".load-controls");
await mine.waitFor(".comparison");
assert.doesNotMatch(await readLastRow(mine), /another tenant/);
assert.match(await readLastRow(theirs), /belongs to another tenant/);
await theirs.press("tenant", ".legend");
await theirs.examine("tenant-of-others");
await theirs.show("requests");
await theirs.waitUntil(() => document.querySelector(".request-list").textContent.includes("None"));
await theirs.show("server");
await theirs.waitUntil(() => document.querySelector(".server-columns")?.textContent.includes("role user"));
await theirs.press("Other settings");
assert.equal(await theirs.page.$(".load-adapter"), null);
await theirs.examine("server-of-user");
await mine.show("server");
await mine.waitFor(".load-adapter");
await checkKeyIsChanged(mine, user);
await mine.close();
await theirs.close();
await checkWrongKey();
