import pytest

from shard.simulator.faults import Fault, Faults


def test_a_script_lists_faults() -> None:
    assert Faults("die@decode:5; slow@prefill:2:0.5;poison@7;") == (
        Fault("die", "decode", 5, ""), Fault("slow", "prefill", 2, "0.5"), Fault("poison", "", 0, "7"))


def test_what_is_left_out_has_a_default() -> None:
    assert Faults("wrong@decode;late@prefill:3") == (
        Fault("wrong", "decode", 1, "unknown"), Fault("late", "prefill", 3, "0.1"))


def test_a_fault_strikes_the_nth_call_of_its_verb_once() -> None:
    faults = Faults("refuse@decode:2")
    assert [len(faults.strike(verb)) for verb in ("decode", "prefill", "decode", "decode")] == [0, 0, 1, 0]
    assert faults[0].fired


def test_no_script_is_no_fault() -> None:
    assert Faults("") == ()


@pytest.mark.parametrize("script", [
    "explode@decode", "die@lunch", "die", "die@decode:x", "die@decode:1:2", "slow@decode:1:long", "slow@filter",
    "wrong@decode:1:everything", "poison@x", "fail_sequence@decode:1:-1"])
def test_a_script_that_makes_no_sense_says_how_to_write_one(script: str) -> None:
    with pytest.raises(ValueError, match="write kind@verb:nth:argument"):
        Faults(script)
