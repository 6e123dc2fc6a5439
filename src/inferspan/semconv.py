"""Every name that inferspan emits: spans, attributes, metrics, with type, unit, kind, buckets and where they appear.

No telemetry string may stand anywhere else. ``docs/telemetry.md`` is generated from the tables below. Names under ``gen_ai``,
``hw``, ``system``, ``process`` and ``cpython`` are those of the OpenTelemetry semantic conventions; they are written out because
the ``gen_ai`` constants of the Python package are deprecated (the conventions moved to a repository of their own). Everything
of ours is under ``inferspan``.
"""

from __future__ import annotations

from typing import NamedTuple

from .setting_checks import MODEL_STAGES, PIPELINE_STAGES

__all__ = [
    "ATTRIBUTES",
    "ERROR_PLACES",
    "EVENTS",
    "HOST_METRICS",
    "METRICS",
    "RENAMED",
    "SPANS",
    "Attribute",
    "ErrorPlaces",
    "Event",
    "Metric",
    "Renamed",
    "SpanKindOf",
]

SCOPE = "inferspan"
"""Name of our instrumentation scope."""
CORE_SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
"""Schema of the hw, system and process metrics. The gen_ai scope has none: its published URL names another repository."""

# ---------------------------------------------------------------------------------------------------------------- spans
SPAN_PREFILL = "prefill"
SPAN_DECODE = "decode"
SPAN_PREFILL_STEP = "prefill_step"
SPAN_DECODE_STEP = "decode_step"
SPAN_DENOISE_STEP = "denoise_step"
SPAN_FORWARD = "forward"
SPAN_BATCH = "batch"
SPAN_BACKWARD = "backward"
SPAN_LOAD = "load"
SPAN_RESOLVE, SPAN_READ, SPAN_DISPATCH = "resolve", "read", "dispatch"
"""Parts of a load."""
LOAD_SPANS = (SPAN_LOAD, SPAN_RESOLVE, SPAN_READ, SPAN_DISPATCH)
SPAN_SESSION = "session"
SPAN_BLOCK = "block_computation"
SPAN_GENERATE = "inferspan.generate"
"""Name of the request span when another library has already opened a gen_ai span around the call."""

OPERATION_CHAT = "chat"
OPERATION_TEXT_COMPLETION = "text_completion"
OPERATION_GENERATE_CONTENT = "generate_content"
OPERATION_EMBEDDINGS = "embeddings"
PROVIDER_HUGGINGFACE = "huggingface"
PROVIDER_PYTORCH = "pytorch"
PROVIDER_OTHER = "_OTHER"
PHASE_FORWARD = "forward"
STAGE_VISION_ENCODE, STAGE_AUDIO_ENCODE, STAGE_FUSION = MODEL_STAGES
STAGE_TEXT_ENCODE, STAGE_VAE_ENCODE, STAGE_VAE_DECODE, STAGE_VOCODE = PIPELINE_STAGES
STAGE_DENOISE = "denoise"
STAGE_VAE_DECODE_BLOCK = "vae_decode_block"
STAGE_KIND_MODEL, STAGE_KIND_USER = "model", "user"
FINISH_STOP = "stop"
FINISH_LENGTH = "length"
FINISH_ERROR = "error"
CANCELLED = "cancelled"
"""Type of the error of a request that its caller has cancelled."""

# ----------------------------------------------------------------------------------------------------------- attributes
# gen_ai (GenAI conventions v0.1.0)
OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_P = "gen_ai.request.top_p"
REQUEST_TOP_K = "gen_ai.request.top_k"
REQUEST_STOP_SEQUENCES = "gen_ai.request.stop_sequences"
REQUEST_SEED = "gen_ai.request.seed"
REQUEST_CHOICE_COUNT = "gen_ai.request.choice.count"
REQUEST_STREAM = "gen_ai.request.stream"
CONVERSATION_ID = "gen_ai.conversation.id"
CONVERSATION_COMPACTED = "gen_ai.conversation.compacted"
OUTPUT_TYPE = "gen_ai.output.type"
PROMPT_NAME = "gen_ai.prompt.name"
PROMPT_VERSION = "gen_ai.prompt.version"
REASONING_LEVEL = "gen_ai.request.reasoning.level"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
TEXT_INPUT_TOKENS = "gen_ai.usage.text.input_tokens"
TEXT_OUTPUT_TOKENS = "gen_ai.usage.text.output_tokens"
IMAGE_INPUT_TOKENS = "gen_ai.usage.image.input_tokens"
IMAGE_OUTPUT_TOKENS = "gen_ai.usage.image.output_tokens"
AUDIO_INPUT_TOKENS = "gen_ai.usage.audio.input_tokens"
AUDIO_OUTPUT_TOKENS = "gen_ai.usage.audio.output_tokens"
INPUT_BY_MODALITY = {"text": TEXT_INPUT_TOKENS, "image": IMAGE_INPUT_TOKENS, "audio": AUDIO_INPUT_TOKENS}
OUTPUT_BY_MODALITY = {"text": TEXT_OUTPUT_TOKENS, "image": IMAGE_OUTPUT_TOKENS, "audio": AUDIO_OUTPUT_TOKENS}
CACHE_READ_INPUT_TOKENS = "gen_ai.usage.cache_read.input_tokens"
EMBEDDINGS_DIMENSION = "gen_ai.embeddings.dimension.count"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
MESSAGES = (INPUT_MESSAGES, OUTPUT_MESSAGES)
TOKEN_TYPE = "gen_ai.token.type"
TOKEN_MODALITY = "gen_ai.token.modality"
ERROR_TYPE = "error.type"
EXCEPTION_EVENT = "exception"
EXCEPTION_TYPE = "exception.type"
EXCEPTION_MESSAGE = "exception.message"
EXCEPTION_STACKTRACE = "exception.stacktrace"
CONTENT_EVENT = "gen_ai.client.inference.operation.details"
INFERENCE_EXCEPTION_EVENT = "gen_ai.client.inference.exception"
EVALUATION_EVENT = "gen_ai.evaluation.result"
EVALUATION_NAME = "gen_ai.evaluation.name"
EVALUATION_VALUE = "gen_ai.evaluation.score.value"
EVALUATION_LABEL = "gen_ai.evaluation.score.label"
EVALUATION_EXPLANATION = "gen_ai.evaluation.explanation"
EVALUATION_CONFIDENCE = "inferspan.confidence"
EVALUATION_REPETITION = "inferspan.repetition"
EVALUATION_LOGIT_SPREAD = "inferspan.logit_spread"
EVALUATION_ENTROPY = "inferspan.entropy"
EVALUATION_DRIFT = "inferspan.drift"
EVALUATION_NONFINITE = "inferspan.nonfinite"
FINDING_LOW, FINDING_LOOP, FINDING_FLAT, FINDING_NONFINITE = "low", "loop", "flat", "nonfinite"
FINDING_COLLAPSED, FINDING_DRIFT = "collapsed", "drift"
SYSTEM_EVENT = "inferspan.system"
USER_ID = "user.id"

# request span, ours
NESTED = "inferspan.nested"
INPUT_MODALITIES = "inferspan.input.modalities"
BATCH_SIZE = "inferspan.batch.size"
NUM_BEAMS = "inferspan.request.num_beams"
DO_SAMPLE = "inferspan.request.do_sample"
REPETITION_PENALTY = "inferspan.request.repetition_penalty"
DECODE_STEPS = "inferspan.decode.steps"
TTFT = "inferspan.time_to_first_token"
TPOT = "inferspan.time_per_output_token"
TOKENS_PER_SECOND = "inferspan.tokens_per_second"
PREFILL_TOKENS_PER_SECOND = "inferspan.prefill.tokens_per_second"
SEQUENCE_INPUT_TOKENS = "inferspan.sequences.input_tokens"
SEQUENCE_OUTPUT_TOKENS = "inferspan.sequences.output_tokens"
KV_CACHE_BYTES = "inferspan.kv_cache.bytes"
KV_CACHE_REUSED_TOKENS = "inferspan.kv_cache.reused_tokens"
KV_CACHE_HIT = "inferspan.kv_cache.hit"
KV_CACHE_BLOCKS_USED = "inferspan.kv_cache.blocks.used"
TIME_IN_QUEUE = "inferspan.time_in_queue"
PREFILL_CHUNKS = "inferspan.prefill.chunks"
PREEMPTIONS = "inferspan.preemptions"
BATCH_STEPS = "inferspan.batch.steps"
BATCH_TOKENS = "inferspan.batch.tokens"
SPANS_DROPPED = "inferspan.spans.dropped"
MEMORY_START = "inferspan.memory.start"
MEMORY_END = "inferspan.memory.end"
MEMORY_PEAK = "inferspan.memory.peak"
MEMORY_PEAK_EXACT = "inferspan.memory.peak_exact"
MEMORY_DELTA = "inferspan.memory.delta"
MEMORY_RESERVED_START = "inferspan.memory.reserved.start"
MEMORY_RESERVED_END = "inferspan.memory.reserved.end"
MEMORY_HIGH_WATER_START = "inferspan.memory.high_water.start"
MEMORY_HIGH_WATER_END = "inferspan.memory.high_water.end"
MEMORY_MODULES_EVENT = "inferspan.memory.modules"
MEMORY_MODULE_NAMES = "inferspan.memory.module.names"
MEMORY_MODULE_READINGS = "inferspan.memory.module.readings"
MEMORY_MODULE_AFTER = "inferspan.memory.module.after"
MEMORY_MODULE_DIFFERENCE = "inferspan.memory.module.difference"
MEMORY_MODULE_RISE = "inferspan.memory.module.rise"
MEMORY_MODULES_OMITTED = "inferspan.memory.module.omitted"
OOM_EVENT = "inferspan.out_of_memory"
OOM_REQUESTED = "inferspan.oom.requested"
OOM_ALLOCATED = "inferspan.oom.allocated"
OOM_RESERVED = "inferspan.oom.reserved"
OOM_HIGH_WATER = "inferspan.oom.high_water"
OOM_SUMMARY = "inferspan.oom.summary"
OOM_SNAPSHOT = "inferspan.oom.snapshot"
OOM_MODULE = "inferspan.oom.module"
OOM_STEP = "inferspan.oom.step"
ENERGY = "inferspan.energy"
ENERGY_PER_OUTPUT_TOKEN = "inferspan.energy_per_output_token"
TOKEN_LOGPROBS = "inferspan.tokens.logprobs"
TOKEN_ENTROPIES = "inferspan.tokens.entropies"
TOKEN_INTERVALS = "inferspan.tokens.intervals"
TOKENS_TRUNCATED = "inferspan.tokens.truncated"
TOKEN_IDS = "inferspan.tokens.ids"
ANALYSIS_UNIQUE_TOKENS = "inferspan.analysis.unique_tokens"
ANALYSIS_TOKEN_ENTROPY = "inferspan.analysis.token_entropy"
ANALYSIS_DISTINCT_RATIO = "inferspan.analysis.distinct_ratio"
ANALYSIS_REPETITION_RATE = "inferspan.analysis.repetition_rate"
ANALYSIS_REPETITION_RATE_RECENT = "inferspan.analysis.repetition_rate_recent"
ANALYSIS_REPETITION_4GRAM = "inferspan.analysis.repetition_4gram"
ANALYSIS_LOOP = {name: f"inferspan.analysis.loop.{name}" for name in ("tokens", "period", "start")}
ANALYSIS_LOOP_SEQUENCE = "inferspan.analysis.loop.sequence"
ANALYSIS_CONFIDENCE = {name: f"inferspan.analysis.confidence.{name}" for name in ("average", "minimum", "maximum", "deviation")}
ANALYSIS_CHOSEN = {name: f"inferspan.analysis.chosen_probability.{name}" for name in ("average", "minimum", "maximum", "deviation")}
ANALYSIS_COLLAPSE_START = "inferspan.analysis.collapse.start"
ANALYSIS_COLLAPSE_TOKENS = "inferspan.analysis.collapse.tokens"
ANALYSIS_LOGITS_MEAN = "inferspan.analysis.avg_logits_mean"
ANALYSIS_LOGITS_STD = "inferspan.analysis.avg_logits_std"
ANALYSIS_COMMON_IDS = "inferspan.analysis.most_common.ids"
ANALYSIS_COMMON_TEXTS = "inferspan.analysis.most_common.texts"
ANALYSIS_COMMON_COUNTS = "inferspan.analysis.most_common.counts"
ANALYSIS_SEQUENCES = {
    "unique_tokens": "inferspan.analysis.sequences.unique_tokens",
    "token_entropy": "inferspan.analysis.sequences.token_entropies",
    "repetition_rate": "inferspan.analysis.sequences.repetition_rates",
    "repetition_rate_recent": "inferspan.analysis.sequences.repetition_rates_recent",
    "repetition_4gram": "inferspan.analysis.sequences.repetitions_4gram",
    "loop_tokens": "inferspan.analysis.sequences.loop_tokens",
    "confidence": "inferspan.analysis.sequences.confidences",
    "chosen_probability": "inferspan.analysis.sequences.chosen_probabilities",
}
"""Figures of each sequence of a request with several."""
HEALTH_KINDS = "inferspan.health.kinds"
HEALTH_KIND = "inferspan.health.kind"
HEALTH_FIGURE = "inferspan.health.figure"
STOP_KINDS = "inferspan.stop.kinds"
METHOD = "inferspan.method"
PIPELINE_TASK = "inferspan.pipeline.task"
FORWARD_PASSES = "inferspan.forward.passes"
INPUT_TRUNCATED = "inferspan.input.truncated"
OFFLOAD_TIME = "inferspan.offload.time"
UNOBSERVED = "inferspan.unobserved"
WARMUP = "inferspan.warmup"
COMPILE_TIME = "inferspan.compile.time"
COMPILE_RECOMPILES = "inferspan.compile.recompiles"
COMPILE_GRAPH_BREAKS = "inferspan.compile.graph_breaks"
COMPILE_ID = "inferspan.compile.id"
COMPILE_REASON = "inferspan.compile.reason"
COMPILE_GUARD = "inferspan.compile.guard"
COMPILE_LIMIT = "inferspan.compile.limit_reached"
RECOMPILATION_EVENT = "inferspan.recompilation"
GRAPH_BREAK_EVENT = "inferspan.graph_break"
CODE_FUNCTION = "code.function.name"
CODE_FILE = "code.file.path"
CODE_LINE = "code.line.number"
NONFINITE = "inferspan.nonfinite"
FAILED = "inferspan.failed"
KEEP = "inferspan.keep"
DETAIL_KEPT = "inferspan.detail.kept"
DETAIL_RULE = "inferspan.detail.rule"
DETAIL_SPANS = "inferspan.detail.spans"
LATENCY_TTFT = "gen_ai.latency.time_to_first_token"
LATENCY_E2E = "gen_ai.latency.e2e"
LATENCY_PREFILL = "gen_ai.latency.time_in_model_prefill"
LATENCY_DECODE = "gen_ai.latency.time_in_model_decode"
LATENCY_INFERENCE = "gen_ai.latency.time_in_model_inference"
LATENCY_QUEUE = "gen_ai.latency.time_in_queue"

# load
LOAD_KIND = "inferspan.load.kind"
LOAD_RESOLVE_TIME = "inferspan.load.resolve_time"
LOAD_READ_TIME = "inferspan.load.read_time"
LOAD_DISPATCH_TIME = "inferspan.load.dispatch_time"
LOAD_TIMES = {SPAN_RESOLVE: LOAD_RESOLVE_TIME, SPAN_READ: LOAD_READ_TIME, SPAN_DISPATCH: LOAD_DISPATCH_TIME}
CHECKPOINT_FILES = "inferspan.checkpoint.files"
CHECKPOINT_SHARDS = "inferspan.checkpoint.shards"
CHECKPOINT_BYTES = "inferspan.checkpoint.bytes"
CHECKPOINT_TENSORS = "inferspan.checkpoint.tensors"
CHECKPOINT_DTYPES = "inferspan.checkpoint.dtypes"
CHECKPOINT_LOADED_EVENT = "checkpoint_loaded"

# model facts, request span
MODEL_NAME = "inferspan.model.name"
MODEL_REVISION = "inferspan.model.revision"
MODEL_ARCHITECTURE = "inferspan.model.architecture"
MODEL_TYPE = "inferspan.model.type"
MODEL_MODALITIES = "inferspan.model.modalities"
MODEL_PARAMETERS = "inferspan.model.parameter.count"
MODEL_DTYPE = "inferspan.model.dtype"
MODEL_QUANTIZATION_METHOD = "inferspan.model.quantization.method"
MODEL_QUANTIZATION_BITS = "inferspan.model.quantization.bits"
MODEL_ATTENTION = "inferspan.model.attention.implementation"
MODEL_COMPILE_MODE = "inferspan.model.compile.mode"
MODEL_CACHE = "inferspan.model.cache.implementation"
MODEL_ADAPTERS = "inferspan.model.adapter.names"
ADAPTER = "inferspan.adapter"
OTHER_ADAPTER = "other"
DEVICE = "inferspan.device.id"
DEVICE_TYPE = "inferspan.device.type"

