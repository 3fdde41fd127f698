"""Verbs of the shards: the type of each verb's answer, and the verb of each type of request message."""

from typing import Any

from shard.pb import shard_pb2 as pb

ANSWER_TYPES: dict[str, Any] = {
    "Info": pb.InfoAnswer, "Warmup": pb.WarmupAnswer, "Reset": pb.ResetAnswer, "Prefill": pb.StepAnswer,
    "Decode": pb.StepAnswer, "Filter": pb.Acknowledgement, "Concat": pb.Acknowledgement, "Load": pb.LoadAnswer,
    "Unload": pb.UnloadAnswer, "Embed": pb.EmbedAnswer,
}
METHOD_BY_REQUEST_TYPE = {
    pb.InfoRequest: "Info", pb.WarmupRequest: "Warmup", pb.ResetRequest: "Reset", pb.PrefillRequest: "Prefill",
    pb.DecodeRequest: "Decode", pb.FilterRequest: "Filter", pb.ConcatRequest: "Concat", pb.LoadRequest: "Load",
    pb.UnloadRequest: "Unload", pb.EmbedRequest: "Embed",
}
# The verbs that are sent as a StepMessage of the `Steps` stream, each in a field of its own.
STEP_FIELD_BY_METHOD = {"Prefill": "prefill", "Decode": "decode", "Filter": "filter", "Concat": "concat",
                        "Embed": "embed"}
