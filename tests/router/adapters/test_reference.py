"""Tests of router/adapters/reference.py; test_registry.py tests its rejections through the caller."""

import pytest

from router.adapters.reference import is_other_base_model


@pytest.mark.parametrize(("base", "model", "expected"), [
    ("org/llama", "org/llama", False), ("org/Llama", "/models/llama/", False), ("org/llama", "org/qwen", True),
    ("", "org/qwen", False), ("org/llama", "", False)])
def test_adapter_for_another_base_model_is_recognized_by_last_path_component(base: str, model: str,
                                                                             expected: bool) -> None:
    assert is_other_base_model(base, model) is expected
