"""Encoding of prompts: limits on tokens, threads and block hashes."""

import asyncio
import threading
from contextlib import closing
from dataclasses import replace

import pytest

from router.config import RouterConfig
from router.errors import ChatTemplateFailed, InvalidRequest, Overloaded, RetryableStartupError
from router.model_info import ModelInfo
from router.request import FairThreadPool, RequestKind, Tenant, hash_blocks
from router.text.chat_template import ChatTemplate, Conversation, simulated_model_template
from router.text.prompt_encoder import (
    MAX_INLINE_CHARACTERS,
    TGI_PARAMETER_NAMES,
    EncodedPrompt,
    PromptEncoder,
    PromptInput,
    TokenLimits,
)
from router.text.tokenizer import create_byte_tokenizer

MODEL_INFO = ModelInfo(model="m", device="cpu", dtype="float32", vocabulary_size=512, max_positions=2048, block_size=16,
                       num_blocks=100)
BYTE_TOKENIZER = create_byte_tokenizer()


def encode_prompt(prompt, truncate=None, max_new_tokens=None, namespace=b"", *, model_info=MODEL_INFO,
                  tokenizer=BYTE_TOKENIZER, template=None):
    prompt_input = PromptInput(prompt=prompt, truncate=truncate, max_new_tokens=max_new_tokens)
    with closing(PromptEncoder(RouterConfig(), model_info, tokenizer, template)) as prompts:
        return asyncio.run(prompts.encode(prompt_input, namespace))


# -- limits


def test_default_limits_follow_from_model_and_cache():
    assert (TokenLimits.from_config(RouterConfig(), MODEL_INFO)
            == TokenLimits(max_input_tokens=1599, max_total_tokens=1600))


def test_configured_limits_are_used():
    config = RouterConfig(max_input_tokens=100, max_total_tokens=200)
    assert TokenLimits.from_config(config, MODEL_INFO) == TokenLimits(max_input_tokens=100, max_total_tokens=200)


@pytest.mark.parametrize(("setting", "flag"), [
    ({"max_total_tokens": 1601}, "--max-total-tokens is 1601"),
    ({"max_input_tokens": 1600}, "--max-input-tokens is 1600"),
])
def test_limits_beyond_what_fits_are_rejected_at_startup(setting, flag):
    with pytest.raises(ValueError, match=flag):
        TokenLimits.from_config(RouterConfig(**setting), MODEL_INFO)


@pytest.mark.parametrize(("num_blocks", "most", "kind"), [
    (100, 1700, RetryableStartupError), (100, 2048, ValueError), (200, 2048, ValueError)])
def test_limit_that_only_needs_more_free_memory_may_fit_at_the_next_start(num_blocks, most, kind):
    with pytest.raises(ValueError, match=f"--max-input-tokens is {most}") as error:
        TokenLimits.from_config(RouterConfig(max_input_tokens=most), replace(MODEL_INFO, num_blocks=num_blocks))
    assert error.type is kind


@pytest.mark.parametrize("setting", [{"max_input_tokens": 1696}, {"max_total_tokens": 1700}])
def test_limit_beyond_a_fixed_cache_size_never_fits(setting):
    with pytest.raises(ValueError, match=r"it must be below|can hold 1696 tokens") as error:
        TokenLimits.from_config(RouterConfig(max_batch_total_tokens=1700, **setting),
                                replace(MODEL_INFO, num_blocks=106))
    assert error.type is ValueError


def test_several_tokens_per_step_reduce_the_total_limit():
    facts = ModelInfo("m", "cpu", "float32", 512, 4096, 16, 10, tokens_per_step=3)
    assert TokenLimits.from_config(RouterConfig(look_ahead=2), facts).max_total_tokens == 160 - 4


# -- tokens


def test_prompt_is_encoded_into_tokens():
    assert encode_prompt("warp") == EncodedPrompt(tuple(b"warp"), (), 4)


def test_truncated_prompt_keeps_its_last_tokens():
    assert encode_prompt("warp", truncate=2, namespace=b"n").tokens == tuple(b"rp")


