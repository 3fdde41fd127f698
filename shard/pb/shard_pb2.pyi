from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Failure(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_UNSPECIFIED: _ClassVar[Failure]
    NON_FINITE: _ClassVar[Failure]
    GRAMMAR: _ClassVar[Failure]
    NO_ROOM: _ClassVar[Failure]

class Wanted(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WANTED_UNSPECIFIED: _ClassVar[Wanted]
    VECTORS: _ClassVar[Wanted]
    LABELS: _ClassVar[Wanted]

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNSPECIFIED: _ClassVar[Kind]
    KIND_ADAPTER: _ClassVar[Kind]
    KIND_GRAMMAR: _ClassVar[Kind]
FAILURE_UNSPECIFIED: Failure
NON_FINITE: Failure
GRAMMAR: Failure
NO_ROOM: Failure
WANTED_UNSPECIFIED: Wanted
VECTORS: Wanted
LABELS: Wanted
KIND_UNSPECIFIED: Kind
KIND_ADAPTER: Kind
KIND_GRAMMAR: Kind

class Sequences(_message.Message):
    __slots__ = ("ids", "num_tokens", "num_prompt_tokens", "tokens", "num_cached", "num_blocks", "blocks", "keys", "sampling", "prompt_logprobs", "adapters", "grammars", "num_prompt_top_tokens")
    IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    GRAMMARS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_prompt_tokens: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    num_cached: _containers.RepeatedScalarFieldContainer[int]
    num_blocks: _containers.RepeatedScalarFieldContainer[int]
    blocks: _containers.RepeatedScalarFieldContainer[int]
    keys: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    prompt_logprobs: _containers.RepeatedScalarFieldContainer[bool]
    adapters: _containers.RepeatedScalarFieldContainer[int]
    grammars: _containers.RepeatedScalarFieldContainer[int]
    num_prompt_top_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., num_prompt_tokens: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., num_cached: _Optional[_Iterable[int]] = ..., num_blocks: _Optional[_Iterable[int]] = ..., blocks: _Optional[_Iterable[int]] = ..., keys: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., prompt_logprobs: _Optional[_Iterable[bool]] = ..., adapters: _Optional[_Iterable[int]] = ..., grammars: _Optional[_Iterable[int]] = ..., num_prompt_top_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "relative_frequency_penalty", "watermark", "top_n_tokens", "raw_logprobs", "min_p", "frequency_penalty", "presence_penalty", "min_tokens", "num_end_tokens", "end_tokens", "num_allowed_tokens", "allowed_tokens", "num_banned_tokens", "banned_tokens", "num_biased_tokens", "biased_tokens", "num_biases", "biases")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    TOP_N_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RAW_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_END_TOKENS_FIELD_NUMBER: _ClassVar[int]
    END_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ALLOWED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BANNED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BANNED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BIASED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BIASED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BIASES_FIELD_NUMBER: _ClassVar[int]
    BIASES_FIELD_NUMBER: _ClassVar[int]
    temperature: _containers.RepeatedScalarFieldContainer[float]
    top_k: _containers.RepeatedScalarFieldContainer[int]
    top_p: _containers.RepeatedScalarFieldContainer[float]
    typical_p: _containers.RepeatedScalarFieldContainer[float]
    repetition_penalty: _containers.RepeatedScalarFieldContainer[float]
    relative_frequency_penalty: _containers.RepeatedScalarFieldContainer[float]
    watermark: _containers.RepeatedScalarFieldContainer[bool]
    top_n_tokens: _containers.RepeatedScalarFieldContainer[int]
    raw_logprobs: _containers.RepeatedScalarFieldContainer[bool]
    min_p: _containers.RepeatedScalarFieldContainer[float]
    frequency_penalty: _containers.RepeatedScalarFieldContainer[float]
    presence_penalty: _containers.RepeatedScalarFieldContainer[float]
    min_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_end_tokens: _containers.RepeatedScalarFieldContainer[int]
    end_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_allowed_tokens: _containers.RepeatedScalarFieldContainer[int]
    allowed_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_banned_tokens: _containers.RepeatedScalarFieldContainer[int]
    banned_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_biased_tokens: _containers.RepeatedScalarFieldContainer[int]
    biased_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_biases: _containers.RepeatedScalarFieldContainer[int]
    biases: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, temperature: _Optional[_Iterable[float]] = ..., top_k: _Optional[_Iterable[int]] = ..., top_p: _Optional[_Iterable[float]] = ..., typical_p: _Optional[_Iterable[float]] = ..., repetition_penalty: _Optional[_Iterable[float]] = ..., relative_frequency_penalty: _Optional[_Iterable[float]] = ..., watermark: _Optional[_Iterable[bool]] = ..., top_n_tokens: _Optional[_Iterable[int]] = ..., raw_logprobs: _Optional[_Iterable[bool]] = ..., min_p: _Optional[_Iterable[float]] = ..., frequency_penalty: _Optional[_Iterable[float]] = ..., presence_penalty: _Optional[_Iterable[float]] = ..., min_tokens: _Optional[_Iterable[int]] = ..., num_end_tokens: _Optional[_Iterable[int]] = ..., end_tokens: _Optional[_Iterable[int]] = ..., num_allowed_tokens: _Optional[_Iterable[int]] = ..., allowed_tokens: _Optional[_Iterable[int]] = ..., num_banned_tokens: _Optional[_Iterable[int]] = ..., banned_tokens: _Optional[_Iterable[int]] = ..., num_biased_tokens: _Optional[_Iterable[int]] = ..., biased_tokens: _Optional[_Iterable[int]] = ..., num_biases: _Optional[_Iterable[int]] = ..., biases: _Optional[_Iterable[float]] = ...) -> None: ...

