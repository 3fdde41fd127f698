// Builds the page from sources/ into static/, and static/SHA256SUMS from both. With --check it builds in memory and
// says which file of static/ differs. `router/http/page/stale_build_check.py` checks the sums without Node.
import { createHash } from "node:crypto";
import { mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const FOLDER = dirname(fileURLToPath(import.meta.url));
const SOURCES = join(FOLDER, "sources");
const STATIC = join(FOLDER, "static");
const TOOLCHAIN = ["build.mjs", "package.json", "package-lock.json", "tsconfig.json"];
const COPIED = ["index.html", "icon.svg"];
const BUNDLED_PACKAGES = ["@preact/signals", "@preact/signals-core", "marked", "preact", "uplot"];

async function buildFiles() {
  const bundle = await build({
    entryPoints: { page: join(SOURCES, "main.tsx") },
    outdir: STATIC,
    absWorkingDir: FOLDER,
    write: false,
    bundle: true,
    external: ["./icon.svg"],
    minify: true,
    format: "esm",
    target: "es2022",
    jsx: "automatic",
    jsxImportSource: "preact",
    charset: "utf8",
    legalComments: "none",
  });
  const files = bundle.outputFiles.map((file) => [relative(STATIC, file.path), Buffer.from(file.contents)]);
  for (const name of COPIED) files.push([name, await readFile(join(SOURCES, name))]);
  files.push(["licenses.txt", Buffer.from(await collectLicenses())]);
  return files.sort(([a], [b]) => (a < b ? -1 : 1));
}

async function collectLicenses() {
  const texts = [];
  for (const name of BUNDLED_PACKAGES) {
    const folder = join(FOLDER, "node_modules", name);
    const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    const file = (await readdir(folder)).find((entry) => /^licen[sc]e/i.test(entry));
    texts.push(`${name} ${version} (${license})\n\n${(await readFile(join(folder, file), "utf8")).trim()}\n`);
  }
  return texts.join(`\n${"-".repeat(80)}\n\n`);
}

async function listSources() {
  const entries = await readdir(SOURCES, { recursive: true, withFileTypes: true });
  const sources = entries
    .filter((entry) => entry.isFile())
    .map((entry) => relative(FOLDER, join(entry.parentPath, entry.name)));
  return [...TOOLCHAIN, ...sources].sort();
}

async function sumUp(files) {
  const contents = files.map(([name, bytes]) => [`static/${name}`, bytes]);
  for (const name of await listSources()) contents.push([name, await readFile(join(FOLDER, name))]);
  return contents.map(([name, bytes]) => `${createHash("sha256").update(bytes).digest("hex")}  ${name}\n`).join("");
}

async function readOrEmpty(path) {
  return readFile(path).catch(() => Buffer.alloc(0));
}

async function check(files) {
  const stale = [];
  for (const [name, bytes] of files) {
    if (!bytes.equals(await readOrEmpty(join(STATIC, name)))) stale.push(name);
  }
  if (stale.length === 0) return;
  console.error(`router/http/page/static is not what its sources build (${stale.join(", ")}): make page`);
  process.exit(1);
}

async function write(files) {
  await rm(STATIC, { recursive: true, force: true });
  await mkdir(STATIC, { recursive: true });
  for (const [name, bytes] of files) await writeFile(join(STATIC, name), bytes);
}

const files = await buildFiles();
files.push(["SHA256SUMS", Buffer.from(await sumUp(files))]);
await (process.argv.includes("--check") ? check(files) : write(files));
