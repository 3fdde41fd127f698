import pytest

from shard.fault_script import Fault, FaultScript


def test_script_is_parsed_into_faults() -> None:
    assert FaultScript("die@decode:5; slow@prefill:2:0.5;poison@7;") == (
        Fault("die", "decode", 5, ""), Fault("slow", "prefill", 2, "0.5"), Fault("poison", "", 0, "7"))


def test_omitted_parts_have_defaults() -> None:
    assert FaultScript("wrong@decode;late@prefill:3") == (
        Fault("wrong", "decode", 1, "unknown"), Fault("late", "prefill", 3, "0.1"))


def test_fault_fires_once_at_the_nth_call_of_its_verb() -> None:
    faults = FaultScript("refuse@decode:2")
    assert [len(faults.take_due_faults(verb)) for verb in ("decode", "prefill", "decode", "decode")] == [0, 0, 1, 0]
    assert faults[0].has_fired


def test_empty_script_has_no_faults() -> None:
    assert FaultScript("") == ()


@pytest.mark.parametrize("script", [
    "explode@decode", "die@lunch", "die", "die@decode:x", "die@decode:1:2", "slow@decode:1:long", "slow@filter",
    "wrong@decode:1:everything", "poison@x", "fail_sequence@decode:1:-1"])
def test_invalid_script_is_rejected_with_the_syntax(script: str) -> None:
    with pytest.raises(ValueError, match="write kind@verb:nth:argument"):
        FaultScript(script)
