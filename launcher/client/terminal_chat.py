"""Chat in a terminal with any server that has OpenAI's API.

Answers are streamed to standard output, statistics and errors go to standard error. On a terminal Ctrl-C stops the
answer and the chat continues; otherwise every line of standard input is a question, and the first failure ends the
program.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from shutil import get_terminal_size
from typing import TextIO

from launcher.client.chat_client import ChatConversation, ChatRequestFailed, ChatSettings
from launcher.client.terminal_markdown import PLAIN, MarkdownRenderer

ANSI_DIM, ANSI_RESET = "\x1b[2m", "\x1b[0m"
INPUT_PROMPT = "> "
HELP_TEXT = (
    "/reset forgets the chat, /system TEXT sets the system prompt, /help shows this line, Ctrl-C stops an answer; "
    "/exit, Ctrl-D or Ctrl-C twice ends")
EXIT_HINT = "Ctrl-C again ends the chat, as /exit and Ctrl-D do"
# Control characters that are removed: a model may generate terminal escape sequences. Tabs and newlines are kept.
REMOVED_CONTROL_CHARACTERS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


class TerminalIO:
    """Input and output of the chat; `read_line` returns the next line that the user types."""

    def __init__(self, read_line: Callable[[str], str], output: TextIO, errors: TextIO, *,
                 is_interactive: bool) -> None:
        self._read_line = read_line
        self._output = output
        self._errors = errors
        self._is_within_line = False
        self._markdown: MarkdownRenderer | None = None  # of the answer that is being written
        self.shows_markdown = is_interactive and not os.environ.get("NO_COLOR")
        self.is_interactive = is_interactive  # interactive, as opposed to piped

    def next_line(self) -> str | None:
        """Return the next line, stripped, or None at the end of input. In a live chat Ctrl-C discards the line, and a
        second one in a row ends the input."""
        for is_first_try in (True, False):
            try:
                return self._read_line(INPUT_PROMPT if self.is_interactive else "").strip()
            except EOFError:
                return None
            except KeyboardInterrupt:
                if not self.is_interactive:
                    raise
                self.write_text("\n")
                if is_first_try:
                    self.write_remark(EXIT_HINT)
        return None

    def begin_answer(self) -> None:
        """Let the next parts be those of one answer, of which a terminal shows the Markdown."""
        self._markdown = MarkdownRenderer(get_terminal_size().columns) if self.shows_markdown else None

    def write_text(self, part: str) -> None:
        text = part.translate(REMOVED_CONTROL_CHARACTERS)
        self._write(self._markdown.feed(text) if self._markdown else text)

    def end_answer(self) -> None:
        """End the answer, and its line."""
        if self._markdown:
            rest, self._markdown = self._markdown.finish(), None
            self._write(rest)
        if self._is_within_line:
            self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            self._output.write(text)
            self._output.flush()
            self._is_within_line = not text.removesuffix(PLAIN).endswith("\n")

    def write_remark(self, text: str) -> None:
        text = text.translate(REMOVED_CONTROL_CHARACTERS)  # names and errors come from the server
        dim = self.is_interactive and self._errors.isatty()
        self._errors.write(f"{ANSI_DIM}{text}{ANSI_RESET}\n" if dim else f"{text}\n")
        self._errors.flush()


class TerminalSession:
    """Loop of one chat at one terminal."""

    def __init__(self, chat: ChatConversation, terminal: TerminalIO) -> None:
        self._chat = chat
        self._terminal = terminal

    def run(self) -> int:
        """Run the chat to its end and return the exit code."""
        try:
            model = asyncio.run(self._chat.find_model_name())
        except ChatRequestFailed as error:  # before anybody has typed a question
            self._terminal.write_remark(f"weft: {error}")
            return 1
        if self._terminal.is_interactive:
            self._terminal.write_remark(f"{model or 'a model'} answers; {HELP_TEXT}")
        for line in iter(self._terminal.next_line, None):
            if line == "/exit":
                break
            succeeded = self._run_command(line) if line.startswith("/") else self._ask_question(line)
            if not succeeded and not self._terminal.is_interactive:
                return 1
        return 0

    def _run_command(self, line: str) -> bool:
        """Run a command. Return whether it exists."""
        command, _, argument = line.partition(" ")
        if command == "/reset":
            self._chat.clear_messages()
        elif command == "/help":
            self._terminal.write_remark(HELP_TEXT)
        elif command == "/system":
            self._chat.system_prompt = argument.strip()
        else:
            self._terminal.write_remark(f"there is no {command}: {HELP_TEXT}")
            return False
        return True

    def _ask_question(self, line: str) -> bool:
        """Ask a question and show the answer. Return False if that failed."""
        if not line:
            return True
        self._terminal.begin_answer()
        try:
            answer = asyncio.run(self._chat.ask_question(line, self._terminal.write_text))
        except ChatRequestFailed as error:
            self._terminal.end_answer()
            self._terminal.write_remark(f"weft: {error}")
            return False
        except KeyboardInterrupt:
            self._terminal.end_answer()
            self._terminal.write_text("\n")
            return self._on_answer_stopped()
        self._terminal.end_answer()
        self._terminal.write_remark(answer.format_speed())
        return True

    def _on_answer_stopped(self) -> bool:
        if not self._terminal.is_interactive:
            raise KeyboardInterrupt
        self._terminal.write_remark("stopped")
        return True


def run_chat(settings: ChatSettings, api_key: str) -> int:
    """Run a chat on the standard streams and return the exit code."""
    is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
    if is_interactive:
        with suppress(ImportError):
            import_module("readline")  # line editing and history for `input`
    terminal = TerminalIO(input, sys.stdout, sys.stderr, is_interactive=is_interactive)
    try:
        return TerminalSession(ChatConversation(settings, api_key), terminal).run()
    except BrokenPipeError:  # the reader of standard output is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
