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
from support.checkpoints.peft_adapters import load_with_adapter, make_tiny_adapter, suppress_peft_warnings
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.shards.scheduler_with_workers import ScheduledRequest, SchedulerWithWorkers
from torch import Tensor
from transformers import AutoModelForCausalLM

from router.request import LoadableResource, Request
from shard.adapters import merge_adapters_command, peft_export
from shard.adapters.merge_strategies import MERGE_STRATEGIES

REPOSITORY_ROOT = Path(__file__).parents[3]
WEIGHTS_FILE = "adapter_model.safetensors"
ALL_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SEED = 11
TWO_MODULE_CONFIG = {"r": 4, "target_modules": ["q_proj", "down_proj"]}
LAYER_PREFIX = "base_model.model.model.layers.0."
Q_PROJ_LORA_A, DOWN_PROJ_LORA_B = (f"{LAYER_PREFIX}self_attn.q_proj.lora_A.weight",
                                   f"{LAYER_PREFIX}mlp.down_proj.lora_B.weight")
LoraConfigJson = dict[str, Any]
TensorsByName = dict[str, Tensor]


@pytest.fixture(scope="module")
def base_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")


@pytest.fixture(scope="module")
def adapter_pair(base_checkpoint: Path) -> list[Path]:
    return make_adapters(base_checkpoint, TWO_MODULE_CONFIG, TWO_MODULE_CONFIG)


@pytest.fixture
def output_folder(tmp_path: Path) -> Path:
    (tmp_path / "merged").mkdir()
    return tmp_path / "merged"


def make_adapters(base: Path, *configs: LoraConfigJson) -> list[Path]:
    return [make_tiny_adapter(base, seed=number, **config) for number, config in enumerate(configs)]


def make_merge_request(folders: list[Path], output_folder: Path, /, **changes: Any) -> str:
    """Return a merge request as JSON; a change to None leaves a key out."""
    weights = [0.7, 0.3, -0.4][:len(folders)]
    default_request = {"folders": list(map(str, folders)), "weights": weights, "strategy": "linear", "density": 0.5,
                       "sign": "total", "seed": SEED, "into": str(output_folder)}
    return json.dumps({name: value for name, value in (default_request | changes).items() if value is not None})


def merge_adapters(folders: list[Path], output_folder: Path, /, **changes: Any) -> TensorsByName:
    merge_adapters_command.merge_adapters(
        merge_adapters_command.parse_merge_request(make_merge_request(folders, output_folder, **changes)))
    return load_file(output_folder / WEIGHTS_FILE)


def get_merge_error(folders: list[Path], output_folder: Path, /, **changes: Any) -> str:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - callers check the text
        merge_adapters_command.merge_adapters(
            merge_adapters_command.parse_merge_request(make_merge_request(folders, output_folder, **changes)))
    return str(error.value)


def merge_with_peft(base: Path, folders: list[Path], weights: list[float], **merge_options: Any) -> PeftModel:
    names = [f"source{number}" for number in range(len(folders))]
    with suppress_peft_warnings(), torch.random.fork_rng():
        model = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(base, dtype="float32"), folders[0], adapter_name=names[0])
        for name, folder in zip(names[1:], folders[1:], strict=True):
            model.load_adapter(folder, adapter_name=name)
        seed_after_injection(model.base_model)
        model.add_weighted_adapter(names, weights, "merged", **merge_options)
    model.set_adapter("merged")
    return model.eval()


def seed_after_injection(model: Any) -> None:
    """Seed after a new adapter's random initialization, which must not affect the draws of the merge."""
    inject = model.inject_adapter

    def inject_and_seed(*arguments: Any) -> None:
        inject(*arguments)
        torch.manual_seed(SEED)

    model.inject_adapter = inject_and_seed


def get_merged_tensors(model: PeftModel) -> TensorsByName:
    return get_peft_model_state_dict(model, adapter_name="merged", save_embedding_layers=False)


