"""Reading of the files in a model's folder, and errors for invalid ones."""

import json
import re

import pytest

from router.text.chat_template import Conversation
from router.text.model_files import load_chat_template, load_tokenizer
from router.text.output_formats import MISTRAL_FORMAT
from router.text.tokenizer import create_byte_tokenizer

BYTE_TOKENIZER = create_byte_tokenizer()._tokenizer


@pytest.fixture
def write_model_folder(tmp_path):
    """Function that writes JSON files by name into a model's folder and returns the folder."""
    def write(**files):
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path
    write(tokenizer=BYTE_TOKENIZER.to_str())
    return write


def test_text_is_encoded_with_the_tokenizer_file(write_model_folder):
    tokenizer = load_tokenizer(write_model_folder())
    assert tokenizer.tokenize("warp<|end|>").ids == [*b"warp", 256]
    assert tokenizer.special_tokens == {256}
    assert tokenizer.path_or_content == str(write_model_folder() / "tokenizer.json")


def test_truncation_and_padding_of_the_tokenizer_file_are_ignored(write_model_folder):
    trained = create_byte_tokenizer()._tokenizer
    trained.enable_truncation(3)
    trained.enable_padding(length=8)
    tokenizer = load_tokenizer(write_model_folder(tokenizer=trained.to_str()))
    assert tokenizer.tokenize("weft").ids == [*b"weft"]
    assert tokenizer.tokenize("a").ids == [*b"a"]


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
def test_end_tokens_come_from_the_first_file_that_names_any(write_model_folder, files, tokens):
    assert load_tokenizer(write_model_folder(**files)).end_tokens == tokens


def test_configuration_has_the_texts_of_special_tokens(write_model_folder):
    folder = write_model_folder(tokenizer_config={"eos_token": {"content": "<|end|>"}, "model_max_length": 9},
                                special_tokens_map={"pad_token": {"content": "<pad>"}, "eos_token": "old"})
    assert load_tokenizer(folder).config == {"eos_token": "<|end|>", "model_max_length": 9, "pad_token": "<pad>"}
    assert create_byte_tokenizer().config == {}


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
def test_invalid_file_is_named_in_the_error(write_model_folder, files, message):
    path = write_model_folder(**files)
    with pytest.raises(ValueError, match=re.escape(str(path)) + message):
        load_tokenizer(path)


def test_missing_fast_tokenizer_error_explains_how_to_make_one(tmp_path):
    with pytest.raises(ValueError, match=f"there is no {tmp_path}/tokenizer.json: .* fast tokenizer; .*save_pretra"):
        load_tokenizer(tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# The chat template


def render_empty_chat(folder):
    return load_chat_template(folder).render(Conversation(()))


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
def test_chat_template_is_read_from_one_of_several_files(write_model_folder, files, text):
    assert render_empty_chat(write_model_folder(**files)) == text


def test_jinja_file_takes_precedence(write_model_folder):
    path = write_model_folder(chat_template={"chat_template": "b"}, tokenizer_config={"chat_template": "c"})
    (path / "chat_template.jinja").write_text("a")
    assert render_empty_chat(path) == "a"


@pytest.mark.parametrize("files", [
    {}, {"tokenizer_config": {"chat_template": None}},
    {"tokenizer_config": {"chat_template": [{"name": "tool_use", "template": "t"}]}}])
def test_model_may_have_no_chat_template(write_model_folder, files):
    assert load_chat_template(write_model_folder(**files)) is None


@pytest.mark.parametrize("template", [5, {"default": "d"}, [{"name": "default", "template": 5}]])
def test_chat_template_that_is_not_text_is_rejected(write_model_folder, template):
    with pytest.raises(ValueError, match=r"`chat_template` in .*/tokenizer_config.json must be a text"):
        load_chat_template(write_model_folder(tokenizer_config={"chat_template": template}))


def test_undecodable_jinja_file_is_rejected(write_model_folder):
    path = write_model_folder()
    (path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"chat_template\.jinja is no text"):
        load_chat_template(path)


def test_configured_file_replaces_the_chat_template_of_the_model(write_model_folder, tmp_path):
    path = write_model_folder(tokenizer_config={"chat_template": "c", "bos_token": "<s>", "eos_token": "</s>"})
    (path / "chat_template.jinja").write_text("a")
    (instead := tmp_path / "instead.json").write_text(json.dumps(
        {"chat_template": "{{ bos_token }}{{ eos_token }}", "eos_token": "<end>"}))
    assert load_chat_template(path, str(instead)).render(Conversation(())) == "<s><end>"


def test_configured_file_may_be_the_template_itself(write_model_folder, tmp_path):
    path = write_model_folder(tokenizer_config={"chat_template": "old", "bos_token": "<s>"})
    (tmp_path / "new.jinja").write_text("{{ bos_token }}new")
    assert load_chat_template(path, str(tmp_path / "new.jinja")).render(Conversation(())) == "<s>new"


@pytest.mark.parametrize("name", ["empty.jinja", "missing.jinja"])
def test_configured_template_that_is_empty_is_rejected(write_model_folder, tmp_path, name):
    (tmp_path / "empty.jinja").write_text("")
    with pytest.raises(ValueError, match=r"jinja \(--tokenizer-config-path\) has no `chat_template`"):
        load_chat_template(write_model_folder(tokenizer_config={"chat_template": "c"}), str(tmp_path / name))


def test_configured_file_without_a_template_is_rejected(write_model_folder, tmp_path):
    (instead := tmp_path / "instead.json").write_text("{}")
    with pytest.raises(ValueError, match=r"instead.json \(--tokenizer-config-path\) has no `chat_template`"):
        load_chat_template(write_model_folder(chat_template={"chat_template": "b"}), str(instead))


# ---------------------------------------------------------------------------------------------------------------------
# The response format


def test_response_format_is_read_from_the_model_folder(write_model_folder):
    shape = {"start_anchor": "A:", "fields": {"content": {}}}
    config = {"chat_template": "[TOOL_CALLS]", "response_template": shape}
    assert load_chat_template(write_model_folder(tokenizer_config=config)).output_format == shape


def test_response_format_is_recognized_from_the_chat_template(write_model_folder):
    assert load_chat_template(
        write_model_folder(tokenizer_config={"chat_template": "[TOOL_CALLS]"})).output_format is MISTRAL_FORMAT
    assert load_chat_template(write_model_folder(tokenizer_config={"chat_template": "plain"})).output_format is None


@pytest.mark.parametrize("template", [5, {}, {"start_anchor": 5}])
def test_invalid_response_template_is_rejected(write_model_folder, template):
    with pytest.raises(ValueError, match=r"`response_template` in .* must be an object with a `start_anchor`"):
        load_chat_template(write_model_folder(tokenizer_config={"chat_template": "x", "response_template": template}))