# phase, step, module
PHASE = "inferspan.phase"
STAGE_NAME = "inferspan.stage.name"
STAGE_KIND = "inferspan.stage.kind"
DENOISE_INDEX = "inferspan.denoise.index"
DENOISE_TIMESTEP = "inferspan.denoise.timestep"
DENOISE_BLOCK = "inferspan.denoise.block"
DENOISE_BLOCKS = "inferspan.denoise.blocks"
DENOISE_STEPS = "inferspan.denoise.steps"
DENOISE_RAN = "inferspan.denoise.ran"
DENOISE_RATE = "inferspan.denoise.steps_per_second"
DENOISE_GUIDANCE = "inferspan.denoise.guidance_scale"
DENOISE_SCHEDULER = "inferspan.denoise.scheduler"
OUTPUT_IMAGES = "inferspan.output.images"
OUTPUT_FRAMES = "inferspan.output.frames"
VAE_BLOCK = "inferspan.vae.block"
VAE_BLOCKS = "inferspan.vae.blocks"
VAE_BLOCKS_OMITTED = "inferspan.vae.blocks_omitted"
OUTPUT_AUDIOS = "inferspan.output.audios"
OUTPUT_HEIGHT = "inferspan.output.height"
OUTPUT_WIDTH = "inferspan.output.width"
IMAGES_PER_SECOND = "inferspan.images_per_second"
BLOCKS_PER_SECOND = "inferspan.blocks_per_second"
TIME_TO_FIRST_BLOCK = "inferspan.time_to_first_block"
FRAMES_PER_SECOND = "inferspan.frames_per_second"
STEP_INDEX = "inferspan.step.index"
STEP_TOKENS = "inferspan.step.tokens"
STEP_ROWS = "inferspan.step.rows"
STEP_WAITING = "inferspan.step.waiting"
SPECULATIVE_DRAFTED = "inferspan.speculative.drafted_tokens"
SPECULATIVE_ACCEPTED = "inferspan.speculative.accepted_tokens"
SPECULATIVE_ACCEPTANCE = "inferspan.speculative.acceptance"
SEQUENCE_LENGTH = "inferspan.sequence.length"
MODULE_NAME = "inferspan.module.name"
MODULE_TYPE = "inferspan.module.type"
MODULE_LAYER_INDEX = "inferspan.module.layer.index"
STAGE_TOKENS = "inferspan.stage.tokens"
INPUT_SHAPES = "inferspan.input.shapes"
OUTPUT_SHAPES = "inferspan.output.shapes"
INPUT_DTYPES = "inferspan.input.dtypes"
OUTPUT_DTYPES = "inferspan.output.dtypes"
DEVICE_TIME = "inferspan.device.time"
DEVICE_FLOPS = "inferspan.device.flops"
DEVICE_BYTES = "inferspan.device.bytes"
DEVICE_BOUND = "inferspan.device.bound"
DEVICE_PEAK_SHARE = "inferspan.device.peak.share"
DEVICE_PEAK_FLOPS = "inferspan.device.peak.flops"
DEVICE_PEAK_BANDWIDTH = "inferspan.device.peak.bandwidth"
BOUND_COMPUTE, BOUND_MEMORY, BOUND_LAUNCH, BOUND_TRANSFER, BOUND_SYNC = BOUNDS = "compute", "memory", "launch", "transfer", "sync"
PROFILER_STEPS = "inferspan.profiler.steps"
PROFILER_OPS = "inferspan.profiler.ops"
PROFILER_KERNELS = "inferspan.profiler.kernels"
PROFILER_KERNEL_TIME = "inferspan.profiler.kernel_time"
PROFILER_PASS_TIME = "inferspan.profiler.pass_time"
PROFILER_COLLECTIVE_TIME = "inferspan.profiler.collective_time"
PROFILER_KIND = "inferspan.profiler.kind"
OP_NAME = "inferspan.op.name"
KERNEL_NAME = "inferspan.kernel.name"
KERNEL_STREAM = "inferspan.kernel.stream"
KERNEL_GRID = "inferspan.kernel.grid"
KERNEL_BLOCK = "inferspan.kernel.block"
KERNEL_BYTES = "inferspan.kernel.bytes"
KERNEL_QUEUE_TIME = "inferspan.kernel.queue_time"
KERNEL_CORRELATION = "inferspan.kernel.correlation"
OUTPUT_STAT_MEAN = "inferspan.output.stat.mean"
OUTPUT_STAT_STD = "inferspan.output.stat.std"
OUTPUT_STAT_MIN = "inferspan.output.stat.min"
OUTPUT_STAT_MAX = "inferspan.output.stat.max"
OUTPUT_STAT_ABS_MAX = "inferspan.output.stat.abs_max"
OUTPUT_STAT_NAN_COUNT = "inferspan.output.stat.nan_count"
OUTPUT_STAT_INF_COUNT = "inferspan.output.stat.inf_count"
OUTPUT_STAT_ELEMENT_COUNT = "inferspan.output.stat.element_count"
OUTPUT_STAT_SPARSITY = "inferspan.output.stat.sparsity"
MODULE_RESULT = "inferspan.module.result"
"""Prefix of what functions of the program have returned."""
FLOW_KIND = "inferspan.data_flow.kind"
FLOW_SOURCE = "inferspan.data_flow.source"
FLOW_ORIGIN = "inferspan.data_flow.origin"
FLOW_TENSOR = "inferspan.data_flow.tensor"
FLOW_INTO = "inferspan.data_flow.into"
FLOW_SHAPE = "inferspan.data_flow.shape"
FLOW_DTYPE = "inferspan.data_flow.dtype"
FLOW_BYTES = "inferspan.data_flow.bytes"
FLOW_VIA = "inferspan.data_flow.via"
FLOW_EDGES = "inferspan.data_flow.edges"
FLOW_LEFT_OUT = "inferspan.data_flow.left_out"
POSITIONS_EVENT = "inferspan.logits.positions"
POSITION_ROWS = "inferspan.logits.position.rows"
POSITION_PLACES = "inferspan.logits.position.places"
POSITION_IDS = "inferspan.logits.position.ids"
POSITION_VALUES = "inferspan.logits.position.values"
POSITION_TEXTS = "inferspan.logits.position.texts"
POSITION_SHAPE = "inferspan.logits.position.shape"
POSITIONS_OMITTED = "inferspan.logits.position.omitted"
NONFINITE_EVENT = "inferspan.nonfinite_output"
ATTENTION_SOURCE = "inferspan.attention.source"
ATTENTION_SHAPE = "inferspan.attention.shape"
ATTENTION_ENTROPY_MEAN = "inferspan.attention.entropy.mean"
ATTENTION_ENTROPY_STD = "inferspan.attention.entropy.std"
ATTENTION_MAX = "inferspan.attention.max"
ATTENTION_MEAN = "inferspan.attention.mean"
ATTENTION_SINK = "inferspan.attention.sink_share"
ATTENTION_PEAK = "inferspan.attention.peak_per_query"
ATTENTION_PEAK_SHARE = "inferspan.attention.peak_share"
ATTENTION_HEAD_ENTROPIES = "inferspan.attention.head.entropies"
ATTENTION_HEAD_SINKS = "inferspan.attention.head.sink_shares"
ATTENTION_KEY_POSITIONS = "inferspan.attention.received_per_key.positions"
ATTENTION_KEY_WEIGHTS = "inferspan.attention.received_per_key.weights"
ATTENTION_LAYERS = "inferspan.attention.layers"
ATTENTION_LAYER_ENTROPIES = "inferspan.attention.layer.entropies"
ATTENTION_LAYER_SINKS = "inferspan.attention.layer.sink_shares"
ATTENTION_MISSING = "inferspan.attention.missing"
ATTENTION_LEFT_OUT = "inferspan.attention.left_out"
ATTENTION_PROMPT = "inferspan.attention.prompt_tokens"
ATTENTION_MAP_EVENT = "inferspan.attention.map"
ATTENTION_MAP_SHAPE = "inferspan.attention.weights.shape"
ATTENTION_MAP_SHIFT = "inferspan.attention.weights.first_position"
ATTENTION_MAP_SCALE = "inferspan.attention.weights.scale"
ATTENTION_MAP_DATA = "inferspan.attention.weights.data"
ATTENTION_CROSS = "inferspan.attention.cross"
OUTPUTS_STATS = {
    key: key.replace("inferspan.output.", "inferspan.outputs.")
    for key in (
        OUTPUT_STAT_MEAN, OUTPUT_STAT_STD, OUTPUT_STAT_MIN, OUTPUT_STAT_MAX, OUTPUT_STAT_ABS_MAX, OUTPUT_STAT_SPARSITY,
        OUTPUT_STAT_NAN_COUNT, OUTPUT_STAT_INF_COUNT, OUTPUT_STAT_ELEMENT_COUNT,
    )
}  # fmt: skip
"""Names of the same for all tensors of an output."""
_GRADIENT = ("mean", "std", "min", "max", "norm", "nan_count", "inf_count", "element_count")
GRAD_INPUTS = {key: f"inferspan.grad_input.stat.{key}" for key in _GRADIENT}
GRAD_OUTPUTS = {key: f"inferspan.grad_output.stat.{key}" for key in _GRADIENT}
"""Figures of the gradients of all inputs of a module together, and of all outputs."""
BACKWARD_NUMBER = "inferspan.backward.number"
BACKWARD_MODULES = "inferspan.backward.modules"
BACKWARD_NAN_COUNT = "inferspan.backward.nan_count"
BACKWARD_INF_COUNT = "inferspan.backward.inf_count"
BACKWARD_FIRST_NONFINITE = "inferspan.backward.first_nonfinite"
EARLY_EXIT_LAYER = "inferspan.early_exit.layer"
EARLY_EXIT_LAYERS = "inferspan.early_exit.layers"
EARLY_EXIT_PASSES = "inferspan.early_exit.passes"
LAYERS_TOTAL = "inferspan.layers.total"
LAYERS_SKIPPED = "inferspan.layers.skipped"
LOOP_MODULES = "inferspan.loop.modules"
LOOP_ITERATIONS = "inferspan.loop.iterations"
BRANCH_PATH = "inferspan.branch.path"
BRANCH_CALLED = "inferspan.branch.called"
BRANCH_NOT_CALLED = "inferspan.branch.not_called"
BRANCH_PASSES = "inferspan.branch.passes"
EARLY_EXIT_EVENT = "inferspan.early_exit"
BRANCH_EVENT = "inferspan.branch"
INPUT_STATS = {key: key.replace("inferspan.output", "inferspan.input", 1) for key in (*OUTPUTS_STATS, *OUTPUTS_STATS.values())}
"""Names of the same for inputs."""
INPUT_STAT_NAN_COUNT = INPUT_STATS[OUTPUT_STAT_NAN_COUNT]
INPUT_STAT_INF_COUNT = INPUT_STATS[OUTPUT_STAT_INF_COUNT]
EXPERTS_LOAD = "inferspan.experts.load"
EXPERTS_IMBALANCE = "inferspan.experts.imbalance"
EXPERTS_ENTROPY = "inferspan.experts.entropy"
EXPERTS_DROPPED = "inferspan.experts.dropped_tokens"
LOGITS_ENTROPY = "inferspan.logits.entropy"
LOGITS_MAX = "inferspan.logits.max"
LOGITS_MIN = "inferspan.logits.min"
LOGITS_MEAN = "inferspan.logits.mean"
LOGITS_STD = "inferspan.logits.std"
LOGITS_MARGIN = "inferspan.logits.margin"
LOGITS_TOP1 = "inferspan.logits.top1_probability"
LOGITS_CHOSEN_LOGPROB = "inferspan.logits.chosen_logprob"
LOGITS_CHOSEN_RANK = "inferspan.logits.chosen_rank"
LOGITS_NAN_COUNT = "inferspan.logits.nan_count"
LOGITS_INF_COUNT = "inferspan.logits.inf_count"
LOGITS_TOP_K_IDS = "inferspan.logits.top_k.ids"
LOGITS_TOP_K_PROBABILITIES = "inferspan.logits.top_k.probabilities"
LOGITS_TOP_K_TEXTS = "inferspan.logits.top_k.texts"
STEP_TOKEN_IDS = "inferspan.token.ids"
STEP_TOKEN_TEXTS = "inferspan.token.texts"
STEP_ROWS_OMITTED = "inferspan.token.rows_omitted"
LOGITS_ROWS = {
    LOGITS_ENTROPY: "inferspan.logits.entropies",
    LOGITS_MAX: "inferspan.logits.maxima",
    LOGITS_MIN: "inferspan.logits.minima",
    LOGITS_MEAN: "inferspan.logits.means",
    LOGITS_STD: "inferspan.logits.stds",
    LOGITS_MARGIN: "inferspan.logits.margins",
    LOGITS_TOP1: "inferspan.logits.top1_probabilities",
    LOGITS_CHOSEN_LOGPROB: "inferspan.logits.chosen_logprobs",
}
"""Key of the values per batch row (batches of at most 16) beside the key of their mean."""

# stages and sessions
STAGE_SELF_TIME = "inferspan.stage.self_time"
SESSION_ID = "inferspan.session.id"
SESSION_NAME = "inferspan.session.name"
SESSION_TAG = "inferspan.session.tag"
"""Followed by a dot and the key of the tag."""
BLOCK_INDEX = "inferspan.block.index"
BLOCK_SIZE = "inferspan.block.size"
BLOCK_TIME = "inferspan.block.computation_time"
BLOCK_MEMORY = "inferspan.block.memory_usage"
BLOCK_TIME_GIVEN = "inferspan.block.reported.computation_time"
BLOCK_MEMORY_GIVEN = "inferspan.block.reported.memory_usage"
OTHER_STAGE = "other"

# resource
RANK = "inferspan.distributed.rank"
RANKS_JOINED = "inferspan.distributed.joined"
LOCAL_RANK = "inferspan.distributed.local_rank"
WORLD_SIZE = "inferspan.distributed.world_size"
TORCH_VERSION = "inferspan.framework.torch.version"
TRANSFORMERS_VERSION = "inferspan.framework.transformers.version"
CUDA_VERSION = "inferspan.framework.cuda.version"
CUDNN_VERSION = "inferspan.framework.cudnn.version"
HOST_NAME = "host.name"
PROCESS_PID = "process.pid"

# metrics only
ERROR_PLACE = "inferspan.error.place"
SAMPLER = "inferspan.sampler"
DROP_REASON = "reason"
NONFINITE_KIND = "kind"
HW_ID = "hw.id"
HW_NAME = "hw.name"
HW_MODEL = "hw.model"
HW_VENDOR = "hw.vendor"
HW_PARENT = "hw.parent"
HW_TYPE = "hw.type"
HW_STATE = "hw.state"
HW_DRIVER_VERSION = "hw.driver_version"
HW_FIRMWARE_VERSION = "hw.firmware_version"
HW_SENSOR_LOCATION = "hw.sensor_location"
HW_LIMIT_TYPE = "hw.limit_type"
HW_GPU_TASK = "hw.gpu.task"
NETWORK_IO_DIRECTION = "network.io.direction"
DISK_IO_DIRECTION = "disk.io.direction"
CPU_MODE = "cpu.mode"
MEMORY_STATE = "system.memory.state"
PAGING_FAULT_TYPE = "system.paging.fault.type"
CONTEXT_SWITCH_TYPE = "process.context_switch.type"
GC_GENERATION = "cpython.gc.generation"
CLOCK_DOMAIN = "inferspan.gpu.clock.domain"
THROTTLE_REASON = "inferspan.gpu.throttle.reason"
MEMORY_LOCATION = "inferspan.gpu.memory.location"
PIPE_NAME = "inferspan.gpu.pipe.name"
XID = "inferspan.gpu.xid.code"
MIG_GPU_INSTANCE = "inferspan.gpu.mig.gpu_instance_id"
MIG_COMPUTE_INSTANCE = "inferspan.gpu.mig.compute_instance_id"
PCIE_DIRECTION = NETWORK_IO_DIRECTION


class SpanKindOf(NamedTuple):
    """One row of the span table."""

    level: str
    name: str
    parent: str
    when: str


class Attribute(NamedTuple):
    """One row of the attribute table: key, type, the levels it appears on, and what it says."""

    key: str
    type: str
    on: str
    brief: str


