"""Terminal chat: input, output and exit codes."""

import io
import subprocess
import sys

import pytest

from launcher.client.chat_client import ChatConversation, ChatRequestFailed, ChatSettings, StreamedAnswer
from launcher.client.terminal_chat import HELP_TEXT, TerminalIO, TerminalSession


class ScriptedChat(ChatConversation):
    """Double of a chat that answers each question with the next script, letter by letter."""

    def __init__(self, *answers, model="org/loom"):
        super().__init__(ChatSettings("http://loom"))
        self.model = model
        self.answers = list(answers)
        self.questions = []

    async def find_model_name(self):
        if isinstance(self.model, ChatRequestFailed):
            raise self.model
        return self.model

    async def ask_question(self, question, show):
        self.questions.append((self.system_prompt, question))
        script = self.answers.pop(0) if self.answers else "weft"
        if isinstance(script, BaseException):
            raise script
        self.messages += [question, script]
        answer = StreamedAnswer(0.0, clock=lambda: 0.5)
        for letter in script:
            show(letter)
            answer.add_part(letter)
        return answer


class FakeTty(io.StringIO):
    def isatty(self):
        return True


def run_session(*input_lines, answers=(), is_interactive=True, make_stream=FakeTty, model="org/loom"):
    """Run a session over `input_lines`, which may be exceptions to raise; return exit code, chat, output and
    remarks."""
    remaining_lines, chat = list(input_lines), ScriptedChat(*answers, model=model)
    output, errors = make_stream(), make_stream()

    def read_line(prompt):
        output.write(prompt)
        line = remaining_lines.pop(0) if remaining_lines else EOFError()
        if isinstance(line, BaseException):
            raise line
        return line

    code = TerminalSession(chat, TerminalIO(read_line, output, errors, is_interactive=is_interactive)).run()
    return code, chat, output.getvalue(), errors.getvalue()


def test_answers_are_shown_with_their_speed():
    code, chat, shown, remarks = run_session("hi")
    assert (code, chat.questions) == (0, [("", "hi")])
    assert shown == "> weft\n> "
    assert remarks == f"\x1b[2morg/loom answers; {HELP_TEXT}\x1b[0m\n\x1b[2mfirst token 0.50 s · 4 tokens\x1b[0m\n"


def test_piped_input_prints_only_answers_without_colours():
    code, chat, shown, remarks = run_session("hi", "", "more", is_interactive=False, make_stream=io.StringIO)
    assert [question for _, question in chat.questions] == ["hi", "more"]
    assert (code, shown) == (0, "weft\nweft\n")
    assert remarks == "first token 0.50 s · 4 tokens\n" * 2


def test_exit_command_ends_the_session():
    assert run_session("/exit", "hi")[1].questions == []


def test_reset_command_clears_the_conversation():
    assert run_session("hi", "/reset")[1].messages == []
    assert run_session("hi")[1].messages == ["hi", "weft"]


def test_system_command_changes_and_removes_the_system_message():
    _, chat, _, _ = run_session("/system You are a loom.", "hi", "/system", "hi")
    assert chat.questions == [("You are a loom.", "hi"), ("", "hi")]


def test_help_command_shows_the_commands_again():
    assert run_session("/help")[3].count("/reset forgets the chat") == 2


def test_unreachable_server_is_reported_before_the_first_question():
    for is_interactive in (True, False):
        code, chat, shown, remarks = run_session("hi", is_interactive=is_interactive, make_stream=io.StringIO,
                                                 model=ChatRequestFailed("cannot reach http://loom"))
        assert (code, chat.questions, shown, remarks) == (1, [], "", "weft: cannot reach http://loom\n")


def test_model_name_cannot_control_the_terminal():
    assert "org/loom[2J answers" in run_session(model="org/loom\x1b[2J")[3]


def test_unknown_command_is_reported_and_not_sent():
    code, chat, _, remarks = run_session("/rest")
    assert (code, chat.questions) == (0, [])
    assert "there is no /rest: /reset forgets" in remarks


def test_failure_is_one_line_and_an_interactive_session_continues():
    code, chat, _, remarks = run_session("hi", "more", answers=[ChatRequestFailed("cannot reach http://loom")])
    assert (code, len(chat.questions)) == (0, 2)
    assert "weft: cannot reach http://loom" in remarks


def test_failure_ends_a_piped_session():
    code, chat, shown, remarks = run_session("hi", "more", answers=[ChatRequestFailed("no way")], is_interactive=False,
                                             make_stream=io.StringIO)
    assert (code, len(chat.questions), shown, remarks) == (1, 1, "", "weft: no way\n")


def test_answer_ending_with_a_newline_is_not_followed_by_an_empty_line():
    assert run_session("hi", answers=["weft\n"])[2] == "> weft\n> "


def test_interrupt_stops_the_answer_but_not_the_session():
    code, chat, _, remarks = run_session("hi", "more", answers=[KeyboardInterrupt()])
    assert (code, len(chat.questions)) == (0, 2)
    assert "stopped" in remarks


def test_interrupt_while_typing_starts_a_new_line():
    _, chat, shown, _ = run_session(KeyboardInterrupt(), "hi")
    assert [question for _, question in chat.questions] == ["hi"]
    assert shown.startswith("> \n> ")


def test_second_interrupt_in_a_row_ends_the_session():
    code, chat, shown, remarks = run_session("hi", KeyboardInterrupt(), "more", KeyboardInterrupt(),
                                             KeyboardInterrupt(), "never asked")
    assert (code, [question for _, question in chat.questions]) == (0, ["hi", "more"])
    assert remarks.count("Ctrl-C again ends the chat") == 2
    assert shown.endswith("> \n> \n")


def test_interrupt_ends_a_piped_session():
    for options in ({"answers": [KeyboardInterrupt()]}, {}):
        with pytest.raises(KeyboardInterrupt):
            run_session(*(["hi"] if options else [KeyboardInterrupt()]), is_interactive=False, **options)


def test_terminal_control_characters_are_removed():
    assert run_session("hi", answers=["a\x1b[2J\r\x07\x9b\tb\nü"])[2] == "> a[2J\tb\nü\n> "


@pytest.mark.slow
def test_invalid_server_address_prints_one_line_and_exits_with_1():
    ended = subprocess.run([sys.executable, "-P", "-m", "launcher.cli", "chat", "--url", "http://"],
                           input="hi\n", capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "weft: http:// is no address of a server, such as http://127.0.0.1:3000\n"


@pytest.mark.parametrize(("is_interactive", "no_color", "shown"), [
    (True, "", "a \x1b[0m\x1b[1mbold\x1b[0m \nword\n"), (True, "1", "a **bold** word\n"),
    (False, "", "a **bold** word\n")])
def test_markdown_is_shown_on_a_terminal_only(monkeypatch, is_interactive, no_color, shown):
    monkeypatch.setenv("COLUMNS", "8")
    monkeypatch.setenv("NO_COLOR", no_color)
    _, _, output, _ = run_session("hi", answers=["a **bold** word"], is_interactive=is_interactive)
    assert output.replace("> ", "") == shown


def test_answer_cannot_control_the_terminal_by_its_markdown():
    assert "\x1b[2J" not in run_session("hi", answers=["**a\x1b[2J**"])[2]
