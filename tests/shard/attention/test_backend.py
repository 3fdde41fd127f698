import pytest

from shard.attention import backend
from shard.attention.backend import ATTENTION_BACKENDS, choose_attention_backend, make_attention_backend
from shard.config import ATTENTION_CHOICES
from shard.native.library import load_library


def test_every_backend_is_an_attention_choice() -> None:
    assert ("auto", *ATTENTION_BACKENDS) == ATTENTION_CHOICES


@pytest.mark.parametrize(("requested", "device", "chosen"), [
    ("auto", "cpu", "native"), ("auto", "cuda", "triton"), ("reference", "cpu", "reference"), ("cpu", "cpu", "cpu"),
    ("native", "cpu", "native"), ("reference", "cuda", "reference"), ("triton", "cuda", "triton")])
def test_backend_is_chosen_for_the_device(requested: str, device: str, chosen: str,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "has_triton", lambda: True)
    assert choose_attention_backend(requested, device, is_native_possible=True) == chosen


def test_cpu_without_compiled_kernels_uses_attention_of_torch() -> None:
    assert choose_attention_backend("auto", "cpu", is_native_possible=False) == "cpu"
    with pytest.raises(ValueError, match=r"--attention native needs compiled kernels .* use --attention auto"):
        choose_attention_backend("native", "cpu", is_native_possible=False)


@pytest.mark.parametrize(("requested", "device"), [("cpu", "cuda"), ("native", "cuda"), ("triton", "cpu")])
def test_backend_is_rejected_on_the_wrong_device(requested: str, device: str) -> None:
    with pytest.raises(ValueError, match=rf"--attention {requested} .* on --device {device}; use --attention auto"):
        choose_attention_backend(requested, device, is_native_possible=True)


def test_gpu_without_triton_uses_the_reference_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "has_triton", lambda: False)
    assert choose_attention_backend("auto", "cuda", is_native_possible=False) == "reference"
    with pytest.raises(ValueError, match=r"--attention triton needs triton and gcc .* use --attention auto"):
        choose_attention_backend("triton", "cuda", is_native_possible=False)


@pytest.mark.parametrize("name", ATTENTION_BACKENDS)
def test_every_backend_can_be_made(name: str) -> None:
    if name == "triton":
        pytest.importorskip("triton")  # published for Linux only
    if name == "native" and load_library() is None:
        pytest.skip("there are no compiled kernels here")
    assert type(make_attention_backend(name, 4, 2, 32)).__name__ == ATTENTION_BACKENDS[name][1]
