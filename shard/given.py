"""Values as somebody wrote them into a JSON file, which may be missing or of the wrong kind.

Knows nothing of what they are for.
"""

import math
from collections.abc import Collection
from typing import Any


class Given:
    def __init__(self, values: dict[str, Any], source: str) -> None:
        self._values = values
        self.source = source

    @property
    def values(self) -> dict[str, Any]:
        return dict(self._values)

    def get(self, *names: str) -> Any:
        """What the first of these names that is there stands for."""
        return next((self._values[name] for name in names if self._values.get(name) is not None), None)

    def usually(self, **values: Any) -> "Given":
        """The same with these values where a file says nothing, not even null."""
        return Given(values | self._values, self.source)

    def count(self, name: str, default: int | None = None) -> int:
        value = self.get(name) if self.get(name) is not None else default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{self.source}: {name} must be a whole number of at least 1, got {value}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name) if self.get(name) is not None else default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise ValueError(f"{self.source}: {name} must be a number above 0, got {value}")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.get(name)
        return default if value is None else bool(value)

    def with_defaults(self, **values: Any) -> "Given":
        """The same, with values for what is not there."""
        return Given(values | {name: value for name, value in self._values.items() if value is not None}, self.source)

    def within(self, values: dict[str, Any], name: str) -> "Given":
        return Given(values, f"{self.source}: {name}")

    def refuse_unless(self, supported: Collection[str], name: str, value: object) -> None:
        if value not in supported:
            raise ValueError(f"{self.source}: {name} {value} is not supported; supported: {', '.join(supported)}")