class Metric(NamedTuple):
    """One row of the metric table. ``when`` is ``""`` for always, else the setting or condition that brings it."""

    name: str
    instrument: str
    unit: str
    brief: str
    attributes: tuple[str, ...] = ()
    buckets: tuple[float, ...] | None = None
    when: str = ""


class Event(NamedTuple):
    """One row of the event table: name, severity, what carries it, when it is sent and what it says."""

    name: str
    severity: str
    carrier: str
    when: str
    attributes: str


class Renamed(NamedTuple):
    """One row of the table of names that changed: what was sent before, what is sent now, and why."""

    old: str
    new: str
    reason: str


SPANS = (
    SpanKindOf("request", "{gen_ai.operation.name} {gen_ai.request.model}", "the caller's current span", "every generate(), every `with inferspan.generation(...):`"),
    SpanKindOf("request", "forward {model}", "the caller's current span", "every plain call of the model"),
    SpanKindOf("request", SPAN_GENERATE, "the caller's current span", "generate() inside a gen_ai span of another library"),
    SpanKindOf("load", SPAN_LOAD, "the caller's current span", "every `from_pretrained()` of a model, tokenizer, processor or pipeline"),
    SpanKindOf(
        "load",
        f"{SPAN_RESOLVE}, {SPAN_READ} or {SPAN_DISPATCH}",
        "load",
        "finding or downloading the files of a checkpoint, reading their tensors to where they belong, placing modules on several devices",
    ),
    SpanKindOf("request", "{gen_ai.operation.name} {gen_ai.request.model}", "the span that is current at add_request()", "every request of continuous batching, from its arrival"),
    SpanKindOf("batch", f"{SPAN_BATCH} {{model}}", "none", "continuous batching: steps that requests share, until the loop is idle, at most 1,000 steps or 10 s"),
    SpanKindOf("phase", SPAN_PREFILL, "request", "from entry of generate() to the first token; with continuous batching from the first step"),
    SpanKindOf("phase", SPAN_DECODE, "request", "from the first token to the end"),
    SpanKindOf("step", SPAN_PREFILL_STEP, "prefill", "one forward pass of the prompt (several with chunked prefill)"),
    SpanKindOf("step", SPAN_DECODE_STEP, "decode", "one forward pass of the decoding loop"),
    SpanKindOf("stage", "{inferspan.stage.name}", "request, or the phase, stage, step or module that runs it", "a call of an encoder or projector of a multimodal model: vision_encode, audio_encode, fusion; a part of a diffusion pipeline: text_encode, denoise, vae_decode ..."),
    SpanKindOf("stage", STAGE_VAE_DECODE_BLOCK, STAGE_VAE_DECODE, "a call of the decoder for a tile, a slice or a batch of frames; only if there are several, at most 128"),
    SpanKindOf("step", SPAN_DENOISE_STEP, "denoise", "from a pass of the denoiser to the end of the scheduler's step"),
    SpanKindOf("step", f"{SPAN_PREFILL_STEP}, {SPAN_DECODE_STEP}", SPAN_BATCH, "one forward pass of a batch, linked to the requests in it (at most 128); a prefill step if one of them prefills"),
    SpanKindOf("module", "layer {n} [{name}] or the module's path", "step or forward", "sampled steps: 0, 1, then with doubling gaps"),
    SpanKindOf("phase", SPAN_BACKWARD, "request", "a backward pass through the forward pass, from the first gradient that reaches it; after the request has ended; with `gradients`"),
    SpanKindOf("module", f"{SPAN_BACKWARD} {{module}}", SPAN_BACKWARD, "a backward call of a module; with `gradients`"),
    SpanKindOf("stage", "{name}", "the caller's current span", "every `with inferspan.stage(name):`, `start()` and `end()`, and every call under `@inferspan.stage(name)`"),
    SpanKindOf("stage", f"{SPAN_DENOISE_STEP} or {SPAN_BLOCK}", "the caller's current span", "every call of a function under `@inferspan.diffusion_step()` or `@inferspan.block_computation()`"),
    SpanKindOf("session", "session {name}", "the caller's current span", "every `with inferspan.session(name):` and every call under `@inferspan.session(name)`; one inside another is a stage"),
    SpanKindOf("op", "aten::{name}", "module, else step or forward", "an operation in a profiler window; one that no other operation runs"),
    SpanKindOf(
        "kernel",
        "name of the kernel, shortened",
        "op, module, else step or forward",
        "a kernel, copy or memory setting on the device in a profiler window; at the time at which the device ran it, which may be after its parent's end",
    ),
    SpanKindOf(
        "collective", "gloo:{name}", "module, else step or forward", "a collective that a thread of the host runs, in a profiler window; it may end after its parent"
    ),
)

B_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
B_TOKENS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0, 67108864.0)
B_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
B_START_UP = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 1800.0)
B_TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
B_STEP = (0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
B_BATCH = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
B_ENTROPY = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
B_IMBALANCE = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)
B_MAGNITUDE = (0.0001, 0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0, 60000.0)
B_SHARE = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
B_PROBABILITY = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 1.0)

HISTOGRAM = "Histogram"
COUNTER = "Counter"
UP_DOWN_COUNTER = "UpDownCounter"
GAUGE = "Gauge"
OBSERVABLE_COUNTER = "ObservableCounter"
OBSERVABLE_UP_DOWN_COUNTER = "ObservableUpDownCounter"
OBSERVABLE_GAUGE = "ObservableGauge"

_GEN_AI = (OPERATION_NAME, PROVIDER_NAME, REQUEST_MODEL, RESPONSE_MODEL, ADAPTER)
_MODEL = (REQUEST_MODEL, ADAPTER)
# Type and layer follow from the name, so they add no series.
_MODULE = (MODEL_NAME, MODULE_NAME, MODULE_TYPE, MODULE_LAYER_INDEX)
_PEAKS = "roofline, and the peaks of the device are known"
_LATEST = "semconv = dup or latest"
_LEGACY = "semconv = dup or legacy"
_GPU = (HW_ID, HW_NAME, HW_MODEL, HW_VENDOR, HW_PARENT, HW_DRIVER_VERSION, HW_FIRMWARE_VERSION, DEVICE)
_NVML = "an NVIDIA GPU that this process uses"
_GPM = "counters of Hopper and later cards (GPM), the second reading on; not under MIG"
_TORCH = (HW_ID, DEVICE)
_CUDA = "CUDA initialised by the application"

# gen_ai
M_INFERENCE_DURATION = "gen_ai.client.inference.duration"
M_USAGE_INPUT = "gen_ai.client.inference.usage.input_tokens"
M_USAGE_OUTPUT = "gen_ai.client.inference.usage.output_tokens"
M_USAGE_CACHE_READ = "gen_ai.client.inference.usage.cache_read.input_tokens"
M_OPERATION_INPUT = "gen_ai.client.inference.operation.input_tokens"
M_OPERATION_OUTPUT = "gen_ai.client.inference.operation.output_tokens"
M_FIRST_CHUNK = "gen_ai.client.inference.time_to_first_chunk"
M_PER_CHUNK = "gen_ai.client.inference.time_per_output_chunk"
M_EMBEDDINGS_DURATION = "gen_ai.client.embeddings.duration"
M_EMBEDDINGS_INPUT = "gen_ai.client.embeddings.operation.input_tokens"
M_SERVER_DURATION = "gen_ai.server.request.duration"
M_SERVER_TTFT = "gen_ai.server.time_to_first_token"
M_SERVER_TPOT = "gen_ai.server.time_per_output_token"
M_LEGACY_DURATION = "gen_ai.client.operation.duration"
M_LEGACY_USAGE = "gen_ai.client.token.usage"
M_LEGACY_FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk"
M_LEGACY_PER_CHUNK = "gen_ai.client.operation.time_per_output_chunk"
# ours, of requests
M_STEP_DURATION = "inferspan.generate.step.duration"
M_FORWARD_DURATION = "inferspan.forward.duration"
M_FIRST_REQUEST = "inferspan.time_to_first_request"
M_STAGE_DURATION = "inferspan.stage.duration"
M_PROGRAM_STAGE_DURATION = "inferspan.program.stage.duration"
M_PROGRAM_STAGE_MEMORY = "inferspan.program.stage.memory_delta"
M_ACTIVE = "inferspan.generate.active"
M_BATCH_SIZE = "inferspan.batch.size"
M_STEP_ROWS = "inferspan.generate.step.rows"
M_SPECULATIVE_DRAFTED = SPECULATIVE_DRAFTED
M_SPECULATIVE_ACCEPTED = SPECULATIVE_ACCEPTED
M_KV_CACHE = "inferspan.kv_cache.usage"
M_KV_BLOCKS_USED = KV_CACHE_BLOCKS_USED
M_KV_BLOCKS_LIMIT = "inferspan.kv_cache.blocks.limit"
M_TIME_IN_QUEUE = TIME_IN_QUEUE
M_PREEMPTIONS = PREEMPTIONS
M_BATCH_REQUESTS = "inferspan.batch.requests"
M_BATCH_TOKENS = BATCH_TOKENS
M_BATCH_WAITING = "inferspan.batch.waiting"
M_ENTROPY = "inferspan.logits.entropy"
M_TOP1 = "inferspan.logits.top1_probability"
M_EXPERTS_IMBALANCE = "inferspan.experts.imbalance"
M_NONFINITE = "inferspan.numerics.nonfinite"
M_HEALTH_FINDINGS = "inferspan.health.findings"
M_HEALTH_DRIFT = "inferspan.health.drift"
M_DEVICE_FLOPS = DEVICE_FLOPS
M_DEVICE_BYTES = DEVICE_BYTES
M_DEVICE_PEAK_SHARE = DEVICE_PEAK_SHARE
M_UTILIZATION_FLOPS = "inferspan.device.utilization.flops"
M_UTILIZATION_BANDWIDTH = "inferspan.device.utilization.bandwidth"
M_MODULE_DURATION = "inferspan.module.duration"
M_ACTIVATION_STD = "inferspan.activation.std"
M_ACTIVATION_ABS_MAX = "inferspan.activation.abs_max"
M_ACTIVATION_SPARSITY = "inferspan.activation.sparsity"
OTHER_MODULES = "other"
"""Class of modules beyond the number of series."""
M_SPANS_DROPPED = "inferspan.telemetry.spans.dropped"
M_OVERHEAD = "inferspan.telemetry.overhead"
M_ERRORS = "inferspan.telemetry.errors"
M_SAMPLING_TIME = "inferspan.telemetry.sampling.time"
M_WORLD_SIZE = "inferspan.distributed.world_size"
M_COMPILE_GRAPHS = "inferspan.compile.graphs"
M_COMPILE_GRAPH_BREAKS = COMPILE_GRAPH_BREAKS
M_COMPILE_RECOMPILES = COMPILE_RECOMPILES
# hardware
M_GPU_UTILIZATION = "hw.gpu.utilization"
M_GPU_MEMORY_USAGE = "hw.gpu.memory.usage"
M_GPU_MEMORY_LIMIT = "hw.gpu.memory.limit"
M_GPU_MEMORY_UTILIZATION = "hw.gpu.memory.utilization"
M_GPU_IO = "hw.gpu.io"
M_ENERGY = "hw.energy"
M_POWER = "hw.power"
M_TEMPERATURE = "hw.temperature"
M_TEMPERATURE_LIMIT = "hw.temperature.limit"
M_FAN_RATIO = "hw.fan.speed_ratio"
M_FAN_SPEED = "hw.fan.speed"
M_HW_ERRORS = "hw.errors"
M_HW_STATUS = "hw.status"
M_CLOCK = "inferspan.gpu.clock.frequency"
M_CLOCK_LIMIT = "inferspan.gpu.clock.limit"
M_POWER_LIMIT = "inferspan.gpu.power.limit"
M_THROTTLE_ACTIVE = "inferspan.gpu.throttle.active"
M_THROTTLE_TIME = "inferspan.gpu.throttle.time"
M_MEMORY_ACTIVITY = "inferspan.gpu.memory.activity"
M_NVLINK_IO = "inferspan.gpu.nvlink.io"
M_PCIE_REPLAYS = "inferspan.gpu.pcie.replays"
M_PCIE_GENERATION = "inferspan.gpu.pcie.link.generation"
M_PCIE_WIDTH = "inferspan.gpu.pcie.link.width"
M_ECC_ERRORS = "inferspan.gpu.ecc.errors"
M_REMAPPED_ROWS = "inferspan.gpu.remapped_rows"
M_SM_ACTIVE = "inferspan.gpu.sm.active"
M_SM_OCCUPANCY = "inferspan.gpu.sm.occupancy"
M_PIPE_ACTIVE = "inferspan.gpu.pipe.active"
M_DRAM_ACTIVE = "inferspan.gpu.dram.active"
M_PCIE_BANDWIDTH = "inferspan.gpu.pcie.bandwidth"
M_NVLINK_BANDWIDTH = "inferspan.gpu.nvlink.bandwidth"
M_XID_ERRORS = "inferspan.gpu.xid.errors"
M_GPU_PROCESS_MEMORY = "inferspan.gpu.process.memory.usage"
M_PERFORMANCE_STATE = "inferspan.gpu.performance_state"
M_TORCH_ALLOCATED = "inferspan.torch.memory.allocated"
M_TORCH_RESERVED = "inferspan.torch.memory.reserved"
M_TORCH_ACTIVE = "inferspan.torch.memory.active"
M_TORCH_REQUESTED = "inferspan.torch.memory.requested"
M_TORCH_ALLOCATED_PEAK = "inferspan.torch.memory.peak.allocated"
M_TORCH_RESERVED_PEAK = "inferspan.torch.memory.peak.reserved"
M_TORCH_RETRIES = "inferspan.torch.memory.alloc_retries"
M_TORCH_OOMS = "inferspan.torch.memory.ooms"
# process and host
M_PROCESS_CPU_TIME = "process.cpu.time"
M_PROCESS_CPU_UTILIZATION = "process.cpu.utilization"
M_PROCESS_MEMORY = "process.memory.usage"
M_PROCESS_VIRTUAL = "process.memory.virtual"
M_PROCESS_THREADS = "process.thread.count"
M_PROCESS_FDS = "process.unix.file_descriptor.count"
M_PROCESS_SWITCHES = "process.context_switches"
M_PROCESS_FAULTS = "process.paging.faults"
M_PROCESS_IO = "process.disk.io"
M_PROCESS_OPERATIONS = "process.disk.operations"
M_PROCESS_UPTIME = "process.uptime"
M_GC_COLLECTIONS = "cpython.gc.collections"
M_GC_COLLECTED = "cpython.gc.collected_objects"
M_GC_UNCOLLECTABLE = "cpython.gc.uncollectable_objects"
M_SYSTEM_CPU_UTILIZATION = "system.cpu.utilization"
M_SYSTEM_CPU_TIME = "system.cpu.time"
M_SYSTEM_MEMORY_USAGE = "system.memory.usage"
M_SYSTEM_MEMORY_LIMIT = "system.memory.limit"
M_SYSTEM_MEMORY_UTILIZATION = "system.memory.utilization"
M_CGROUP_MEMORY_LIMIT = "inferspan.cgroup.memory.limit"
M_CGROUP_MEMORY_USAGE = "inferspan.cgroup.memory.usage"