def check_same_tensors(actual: TensorsByName, expected: TensorsByName) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in actual.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-6, atol=1e-7, msg=name)


ADAPTER_CONFIG_CASES: dict[str, list[LoraConfigJson]] = {
    "two alike": [TWO_MODULE_CONFIG, TWO_MODULE_CONFIG],
    "three alike": [TWO_MODULE_CONFIG, TWO_MODULE_CONFIG, TWO_MODULE_CONFIG],
    "scales": [TWO_MODULE_CONFIG | {"lora_alpha": 1}, TWO_MODULE_CONFIG | {"lora_alpha": 32}],
    "rank-stabilised": [TWO_MODULE_CONFIG | {"use_rslora": True, "lora_alpha": 5}, TWO_MODULE_CONFIG],
    "scales by module": [TWO_MODULE_CONFIG | {"alpha_pattern": {"q_proj": 3, r"layers\.1\.mlp\.down_proj": 20}},
                         TWO_MODULE_CONFIG],
    "ranks by module": [TWO_MODULE_CONFIG | {"rank_pattern": {"q_proj": 8}},
                        TWO_MODULE_CONFIG | {"r": 8, "rank_pattern": {"down_proj": 4}}],
    "other modules": [TWO_MODULE_CONFIG, {"r": 4, "target_modules": ["v_proj", "q_proj"]},
                      {"r": 4, "target_modules": ["up_proj"]}],
    "a pattern": [{"r": 4, "target_modules": r".*\.(q_proj|up_proj)"}, {"r": 4, "target_modules": r".*\.0\..*k_proj"}],
    "embedding and head": [{"r": 4, "target_modules": ["embed_tokens", "lm_head"]}] * 2,
    "the embedding of one": [TWO_MODULE_CONFIG, {"r": 4, "target_modules": ["embed_tokens", "q_proj"]}],
}


@pytest.mark.slow
@pytest.mark.parametrize("configs", ADAPTER_CONFIG_CASES.values(), ids=list(ADAPTER_CONFIG_CASES))
@pytest.mark.parametrize(("strategy", "sign"), [("linear", "total"), ("ties", "total"), ("ties", "frequency")])
def test_merged_tensors_match_peft(base_checkpoint: Path, output_folder: Path, configs: list[LoraConfigJson],
                                   strategy: str, sign: str) -> None:
    folders, weights = make_adapters(base_checkpoint, *configs), [0.7, -0.4, 1.3][:len(configs)]
    merged = merge_adapters(folders, output_folder, weights=weights, strategy=strategy, sign=sign)
    check_same_tensors(merged,
                       get_merged_tensors(merge_with_peft(base_checkpoint, folders, weights, combination_type=strategy,
                                                          density=0.5, majority_sign_method=sign)))


@pytest.mark.slow
@pytest.mark.parametrize("density", [0.3, 1.0])
@pytest.mark.parametrize("strategy", ["dare_linear", "dare_ties"])
def test_dare_drops_the_same_values_as_peft_for_the_same_seed(
        base_checkpoint: Path, output_folder: Path, strategy: str, density: float) -> None:
    """Only one kind of module: peft draws in the order of the model's modules, not of their names."""
    folders, weights = make_adapters(base_checkpoint, *[{"r": 4, "target_modules": ["up_proj"]}] * 3), [0.7, -0.4, 1.3]
    merged = merge_adapters(folders, output_folder, weights=weights, strategy=strategy, density=density)
    check_same_tensors(merged, get_merged_tensors(merge_with_peft(base_checkpoint, folders, weights,
                                                                  combination_type=strategy, density=density)))


# ---------------------------------------------------------------------------------------------------------------------
# Merged adapters in use


def compute_logits(model: torch.nn.Module) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(input_ids=torch.tensor([range(2, 40)])).logits
    return logits


