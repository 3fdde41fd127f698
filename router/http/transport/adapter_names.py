"""Names of adapters in requests: in LoRAX's parameters, or as OpenAI's `model`."""

from typing import Annotated

from pydantic import FailFast, Field

from router.adapters.reference import Borrowed, Merged, Named
from router.adapters.reference import Wanted as Adapter
from router.adapters.registry import Adapters
from router.errors import InvalidRequest
from router.http.transport.body import Foreign

BASE_IDS = frozenset({"", "__base_model__"})  # LoRAX's names of the base model
BASE_MODELS = BASE_IDS | {"tgi", "dummy", "base"}  # placeholders that clients send for the served model
URLS = ("http://", "https://")  # some clients send the server's URL as `model`


class MergedAdapters(Foreign):
    """Adapters to merge into one. `density` is 1 by default; LoRAX's default, 0, would drop every weight."""

    ids: Annotated[list[str], FailFast()]
    weights: Annotated[list[float], FailFast()] = Field(default_factory=list)
    merge_strategy: str | None = None
    density: float = 1.0
    majority_sign_method: str | None = None

    def merged(self, source: str | None, token: str) -> Merged:
        strategy = (self.merge_strategy or "linear").lower()
        sign = (self.majority_sign_method or "total").lower()
        parts = tuple(Named(name, source, token) for name in self.ids)
        return Merged(parts, tuple(self.weights), strategy, self.density, sign)


class Adapted(Foreign):
    """Parameters that name the adapter of a request, or several adapters to merge."""

    adapter_id: str | None = None
    adapter_source: str | None = None
    merged_adapters: MergedAdapters | None = None
    api_token: str | None = Field(default=None, repr=False)

    def adapter(self, token: str) -> Adapter | None:
        """Return the adapter or merge, if one is named. `token` is the client's, unless the parameters have another."""
        source, token = self.adapter_source or None, self.api_token or token
        if self.merged_adapters is not None:
            return self.merged_adapters.merged(source, token)
        return Named(self.adapter_id, source, token) if self.adapter_id and self.adapter_id not in BASE_IDS else None


def is_base(model: str | None, served: str) -> bool:
    """Whether `model` names the base model, which is served as `served`."""
    return model is None or model == served or model in BASE_MODELS or model.lower().startswith(URLS)


def called(adapters: Adapters | None, wanted: Adapter | None) -> Named | Borrowed | None:
    """Return the adapter for the headers of a stream, which are sent before the adapter is known to exist."""
    try:
        return None if adapters is None else adapters.called(wanted)
    except InvalidRequest:
        return None