_HOST = "local rank 0"
_DYNAMO = "torch.compile"
_BATCHING = "continuous batching"
_STAGES = "stages of the program"
_CGROUP = "a container or service with a memory limit"
_REQUEST_METRICS = (
    Metric(M_INFERENCE_DURATION, HISTOGRAM, "s", "duration of a generate()", (*_GEN_AI, ERROR_TYPE), B_DURATION, _LATEST),
    Metric(M_USAGE_INPUT, COUNTER, "{token}", "prompt tokens, failed calls included", (*_GEN_AI, TOKEN_MODALITY), None, _LATEST),
    Metric(
        M_USAGE_OUTPUT,
        COUNTER,
        "{token}",
        "generated tokens, those of failed calls included as far as they are known",
        (*_GEN_AI, TOKEN_MODALITY),
        None,
        _LATEST,
    ),
    Metric(
        M_USAGE_CACHE_READ,
        COUNTER,
        "{token}",
        "prompt tokens that were in the cache that was passed in",
        (*_GEN_AI, TOKEN_MODALITY),
        None,
        f"a reused prefix, {_LATEST}",
    ),
    Metric(M_OPERATION_INPUT, HISTOGRAM, "{token}", "prompt tokens of one successful call", _GEN_AI, B_TOKENS, _LATEST),
    Metric(M_OPERATION_OUTPUT, HISTOGRAM, "{token}", "generated tokens of one successful call", _GEN_AI, B_TOKENS, _LATEST),
    Metric(M_FIRST_CHUNK, HISTOGRAM, "s", "time to the first chunk", _GEN_AI, B_DURATION, f"streaming, {_LATEST}"),
    Metric(M_PER_CHUNK, HISTOGRAM, "s", "time per chunk after the first", _GEN_AI, B_DURATION, f"streaming, {_LATEST}"),
    Metric(M_EMBEDDINGS_DURATION, HISTOGRAM, "s", "duration of an embedding call", (*_GEN_AI, ERROR_TYPE), B_DURATION, "embeddings"),
    Metric(M_EMBEDDINGS_INPUT, HISTOGRAM, "{token}", "tokens of a successful embedding call", _GEN_AI, B_TOKENS, "embeddings"),
    Metric(M_SERVER_DURATION, HISTOGRAM, "s", "duration of a generate()", (*_GEN_AI, ERROR_TYPE), B_DURATION),
    Metric(M_SERVER_TTFT, HISTOGRAM, "s", "entry of generate() to the first token on the host, successful calls", _GEN_AI, B_TTFT),
    Metric(M_SERVER_TPOT, HISTOGRAM, "s", "(duration - TTFT) / (n - 1), n = tokens of the longest row, successful calls", _GEN_AI, B_TPOT),
    Metric(M_LEGACY_DURATION, HISTOGRAM, "s", "duration of a generate()", (*_GEN_AI, ERROR_TYPE), B_DURATION, _LEGACY),
    Metric(M_LEGACY_USAGE, HISTOGRAM, "{token}", "tokens of one successful call, by type", (*_GEN_AI, TOKEN_TYPE), B_TOKENS, _LEGACY),
    Metric(M_LEGACY_FIRST_CHUNK, HISTOGRAM, "s", "time to the first chunk", _GEN_AI, B_DURATION, f"streaming, {_LEGACY}"),
    Metric(M_LEGACY_PER_CHUNK, HISTOGRAM, "s", "time per chunk after the first", _GEN_AI, B_DURATION, f"streaming, {_LEGACY}"),
    Metric(M_STEP_DURATION, HISTOGRAM, "s", "one forward pass inside generate(), or one denoising step, host clock", (PHASE, *_MODEL), B_STEP),
    Metric(M_STAGE_DURATION, HISTOGRAM, "s", "one stage of a recorded request of a model, or of a pipeline, host clock; not of the program, see `inferspan.program.stage.duration`", (STAGE_NAME, *_MODEL), B_STEP),
    Metric(M_PROGRAM_STAGE_DURATION, HISTOGRAM, "s", f"one stage of the program, what is inside included, host clock; `{OTHER_STAGE}` past 50 names", (STAGE_NAME,), B_DURATION, _STAGES),
    Metric(M_PROGRAM_STAGE_MEMORY, UP_DOWN_COUNTER, "By", f"sum of `{MEMORY_DELTA}` of the stages of the program", (STAGE_NAME,), None, _STAGES),
    Metric(M_FORWARD_DURATION, HISTOGRAM, "s", "one plain forward pass, host clock", (MODEL_NAME, ADAPTER), B_STEP),
    Metric(
        M_FIRST_REQUEST, HISTOGRAM, "s", "start of the process to the beginning of its first request, once a process", _MODEL, B_START_UP
    ),
    Metric(M_ACTIVE, UP_DOWN_COUNTER, "{request}", "calls of generate() and of pipelines in flight", _MODEL),
    Metric(M_BATCH_SIZE, HISTOGRAM, "{sequence}", "rows of a call", _MODEL, B_BATCH),
    Metric(M_STEP_ROWS, HISTOGRAM, "{sequence}", "sequences still running in a step, mean over the steps of a call", _MODEL, B_BATCH),
    Metric(M_SPECULATIVE_DRAFTED, COUNTER, "{token}", "drafted tokens that were verified", _MODEL, None, "assisted decoding"),
    Metric(M_SPECULATIVE_ACCEPTED, COUNTER, "{token}", "drafted tokens that were accepted", _MODEL, None, "assisted decoding"),
    Metric(M_KV_CACHE, GAUGE, "By", "key/value cache of the last request", _MODEL),
    Metric(M_KV_BLOCKS_USED, GAUGE, "{block}", "blocks of the paged cache that hold keys and values, shared prefixes included", _MODEL, None, _BATCHING),
    Metric(M_KV_BLOCKS_LIMIT, GAUGE, "{block}", "blocks of the paged cache", _MODEL, None, _BATCHING),
    Metric(M_TIME_IN_QUEUE, HISTOGRAM, "s", "arrival of a request to its first step", _MODEL, B_TTFT, _BATCHING),
    Metric(M_PREEMPTIONS, COUNTER, "{preemption}", "requests that were taken out of a batch and queued again, as the cache was full", _MODEL, None, _BATCHING),
    Metric(M_BATCH_REQUESTS, HISTOGRAM, "{request}", "requests in one step of a batch", _MODEL, B_BATCH, _BATCHING),
    Metric(M_BATCH_TOKENS, HISTOGRAM, "{token}", "positions of all requests in one step of a batch", _MODEL, B_TOKENS, _BATCHING),
    Metric(M_BATCH_WAITING, GAUGE, "{request}", "requests that wait for a place in the batch", _MODEL, None, _BATCHING),
    Metric(M_ENTROPY, HISTOGRAM, "1", "entropy of the next-token distribution, nats", _MODEL, B_ENTROPY, "entropy_metric"),
    Metric(M_TOP1, HISTOGRAM, "1", "probability of the most likely next token", _MODEL, B_PROBABILITY, "entropy_metric"),
    Metric(
        M_NONFINITE, COUNTER, "{element}", "NaN and Inf values: logits, and module outputs with `output_stats`", (*_MODULE, NONFINITE_KIND)
    ),
    Metric(M_HEALTH_FINDINGS, COUNTER, "{finding}", "findings about outputs, at most one a request and kind: low, loop, flat, collapsed, drift, nonfinite", (*_MODEL, HEALTH_KIND), None, "analysis"),
    Metric(M_HEALTH_DRIFT, GAUGE, "{deviation}", "difference of the latest 100 outputs from the baseline, in standard deviations of single requests of the baseline; from 30 requests on", (*_MODEL, HEALTH_FIGURE), None, "baseline"),
    Metric(M_DEVICE_FLOPS, COUNTER, "{flop}", "floating point operations of the matrix products of a phase, counted from shapes; a multiply-add is 2", (PHASE, *_MODEL), None, "roofline"),
    Metric(M_DEVICE_BYTES, COUNTER, "By", "least traffic to the memory of the device in a phase: weights, keys and values, activations once", (PHASE, *_MODEL), None, "roofline"),
    Metric(M_DEVICE_PEAK_SHARE, HISTOGRAM, "1", "achieved rate / ceiling of the nearer roof, once a phase and request", (PHASE, DEVICE_BOUND, *_MODEL), B_SHARE, _PEAKS),
    Metric(M_UTILIZATION_FLOPS, HISTOGRAM, "1", "MFU: achieved FLOP/s of a request / peak of the device", _MODEL, B_SHARE, _PEAKS),
    Metric(M_UTILIZATION_BANDWIDTH, HISTOGRAM, "1", "MBU: achieved bytes/s of a request / peak bandwidth of the device", _MODEL, B_SHARE, _PEAKS),
    Metric(
        M_EXPERTS_IMBALANCE, HISTOGRAM, "1", "tokens of the busiest expert / mean of all, one value for each recorded call of a router",
        (MODEL_NAME, MODULE_LAYER_INDEX), B_IMBALANCE, "routing",
    ),
    Metric(M_MODULE_DURATION, HISTOGRAM, "s", "one module call, host clock", (*_MODULE, PHASE), B_STEP, "module_metric"),
    *(
        Metric(name, HISTOGRAM, "1", f"{what} of what a module has returned in a recorded call, finite values of its first floating point tensor; past 500 layers and classes the class is `{OTHER_MODULES}`", (MODEL_NAME, MODULE_TYPE, MODULE_LAYER_INDEX), buckets, "activation_metric")
        for name, what, buckets in (
            (M_ACTIVATION_STD, "standard deviation", B_MAGNITUDE),
            (M_ACTIVATION_ABS_MAX, "largest magnitude", B_MAGNITUDE),
            (M_ACTIVATION_SPARSITY, "share of zeros", B_PROBABILITY),
        )
    ),
    Metric(M_SPANS_DROPPED, COUNTER, "{span}", "spans of ours that were left out", (DROP_REASON,)),
    Metric(M_OVERHEAD, COUNTER, "s", "our own time on the model's threads"),
    Metric(M_ERRORS, OBSERVABLE_COUNTER, "{error}", "contained errors of ours", (ERROR_PLACE,)),
    Metric(M_SAMPLING_TIME, OBSERVABLE_COUNTER, "s", "what reading the machine has taken, on a thread of its own", (SAMPLER,)),
    Metric(M_WORLD_SIZE, OBSERVABLE_UP_DOWN_COUNTER, "{rank}", "ranks of the job", (), None, "under a launcher"),
    Metric(M_COMPILE_GRAPHS, OBSERVABLE_COUNTER, "{graph}", "graphs that torch.compile has made in the process since the first reading", (), None, _DYNAMO),
    Metric(M_COMPILE_GRAPH_BREAKS, OBSERVABLE_COUNTER, "{break}", "graph breaks in the process since the first reading", (), None, _DYNAMO),
    Metric(M_COMPILE_RECOMPILES, OBSERVABLE_COUNTER, "{recompile}", "compilations of functions that were compiled before, in the process since the first reading, those that a limit refused included", (), None, _DYNAMO),
)
_GPU_METRICS = (
    Metric(M_GPU_UTILIZATION, OBSERVABLE_GAUGE, "1", "share of time the unit was busy", (*_GPU, HW_GPU_TASK), None, _NVML),
    Metric(M_GPU_MEMORY_USAGE, OBSERVABLE_UP_DOWN_COUNTER, "By", "memory in use, all processes", _GPU, None, _NVML),
    Metric(M_GPU_MEMORY_LIMIT, OBSERVABLE_UP_DOWN_COUNTER, "By", "memory of the device", _GPU, None, _NVML),
    Metric(M_GPU_MEMORY_UTILIZATION, OBSERVABLE_GAUGE, "1", "memory in use / memory of the device", _GPU, None, _NVML),
    Metric(
        M_GPU_IO,
        OBSERVABLE_COUNTER,
        "By",
        "PCIe traffic; absent where the driver counts in 32 bits, which wrap",
        (*_GPU, NETWORK_IO_DIRECTION),
        None,
        _NVML,
    ),
    Metric(M_ENERGY, OBSERVABLE_COUNTER, "J", "energy since the first reading", (*_GPU, HW_TYPE), None, _NVML),
    Metric(M_POWER, OBSERVABLE_GAUGE, "W", "power draw", (*_GPU, HW_TYPE), None, _NVML),
    Metric(M_TEMPERATURE, OBSERVABLE_GAUGE, "Cel", "temperature", (*_GPU, HW_SENSOR_LOCATION), None, _NVML),
    Metric(M_TEMPERATURE_LIMIT, OBSERVABLE_GAUGE, "Cel", "temperature limits", (*_GPU, HW_LIMIT_TYPE), None, _NVML),
    Metric(M_FAN_RATIO, OBSERVABLE_GAUGE, "1", "fan speed as share of the maximum", _GPU, None, _NVML),
    Metric(M_FAN_SPEED, OBSERVABLE_GAUGE, "rpm", "fan speed", _GPU, None, _NVML),
    Metric(M_HW_ERRORS, OBSERVABLE_COUNTER, "{error}", "ECC errors since the first reading", (*_GPU, HW_TYPE, ERROR_TYPE), None, _NVML),
    Metric(
        M_HW_STATUS, OBSERVABLE_UP_DOWN_COUNTER, "1", "1 for the state the device is in, else 0", (*_GPU, HW_TYPE, HW_STATE), None, _NVML
    ),
    Metric(M_CLOCK, OBSERVABLE_GAUGE, "Hz", "clock", (*_GPU, CLOCK_DOMAIN), None, _NVML),
    Metric(M_CLOCK_LIMIT, OBSERVABLE_GAUGE, "Hz", "highest clock", (*_GPU, CLOCK_DOMAIN), None, _NVML),
    Metric(M_POWER_LIMIT, OBSERVABLE_GAUGE, "W", "enforced power limit", _GPU, None, _NVML),
    Metric(
        M_THROTTLE_ACTIVE,
        OBSERVABLE_UP_DOWN_COUNTER,
        "1",
        "1 while the reason holds clocks down, else 0",
        (*_GPU, THROTTLE_REASON),
        None,
        _NVML,
    ),
    Metric(M_THROTTLE_TIME, OBSERVABLE_COUNTER, "s", "time clocks were held down", (*_GPU, THROTTLE_REASON), None, _NVML),
    Metric(M_MEMORY_ACTIVITY, OBSERVABLE_GAUGE, "1", "share of time the memory bus was busy", _GPU, None, _NVML),
    Metric(M_NVLINK_IO, OBSERVABLE_COUNTER, "By", "NVLink traffic, all links", (*_GPU, NETWORK_IO_DIRECTION), None, _NVML),
    Metric(M_PCIE_REPLAYS, OBSERVABLE_COUNTER, "{replay}", "PCIe replays since the first reading", _GPU, None, _NVML),
    Metric(M_PCIE_GENERATION, OBSERVABLE_GAUGE, "{generation}", "PCIe link generation", _GPU, None, _NVML),
    Metric(M_PCIE_WIDTH, OBSERVABLE_GAUGE, "{lane}", "PCIe link width", _GPU, None, _NVML),
    Metric(M_ECC_ERRORS, OBSERVABLE_COUNTER, "{error}", "ECC errors by location", (*_GPU, MEMORY_LOCATION, ERROR_TYPE), None, _NVML),
    Metric(M_REMAPPED_ROWS, OBSERVABLE_GAUGE, "{row}", "memory rows remapped after errors", (*_GPU, ERROR_TYPE), None, _NVML),
    Metric(M_SM_ACTIVE, OBSERVABLE_GAUGE, "1", "share of the SMs that were busy", _GPU, None, _GPM),
    Metric(M_SM_OCCUPANCY, OBSERVABLE_GAUGE, "1", "warps that were active / warps that fit", _GPU, None, _GPM),
    Metric(M_PIPE_ACTIVE, OBSERVABLE_GAUGE, "1", "share of time the pipe of the SMs was busy", (*_GPU, PIPE_NAME), None, _GPM),
    Metric(M_DRAM_ACTIVE, OBSERVABLE_GAUGE, "1", "memory bandwidth used / peak bandwidth", _GPU, None, _GPM),
    Metric(M_PCIE_BANDWIDTH, OBSERVABLE_GAUGE, "By/s", "PCIe traffic", (*_GPU, PCIE_DIRECTION), None, _GPM),
    Metric(M_NVLINK_BANDWIDTH, OBSERVABLE_GAUGE, "By/s", "NVLink traffic, all links", (*_GPU, NETWORK_IO_DIRECTION), None, _GPM),
    Metric(
        M_XID_ERRORS, OBSERVABLE_COUNTER, "{error}", "errors that the driver reports, since the first reading", (*_GPU, XID), None,
        "an XID has occurred; not under MIG",
    ),
    Metric(M_GPU_PROCESS_MEMORY, OBSERVABLE_UP_DOWN_COUNTER, "By", "memory of this process on the device", _GPU, None, _NVML),
    Metric(M_PERFORMANCE_STATE, OBSERVABLE_GAUGE, "{level}", "P-state, 0 is the fastest", _GPU, None, _NVML),
    Metric(M_TORCH_ALLOCATED, OBSERVABLE_UP_DOWN_COUNTER, "By", "allocated by tensors", _TORCH, None, _CUDA),
    Metric(M_TORCH_RESERVED, OBSERVABLE_UP_DOWN_COUNTER, "By", "held by the caching allocator", _TORCH, None, _CUDA),
    Metric(M_TORCH_ACTIVE, OBSERVABLE_UP_DOWN_COUNTER, "By", "in active blocks", _TORCH, None, _CUDA),
    Metric(M_TORCH_REQUESTED, OBSERVABLE_UP_DOWN_COUNTER, "By", "asked for by the program", _TORCH, None, _CUDA),
    Metric(M_TORCH_ALLOCATED_PEAK, OBSERVABLE_GAUGE, "By", "peak of allocated, never reset by us", _TORCH, None, _CUDA),
    Metric(M_TORCH_RESERVED_PEAK, OBSERVABLE_GAUGE, "By", "peak of reserved, never reset by us", _TORCH, None, _CUDA),
    Metric(M_TORCH_RETRIES, OBSERVABLE_COUNTER, "{retry}", "allocations that needed the cache flushed", _TORCH, None, _CUDA),
    Metric(M_TORCH_OOMS, OBSERVABLE_COUNTER, "{oom}", "out-of-memory errors", _TORCH, None, _CUDA),
)
_HOST_METRICS = (
    Metric(M_PROCESS_CPU_TIME, OBSERVABLE_COUNTER, "s", "CPU time of the process since the first reading", (CPU_MODE,)),
    Metric(M_PROCESS_CPU_UTILIZATION, OBSERVABLE_GAUGE, "1", "CPU time / (wall time * CPUs available)", (CPU_MODE,)),
    Metric(M_PROCESS_MEMORY, OBSERVABLE_UP_DOWN_COUNTER, "By", "resident memory of the process"),
    Metric(M_PROCESS_VIRTUAL, OBSERVABLE_UP_DOWN_COUNTER, "By", "virtual memory of the process"),
    Metric(M_PROCESS_THREADS, OBSERVABLE_UP_DOWN_COUNTER, "{thread}", "threads of the process"),
    Metric(M_PROCESS_FDS, OBSERVABLE_UP_DOWN_COUNTER, "{file_descriptor}", "open file descriptors"),
    Metric(M_PROCESS_SWITCHES, OBSERVABLE_COUNTER, "{context_switch}", "context switches since the first reading", (CONTEXT_SWITCH_TYPE,)),
    Metric(M_PROCESS_FAULTS, OBSERVABLE_COUNTER, "{fault}", "page faults since the first reading", (PAGING_FAULT_TYPE,)),
    Metric(M_PROCESS_IO, OBSERVABLE_COUNTER, "By", "disk traffic of the process since the first reading", (DISK_IO_DIRECTION,)),
    Metric(
        M_PROCESS_OPERATIONS,
        OBSERVABLE_COUNTER,
        "{operation}",
        "reads and writes of the process since the first reading",
        (DISK_IO_DIRECTION,),
    ),
    Metric(M_PROCESS_UPTIME, OBSERVABLE_GAUGE, "s", "time since the process started"),
    Metric(
        M_GC_COLLECTIONS,
        OBSERVABLE_COUNTER,
        "{collection}",
        "collections of the garbage collector since the first reading",
        (GC_GENERATION,),
    ),
    Metric(M_GC_COLLECTED, OBSERVABLE_COUNTER, "{object}", "objects collected since the first reading", (GC_GENERATION,)),
    Metric(M_GC_UNCOLLECTABLE, OBSERVABLE_COUNTER, "{object}", "objects found uncollectable since the first reading", (GC_GENERATION,)),
    Metric(M_SYSTEM_CPU_UTILIZATION, OBSERVABLE_GAUGE, "1", "CPU time of the whole host / (wall time * CPUs)", (CPU_MODE,), None, _HOST),
    Metric(M_SYSTEM_CPU_TIME, OBSERVABLE_COUNTER, "s", "CPU time of the whole host since the first reading", (CPU_MODE,), None, _HOST),
    Metric(M_SYSTEM_MEMORY_USAGE, OBSERVABLE_UP_DOWN_COUNTER, "By", "memory of the whole host by state", (MEMORY_STATE,), None, _HOST),
    Metric(M_SYSTEM_MEMORY_LIMIT, OBSERVABLE_UP_DOWN_COUNTER, "By", "memory of the whole host", (), None, _HOST),
    Metric(M_SYSTEM_MEMORY_UTILIZATION, OBSERVABLE_GAUGE, "1", "usage / limit, of the host", (MEMORY_STATE,), None, _HOST),
    Metric(
        M_CGROUP_MEMORY_LIMIT,
        OBSERVABLE_UP_DOWN_COUNTER,
        "By",
        "tightest memory limit on the process's cgroup or one above it",
        (),
        None,
        _CGROUP,
    ),
    Metric(
        M_CGROUP_MEMORY_USAGE,
        OBSERVABLE_UP_DOWN_COUNTER,
        "By",
        "memory that counts against that limit, without what the kernel can drop at once",
        (),
        None,
        _CGROUP,
    ),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in (*_REQUEST_METRICS, *_GPU_METRICS, *_HOST_METRICS)}