@pytest.mark.slow
@pytest.mark.parametrize("name", ["three alike", "ranks by module", "other modules", "embedding and head"])
def test_merged_adapter_gives_the_outputs_of_one_merged_by_peft(base_checkpoint: Path, output_folder: Path,
                                                                name: str) -> None:
    folders = make_adapters(base_checkpoint, *ADAPTER_CONFIG_CASES[name])
    weights = [0.7, 0.3, -0.4][:len(folders)]
    merge_adapters(folders, output_folder, weights=weights, strategy="ties")
    peft_model = merge_with_peft(base_checkpoint, folders, weights, combination_type="ties", density=0.5)
    torch.testing.assert_close(compute_logits(load_with_adapter(base_checkpoint, output_folder)),
                               compute_logits(peft_model), rtol=1e-5, atol=1e-5)
    prompt = tuple(range(2, 30))
    with SchedulerWithWorkers(base_checkpoint, adaptable=True) as harness:
        harness.load_adapter(1, output_folder)
        output = harness.run_together(
            [ScheduledRequest(Request("one", prompt, adapter=LoadableResource("adapter", 1), max_new_tokens=16))])[0]
    peft_model.generation_config.eos_token_id = None
    ids = peft_model.generate(input_ids=torch.tensor([prompt]), do_sample=False, max_new_tokens=16, pad_token_id=0)
    assert output.tokens == ids[0, len(prompt):].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1])
def test_layers_absent_from_the_first_adapter_are_not_lost(base_checkpoint: Path, output_folder: Path,
                                                           first: int) -> None:
    """peft takes `layers_to_transform` from the first adapter and loses the layers of the other."""
    folders = make_adapters(base_checkpoint, *({"r": 4, "target_modules": ["q_proj"], "layers_to_transform": [layer]}
                                               for layer in (first, 1 - first)))
    merged = merge_adapters(folders, output_folder, weights=[0.5, 0.5])
    peft_tensors = get_merged_tensors(merge_with_peft(base_checkpoint, folders, [0.5, 0.5], combination_type="linear"))
    assert len(peft_tensors) == 2
    check_same_tensors(merged, peft_tensors | get_merged_tensors(
        merge_with_peft(base_checkpoint, folders[::-1], [0.5, 0.5], combination_type="linear")))


@pytest.mark.slow
def test_modules_that_the_first_adapter_excludes_are_not_lost(base_checkpoint: Path, output_folder: Path) -> None:
    folders = make_adapters(base_checkpoint, {"r": 4, "target_modules": ["v_proj"], "exclude_modules": ["q_proj"]},
                            {"r": 4, "target_modules": ["q_proj"]})
    check_same_tensors(merge_adapters(folders, output_folder, weights=[0.5, 0.5]),
                       get_merged_tensors(merge_with_peft(base_checkpoint, folders[::-1], [0.5, 0.5],
                                                          combination_type="linear")))


