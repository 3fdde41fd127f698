import pytest

from shard.attention import backend
from shard.attention.backend import BACKENDS, choose_attention, make_attention
from shard.config import ATTENTIONS


def test_every_backend_can_be_asked_for() -> None:
    assert ("auto", *BACKENDS) == ATTENTIONS


@pytest.mark.parametrize(("asked", "device", "chosen"), [
    ("auto", "cpu", "cpu"), ("auto", "cuda", "triton"), ("reference", "cpu", "reference"), ("cpu", "cpu", "cpu"),
    ("reference", "cuda", "reference"), ("triton", "cuda", "triton")])
def test_the_backend_fits_the_device(asked: str, device: str, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "has_triton", lambda: True)
    assert choose_attention(asked, device) == chosen


@pytest.mark.parametrize(("asked", "device"), [("cpu", "cuda"), ("triton", "cpu")])
def test_a_backend_is_refused_on_the_other_device(asked: str, device: str) -> None:
    with pytest.raises(ValueError, match=rf"--attention {asked} .* on --device {device}; use --attention auto"):
        choose_attention(asked, device)


def test_without_triton_a_gpu_computes_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "has_triton", lambda: False)
    assert choose_attention("auto", "cuda") == "reference"
    with pytest.raises(ValueError, match=r"--attention triton needs triton and gcc .* use --attention auto"):
        choose_attention("triton", "cuda")


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_is_made_for_the_heads_of_a_rank(name: str) -> None:
    if name == "triton":
        pytest.importorskip("triton")  # published for Linux only
    assert type(make_attention(name, 4, 2, 32)).__name__ == BACKENDS[name][1]