"""Every metric by name."""
HOST_METRICS: tuple[str, ...] = tuple(metric.name for metric in _HOST_METRICS)
"""Metrics of the process, its host and its container."""
DEVICE_METRICS: tuple[str, ...] = (*(metric.name for metric in _GPU_METRICS), *HOST_METRICS)
"""Metrics that come from the samplers."""

_CONTENT = "only with content capture"
_R, _P, _S, _M, _L = "request", "phase", "step", "module", "load"
_PSM = "phase, step, module"
ATTRIBUTES = (
    Attribute(OPERATION_NAME, "string", _R, "`text_completion`, `chat`, `generate_content` or `embeddings`; absent on a plain forward"),
    Attribute(PROVIDER_NAME, "string", _R, "`huggingface`, `pytorch` or as set; `_OTHER` for a loop by hand of another engine"),
    Attribute(REQUEST_MODEL, "string", _R, "hub id, else the last part of the local path"),
    Attribute(RESPONSE_MODEL, "string", _R, "the same"),
    Attribute(REQUEST_MAX_TOKENS, "int", _R, "`max_new_tokens`, or what `max_length` leaves"),
    Attribute(REQUEST_TEMPERATURE, "double", _R, "only when sampling"),
    Attribute(REQUEST_TOP_P, "double", _R, "only when sampling"),
    Attribute(REQUEST_TOP_K, "int", _R, "only when sampling"),
    Attribute(REQUEST_STOP_SEQUENCES, "string[]", _R, "`stop_strings`"),
    Attribute(REQUEST_SEED, "int", _R, "only if the caller passed one"),
    Attribute(REQUEST_CHOICE_COUNT, "int", _R, "`num_return_sequences` if not 1"),
    Attribute(REQUEST_STREAM, "boolean", _R, "true if a streamer was given, else absent"),
    Attribute(CONVERSATION_ID, "string", _R, "from `inferspan.context(conversation_id=...)`"),
    Attribute(CONVERSATION_COMPACTED, "boolean", _R, "from `inferspan.context(conversation_compacted=...)`"),
    Attribute(OUTPUT_TYPE, "string", _R, "`text`, `json`, `image` or `speech`, from `inferspan.context(output_type=...)`"),
    Attribute(PROMPT_NAME, "string", _R, "from `inferspan.context(prompt_name=...)`"),
    Attribute(PROMPT_VERSION, "string", _R, "from `inferspan.context(prompt_version=...)`"),
    Attribute(REASONING_LEVEL, "string", _R, "from `inferspan.context(reasoning_level=...)`"),
    Attribute(RESPONSE_ID, "string", _R, "from `inferspan.context(response_id=...)`, else the id that continuous batching gives a request; generate() has none, and none is invented"),
    Attribute(USER_ID, "string", _R, "from `inferspan.context(user_id=...)`"),
    Attribute(FINISH_REASONS, "string[]", _R, "one per returned sequence: `stop`, `length` or `error`"),
    Attribute(TIME_TO_FIRST_CHUNK, "double", _R, "s, streaming only"),
    Attribute(INPUT_TOKENS, "int", _R, "attended prompt positions over the batch, cached ones included"),
    Attribute(OUTPUT_TOKENS, "int", _R, "generated tokens up to and including EOS, summed over returned sequences"),
    *(
        Attribute(key, "int", _R, f"those that are {modality}; the parts of a request add up, and none is set where its modalities are not known")
        for keys in (INPUT_BY_MODALITY, OUTPUT_BY_MODALITY)
        for modality, key in keys.items()
    ),
    Attribute(
        CACHE_READ_INPUT_TOKENS,
        "int",
        _R,
        "input tokens that were in the cache that was passed in, over the batch; if any; included in the input tokens",
    ),
    Attribute(EMBEDDINGS_DIMENSION, "int", _R, "entries of an embedding, embedding calls"),
    Attribute(INPUT_TRUNCATED, "int", _R, "inputs that the tokenizer has cut to the longest one of the model; calls of pipelines and of sentence-transformers with a fast tokenizer"),
    Attribute(METHOD, "string", _R, "method of the model that was called instead of `forward`, e.g. `get_text_features`, `encode` of an autoencoder, `predict`"),
    Attribute(OFFLOAD_TIME, "double", _R, "s, host time in which accelerate moved offloaded weights in and out; only if any are offloaded"),
    Attribute(PIPELINE_TASK, "string", _R, "task of the transformers pipeline that made the call, e.g. `text-classification`"),
    Attribute(FORWARD_PASSES, "int", _R, "passes of the model in a call of a pipeline, `encode()` or `predict()`; shapes and logit statistics stand on the request only if it is one"),
    Attribute(INPUT_MESSAGES, "string", _R, f"JSON; lists and maps with `content_format` = structured; {_CONTENT}"),
    Attribute(OUTPUT_MESSAGES, "string", _R, f"JSON; lists and maps with `content_format` = structured; {_CONTENT}"),
    Attribute(ERROR_TYPE, "string", f"{_R}, {_PSM}", f"class of the exception, `{CANCELLED}` for a request that its caller has cancelled"),
    Attribute(NESTED, "boolean", _R, "true on a generate() inside a generate(); left out of the usage metrics"),
    Attribute(INPUT_MODALITIES, "string[]", _R, "what a model that takes more than text was given, of `text`, `image`, `audio`, `video`; one that is not listed was not given; absent where embeddings hide it"),
    Attribute(BATCH_SIZE, "int", _R, "rows the caller passed to the model, all its passes together: a pipeline passes a row for each chunk of a long input, for each label of zero-shot classification; absent where neither a layer nor the name of an argument says which axis they are"),
    Attribute(NUM_BEAMS, "int", _R, "beams"),
    Attribute(DO_SAMPLE, "boolean", _R, "sampling or greedy"),
    Attribute(REPETITION_PENALTY, "double", _R, "if not 1"),
    Attribute(DECODE_STEPS, "int", _R, "forward passes after prefill; absent where they were not seen"),
    Attribute(TTFT, "double", _R, "s, entry of generate() to the first token on the host"),
    Attribute(TPOT, "double", _R, "s, (duration - TTFT) / (n - 1), n = tokens of the longest row"),
    Attribute(TOKENS_PER_SECOND, "double", _R, "output tokens / duration"),
    Attribute(PREFILL_TOKENS_PER_SECOND, "double", _R, "prompt tokens that were computed / TTFT"),
    Attribute(SEQUENCE_INPUT_TOKENS, "int[]", _R, "prompt tokens of each row, at most 1,024 rows"),
    Attribute(SEQUENCE_OUTPUT_TOKENS, "int[]", _R, "generated tokens of each returned sequence, at most 1,024"),
    Attribute(KV_CACHE_BYTES, "int", _R, "bytes of the cache at the end: keys and values, states of convolutions and recurrences"),
    Attribute(KV_CACHE_REUSED_TOKENS, "int", _R, "positions of a row already in the cache that was passed in"),
    Attribute(KV_CACHE_HIT, "boolean", _R, "whether the cache that was passed in held positions; absent without one, and for a static one, which would have to be read"),
    Attribute(KV_CACHE_BLOCKS_USED, "int", _S, "blocks of the paged cache in use after this pass; continuous batching"),
    Attribute(TIME_IN_QUEUE, "double", _R, "s, arrival to the first step; continuous batching"),
    Attribute(PREFILL_CHUNKS, "int", _R, "steps that the prompt took; continuous batching"),
    Attribute(PREEMPTIONS, "int", _R, "how often the request was taken out of the batch and queued again, only if it was"),
    Attribute(BATCH_STEPS, "int", "batch", "steps of the batch, those without a span included"),
    Attribute(BATCH_TOKENS, "int", _S, "positions of all requests in this pass; continuous batching"),
    Attribute(SPANS_DROPPED, "int", _R, "spans left out over the budget, only if any"),
    Attribute(MEMORY_START, "int", f"{_R}, stage; {_S} and {_M} with `memory`", "By at the start: CUDA allocator, else resident memory; stages are those of a pipeline; modules only on CUDA"),
    Attribute(MEMORY_END, "int", f"{_R}, stage; {_S} and {_M} with `memory`", "By at the end"),
    Attribute(MEMORY_PEAK, "int", f"{_R}, stage", "By, highest value seen"),
    Attribute(MEMORY_PEAK_EXACT, "boolean", f"{_R}, stage", "whether the peak is the allocator's own"),
    Attribute(MEMORY_RESERVED_START, "int", f"{_R}, {_S}, {_M}", "By that the CUDA allocator holds at the start, in use or not; with `memory`"),
    Attribute(MEMORY_RESERVED_END, "int", f"{_R}, {_S}, {_M}", "the same at the end"),
    Attribute(MEMORY_HIGH_WATER_START, "int", f"{_R}, {_S}, {_M}", "By, the most that was allocated since the process began or the program reset torch's peak, as known at the start; else the most that was resident; with `memory`"),
    Attribute(MEMORY_HIGH_WATER_END, "int", f"{_R}, {_S}, {_M}", "the same at the end"),
    Attribute(MEMORY_MODULE_NAMES, "string[]", "memory event", "paths of modules"),
    Attribute(MEMORY_MODULE_READINGS, "int[]", "memory event", "calls of each module with readings before and after"),
    Attribute(MEMORY_MODULE_AFTER, "double[]", "memory event", "By allocated after a call, on average"),
    Attribute(MEMORY_MODULE_DIFFERENCE, "double[]", "memory event", "By allocated after a call minus before it, on average"),
    Attribute(MEMORY_MODULE_RISE, "int[]", "memory event", "By by which the allocator's peak has risen inside all calls together"),
    Attribute(MEMORY_MODULES_OMITTED, "int", "memory event", "modules over the 128 of an event, only if any"),
    Attribute(OOM_MODULE, "string", f"{_R}, {_S}", "path of the innermost module that ran when memory ran out"),
    Attribute(OOM_STEP, "int", _R, "number of the step in which memory ran out"),
    Attribute(OOM_REQUESTED, "int", f"{_R}, out-of-memory event", "By that could not be allocated, as the error says"),
    Attribute(OOM_ALLOCATED, "int", "out-of-memory event", "By allocated on the device; without CUDA resident"),
    Attribute(OOM_RESERVED, "int", "out-of-memory event", "By that the CUDA allocator holds"),
    Attribute(OOM_HIGH_WATER, "int", "out-of-memory event", "By, as `inferspan.memory.high_water.end`"),
    Attribute(OOM_SUMMARY, "string", "out-of-memory event", "`torch.cuda.memory_summary()`, at most 4,096 characters; of a CPU one line"),
    Attribute(OOM_SNAPSHOT, "string", "out-of-memory event", "with `memory_snapshot`: the file, or why there is none"),
    Attribute(ENERGY, "double", _R, "J, whole card; absent if requests overlapped or another process used the card"),
    Attribute(ENERGY_PER_OUTPUT_TOKEN, "double", _R, "J"),
    Attribute(TOKEN_LOGPROBS, "double[]", _R, "log-probability of each chosen token, first row, under the raw logits"),
    Attribute(TOKEN_ENTROPIES, "double[]", _R, "entropy at each token, first row, nats"),
    Attribute(TOKEN_INTERVALS, "double[]", _R, "s between tokens, host clock; the first is the time to first token"),
    Attribute(TOKENS_TRUNCATED, "boolean", _R, "true if the arrays hold fewer tokens than were generated"),
    Attribute(ANALYSIS_UNIQUE_TOKENS, "int", _R, "different token ids among those of all sequences"),
    Attribute(ANALYSIS_TOKEN_ENTROPY, "double", _R, "entropy of the distribution of generated tokens, bits; not the model's uncertainty"),
    Attribute(ANALYSIS_DISTINCT_RATIO, "double", _R, "different tokens / tokens"),
    Attribute(ANALYSIS_REPETITION_RATE, "double", _R, "1 - different tokens / tokens; grows with length"),
    Attribute(ANALYSIS_REPETITION_RATE_RECENT, "double", _R, "the same of the last 128 tokens; of several sequences the largest"),
    Attribute(ANALYSIS_REPETITION_4GRAM, "double", _R, "1 - different groups of four tokens / groups; of several sequences the largest"),
    Attribute(ANALYSIS_LOOP["tokens"], "int", _R, "tokens of the longest loop: a stretch that comes three times or more in a row, 8 tokens at least; absent without one"),
    Attribute(ANALYSIS_LOOP["period"], "int", _R, "tokens after which it repeats"),
    Attribute(ANALYSIS_LOOP["start"], "int", _R, "its first token, counted from 0"),
    Attribute(ANALYSIS_LOOP_SEQUENCE, "int", _R, "the sequence that it is in, counted from 0; of several"),
    *(Attribute(key, "double", _R, f"{name} over steps and sequences of the largest probability of the raw logits") for name, key in ANALYSIS_CONFIDENCE.items()),
    *(Attribute(key, "double", _R, f"{name} over steps and sequences of the probability of the chosen token") for name, key in ANALYSIS_CHOSEN.items()),
    Attribute(ANALYSIS_COLLAPSE_START, "int", _R, "of the first sequence, the token from which on the entropy was next to nothing until the end, counted from 0; of its first 1,024 tokens; absent without a collapse"),
    Attribute(ANALYSIS_COLLAPSE_TOKENS, "int", _R, "tokens from there to the end"),
    Attribute(ANALYSIS_LOGITS_MEAN, "double", _R, "mean over the steps of the mean of the finite logits"),
    Attribute(ANALYSIS_LOGITS_STD, "double", _R, "mean over the steps of the standard deviation of the finite logits"),
    Attribute(ANALYSIS_COMMON_IDS, "int[]", _R, f"the 10 most frequent tokens, largest count first, {_CONTENT}"),
    Attribute(ANALYSIS_COMMON_TEXTS, "string[]", _R, f"their texts, {_CONTENT} and a tokenizer"),
    Attribute(ANALYSIS_COMMON_COUNTS, "int[]", _R, f"how often they came, {_CONTENT}"),
    *(Attribute(key, "int[]" if "tokens" in name else "double[]", _R, f"{name} of each sequence, of 2 or more, at most 1,024" + ("; 0 without a loop" if name == "loop_tokens" else "")) for name, key in ANALYSIS_SEQUENCES.items()),
    Attribute(HEALTH_KINDS, "string[]", _R, "kinds of findings about the output, only if there are any"),
    Attribute(STOP_KINDS, "string[]", _R, "what `inferspan.stop_on()` has ended each sequence for, at most 1,024: loop, collapse, nonfinite; an empty text for one that it has not ended; absent if it has ended none, and with beams"),
    Attribute(EVALUATION_NAME, "string", "evaluation event", "what was judged: `inferspan.confidence`, `inferspan.repetition`, `inferspan.logit_spread`, `inferspan.entropy`, `inferspan.drift`, `inferspan.nonfinite`"),
    Attribute(EVALUATION_VALUE, "double", "evaluation event", "the figure that is a finding, of the worst sequence"),
    Attribute(EVALUATION_LABEL, "string", "evaluation event", "kind of the finding"),
    Attribute(EVALUATION_EXPLANATION, "string", "evaluation event", "numbers that explain it, no text and no ids"),
    Attribute(TOKEN_IDS, "int[]", _R, f"generated ids of the first row, bounded, {_CONTENT}"),
    Attribute(UNOBSERVED, "string", _R, "what could not be seen and why: `modules: compiled`, `modules: compiled in parts`, `modules of decode steps: compiled`, `modules: with your hooks` (modules with forward hooks of the program, after a compilation in the process), `modules: fused` (encoder layers of torch, likewise: hooks would change their results), `context: hooks` (a plain forward pass whose span is not current inside), `forward: generator; context: generator` (also `coroutine`, `iterator`, ...: its code runs after the request), `logits: not given` (a loop by hand), `data flow: operations` (they were not followed, with `data_flow`), `data flow: some modules`, `experts: choice not known` (with `routing`, a router whose output says nothing), ..."),
    Attribute(WARMUP, "boolean", _R, "true on the first call, or if a compilation happened inside"),
    Attribute(COMPILE_TIME, "double", _R, "seconds in which torch.compile compiled on the thread of the request, with the backend's; absent if it did not"),
    Attribute(COMPILE_RECOMPILES, "int", _R, "of them, compilations of functions that were compiled before, those that a limit refused included; only if > 0"),
    Attribute(COMPILE_GRAPH_BREAKS, "int", _R, "graph breaks in compilations on the thread of the request; only if > 0"),
    Attribute(COMPILE_ID, "string", f"`{RECOMPILATION_EVENT}`", "torch's number of the function and, behind the slash, of its compilation, as in its logs: 2/1"),
    Attribute(COMPILE_REASON, "string", f"`{RECOMPILATION_EVENT}`, `{GRAPH_BREAK_EVENT}`", "what differs, by the guard: size, stride, rank, dtype, device, requires_grad, dispatch_keys, value, type, identity, keys, length, aliasing, backend, global_state, other; of a graph break torch's reason, at most 300 characters"),
    Attribute(COMPILE_GUARD, "string", f"`{RECOMPILATION_EVENT}`", "the guard that failed, at most 300 characters, without texts that it compares with"),
    Attribute(COMPILE_LIMIT, "boolean", f"`{RECOMPILATION_EVENT}`", "true if torch's limit of recompilations was reached, so that the function runs without a new graph; from torch 2.5 or so on"),
    Attribute(CODE_FUNCTION, "string", f"`{RECOMPILATION_EVENT}`, `{GRAPH_BREAK_EVENT}`", "the function that is compiled, or in which the graph ends"),
    Attribute(CODE_FILE, "string", f"`{RECOMPILATION_EVENT}`, `{GRAPH_BREAK_EVENT}`", "its file"),
    Attribute(CODE_LINE, "int", f"`{RECOMPILATION_EVENT}`, `{GRAPH_BREAK_EVENT}`", "its first line, or the line at which the graph ends"),
    Attribute(NONFINITE, "boolean", _R, "true if NaN or Inf was seen in logits, module outputs or a request inside, else absent"),
    Attribute(FAILED, "boolean", _R, "true if the call ended with an exception, else absent; to search for, whichever the exception"),
    Attribute(KEEP, "boolean", _R, "for tail sampling: true if the caller or the setting `mark` says so, or if `keep` has kept its detail"),
    Attribute(
        DETAIL_KEPT,
        "boolean",
        _R,
        "whether phases, steps and modules became spans; only if `keep` is not `always`, on the outermost request",
    ),
    Attribute(DETAIL_RULE, "string", _R, "why they did, e.g. `slow,nonfinite`; else the rules of which none applied, as `keep` names them"),
    Attribute(DETAIL_SPANS, "int", _R, "spans that were recorded and not made, only if the detail was not kept"),
    Attribute(MODEL_NAME, "string", f"{_R}, {_L}, session (`model_parameters`)", "as gen_ai.request.model, on plain forwards too"),
    Attribute(MODEL_REVISION, "string", f"{_R}, {_L}", "commit of the hub repository"),
    Attribute(MODEL_ARCHITECTURE, "string", f"{_R}, {_L}", "class of the model"),
    Attribute(MODEL_TYPE, "string", f"{_R}, {_L}, session (`model_parameters`)", "`config.model_type`"),
    Attribute(MODEL_MODALITIES, "string[]", _R, "what the model takes, of `text`, `image`, `audio`, `video`; absent if that is text only or not known. Those that `inferspan.input.modalities` lacks were not given"),
    Attribute(MODEL_PARAMETERS, "int", f"{_R}, {_L}, session (`model_parameters`)", "parameters, tied ones once; absent where weights are packed, so that they cannot be counted"),
    Attribute(MODEL_DTYPE, "string", f"{_R}, {_L}", "dtype of the first floating-point parameter, at this call"),
    Attribute(MODEL_QUANTIZATION_METHOD, "string", f"{_R}, {_L}", "from `config.quantization_config`"),
    Attribute(MODEL_QUANTIZATION_BITS, "int", f"{_R}, {_L}", "from `config.quantization_config`"),
    Attribute(LOAD_KIND, "string", _L, "what is loaded, on its parts too: `model`, `tokenizer`, `processor` or `pipeline`"),
    Attribute(LOAD_RESOLVE_TIME, "double", _L, "s, finding or downloading the files of the checkpoint"),
    Attribute(LOAD_READ_TIME, "double", _L, "s, reading its tensors, to the device where `device_map` names one"),
    Attribute(LOAD_DISPATCH_TIME, "double", _L, "s, placing modules on several devices; absent where that is no step of its own"),
    Attribute(CHECKPOINT_FILES, "string[]", f"{_L}, `{CHECKPOINT_LOADED_EVENT}`", "names of its files without their folder, 32 at most"),
    Attribute(CHECKPOINT_SHARDS, "int", f"{_L}, `{CHECKPOINT_LOADED_EVENT}`", "number of its files"),
    Attribute(CHECKPOINT_BYTES, "int", f"{_L}, `{CHECKPOINT_LOADED_EVENT}`", "their size on disk"),
    Attribute(CHECKPOINT_TENSORS, "int", f"{_L}, `{CHECKPOINT_LOADED_EVENT}`", "tensors in them; safetensors only"),
    Attribute(CHECKPOINT_DTYPES, "string[]", f"{_L}, `{CHECKPOINT_LOADED_EVENT}`", "their dtypes; safetensors only"),
    Attribute(MODEL_ATTENTION, "string", _R, "attention implementation, at this call"),
    Attribute(MODEL_COMPILE_MODE, "string", _R, "`default` for a model that torch.compile has compiled, else `none`"),
    Attribute(MODEL_CACHE, "string", _R, "cache implementation of the generation config"),
    Attribute(MODEL_ADAPTERS, "string[]", _R, "adapters that are active in this call; absent without one"),
    Attribute(
        ADAPTER,
        "string",
        _R,
        "the same joined by `+`; also a label of the request metrics, where it is absent without an adapter and `other` past 50 values",
    ),
    Attribute(DEVICE, "string", f"{_R}, {_S}, {_M}, {_L}, kernel", "`cuda:0`, `cpu`, ..."),
    Attribute(DEVICE_TYPE, "string", f"{_R}, {_L}", "`cuda`, `cpu`, `mps`, `xpu`"),
    Attribute(PHASE, "string", f"{_PSM}, op, kernel", "`prefill`, `decode` or `forward`"),
    Attribute(STAGE_NAME, "string", "stage", "`vision_encode`, `audio_encode`, `fusion`, or as set, with the attributes of a module as well; `text_encode`, `vision_encode`, `denoise`, `vae_encode`, `vae_decode`, `vocode` of a pipeline; or the name that the program gives its stage"),
    Attribute(STAGE_KIND, "string", "stage", "`model`: a part of the model; `user`: a stage of the program"),
    Attribute(DENOISE_INDEX, "int", "denoise_step", "0 is the first step"),
    Attribute(DENOISE_TIMESTEP, "double", "denoise_step", "the scheduler's timestep"),
    Attribute(DENOISE_BLOCK, "int", "stage", "number of the denoising loop in its request: 0, and more for videos that are made block by block"),
    Attribute(DENOISE_BLOCKS, "int", _R, "denoising loops that ran, such as blocks of a video; only if there were several"),
    Attribute(DENOISE_STEPS, "int", _R, "denoising steps that the caller asks for"),
    Attribute(DENOISE_RAN, "int", _R, "denoising steps that ran: schedulers may take more or fewer"),
    Attribute(DENOISE_RATE, "double", _R, "denoising steps / seconds that they took together"),
    Attribute(DENOISE_GUIDANCE, "double", _R, "the argument `guidance_scale`"),
    Attribute(DENOISE_SCHEDULER, "string", _R, "class of the scheduler"),
    Attribute(OUTPUT_IMAGES, "int", _R, "images of a pipeline's result"),
    Attribute(OUTPUT_FRAMES, "int", f"{_R}, {STAGE_VAE_DECODE}, {STAGE_VAE_DECODE_BLOCK}", "frames of all videos of a pipeline's result, or of what the autoencoder of a video has decoded"),
    Attribute(VAE_BLOCK, "int", STAGE_VAE_DECODE_BLOCK, "number of the call of the decoder in its decoding: 0 is the first tile, slice or batch of frames"),
    Attribute(VAE_BLOCKS, "int", STAGE_VAE_DECODE, "calls of the decoder for tiles, slices and batches of frames; only if there were several"),
    Attribute(VAE_BLOCKS_OMITTED, "int", STAGE_VAE_DECODE, "those of them after the first 128, which have no span"),
    Attribute(OUTPUT_AUDIOS, "int", _R, "sounds of a pipeline's result"),
    Attribute(OUTPUT_HEIGHT, "int", _R, "of an image or frame, in pixels"),
    Attribute(OUTPUT_WIDTH, "int", _R, "of an image or frame, in pixels"),
    Attribute(IMAGES_PER_SECOND, "double", _R, "images / duration of the call"),
    Attribute(FRAMES_PER_SECOND, "double", _R, "frames / duration of the call"),
    Attribute(BLOCKS_PER_SECOND, "double", _R, "blocks / s from the call to the end of the last one; only if there were several"),
    Attribute(TIME_TO_FIRST_BLOCK, "double", _R, "s from the call to the end of the first block's last step; only if there were several"),
    Attribute(STEP_INDEX, "int", "step, module, op, kernel", "0 is the prefill"),
    Attribute(STEP_TOKENS, "int", _S, "positions processed in this pass, per row"),
    Attribute(STEP_WAITING, "int", _S, "requests that wait for a place in the batch; continuous batching"),
    Attribute(STEP_ROWS, "int", _S, "sequences still running in this pass; absent with beams, and without logit statistics where rows end one by one"),
    Attribute(SPECULATIVE_DRAFTED, "int", f"{_R}, {_S}", "drafted tokens that were verified; assisted and prompt-lookup decoding"),
    Attribute(SPECULATIVE_ACCEPTED, "int", f"{_R}, {_S}", "those of them that were accepted"),
    Attribute(SPECULATIVE_ACCEPTANCE, "double", _R, "accepted / drafted; absent if nothing was drafted"),
    Attribute(SEQUENCE_LENGTH, "int", _S, "length after this pass, per row"),
    Attribute(MODULE_NAME, "string", _M, "path in the model"),
    Attribute(MODULE_TYPE, "string", _M, "class"),
    Attribute(MODULE_LAYER_INDEX, "int", _M, "number in the list of layers"),
    Attribute(STAGE_TOKENS, "int", "stage", "input tokens that the output stands for, over the batch, as the usage by modality counts them; absent where they are not split, where a pass runs the stage several times, and on a plain forward on a GPU"),
    Attribute(INPUT_SHAPES, "string[]", f"{_R} (forward), {_S}, {_M}", '`["1x12x4096"]`'),
    Attribute(OUTPUT_SHAPES, "string[]", f"{_R} (forward), {_S}, {_M}", "the same for outputs"),
    Attribute(INPUT_DTYPES, "string[]", f"{_R} (forward), {_S}, {_M}", '`["bfloat16"]`'),
    Attribute(OUTPUT_DTYPES, "string[]", f"{_R} (forward), {_S}, {_M}", "the same for outputs"),
    Attribute(
        DEVICE_TIME,
        "double",
        f"{_R}, {_PSM}",
        "s between two events on the CUDA device, its waiting included; absent where the device was not done in time, and on CPU, MPS and XPU, whose times are the host's",
    ),
    Attribute(DEVICE_FLOPS, "int", f"{_R}, phase; {_S} and {_M} with `roofline` = all", "floating point operations of matrix products, convolutions and attention, counted from shapes as torch's FlopCounterMode does; a multiply-add is 2; absent where a class of module has no rule"),
    Attribute(DEVICE_BYTES, "int", f"{_R}, phase; {_S} and {_M} with `roofline` = all", "By, least traffic to the memory of the device: weights, keys and values, activations once"),
    Attribute(DEVICE_BOUND, "string", f"phase; {_S} and {_M} with `roofline` = all", f"what limits it: {', '.join(f'`{name}`' for name in BOUNDS)}; absent where that is not known"),
    Attribute(DEVICE_PEAK_SHARE, "double", f"{_R}, phase; {_S} and {_M} with `roofline` = all", "0 to 1, achieved rate / ceiling of the nearer roof, compute or memory; absent without peaks of the device"),
    Attribute(DEVICE_PEAK_FLOPS, "double", _R, "FLOP/s, the ceiling that is assumed for the dtype of the weights; dense, without sparsity"),
    Attribute(DEVICE_PEAK_BANDWIDTH, "double", _R, "By/s, the ceiling that is assumed for the memory of the device"),
    Attribute(
        PROFILER_STEPS,
        "int",
        _R,
        "forward passes that were profiled, if any; opening and closing the profiler has slowed this request down",
    ),
    Attribute(PROFILER_OPS, "int", f"{_S}, {_R} (forward)", "operations of the profiled pass, those without a span included"),
    Attribute(PROFILER_KERNELS, "int", f"{_S}, {_R} (forward)", "kernels and copies of the profiled pass, those without a span included"),
    Attribute(PROFILER_KERNEL_TIME, "double", f"{_S}, {_R} (forward)", "s, sum over the kernels and copies of the profiled pass"),
    Attribute(PROFILER_PASS_TIME, "double", f"{_S}, {_R} (forward)", "s from the start of the profiled pass to its end on the host, or to that of its last kernel; the request around it has the opening of the profiler as well"),
    Attribute(PROFILER_COLLECTIVE_TIME, "double", f"{_S}, {_M}, {_R} (forward)", "s in which at least one collective with other ranks ran in the profiled pass: waiting for them and moving data; of a module those that began in it. Absent where none was seen"),
    Attribute(PROFILER_KIND, "string", "op, kernel, collective", "`op`, `kernel`, `memcpy`, `memset` or `collective`; no other span has it"),
    Attribute(OP_NAME, "string", "op, collective", "name of the operation"),
    Attribute(KERNEL_NAME, "string", "kernel", "full name, at most 512 characters"),
    Attribute(KERNEL_STREAM, "int", "kernel", "stream as the profiler numbers them"),
    Attribute(KERNEL_GRID, "string", "kernel", "`128x1x1`; only from versions of torch that tell"),
    Attribute(KERNEL_BLOCK, "string", "kernel", "the same"),
    Attribute(KERNEL_BYTES, "int", "kernel", "By that were copied or set; only from versions of torch that tell"),
    Attribute(KERNEL_QUEUE_TIME, "double", "kernel", "s, from the launch on the host to the start on the device"),
    Attribute(KERNEL_CORRELATION, "int", "kernel", "number that the launch and the kernel share in the profiler"),
    *(
        Attribute(key, "double" if "count" not in key else "int", _M, f"{what} of the output's first floating point tensor, with `output_stats`")
        for key, what in (
            (OUTPUT_STAT_MEAN, "mean"),
            (OUTPUT_STAT_STD, "standard deviation"),
            (OUTPUT_STAT_MIN, "minimum"),
            (OUTPUT_STAT_MAX, "maximum"),
            (OUTPUT_STAT_ABS_MAX, "largest magnitude"),
            (OUTPUT_STAT_SPARSITY, "share of zeros among the elements"),
            (OUTPUT_STAT_NAN_COUNT, "NaN values"),
            (OUTPUT_STAT_INF_COUNT, "infinite values"),
            (OUTPUT_STAT_ELEMENT_COUNT, "elements"),
        )
    ),
    Attribute(FLOW_EDGES, "int", _R, "tensors that were seen on their way between modules in the recorded passes, with `data_flow`; each is a link of a module's span"),
    Attribute(FLOW_LEFT_OUT, "int", f"{_R}, {_M}", "such tensors that have no link: over 4,096 a pass, over 64 tensors of a call or 64 sources of a tensor; of a module over 32 links"),
    Attribute(FLOW_KIND, "string", f"link of a {_M}", "`input`: the module takes the tensor from the linked span; `output`: it returns what the linked span has made inside of it; `result`: the model, whose pass is the linked span, returns what the module has made"),
    Attribute(FLOW_SOURCE, "string", f"link of a {_M}", "path of the module that has made the tensor, or name of the input of the model"),
    Attribute(FLOW_ORIGIN, "string", f"link of a {_M}", "`module`; or, where the linked span is that of the pass, `input` for an input of the model and `earlier` for a module in an earlier pass"),
    Attribute(FLOW_TENSOR, "int", f"link of a {_M}", "number of the tensor among those of the request; links with the same number are of the same one"),
    Attribute(FLOW_INTO, "int", f"link of a {_M}", "of an `output`: number of the tensor that the module returns"),
    Attribute(FLOW_SHAPE, "string", f"link of a {_M}", "shape of what arrives, such as `1x12x4096`"),
    Attribute(FLOW_DTYPE, "string", f"link of a {_M}", "dtype of what arrives"),
    Attribute(FLOW_BYTES, "int", f"link of a {_M}", "bytes of its elements"),
    Attribute(FLOW_VIA, "string[]", f"link of a {_M}", "names of the operations between, at most 8, such as `add`; absent if it is the same tensor"),
    *(
        Attribute(key, kind, _M, f"{what}; with `attention`")
        for key, kind, what in (
            (ATTENTION_SOURCE, "string", "`returned` by the module, or `recomputed` from queries and keys"),
            (ATTENTION_SHAPE, "int[]", "of the attention weights: batch, heads, queries, keys"),
            (ATTENTION_ENTROPY_MEAN, "double", "mean over batch, heads and queries of the entropy of a query's weights, nats"),
            (ATTENTION_ENTROPY_STD, "double", "population standard deviation of the same"),
            (ATTENTION_MAX, "double", "largest attention weight"),
            (ATTENTION_MEAN, "double", "mean attention weight, one over the number of keys by construction"),
            (ATTENTION_SINK, "double", "mean weight on the first position of the sequence that any query attends to"),
            (ATTENTION_PEAK, "double", "mean over queries of the largest sum over heads of a key's weights, 0 to the number of heads"),
            (ATTENTION_PEAK_SHARE, "double", "the same divided by the number of heads, 0 to 1"),
            (ATTENTION_HEAD_ENTROPIES, "double[]", "mean entropy of each head, at most 128"),
            (ATTENTION_HEAD_SINKS, "double[]", "mean weight on the first position of each head, at most 128"),
            (ATTENTION_KEY_POSITIONS, "int[]", "positions of the 5 keys that get most weight, of the first sequence"),
            (ATTENTION_KEY_WEIGHTS, "double[]", "the weight that each gets, averaged over heads and queries"),
            (ATTENTION_CROSS, "boolean", "true if the keys are those of another sequence, such as an encoder's"),
        )
    ),
    *(
        Attribute(key, kind, _R, f"{what}; with `attention`")
        for key, kind, what in (
            (ATTENTION_LAYERS, "string[]", "layers that gave attention weights, at most 256"),
            (ATTENTION_LAYER_ENTROPIES, "double[]", "mean entropy of each of them, nats"),
            (ATTENTION_LAYER_SINKS, "double[]", "mean weight on the first position of each of them"),
            (ATTENTION_MISSING, "string[]", "layers that gave none, with the reason, at most 64"),
            (ATTENTION_LEFT_OUT, "int", "calls whose weights were left out"),
            (ATTENTION_PROMPT, "string[]", "texts of the tokens of the first sequence's prompt, at most 1,024, with content capture and `attention_maps`"),
        )
    ),
    Attribute(MODULE_RESULT + ".{key}", "any", _M, "what a function given to `handle.on_module()` has returned for the call: numbers, texts and lists; tensors of up to 16 values as numbers, larger ones as `{key}.mean` and so on"),
    *(
        Attribute(key, "int" if "count" in key else "double", where, f"{what} of the gradients of {of} together, with `gradients`")
        for names, where, of in ((GRAD_INPUTS, _M, "the inputs"), (GRAD_OUTPUTS, f"{_M}, {SPAN_BACKWARD}", "the outputs"))
        for key, what in zip(
            names.values(),
            ("mean", "standard deviation", "minimum", "maximum", "Euclidean norm", "NaN values", "infinite values", "elements"),
            strict=True,
        )
    ),
    Attribute(BRANCH_PATH, "int", f"{_S}, {_R} (forward)", "number of the modules' calls in this order, among those of passes of the same shape on the model; 0 for the first, at most 256; with `control_flow`, as are the next ones"),
    Attribute(BRANCH_CALLED, "string[]", f"{_S}, {_R} (forward)", "modules that ran in this pass and not in the first of the same shape, the outermost, at most 16; only if there are any"),
    Attribute(BRANCH_NOT_CALLED, "string[]", f"{_S}, {_R} (forward)", "modules that ran in the first and not in this one"),
    Attribute(BRANCH_PASSES, "int", _R, "passes in which other modules ran than in the first of their shape; only if there are any"),
    Attribute(EARLY_EXIT_LAYER, "int", f"{_S}, {_R} (forward)", "index of the last layer that ran, only if later ones did not"),
    Attribute(EARLY_EXIT_LAYERS, "int[]", _R, "these indices, each once"),
    Attribute(EARLY_EXIT_PASSES, "int", _R, "passes that ended early"),
    Attribute(LAYERS_SKIPPED, "int[]", f"{_S}, {_R} (forward)", "indices of layers that did not run although later ones did"),
    Attribute(LOOP_MODULES, "string[]", f"{_S}, {_R} (forward)", "modules that ran more often than the module around them, at most 16"),
    Attribute(LOOP_ITERATIONS, "int[]", f"{_S}, {_R} (forward)", "how often each of them ran"),
    Attribute(BACKWARD_NUMBER, "int", SPAN_BACKWARD, "0 for the first backward pass through the forward pass"),
    Attribute(BACKWARD_MODULES, "int", SPAN_BACKWARD, "backward calls of modules in it"),
    Attribute(BACKWARD_NAN_COUNT, "int", SPAN_BACKWARD, "NaN values in the gradients of these"),
    Attribute(BACKWARD_INF_COUNT, "int", SPAN_BACKWARD, "infinite values in them"),
    Attribute(BACKWARD_FIRST_NONFINITE, "string", SPAN_BACKWARD, "path of the module whose gradients had NaN or Inf first, in the order of the backward pass"),
    *(
        Attribute(key, "double[]" if "count" not in key else "int[]", _M, f"`{of_first}` of each floating point tensor of the output, at most 8, in order; only if there are several and none lacks it")
        for of_first, key in OUTPUTS_STATS.items()
    ),
    *(
        Attribute(key, ("int" if "count" in key else "double") + ("[]" if "inputs" in key else ""), _M, f"`{of_output}`, of what the module was called with, masks apart; with `input_stats`")
        for of_output, key in INPUT_STATS.items()
    ),
    *(
        Attribute(key, "double", f"{_S}, {_R} (forward)", f"{what}; raw logits of the position that chooses a token or class, mean over the rows that run; of several tokens in a step the last")
        for key, what in (
            (LOGITS_ENTROPY, "entropy of the softmax, nats"),
            (LOGITS_MAX, "largest finite logit"),
            (LOGITS_MIN, "smallest finite logit"),
            (LOGITS_MEAN, "mean of the finite logits"),
            (LOGITS_STD, "population standard deviation of the finite logits"),
            (LOGITS_MARGIN, "largest minus second largest finite logit"),
            (LOGITS_TOP1, "largest probability"),
            (LOGITS_CHOSEN_LOGPROB, "log-probability of the chosen token"),
        )
    ),
    Attribute(EXPERTS_LOAD, "int[]", f"{_M} (router)", "tokens of each expert in this call, with `routing`; padding counts; absent above 256 experts"),
    Attribute(EXPERTS_IMBALANCE, "double", f"{_M} (router)", "tokens of the busiest expert / mean of all experts, with `routing`"),
    Attribute(EXPERTS_ENTROPY, "double", f"{_M} (router)", "nats, entropy of the softmax of the router's logits, mean over the tokens, with `routing`; absent where the router gives none"),
    Attribute(EXPERTS_DROPPED, "int", f"{_M} (router)", "tokens that no expert had room for, with `routing`; only where experts have a capacity"),
    Attribute(LOGITS_CHOSEN_RANK, "int", _S, "1 + number of larger logits, first row as long as it runs"),
    Attribute(LOGITS_NAN_COUNT, "int", f"{_S}, {_R} (forward)", "NaN values, whole batch"),
    Attribute(LOGITS_INF_COUNT, "int", f"{_S}, {_R} (forward)", "+Inf values, whole batch; -Inf is a mask and not counted"),
    *(Attribute(rows, "double[]", _S, f"`{key}` of each row that runs, in order; batches of 2 to 16") for key, rows in LOGITS_ROWS.items()),
    Attribute(LOGITS_TOP_K_IDS, "int[]", _S, f"most likely tokens of each row that runs, k (setting `top_k`) a row, best first; {_CONTENT}"),
    Attribute(LOGITS_TOP_K_PROBABILITIES, "double[]", _S, f"their probabilities, the softmax of the raw logits; {_CONTENT}"),
    Attribute(LOGITS_TOP_K_TEXTS, "string[]", _S, f"their texts; {_CONTENT} and a tokenizer"),
    Attribute(STEP_TOKEN_IDS, "int[]", _S, f"chosen token of each row that runs, in order; of batches over 16 the first row only; {_CONTENT}"),
    Attribute(STEP_TOKEN_TEXTS, "string[]", _S, f"their texts; {_CONTENT} and a tokenizer"),
    Attribute(STEP_ROWS_OMITTED, "int", _S, f"rows of a batch over 16 that `{STEP_TOKEN_IDS}` leaves out; {_CONTENT}"),
    Attribute(STAGE_SELF_TIME, "double", "stage (user), session", "s in which no stage inside was open"),
    Attribute(MEMORY_DELTA, "int", "stage (user), session", "By at its end minus at its start: of torch's CUDA allocator over all devices of the process (with `allocator`), or resident memory of the process where CUDA is not used (with `host`), read every 5 ms at most and absent on shorter stages; negative where memory was released"),
    Attribute(BLOCK_INDEX, "int", f"{SPAN_BLOCK}", "`block_index` of `@inferspan.block_computation`"),
    Attribute(BLOCK_SIZE, "int", f"{SPAN_BLOCK}, denoise_step", "`block_size` of `@inferspan.block_computation` or `@inferspan.diffusion_step`"),
    Attribute(BLOCK_TIME, "double", f"{SPAN_BLOCK}", "s, measured on the host clock; absent where the program reports a time"),
    Attribute(BLOCK_MEMORY, "int", f"{SPAN_BLOCK}", "By at its end, measured as `inferspan.memory.delta`; absent where the program reports a usage"),
    Attribute(BLOCK_TIME_GIVEN, "double", f"{SPAN_BLOCK}", "s, `computation_time_ms` / 1,000 that the program reports"),
    Attribute(BLOCK_MEMORY_GIVEN, "int", f"{SPAN_BLOCK}", "By, `memory_usage_mb` * 1,048,576 that the program reports"),
    Attribute(SESSION_ID, "string", f"session, stage (user), {_R}, events of the program", "random id of the session; on the log events of a request, too"),
    Attribute(SESSION_NAME, "string", f"session, stage (user), {_R}, events of the program", "name of the session; on the log events of a request, too"),
    Attribute(
        f"{SESSION_TAG}.{{key}}",
        "string",
        f"session, stage (user), {_R}, events of the program",
        "a tag of the session, from `inferspan.session(tags={...})` or the setting `session_tags`; on the log events of a request, never on metrics",
    ),
    *(
        Attribute(key, "double", _R, "s, only with `compat_vllm_latency`")
        for key in (LATENCY_TTFT, LATENCY_E2E, LATENCY_PREFILL, LATENCY_DECODE, LATENCY_INFERENCE, LATENCY_QUEUE)
    ),
    Attribute(RANK, "int", "resource, request", "rank under a launcher"),
    Attribute(LOCAL_RANK, "int", "resource, request", "rank on this host"),
    Attribute(RANKS_JOINED, "boolean", _R, "true on the requests of further ranks that run a request together with the first one, in its trace"),
    Attribute(WORLD_SIZE, "int", "resource, request", "ranks of the job"),
    Attribute(TORCH_VERSION, "string", "resource", "version of torch"),
    Attribute(TRANSFORMERS_VERSION, "string", "resource", "version of transformers"),
    Attribute(CUDA_VERSION, "string", "resource", "CUDA version torch was built for"),
    Attribute(CUDNN_VERSION, "string", "resource", "cuDNN version"),
    Attribute(HOST_NAME, "string", "resource", "host name"),
    Attribute(PROCESS_PID, "int", "resource", "id of the process; a forked child has its own"),
)

