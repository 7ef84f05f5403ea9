"""What SGLang and vLLM want to hear when a trainer sends them weights, and what they answer.

One class is one request or answer. Its fields have the names, types and defaults of the engine's
own class, and ROUTE says where it goes. `body` makes the JSON of a request: it leaves out what has
the default, so a server that does not know a newer field never sees it.

SGLang, read in 0.5.20 and 0.5.23: sglang/srt/managers/io_struct.py and entrypoints/http_server.py.
vLLM, read in 0.33.0: vllm/entrypoints/rl/online/api_router.py, vllm/distributed/weight_transfer/
nccl_engine.py, nccl_common.py and ipc_engine.py, vllm/entrypoints/openai/completion/protocol.py.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

NEWER = {"lacking in": "SGLang 0.5.20"}
GIB = 2**30


def body(request) -> dict:
    """What of a request goes over the wire."""
    found = {}
    for one in dataclasses.fields(request):
        value = getattr(request, one.name)
        given = one.default_factory() if callable(one.default_factory) else one.default
        if value != given:
            found[one.name] = value
    return found


# SGLang


@dataclass(kw_only=True)
class PauseGeneration:
    """SGLang's PauseGenerationReqInput."""

    ROUTE: ClassVar = "/pause_generation"
    mode: Literal["abort", "retract", "in_place"] = "abort"


@dataclass(kw_only=True)
class ContinueGeneration:
    """SGLang's ContinueGenerationReqInput."""

    ROUTE: ClassVar = "/continue_generation"
    torch_empty_cache: bool = True


@dataclass(kw_only=True)
class InitWeightsUpdateGroup:
    """SGLang's InitWeightsUpdateGroupReqInput."""

    ROUTE: ClassVar = "/init_weights_update_group"
    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    group_name: str = "weight_update_group"
    backend: str = "nccl"


@dataclass(kw_only=True)
class DestroyWeightsUpdateGroup:
    """SGLang's DestroyWeightsUpdateGroupReqInput."""

    ROUTE: ClassVar = "/destroy_weights_update_group"
    group_name: str = "weight_update_group"


@dataclass(kw_only=True)
class BeginWeightUpdate:
    """SGLang's BeginWeightUpdateReqInput: since 0.5.21, and 404 before."""

    ROUTE: ClassVar = "/begin_weight_update"
    selector: Literal["target", "draft", "all"] = "all"


@dataclass(kw_only=True)
class EndWeightUpdate:
    """SGLang's EndWeightUpdateReqInput: since 0.5.21, and 404 before."""

    ROUTE: ClassVar = "/end_weight_update"


@dataclass(kw_only=True)
class UpdateWeightsFromDistributed:
    """SGLang's UpdateWeightsFromDistributedReqInput. A dtype is "bfloat16", without "torch."."""

    ROUTE: ClassVar = "/update_weights_from_distributed"
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    group_name: str = "weight_update_group"
    flush_cache: bool = True
    abort_all_requests: bool = False
    weight_version: str | None = None
    load_format: str | None = None
    selector: Literal["target", "draft", "all"] = field(default="all", metadata=NEWER)
    torch_empty_cache: bool = False


@dataclass(kw_only=True)
class UpdateWeightsFromTensor:
    """SGLang's UpdateWeightsFromTensorReqInput, less what only 0.5.20 has. Texts are base64."""

    ROUTE: ClassVar = "/update_weights_from_tensor"
    serialized_named_tensors: list[bytes]
    load_format: str | None = None
    flush_cache: bool = True
    abort_all_requests: bool = False
    weight_version: str | None = None
    selector: Literal["target", "draft", "all"] = field(default="all", metadata=NEWER)
    torch_empty_cache: bool = False


@dataclass(kw_only=True)
class CheckWeights:
    """SGLang's CheckWeightsReqInput."""

    ROUTE: ClassVar = "/weights_checker"
    action: str = "checksum"
    allow_quant_error: bool = False
    skip_tensor_list: list[str] | None = field(default=None, metadata=NEWER)
    selector: Literal["target", "draft", "all"] = field(default="all", metadata=NEWER)


@dataclass(kw_only=True)
class Generate:
    """SGLang's GenerateReqInput, the fields that we use. The answer has
    `meta_info.output_top_logprobs`: for each new token a list of [logprob, token, null].
    """

    ROUTE: ClassVar = "/generate"
    input_ids: list[list[int]] | list[int] | None = None
    sampling_params: list[dict[str, Any]] | dict[str, Any] | None = None
    return_logprob: list[bool] | bool | None = None
    top_logprobs_num: list[int] | int | None = None


