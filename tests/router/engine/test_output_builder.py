"""Delivery of tokens to a client's stream: text, stop strings, times."""

import asyncio

import pytest
import tokenizers
from support.servers.expected_streams import make_finished_timeline
from tokenizers.models import WordLevel

from router.engine.output_stream import (
    FinishedEvent,
    OutputBuilder,
    PromptLogprobsEvent,
    RequestStream,
    TokenEvent,
    TopToken,
)
from router.request import FinishReason, Request, SamplingParams
from router.scheduler.shard_messages import PromptLogprobs, StepResultRow
from router.telemetry.server_metrics import RequestRecord
from router.text.tokenizer import Tokenizer, create_byte_tokenizer

BYTE_TOKENIZER = create_byte_tokenizer()
END_TOKEN = 256


def make_result_row(tokens, top_logprobs=()):
    return StepResultRow(list(tokens), [-0.5 * index for index, _ in enumerate(tokens)], top_logprobs)


class DeliveryHarness:
    """Request whose rows are read and delivered as the engine does it."""

    def __init__(self, max_new_tokens=100, stop=(), end_tokens=(END_TOKEN,), tokenizer=BYTE_TOKENIZER, *, min_tokens=0,
                 resumed=()):
        request = Request("0", (1, 2, 3), max_new_tokens, end_tokens=frozenset(end_tokens), stop_strings=stop,
                          sampling=SamplingParams(min_tokens=min_tokens), resumed_tokens=tuple(resumed))
        self.stream = RequestStream(request, 10**6, lambda: None, lambda: None, lambda: None)
        self.delivery = OutputBuilder(request, self.stream, tokenizer,
                                      RequestRecord("0", "", 3, 0.0, make_finished_timeline()),
                                      tokenizer.decode_resumed(request.prompt, resumed) if resumed else None)

    def apply_rows(self, *rows):
        stops = [self.apply_row(row) for row in rows]
        return stops[-1]

    def apply_row(self, row):
        stop = self.delivery.detokenize_row(row)
        self.delivery.deliver_row()
        return stop

    def finish(self, reason=FinishReason.LENGTH):
        self.delivery.finish(reason)
        return self.take_events(FinishedEvent)[0]

    def take_events(self, event_type):
        return [event for event in self.take_all_events() if isinstance(event, event_type)]

    def take_all_events(self):
        async def take():
            return await self.stream.wait_for_events()
        return asyncio.run(take())


def test_every_token_becomes_an_event_with_its_logprob():
    harness = DeliveryHarness()
    harness.apply_rows(make_result_row(b"ab"))
    assert harness.take_events(TokenEvent) == [TokenEvent(97, "a", 0.0, False), TokenEvent(98, "b", -0.5, False)]


def test_character_is_delivered_with_the_token_that_completes_it():
    harness = DeliveryHarness()
    harness.apply_rows(make_result_row("é".encode()[:1]), make_result_row("é".encode()[1:]))
    assert [event.text for event in harness.take_events(TokenEvent)] == ["", "é"]


def test_incomplete_character_at_the_end_is_only_in_the_full_text():
    harness = DeliveryHarness()
    harness.apply_rows(make_result_row(b"ab"), make_result_row("é".encode()[:1]))
    assert harness.finish().text == "ab\N{REPLACEMENT CHARACTER}"


def test_streamed_text_and_full_text_agree():
    harness, text = DeliveryHarness(), "weft: Schuß, 緯糸, 🧵"
    harness.apply_rows(*(make_result_row([byte]) for byte in text.encode()))
    events = harness.take_all_events()
    harness.delivery.finish(FinishReason.LENGTH)
    assert "".join(event.text for event in events) == harness.take_events(FinishedEvent)[0].text == text


def test_special_token_has_token_text_but_is_not_in_the_full_text():
    harness = DeliveryHarness()
    harness.apply_rows(make_result_row([97, END_TOKEN]))
    events = harness.take_all_events()
    assert (events[1].text, events[1].special) == ("<|end|>", True)
    assert harness.finish(FinishReason.END_TOKEN).text == "a"


@pytest.mark.parametrize(("rows", "stops"), [
    ([b"abc"], [3]),
    ([b"abcd"], [3]),
    ([b"a", b"b", b"c"], [None, None, 1]),
    ([b"xa", b"bcx"], [None, 2]),
    ([b"xab", b"xab"], [None, None]),
])
def test_stop_string_is_found_across_token_boundaries(rows, stops):
    harness = DeliveryHarness(stop=("abc",))
    assert [harness.apply_row(make_result_row(tokens)) for tokens in rows] == stops


