"""Names of adapters in requests: in LoRAX's parameters, or as OpenAI's `model`."""

from typing import Annotated

from pydantic import FailFast, Field

from router.adapters.reference import AdapterReference, MergedAdapterReference, RequestedAdapter, ResolvedAdapter
from router.adapters.registry import AdapterRegistry
from router.errors import InvalidRequest
from router.http.transport.body import RequestBody

BASE_MODEL_ADAPTER_IDS = frozenset({"", "__base_model__"})  # LoRAX's names of the base model
# placeholders that clients send for the served model
BASE_MODEL_NAMES = BASE_MODEL_ADAPTER_IDS | {"tgi", "dummy", "base"}
URL_PREFIXES = ("http://", "https://")  # some clients send the server's URL as `model`


class MergedAdapters(RequestBody):
    """Adapters to merge into one. `density` is 1 by default; LoRAX's default, 0, would drop every weight."""

    ids: Annotated[list[str], FailFast()]
    weights: Annotated[list[float], FailFast()] = Field(default_factory=list)
    merge_strategy: str | None = None
    density: float = 1.0
    majority_sign_method: str | None = None

    def to_merged_reference(self, source: str | None, source_token: str) -> MergedAdapterReference:
        strategy = (self.merge_strategy or "linear").lower()
        sign = (self.majority_sign_method or "total").lower()
        parts = tuple(AdapterReference(name, source, source_token) for name in self.ids)
        return MergedAdapterReference(parts, tuple(self.weights), strategy, self.density, sign)


class AdapterParameters(RequestBody):
    """Parameters that name the adapter of a request, or several adapters to merge."""

    adapter_id: str | None = None
    adapter_source: str | None = None
    merged_adapters: MergedAdapters | None = None
    api_token: str | None = Field(default=None, repr=False)

    def adapter_reference(self, source_token: str) -> RequestedAdapter | None:
        """Return the adapter or merge, if one is named. `source_token` is the client's, unless the parameters have
        another."""
        source, source_token = self.adapter_source or None, self.api_token or source_token
        if self.merged_adapters is not None:
            return self.merged_adapters.to_merged_reference(source, source_token)
        return (AdapterReference(self.adapter_id, source, source_token)
                if self.adapter_id and self.adapter_id not in BASE_MODEL_ADAPTER_IDS else None)


def is_base_model(model: str | None, served_model_name: str) -> bool:
    """Whether `model` names the base model, which is served as `served_model_name`."""
    return (model is None or model == served_model_name or model in BASE_MODEL_NAMES
            or model.lower().startswith(URL_PREFIXES))


def adapter_for_stream_headers(registry: AdapterRegistry | None,
                               adapter_reference: RequestedAdapter | None) -> AdapterReference | ResolvedAdapter | None:
    """Return the adapter for the headers of a stream, which are sent before the adapter is known to exist."""
    try:
        return None if registry is None else registry.get_adapter_reference(adapter_reference)
    except InvalidRequest:
        return None
