"""Merged adapters equal those of peft's `add_weighted_adapter`: on disk, in the shard and in peft."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from support.core_with_workers import Loom, Thread
from support.peft_adapters import tiny_adapter, unwarned, with_adapter
from support.small_checkpoints import tiny_checkpoint
from torch import Tensor
from transformers import AutoModelForCausalLM

from router.request import Request, Resource
from shard.adapters import export, merge_command
from shard.adapters.merge import STRATEGIES

ROOT = Path(__file__).parents[3]
FILE = "adapter_model.safetensors"
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SEED = 11
SOME = {"r": 4, "target_modules": ["q_proj", "down_proj"]}
LAYER = "base_model.model.model.layers.0."
Q, DOWN = f"{LAYER}self_attn.q_proj.lora_A.weight", f"{LAYER}mlp.down_proj.lora_B.weight"
Config = dict[str, Any]
Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")


@pytest.fixture(scope="module")
def pair(base: Path) -> list[Path]:
    return adapters(base, SOME, SOME)


@pytest.fixture
def into(tmp_path: Path) -> Path:
    (tmp_path / "merged").mkdir()
    return tmp_path / "merged"


def adapters(base: Path, *configs: Config) -> list[Path]:
    return [tiny_adapter(base, seed=number, **config) for number, config in enumerate(configs)]


def words(folders: list[Path], into: Path, /, **changes: Any) -> str:
    """Return a merge request as JSON; a change to None leaves a key out."""
    weights = [0.7, 0.3, -0.4][:len(folders)]
    usual = {"folders": list(map(str, folders)), "weights": weights, "strategy": "linear", "density": 0.5,
             "sign": "total", "seed": SEED, "into": str(into)}
    return json.dumps({name: value for name, value in (usual | changes).items() if value is not None})


def merged(folders: list[Path], into: Path, /, **changes: Any) -> Tensors:
    merge_command.merge(merge_command.read_order(words(folders, into, **changes)))
    return load_file(into / FILE)


def refusal(folders: list[Path], into: Path, /, **changes: Any) -> str:
    with pytest.raises(ValueError) as complaint:  # noqa: PT011 - callers check the text
        merge_command.merge(merge_command.read_order(words(folders, into, **changes)))
    return str(complaint.value)


def by_peft(base: Path, folders: list[Path], weights: list[float], **how: Any) -> PeftModel:
    names = [f"source{number}" for number in range(len(folders))]
    with unwarned(), torch.random.fork_rng():
        model = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(base, dtype="float32"), folders[0], adapter_name=names[0])
        for name, folder in zip(names[1:], folders[1:], strict=True):
            model.load_adapter(folder, adapter_name=name)
        seed_behind(model.base_model)
        model.add_weighted_adapter(names, weights, "merged", **how)
    model.set_adapter("merged")
    return model.eval()


def seed_behind(model: Any) -> None:
    """Seed after a new adapter's random initialisation, which must not affect the draws of the merge."""
    inject = model.inject_adapter

    def inject_and_seed(*arguments: Any) -> None:
        inject(*arguments)
        torch.manual_seed(SEED)

    model.inject_adapter = inject_and_seed


def tensors_of(model: PeftModel) -> Tensors:
    return get_peft_model_state_dict(model, adapter_name="merged", save_embedding_layers=False)


def same(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-6, atol=1e-7, msg=name)


CASES: dict[str, list[Config]] = {
    "two alike": [SOME, SOME],
    "three alike": [SOME, SOME, SOME],
    "scales": [SOME | {"lora_alpha": 1}, SOME | {"lora_alpha": 32}],
    "rank-stabilised": [SOME | {"use_rslora": True, "lora_alpha": 5}, SOME],
    "scales by module": [SOME | {"alpha_pattern": {"q_proj": 3, r"layers\.1\.mlp\.down_proj": 20}}, SOME],
    "ranks by module": [SOME | {"rank_pattern": {"q_proj": 8}}, SOME | {"r": 8, "rank_pattern": {"down_proj": 4}}],
    "other modules": [SOME, {"r": 4, "target_modules": ["v_proj", "q_proj"]}, {"r": 4, "target_modules": ["up_proj"]}],
    "a pattern": [{"r": 4, "target_modules": r".*\.(q_proj|up_proj)"}, {"r": 4, "target_modules": r".*\.0\..*k_proj"}],
    "embedding and head": [{"r": 4, "target_modules": ["embed_tokens", "lm_head"]}] * 2,
    "the embedding of one": [SOME, {"r": 4, "target_modules": ["embed_tokens", "q_proj"]}],
}


