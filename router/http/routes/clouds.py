"""Routes of cloud platforms, which take the bodies of other routes: SageMaker's `/invocations`, Vertex's `/vertex`."""

from functools import partial
from typing import Annotated, Any

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import FailFast, Field

from router.engine.output_stream import FinishedEvent
from router.errors import InvalidRequest
from router.http.openai.chat import make_chat_input
from router.http.openai.requests import ChatRequest, validate_with_model_adapter
from router.http.openai.stop_string_removal import trim_stop_string
from router.http.tgi.routes import GenerateRequest
from router.http.transport.body import (
    BodyModel,
    LenientBodyModel,
    add_ignored_fields,
    json_response,
    read_body,
    report_ignored_fields,
)
from router.http.transport.request_context_and_middleware import RequestContext, ignored_fields_headers
from router.http.transport.services import ServiceRoutes, Services, gather_or_cancel, generate_and_sort_by_logprob
from router.validation.validator import ValidatedRequest


class SageMakerRequest(BodyModel):
    """The fields that decide which route the body is for: the first one present."""

    inputs: Any = None
    messages: Any = None
    prompt: Any = None


class VertexRequest(LenientBodyModel):
    """Body of Vertex AI's `/vertex`: several bodies of `/generate` or of chats."""

    instances: Annotated[list[GenerateRequest | ChatRequest], FailFast(), Field(min_length=1)]


class CloudRoutes(ServiceRoutes):
    """Handlers of both routes, which pass bodies to the handlers of other routes."""

    def __init__(self, services: Services, generate_handler: Handler, chat_handler: Handler,
                 completion_handler: Handler) -> None:
        """`generate_handler`, `chat_handler` and `completion_handler` are the handlers of `/`, of chats and of
        completions."""
        super().__init__(services)
        self._handlers_by_field = {"inputs": generate_handler, "messages": chat_handler, "prompt": completion_handler}

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/invocations", self.sagemaker_invoke), web.post("/vertex", self.vertex_predict)]

    async def sagemaker_invoke(self, request: web.Request) -> web.StreamResponse:
        try:
            invocation = await read_body(request, SageMakerRequest)
            handler = next((handler for name, handler in self._handlers_by_field.items()
                            if getattr(invocation, name) is not None), None)
            if handler is None:
                raise web.HTTPUnprocessableEntity(text="the body must have `inputs`, `messages` or `prompt`")
        except Exception:
            RequestContext.from_request(request, self._services.engine)  # counts the request, since no handler will
            raise
        return await handler(request)

    async def vertex_predict(self, request: web.Request) -> web.Response:
        context = RequestContext.from_request(request, self._services.engine)
        instances_body = await read_body(request, VertexRequest)
        if len(instances_body.instances) > (max_instances := self._services.config.max_client_batch_size):
            raise InvalidRequest(f"`instances` must hold at most {max_instances} (--max-client-batch-size), "
                                 f"got {len(instances_body.instances)}", "batch size exceeded")
        if self._services.is_tgi:
            report_ignored_fields(request, instances_body, {})
        validated_by_instance = [await self._validate_instance(instance, context.for_prompt(index))
                                 for index, instance in enumerate(instances_body.instances)]
        add_ignored_fields(request, [
            f"instances.{index}.{name}" for index, instance in enumerate(instances_body.instances)
            if isinstance(instance, ChatRequest) for name in instance.list_unused_formats()])
        outputs_by_instance = await gather_or_cancel(generate_and_sort_by_logprob(self._services, choices, context)
                                                     for choices in validated_by_instance)
        predictions = [self._render_text(instance, outputs[0].final_event) for instance, outputs in zip(
            instances_body.instances, outputs_by_instance, strict=True)]
        return json_response({"predictions": predictions}, ignored_fields_headers(request))

    def _render_text(self, instance: GenerateRequest | ChatRequest, event: FinishedEvent) -> str:
        return (trim_stop_string(event, instance.stop_strings_to_remove(is_tgi=self._services.is_tgi))
                if isinstance(instance, ChatRequest) else event.text)

    async def _validate_instance(self, instance: GenerateRequest | ChatRequest,
                                 context: RequestContext) -> list[ValidatedRequest]:
        if isinstance(instance, ChatRequest):
            instance = instance.without_empty_tools(is_tgi=self._services.is_tgi)
            if instance.n not in {None, 1}:
                raise InvalidRequest(f"`n` must be 1 in `instances`, got {instance.n}: a prediction is one text",
                                     param="instances")
            generation_input = await context.run_in_thread_if_long(
                partial(make_chat_input, self._services, instance, context))
            return await validate_with_model_adapter(self._services, instance, generation_input, context)
        return await self._services.validator.validate(
            await context.run_in_thread_if_long(partial(instance.to_generation_input, context)))
