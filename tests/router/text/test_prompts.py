"""Encoding of prompts: limits on tokens, threads and block hashes."""

import asyncio
import threading
from contextlib import closing
from dataclasses import replace

import pytest

from router.block_hash import block_hashes
from router.config import RouterConfig
from router.errors import CannotStartNow, InvalidRequest, Overloaded, TemplateFailed
from router.request import Wish
from router.scheduler.plan import ModelFacts
from router.text.chat_template import ChatTemplate, Conversation, plain_template
from router.text.prompts import SHORT_PROMPT, TGI_NAMES, Limits, Prompt, Prompts, Text
from router.text.tokenizer import byte_tokenizer

FACTS = ModelFacts(model="m", device="cpu", dtype="float32", vocabulary_size=512, max_positions=2048, block_size=16,
                   num_blocks=100)
TOKENIZER = byte_tokenizer()


def text(prompt, truncate=None, max_new_tokens=None, namespace=b""):
    return Text(prompt, truncate, max_new_tokens, namespace)


def made(*args, facts=FACTS, tokenizer=TOKENIZER, template=None, **given):
    with closing(Prompts(RouterConfig(), facts, tokenizer, template)) as prompts:
        return asyncio.run(prompts.of(text(*args, **given)))


# -- limits


def test_a_request_may_be_as_long_as_model_and_cache_allow():
    assert Limits.of(RouterConfig(), FACTS) == Limits(max_input_tokens=1599, max_total_tokens=1600)


def test_configured_limits_hold():
    config = RouterConfig(max_input_tokens=100, max_total_tokens=200)
    assert Limits.of(config, FACTS) == Limits(max_input_tokens=100, max_total_tokens=200)


@pytest.mark.parametrize(("setting", "flag"), [
    ({"max_total_tokens": 1601}, "--max-total-tokens is 1601"),
    ({"max_input_tokens": 1600}, "--max-input-tokens is 1600"),
])
def test_limits_beyond_what_fits_are_refused_at_the_start(setting, flag):
    with pytest.raises(ValueError, match=flag):
        Limits.of(RouterConfig(**setting), FACTS)


@pytest.mark.parametrize(("num_blocks", "most", "kind"), [
    (100, 1700, CannotStartNow), (100, 2048, ValueError), (200, 2048, ValueError)])
def test_a_limit_that_the_cache_cannot_hold_now_may_fit_where_more_memory_is_free(num_blocks, most, kind):
    with pytest.raises(ValueError, match=f"--max-input-tokens is {most}") as error:
        Limits.of(RouterConfig(max_input_tokens=most), replace(FACTS, num_blocks=num_blocks))
    assert error.type is kind


@pytest.mark.parametrize("setting", [{"max_input_tokens": 1696}, {"max_total_tokens": 1700}])
def test_a_limit_that_a_cache_of_fixed_size_cannot_hold_never_fits(setting):
    with pytest.raises(ValueError, match=r"it must be below|can hold 1696 tokens") as error:
        Limits.of(RouterConfig(max_batch_total_tokens=1700, **setting), replace(FACTS, num_blocks=106))
    assert error.type is ValueError


def test_steps_that_may_yield_several_tokens_leave_fewer_places():
    facts = ModelFacts("m", "cpu", "float32", 512, 4096, 16, 10, tokens_per_step=3)
    assert Limits.of(RouterConfig(look_ahead=2), facts).max_total_tokens == 160 - 4


# -- tokens


def test_a_prompt_is_its_tokens():
    assert made("warp") == Prompt(tuple(b"warp"), b"", (), 4)


def test_of_a_prompt_that_is_cut_the_last_tokens_count():
    assert made("warp", truncate=2, namespace=b"n").tokens == tuple(b"rp")


def test_tokens_that_the_model_does_not_know_are_refused():
    with pytest.raises(InvalidRequest, match="token 240"):
        made("😀", facts=replace(FACTS, vocabulary_size=200))


def test_messages_are_rendered_and_special_tokens_in_them_are_read():
    template = ChatTemplate("{% for message in messages %}{{ message.content }}<|end|>{% endfor %}", {})
    prompt = made(Conversation(({"role": "user", "content": "hi"},)), template=template)
    assert (prompt.tokens, prompt.num_characters) == ((*b"hi", 256), 9)


def test_a_model_without_a_template_is_not_for_chats():
    with pytest.raises(TemplateFailed, match="no chat template"):
        made(Conversation(()))


@pytest.mark.parametrize("length", [40, 600])
def test_full_blocks_have_names_in_the_namespace(length):
    prompt = made("x" * length, namespace=b"weavers")
    assert prompt.block_hashes == block_hashes(b"weavers", prompt.tokens, 16)
    assert len(prompt.block_hashes) == length // 16


