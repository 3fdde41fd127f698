"""Reading of the files in a model's folder, and errors for invalid ones."""

import json
import re

import pytest

from router.text.chat_template import Conversation
from router.text.model_files import read_chat_template, read_tokenizer
from router.text.response_parser import MISTRAL
from router.text.tokenizer import byte_tokenizer

PLAIN = byte_tokenizer()._tokenizer


@pytest.fixture
def folder(tmp_path):
    """Function that writes JSON files by name into a model's folder and returns the folder."""
    def write(**files):
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path
    write(tokenizer=PLAIN.to_str())
    return write


def test_text_becomes_the_tokens_of_the_file(folder):
    tokenizer = read_tokenizer(folder())
    assert tokenizer.encode("warp<|end|>") == [*b"warp", 256]
    assert tokenizer.special == {256}
    assert tokenizer.origin == str(folder() / "tokenizer.json")


def test_a_prompt_is_neither_cut_nor_filled_up(folder):
    trained = byte_tokenizer()._tokenizer
    trained.enable_truncation(3)
    trained.enable_padding(length=8)
    tokenizer = read_tokenizer(folder(tokenizer=trained.to_str()))
    assert tokenizer.encode("weft") == [*b"weft"]
    assert tokenizer.encode("a") == [*b"a"]


@pytest.mark.parametrize(("files", "tokens"), [
    ({"generation_config": {"eos_token_id": 2}}, {2}),
    ({"generation_config": {"eos_token_id": [2, 3]}}, {2, 3}),
    ({"generation_config": {"eos_token_id": 2}, "config": {"eos_token_id": 4}}, {2}),
    ({"generation_config": {}, "config": {"eos_token_id": 0}}, {0}),
    ({"generation_config": {"eos_token_id": None}, "config": {"eos_token_id": [4]}}, {4}),
    ({"config": {"eos_token_id": 4}, "tokenizer_config": {"eos_token": "<|end|>"}}, {4}),
    ({"config": {}, "tokenizer_config": {"eos_token": "<|end|>"}}, {256}),
    ({"tokenizer_config": {"eos_token": {"content": "<|end|>", "lstrip": False}}}, {256}),
    ({"tokenizer_config": {"eos_token": None}}, set()),
    ({}, set()),
])
def test_end_tokens_are_those_of_the_first_file_that_names_any(folder, files, tokens):
    assert read_tokenizer(folder(**files)).end_tokens == tokens


@pytest.mark.parametrize(("files", "message"), [
    ({"tokenizer": "{}"}, "/tokenizer.json holds no tokenizer that can be read: "),
    ({"generation_config": "{"}, "/generation_config.json is no JSON: "),
    ({"generation_config": "[" * 100_000}, "/generation_config.json is no JSON: "),
    ({"generation_config": [2]}, "/generation_config.json must hold a JSON object"),
    ({"generation_config": {"eos_token_id": "2"}}, '/generation_config.json must be .*number.*, got "2"'),
    ({"generation_config": {"eos_token_id": [True]}}, r"/generation_config.json must be .*, got \[true\]"),
    ({"config": {"eos_token_id": -1}}, "/config.json must be .*, got -1"),
    ({"tokenizer_config": {"eos_token": "</s>"}}, '/tokenizer_config.json must be a token of .*, got "</s>"'),
    ({"tokenizer_config": {"eos_token": 2}}, "/tokenizer_config.json must be a token of .*, got 2"),
])
def test_what_makes_no_sense_is_told_with_the_file_that_holds_it(folder, files, message):
    path = folder(**files)
    with pytest.raises(ValueError, match=re.escape(str(path)) + message):
        read_tokenizer(path)


