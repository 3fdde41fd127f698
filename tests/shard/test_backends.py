import pytest

from shard.attention.backends import BACKENDS, choose_attention, make_attention
from shard.config import ATTENTIONS


def test_every_backend_can_be_asked_for() -> None:
    assert ("auto", *BACKENDS) == ATTENTIONS


@pytest.mark.parametrize(("asked", "device", "chosen"), [
    ("auto", "cpu", "cpu"), ("auto", "cuda", "reference"), ("reference", "cpu", "reference"), ("cpu", "cpu", "cpu"),
    ("reference", "cuda", "reference")])
def test_the_backend_fits_the_device(asked: str, device: str, chosen: str) -> None:
    assert choose_attention(asked, device) == chosen


def test_the_cpu_backend_is_refused_on_a_gpu() -> None:
    with pytest.raises(ValueError, match=r"--attention cpu .* use --attention reference"):
        choose_attention("cpu", "cuda")


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_is_made_for_the_heads_of_a_rank(name: str) -> None:
    assert type(make_attention(name, 4, 2, 32)) is BACKENDS[name]
