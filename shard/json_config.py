"""Values of a JSON file written by others, which may be missing or of the wrong type."""

import sys
from collections.abc import Collection, Mapping
from typing import Any

MAX_FLOAT = sys.float_info.max  # an int may be larger, and cannot become a float then


class JsonConfig:
    """Checked access to the values of a JSON object, such as config.json; errors name the file and the key."""

    def __init__(self, values: dict[str, Any], source: str) -> None:
        self._values = values
        self.source = source

    @property
    def values(self) -> dict[str, Any]:
        return dict(self._values)

    def get(self, *keys: str) -> Any:
        """Return the value of the first of these keys that is present and not null."""
        return next((self._values[name] for name in keys if self._values.get(name) is not None), None)

    def get_positive_int(self, key: str, default: int | None = None) -> int:
        value = self.get(key) if self.get(key) is not None else default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{self.source}: {key} must be a whole number of at least 1, got {value}")
        return value

    def get_positive_number(self, key: str, default: float | None = None) -> float:
        value = self.get(key) if self.get(key) is not None else default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MAX_FLOAT:
            raise ValueError(f"{self.source}: {key} must be a number above 0, got {value}")
        return float(value)

    def get_bool(self, key: str, *, default: bool = False) -> bool:
        value = self.get(key)
        return default if value is None else bool(value)

    def require_supported(self, key: str, value: object, supported: Collection[Any]) -> Any:
        """Return `value`, which is given under this key or its default; raises ValueError if it is not supported."""
        if value not in tuple(supported):  # a dict would raise TypeError for a value without a hash
            raise self.make_unsupported_error(f"{key} {value}", supported)
        return value

    def make_unsupported_error(self, description: str, supported: Collection[Any]) -> ValueError:
        return ValueError(f"{self.source}: {description} is not supported; supported: {', '.join(map(str, supported))}")

    # -- derived objects

    def with_defaults_for_absent_keys(self, **values: Any) -> "JsonConfig":
        """Return a copy with defaults for absent keys; an explicit null is kept."""
        return JsonConfig(values | self._values, self.source)

    def with_defaults(self, **values: Any) -> "JsonConfig":
        """Return a copy with defaults for keys that are absent or null."""
        return JsonConfig(values | {name: value for name, value in self._values.items() if value is not None},
                          self.source)

    def get_subconfig(self, *keys: str) -> "JsonConfig":
        """Return the object of the first of these keys that is there; an empty one, if none is."""
        key = next((name for name in keys if self._values.get(name) is not None), keys[0])
        values = self.get(key) or {}
        if not isinstance(values, Mapping):
            raise ValueError(f"{self.source}: {key} must be an object, got {values!r}")
        return self.make_subconfig(dict(values), key)

    def make_subconfig(self, values: dict[str, Any], key: str) -> "JsonConfig":
        """Return an object with these values; errors name it as `key` in this source."""
        return JsonConfig(values, f"{self.source}: {key}")