# -- threads


def test_more_prompts_than_concurrent_requests_are_refused_before_they_are_tokenised():
    async def scenario(prompts):
        first = asyncio.create_task(prompts.of(text("warp" * 200)))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="--max-concurrent-requests"):
            await prompts.of(text("weft" * 200))
        assert await first
    with closing(Prompts(RouterConfig(max_concurrent_requests=1), FACTS, TOKENIZER)) as prompts:
        asyncio.run(scenario(prompts))


@pytest.mark.parametrize(("given", "thread"), [
    ("x" * SHORT_PROMPT, "MainThread"), ("x" * (SHORT_PROMPT + 1), "tokenizer_0"),
    (Conversation(({"role": "user", "content": "x"},)), "tokenizer_0")])
def test_tokens_that_are_told_are_written_down_where_they_are_found(given, thread):
    def render(encoded):
        return threading.current_thread().name, encoded.ids
    with closing(Prompts(RouterConfig(), FACTS, TOKENIZER, plain_template())) as prompts:
        where, ids = asyncio.run(prompts.encoded(given, TGI_NAMES, render))
    assert where == thread
    assert ids[-1] in {ord("x"), ord(" ")}


def test_of_more_tokens_than_the_model_reads_none_is_written_down():
    with closing(Prompts(RouterConfig(max_input_tokens=1000), FACTS, TOKENIZER)) as prompts:
        with pytest.raises(InvalidRequest, match=r"`inputs` must have at most 1000 tokens .*, got 1001"):
            asyncio.run(prompts.encoded("x" * 1001, TGI_NAMES, pytest.fail))
        with pytest.raises(InvalidRequest, match="got 1200"):  # two tokens per character
            asyncio.run(prompts.encoded("\N{LATIN SMALL LETTER E WITH ACUTE}" * 600, TGI_NAMES, pytest.fail))
        assert asyncio.run(prompts.encoded("x" * 1000, TGI_NAMES, lambda encoded: len(encoded.ids))) == 1000


@pytest.mark.parametrize(("length", "thread"), [(SHORT_PROMPT, "MainThread"), (SHORT_PROMPT + 1, "tokenizer_0")])
def test_longer_prompts_are_tokenised_beside_the_event_loop(length, thread):
    names = []
    class Watched(type(TOKENIZER)):
        def encoding(self, *args, **kwargs):
            names.append(threading.current_thread().name)
            return super().encoding(*args, **kwargs)
    made("w" * length, tokenizer=Watched(TOKENIZER._tokenizer, [256]))
    assert names == [thread]


def test_messages_are_rendered_beside_the_event_loop_however_few():
    names = []
    class Watched(ChatTemplate):
        def render(self, conversation):
            names.append(threading.current_thread().name)
            return "hi"
    made(Conversation(()), template=Watched("", {}))
    assert names == ["tokenizer_0"]


# -- pooling inputs


def whole(prompt, wish=Wish.VECTOR, facts=FACTS, **settings):
    with closing(Prompts(RouterConfig(**settings), facts, TOKENIZER)) as prompts:
        return asyncio.run(prompts.of(Text(prompt, None, None, b"", wish=wish)))


@pytest.mark.parametrize(("settings", "limit"), [
    ({}, "2048 tokens (what the model holds)"),
    ({"max_batch_prefill_tokens": 40}, "40 tokens (--max-batch-prefill-tokens"),
    ({"max_input_tokens": 30, "max_total_tokens": 60}, "30 tokens (--max-input-tokens)")])
def test_a_text_that_cannot_be_cut_has_limits_of_its_own(settings, limit):
    most = int(limit.split()[0])
    assert len(whole("x" * most, **settings).tokens) == most
    with pytest.raises(InvalidRequest, match="is read as a whole") as refused:
        whole("x" * (most + 1), **settings)
    assert f"at most {limit}" in str(refused.value)


def test_where_nothing_is_generated_the_limits_are_those_of_a_text():
    encoder = replace(FACTS, generation=False, max_positions=160)
    assert Limits.of(RouterConfig(), encoder) == Limits(max_input_tokens=160, max_total_tokens=160)


def test_tokens_that_are_given_stay_as_they_are():
    assert whole((7, 256, 8)).tokens == (7, 256, 8)
    with pytest.raises(InvalidRequest, match="token 512"):
        whole((7, 512))


def test_where_labels_are_wanted_tokens_have_places():
    assert whole("ab", Wish.LABELS).places == ((0, 1), (1, 2))
    assert whole("ab").places == ()