EVENTS = (
    Event(
        MEMORY_MODULES_EVENT,
        "",
        "event on the request's span",
        "memory before and after modules, at most 128 of them, at the end of the request; with `memory` on CUDA",
        f"`{MEMORY_MODULE_NAMES}`, `{MEMORY_MODULE_READINGS}`, `{MEMORY_MODULE_AFTER}`, `{MEMORY_MODULE_DIFFERENCE}`,"
        f" `{MEMORY_MODULE_RISE}`, `{MEMORY_MODULES_OMITTED}`",
    ),
    Event(
        RECOMPILATION_EVENT,
        "",
        "event on the request's span",
        "a function that was compiled before is compiled again in the request; at most 32 with the next one",
        f"`{COMPILE_ID}`, `{COMPILE_REASON}`, `{COMPILE_GUARD}`, `{COMPILE_LIMIT}`, `{CODE_FUNCTION}`, `{CODE_FILE}`, `{CODE_LINE}`",
    ),
    Event(
        GRAPH_BREAK_EVENT,
        "",
        "event on the request's span",
        "a graph of torch.compile ends before its function does, in a compilation in the request",
        f"`{COMPILE_REASON}`, `{CODE_FUNCTION}`, `{CODE_FILE}`, `{CODE_LINE}`",
    ),
    Event(
        OOM_EVENT,
        "",
        "event on the request's span",
        "memory ran out: an `OutOfMemoryError` of torch, or an error of its CPU allocator",
        f"`{MODULE_NAME}`, `{STEP_INDEX}`, `{INPUT_SHAPES}`, `{INPUT_DTYPES}`, `{DEVICE}`, `{OOM_REQUESTED}`, `{OOM_ALLOCATED}`,"
        f" `{OOM_RESERVED}`, `{OOM_HIGH_WATER}`, `{OOM_SUMMARY}`, `{OOM_SNAPSHOT}`",
    ),
    Event(
        EARLY_EXIT_EVENT,
        "",
        "event on the request's span",
        "a pass in which the last layers of a stack did not run, at the start of the pass; with `control_flow`; at most 16 with the next one",
        f"`{STEP_INDEX}`, `{EARLY_EXIT_LAYER}`, `{LAYERS_TOTAL}`, the stack as `{MODULE_NAME}`",
    ),
    Event(
        BRANCH_EVENT,
        "",
        "event on the request's span",
        "a pass in which other modules ran than in the first of the same shape",
        f"`{STEP_INDEX}`, `{BRANCH_CALLED}`, `{BRANCH_NOT_CALLED}`",
    ),
    Event(
        NONFINITE_EVENT,
        "",
        "event on the request's span",
        "the first output with NaN or Inf of each module, at most 16; with `numerics`",
        f"`{MODULE_NAME}`, `{STEP_INDEX}`, `{OUTPUT_STAT_NAN_COUNT}`, `{OUTPUT_STAT_INF_COUNT}`, `{OUTPUT_STAT_ELEMENT_COUNT}`",
    ),
    Event(
        POSITIONS_EVENT,
        "DEBUG (5)",
        "log record",
        "a pass through the language head, with `top_k_positions=\"all\"`, content capture and a logger provider",
        f"`{STEP_INDEX}`, `{POSITION_SHAPE}`, `{POSITION_ROWS}`, `{POSITION_PLACES}`, `{POSITION_IDS}`, `{POSITION_VALUES}`, `{POSITION_TEXTS}`, `{POSITIONS_OMITTED}`: a row and a place for each position, as many ids, raw logits and texts for each of them, the largest first",
    ),
    Event(
        ATTENTION_MAP_EVENT,
        "DEBUG (5)",
        "log record",
        "attention weights of one call of a layer, if a logger provider is set; with `attention_maps`",
        f"`{MODULE_NAME}`, `{STEP_INDEX}`, `{ATTENTION_CROSS}`, `{ATTENTION_MAP_SHAPE}` (sequences, heads, queries, keys), `{ATTENTION_MAP_SHIFT}` (position of the first key), `{ATTENTION_MAP_DATA}` (a byte for each weight in this order, compressed by zlib, as base64), `{ATTENTION_MAP_SCALE}` (a weight is its byte times this)",
    ),
    Event(
        "{name}",
        "INFO (9) as a log record",
        "event on the innermost stage, session or request; without one a log record, or, where no logs are sent, a span without duration",
        "`inferspan.event(name)`, or the return of a function under `@inferspan.event_on_return(name)`",
        "those of the call and of the session; in a step of `generate()` its phase and index; the module that `module=` names",
    ),
    Event(
        CHECKPOINT_LOADED_EVENT,
        "",
        "event on a load span",
        "a checkpoint whose tensors are in the model",
        "what the span says of the checkpoint, the model's dtype and device, and the seconds of its parts",
    ),
    Event(
        CONTENT_EVENT,
        "DEBUG (5)",
        "log record",
        "a request with captured messages, in the two EVENT modes of content capture",
        "every `gen_ai.*` attribute and `error.type` of the request's span; messages as lists and maps",
    ),
    Event(
        INFERENCE_EXCEPTION_EVENT,
        "WARN (13)",
        "log record",
        "a failed generate(), if a logger provider is set",
        f"`{EXCEPTION_TYPE}`, `{EXCEPTION_MESSAGE}`, `{EXCEPTION_STACKTRACE}`",
    ),
    Event(
        SYSTEM_EVENT,
        "INFO (9)",
        "log record, in session files alone",
        "once for each process that writes a session file",
        "operating system, Python, CPU, memory, limits of the container, versions of packages, and the settings with where each came from",
    ),
    Event(
        EVALUATION_EVENT,
        "INFO (9)",
        "log record",
        "a finding about an output, if a logger provider is set; with `analysis`",
        f"`{EVALUATION_NAME}`, `{EVALUATION_VALUE}`, `{EVALUATION_LABEL}`, `{EVALUATION_EXPLANATION}`, `{RESPONSE_ID}` where the caller has set it",
    ),
    Event(
        EXCEPTION_EVENT,
        "",
        "event on the request's span",
        "a failed request; not with `exception_signal` = logs where the log record above was sent",
        "the same",
    ),
)
"""Every event, as a log record or on a span."""