def test_tokens_beyond_the_vocabulary_are_rejected():
    with pytest.raises(InvalidRequest, match="token 240"):
        encode_prompt("😀", model_info=replace(MODEL_INFO, vocabulary_size=200))


def test_messages_are_rendered_and_their_special_tokens_recognized():
    template = ChatTemplate("{% for message in messages %}{{ message.content }}<|end|>{% endfor %}", {})
    prompt = encode_prompt(Conversation(({"role": "user", "content": "hi"},)), template=template)
    assert (prompt.tokens, prompt.num_characters) == ((*b"hi", 256), 9)


def test_model_without_a_chat_template_rejects_chats():
    with pytest.raises(ChatTemplateFailed, match="no chat template"):
        encode_prompt(Conversation(()))


@pytest.mark.parametrize("length", [40, 600])
def test_full_blocks_are_hashed_in_their_namespace(length):
    prompt = encode_prompt("x" * length, namespace=b"weavers")
    assert prompt.block_hashes == hash_blocks(b"weavers", prompt.tokens, 16)
    assert len(prompt.block_hashes) == length // 16


# -- threads


def test_prompts_beyond_the_concurrency_limit_are_rejected_before_tokenizing():
    async def scenario(prompts):
        first = asyncio.create_task(prompts.encode(PromptInput(prompt="warp" * 200), b""))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="--max-concurrent-requests"):
            await prompts.encode(PromptInput(prompt="weft" * 200), b"")
        assert await first
    with closing(PromptEncoder(RouterConfig(max_concurrent_requests=1), MODEL_INFO, BYTE_TOKENIZER)) as prompts:
        asyncio.run(scenario(prompts))


def test_prompts_of_tenants_are_tokenized_in_turn():
    """A tenant's prompts waited behind all those that another one had sent before."""
    async def scenario(pool):
        finished, may_start = [], threading.Event()
        blocking = asyncio.create_task(pool.run(may_start.wait, Tenant("first")))
        await asyncio.sleep(0)
        tasks = [asyncio.create_task(pool.run(lambda name=f"{tenant} {number}": finished.append(name), Tenant(tenant)))
                 for tenant, numbers in (("first", range(4)), ("second", range(2))) for number in numbers]
        left = tasks.pop(1)
        await asyncio.sleep(0)
        left.cancel()
        may_start.set()
        await asyncio.gather(blocking, *tasks)
        assert finished == ["first 0", "second 0", "first 2", "second 1", "first 3"]
        assert pool._semaphore.is_unused
    with closing(FairThreadPool(1, 100, "tokenizer", "prompts wait")) as pool:
        asyncio.run(scenario(pool))


def test_tenant_at_its_limit_does_not_keep_others_out():
    async def scenario(pool):
        may_end = threading.Event()
        first = asyncio.create_task(pool.run(may_end.wait, Tenant("first")))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="1 prompts wait"):
            await pool.run(may_end.wait, Tenant("first"))
        second = asyncio.create_task(pool.run(may_end.wait, Tenant("second")))
        await asyncio.sleep(0)
        may_end.set()
        assert await asyncio.gather(first, second) == [True, True]
    with closing(FairThreadPool(1, 1, "tokenizer", "prompts wait")) as pool:
        asyncio.run(scenario(pool))


@pytest.mark.parametrize(("prompt", "thread"), [
    ("x" * MAX_INLINE_CHARACTERS, "MainThread"), ("x" * (MAX_INLINE_CHARACTERS + 1), "tokenizer_0"),
    (Conversation(({"role": "user", "content": "x"},)), "tokenizer_0")])
def test_encoded_prompt_is_rendered_on_the_tokenizing_thread(prompt, thread):
    def render(encoded):
        return threading.current_thread().name, encoded.token_ids
    with closing(PromptEncoder(RouterConfig(), MODEL_INFO, BYTE_TOKENIZER, simulated_model_template())) as prompts:
        thread_name, ids = asyncio.run(prompts.tokenize_and_call(prompt, TGI_PARAMETER_NAMES, render))
    assert thread_name == thread
    assert ids[-1] in {ord("x"), ord(" ")}


