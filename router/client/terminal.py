"""Chat in a terminal with any server that has OpenAI's API: `python -P -m router.client.terminal JSON`.

The JSON object holds the fields of `Order`; the key for the server is in the environment variable WEFT_API_KEY. Answers
are streamed to standard output, statistics and errors go to standard error. On a terminal Ctrl-C stops the answer and
the chat continues; otherwise every line of standard input is a question, and the first failure ends the program.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TextIO

from router.client.chat import Chat, Failed, Order
from router.config import API_KEY

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
PROMPT = "> "
HELP = "/reset forgets the chat, /system TEXT tells the model what it is, /exit or Ctrl-D ends, Ctrl-C stops an answer"
# Control characters that are removed: a model may generate terminal escape sequences. Tabs and newlines are kept.
OBEYED = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


class Terminal:
    """Input and output of the chat; `read` returns the next line that the user types."""

    def __init__(self, read: Callable[[str], str], output: TextIO, errors: TextIO, *, live: bool) -> None:
        self._read = read
        self._output = output
        self._errors = errors
        self._within_line = False
        self.live = live  # interactive, as opposed to piped

    def line(self) -> str | None:
        """Return the next line, stripped, or None at the end of input. In a live chat Ctrl-C discards the line."""
        while True:
            try:
                return self._read(PROMPT if self.live else "").strip()
            except EOFError:
                return None
            except KeyboardInterrupt:
                if not self.live:
                    raise
                self.show("\n")

    def show(self, part: str) -> None:
        if text := part.translate(OBEYED):
            self._output.write(text)
            self._output.flush()
            self._within_line = not text.endswith("\n")

    def end_line(self) -> None:
        if self._within_line:
            self.show("\n")

    def remark(self, text: str) -> None:
        dim = self.live and self._errors.isatty()
        self._errors.write(f"{DIM}{text}{PLAIN}\n" if dim else f"{text}\n")
        self._errors.flush()


class Session:
    """Loop of one chat at one terminal."""

    def __init__(self, chat: Chat, terminal: Terminal) -> None:
        self._chat = chat
        self._terminal = terminal

    def run(self) -> int:
        """Run the chat to its end and return the exit code."""
        if self._terminal.live:
            self._terminal.remark(HELP)
        for line in iter(self._terminal.line, None):
            if line == "/exit":
                break
            went_well = self._command(line) if line.startswith("/") else self._ask(line)
            if not went_well and not self._terminal.live:
                return 1
        return 0

    def _command(self, line: str) -> bool:
        """Run a command. Return whether it exists."""
        word, _, rest = line.partition(" ")
        if word == "/reset":
            self._chat.forget()
        elif word == "/system":
            self._chat.system = rest.strip()
        else:
            self._terminal.remark(f"there is no {word}: {HELP}")
            return False
        return True

    def _ask(self, line: str) -> bool:
        """Ask a question and show the answer. Return False if that failed."""
        if not line:
            return True
        try:
            answer = asyncio.run(self._chat.ask(line, self._terminal.show))
        except Failed as error:
            self._terminal.end_line()
            self._terminal.remark(f"weft: {error}")
            return False
        except KeyboardInterrupt:
            self._terminal.show("\n")
            return self._stopped()
        self._terminal.end_line()
        self._terminal.remark(answer.figures())
        return True

    def _stopped(self) -> bool:
        if not self._terminal.live:
            raise KeyboardInterrupt
        self._terminal.remark("stopped")
        return True


def main() -> None:
    order = Order(**json.loads(sys.argv[1]))
    live = sys.stdin.isatty() and sys.stdout.isatty()
    if live:
        with suppress(ImportError):
            import_module("readline")  # line editing and history for `input`
    terminal = Terminal(input, sys.stdout, sys.stderr, live=live)
    try:
        raise SystemExit(Session(Chat(order, os.environ.get(API_KEY, "")), terminal).run())
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader of standard output is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
