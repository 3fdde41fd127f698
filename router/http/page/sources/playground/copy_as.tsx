/** The dialog that shows an answer's request as a program of the chosen client. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { apiKey, SERVER_URL } from "../shell/api";
import { Choice, Notice } from "../shell/controls";
import { Dialog } from "../shell/dialog";
import { isBaseModel } from "../shell/models";
import type { Answer } from "./conversation";
import { CodeBlock } from "./markdown";
import { makeSnippetRequest } from "./session";
import { CLIENT_TITLES, makeSnippet, type ClientName, type SnippetRequest } from "./snippets";

interface CopyAsProps {
  answer: Answer;
  onClose: () => void;
}

export function CopyAsDialog({ answer, onClose }: CopyAsProps): JSX.Element {
  const [client, setClient] = useState<ClientName>("curl");
  const [request, setRequest] = useState<SnippetRequest | null>(null);
  useEffect(() => {
    const url = SERVER_URL.href.replace(/\/$/, "");
    void makeSnippetRequest(answer, url, apiKey.value !== "", !isBaseModel(answer.model)).then(setRequest);
  }, [answer]);
  return (
    <Dialog title="Copy as" onClose={onClose}>
      <Choice label="Client" options={CLIENT_TITLES} value={client} onChange={setClient} />
      {request && <SnippetView client={client} request={request} />}
    </Dialog>
  );
}

function SnippetView({ client, request }: { client: ClientName; request: SnippetRequest }): JSX.Element {
  const snippet = makeSnippet(client, request);
  if (snippet.reason) return <Notice kind="note">Not with this client: {snippet.reason}.</Notice>;
  return (
    <>
      <CodeBlock code={snippet.code} language={snippet.language} />
      {request.hasKey && <p class="hint">The program reads your key from the variable WEFT_API_KEY.</p>}
    </>
  );
}