@pytest.mark.slow
@pytest.mark.parametrize("configs", CASES.values(), ids=list(CASES))
@pytest.mark.parametrize(("strategy", "sign"), [("linear", "total"), ("ties", "total"), ("ties", "frequency")])
def test_the_tensors_are_those_of_peft(base: Path, into: Path, configs: list[Config], strategy: str, sign: str) -> None:
    folders, weights = adapters(base, *configs), [0.7, -0.4, 1.3][:len(configs)]
    found = merged(folders, into, weights=weights, strategy=strategy, sign=sign)
    same(found, tensors_of(by_peft(base, folders, weights, combination_type=strategy, density=0.5,
                                   majority_sign_method=sign)))


@pytest.mark.slow
@pytest.mark.parametrize("density", [0.3, 1.0])
@pytest.mark.parametrize("strategy", ["dare_linear", "dare_ties"])
def test_what_is_drawn_is_what_peft_draws_from_the_same_seed(
        base: Path, into: Path, strategy: str, density: float) -> None:
    """Only one kind of module: peft draws in the order of the model's modules, not of their names."""
    folders, weights = adapters(base, *[{"r": 4, "target_modules": ["up_proj"]}] * 3), [0.7, -0.4, 1.3]
    found = merged(folders, into, weights=weights, strategy=strategy, density=density)
    same(found, tensors_of(by_peft(base, folders, weights, combination_type=strategy, density=density)))


# ---------------------------------------------------------------------------------------------------------------------
# Merged adapters in use


def logits(model: torch.nn.Module) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(input_ids=torch.tensor([range(2, 40)])).logits
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["three alike", "ranks by module", "other modules", "embedding and head"])
def test_peft_and_the_shard_go_by_it_as_by_peft_s_own(base: Path, into: Path, name: str) -> None:
    folders = adapters(base, *CASES[name])
    weights = [0.7, 0.3, -0.4][:len(folders)]
    merged(folders, into, weights=weights, strategy="ties")
    oracle = by_peft(base, folders, weights, combination_type="ties", density=0.5)
    torch.testing.assert_close(logits(with_adapter(base, into)), logits(oracle), rtol=1e-5, atol=1e-5)
    prompt = tuple(range(2, 30))
    with Loom(base, adaptable=True) as loom:
        loom.load_adapter(1, into)
        heard = loom.weave([Thread(Request("one", prompt, adapter=Resource("adapter", 1), max_new_tokens=16))])[0]
    oracle.generation_config.eos_token_id = None
    ids = oracle.generate(input_ids=torch.tensor([prompt]), do_sample=False, max_new_tokens=16, pad_token_id=0)
    assert heard.tokens == ids[0, len(prompt):].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1])
def test_layers_that_the_first_adapter_leaves_alone_are_not_lost(base: Path, into: Path, first: int) -> None:
    """peft takes `layers_to_transform` from the first adapter and loses the layers of the other."""
    folders = adapters(base, *({"r": 4, "target_modules": ["q_proj"], "layers_to_transform": [layer]}
                               for layer in (first, 1 - first)))
    found = merged(folders, into, weights=[0.5, 0.5])
    seen = tensors_of(by_peft(base, folders, [0.5, 0.5], combination_type="linear"))
    assert len(seen) == 2
    same(found, seen | tensors_of(by_peft(base, folders[::-1], [0.5, 0.5], combination_type="linear")))


@pytest.mark.slow
def test_modules_that_the_first_adapter_excludes_are_not_lost(base: Path, into: Path) -> None:
    folders = adapters(base, {"r": 4, "target_modules": ["v_proj"], "exclude_modules": ["q_proj"]},
                       {"r": 4, "target_modules": ["q_proj"]})
    same(merged(folders, into, weights=[0.5, 0.5]),
         tensors_of(by_peft(base, folders[::-1], [0.5, 0.5], combination_type="linear")))


