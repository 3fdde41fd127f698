"""Text sent to clients: every style of tokenizer, and every way in which tokens, steps and stop strings cut it."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.checkpoints.small_tokenizers import TOKENIZER_CASES
from support.servers.expected_streams import make_finished_timeline

from router.engine.output_stream import FinishedEvent, OutputBuilder, RequestStream, TokenEvent
from router.request import FinishReason, Request
from router.scheduler.shard_messages import StepResultRow
from router.telemetry.server_metrics import RequestRecord
from router.text.tokenizer import REPLACEMENT_CHARACTER

for_every_style = pytest.mark.parametrize("style", TOKENIZER_CASES.values(), ids=TOKENIZER_CASES)


def token_lists(style, max_size=30):
    return st.lists(st.sampled_from(style.tokens), max_size=max_size)


def decode_pieces(style, ids, prompt=()):
    detokenizer = style.tokenizer.create_detokenizer(prompt)
    return [*map(detokenizer.step, ids), detokenizer.finish()]


# -- pieces


@pytest.mark.slow
@for_every_style
@given(data=st.data())
def test_pieces_join_to_the_text_of_all_tokens(style, data):
    ids = data.draw(token_lists(style))
    assert "".join(decode_pieces(style, ids)) == style.reference_decode(ids)


@pytest.mark.slow
@for_every_style
@given(data=st.data())
def test_unbroken_text_is_decoded_as_by_the_library(style, data):
    """An invalid character becomes a replacement character in both texts."""
    ids = data.draw(token_lists(style))
    text, whole = "".join(decode_pieces(style, ids)), style.tokenizer.decode(ids)
    assert text == whole if REPLACEMENT_CHARACTER not in text else REPLACEMENT_CHARACTER in whole


@pytest.mark.slow
@for_every_style
@given(data=st.data())
def test_text_continues_after_a_prompt(style, data):
    prompt = data.draw(st.lists(st.sampled_from(style.whole_character_tokens), min_size=1, max_size=8))
    ids = data.draw(token_lists(style))
    assert (style.reference_decode(prompt) + "".join(decode_pieces(style, ids, prompt))
            == style.reference_decode([*prompt, *ids]))


@pytest.mark.slow
@for_every_style
@given(data=st.data())
def test_decoding_does_not_depend_on_earlier_requests(style, data):
    """The cached texts of tokens are shared by all requests, so other requests must not change them."""
    ids, others = data.draw(token_lists(style)), data.draw(token_lists(style))
    once = decode_pieces(style, ids)
    decode_pieces(style, others)
    assert decode_pieces(style, ids) == once


# -- stop strings


class StreamingClient:
    """Client that reads the events of a request to the end; its tokens come in `rows`, one for each step."""

    def __init__(self, style, rows, stop):
        num_tokens = sum(map(len, rows)) + 1
        request = Request("0", (style.whole_character_tokens[0],), num_tokens, end_tokens=frozenset(),
                          stop_strings=stop)
        self._stream = RequestStream(request, 10**6, lambda: None, lambda: None, lambda: None)
        self._delivery = OutputBuilder(request, self._stream, style.tokenizer,
                                       RequestRecord("0", "", 1, 0.0, make_finished_timeline()))
        any(self._deliver_row(row) for row in rows)
        self._delivery.finish(FinishReason.LENGTH)
        *tokens, end = asyncio.run(self._events())
        assert isinstance(end, FinishedEvent)
        self.text = end.text
        self.deltas = [event.text for event in tokens if isinstance(event, TokenEvent) and not event.special]

    def _deliver_row(self, row):
        stop = self._delivery.detokenize_row(StepResultRow(row, [0.0] * len(row), ()))
        self._delivery.deliver_row()
        return stop is not None

    async def _events(self):
        return await self._stream.wait_for_events()


def split_into_rows(data, ids):
    """Split the tokens into rows of one to four, one row for each step."""
    rows, rest = [], ids
    while rest:
        size = data.draw(st.integers(1, 4))
        rows.append(rest[:size])
        rest = rest[size:]
    return rows


def stop_string_strategy(text):
    """Return a strategy of stop strings, some taken from the text and some not."""
    cuts = st.tuples(st.integers(0, max(0, len(text) - 1)), st.integers(1, 6))
    held = cuts.map(lambda cut: text[cut[0]:sum(cut)]).filter(bool) if text else st.nothing()
    return st.lists(held | st.sampled_from([" ", "s", "never", "weft s", REPLACEMENT_CHARACTER]), max_size=3).map(tuple)


@pytest.mark.slow
@for_every_style
@given(data=st.data())
def test_text_ends_with_the_first_stop_string_and_later_tokens_are_hidden(style, data):
    ids = data.draw(token_lists(style, max_size=20))
    whole = style.reference_decode(
        [style.whole_character_tokens[0], *ids])[len(style.reference_decode([style.whole_character_tokens[0]])):]
    stop = data.draw(stop_string_strategy(whole))
    client = StreamingClient(style, split_into_rows(data, ids), stop)
    end = min((whole.find(string) + len(string) for string in stop if string in whole), default=None)
    assert client.text == whole[:end]
    sent_text = "".join(client.deltas)
    assert whole.startswith(sent_text)
    assert end is None or len("".join(client.deltas[:-1])) < end