def test_without_a_fast_tokenizer_the_way_to_one_is_told(tmp_path):
    with pytest.raises(ValueError, match=f"there is no {tmp_path}/tokenizer.json: .* fast tokenizer; .*save_pretra"):
        read_tokenizer(tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# The chat template


def chat(folder):
    return read_chat_template(folder).render(Conversation(()))


@pytest.mark.parametrize(("files", "text"), [
    ({"chat_template": {"chat_template": "b"}}, "b"),
    ({"tokenizer_config": {"chat_template": "c"}}, "c"),
    ({"tokenizer_config": {"chat_template": [
        {"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}}, "d"),
    ({"chat_template": {"chat_template": "b"}, "tokenizer_config": {"chat_template": "c"}}, "b"),
    ({"tokenizer_config": {"chat_template": "{{ bos_token }}{{ eos_token }}",
                           "bos_token": {"content": "<s>"}, "eos_token": "</s>"}}, "<s></s>"),
    ({"tokenizer_config": {"chat_template": "{{ bos_token }}{{ pad_token is defined }}", "pad_token": None},
      "special_tokens_map": {"bos_token": "<s>"}}, "<s>False"),
])
def test_a_chat_template_stands_in_one_of_several_files(folder, files, text):
    assert chat(folder(**files)) == text


def test_the_file_of_the_template_alone_goes_first(folder):
    path = folder(chat_template={"chat_template": "b"}, tokenizer_config={"chat_template": "c"})
    (path / "chat_template.jinja").write_text("a")
    assert chat(path) == "a"


@pytest.mark.parametrize("files", [
    {}, {"tokenizer_config": {"chat_template": None}},
    {"tokenizer_config": {"chat_template": [{"name": "tool_use", "template": "t"}]}}])
def test_a_model_may_have_no_chat_template(folder, files):
    assert read_chat_template(folder(**files)) is None


@pytest.mark.parametrize("given", [5, {"default": "d"}, [{"name": "default", "template": 5}]])
def test_a_chat_template_that_is_no_text_is_told(folder, given):
    with pytest.raises(ValueError, match=r"`chat_template` in .*/tokenizer_config.json must be a text"):
        read_chat_template(folder(tokenizer_config={"chat_template": given}))


def test_a_file_of_a_template_that_is_no_text_is_told(folder):
    path = folder()
    (path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"chat_template\.jinja is no text"):
        read_chat_template(path)


def test_a_file_may_be_read_instead_of_the_model_s_own(folder, tmp_path):
    path = folder(tokenizer_config={"chat_template": "c", "bos_token": "<s>", "eos_token": "</s>"})
    (path / "chat_template.jinja").write_text("a")
    (instead := tmp_path / "instead.json").write_text(json.dumps(
        {"chat_template": "{{ bos_token }}{{ eos_token }}", "eos_token": "<end>"}))
    assert read_chat_template(path, str(instead)).render(Conversation(())) == "<s><end>"


def test_a_file_to_be_read_instead_must_have_a_template(folder, tmp_path):
    (instead := tmp_path / "instead.json").write_text("{}")
    with pytest.raises(ValueError, match=r"instead.json \(--tokenizer-config-path\) has no `chat_template`"):
        read_chat_template(folder(chat_template={"chat_template": "b"}), str(instead))


# ---------------------------------------------------------------------------------------------------------------------
# The response format


def test_the_folder_may_tell_how_answers_are_read_back(folder):
    shape = {"start_anchor": "A:", "fields": {"content": {}}}
    config = {"chat_template": "[TOOL_CALLS]", "response_template": shape}
    assert read_chat_template(folder(tokenizer_config=config)).shape == shape


def test_else_the_words_of_the_template_tell_it(folder):
    assert read_chat_template(folder(tokenizer_config={"chat_template": "[TOOL_CALLS]"})).shape is MISTRAL
    assert read_chat_template(folder(tokenizer_config={"chat_template": "plain"})).shape is None


@pytest.mark.parametrize("given", [5, {}, {"start_anchor": 5}])
def test_what_cannot_tell_it_is_refused(folder, given):
    with pytest.raises(ValueError, match=r"`response_template` in .* must be an object with a `start_anchor`"):
        read_chat_template(folder(tokenizer_config={"chat_template": "x", "response_template": given}))
