/** Markdown as elements. Nothing becomes HTML: what a model writes can neither run nor load anything. */
import type { ComponentChildren, JSX } from "preact";
import type { Token, Tokens } from "marked";
import { CopyButton } from "../shell/controls";
import { lexBounded } from "./bounded_lexer";

export function Markdown({ text }: { text: string }): JSX.Element {
  const tokens = lexBounded(text);
  return tokens ? <div class="markdown">{renderBlocks(tokens)}</div> : <pre class="raw-text">{text}</pre>;
}

function renderBlocks(tokens: Token[]): ComponentChildren[] {
  return tokens.map((token, index) => renderToken(token, index));
}

function renderInline(token: { tokens?: Token[]; text?: string }): ComponentChildren {
  return token.tokens ? renderBlocks(token.tokens) : unescape(token.text ?? "");
}

function renderToken(token: Token, key: number): ComponentChildren {
  switch (token.type) {
    case "heading":
      return (
        <p key={key} class={`heading level-${token.depth}`}>
          {renderInline(token as Tokens.Heading)}
        </p>
      );
    case "paragraph":
      return <p key={key}>{renderInline(token as Tokens.Paragraph)}</p>;
    case "code":
      return <CodeBlock key={key} code={token.text} language={token.lang ?? ""} />;
    case "blockquote":
      return <blockquote key={key}>{renderBlocks(token.tokens ?? [])}</blockquote>;
    case "list":
      return renderList(token as Tokens.List, key);
    case "table":
      return renderTable(token as Tokens.Table, key);
    case "hr":
      return <hr key={key} />;
    case "br":
      return <br key={key} />;
    case "strong":
      return <strong key={key}>{renderInline(token as Tokens.Strong)}</strong>;
    case "em":
      return <em key={key}>{renderInline(token as Tokens.Em)}</em>;
    case "del":
      return <del key={key}>{renderInline(token as Tokens.Del)}</del>;
    case "codespan":
      return <code key={key}>{unescape(token.text)}</code>;
    case "link":
      return renderLink(token as Tokens.Link, key);
    case "image":
      return (
        <span key={key} class="image">
          [image: {token.text || token.href}]
        </span>
      );
    case "space":
      return null;
    case "text":
      return renderInline(token as Tokens.Text);
    default:
      return token.raw;
  }
}

/** Only links to the web become links; they open elsewhere and learn nothing of this page. */
function renderLink(token: Tokens.Link, key: number): ComponentChildren {
  if (!/^https?:\/\//i.test(token.href)) return <span key={key}>{renderInline(token)}</span>;
  return (
    <a key={key} href={token.href} target="_blank" rel="noopener noreferrer">
      {renderInline(token)}
    </a>
  );
}

function renderList(list: Tokens.List, key: number): ComponentChildren {
  const items = list.items.map((item, index) => <li key={index}>{renderBlocks(item.tokens)}</li>);
  return list.ordered ? (
    <ol key={key} start={Number(list.start) || 1}>
      {items}
    </ol>
  ) : (
    <ul key={key}>{items}</ul>
  );
}

function renderTable(table: Tokens.Table, key: number): ComponentChildren {
  return (
    <div key={key} class="table-scroll">
      <table>
        <thead>
          <tr>
            {table.header.map((cell, index) => (
              <th key={index} scope="col">
                {renderInline(cell)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {table.rows.map((row, index) => (
            <tr key={index}>
              {row.map((cell, column) => (
                <td key={column}>{renderInline(cell)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function CodeBlock({ code, language }: { code: string; language: string }): JSX.Element {
  return (
    <figure class="code-block">
      <figcaption>
        <span>{language || "text"}</span>
        <CopyButton text={code} label="Copy" />
      </figcaption>
      <pre tabIndex={0}>
        <code>{code}</code>
      </pre>
    </figure>
  );
}

const ENTITIES: Record<string, string> = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'" };

function unescape(text: string): string {
  return text.replace(/&(?:amp|lt|gt|quot|#39);/g, (entity) => ENTITIES[entity]!);
}
