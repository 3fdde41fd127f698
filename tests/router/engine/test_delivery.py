"""Delivery of tokens to a client's stream: text, stop strings, times."""

import asyncio

import pytest
import tokenizers
from support.expected_streams import lived
from tokenizers.models import WordLevel

from router.engine.delivery import Delivery
from router.engine.stream import FinishedEvent, PromptEvent, Stream, TokenEvent, TopToken
from router.request import FinishReason, Request
from router.scheduler.plan import AnswerRow, PromptLogprobs
from router.telemetry.request_log import Account
from router.text.tokenizer import Tokenizer, byte_tokenizer

TOKENIZER = byte_tokenizer()
END = 256


def row(tokens, top=()):
    return AnswerRow(list(tokens), [-0.5 * index for index, _ in enumerate(tokens)], top)


class Told:
    """Request whose rows are read and delivered as the engine does it."""

    def __init__(self, max_new_tokens=100, stop=(), end_tokens=(END,), tokenizer=TOKENIZER):
        request = Request("0", (1, 2, 3), max_new_tokens, end_tokens=frozenset(end_tokens), stop_strings=stop)
        self.stream = Stream(request, 10**6, lambda: None, lambda: None, lambda: None)
        self.delivery = Delivery(request, self.stream, tokenizer, Account("0", "", 3, 0.0, lived()))

    def hear(self, *rows):
        stops = [self._hear(row) for row in rows]
        return stops[-1]

    def _hear(self, row):
        stop = self.delivery.read(row)
        self.delivery.deliver()
        return stop

    def finish(self, reason=FinishReason.LENGTH):
        self.delivery.finish(reason)
        return self.events(FinishedEvent)[0]

    def events(self, kind):
        return [event for event in self._taken() if isinstance(event, kind)]

    def _taken(self):
        async def take():
            return await self.stream.events()
        return asyncio.run(take())


def test_every_token_becomes_an_event_with_its_logprob():
    told = Told()
    told.hear(row(b"ab"))
    assert told.events(TokenEvent) == [TokenEvent(97, "a", 0.0, False), TokenEvent(98, "b", -0.5, False)]


def test_a_character_comes_with_the_token_that_completes_it():
    told = Told()
    told.hear(row("é".encode()[:1]), row("é".encode()[1:]))
    assert [event.text for event in told.events(TokenEvent)] == ["", "é"]


def test_what_is_incomplete_at_the_end_is_in_the_whole_text_only():
    told = Told()
    told.hear(row(b"ab"), row("é".encode()[:1]))
    assert told.finish().text == "ab\N{REPLACEMENT CHARACTER}"


def test_pieces_and_whole_text_agree():
    told, text = Told(), "weft: Schuß, 緯糸, 🧵"
    told.hear(*(row([byte]) for byte in text.encode()))
    events = told._taken()
    told.delivery.finish(FinishReason.LENGTH)
    assert "".join(event.text for event in events) == told.events(FinishedEvent)[0].text == text


def test_a_special_token_has_text_as_a_token_and_none_in_the_whole():
    told = Told()
    told.hear(row([97, END]))
    events = told._taken()
    assert (events[1].text, events[1].special) == ("<|end|>", True)
    assert told.finish(FinishReason.END_TOKEN).text == "a"


@pytest.mark.parametrize(("rows", "stops"), [
    ([b"abc"], [3]),
    ([b"abcd"], [3]),
    ([b"a", b"b", b"c"], [None, None, 1]),
    ([b"xa", b"bcx"], [None, 2]),
    ([b"xab", b"xab"], [None, None]),
])
def test_a_stop_string_is_found_wherever_its_tokens_are_cut(rows, stops):
    told = Told(stop=("abc",))
    assert [told._hear(row(tokens)) for tokens in rows] == stops


def test_the_whole_text_ends_with_the_stop_string():
    told = Told(stop=("b",))
    told.hear(row(b"abc"))
    end = told.finish(FinishReason.STOP_STRING)
    assert (end.text, end.num_tokens) == ("ab", 2)


def test_a_stop_string_may_end_inside_the_text_of_a_token():
    words = WordLevel({"weft": 0, "warp": 1, "?": 2}, unk_token="?")
    told = Told(stop=("ft w",), tokenizer=Tokenizer(tokenizers.Tokenizer(words), end_tokens=[]))
    assert told.hear(row([0, 1])) == 2
    assert [event.text for event in told.events(TokenEvent)] == [" weft", " warp"]
    assert told.finish(FinishReason.STOP_STRING).text == " weft w"


def test_a_stop_string_in_what_was_held_back_ends_the_text():
    told = Told(stop=("\N{REPLACEMENT CHARACTER}",))
    told.hear(row(b"a\xff\xff"))
    assert told.finish().text == "a\N{REPLACEMENT CHARACTER}"


def test_a_stop_string_after_the_end_of_the_request_is_not_found():
    told = Told(max_new_tokens=2, stop=("c",))
    assert told.delivery.read(row(b"abc")) is None


def test_a_stop_string_behind_an_end_token_is_not_found():
    told = Told(stop=("c",))
    assert told.delivery.read(row([97, END, 99])) is None


@pytest.mark.parametrize("beyond", [{"max_new_tokens": 2}, {"stop": ("b",)}, {"end_tokens": [98]}], ids=str)
def test_what_a_step_yields_beyond_the_end_is_not_delivered(beyond):
    told = Told(**beyond)
    told.hear(row(b"abc"))
    assert [event.id for event in told.events(TokenEvent)] == [97, 98]
    assert told.finish().text == "ab"


def test_a_row_that_does_not_count_is_not_delivered():
    told = Told()
    told.hear(row(b"a"))
    told.delivery.read(row(b"b"))
    assert [event.id for event in told.events(TokenEvent)] == [97]


def test_the_best_candidates_come_with_their_texts():
    told = Told()
    told.hear(row(b"ab", top=[[(97, -0.5), (END, -1.5)], []]))
    first, second = told.events(TokenEvent)
    assert first.top == (TopToken(97, "a", -0.5, False), TopToken(END, "<|end|>", -1.5, True))
    assert second.top == ()


def test_prompt_logprobs_are_told_once_though_the_prompt_ran_anew():
    told = Told()
    told.delivery.deliver_prompt(PromptLogprobs(1, 1, [-1.0, -2.0]))
    told.delivery.deliver_prompt(PromptLogprobs(1, 1, [-1.0]))
    told.delivery.deliver_prompt(PromptLogprobs(1, 2, [-2.0, -3.0, -4.0]))
    assert told.events(PromptEvent) == [PromptEvent(1, (-1.0, -2.0)), PromptEvent(3, (-3.0, -4.0))]


def test_what_was_delivered_is_counted_in_the_account():
    told = Told()
    told.hear(row(b"ab"), row(b"c"))
    told.delivery.read(row(b"d"))
    assert told.delivery.account.num_generated == 3


def test_the_end_brings_the_story():
    told = Told()
    assert told.finish().story is told.delivery.account.story
