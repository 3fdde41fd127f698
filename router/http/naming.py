"""How clients name adapters: in the parameters of a request, as LoRAX has them, or as OpenAI's `model`.

Knows neither where adapters come from nor which there are.
"""

from typing import Annotated

from pydantic import FailFast, Field

from router.adapter import Borrowed, Merged, Named
from router.adapter import Wanted as Adapter
from router.adapters import Adapters
from router.errors import InvalidRequest
from router.http.body import Foreign

BASE_IDS = frozenset({"", "__base_model__"})  # what LoRAX calls the model itself
BASE_MODELS = BASE_IDS | {"tgi", "dummy", "base"}  # what clients say that want what is served
URLS = ("http://", "https://")  # with which some clients name a server


class MergedAdapters(Foreign):
    """Where LoRAX's `density` is 0 by default, which leaves nothing of an adapter."""

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
    """Parameters that name the adapter that a request goes by, or several that become one."""

    adapter_id: str | None = None
    adapter_source: str | None = None
    merged_adapters: MergedAdapters | None = None
    api_token: str | None = Field(default=None, repr=False)

    def adapter(self, token: str) -> Adapter | None:
        """With this token of the client, unless it gives another."""
        source, token = self.adapter_source or None, self.api_token or token
        if self.merged_adapters is not None:
            return self.merged_adapters.merged(source, token)
        return Named(self.adapter_id, source, token) if self.adapter_id and self.adapter_id not in BASE_IDS else None


def is_base(model: str | None, served: str) -> bool:
    """Whether this names the model itself, which is served under that name."""
    return model is None or model == served or model in BASE_MODELS or model.lower().startswith(URLS)


def called(adapters: Adapters | None, wanted: Adapter | None) -> Named | Borrowed | None:
    """What a stream will go by: its head is sent before it is known whether there is such an adapter."""
    try:
        return None if adapters is None else adapters.called(wanted)
    except InvalidRequest:
        return None
