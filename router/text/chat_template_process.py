"""Process that renders chats, `python -P -m router.text.chat_template_process`; restarted if it hangs or dies.

The first line of its input holds the template, `{"source": ..., "special_tokens": ..., "output_format": ...}`,
answered with `{}`. Every other line holds the fields of a `Conversation` and `max_characters`, which the prompt may
have, answered with `{"prompt": ...}`, or nothing, answered with `{"takes_tools": ...}`. Errors of the template are
answered with `{"failed": WHY}`.
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from router.errors import ChatTemplateFailed
from router.processes.worker_process import WorkerAnswer, answer_requests, limit_memory, set_up_worker_process
from router.text.chat_template import ChatTemplate, Conversation
from router.text.jinja_sandbox import MAX_MEMORY_BYTES, TOO_MUCH_MEMORY


def answer_request(template: ChatTemplate, request: dict[str, Any]) -> WorkerAnswer:
    try:
        if not request:
            return {"takes_tools": template.takes_tools}
        max_characters = request.pop("max_characters")
        prompt = template.render(Conversation(**request))
    except ChatTemplateFailed as failed:
        return {"failed": str(failed)}
    except (MemoryError, RecursionError) as error:
        return {"failed": TOO_MUCH_MEMORY if isinstance(error, MemoryError) else str(error)}
    if len(prompt) > max_characters:
        return {"failed": f"it makes {len(prompt)} characters of these messages, and at most {max_characters} could "
                          "fit; send less"}
    return {"prompt": prompt}


def make_template(first_request: Mapping[str, Any]) -> ChatTemplate:
    return ChatTemplate(first_request["source"], first_request["special_tokens"], first_request["output_format"])


def main() -> None:
    with set_up_worker_process() as parent, parent.makefile("rb") as lines:
        first_request = json.loads(lines.readline())
        template = make_template(first_request)
        limit_memory(MAX_MEMORY_BYTES)
        parent.sendall(b"{}\n")
        answer_requests(parent, lines, partial(answer_request, template))


if __name__ == "__main__":
    main()
