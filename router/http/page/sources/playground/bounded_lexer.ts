/** Markdown as tokens, whatever a model writes: nesting and tables have bounds, beyond which their marks are text.
 *
 * Without them a thousand `>` exceed the call stack, and a table of many columns with short rows, which are filled up,
 * is a million cells. */
import { Lexer, Tokenizer, type Token, type Tokens } from "marked";

export const MAX_DEPTH = 24;
/** Cells of all tables of a text together. */
export const MAX_CELLS = 20_000;
/** Of a text; a longer one is not taken apart, since that is done anew with each of its tokens. */
export const MAX_CHARACTERS = 50_000;

/** Return the tokens of a text; null if it is too long, or if the lexer fails. */
export function lexBounded(text: string): Token[] | null {
  if (text.length > MAX_CHARACTERS) return null;
  try {
    return new Lexer({ gfm: true, tokenizer: new BoundedTokenizer() }).lex(text);
  } catch {
    return null;
  }
}

type Links = Parameters<Tokenizer["reflink"]>[1];

class BoundedTokenizer extends Tokenizer {
  private depth = 0;
  private numCells = 0;

  override blockquote(src: string): Tokens.Blockquote | undefined {
    return this.nest(() => super.blockquote(src));
  }

  override list(src: string): Tokens.List | undefined {
    return this.nest(() => super.list(src));
  }

  override emStrong(src: string, maskedSrc: string, prevChar = ""): Tokens.Em | Tokens.Strong | undefined {
    return this.nest(() => super.emStrong(src, maskedSrc, prevChar));
  }

  override del(src: string, maskedSrc: string, prevChar = ""): Tokens.Del | undefined {
    return this.nest(() => super.del(src, maskedSrc, prevChar));
  }

  override link(src: string): Tokens.Link | Tokens.Image | undefined {
    return this.nest(() => super.link(src));
  }

  override reflink(src: string, links: Links): Tokens.Link | Tokens.Image | Tokens.Text | undefined {
    return this.nest(() => super.reflink(src, links));
  }

  override table(src: string): Tokens.Table | undefined {
    const numCells = this.numCells + countCells(src);
    if (numCells > MAX_CELLS) return undefined;
    const table = super.table(src);
    if (table) this.numCells = numCells;
    return table;
  }

  private nest<T>(tokenize: () => T | undefined): T | undefined {
    if (this.depth >= MAX_DEPTH) return undefined;
    this.depth += 1;
    try {
      return tokenize();
    } finally {
      this.depth -= 1;
    }
  }
}

/** Return at most how many cells the lines up to the next empty one have, if they are a table. */
function countCells(src: string): number {
  const emptyAt = src.search(/\n[ \t]*\n/);
  const lines = (emptyAt < 0 ? src : src.slice(0, emptyAt)).split("\n");
  return lines.length * lines[0]!.split("|").length;
}