@dataclass(kw_only=True)
class Success:
    """SGLang's UpdateWeightsFromDistributedReqOutput, and many others: 200 if true, else 400."""

    success: bool
    message: str


# vLLM


@dataclass(kw_only=True)
class Pause:
    """vLLM's pause_generation. The fields go into the query of the address."""

    ROUTE: ClassVar = "/pause"
    mode: Literal["abort", "wait", "keep"] = "abort"
    clear_cache: bool = True


@dataclass(kw_only=True)
class InitWeightTransferEngine:
    """vLLM's init_weight_transfer_engine."""

    ROUTE: ClassVar = "/init_weight_transfer_engine"
    init_info: dict[str, Any]


@dataclass(kw_only=True)
class NCCLInitInfo:
    """vLLM's NCCLWeightTransferInitInfo."""

    master_address: str | None = None
    master_port: int | None = None
    rank_offset: int
    world_size: int
    nccl_unique_id_b64: str | None = None
    packed: bool = False
    packed_buffer_size_bytes: int = GIB
    packed_num_buffers: int = 2


@dataclass(kw_only=True)
class IPCInitInfo:
    """vLLM's IPCWeightTransferInitInfo."""

    packed: bool = False


@dataclass(kw_only=True)
class UpdateWeights:
    """vLLM's update_weights."""

    ROUTE: ClassVar = "/update_weights"
    update_info: dict[str, Any] | list[dict[str, Any]]


@dataclass(kw_only=True)
class NCCLUpdateInfo:
    """vLLM's NCCLWeightTransferUpdateInfo. All three empty: those of the call before."""

    names: list[str] = field(default_factory=list)
    dtype_names: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)


@dataclass(kw_only=True)
class IPCUpdateInfo:
    """vLLM's IPCWeightTransferUpdateInfo."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    ipc_handles: list[dict[str, tuple]] | dict[str, tuple] | None = None
    ipc_handles_pickled: str | None = None
    tensor_sizes: list[int] | None = None


@dataclass(kw_only=True)
class FinishWeightUpdate:
    """vLLM's finish_weight_update."""

    ROUTE: ClassVar = "/finish_weight_update"
    weight_version: str | None = None


@dataclass(kw_only=True)
class WeightChecker:
    """vLLM's weight_checker."""

    ROUTE: ClassVar = "/weight_checker"
    action: Literal["checksum", "reset", "compare"]
    baseline: dict[str, str] | None = None


@dataclass(kw_only=True)
class Completion:
    """vLLM's CompletionRequest, the fields that we use. The answer has
    `choices[0].logprobs.top_logprobs`: for each new token {"token_id:7": logprob, ...}.
    """

    ROUTE: ClassVar = "/v1/completions"
    prompt: list[int] | list[list[int]] | str | list[str] | None = None
    max_tokens: int | None = 16
    temperature: float | None = None
    logprobs: int | None = None
    return_tokens_as_token_ids: bool | None = None


@dataclass(kw_only=True)
class ErrorInfo:
    """vLLM's ErrorInfo, in {"error": ...}: 400 for ValueError and TypeError, else 500."""

    message: str
    type: str
    param: str | None = None
    code: int


# Routes whose request has no body: vLLM's parts of a session, and what both are asked by GET.
FLUSH_CACHE = "/flush_cache"  # SGLang: plain text, 200 or 400
SERVER_INFO, MODEL_INFO = "/server_info", "/model_info"  # SGLang: tp_size; weight_version
START, RESUME = "/start_weight_update", "/resume"  # vLLM
SHUTDOWN = "/shutdown_weight_transfer_engine"  # vLLM
WORLD_SIZE, WEIGHT_INFO = "/get_world_size", "/weight_info"  # vLLM

REQUESTS = {one.ROUTE: one for one in list(vars().values()) if hasattr(one, "ROUTE")}


def parse(route, query, text: bytes):
    """A request as the server reads it, or None if this route has no fields."""
    flags = {"true": True, "false": False}
    given = {name: flags.get(one, one) for name, one in query} | json.loads(text or b"{}")
    return REQUESTS[route](**given) if route in REQUESTS else None
