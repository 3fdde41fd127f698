"""A decoder embeds a text as the last token's hidden state, the same in any batch, and keeps no state."""

from functools import partial
from pathlib import Path

import pytest
import torch
from support.peft_adapters import tiny_adapter, with_adapter
from support.small_checkpoints import FAMILIES, tiny_checkpoint
from transformers import AutoModel

from shard.adapters.routing import Bearers
from shard.adapters.slots import Racks
from shard.attention.backend import make_attention
from shard.attention.kv_cache import PassingCache
from shard.attention.variant import Variant
from shard.config import ShardConfig
from shard.parallel.group import Group
from shard.pb import shard_pb2 as pb
from shard.runner.decoder_embedder import Embedder
from shard.runner.pooling import Pooling
from shard.state.columns import Text
from shard.workers.decoder import ModelWorker
from shard.workers.load_decoder import make_cache
from tests.shard.encoders import TEXTS, text
from tests.shard.forward import CPU, read_model
from tests.shard.messages import WARMUP, embed, vectors_of
from tests.shard.side_by_side import side_by_side

POISON = 500  # a token whose embedding is NaN
SOME = ("llama", "gemma3")  # full attention, and sliding windows
NAMES = [pytest.param(name, marks=() if name in SOME else pytest.mark.long) for name in FAMILIES]


def made(folder: Path, group: Group, *, width: int = 64, poison: bool = False) -> Embedder:
    model = read_model(folder, torch.float32, group)
    if poison:
        model.embedding.weight[POISON] = torch.nan  # type: ignore[attr-defined]  # tests know the concrete class
    config = model.config
    attention = make_attention("cpu", config.num_heads // group.size, model.num_kv_heads, config.head_dim,
                               Variant(config.scale, config.softcap, config.windows))
    cache = partial(make_cache, model, 16, dtype=torch.float32, device=CPU, kind=PassingCache)
    return Embedder(model, attention, Pooling("last", width), Bearers(CPU, Racks()), make_cache=cache, device=CPU)


def alone(folder: Path, **more: object) -> Embedder:
    (embedder,) = side_by_side(1, lambda group: made(folder, group, **more))  # type: ignore[arg-type]
    return embedder


@pytest.fixture(scope="module", params=NAMES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.getbasetemp(), request.param)


def test_a_vector_is_what_the_last_token_has_with_transformers(folder: Path) -> None:
    model = AutoModel.from_pretrained(folder)
    with torch.inference_mode():
        expected = [model(torch.tensor([each.tokens])).last_hidden_state[0, -1] for each in TEXTS]
    found = alone(folder).vectors(TEXTS)
    torch.testing.assert_close(torch.tensor(found), torch.stack(expected), rtol=1e-4, atol=1e-4)


def test_it_is_the_same_alone_and_in_company_in_any_order(folder: Path) -> None:
    embedder = alone(folder)
    expected = [embedder.vectors([each])[0] for each in TEXTS]
    assert embedder.vectors(TEXTS) == expected
    assert embedder.vectors(TEXTS[::-1]) == expected[::-1]


@pytest.mark.slow
def test_two_ranks_say_the_same(folder: Path) -> None:
    first, second = side_by_side(2, lambda group: made(folder, group).vectors(TEXTS))
    assert first == second
    torch.testing.assert_close(torch.tensor(first), torch.tensor(alone(folder).vectors(TEXTS)), rtol=1e-4, atol=1e-4)


def test_only_its_first_values_may_be_wanted(folder: Path) -> None:
    expected = alone(folder).vectors([text(9)])[0]
    assert expected is not None
    assert alone(folder, width=10).vectors([text(9)]) == [expected[:10]]


def test_a_text_that_is_no_number_fails_alone_and_leaves_nothing_behind(
        tmp_path_factory: pytest.TempPathFactory) -> None:
    embedder = alone(tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama"), poison=True)
    expected = embedder.vectors([text(70)])
    poisoned = Text([*text(90).tokens[:40], POISON, *text(90).tokens[41:]])
    assert embedder.vectors([poisoned, text(70), poisoned]) == [None, *expected, None]
    assert embedder.vectors([text(70)]) == expected


@pytest.mark.slow
def test_an_adapter_is_pefts_for_whom_it_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")
    adapter, tokens = tiny_adapter(base, r=4), TEXTS[2].tokens
    worker = ModelWorker(ShardConfig(model=str(base), device="cpu", threads=1, adaptable=True, embedding_dim=16))
    worker.warmup(WARMUP)
    worker.load(pb.LoadRequest(epoch=1, kind=pb.KIND_ADAPTER, id=5, source=str(adapter)))
    plain, changed = vectors_of(worker.embed(embed(tokens, tokens, adapters=[0, 5])))
    with torch.inference_mode():
        said = with_adapter(base, adapter)(torch.tensor([tokens]), output_hidden_states=True)
    torch.testing.assert_close(torch.tensor(changed), said.hidden_states[-1][0, -1, :16], rtol=1e-4, atol=1e-4)
    assert vectors_of(worker.embed(embed(tokens))) == [plain]
    assert plain != changed