def test_full_text_ends_with_the_stop_string():
    harness = DeliveryHarness(stop=("b",))
    harness.apply_rows(make_result_row(b"abc"))
    end = harness.finish(FinishReason.STOP_STRING)
    assert (end.text, end.num_tokens) == ("ab", 2)


def test_stop_string_may_end_inside_a_token():
    words = WordLevel({"weft": 0, "warp": 1, "?": 2}, unk_token="?")
    harness = DeliveryHarness(stop=("ft w",), tokenizer=Tokenizer(tokenizers.Tokenizer(words), end_tokens=[]))
    assert harness.apply_rows(make_result_row([0, 1])) == 2
    assert [event.text for event in harness.take_events(TokenEvent)] == [" weft", " warp"]
    assert harness.finish(FinishReason.STOP_STRING).text == " weft w"


def test_stop_string_in_held_back_text_ends_the_text():
    harness = DeliveryHarness(stop=("\N{REPLACEMENT CHARACTER}",))
    harness.apply_rows(make_result_row(b"a\xff\xff"))
    assert harness.finish().text == "a\N{REPLACEMENT CHARACTER}"


def test_stop_string_after_the_length_limit_is_ignored():
    harness = DeliveryHarness(max_new_tokens=2, stop=("c",))
    assert harness.delivery.detokenize_row(make_result_row(b"abc")) is None


def test_stop_string_after_an_end_token_is_ignored():
    harness = DeliveryHarness(stop=("c",))
    assert harness.delivery.detokenize_row(make_result_row([97, END_TOKEN, 99])) is None


def make_tokenizer_that_ends_with(token):
    tokenizer = create_byte_tokenizer()
    tokenizer.end_tokens = frozenset({token})
    return tokenizer


@pytest.mark.parametrize("beyond", [
    {"max_new_tokens": 2}, {"stop": ("b",)}, {"end_tokens": [98], "tokenizer": make_tokenizer_that_ends_with(98)}],
    ids=["length", "stop string", "end token"])
def test_tokens_beyond_the_end_of_the_request_are_not_delivered(beyond):
    harness = DeliveryHarness(**beyond)
    harness.apply_rows(make_result_row(b"abc"))
    assert [event.id for event in harness.take_events(TokenEvent)] == [97, 98]
    assert harness.finish().text == "ab"


def test_row_that_is_read_but_not_delivered_sends_no_event():
    harness = DeliveryHarness()
    harness.apply_rows(make_result_row(b"a"))
    harness.delivery.detokenize_row(make_result_row(b"b"))
    assert [event.id for event in harness.take_events(TokenEvent)] == [97]


def test_top_tokens_come_with_their_texts():
    harness = DeliveryHarness()
    harness.apply_rows(make_result_row(b"ab", top_logprobs=[[(97, -0.5), (END_TOKEN, -1.5)], []]))
    first, second = harness.take_events(TokenEvent)
    assert first.top_tokens == (TopToken(97, "a", -0.5, False), TopToken(END_TOKEN, "<|end|>", -1.5, True))
    assert second.top_tokens == ()


def test_prompt_logprobs_are_delivered_once_even_if_the_prompt_runs_again():
    harness = DeliveryHarness()
    harness.delivery.deliver_prompt_logprobs(PromptLogprobs(1, 1, [-1.0, -2.0]))
    harness.delivery.deliver_prompt_logprobs(PromptLogprobs(1, 1, [-1.0]))
    harness.delivery.deliver_prompt_logprobs(PromptLogprobs(1, 2, [-2.0, -3.0, -4.0]))
    assert harness.take_events(PromptLogprobsEvent) == [PromptLogprobsEvent(1, (-1.0, -2.0)),
                                                        PromptLogprobsEvent(3, (-3.0, -4.0))]


def test_candidates_of_prompt_tokens_are_delivered_once_too():
    harness = DeliveryHarness()
    harness.delivery.deliver_prompt_logprobs(PromptLogprobs(1, 1, [-1.0], [[(5, -0.5)]]))
    harness.delivery.deliver_prompt_logprobs(PromptLogprobs(1, 1, [-1.0, -2.0], [[(5, -0.5)], [(6, -2.0)]]))
    assert harness.take_events(PromptLogprobsEvent) == [PromptLogprobsEvent(1, (-1.0,), [[(5, -0.5)]]),
                                                        PromptLogprobsEvent(2, (-2.0,), [[(6, -2.0)]])]