@pytest.mark.slow
def test_a_scale_is_applied_once_where_the_first_adapter_is_rank_stabilised(base_checkpoint: Path,
                                                                            output_folder: Path) -> None:
    """In peft the order matters: the merged adapter is rank-stabilised if the first one is."""
    folders = make_adapters(base_checkpoint, TWO_MODULE_CONFIG | {"use_rslora": True, "lora_alpha": 5},
                            TWO_MODULE_CONFIG)
    merge_adapters(folders, output_folder, weights=[0.7, 0.3])
    peft_model = merge_with_peft(base_checkpoint, folders[::-1], [0.3, 0.7], combination_type="linear")
    torch.testing.assert_close(compute_logits(load_with_adapter(base_checkpoint, output_folder)),
                               compute_logits(peft_model), rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------------------------------------------------------
# Written files


def read_folder(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("strategy", MERGE_STRATEGIES)
def test_same_merge_request_writes_the_same_bytes(adapter_pair: list[Path], tmp_path: Path, strategy: str) -> None:
    written = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        merge_adapters(adapter_pair, tmp_path / name, strategy=strategy)
        written.append(read_folder(tmp_path / name))
    assert written[0] == written[1]
    assert written[0].keys() == {WEIGHTS_FILE, "adapter_config.json"}


@pytest.mark.parametrize(("strategy", "differ"), [("ties", False), ("dare_linear", True), ("dare_ties", True)])
def test_seed_affects_only_dare_strategies(adapter_pair: list[Path], tmp_path: Path, strategy: str,
                                           differ: bool) -> None:
    written = []
    for seed in (0, 2**64 - 1):
        (tmp_path / str(seed)).mkdir()
        merge_adapters(adapter_pair, tmp_path / str(seed), strategy=strategy, seed=seed)
        written.append(read_folder(tmp_path / str(seed))[WEIGHTS_FILE])
    assert (written[0] != written[1]) == differ


@pytest.mark.slow
@pytest.mark.parametrize(("dtypes", "expected"), [
    (("bfloat16", "bfloat16"), torch.bfloat16), (("float16", "float16"), torch.float16),
    (("bfloat16", "float16"), torch.float32), (("bfloat16", "float32"), torch.float32),
    (("float64", "float64"), torch.float32)])
def test_result_is_float32_unless_all_inputs_share_a_16_bit_dtype(
        base_checkpoint: Path, output_folder: Path, dtypes: tuple[str, str], expected: torch.dtype) -> None:
    folders = [make_tiny_adapter(base_checkpoint, seed=number, dtype=dtype, **TWO_MODULE_CONFIG)
               for number, dtype in enumerate(dtypes)]
    merged = merge_adapters(folders, output_folder)
    assert {tensor.dtype for tensor in merged.values()} == {expected}
    first, second = (load_file(folder / WEIGHTS_FILE)[Q_PROJ_LORA_A].double() for folder in folders)
    exact = (0.7 * 2) ** 0.5 * first + (0.3 * 2) ** 0.5 * second
    near = 1e-6 if expected is torch.float32 else 0.01
    torch.testing.assert_close(merged[Q_PROJ_LORA_A], exact.to(expected), rtol=near, atol=1e-6)


def test_base_model_and_task_type_of_the_first_adapter_are_kept(base_checkpoint: Path, output_folder: Path) -> None:
    folders = make_adapters(base_checkpoint, TWO_MODULE_CONFIG | {"task_type": "CAUSAL_LM"}, TWO_MODULE_CONFIG)
    merge_adapters(folders, output_folder)
    config = json.loads((output_folder / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["task_type"]) == (str(base_checkpoint), "CAUSAL_LM")
    assert config["target_modules"] == sorted(f"model.layers.{layer}.{module}" for layer in (0, 1)
                                              for module in ("self_attn.q_proj", "mlp.down_proj"))


def test_adapters_of_differently_wrapped_models_can_be_merged(adapter_pair: list[Path], output_folder: Path,
                                                              tmp_path: Path) -> None:
    wrapped = Path(copytree(adapter_pair[1], tmp_path / "other"))
    change_tensors(wrapped, lambda all_: [
        all_.update({name.replace("model.model.layers", "model.language_model.model.layers"): all_.pop(name)})
        for name in list(all_)])
    merged = merge_adapters([adapter_pair[0], wrapped], output_folder)
    (tmp_path / "usual").mkdir()
    check_same_tensors(merged, merge_adapters(adapter_pair, tmp_path / "usual"))


# ---------------------------------------------------------------------------------------------------------------------
# Rejected requests


def change_tensors(folder: Path, change: Callable[[TensorsByName], object]) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    change(tensors)
    save_file(tensors, folder / WEIGHTS_FILE)


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
def test_invalid_merge_requests_are_rejected(output_folder: Path, changes: dict[str, Any], reason: str) -> None:
    assert reason in get_merge_error([Path("/one"), Path("/other")], output_folder, **changes)
    assert list(output_folder.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[1]", "7", "{" * 100_000, '"linear"'])
def test_merge_request_that_is_no_json_object_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="an order to merge is"):
        merge_adapters_command.parse_merge_request(text)


def test_different_ranks_of_a_module_are_rejected(base_checkpoint: Path, output_folder: Path) -> None:
    folders = make_adapters(base_checkpoint, TWO_MODULE_CONFIG, TWO_MODULE_CONFIG | {"rank_pattern": {"down_proj": 6}})
    assert get_merge_error(folders, output_folder) == (
        f"unable to merge adapters, lora configs have different ranks: 4 in {folders[0]}, 6 in {folders[1]}, for "
        f"model.layers.0.mlp.down_proj")


@pytest.mark.slow
def test_ranks_may_differ_where_no_module_is_shared(base_checkpoint: Path, output_folder: Path) -> None:
    folders = make_adapters(base_checkpoint, {"r": 4, "target_modules": ["q_proj"]},
                            {"r": 8, "target_modules": ["v_proj"]})
    merge_adapters(folders, output_folder, weights=[1.0, 1.0])
    with SchedulerWithWorkers(base_checkpoint, adaptable=True) as harness:
        harness.load_adapter(1, output_folder)


@pytest.mark.parametrize("saved", ["lm_head", "embed_tokens"])
def test_adapters_with_modules_to_save_are_rejected_by_name(base_checkpoint: Path, output_folder: Path,
                                                            saved: str) -> None:
    folders = make_adapters(base_checkpoint, TWO_MODULE_CONFIG, TWO_MODULE_CONFIG | {"modules_to_save": [saved]})
    assert f"{saved}.weight, a weight as a whole (modules_to_save)" in get_merge_error(folders, output_folder)


def test_adapters_of_different_models_are_rejected(adapter_pair: list[Path], output_folder: Path,
                                                   base_checkpoint: Path) -> None:
    other_adapter = make_tiny_adapter(make_tiny_checkpoint(base_checkpoint.parent, "llama", hidden_size=128),
                                      **TWO_MODULE_CONFIG)
    assert "they are not of the same model: model.layers.0.mlp.down_proj is [64, " in get_merge_error(
        [adapter_pair[0], other_adapter], output_folder)


@pytest.mark.parametrize(("change", "reason"), [
    (lambda all_: all_.pop(Q_PROJ_LORA_A),
     "self_attn.q_proj.lora_B.weight without the other matrix of layers.0.self_attn.q_proj"),
    (lambda all_: all_.update({Q_PROJ_LORA_A: torch.zeros(5, 64)}), "q_proj.lora_A.weight as [5, 64] and "),
    (lambda all_: all_.update({Q_PROJ_LORA_A: torch.zeros(4)}), "its adapter_config.json asks for a rank of 4"),
    (lambda all_: all_.update({Q_PROJ_LORA_A: torch.zeros(4, 64, dtype=torch.int32)}),
     "is stored as I32; supported: F64, F32"),
    (lambda all_: all_[DOWN_PROJ_LORA_B][3].fill_(float("nan")),
     "down_proj.lora_B.weight has numbers that are infinite or none"),
    (lambda all_: all_.update({f"{LAYER_PREFIX}self_attn.q_proj.lora_magnitude_vector": torch.zeros(64)}),
     "q_proj.lora_magnitude_vector, which is no matrix of a LoRA"),
], ids=range(6))
def test_invalid_tensors_are_reported_by_name(adapter_pair: list[Path], output_folder: Path, tmp_path: Path,
                                              change: Callable[[TensorsByName], object], reason: str) -> None:
    broken = Path(copytree(adapter_pair[1], tmp_path / "broken"))
    change_tensors(broken, change)
    error = get_merge_error([adapter_pair[0], broken], output_folder)
    assert reason in error
    assert str(broken) in error


def test_unsupported_adapter_config_is_rejected(adapter_pair: list[Path], output_folder: Path, tmp_path: Path) -> None:
    changed = Path(copytree(adapter_pair[1], tmp_path / "changed"))
    path = changed / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"use_dora": True}))
    assert f"{path}: use_dora is not supported" in get_merge_error([adapter_pair[0], changed], output_folder)


def test_adapters_without_matrices_are_rejected(adapter_pair: list[Path], output_folder: Path, tmp_path: Path) -> None:
    empty = Path(copytree(adapter_pair[0], tmp_path / "empty"))
    save_file({}, empty / WEIGHTS_FILE)
    assert get_merge_error([empty, empty], output_folder) == "unable to merge adapters: none of them has any matrix"


def test_missing_folder_is_reported_by_name(adapter_pair: list[Path], output_folder: Path) -> None:
    assert "/nowhere/adapter_config.json cannot be read: No such file or" in get_merge_error(
        [adapter_pair[0], Path("/nowhere")], output_folder)
    missing = output_folder / "missing"
    assert (f"{missing / WEIGHTS_FILE} cannot be written: No such file or directory"
            == get_merge_error(adapter_pair, missing))


@pytest.mark.parametrize(("dtype", "weight"), [("float16", 1e12), ("float32", 1e300)])
def test_values_too_large_for_the_dtype_are_rejected(base_checkpoint: Path, output_folder: Path, dtype: str,
                                                     weight: float) -> None:
    folders = [make_tiny_adapter(base_checkpoint, dtype=dtype, **TWO_MODULE_CONFIG)] * 2
    kind = {"float16": "F16", "float32": "F32"}[dtype]
    assert f"has numbers beyond what {kind} holds with weights of {weight}, 1.0" in get_merge_error(
        folders, output_folder, weights=[weight, 1])


# ---------------------------------------------------------------------------------------------------------------------
# The program


def run_merge_program(request_json: str, *command_prefix: str) -> tuple[int, str, str]:
    program = [sys.executable, "-P", "-m", "shard.adapters.merge_adapters_command"]
    done = subprocess.run([*command_prefix, *program, request_json], cwd=REPOSITORY_ROOT, check=False,
                          env={"PYTHONPATH": str(REPOSITORY_ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
                          capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_program_prints_nothing_on_success(adapter_pair: list[Path], output_folder: Path, tmp_path: Path) -> None:
    assert run_merge_program(make_merge_request(adapter_pair, output_folder, strategy="dare_ties")) == (0, "", "")
    (tmp_path / "here").mkdir()
    merge_adapters(adapter_pair, tmp_path / "here", strategy="dare_ties")
    assert read_folder(output_folder) == read_folder(tmp_path / "here")


def test_program_reports_errors_on_one_line(
        adapter_pair: list[Path], output_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv",
                        ["merge", make_merge_request([adapter_pair[0], Path("/no\nwhere")], output_folder)])
    with pytest.raises(SystemExit) as ended:
        merge_adapters_command.main()
    assert ended.value.code == "/no where/adapter_config.json cannot be read: No such file or directory"


@pytest.mark.long
def test_program_reports_the_file_size_limit_on_one_line(adapter_pair: list[Path], output_folder: Path) -> None:
    """`ulimit -f 2` limits files to one or two KiB, depending on the shell."""
    code, stdout, stderr = run_merge_program(make_merge_request(adapter_pair, output_folder), "sh", "-c",
                                             'ulimit -f 2; exec "$@"', "sh")
    assert (code, stdout, stderr) == (1, "", f"{output_folder / WEIGHTS_FILE} cannot be written: File too large\n")


def test_full_disk_found_at_fsync_is_reported(
        adapter_pair: list[Path], output_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_disk_full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(peft_export.os, "fsync", raise_disk_full)
    assert (get_merge_error(adapter_pair, output_folder)
            == f"{output_folder / WEIGHTS_FILE} cannot be written: No space left on device")
