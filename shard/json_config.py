"""Values of a JSON file written by others, which may be missing or of the wrong type."""

import sys
from collections.abc import Collection, Mapping
from typing import Any

MOST = sys.float_info.max  # an int may be larger, and cannot become a float then


class Given:
    def __init__(self, values: dict[str, Any], source: str) -> None:
        self._values = values
        self.source = source

    @property
    def values(self) -> dict[str, Any]:
        return dict(self._values)

    def get(self, *names: str) -> Any:
        """Return the value of the first of these keys that is present and not null."""
        return next((self._values[name] for name in names if self._values.get(name) is not None), None)

    def count(self, name: str, default: int | None = None) -> int:
        value = self.get(name) if self.get(name) is not None else default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{self.source}: {name} must be a whole number of at least 1, got {value}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name) if self.get(name) is not None else default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MOST:
            raise ValueError(f"{self.source}: {name} must be a number above 0, got {value}")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.get(name)
        return default if value is None else bool(value)

    def one_of(self, name: str, value: object, supported: Collection[Any]) -> Any:
        """Return `value`, which is given under this name or its default; raises ValueError if it is not supported."""
        if value not in tuple(supported):  # a dict would raise TypeError for a value without a hash
            raise self.refusal(f"{name} {value}", supported)
        return value

    def refusal(self, what: str, supported: Collection[Any]) -> ValueError:
        return ValueError(f"{self.source}: {what} is not supported; supported: {', '.join(map(str, supported))}")

    # -- derived objects

    def usually(self, **values: Any) -> "Given":
        """Return a copy with defaults for absent keys; an explicit null is kept."""
        return Given(values | self._values, self.source)

    def with_defaults(self, **values: Any) -> "Given":
        """Return a copy with defaults for keys that are absent or null."""
        return Given(values | {name: value for name, value in self._values.items() if value is not None}, self.source)

    def within(self, *names: str) -> "Given":
        """Return the object of the first of these names that is there; an empty one, if none is."""
        name = next((name for name in names if self._values.get(name) is not None), names[0])
        values = self.get(name) or {}
        if not isinstance(values, Mapping):
            raise ValueError(f"{self.source}: {name} must be an object, got {values!r}")
        return self.instead(dict(values), name)

    def instead(self, values: dict[str, Any], name: str) -> "Given":
        """Return an object with these values; errors name it as `name` in this source."""
        return Given(values, f"{self.source}: {name}")