@pytest.mark.slow
def test_a_scale_is_applied_once_where_the_first_adapter_is_rank_stabilised(base: Path, into: Path) -> None:
    """In peft the order matters: the merged adapter is rank-stabilised if the first one is."""
    folders = adapters(base, SOME | {"use_rslora": True, "lora_alpha": 5}, SOME)
    merged(folders, into, weights=[0.7, 0.3])
    oracle = by_peft(base, folders[::-1], [0.3, 0.7], combination_type="linear")
    torch.testing.assert_close(logits(with_adapter(base, into)), logits(oracle), rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------------------------------------------------------
# Written files


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_order_makes_the_same_bytes(pair: list[Path], tmp_path: Path, strategy: str) -> None:
    made = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        merged(pair, tmp_path / name, strategy=strategy)
        made.append(contents(tmp_path / name))
    assert made[0] == made[1]
    assert made[0].keys() == {FILE, "adapter_config.json"}


@pytest.mark.parametrize(("strategy", "differ"), [("ties", False), ("dare_linear", True), ("dare_ties", True)])
def test_only_what_is_drawn_goes_by_the_seed(pair: list[Path], tmp_path: Path, strategy: str, differ: bool) -> None:
    made = []
    for seed in (0, 2**64 - 1):
        (tmp_path / str(seed)).mkdir()
        merged(pair, tmp_path / str(seed), strategy=strategy, seed=seed)
        made.append(contents(tmp_path / str(seed))[FILE])
    assert (made[0] != made[1]) == differ


@pytest.mark.slow
@pytest.mark.parametrize(("dtypes", "expected"), [
    (("bfloat16", "bfloat16"), torch.bfloat16), (("float16", "float16"), torch.float16),
    (("bfloat16", "float16"), torch.float32), (("bfloat16", "float32"), torch.float32),
    (("float64", "float64"), torch.float32)])
def test_it_is_stored_in_float32_unless_all_are_narrower(
        base: Path, into: Path, dtypes: tuple[str, str], expected: torch.dtype) -> None:
    folders = [tiny_adapter(base, seed=number, dtype=dtype, **SOME) for number, dtype in enumerate(dtypes)]
    found = merged(folders, into)
    assert {tensor.dtype for tensor in found.values()} == {expected}
    one, other = (load_file(folder / FILE)[Q].double() for folder in folders)
    exact = (0.7 * 2) ** 0.5 * one + (0.3 * 2) ** 0.5 * other
    near = 1e-6 if expected is torch.float32 else 0.01
    torch.testing.assert_close(found[Q], exact.to(expected), rtol=near, atol=1e-6)


def test_what_the_first_says_of_its_base_is_kept(base: Path, into: Path) -> None:
    folders = adapters(base, SOME | {"task_type": "CAUSAL_LM"}, SOME)
    merged(folders, into)
    found = json.loads((into / "adapter_config.json").read_text())
    assert (found["base_model_name_or_path"], found["task_type"]) == (str(base), "CAUSAL_LM")
    assert found["target_modules"] == sorted(f"model.layers.{layer}.{module}" for layer in (0, 1)
                                             for module in ("self_attn.q_proj", "mlp.down_proj"))


def test_adapters_whose_models_were_wrapped_otherwise_go_together(pair: list[Path], into: Path, tmp_path: Path) -> None:
    other = Path(copytree(pair[1], tmp_path / "other"))
    rewrite(other, lambda all_: [all_.update({name.replace("model.model.layers", "model.language_model.model.layers"):
                                              all_.pop(name)}) for name in list(all_)])
    found = merged([pair[0], other], into)
    (tmp_path / "usual").mkdir()
    same(found, merged(pair, tmp_path / "usual"))


# ---------------------------------------------------------------------------------------------------------------------
# Rejected requests


def rewrite(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / FILE)
    change(tensors)
    save_file(tensors, folder / FILE)


@pytest.mark.parametrize(("changes", "reason"), [
    ({"folders": ["/one"], "weights": [1.0]}, "folders must be a list of at least 2"),
    ({"folders": "ab"}, "folders must be a list of at least 2"),
    ({"folders": ["/one", 3]}, "folders must name a folder, got 3"),
    ({"folders": ["/one", ""]}, "folders must name a folder, got ''"),
    ({"into": 5}, "into must name a folder, got 5"),
    ({"weights": [1.0]}, "weights must be a list of 2, one for each folder; got [1.0]"),
    ({"weights": {"a": 1}}, "weights must be a list of 2"),
    ({"weights": [1.0, float("nan")]}, "weights must be finite numbers, got nan"),
    ({"weights": [float("-inf"), 1.0]}, "weights must be finite numbers, got -inf"),
    ({"weights": [1.0, 10**400]}, "weights must be finite numbers, got 1000"),
    ({"weights": [1.0, "1"]}, "weights must be finite numbers, got '1'"),
    ({"weights": [1.0, True]}, "weights must be finite numbers, got True"),
    ({"density": 0}, "density must be a number above 0, got 0"),
    ({"density": -0.5}, "density must be a number above 0, got -0.5"),
    ({"density": 1.01}, "density must be a number above 0 and at most 1, got 1.01"),
    ({"density": float("nan")}, "density must be a number above 0, got nan"),
    ({"strategy": "svd"}, "strategy svd is not supported; supported: linear, ties, dare_linear, dare_ties"),
    ({"strategy": ["ties"]}, "is not supported; supported: linear"),
    ({"sign": "most"}, "sign most is not supported; supported: total, frequency"),
    ({"seed": -1}, "seed must be a whole number from 0 to 18446744073709551615, got -1"),
    ({"seed": 2**64}, "seed must be a whole number"),
    ({"seed": 1.5}, "seed must be a whole number"),
    ({"seed": None}, "an order to merge is an object of density, folders, into, seed, sign, strategy, weights"),
    ({"more": 1}, "an order to merge is an object of"),
])
def test_an_order_that_says_nothing_sensible_is_refused(into: Path, changes: dict[str, Any], reason: str) -> None:
    assert reason in refusal([Path("/one"), Path("/other")], into, **changes)
    assert list(into.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[1]", "7", "{" * 100_000, '"linear"'])
def test_an_order_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="an order to merge is"):
        merge_command.read_order(text)


def test_different_ranks_of_a_module_are_refused(base: Path, into: Path) -> None:
    folders = adapters(base, SOME, SOME | {"rank_pattern": {"down_proj": 6}})
    assert refusal(folders, into) == (
        f"unable to merge adapters, lora configs have different ranks: 4 in {folders[0]}, 6 in {folders[1]}, for "
        f"model.layers.0.mlp.down_proj")


@pytest.mark.slow
def test_ranks_may_differ_where_no_module_is_shared(base: Path, into: Path) -> None:
    folders = adapters(base, {"r": 4, "target_modules": ["q_proj"]}, {"r": 8, "target_modules": ["v_proj"]})
    merged(folders, into, weights=[1.0, 1.0])
    with Loom(base, adaptable=True) as loom:
        loom.load_adapter(1, into)


@pytest.mark.parametrize("saved", ["lm_head", "embed_tokens"])
def test_weights_saved_as_a_whole_are_refused_by_name(base: Path, into: Path, saved: str) -> None:
    folders = adapters(base, SOME, SOME | {"modules_to_save": [saved]})
    assert f"{saved}.weight, a weight as a whole (modules_to_save)" in refusal(folders, into)


def test_adapters_of_other_models_are_refused(pair: list[Path], into: Path, base: Path) -> None:
    other = tiny_adapter(tiny_checkpoint(base.parent, "llama", hidden_size=128), **SOME)
    assert "they are not of the same model: model.layers.0.mlp.down_proj is [64, " in refusal([pair[0], other], into)


@pytest.mark.parametrize(("change", "reason"), [
    (lambda all_: all_.pop(Q), "self_attn.q_proj.lora_B.weight without the other matrix of layers.0.self_attn.q_proj"),
    (lambda all_: all_.update({Q: torch.zeros(5, 64)}), "q_proj.lora_A.weight as [5, 64] and "),
    (lambda all_: all_.update({Q: torch.zeros(4)}), "its adapter_config.json asks for a rank of 4"),
    (lambda all_: all_.update({Q: torch.zeros(4, 64, dtype=torch.int32)}), "is stored as I32; supported: F64, F32"),
    (lambda all_: all_[DOWN][3].fill_(float("nan")), "down_proj.lora_B.weight has numbers that are infinite or none"),
    (lambda all_: all_.update({f"{LAYER}self_attn.q_proj.lora_magnitude_vector": torch.zeros(64)}),
     "q_proj.lora_magnitude_vector, which is no matrix of a LoRA"),
], ids=range(6))
def test_what_is_wrong_with_tensors_is_named(
        pair: list[Path], into: Path, tmp_path: Path, change: Callable[[Tensors], object], reason: str) -> None:
    broken = Path(copytree(pair[1], tmp_path / "broken"))
    rewrite(broken, change)
    found = refusal([pair[0], broken], into)
    assert reason in found
    assert str(broken) in found


def test_a_config_that_asks_for_more_is_refused(pair: list[Path], into: Path, tmp_path: Path) -> None:
    changed = Path(copytree(pair[1], tmp_path / "changed"))
    path = changed / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"use_dora": True}))
    assert f"{path}: use_dora is not supported" in refusal([pair[0], changed], into)


