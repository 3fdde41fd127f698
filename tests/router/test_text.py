"""Text sent to clients: every style of tokenizer, and every way in which tokens, steps and stop strings cut it."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.expected_streams import lived
from support.small_tokenizers import STYLES

from router.engine.delivery import Delivery
from router.engine.stream import FinishedEvent, Stream, TokenEvent
from router.request import FinishReason, Request
from router.scheduler.plan import AnswerRow
from router.telemetry.request_log import Account
from router.text.tokenizer import REPLACEMENT

named = pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)


def tokens_of(style, max_size=30):
    return st.lists(st.sampled_from(style.tokens), max_size=max_size)


def pieces(style, ids, prompt=()):
    detokenizer = style.tokenizer.detokenizer(prompt)
    return [*map(detokenizer.step, ids), detokenizer.finish()]


# -- pieces


@pytest.mark.slow
@named
@given(data=st.data())
def test_pieces_together_are_the_text_of_all_tokens(style, data):
    ids = data.draw(tokens_of(style))
    assert "".join(pieces(style, ids)) == style.text(ids)


@pytest.mark.slow
@named
@given(data=st.data())
def test_what_is_not_broken_is_as_the_library_decodes_it(style, data):
    """Broken characters are broken in both."""
    ids = data.draw(tokens_of(style))
    text, whole = "".join(pieces(style, ids)), style.tokenizer.decode(ids)
    assert text == whole if REPLACEMENT not in text else REPLACEMENT in whole


@pytest.mark.slow
@named
@given(data=st.data())
def test_text_goes_on_behind_a_prompt(style, data):
    prompt = data.draw(st.lists(st.sampled_from(style.whole), min_size=1, max_size=8))
    ids = data.draw(tokens_of(style))
    assert style.text(prompt) + "".join(pieces(style, ids, prompt)) == style.text([*prompt, *ids])


@pytest.mark.slow
@named
@given(data=st.data())
def test_what_is_said_twice_reads_the_same(style, data):
    """The cached texts of tokens are shared by all requests, so other requests must not change them."""
    ids, others = data.draw(tokens_of(style)), data.draw(tokens_of(style))
    once = pieces(style, ids)
    pieces(style, others)
    assert pieces(style, ids) == once


# -- stop strings


class Client:
    """Client that reads the events of a request to the end; its tokens come in `rows`, one for each step."""

    def __init__(self, style, rows, stop):
        num_tokens = sum(map(len, rows)) + 1
        request = Request("0", (style.whole[0],), num_tokens, end_tokens=frozenset(), stop_strings=stop)
        self._stream = Stream(request, 10**6, lambda: None, lambda: None, lambda: None)
        self._delivery = Delivery(request, self._stream, style.tokenizer, Account("0", "", 1, 0.0, lived()))
        any(self._is_stopped_by(row) for row in rows)
        self._delivery.finish(FinishReason.LENGTH)
        *tokens, end = asyncio.run(self._events())
        assert isinstance(end, FinishedEvent)
        self.text = end.text
        self.deltas = [event.text for event in tokens if isinstance(event, TokenEvent) and not event.special]

    def _is_stopped_by(self, row):
        stop = self._delivery.read(AnswerRow(row, [0.0] * len(row), ()))
        self._delivery.deliver()
        return stop is not None

    async def _events(self):
        return await self._stream.events()


def rows_of(data, ids):
    """Split the tokens into rows of one to four, one row for each step."""
    rows, rest = [], ids
    while rest:
        size = data.draw(st.integers(1, 4))
        rows.append(rest[:size])
        rest = rest[size:]
    return rows


def stop_strings_in(text):
    """Return a strategy of stop strings, some taken from the text and some not."""
    cuts = st.tuples(st.integers(0, max(0, len(text) - 1)), st.integers(1, 6))
    held = cuts.map(lambda cut: text[cut[0]:sum(cut)]).filter(bool) if text else st.nothing()
    return st.lists(held | st.sampled_from([" ", "s", "never", "weft s", REPLACEMENT]), max_size=3).map(tuple)


@pytest.mark.slow
@named
@given(data=st.data())
def test_text_ends_behind_the_first_stop_string_and_no_token_behind_it_is_shown(style, data):
    ids = data.draw(tokens_of(style, max_size=20))
    whole = style.text([style.whole[0], *ids])[len(style.text([style.whole[0]])):]
    stop = data.draw(stop_strings_in(whole))
    client = Client(style, rows_of(data, ids), stop)
    end = min((whole.find(string) + len(string) for string in stop if string in whole), default=None)
    assert client.text == whole[:end]
    shown = "".join(client.deltas)
    assert whole.startswith(shown)
    assert end is None or len("".join(client.deltas[:-1])) < end
