"""Check what docs/dev/adding.md says about places: the files of the code that an addition touches.

The example of each recipe is an addition of the past. The files that name it are the places, and no others.
"""

import re
from pathlib import Path

import pytest

REPOSITORY_ROOT = Path(__file__).parents[1]
CODE_FOLDERS = ("router", "shard", "proto")
RECIPES: dict[str, tuple[int, str]] = {  # the most places, and what an addition of the past is named by
    "A sampling parameter": (6, r"typical_p"),
    "A model architecture": (2, r"falcon"),
    "A quantization": (2, r"parse_gptq_config|gptq"),
    "A backend of attention": (2, r"CpuAttention"),
    "An HTTP dialect": (3, r"BatchingStudyCompatRoutes|batching_study_compat"),
    "A metric": (2, r"tgi_request_yields"),
    "A policy": (2, r"RecomputePolicy"),
}
# Files that name an example for another reason than that it was added.
OTHER_MENTIONS = {
    # LoRAX's own order and words of refusals; Ollama's routes refuse it
    "A sampling parameter": {"router/http/lorax/parameters.py", "router/http/ollama/requests.py"},
    "A quantization": {"shard/quantization/compressed_tensors.py"},  # its tensors are laid out like those
}


def read_places(recipe: str) -> dict[str, list[str]]:
    """Return the files of the line that begins with "Places:", each with the names that it must contain."""
    page = (REPOSITORY_ROOT / "docs/dev/adding.md").read_text()
    section = page.partition(f"\n## {recipe}\n")[2].partition("\n## ")[0]
    line = re.search(r"^Places: (.*?)\n\n", section, re.MULTILINE | re.DOTALL)
    assert line, f"{recipe} has no line of places"
    return {file: re.findall(r"`(\w+)`", names)
            for file, names in re.findall(r"`([\w/]+\.(?:py|proto))`((?: \([^)]*\))?)", line[1])}


def find_files_naming(pattern: str) -> set[str]:
    paths = [path for folder in CODE_FOLDERS for suffix in ("py", "proto")
             for path in (REPOSITORY_ROOT / folder).rglob(f"*.{suffix}") if path.parent.name != "pb"]
    return {path.relative_to(REPOSITORY_ROOT).as_posix() for path in paths
            if re.search(rf"\b(?:{pattern})\b", path.read_text()) or re.fullmatch(pattern, path.stem)}


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_has_few_places_and_they_exist(recipe: str) -> None:
    places = read_places(recipe)
    assert 0 < len(places) <= RECIPES[recipe][0]
    for file, names in places.items():
        text = (REPOSITORY_ROOT / file).read_text()
        assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize("recipe", RECIPES)
def test_addition_of_the_past_is_named_in_its_places_alone(recipe: str) -> None:
    assert find_files_naming(RECIPES[recipe][1]) - OTHER_MENTIONS.get(recipe, set()) == {*read_places(recipe)}
