"""Base class of OpenAI's requests: the fields that chats and completions share, and their validation with the adapter
that `model` names.
"""

from dataclasses import replace
from typing import Annotated

from pydantic import BeforeValidator, FailFast, Field

from router.adapters.reference import AdapterReference, check_adapter_name
from router.errors import AdapterNotFound
from router.http.transport.adapter_parameters import is_base_model
from router.http.transport.body import Int32, RequestBody, UInt32, UInt64
from router.http.transport.request_context import RequestContext
from router.http.transport.services import Services
from router.text.chat_template import Conversation
from router.text.prompt_encoder import DialectParameterNames
from router.validation.bounds import (
    AT_LEAST_ONE,
    CACHE_SALT,
    EXACTLY_ONE,
    FRACTION_OR_ONE,
    NOT_NEGATIVE,
    PENALTY,
    PRIORITY,
    STOP_STRINGS,
)
from router.validation.validator import GenerationInput, ValidatedRequest


def as_list(value: object) -> object:
    return [value] if isinstance(value, str) else [] if value is None else value


StringList = Annotated[list[str], FailFast(), BeforeValidator(as_list, json_schema_input_type=str | list[str] | None)]


class StreamOptions(RequestBody):
    """The field `stream_options`: whether a stream ends with its usage."""

    include_usage: bool | None = None


class OpenAIBaseRequest(RequestBody):
    """Fields that chats and completions have in common. Null means that a field is not given."""

    model: str | None = None
    adapter_source: str | None = None
    api_token: str | None = Field(default=None, repr=False)
    max_tokens: Annotated[UInt32 | None, AT_LEAST_ONE] = None
    temperature: Annotated[float | None, NOT_NEGATIVE] = None
    top_p: Annotated[float | None, FRACTION_OR_ONE] = None
    frequency_penalty: Annotated[float | None, PENALTY] = None
    presence_penalty: Annotated[float | None, PENALTY] = None
    seed: UInt64 | None = None
    stop: Annotated[StringList, STOP_STRINGS] = Field(default_factory=list)
    n: Annotated[UInt32 | None, EXACTLY_ONE] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    cache_salt: Annotated[str | None, CACHE_SALT] = None
    priority: Annotated[Int32 | None, PRIORITY] = None

    @property
    def should_include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def adapter_reference(self, services: Services, source_token: str) -> AdapterReference | None:
        """Return the adapter that `model` names, if adapters are served; if not, any name means the model itself.
        `source_token` is the client's, unless the body has another."""
        if (services.validator.adapter_registry is None or self.model is None
            or is_base_model(self.model, services.served_model.name)):
            return None
        check_adapter_name("model", self.model)
        return AdapterReference(self.model, self.adapter_source or None, self.api_token or source_token)

    def base_generation_input(self, prompt: str | Conversation, parameter_names: DialectParameterNames,
                              context: RequestContext) -> GenerationInput:
        greedy = self.temperature == 0
        return GenerationInput(
            prompt=prompt,
            parameter_names=parameter_names,
            greedy=greedy,
            do_sample=True,
            temperature=None if greedy else self.temperature,
            top_p=None if self.top_p == 1 else self.top_p,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            max_new_tokens=self.max_tokens,
            stop_strings=tuple(self.stop),
            seed=self.seed,
            ignore_eos=bool(self.ignore_eos),
            cache_salt=self.cache_salt,
            priority=self.priority or 0,
            tenant=context.tenant,
            request_id=context.request_id,
            deadline=context.deadline,
        )


async def validate_with_model_adapter(services: Services, openai_request: OpenAIBaseRequest,
                                      generation_input: GenerationInput,
                                      context: RequestContext) -> list[ValidatedRequest]:
    """Validate a request, with the adapter that its `model` names. Raises AdapterNotFound with the known names."""
    try:
        return await services.validator.validate(
            replace(generation_input, adapter=openai_request.adapter_reference(services, context.source_token)))
    except AdapterNotFound as error:
        adapter_names = services.validator.adapter_registry.aliases if services.validator.adapter_registry else ()
        model_names = ", ".join([services.served_model.name, *adapter_names])
        raise AdapterNotFound(f"{error}; `model` may be {model_names}", param="model") from error
