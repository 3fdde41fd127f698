// Sends the requests of the forms on the page at /docs, and shows the answers as they arrive.
"use strict";

const KEY_NAME = "weft-api-key"; // in the tab's storage, shared with the page at /ui
const MAX_SHOWN_CHARACTERS = 200000;
const keyField = document.getElementById("api-key");

keyField.value = sessionStorage.getItem(KEY_NAME) || "";
keyField.addEventListener("input", () => sessionStorage.setItem(KEY_NAME, keyField.value));

// The URL of a form's request. Relative, so that it also holds behind a prefix.
function buildUrl(form) {
  let path = form.dataset.path;
  const query = new URLSearchParams();
  for (const field of form.querySelectorAll("input[data-in]")) {
    if (field.dataset.in === "path") path = path.replace(`{${field.name}}`, encodeURIComponent(field.value));
    else if (field.value) query.set(field.name, field.value);
  }
  const url = new URL("." + path, document.baseURI);
  url.search = query.toString();
  return url;
}

function buildOptions(form, signal) {
  const headers = {};
  if (keyField.value) headers["Authorization"] = `Bearer ${keyField.value}`;
  const body = form.elements["body"];
  if (body) headers["Content-Type"] = "application/json";
  return { method: form.dataset.method, headers, body: body ? body.value : undefined, signal };
}

async function send(form, signal) {
  const status = form.querySelector("output");
  const answer = form.querySelector("pre");
  const started = performance.now();
  status.textContent = "sent";
  answer.textContent = "";
  answer.hidden = true;
  try {
    const response = await fetch(buildUrl(form), buildOptions(form, signal));
    const describe = () => `${response.status}, ${Math.round(performance.now() - started)} ms`;
    status.textContent = describe();
    answer.hidden = false;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      answer.textContent = (answer.textContent + part.value).slice(-MAX_SHOWN_CHARACTERS);
      status.textContent = describe();
    }
    indent(answer, response);
  } catch (error) {
    status.textContent = signal.aborted ? "stopped" : `no answer: ${error.message}`;
  }
}

function indent(answer, response) {
  if (!(response.headers.get("Content-Type") || "").startsWith("application/json")) return;
  try {
    answer.textContent = JSON.stringify(JSON.parse(answer.textContent), null, 2);
  } catch {
    // Shown as it came.
  }
}

for (const form of document.querySelectorAll("form[data-path]")) {
  const [, stop] = form.querySelectorAll("button");
  let controller = null;
  stop.addEventListener("click", () => controller && controller.abort());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (controller) controller.abort();
    const own = (controller = new AbortController());
    stop.hidden = false;
    await send(form, own.signal);
    if (controller === own) stop.hidden = true;
  });
}
