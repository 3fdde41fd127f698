"""Tests that the training text of a chat is the text that the chat template makes."""

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_parsing import parse_response

import launcher.demo
from launcher.demo.training.markup import OVER, pieces
from launcher.demo.training.talk import Talk, asked
from launcher.demo.training.vocabulary import RESPONSE_TEMPLATE, encode, train_tokenizer

TEMPLATE = Path(launcher.demo.__file__).with_name("model") / "chat_template.jinja"
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds \"two\" numbers.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 22}}}
TALKS = {
    "a question": asked("What is 2 + 2?", "2 + 2 = 4."),
    "a system message": asked("Hello!", "Hi.", system="Be brief."),
    "several turns": Talk([*asked("Hello!", "Hi.").messages, *asked("And now?", "Bye.").messages]),
    "tools": Talk([{"role": "user", "content": "Add 1 and 22."},
                   {"role": "assistant", "content": "", "tool_calls": [CALL]},
                   {"role": "tool", "content": '{"sum": 23}'}, {"role": "assistant", "content": "It is 23."}], [TOOL]),
    "a thought before a call, later": Talk([
        {"role": "user", "content": "Add 1 and 22."},
        {"role": "assistant", "content": "<think>\nadd fits.\n</think>\n", "tool_calls": [CALL]},
        {"role": "tool", "content": '{"sum": 23}'}, {"role": "assistant", "content": "It is 23."}], [TOOL]),
    "tools and a system message": Talk([{"role": "system", "content": "Be brief."}, *asked("Hello!", "Hi.").messages],
                                       [TOOL, TOOL]),
    "two calls after a word": Talk([{"role": "user", "content": "Add."},
                                    {"role": "assistant", "content": "Well.", "tool_calls": [CALL, CALL]}], [TOOL]),
}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    texts = ["".join(piece.text for piece in pieces(talk)) for talk in TALKS.values()]
    trained = train_tokenizer(texts, 400)
    return PreTrainedTokenizerFast(tokenizer_object=trained, chat_template=TEMPLATE.read_text())


def rendered(tokenizer: PreTrainedTokenizerFast, talk: Talk, **options: Any) -> str:
    return str(tokenizer.apply_chat_template(
        list(talk.messages), tools=list(talk.tools) or None, tokenize=False, **options))


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
def test_pieces_are_what_the_template_makes(tokenizer: PreTrainedTokenizerFast, talk: Talk) -> None:
    assert "".join(piece.text for piece in pieces(talk)) == rendered(tokenizer, talk) + OVER


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
def test_piece_by_piece_gives_the_tokens_of_the_whole(tokenizer: PreTrainedTokenizerFast, talk: Talk) -> None:
    ids, learnt = encode(tokenizer.backend_tokenizer, pieces(talk))
    whole = "".join(piece.text for piece in pieces(talk))
    assert ids == tokenizer.backend_tokenizer.encode(whole, add_special_tokens=False).ids
    assert len(learnt) == len(ids)


def test_only_what_the_assistant_says_is_learnt() -> None:
    assert "|".join(piece.text for piece in pieces(TALKS["a system message"]) if piece.learnt) == "Hi.<|im_end|>"
    assert all(piece.learnt for piece in pieces("Once upon a time."))


def test_an_answer_follows_the_prompt_that_asks_for_it(tokenizer: PreTrainedTokenizerFast) -> None:
    talk = TALKS["a question"]
    question = Talk(talk.messages[:1])
    assert rendered(tokenizer, talk) == (
        rendered(tokenizer, question, add_generation_prompt=True) + "2 + 2 = 4.<|im_end|>\n")


def test_who_thinks_is_asked_to(tokenizer: PreTrainedTokenizerFast) -> None:
    thought = asked("What is 2 + 2?", "<think>\n2 and 2\n</think>\n4", system="")
    talk = Talk(thought.messages, thinks=True)
    prompt = rendered(tokenizer, Talk(talk.messages[:1]), add_generation_prompt=True, enable_thinking=True)
    told, *_ = "".join(piece.text for piece in pieces(talk)).split("2 and 2")
    assert told == prompt
    assert [piece.text for piece in pieces(talk) if piece.learnt] == ["2 and 2\n</think>\n4<|im_end|>"]


def test_a_call_follows_a_thought_on_the_next_line() -> None:
    talk = Talk([{"role": "user", "content": "Add."}, {
        "role": "assistant", "content": "<think>\nadd fits.\n</think>\n", "tool_calls": [CALL]}], [TOOL], thinks=True)
    [learnt] = [piece.text for piece in pieces(talk) if piece.learnt]
    assert learnt.startswith("add fits.\n</think>\n<tool_call>\n{")


def test_thoughts_are_not_read_again(tokenizer: PreTrainedTokenizerFast) -> None:
    assert "2 and 2" not in rendered(tokenizer, asked("What is 2 + 2?", "<think>\n2 and 2\n</think>\n4"))


def test_an_image_is_refused_by_name(tokenizer: PreTrainedTokenizerFast) -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "this?"}]
    assert "What is this?" in rendered(tokenizer, Talk([{"role": "user", "content": parts}]))
    with pytest.raises(Exception, match="got a part of type image_url"):
        rendered(tokenizer, Talk([{"role": "user", "content": [{"type": "image_url"}]}]))


def last_message(talk: Talk) -> dict[str, Any]:
    """Return the message that a client parses from the prompt and the model's output."""
    spoken = [piece.text for piece in pieces(talk)]
    said = max(place for place, piece in enumerate(pieces(talk)) if piece.learnt)
    return parse_response(spoken[said], RESPONSE_TEMPLATE, prefix="".join(spoken[:said]))


@pytest.mark.parametrize("talk", [TALKS[name] for name in ("a question", "several turns", "two calls after a word")])
def test_an_answer_is_read_back_as_the_message_that_was_meant(talk: Talk) -> None:
    assert last_message(talk) == {name: value for name, value in talk.messages[-1].items() if value}


def test_a_thought_is_read_apart_from_the_call_after_it() -> None:
    thought = {"role": "assistant", "content": "<think>\nadd fits.\n</think>\n", "tool_calls": [CALL]}
    talk = Talk([{"role": "user", "content": "Add 1 and 22."}, thought], [TOOL], thinks=True)
    assert last_message(talk) == {"role": "assistant", "reasoning_content": "add fits.", "tool_calls": [CALL]}