class Chunks(_message.Message):
    __slots__ = ("sequences", "starts", "lengths", "traceparents")
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENTS_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedScalarFieldContainer[int]
    starts: _containers.RepeatedScalarFieldContainer[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    traceparents: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sequences: _Optional[_Iterable[int]] = ..., starts: _Optional[_Iterable[int]] = ..., lengths: _Optional[_Iterable[int]] = ..., traceparents: _Optional[_Iterable[str]] = ...) -> None: ...

class Grants(_message.Message):
    __slots__ = ("sequences", "num_blocks", "blocks")
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedScalarFieldContainer[int]
    num_blocks: _containers.RepeatedScalarFieldContainer[int]
    blocks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sequences: _Optional[_Iterable[int]] = ..., num_blocks: _Optional[_Iterable[int]] = ..., blocks: _Optional[_Iterable[int]] = ...) -> None: ...

class Keep(_message.Message):
    __slots__ = ("sequences",)
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sequences: _Optional[_Iterable[int]] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("batches",)
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, batches: _Optional[_Iterable[int]] = ...) -> None: ...

class PrefillRequest(_message.Message):
    __slots__ = ("epoch", "order", "batch", "sequences", "chunks", "alongside", "grants", "keep", "join")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    ALONGSIDE_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    order: int
    batch: int
    sequences: Sequences
    chunks: Chunks
    alongside: bool
    grants: Grants
    keep: Keep
    join: Join
    def __init__(self, epoch: _Optional[int] = ..., order: _Optional[int] = ..., batch: _Optional[int] = ..., sequences: _Optional[_Union[Sequences, _Mapping]] = ..., chunks: _Optional[_Union[Chunks, _Mapping]] = ..., alongside: bool = ..., grants: _Optional[_Union[Grants, _Mapping]] = ..., keep: _Optional[_Union[Keep, _Mapping]] = ..., join: _Optional[_Union[Join, _Mapping]] = ...) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ("epoch", "order", "batch", "grants", "keep", "join")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    order: int
    batch: int
    grants: Grants
    keep: Keep
    join: Join
    def __init__(self, epoch: _Optional[int] = ..., order: _Optional[int] = ..., batch: _Optional[int] = ..., grants: _Optional[_Union[Grants, _Mapping]] = ..., keep: _Optional[_Union[Keep, _Mapping]] = ..., join: _Optional[_Union[Join, _Mapping]] = ...) -> None: ...

class FilterRequest(_message.Message):
    __slots__ = ("epoch", "order", "batch", "keep")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    order: int
    batch: int
    keep: Keep
    def __init__(self, epoch: _Optional[int] = ..., order: _Optional[int] = ..., batch: _Optional[int] = ..., keep: _Optional[_Union[Keep, _Mapping]] = ...) -> None: ...

class ConcatRequest(_message.Message):
    __slots__ = ("epoch", "order", "batches")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    order: int
    batches: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., order: _Optional[int] = ..., batches: _Optional[_Iterable[int]] = ...) -> None: ...

class Acknowledgement(_message.Message):
    __slots__ = ("epoch", "order")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    order: int
    def __init__(self, epoch: _Optional[int] = ..., order: _Optional[int] = ...) -> None: ...

