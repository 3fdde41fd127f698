"""Instruction sets that tests of compiled kernels may use: those of this processor, up to the one that is in use."""

from shard.native.library import INSTRUCTION_SETS, list_instruction_sets, load_library


def list_available_sets() -> tuple[str, ...]:
    """Return the instruction sets, the best one last; none if there are no kernels."""
    if (library := load_library()) is None:
        return ()
    allowed = INSTRUCTION_SETS[1:INSTRUCTION_SETS.index(library.instruction_set) + 1]
    return tuple(name for name in list_instruction_sets(library.functions) if name in allowed)


AVAILABLE_SETS = list_available_sets()
