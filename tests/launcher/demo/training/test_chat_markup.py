"""Tests that the training text of a chat is the text that the chat template makes."""

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_parsing import parse_response

import launcher.demo
from launcher.demo.training.chat_markup import END_OF_TEXT, split_into_pieces
from launcher.demo.training.conversation import Conversation, make_one_turn_conversation
from launcher.demo.training.tokenizer import RESPONSE_TEMPLATE, encode_document, train_tokenizer

CHAT_TEMPLATE_PATH = Path(launcher.demo.__file__).with_name("model") / "chat_template.jinja"
ADD_TOOL = {"type": "function", "function": {"name": "add", "description": "Adds \"two\" numbers.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}}
ADD_CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 22}}}
TALKS = {
    "a question": make_one_turn_conversation("What is 2 + 2?", "2 + 2 = 4."),
    "a system message": make_one_turn_conversation("Hello!", "Hi.", system="Be brief."),
    "several turns": Conversation([*make_one_turn_conversation("Hello!", "Hi.").messages,
                                   *make_one_turn_conversation("And now?", "Bye.").messages]),
    "tools": Conversation([{"role": "user", "content": "Add 1 and 22."},
                           {"role": "assistant", "content": "", "tool_calls": [ADD_CALL]},
                           {"role": "tool", "content": '{"sum": 23}'}, {"role": "assistant", "content": "It is 23."}],
                          [ADD_TOOL]),
    "a thought before a call, later": Conversation([
        {"role": "user", "content": "Add 1 and 22."},
        {"role": "assistant", "content": "<think>\nadd fits.\n</think>\n", "tool_calls": [ADD_CALL]},
        {"role": "tool", "content": '{"sum": 23}'}, {"role": "assistant", "content": "It is 23."}], [ADD_TOOL]),
    "tools and a system message": Conversation([{"role": "system", "content": "Be brief."},
                                                *make_one_turn_conversation("Hello!", "Hi.").messages],
                                               [ADD_TOOL, ADD_TOOL]),
    "two calls after a word": Conversation([{"role": "user", "content": "Add."},
                                            {"role": "assistant", "content": "Well.",
                                             "tool_calls": [ADD_CALL, ADD_CALL]}],
                                           [ADD_TOOL]),
}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    texts = ["".join(piece.text for piece in split_into_pieces(talk)) for talk in TALKS.values()]
    trained = train_tokenizer(texts, 400)
    return PreTrainedTokenizerFast(tokenizer_object=trained, chat_template=CHAT_TEMPLATE_PATH.read_text())


def render_chat(tokenizer: PreTrainedTokenizerFast, talk: Conversation, **options: Any) -> str:
    return str(tokenizer.apply_chat_template(
        list(talk.messages), tools=list(talk.tools) or None, tokenize=False, **options))


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
def test_pieces_equal_the_rendered_template(tokenizer: PreTrainedTokenizerFast, talk: Conversation) -> None:
    assert "".join(piece.text for piece in split_into_pieces(talk)) == render_chat(tokenizer, talk) + END_OF_TEXT


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
def test_encoding_by_pieces_gives_the_same_tokens(tokenizer: PreTrainedTokenizerFast, talk: Conversation) -> None:
    ids, loss_mask = encode_document(tokenizer.backend_tokenizer, split_into_pieces(talk))
    text = "".join(piece.text for piece in split_into_pieces(talk))
    assert ids == tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    assert len(loss_mask) == len(ids)


def test_only_assistant_text_is_learnt() -> None:
    assert "|".join(piece.text for piece in split_into_pieces(TALKS["a system message"])
                    if piece.is_learnt) == "Hi.<|im_end|>"
    assert all(piece.is_learnt for piece in split_into_pieces("Once upon a time."))


def test_answer_follows_the_generation_prompt(tokenizer: PreTrainedTokenizerFast) -> None:
    talk = TALKS["a question"]
    question = Conversation(talk.messages[:1])
    assert render_chat(tokenizer, talk) == (
        render_chat(tokenizer, question, add_generation_prompt=True) + "2 + 2 = 4.<|im_end|>\n")


def test_thinking_talk_starts_with_the_thinking_prompt(tokenizer: PreTrainedTokenizerFast) -> None:
    plain_talk = make_one_turn_conversation("What is 2 + 2?", "<think>\n2 and 2\n</think>\n4", system="")
    talk = Conversation(plain_talk.messages, has_reasoning=True)
    prompt = render_chat(tokenizer, Conversation(talk.messages[:1]), add_generation_prompt=True, enable_thinking=True)
    prompt_text, *_ = "".join(piece.text for piece in split_into_pieces(talk)).split("2 and 2")
    assert prompt_text == prompt
    assert [piece.text for piece in split_into_pieces(talk) if piece.is_learnt] == ["2 and 2\n</think>\n4<|im_end|>"]


def test_call_after_a_thought_starts_on_the_next_line() -> None:
    talk = Conversation([{"role": "user", "content": "Add."},
                         {"role": "assistant", "content": "<think>\nadd fits.\n</think>\n", "tool_calls": [ADD_CALL]}],
                        [ADD_TOOL], has_reasoning=True)
    [learnt_text] = [piece.text for piece in split_into_pieces(talk) if piece.is_learnt]
    assert learnt_text.startswith("add fits.\n</think>\n<tool_call>\n{")


def test_earlier_thoughts_are_not_rendered(tokenizer: PreTrainedTokenizerFast) -> None:
    assert "2 and 2" not in render_chat(tokenizer,
                                        make_one_turn_conversation("What is 2 + 2?", "<think>\n2 and 2\n</think>\n4"))


def test_image_part_is_rejected_by_name(tokenizer: PreTrainedTokenizerFast) -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "this?"}]
    assert "What is this?" in render_chat(tokenizer, Conversation([{"role": "user", "content": parts}]))
    with pytest.raises(Exception, match="got a part of type image_url"):
        render_chat(tokenizer, Conversation([{"role": "user", "content": [{"type": "image_url"}]}]))


def parse_last_message(talk: Conversation) -> dict[str, Any]:
    """Return the message that a client parses from the prompt and the model's output."""
    texts = [piece.text for piece in split_into_pieces(talk)]
    answer_index = max(index for index, piece in enumerate(split_into_pieces(talk)) if piece.is_learnt)
    return parse_response(texts[answer_index], RESPONSE_TEMPLATE, prefix="".join(texts[:answer_index]))


@pytest.mark.parametrize("talk", [TALKS[name] for name in ("a question", "several turns", "two calls after a word")])
def test_answer_is_parsed_back_to_its_message(talk: Conversation) -> None:
    assert parse_last_message(talk) == {name: value for name, value in talk.messages[-1].items() if value}


def test_thought_and_call_are_parsed_separately() -> None:
    message = {"role": "assistant", "content": "<think>\nadd fits.\n</think>\n", "tool_calls": [ADD_CALL]}
    talk = Conversation([{"role": "user", "content": "Add 1 and 22."}, message], [ADD_TOOL], has_reasoning=True)
    assert parse_last_message(talk) == {"role": "assistant", "reasoning_content": "add fits.", "tool_calls": [ADD_CALL]}
