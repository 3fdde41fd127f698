// A page in Chromium that notes everything that should not happen, and the steps by which tests use it.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import puppeteer from "puppeteer-core";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const GRAVE = new Set(["serious", "critical"]);
const WAIT = { timeout: 45_000 };

export class TestedPage {
  constructor(browser, page, url, folder) {
    Object.assign(this, { browser, page, url, folder, problems: [], numShots: 0 });
  }

  static async open({ url, chromium, folder, width, height, theme }) {
    const browser = await puppeteer.launch({
      executablePath: chromium,
      headless: true,
      args: ["--no-sandbox", "--disable-gpu", "--hide-scrollbars"],
    });
    const page = await browser.newPage();
    await page.setViewport({ width, height, deviceScaleFactor: width < 600 ? 2 : 1 });
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }]);
    const tested = new TestedPage(browser, page, url, folder);
    tested.watch();
    await page.goto(`${url}/`, { waitUntil: "domcontentloaded" });
    await tested.waitFor(".page-header");
    return tested;
  }

  watch() {
    const host = new URL(this.url).host;
    this.page.on("console", (message) => {
      const isRefusal = /status of 4\d\d/.test(message.text()); // of a request that a test means to be refused
      if (["error", "warn"].includes(message.type()) && !isRefusal) this.problems.push(`console: ${message.text()}`);
    });
    this.page.on("pageerror", (error) => this.problems.push(`error: ${error.stack}`));
    this.page.on("request", (request) => {
      const { protocol, host: other } = new URL(request.url());
      if (protocol !== "blob:" && other !== host) this.problems.push(`request to another host: ${request.url()}`);
    });
  }

  waitFor(selector) {
    return this.page.waitForSelector(selector, WAIT);
  }

  waitUntil(condition, ...values) {
    return this.page.waitForFunction(condition, WAIT, ...values);
  }

  /** Press the visible control whose text or label begins so. */
  async press(words, within = "body") {
    const handle = await this.page
      .waitForFunction(
        (wanted, area) =>
          [...document.querySelectorAll(`${area} :is(button, a, summary, label)`)].find(
            (element) =>
              element.checkVisibility() &&
              !element.disabled &&
              (element.textContent.trim().startsWith(wanted) || element.getAttribute("aria-label")?.startsWith(wanted)),
          ),
        WAIT,
        words,
        within,
      )
      .catch(() => {
        throw new Error(`there is no control "${words}" in ${within}`);
      });
    await handle.evaluate((element) => {
      element.scrollIntoView({ block: "center" });
      element.click();
    });
  }

  /** Type into the field of this label, in place of what is there. */
  async type(label, text) {
    const field = await this.findField(label);
    await field.evaluate((element, value) => {
      Object.getOwnPropertyDescriptor(Object.getPrototypeOf(element), "value").set.call(element, value);
      element.dispatchEvent(new Event("input", { bubbles: true }));
      element.dispatchEvent(new Event("change", { bubbles: true }));
    }, text);
  }

  async findField(label) {
    const handle = await this.page
      .waitForFunction(
        (wanted) => {
          const inputs = [...document.querySelectorAll("input, textarea, select")];
          return inputs.find(
            (input) =>
              input.getAttribute("aria-label")?.startsWith(wanted) ||
              input.closest("label")?.querySelector("span")?.textContent.startsWith(wanted),
          );
        },
        WAIT,
        label,
      )
      .catch(() => {
        throw new Error(`there is no field "${label}"`);
      });
    return handle.asElement();
  }

  read(selector) {
    return this.page.$$eval(selector, (elements) => elements.map((element) => element.textContent.trim()));
  }

  async show(pane) {
    await this.page.evaluate((name) => {
      location.hash = name;
    }, pane);
    await this.waitFor(`main#${pane.split("/")[0]}`);
  }

  /** Take a screenshot, and note grave faults of accessibility and what is wider than the screen. */
  async examine(name) {
    await this.page.evaluate(() => scrollTo(0, 0));
    await this.page.evaluate(AXE);
    const { violations } = await this.page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
    for (const { id, impact, nodes } of violations) {
      if (GRAVE.has(impact))
        this.problems.push(`axe on ${name}: ${id}, ${nodes.map((node) => node.html.slice(0, 120)).join(" | ")}`);
    }
    const excess = await this.page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    if (excess > 0) this.problems.push(`${name} is ${excess} pixels wider than the screen`);
    await this.page.screenshot({ path: `${this.folder}/${name}.png`, fullPage: true });
  }

  async close() {
    await this.browser.close();
    if (this.problems.length) throw new Error(this.problems.join("\n"));
  }
}
