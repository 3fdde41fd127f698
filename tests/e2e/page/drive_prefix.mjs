// The page behind a proxy that serves weft under a prefix: `node drive_prefix.mjs '{"url": ..., ...}'`.
import { createServer, request } from "node:http";
import { TestedPage } from "./browser.mjs";

const PREFIX = "/models/weft";
const settings = JSON.parse(process.argv[2]);

/** Pass on what is below the prefix; everything else is not found. */
const proxy = createServer((incoming, outgoing) => {
  if (!incoming.url.startsWith(`${PREFIX}/`)) return outgoing.writeHead(404).end();
  const passed = request(
    settings.url + incoming.url.slice(PREFIX.length),
    { method: incoming.method, headers: incoming.headers },
    (answer) => {
      outgoing.writeHead(answer.statusCode, answer.headers);
      answer.pipe(outgoing);
    },
  );
  outgoing.on("close", () => passed.destroy());
  return incoming.pipe(passed);
});
await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));

const tested = await TestedPage.open({ ...settings, url: `http://127.0.0.1:${proxy.address().port}${PREFIX}` });
await tested.waitFor(".models label");
await tested.type("Message", "Count to five.");
await tested.press("Send", ".composer");
await tested.waitUntil(() => document.querySelector(".answer.done .facts")?.textContent.includes("cached"));
await tested.show("batch");
await tested.waitUntil(() => /[1-9]/.test(document.querySelector(".blocks small").textContent));
await tested.show("server");
await tested.waitFor(".server-columns");
await tested.close();
proxy.close();
proxy.closeAllConnections();