def test_prompt_beyond_the_token_limit_is_not_rendered():
    with closing(PromptEncoder(RouterConfig(max_input_tokens=1000), MODEL_INFO, BYTE_TOKENIZER)) as prompts:
        with pytest.raises(InvalidRequest, match=r"`inputs` must have at most 1000 tokens .*, got 1001"):
            asyncio.run(prompts.tokenize_and_call("x" * 1001, TGI_PARAMETER_NAMES, pytest.fail))
        with pytest.raises(InvalidRequest, match="got 1200"):  # two tokens per character
            asyncio.run(prompts.tokenize_and_call("\N{LATIN SMALL LETTER E WITH ACUTE}" * 600, TGI_PARAMETER_NAMES,
                                                  pytest.fail))
        assert asyncio.run(prompts.tokenize_and_call("x" * 1000, TGI_PARAMETER_NAMES,
                                                     lambda encoded: len(encoded.token_ids))) == 1000


@pytest.mark.parametrize(("length", "thread"),
                         [(MAX_INLINE_CHARACTERS, "MainThread"), (MAX_INLINE_CHARACTERS + 1, "tokenizer_0")])
def test_long_prompts_are_tokenized_outside_the_event_loop(length, thread):
    thread_names = []

    class ThreadRecordingTokenizer(type(BYTE_TOKENIZER)):
        def tokenize(self, *args, **kwargs):
            thread_names.append(threading.current_thread().name)
            return super().tokenize(*args, **kwargs)
    encode_prompt("w" * length, tokenizer=ThreadRecordingTokenizer(BYTE_TOKENIZER._tokenizer, [256]))
    assert thread_names == [thread]


def test_messages_are_always_rendered_outside_the_event_loop():
    thread_names = []

    class ThreadRecordingTemplate(ChatTemplate):
        def render(self, conversation):
            thread_names.append(threading.current_thread().name)
            return "hi"
    encode_prompt(Conversation(()), template=ThreadRecordingTemplate("", {}))
    assert thread_names == ["tokenizer_0"]


# -- pooling inputs


def encode_pooling_input(prompt, kind=RequestKind.EMBED, model_info=MODEL_INFO, **settings):
    with closing(PromptEncoder(RouterConfig(**settings), model_info, BYTE_TOKENIZER)) as prompts:
        return asyncio.run(prompts.encode(PromptInput(prompt=prompt, kind=kind), b""))


@pytest.mark.parametrize(("settings", "limit"), [
    ({}, "2048 tokens (what the model holds)"),
    ({"max_batch_prefill_tokens": 40}, "40 tokens (--max-batch-prefill-tokens"),
    ({"max_input_tokens": 30, "max_total_tokens": 60}, "30 tokens (--max-input-tokens)")])
def test_pooling_input_has_its_own_length_limits(settings, limit):
    most = int(limit.split()[0])
    assert len(encode_pooling_input("x" * most, **settings).tokens) == most
    with pytest.raises(InvalidRequest, match="is read as a whole") as refused:
        encode_pooling_input("x" * (most + 1), **settings)
    assert f"at most {limit}" in str(refused.value)


def test_encoder_model_uses_the_pooling_limits():
    encoder = replace(MODEL_INFO, generation=False, max_positions=160)
    assert TokenLimits.from_config(RouterConfig(), encoder) == TokenLimits(max_input_tokens=160, max_total_tokens=160)


def test_token_id_input_is_kept():
    assert encode_pooling_input((7, 256, 8)).tokens == (7, 256, 8)
    with pytest.raises(InvalidRequest, match="token 512"):
        encode_pooling_input((7, 512))


def test_classification_input_has_token_offsets():
    assert encode_pooling_input("ab", RequestKind.CLASSIFY).token_offsets == ((0, 1), (1, 2))
    assert encode_pooling_input("ab").token_offsets == ()