_PREFIX = "stores that nest names reject a name that is also a prefix"
_EVERY_ROW = "one value for each row of the batch, not for the first alone"
_STATE = "Prometheus only: a state of 0 or 1 is an UpDownCounter"
_COUNT = "Prometheus only: a count or level is no ratio, so its unit is an annotation"
RENAMED = (
    Renamed("inferspan.device", DEVICE, _PREFIX),
    Renamed("inferspan.torch.memory.allocated.peak", M_TORCH_ALLOCATED_PEAK, _PREFIX),
    Renamed("inferspan.torch.memory.reserved.peak", M_TORCH_RESERVED_PEAK, _PREFIX),
    Renamed("inferspan.token.id", STEP_TOKEN_IDS, _EVERY_ROW),
    Renamed("inferspan.token.text", STEP_TOKEN_TEXTS, _EVERY_ROW),
    Renamed("inferspan_gpu_throttle_active_ratio", "inferspan_gpu_throttle_active", _STATE),
    Renamed("inferspan_gpu_pcie_link_generation_ratio", "inferspan_gpu_pcie_link_generation", _COUNT),
    Renamed("inferspan_gpu_pcie_link_width_ratio", "inferspan_gpu_pcie_link_width", _COUNT),
    Renamed("inferspan_gpu_performance_state_ratio", "inferspan_gpu_performance_state", _COUNT),
    Renamed(
        "system.memory.limit of a container",
        M_CGROUP_MEMORY_LIMIT,
        "`system.memory.*` is the whole host everywhere; the limit on a container has a name of its own, as has its usage",
    ),
)
"""Names that changed before the first release. The old ones are not sent any more."""


