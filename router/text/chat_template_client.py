"""Chat template that is rendered in processes of its own, which limit the time and memory that a template may take: the
sandbox bounds what a template does, not the work inside one filter or method."""

import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any

from router.config import RouterConfig
from router.errors import ChatTemplateFailed, Overloaded
from router.processes.worker_process import (
    IdleWorkers,
    RestartingWorker,
    WorkerAnswer,
    WorkerTaskWording,
    shorten_reason,
)
from router.text.chat_template import ChatTemplate, Conversation
from router.text.jinja_sandbox import MAX_CHARACTERS

RENDERER_COMMAND = (sys.executable, "-P", "-m", "router.text.chat_template_process")
RENDER_TASK = WorkerTaskWording("render", "rendered", "chats")
CONVERSATION_FIELDS = tuple(field.name for field in fields(Conversation))
MAX_RENDER_SECONDS = 1.0  # of the processor per chat; the sandbox notices most endless templates earlier
MAX_STALLED_SECONDS = 8.0  # per chat, while others have the processor
MIN_CHARACTERS_PER_TOKEN = 64  # that a prompt may have: more than ordinary text has


class IsolatedChatTemplate(ChatTemplate):
    """Chat template that other processes parse and render; thread-safe. `close` ends them."""

    def __init__(self, template: ChatTemplate, num_processes: int, max_characters: int = MAX_CHARACTERS,
                 command: Sequence[str] = RENDERER_COMMAND) -> None:
        """At most `num_processes` chats are rendered at once. Prompts of more than `max_characters` are refused."""
        super().__init__(template.source, template.special_tokens, template.given_output_format)
        self.max_characters = max_characters
        self._first_request = {"source": self.source, "special_tokens": dict(self.special_tokens),
                               "output_format": self.given_output_format}
        self._workers = [RestartingWorker(RENDER_TASK, command, lambda: self._first_request)
                         for _ in range(num_processes)]
        self._idle_workers = IdleWorkers(self._workers)

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the template renders tools. Blocks. Raises ChatTemplateFailed or Overloaded."""
        return bool(self._send_request({})["takes_tools"])

    def render(self, conversation: Conversation) -> str:
        """Return the prompt up to the beginning of the answer. Blocks. Raises ChatTemplateFailed or Overloaded."""
        request = {name: getattr(conversation, name) for name in CONVERSATION_FIELDS}
        return str(self._send_request(request | {"max_characters": self.max_characters})["prompt"])

    def warm_up(self) -> None:
        """Start all processes and let them parse the template, before chats need them. Blocks."""
        workers = self._idle_workers.take_all(len(self._workers))
        try:
            while workers:
                workers[-1].send_request({}, MAX_RENDER_SECONDS, MAX_STALLED_SECONDS)  # the first chat gets what fails
                self._idle_workers.put(workers.pop())
        finally:
            for worker in workers:
                self._idle_workers.put(worker)

    def limit_prompts(self, config: RouterConfig, max_input_tokens: int) -> None:
        """Refuse prompts that are more than twice as long as the longest body, and longer than a prompt of
        `max_input_tokens` can be."""
        self.max_characters = min(MAX_CHARACTERS, max(2 * config.payload_limit,
                                                      MIN_CHARACTERS_PER_TOKEN * max_input_tokens))

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        for worker in self._idle_workers.take_all(len(self._workers)):
            worker.close_process()
            self._idle_workers.put(worker)  # for threads that still want to render, and are told of the end

    def _send_request(self, request: dict[str, Any]) -> WorkerAnswer:
        worker = self._idle_workers.take()
        try:
            answer, is_verdict = worker.send_request(request, MAX_RENDER_SECONDS, MAX_STALLED_SECONDS)
        finally:
            self._idle_workers.put(worker)
        if "failed" in answer:  # in the template's own words
            raise ChatTemplateFailed(shorten_reason(answer["failed"]))
        if "overloaded" in answer:
            raise Overloaded(f"the chat is not rendered: {answer['overloaded']}")
        if "refused" in answer:
            if not is_verdict:
                raise Overloaded(f"the chat is not rendered: {answer['refused']}")
            raise ChatTemplateFailed(f"this model's chat template was stopped: {answer['refused']}; send less")
        return answer
