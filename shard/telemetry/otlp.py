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

from shard.telemetry.span_export_interface import OnSpansLost, SpanAttributes, TraceSettings

W3C_PROPAGATOR = TraceContextTextMapPropagator()
EXPORT_TIMEOUT_SECONDS = 5.0  # seconds for a batch, with all attempts
SHUTDOWN_TIMEOUT_SECONDS = 3.0  # seconds for the remaining spans at the end
LIBRARY_LOGGER = logging.getLogger("opentelemetry")


class ErrorCapture(logging.Handler):
    """Logging handler that keeps the last error of opentelemetry's loggers: they log one at every attempt."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.last_error = ""
        LIBRARY_LOGGER.handlers = [self]
        LIBRARY_LOGGER.propagate = False
        exporter.logger.filters.clear()  # one of them drops messages that it takes for repetitions

    def emit(self, record: logging.LogRecord) -> None:
        self.last_error = record.getMessage()


class FailureReportingExporter(SpanExporter):
    """Exporter that reports when it begins to fail."""

    def __init__(self, exporter: SpanExporter, on_spans_lost: OnSpansLost) -> None:
        self._exporter = exporter
        self._on_spans_lost = on_spans_lost
        self._error_capture = ErrorCapture()
        self._is_delivering = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        succeeded = result is SpanExportResult.SUCCESS
        if self._is_delivering and not succeeded:
            self._on_spans_lost(
                f"traces are lost (no further message until one is sent): {self._error_capture.last_error}")
        self._is_delivering = succeeded
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class ActiveSpan:
    """Implementation of `shard.telemetry.span_export_interface.OpenSpan`."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer, self._span = tracer, span
        self._context = set_span_in_context(span, Context())

    @property
    def traceparent(self) -> str:
        carrier: dict[str, str] = {}
        if self._span.get_span_context().trace_flags.sampled:
            W3C_PROPAGATOR.inject(carrier, self._context)
        return carrier.get("traceparent", "")

    def add_child(self, name: str, started_ns: int, ended_ns: int, attributes: SpanAttributes) -> None:
        self._tracer.start_span(name, self._context, attributes=attributes, start_time=started_ns).end(ended_ns)

    def end(self, ended_ns: int, attributes: SpanAttributes, *, failed: bool) -> None:
        self._span.set_attributes(attributes)
        end_span(self._span, ended_ns, failed=failed)


class OtlpSpanSender:
    """Implementation of `tracing.SpanSender`. Its library also reads environment variables that begin with OTEL_."""

    def __init__(self, settings: TraceSettings, process_name: str, on_spans_lost: OnSpansLost) -> None:
        self._exporter = FailureReportingExporter(
            OTLPSpanExporter(settings.endpoint, insecure=not settings.endpoint.startswith("https:"),
                             timeout=EXPORT_TIMEOUT_SECONDS), on_spans_lost)
        resource_attributes = {"service.name": settings.service, "service.version": version("weft"),
                               "weft.process": process_name}
        self._provider = TracerProvider(resource=Resource.create(resource_attributes), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("weft", version("weft"))

    def start_server_span(self, name: str, headers: Mapping[str, str], started_ns: int) -> ActiveSpan:
        parent = W3C_PROPAGATOR.extract(headers, Context())
        return ActiveSpan(self._tracer, self._tracer.start_span(name, parent, SpanKind.SERVER, start_time=started_ns))

    def add_remote_child(self, traceparent: str, name: str, started_ns: int, ended_ns: int, attributes: SpanAttributes,
                         *, failed: bool) -> None:
        parent = W3C_PROPAGATOR.extract({"traceparent": traceparent}, Context())
        span = self._tracer.start_span(name, parent, attributes=attributes, start_time=started_ns)
        end_span(span, ended_ns, failed=failed)

    def close(self) -> None:
        """Send the remaining spans; after SHUTDOWN_TIMEOUT_SECONDS the attempt under way is aborted."""
        abort_timer = Timer(SHUTDOWN_TIMEOUT_SECONDS, self._exporter.shutdown)
        abort_timer.start()
        self._provider.shutdown()
        abort_timer.cancel()
        abort_timer.join()


def end_span(span: Span, ended_ns: int, *, failed: bool) -> None:
    if failed:
        span.set_status(StatusCode.ERROR)
    span.end(ended_ns)
