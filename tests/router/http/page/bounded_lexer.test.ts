import "./browser_stubs";
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Token } from "marked";
import {
  lexBounded,
  MAX_CELLS,
  MAX_CHARACTERS,
  MAX_DEPTH,
} from "../../../../router/http/page/sources/playground/bounded_lexer";

function measureDepth(tokens: Token[]): number {
  return Math.max(
    0,
    ...tokens.map((token) => 1 + measureDepth([...((token as any).tokens ?? []), ...((token as any).items ?? [])])),
  );
}

function countCells(tokens: Token[]): number {
  const tables = tokens.filter((token) => token.type === "table") as any[];
  return tables.reduce((sum, table) => sum + table.header.length * (1 + table.rows.length), 0);
}

function makeTable(numColumns: number, numRows: number): string {
  const fill = (cell: string): string => `|${cell.repeat(numColumns)}\n`;
  return fill("a|") + fill("-|") + "|b|\n".repeat(numRows) + "\n";
}

for (const mark of [
  ">",
  "> ",
  "- ",
  "1. ",
  "*a ",
  "**a *b ",
  "[",
  "![",
  "~a ~~b ",
  "*_",
  "[a]: b\n[a][",
  "`",
  "<",
  "|",
]) {
  test(`any number of "${mark}" is bounded`, () => {
    for (const text of [mark.repeat(3000), mark.repeat(3000) + "x" + [...mark].reverse().join("").repeat(3000)]) {
      const tokens = lexBounded(text);
      if (tokens) assert.ok(measureDepth(tokens) <= 3 * MAX_DEPTH);
    }
  });
}

test("what is nested less deeply is as it was", () => {
  const [quote] = lexBounded("> > - one\n> >   - *two **three***") as any[];
  assert.equal(quote.type, "blockquote");
  assert.equal(quote.tokens[0].tokens[0].items[0].tokens[1].items[0].tokens[0].tokens[0].tokens[1].type, "strong");
});

test("a table is one until the tables of the text have too many cells", () => {
  const [few] = lexBounded(makeTable(20, 30)) as any[];
  assert.deepEqual([few.type, few.header.length, few.rows.length], ["table", 20, 30]);
  assert.equal(countCells(lexBounded(makeTable(1500, 150))!), 0);
  const cells = countCells(lexBounded(makeTable(300, 40).repeat(25))!);
  assert.ok(cells > 0 && cells <= MAX_CELLS, String(cells));
});

test("a text that is too long is not taken apart", () => {
  assert.equal(lexBounded("a".repeat(MAX_CHARACTERS + 1)), null);
});
