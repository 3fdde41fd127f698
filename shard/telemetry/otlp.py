"""Export of spans to a collector over OTLP and gRPC, in batches, from a separate thread.

Only this module imports opentelemetry. Spans that cannot be sent are dropped; that is reported once, and again only
after some have been sent.
"""

import logging
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from threading import Timer

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc import exporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shard.telemetry.traces import Attributes, OnTrouble, Traces

W3C = TraceContextTextMapPropagator()
PATIENCE = 5.0  # seconds for a batch, with all attempts
FAREWELL = 3.0  # seconds for the remaining spans at the end
LIBRARY = logging.getLogger("opentelemetry")


class Reasons(logging.Handler):
    """Handler of the library's errors, which it logs at every attempt. Only the last one is kept, and reported once."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.last = ""
        LIBRARY.handlers = [self]
        LIBRARY.propagate = False
        exporter.logger.filters.clear()  # one of them drops messages that it takes for repetitions

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()


class Courier(SpanExporter):
    """Exporter that reports when it begins to fail."""

    def __init__(self, exporter: SpanExporter, on_trouble: OnTrouble) -> None:
        self._exporter = exporter
        self._on_trouble = on_trouble
        self._reasons = Reasons()
        self._gets_through = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        got_through = result is SpanExportResult.SUCCESS
        if self._gets_through and not got_through:
            self._on_trouble(f"traces are lost, which is not told again until some get through: {self._reasons.last}")
        self._gets_through = got_through
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class Begun:
    """Implementation of `shard.telemetry.traces.Span`."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer, self._span = tracer, span
        self._context = set_span_in_context(span, Context())

    @property
    def traceparent(self) -> str:
        carrier: dict[str, str] = {}
        if self._span.get_span_context().trace_flags.sampled:
            W3C.inject(carrier, self._context)
        return carrier.get("traceparent", "")

    def child(self, name: str, began: int, ended: int, attributes: Attributes) -> None:
        self._tracer.start_span(name, self._context, attributes=attributes, start_time=began).end(ended)

    def end(self, ended: int, attributes: Attributes, *, failed: bool) -> None:
        self._span.set_attributes(attributes)
        finish(self._span, ended, failed=failed)


class OtlpSender:
    """Implementation of `traces.Sender`. Its library also reads environment variables that begin with OTEL_."""

    def __init__(self, traces: Traces, process: str, on_trouble: OnTrouble) -> None:
        self._courier = Courier(OTLPSpanExporter(traces.endpoint, insecure=not traces.endpoint.startswith("https:"),
                                                 timeout=PATIENCE), on_trouble)
        about = {"service.name": traces.service, "service.version": version("weft"), "weft.process": process}
        self._provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._courier))
        self._tracer = self._provider.get_tracer("weft", version("weft"))

    def serve(self, name: str, headers: Mapping[str, str], began: int) -> Begun:
        parent = W3C.extract(headers, Context())
        return Begun(self._tracer, self._tracer.start_span(name, parent, SpanKind.SERVER, start_time=began))

    def beneath(self, traceparent: str, name: str, began: int, ended: int, attributes: Attributes, *,
                failed: bool) -> None:
        parent = W3C.extract({"traceparent": traceparent}, Context())
        span = self._tracer.start_span(name, parent, attributes=attributes, start_time=began)
        finish(span, ended, failed=failed)

    def close(self) -> None:
        """Send the remaining spans; after FAREWELL seconds the attempt under way is aborted."""
        overdue = Timer(FAREWELL, self._courier.shutdown)
        overdue.start()
        self._provider.shutdown()
        overdue.cancel()
        overdue.join()


def finish(span: Span, ended: int, *, failed: bool) -> None:
    if failed:
        span.set_status(StatusCode.ERROR)
    span.end(ended)
