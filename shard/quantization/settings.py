"""What a `quantization_config` says, checked value by value. Knows nothing of what follows from it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Given:
    """Values as a tool wrote them, and the file that they stand in."""

    values: Mapping[str, Any]
    source: str

    def get(self, *names: str) -> Any:
        """What the first of these names that is there stands for."""
        return next((self.values[name] for name in names if self.values.get(name) is not None), None)

    def within(self, name: str) -> "Given":
        values = self.get(name) or {}
        if not isinstance(values, Mapping):
            raise ValueError(f"{self.source}: {name} must be an object, got {values!r}")
        return Given(values, f"{self.source}: {name}")

    def one_of(self, name: str, value: object, supported: Collection[Any]) -> Any:
        """`value`, which stands under this name or is its default."""
        if value not in supported:
            raise self.refusal(f"{name} {value}", supported)
        return value

    def refusal(self, what: str, supported: Collection[Any]) -> ValueError:
        return ValueError(f"{self.source}: {what} is not supported; supported: {', '.join(map(str, supported))}")

    def group_size(self, value: object) -> int:
        """-1: all columns share a scale."""
        if not isinstance(value, int) or isinstance(value, bool) or (value < 1 and value != -1):
            raise ValueError(f"{self.source}: group_size must be -1 or a whole number of at least 1, got {value}")
        return value

    def block(self, name: str) -> tuple[int, int] | None:
        """Rows and columns of a block, where there are blocks."""
        value = self.get(name)
        match value:
            case None:
                return None
            case [int(rows), int(columns)] if rows > 0 and columns > 0:
                return rows, columns
            case _:
                raise ValueError(f"{self.source}: {name} must be two whole numbers of at least 1, got {value}")