class ErrorPlaces(NamedTuple):
    """Values of ``inferspan.error.place`` that cost the same telemetry; ``*`` stands for a name."""

    places: tuple[str, ...]
    missing: str


ERROR_PLACES: tuple[ErrorPlaces, ...] = (
    ErrorPlaces(("instrument",), "the model is not instrumented"),
    ErrorPlaces(("count of undelivered items",), "how many spans, points or records the line about undelivered telemetry names"),
    ErrorPlaces(("start of *()",), "the request is not recorded"),
    ErrorPlaces(("start of generate()",), "parts of the request are not recorded"),
    ErrorPlaces(("attributes of generate()",), "configuration of the call on the request span"),
    ErrorPlaces(("inner generate()",), "phases and steps of a `generate()` inside the call"),
    ErrorPlaces(("stopping criteria",), "the moment at which tokens are chosen: step statistics, time to first token"),
    ErrorPlaces(("start of a phase", "end of a phase"), "a phase span"),
    ErrorPlaces(("start of a step", "end of a step"), "a step span, or its modules"),
    ErrorPlaces(("attributes of a step",), "attributes of a step span"),
    ErrorPlaces(("drafted tokens",), "counts of drafted and accepted tokens"),
    ErrorPlaces(("compiled call",), "the fact that a compiled forward pass is used"),
    ErrorPlaces(("end of *()",), "tokens, latencies or detail of the request's last moments; its span ends"),
    ErrorPlaces(("attributes of a request",), "attributes of the request span"),
    ErrorPlaces(("counting input tokens", "counting output tokens", "counting tokens by modality"), "the count"),
    ErrorPlaces(("cache length", "size of the cache"), "cached tokens, `inferspan.kv_cache.usage`"),
    ErrorPlaces(("content", "chat template"), "captured messages"),
    ErrorPlaces(("token texts",), "texts of tokens on step spans"),
    ErrorPlaces(("function of on_module", "results of functions"), "the result of a function given to `handle.on_module()`"),
    ErrorPlaces(("pause",), "the switch of stages of the program, or the counts, when a model is paused or resumed"),
    ErrorPlaces(("ranks",), "one trace for a request that several ranks run together"),
    ErrorPlaces(("data flow",), "the data flow between modules of a pass, or a part of it"),
    ErrorPlaces(("attention",), "attention weights that `attention` looks at"),
    ErrorPlaces(("numerics watch",), "NaN and Inf that `numerics` looks for"),
    ErrorPlaces(("memory of modules",), "memory before and after steps and modules"),
    ErrorPlaces(("out of memory",), "what is told of an out-of-memory error"),
    ErrorPlaces(("control flow",), "early exits, loops and branches"),
    ErrorPlaces(("gradients",), "spans and statistics of a backward pass"),
    ErrorPlaces(("largest logits",), "what `top_k_positions` asks for"),
    ErrorPlaces(("statistics of inputs",), "figures of `input_stats` and `numerics_inputs`"),
    ErrorPlaces(("roofline",), "operations, bytes and what limits a request or a part of it"),
    ErrorPlaces(("analysis",), "the analysis of what was generated, and its findings"),
    ErrorPlaces(("evaluation event",), "the events of findings"),
    ErrorPlaces(("summary",), "figures of `handle.summary()` and `session.summary()`"),
    ErrorPlaces(("flush of a provider",), "a provider of the program is not flushed at `flush()` or SIGTERM, or what has ended is not handed over before"),
    ErrorPlaces(("text of an exception",), "message and stack trace of a failure"),
    ErrorPlaces(("size of a batch",), "`inferspan.batch.size`"),
    ErrorPlaces(("size of the vocabulary",), "statistics of sharded logits"),
    ErrorPlaces(("logit statistics", "fused logit statistics"), "statistics of the logits, or their fast computation"),
    ErrorPlaces(("import of a library", "classes of include"), "under zero code: models of a library, or those that `include` names"),
    ErrorPlaces(("construction of a model", "first call of a model"), "under zero code: the requests of a model"),
    ErrorPlaces(("instrumentation by the program",), "under zero code: the change to or from the program's own settings of a model"),
    ErrorPlaces(("start of a load", "span of a load"), "the span of a load"),
    ErrorPlaces(("end of a load", "files of a checkpoint"), "facts of a load or of its checkpoint"),
    ErrorPlaces(("end of a session file",), "nothing; a file that nobody records for any more stays open until the process ends"),
    ErrorPlaces(("memory reading", "energy reading"), "memory or energy of the request"),
    ErrorPlaces(("model facts", "model device"), "facts of the model, or its device"),
    ErrorPlaces(("start of a forward pass", "end of a forward pass", "caller of a forward pass"), "a plain forward pass or a part of it"),
    ErrorPlaces(("start of a request", "start of a pass", "end of a pass"), "a call of a pipeline, of `encode()` or `predict()`, or one of its passes"),
    ErrorPlaces(("result of a call", "tokens of a request"), "the dimension of embeddings, or inputs that were cut"),
    ErrorPlaces(("statistics of modules",), "statistics of module outputs, and of experts"),
    ErrorPlaces(
        (
            "hand-over of steps",
            "hand-over of modules",
            "hand-over of detail",
            "hand-over of a forward pass",
        ),
        "step or module spans",
    ),
    ErrorPlaces(("start of a batched request", "end of a batched request"), "a request of continuous batching, or a part of it"),
    ErrorPlaces(("continuous batching", "step of a batch", "preempted requests", "collecting"), "steps of a batch, counts of preemptions"),
    ErrorPlaces(("module call", "module calls", "module hook"), "a module span"),
    ErrorPlaces(("module selection",), "all module spans of the model"),
    ErrorPlaces(("search for stages", "stages of a pipeline", "start of a stage", "end of a stage", "blocks of a stage"), "spans of stages"),
    ErrorPlaces(("shapes of a stage",), "shapes of a stage of a pipeline"),
    ErrorPlaces(("* of a pipeline call", "numbers of denoising steps"), "a call of a pipeline or a part of it"),
    ErrorPlaces(("device of a stage", "tokens of stages"), "device or tokens of a stage"),
    ErrorPlaces(("modalities of the input",), "`inferspan.input.modalities` of a plain forward pass"),
    ErrorPlaces(("C extension",), "speed: Python code records module calls"),
    ErrorPlaces(("device clock",), "device times"),
    ErrorPlaces(("profiler window", "profiler signal"), "kernels and operations of a window"),
    ErrorPlaces(("watching torch.compile", "model.compile()", "watching torch.jit"), "observation around a compilation, or around torch.jit.script"),
    ErrorPlaces(("compilations", "compile metrics"), "recompilations and graph breaks"),
    ErrorPlaces(("unloading of adapters",), "requests of the model that was taken out of its wrapper"),
    ErrorPlaces(("set-up of a generation", "start of a generation"), "the request of a loop by hand"),
    ErrorPlaces(("token of a generation",), "a token of a loop by hand, or its statistics"),
    ErrorPlaces(("end of a generation", "reasons of a generation"), "facts at the end of a loop by hand"),
    ErrorPlaces(("start of a pipeline call",), "the call of a diffusion pipeline is not recorded"),
    ErrorPlaces(("end of a pipeline call",), "results and rates on the request span"),
    ErrorPlaces(("stages of a pipeline", "numbers of denoising steps", "shapes of a stage"), "stages, steps or attributes of them"),
    ErrorPlaces(("start of a stage", "end of a stage", "blocks of a stage"), "a stage, spans in it, or attributes of it"),
    ErrorPlaces(("set-up of a session", "start of a session", "end of a session"), "a session, or attributes of it"),
    ErrorPlaces(("event", "attributes of an event"), "an event of the program, or attributes of it"),
    ErrorPlaces(("start of a decorated call", "end of a decorated call"), "spans or events of a decorated function's call"),
    ErrorPlaces(("attributes of a call", "memory of a stage"), "attributes of a stage or session of the program"),
    ErrorPlaces(("metrics of stages",), "the durations and memory of stages of the program as metrics"),
    ErrorPlaces(("context",), "the request span as the parent of spans inside the call"),
    ErrorPlaces(("status of a handle",), "`handle.status()` is empty, and the log has no line of it"),
    ErrorPlaces(("detaching", "uninstrument", "refresh"), "an observer may stay on the model, or is not put on it"),
    ErrorPlaces(("request span", "id generator"), "the request span or attributes of it"),
    ErrorPlaces(
        (
            "origin of a request",
            "origin of a thread",
            "origin of a job",
            "origin of a streamer",
            "origins of requests",
        ),
        "the parent of the request span, or its links",
    ),
    ErrorPlaces(("span hand-over",), "a span of a phase, step or module"),
    ErrorPlaces(("flight recorder",), "the decision of `keep`"),
    ErrorPlaces(("exception event", "content event"), "the log event"),
    ErrorPlaces(
        (
            "third-party gen_ai span",
            "announcing to util-genai",
        ),
        "facts on another library's span, or protection from doubled spans",
    ),
    ErrorPlaces(("request metrics", "own metrics"), "all metrics of requests"),
    ErrorPlaces(
        (
            "metrics of a started request",
            "metrics of an ended request",
            "metrics of steps",
            "metrics of modules",
            "metrics of dropped spans",
        ),
        "these metrics of one request",
    ),
    ErrorPlaces(
        (
            "device metrics",
            "device_metrics.meter",
            "device_metrics.instrument",
            "device_metrics.callback",
        ),
        "metrics of the machine",
    ),
    ErrorPlaces(
        (
            "samplers",
            "samplers.*",
            "samplers.*.close",
            "samplers.*.energy",
            "samplers.energy",
            "samplers.follower",
        ),
        "readings of the sampler that is named",
    ),
    ErrorPlaces(("samplers.nvml.device", "samplers.nvml.cuda_devices", "samplers.nvml.cuda_memory"), "readings of a GPU"),
    ErrorPlaces(("set-up",), "a pipeline; it is tried again"),
    ErrorPlaces(("export of *",), "a request of this signal to a collector"),
    ErrorPlaces(("raw span export", "raw span sink"), "spans on the direct OTLP path"),
    ErrorPlaces(("* pipeline",), "a flush or the closing of this pipeline"),
    ErrorPlaces(("session file",), "records in the session file"),
    ErrorPlaces(("system record",), "facts of the machine and settings in the session file"),
    ErrorPlaces(("live display",), "lines of the setting `live`"),
    ErrorPlaces(("end of the process",), "a report of the setting `report`"),
    ErrorPlaces(("metrics of a forked process", "resource of a forked process"), "the start of a child's metrics at zero, and its process id"),
    ErrorPlaces(("SIGTERM handler", "exit of uvicorn", "exit of billiard's workers"), "what was queued when the process ended"),
)
"""The places in which errors of ours are contained, and the telemetry that is missing then."""
