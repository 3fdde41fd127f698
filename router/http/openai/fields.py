"""Common parts of OpenAI's routes: fields of requests, and metadata of responses."""

import secrets
import time
from dataclasses import replace
from importlib.metadata import version
from typing import Annotated

from pydantic import BeforeValidator, FailFast, Field

from router.adapters.reference import Named, check_name
from router.errors import AdapterMissing
from router.http.openai.errors import has_api_errors
from router.http.openai.rendering import OPENAI, TGI, Label, api_error_chunk, error_chunk
from router.http.transport.adapter_names import is_base
from router.http.transport.body import Foreign, Integer32, Unsigned, Unsigned32
from router.http.transport.generate import House
from router.http.transport.headers import Caller
from router.text.chat_template import Conversation
from router.text.prompts import Names
from router.validation.validator import Choice, Wanted

FINGERPRINT = f"{version('weft')}-native"


def listed(given: object) -> object:
    return [given] if isinstance(given, str) else [] if given is None else given


Texts = Annotated[list[str], FailFast(), BeforeValidator(listed, json_schema_input_type=str | list[str] | None)]


class StreamOptions(Foreign):
    include_usage: bool = False


class Asked(Foreign):
    """Fields that chats and completions have in common. Null means that a field is not given."""

    model: str | None = None
    adapter_source: str | None = None
    api_token: str | None = Field(default=None, repr=False)
    max_tokens: Unsigned32 | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: Unsigned | None = None
    stop: Texts = Field(default_factory=list)
    n: Unsigned32 | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    cache_salt: str | None = None
    priority: Integer32 = 0

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def adapter(self, house: House, token: str) -> Named | None:
        """Return the adapter that `model` names, if adapters are served; if not, any name means the model itself.
        `token` is the client's, unless the body has another."""
        if house.validator.adapters is None or self.model is None or is_base(self.model, house.about.name):
            return None
        check_name("model", self.model)
        return Named(self.model, self.adapter_source or None, self.api_token or token)

    def as_wanted(self, prompt: str | Conversation, names: Names, caller: Caller) -> Wanted:
        greedy = self.temperature == 0
        return Wanted(
            prompt=prompt,
            names=names,
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
            priority=self.priority,
            tenant=caller.tenant,
            request_id=caller.request_id,
            deadline=caller.deadline,
        )


async def choices_of(house: House, asked: Asked, wanted: Wanted, caller: Caller) -> list[Choice]:
    """Validate a request, with the adapter that its `model` names. Raises AdapterMissing with the known names."""
    try:
        return await house.validator.choices(replace(wanted, adapter=asked.adapter(house, caller.token)))
    except AdapterMissing as error:
        named = house.validator.adapters.names if house.validator.adapters else ()
        known = ", ".join([house.about.name, *named])
        raise AdapterMissing(f"{error}; `model` may be {known}", param="model") from error


def labelled(house: House, path: str, kind: str, model: str) -> Label:
    words = TGI if house.is_tgi else OPENAI
    errors = api_error_chunk if has_api_errors(path, house.config.compat) else error_chunk
    return Label(f"{kind}-{secrets.token_hex(12)}", int(time.time()), model, FINGERPRINT, words, errors)
