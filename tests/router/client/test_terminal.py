"""Terminal chat: input, output and exit codes."""

import io
import json
import subprocess
import sys

import pytest

from router.client.chat import Answer, Chat, Failed, Order
from router.client.terminal import HELP, Session, Terminal


class Said(Chat):
    """Double of a chat that answers each question with the next script, letter by letter."""

    def __init__(self, *answers):
        super().__init__(Order("http://loom"))
        self.answers = list(answers)
        self.questions = []

    async def ask(self, question, show):
        self.questions.append((self.system, question))
        said = self.answers.pop(0) if self.answers else "weft"
        if isinstance(said, BaseException):
            raise said
        self.messages += [question, said]
        answer = Answer(0.0, clock=lambda: 0.5)
        for letter in said:
            show(letter)
            answer.add(letter)
        return answer


class Screen(io.StringIO):
    def isatty(self):
        return True


def run(*lines, answers=(), live=True, screen=Screen):
    """Run a session over `lines`, which may be exceptions to raise; return exit code, chat, output and remarks."""
    typed, chat, output, errors = list(lines), Said(*answers), screen(), screen()

    def read(prompt):
        output.write(prompt)
        line = typed.pop(0) if typed else EOFError()
        if isinstance(line, BaseException):
            raise line
        return line

    code = Session(chat, Terminal(read, output, errors, live=live)).run()
    return code, chat, output.getvalue(), errors.getvalue()


def test_answers_are_shown_with_their_figures():
    code, chat, shown, remarks = run("hi")
    assert (code, chat.questions) == (0, [("", "hi")])
    assert shown == "> weft\n> "
    assert remarks == f"\x1b[2m{HELP}\x1b[0m\n\x1b[2mfirst token 0.50 s · 4 tokens\x1b[0m\n"


def test_a_pipe_gets_answers_alone_and_no_colours():
    code, chat, shown, remarks = run("hi", "", "more", live=False, screen=io.StringIO)
    assert [question for _, question in chat.questions] == ["hi", "more"]
    assert (code, shown) == (0, "weft\nweft\n")
    assert remarks == "first token 0.50 s · 4 tokens\n" * 2


def test_exit_ends_it():
    assert run("/exit", "hi")[1].questions == []


def test_reset_forgets_the_chat():
    assert run("hi", "/reset")[1].messages == []
    assert run("hi")[1].messages == ["hi", "weft"]


def test_the_system_message_can_be_changed_and_left_out():
    _, chat, _, _ = run("/system You are a loom.", "hi", "/system", "hi")
    assert chat.questions == [("You are a loom.", "hi"), ("", "hi")]


def test_a_command_that_is_none_is_told_and_not_asked():
    code, chat, _, remarks = run("/rest")
    assert (code, chat.questions) == (0, [])
    assert "there is no /rest: /reset forgets" in remarks


def test_a_failure_is_one_line_and_a_person_may_go_on():
    code, chat, _, remarks = run("hi", "more", answers=[Failed("cannot reach http://loom")])
    assert (code, len(chat.questions)) == (0, 2)
    assert "weft: cannot reach http://loom" in remarks


def test_a_failure_ends_a_pipe():
    code, chat, shown, remarks = run("hi", "more", answers=[Failed("no way")], live=False, screen=io.StringIO)
    assert (code, len(chat.questions), shown, remarks) == (1, 1, "", "weft: no way\n")


def test_an_answer_that_ends_its_line_is_not_followed_by_an_empty_one():
    assert run("hi", answers=["weft\n"])[2] == "> weft\n> "


def test_an_interrupt_stops_an_answer_and_not_the_chat():
    code, chat, _, remarks = run("hi", "more", answers=[KeyboardInterrupt()])
    assert (code, len(chat.questions)) == (0, 2)
    assert "stopped" in remarks


def test_an_interrupt_of_a_line_that_is_typed_begins_a_new_one():
    _, chat, shown, _ = run(KeyboardInterrupt(), "hi")
    assert [question for _, question in chat.questions] == ["hi"]
    assert shown.startswith("> \n> ")


def test_an_interrupt_ends_a_pipe():
    for given in ({"answers": [KeyboardInterrupt()]}, {}):
        with pytest.raises(KeyboardInterrupt):
            run(*(["hi"] if given else [KeyboardInterrupt()]), live=False, **given)


def test_what_a_terminal_would_obey_is_not_shown():
    assert run("hi", answers=["a\x1b[2J\r\x07\x9b\tb\nü"])[2] == "> a[2J\tb\nü\n> "


@pytest.mark.slow
def test_a_server_that_is_not_there_is_one_line_and_an_exit_code():
    ended = subprocess.run([sys.executable, "-P", "-m", "router.client.terminal", json.dumps({"url": "nowhere"})],
                           input="hi\n", capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "weft: nowhere is no address of a server, such as http://127.0.0.1:3000\n"