class StepMessage(_message.Message):
    __slots__ = ("prefill", "decode", "filter", "concat", "embed")
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    CONCAT_FIELD_NUMBER: _ClassVar[int]
    EMBED_FIELD_NUMBER: _ClassVar[int]
    prefill: PrefillRequest
    decode: DecodeRequest
    filter: FilterRequest
    concat: ConcatRequest
    embed: EmbedRequest
    def __init__(self, prefill: _Optional[_Union[PrefillRequest, _Mapping]] = ..., decode: _Optional[_Union[DecodeRequest, _Mapping]] = ..., filter: _Optional[_Union[FilterRequest, _Mapping]] = ..., concat: _Optional[_Union[ConcatRequest, _Mapping]] = ..., embed: _Optional[_Union[EmbedRequest, _Mapping]] = ...) -> None: ...

class StepOutcome(_message.Message):
    __slots__ = ("step", "acknowledgement", "trouble", "embed")
    STEP_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGEMENT_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    EMBED_FIELD_NUMBER: _ClassVar[int]
    step: StepAnswer
    acknowledgement: Acknowledgement
    trouble: Trouble
    embed: EmbedAnswer
    def __init__(self, step: _Optional[_Union[StepAnswer, _Mapping]] = ..., acknowledgement: _Optional[_Union[Acknowledgement, _Mapping]] = ..., trouble: _Optional[_Union[Trouble, _Mapping]] = ..., embed: _Optional[_Union[EmbedAnswer, _Mapping]] = ...) -> None: ...

class Trouble(_message.Message):
    __slots__ = ("code", "reason")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class StepAnswer(_message.Message):
    __slots__ = ("epoch", "order", "forward_seconds", "sequences", "num_tokens", "tokens", "logprobs", "num_top_tokens", "top_tokens", "top_logprobs", "failed", "failures", "prompt_sequences", "prompt_starts", "num_prompt_logprobs", "prompt_logprobs", "num_prompt_top_tokens", "prompt_top_tokens", "prompt_top_logprobs")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    FORWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_STARTS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    order: int
    forward_seconds: float
    sequences: _containers.RepeatedScalarFieldContainer[int]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    num_top_tokens: _containers.RepeatedScalarFieldContainer[int]
    top_tokens: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    failed: _containers.RepeatedScalarFieldContainer[int]
    failures: _containers.RepeatedScalarFieldContainer[Failure]
    prompt_sequences: _containers.RepeatedScalarFieldContainer[int]
    prompt_starts: _containers.RepeatedScalarFieldContainer[int]
    num_prompt_logprobs: _containers.RepeatedScalarFieldContainer[int]
    prompt_logprobs: _containers.RepeatedScalarFieldContainer[float]
    num_prompt_top_tokens: _containers.RepeatedScalarFieldContainer[int]
    prompt_top_tokens: _containers.RepeatedScalarFieldContainer[int]
    prompt_top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, epoch: _Optional[int] = ..., order: _Optional[int] = ..., forward_seconds: _Optional[float] = ..., sequences: _Optional[_Iterable[int]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., num_top_tokens: _Optional[_Iterable[int]] = ..., top_tokens: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ..., failed: _Optional[_Iterable[int]] = ..., failures: _Optional[_Iterable[_Union[Failure, str]]] = ..., prompt_sequences: _Optional[_Iterable[int]] = ..., prompt_starts: _Optional[_Iterable[int]] = ..., num_prompt_logprobs: _Optional[_Iterable[int]] = ..., prompt_logprobs: _Optional[_Iterable[float]] = ..., num_prompt_top_tokens: _Optional[_Iterable[int]] = ..., prompt_top_tokens: _Optional[_Iterable[int]] = ..., prompt_top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("epoch", "order", "wanted", "num_tokens", "tokens", "adapters")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    order: int
    wanted: Wanted
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    adapters: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., order: _Optional[int] = ..., wanted: _Optional[_Union[Wanted, str]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., adapters: _Optional[_Iterable[int]] = ...) -> None: ...

class EmbedAnswer(_message.Message):
    __slots__ = ("epoch", "order", "forward_seconds", "failed", "failures", "width", "values", "num_labels", "labels", "scores")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    FORWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    NUM_LABELS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    order: int
    forward_seconds: float
    failed: _containers.RepeatedScalarFieldContainer[int]
    failures: _containers.RepeatedScalarFieldContainer[Failure]
    width: int
    values: _containers.RepeatedScalarFieldContainer[float]
    num_labels: _containers.RepeatedScalarFieldContainer[int]
    labels: _containers.RepeatedScalarFieldContainer[int]
    scores: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, epoch: _Optional[int] = ..., order: _Optional[int] = ..., forward_seconds: _Optional[float] = ..., failed: _Optional[_Iterable[int]] = ..., failures: _Optional[_Iterable[_Union[Failure, str]]] = ..., width: _Optional[int] = ..., values: _Optional[_Iterable[float]] = ..., num_labels: _Optional[_Iterable[int]] = ..., labels: _Optional[_Iterable[int]] = ..., scores: _Optional[_Iterable[float]] = ...) -> None: ...

class InfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InfoAnswer(_message.Message):
    __slots__ = ("model", "device", "dtype", "rank", "world_size", "epoch", "vocabulary_size", "max_positions", "tokens_per_step", "mixed_steps", "exact", "adapters", "grammars", "embeddings", "loaded_adapters", "loaded_grammars", "warmup", "generation", "classification", "labels", "quantization")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    MIXED_STEPS_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    GRAMMARS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    LOADED_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    LOADED_GRAMMARS_FIELD_NUMBER: _ClassVar[int]
    WARMUP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CLASSIFICATION_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    model: str
    device: str
    dtype: str
    rank: int
    world_size: int
    epoch: int
    vocabulary_size: int
    max_positions: int
    tokens_per_step: int
    mixed_steps: bool
    exact: bool
    adapters: bool
    grammars: bool
    embeddings: bool
    loaded_adapters: _containers.RepeatedScalarFieldContainer[int]
    loaded_grammars: _containers.RepeatedScalarFieldContainer[int]
    warmup: WarmupAnswer
    generation: bool
    classification: bool
    labels: _containers.RepeatedScalarFieldContainer[str]
    quantization: str
    def __init__(self, model: _Optional[str] = ..., device: _Optional[str] = ..., dtype: _Optional[str] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., epoch: _Optional[int] = ..., vocabulary_size: _Optional[int] = ..., max_positions: _Optional[int] = ..., tokens_per_step: _Optional[int] = ..., mixed_steps: bool = ..., exact: bool = ..., adapters: bool = ..., grammars: bool = ..., embeddings: bool = ..., loaded_adapters: _Optional[_Iterable[int]] = ..., loaded_grammars: _Optional[_Iterable[int]] = ..., warmup: _Optional[_Union[WarmupAnswer, _Mapping]] = ..., generation: bool = ..., classification: bool = ..., labels: _Optional[_Iterable[str]] = ..., quantization: _Optional[str] = ...) -> None: ...

class WarmupRequest(_message.Message):
    __slots__ = ("block_size", "max_prefill_tokens", "max_batch_size", "max_total_tokens", "max_cache_tokens")
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_CACHE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    block_size: int
    max_prefill_tokens: int
    max_batch_size: int
    max_total_tokens: int
    max_cache_tokens: int
    def __init__(self, block_size: _Optional[int] = ..., max_prefill_tokens: _Optional[int] = ..., max_batch_size: _Optional[int] = ..., max_total_tokens: _Optional[int] = ..., max_cache_tokens: _Optional[int] = ...) -> None: ...

class WarmupAnswer(_message.Message):
    __slots__ = ("block_size", "num_blocks", "rows", "chunk_tokens", "context", "seconds", "cache_bytes", "why", "adapter_bytes")
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_BYTES_FIELD_NUMBER: _ClassVar[int]
    block_size: int
    num_blocks: int
    rows: _containers.RepeatedScalarFieldContainer[int]
    chunk_tokens: _containers.RepeatedScalarFieldContainer[int]
    context: _containers.RepeatedScalarFieldContainer[int]
    seconds: _containers.RepeatedScalarFieldContainer[float]
    cache_bytes: int
    why: str
    adapter_bytes: int
    def __init__(self, block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., rows: _Optional[_Iterable[int]] = ..., chunk_tokens: _Optional[_Iterable[int]] = ..., context: _Optional[_Iterable[int]] = ..., seconds: _Optional[_Iterable[float]] = ..., cache_bytes: _Optional[int] = ..., why: _Optional[str] = ..., adapter_bytes: _Optional[int] = ...) -> None: ...

class ResetRequest(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class ResetAnswer(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class LoadRequest(_message.Message):
    __slots__ = ("epoch", "kind", "id", "source")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    kind: Kind
    id: int
    source: str
    def __init__(self, epoch: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., id: _Optional[int] = ..., source: _Optional[str] = ...) -> None: ...

class LoadAnswer(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    def __init__(self, bytes: _Optional[int] = ...) -> None: ...

class UnloadRequest(_message.Message):
    __slots__ = ("epoch", "kind", "id")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    kind: Kind
    id: int
    def __init__(self, epoch: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., id: _Optional[int] = ...) -> None: ...

class UnloadAnswer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
