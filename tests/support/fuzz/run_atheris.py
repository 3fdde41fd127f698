"""Coverage-guided fuzzing of one target: `python -P -m support.fuzz.run_atheris NAME CORPUS [flags of libFuzzer]`.

Runs in an environment with atheris. A defect ends it with the input in a file named crash-...
"""

import sys

import atheris

with atheris.instrument_imports(include=["router", "shard", "llguidance.gbnf_to_lark"]):
    from support.fuzz.targets import TARGETS


def main() -> None:
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