def test_delivered_tokens_are_counted_in_the_request_record():
    harness = DeliveryHarness()
    harness.apply_rows(make_result_row(b"ab"), make_result_row(b"c"))
    harness.delivery.detokenize_row(make_result_row(b"d"))
    assert harness.delivery.record.num_generated == 3


def test_final_event_carries_the_timeline():
    harness = DeliveryHarness()
    assert harness.finish().timeline is harness.delivery.record.timeline


def test_stop_token_of_a_request_is_no_part_of_the_text():
    harness = DeliveryHarness(end_tokens=(END_TOKEN, 99))
    harness.apply_rows(make_result_row(b"ab"), make_result_row(b"c"))
    finished = harness.finish(FinishReason.END_TOKEN)
    assert (finished.text, finished.num_tokens) == ("ab", 3)


def test_stop_token_is_an_event_like_an_end_token():
    harness = DeliveryHarness(end_tokens=(END_TOKEN, 99))
    harness.apply_rows(make_result_row(b"ac"))
    assert harness.take_events(TokenEvent) == [TokenEvent(97, "a", 0.0, False), TokenEvent(99, "c", -0.5, True)]


@pytest.mark.parametrize(("min_tokens", "stop_token_counts", "text"), [
    (0, [None, 1, None], "ab"), (2, [None, 1, None], "ab"), (3, [None, None, None], "abc"),
    (9, [None, None, None], "abc")])
def test_stop_string_counts_from_min_tokens_on(min_tokens, stop_token_counts, text):
    harness = DeliveryHarness(stop=("b",), min_tokens=min_tokens)
    for token, expected in zip(b"abc", stop_token_counts, strict=True):
        stop = harness.apply_row(make_result_row([token]))
        assert stop == expected
        if stop is not None:
            break
    finished = harness.finish()
    assert (finished.text, finished.is_stopped) == (text, stop is not None)


def test_stop_string_behind_skipped_text_has_its_place_in_the_whole_text():
    harness = DeliveryHarness(stop=("bc",), min_tokens=3)
    assert harness.apply_rows(*(make_result_row([token]) for token in b"bcabc")) == 1
    assert harness.finish(FinishReason.STOP_STRING).text == "bcabc"


@pytest.mark.parametrize(("options", "row", "is_stopped"), [
    ({"stop": ("b",)}, b"ab", True), ({"end_tokens": (END_TOKEN, 98)}, b"ab", True), ({}, b"ab", False),
    ({"stop": ("x",)}, b"ab", False)])
def test_text_that_stops_with_its_last_possible_token_says_so(options, row, is_stopped):
    harness = DeliveryHarness(max_new_tokens=2, **options)
    harness.apply_rows(*(make_result_row([token]) for token in row))
    finished = harness.finish(FinishReason.LENGTH)
    assert (finished.finish_reason, finished.is_stopped) == (FinishReason.LENGTH, is_stopped)


# -- resumed texts


def test_resumed_text_counts_but_is_not_sent_again():
    harness = DeliveryHarness(resumed="aé".encode()[:2])
    harness.apply_rows(make_result_row("é".encode()[1:]))
    assert [event.text for event in harness.take_events(TokenEvent)] == ["é"]
    finished = harness.finish()
    assert (finished.text, finished.num_tokens, harness.delivery.record.num_generated) == ("aé", 3, 1)


def test_resumed_tokens_count_toward_the_length_limit():
    harness = DeliveryHarness(max_new_tokens=3, resumed=b"ab")
    harness.apply_rows(make_result_row(b"cd"))
    assert harness.finish().text == "abc"


@pytest.mark.parametrize("num_resumed", range(1, 6))
@pytest.mark.parametrize("min_tokens", range(7))
def test_stop_string_ends_a_resumed_text_where_it_ends_another(num_resumed, min_tokens):
    text, stops = b"xabcxabc", []
    for resumed in (b"", text[:num_resumed]):
        harness = DeliveryHarness(stop=("abc", "cxa"), min_tokens=min_tokens, resumed=resumed)
        found = [harness.apply_row(make_result_row([byte])) for byte in text[len(resumed):]]
        stops.append(next(index for index, stop in enumerate(found, len(resumed)) if stop))
    assert stops[0] == stops[1] or stops[0] < num_resumed