def test_adapters_without_any_matrix_are_refused(pair: list[Path], into: Path, tmp_path: Path) -> None:
    empty = Path(copytree(pair[0], tmp_path / "empty"))
    save_file({}, empty / FILE)
    assert refusal([empty, empty], into) == "unable to merge adapters: none of them has any matrix"


def test_a_folder_that_is_not_there_is_named(pair: list[Path], into: Path) -> None:
    assert "/nowhere/adapter_config.json cannot be read: No such file or" in refusal([pair[0], Path("/nowhere")], into)
    missing = into / "missing"
    assert f"{missing / FILE} cannot be written: No such file or directory" == refusal(pair, missing)


@pytest.mark.parametrize(("dtype", "weight"), [("float16", 1e12), ("float32", 1e300)])
def test_numbers_that_became_too_large_are_refused(base: Path, into: Path, dtype: str, weight: float) -> None:
    folders = [tiny_adapter(base, dtype=dtype, **SOME)] * 2
    kind = {"float16": "F16", "float32": "F32"}[dtype]
    assert f"has numbers beyond what {kind} holds with weights of {weight}, 1.0" in refusal(
        folders, into, weights=[weight, 1])


# ---------------------------------------------------------------------------------------------------------------------
# The program


def run(order: str, *before: str) -> tuple[int, str, str]:
    done = subprocess.run([*before, sys.executable, "-P", "-m", "shard.adapters.merge_command", order],
                          cwd=ROOT, check=False,
                          env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
                          capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_the_program_says_nothing_when_it_is_done(pair: list[Path], into: Path, tmp_path: Path) -> None:
    assert run(words(pair, into, strategy="dare_ties")) == (0, "", "")
    (tmp_path / "here").mkdir()
    merged(pair, tmp_path / "here", strategy="dare_ties")
    assert contents(into) == contents(tmp_path / "here")


def test_the_program_says_what_is_wrong_in_a_line(
        pair: list[Path], into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["merge", words([pair[0], Path("/no\nwhere")], into)])
    with pytest.raises(SystemExit) as ended:
        merge_command.main()
    assert ended.value.code == "/no where/adapter_config.json cannot be read: No such file or directory"


@pytest.mark.slow
def test_a_disk_that_takes_no_more_is_a_line(pair: list[Path], into: Path) -> None:
    """`ulimit -f 2` limits files to one or two KiB, depending on the shell."""
    code, out, said = run(words(pair, into), "sh", "-c", 'ulimit -f 2; exec "$@"', "sh")
    assert (code, out, said) == (1, "", f"{into / FILE} cannot be written: File too large\n")


def test_a_full_disk_is_told_also_when_the_last_byte_is_on_its_way(
        pair: list[Path], into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export.os, "fsync", full)
    assert refusal(pair, into) == f"{into / FILE} cannot be written: No space left on device"
