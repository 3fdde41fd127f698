"""Replay of captured decode steps (CUDA graphs): the launches of a step are captured once per number of rows, and then
repeated with other numbers.

A step uses the smallest capture with enough rows; the rows beyond are padding and read the scratch block. If no
sequence needs more than `sampling/device_sampler.py` does, the captured step chooses the tokens, too: the next step
reads them on the device, and can begin before the host knows them.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, cuda

from shard.adapters.lora_work import StandingWork, Work
from shard.adapters.routing import Bearers
from shard.attention.backend import Attention, Framing
from shard.attention.inputs import DUMMY_TOKEN, Inputs, place
from shard.attention.kv_cache import Cache
from shard.attention.span import Span
from shard.host.device import Arriving, Bringing, Standing
from shard.sampling.device_sampler import Found, Picker, is_drawn, is_plain
from shard.state.sequence import EXPECTED, Sequence
from shard.state.transaction import Step

Call = Callable[[], object]
Capture = Callable[[Call], Call]  # from a function that launches a step to one that repeats it with the same tensors
FEWEST = 2  # rows: a product may give a single row other bits
FINE, COARSE = 64, 256  # captured numbers of rows are 8 apart up to FINE, 32 apart up to COARSE, then 64


class Model(Protocol):
    def hidden(self, inputs: Inputs, cache: Cache, attention: Attention) -> Tensor: ...
    def logits(self, hidden: Tensor) -> Tensor | None: ...


class Made(NamedTuple):
    """Outputs of a captured step, one row per decode, which are valid until the next step."""

    hidden: Tensor  # [rows, hidden_size]
    logits: Tensor  # [rows, vocabulary]

    def first(self, rows: int) -> "Made":
        return Made(self.hidden[:rows], self.logits[:rows])


class Begun:
    """Step under way whose tokens are chosen on the device."""

    def __init__(self, sequences: list[Sequence], arriving: Arriving) -> None:
        self.rows = {sequence.id: row for row, sequence in enumerate(sequences)}
        self._arriving = arriving

    def wait(self) -> None:
        """Wait until the step is over. Any thread may call this."""
        self._arriving.wait()

    def choices(self) -> list[tuple[int, float]] | None:
        """Return every row's token and its logprob, or None if a row needs a decision of the host: then the step must
        be run again."""
        told = self._arriving.rows()
        return [(int(token), logprob) for token, logprob, _ in told] if all(fine for *_, fine in told) else None


@dataclass(frozen=True, slots=True)
class Extent:
    """Size of the largest step."""

    rows: int
    length: int  # of a sequence


class Captured(NamedTuple):
    """Captured calls for one number of rows."""

    make: Call
    best: Call  # picks the best tokens from the outputs of `make`
    drawn: Call  # draws tokens from them instead


class Replays:
    """Captured decode steps of a model with one cache, by number of rows. The largest is captured first so that the
    others reuse its memory; all share their output buffers."""

    @torch.inference_mode()
    def __init__(self, model: Model, attention: Framing, cache: Cache, extent: Extent, capture: Capture, *,
                 bearers: Bearers | None = None) -> None:
        """Capture steps of all sizes; with `bearers` also steps in which some rows use adapters."""
        *fewer, most = sizes_up_to(extent.rows)
        self._model, self._attention, self._cache = model, attention, cache
        self._frames = attention.frames(most, extent.length, cache)
        self._nobodys = [cache.scratch_block]  # block table of padding rows
        self._columns = Standing([most] * 3, torch.int64, cache.device)
        self._tokens = torch.zeros(most, dtype=torch.int64, device=cache.device)  # chosen by the last step
        self._told = torch.zeros(most, 3, dtype=torch.float64, device=cache.device)  # token, logprob, whether valid
        self._bringing = Bringing(self._told)
        self._bearers, self._work = bearers, StandingWork(most, cache.device)
        self._write([], most)
        self._made = Made(*map(torch.empty_like, self._launched(self._inputs(most))))
        self._picker = Picker(most, self._made.logits.shape[-1], cache.device)
        self._captured: dict[int, Captured] = {}
        self._adapted: dict[int, Call] = {}  # `make` for steps in which some rows use adapters
        for rows in (most, *reversed(fewer)):
            self._write([], rows)
            make = partial(self._make, self._inputs(rows))
            calls = make, partial(self._pick, self._picker.best, rows), partial(self._pick, self._picker.drawn, rows)
            self._captured[rows] = Captured(*map(capture, calls))
            if bearers is not None:
                self._adapted[rows] = capture(partial(adapted, bearers, self._work.of(rows), make))

    @torch.inference_mode()
    def run(self, step: Step, cache: Cache) -> Made | None:
        """Run the step. Return None if no capture fits: it has chunks, too many rows, adapters that do more than add to
        linears, or needs more room in the attention plan than was allocated."""
        prepared = self._prepared(step, cache, {})
        if prepared is None:
            return None
        prepared.make()
        return self._made.first(len(step.decodes))

    @torch.inference_mode()
    def begin(self, step: Step, cache: Cache, behind: Begun | None) -> Begun | None:
        """Begin the step and choose its tokens on the device. The last tokens of sequences in the step `behind` need
        not be known. Return None where `run` does, and if a sequence needs more than `sampling/device_sampler.py`
        does."""
        sequences = step.decodes
        if not sequences or not all(map(is_plain, sequences)):
            return None
        prepared = self._prepared(step, cache, behind.rows if behind else {})
        if prepared is None:
            return None
        pick = prepared.best
        if is_drawn(sequences):
            self._picker.write(sequences, [len(sequence.tokens) for sequence in sequences])
            pick = prepared.drawn
        self._bringing.await_begun()
        prepared.make()
        pick()
        return Begun(sequences, self._bringing.begin(len(sequences)))

    def _prepared(self, step: Step, cache: Cache, before: dict[int, int]) -> Captured | None:
        """Send the numbers of this step and return the captured calls for it. `before` has the rows of the tokens that
        the last step chose, by sequence."""
        count = len(step.decodes)
        rows = min((rows for rows in self._captured if rows >= count), default=0)
        if not rows or step.chunks or cache is not self._cache:
            return None
        captured, adapters = self._captured[rows], [sequence.adapter for sequence in step.decodes]
        if any(adapters):
            if self._bearers is None or not self._bearers.write(self._work, adapters):
                return None
            captured = captured._replace(make=self._adapted[rows])
        return captured if self._write(self._rows(step, before), rows) else None

    def _launched(self, inputs: Inputs) -> Made:
        hidden = self._model.hidden(inputs, self._cache, self._attention)
        logits = self._model.logits(hidden)
        assert logits is not None, "only a model on one rank is captured"
        return Made(hidden, logits)

    def _make(self, inputs: Inputs) -> None:
        codes = inputs.tokens
        tokens = torch.where(codes < 0, self._tokens[(-1 - codes).clamp(min=0)], codes)
        made = self._launched(replace(inputs, tokens=tokens))
        for kept, new in zip(self._made.first(len(tokens)), made, strict=True):
            kept.copy_(new)

    def _pick(self, choose: Callable[[Tensor], Found], rows: int) -> None:
        made = self._made.first(rows)
        found = choose(made.logits)
        self._tokens[:rows].copy_(found.tokens)
        told = found.tokens, found.logprobs, found.fine & made.hidden.isfinite().all(-1)
        for column, values in enumerate(told):
            self._told[:rows, column].copy_(values)

    def _rows(self, step: Step, before: dict[int, int]) -> list[tuple[int, Span]]:
        """Return the token and span of each sequence; a token -1 - row refers to that row of the last step's tokens."""
        tokens = (sequence.tokens[-1] if sequence.tokens[-1] != EXPECTED else -1 - before[sequence.id]
                  for sequence in step.decodes)
        return [*zip(tokens, place(step), strict=True)]

    def _write(self, taken: list[tuple[int, Span]], rows: int) -> bool:
        nobodys = [(DUMMY_TOKEN, Span(row, 0, 1, self._nobodys)) for row in range(len(taken), rows)]
        tokens, spans = zip(*taken, *nobodys, strict=True)
        if not self._frames.write([*spans]):
            return False
        slots = chain(*(self._cache.slots(span.blocks, span.start, span.end) for span in spans))
        self._columns.send([tokens, [span.start for span in spans], [*slots]])
        return True

    def _inputs(self, rows: int) -> Inputs:
        tokens, positions, slots = (column[:rows] for column in self._columns.lists)
        return Inputs(tokens, positions, slots, torch.arange(rows, device=tokens.device), self._frames.plan(rows))


def adapted(bearers: Bearers, work: Work, make: Call) -> None:
    with bearers.standing(work):
        make()


def sizes_up_to(rows: int) -> Iterator[int]:
    """Yield the numbers of rows to capture, close enough that steps have little padding."""
    size = FEWEST
    while size < rows:
        yield size
        size += size if size < 8 else 8 if size < FINE else 32 if size < COARSE else 64
    yield size


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection: a CUDA graph that it destroys would spoil the one that is being captured."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def cuda_capture(device: torch.device) -> Capture:
    """Return a function that captures CUDA graphs, which share their memory. All are captured on one stream, since
    libraries keep a workspace per stream."""
    pool, aside = cuda.graph_pool_handle(), cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types there

    def capture(make: Call) -> Call:
        here = cuda.current_stream(device)
        aside.wait_stream(here)
        with cuda.stream(aside):
            make()  # compiles kernels and allocates workspaces of libraries
        here.wait_stream(aside)
        graph = cuda.CUDAGraph()
        with uncollected(), cuda.graph(graph, pool=pool, stream=aside, capture_error_mode="thread_local"):
            make()
        return graph.replay

    return capture
