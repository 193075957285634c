"""The schema of all settings (pydantic). Knows neither files nor the command line, nor what a setting sets in motion."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from dist_spec.config.combinations import check_combinations
from dist_spec.config.values import (
    Budget,
    Cores,
    Count,
    Device,
    DeviceMap,
    Dtype,
    MaxMemory,
    Name,
    PerRequest,
    Seconds,
)
from dist_spec.errors import ConfigError

DEFAULT_MODEL_LEN = 4096
"""Longest sequence of a target whose `max_model_len` is not set (less where the model was made for less)."""


class _Settings(BaseModel):
    """Unknown keys and silent conversions (the string "4" for the number 4) are refused; nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TargetConfig(_Settings):
    """The model whose output law holds.

    `cores` pins the process (default: chosen, see `plan`); `threads` defaults to the number of its cores.
    `batch_invariant` (default: on for cpu) makes a token's logits bit-equal however many rows ride along.
    `drain_s`: after SIGTERM running requests may take so long to finish; what is left goes back to its frontends (launchers
    kill after 30 s).
    """

    model: Annotated[str, Field(min_length=1)]
    dtype: Dtype = "bfloat16"
    device: Device = "cpu"
    cores: Cores | None = None
    threads: Count | None = None
    batch_invariant: bool = True
    max_model_len: Count | None = None
    max_sequences: Count = 4
    kv_block_size: Count = 32
    drain_s: Seconds = 20.0
    trust_remote_code: bool = False

    @model_validator(mode="before")
    @classmethod
    def _default_invariance(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("batch_invariant") is None:
            return {**data, "batch_invariant": data.get("device", "cpu") == "cpu"}
        return data


class LinkConfig(_Settings):
    """What carries what between one drafter and the target.

    `tensors`: hidden features and dense draft laws go over ZeroMQ like all messages, or over torch.distributed
    (`collective`: a group of two ranks, whose `backend` is NCCL where both ends are on GPUs, else gloo). `messages`: the
    others. Without a collective link that is up, ZeroMQ carries everything.
    """

    tensors: Literal["zmq", "collective"] = "zmq"
    messages: Literal["zmq", "collective"] = "zmq"
    backend: Literal["auto", "gloo", "nccl"] = "auto"


class ModelDrafterConfig(_Settings):
    """A smaller language model in a process of its own.

    `vocabulary` says what to do about its tokenizer. `auto`: nothing if it is the target's, else whichever of the next two
    suits. `intersection`: draft with the tokens that both have, byte for byte. `text`: draft text and write it in the
    target's tokens (not under `rejection`). `same`: refuse a tokenizer that is not the target's.
    `layers` runs only these decoder layers of `model`, then its final norm and head (the target itself: early exit).
    Large models: `device_map` (accelerate's) spreads the weights over devices, host memory and disk (`offload_folder`),
    `max_memory` says how much of each they may take; `quantization` ({method: ..., its options}) is transformers'.
    `width` leaves are expanded per draft step and the best `num_children` guesses below each are published.
    `num_draft_tokens` caps the depth of the tree (default: 16 for drafts on demand; ahead of time the pace of drafting and
    verification caps it, at most 64).
    """

    kind: Literal["model"]
    name: Name
    model: Annotated[str, Field(min_length=1)]
    layers: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False, min_length=1)] | None = None
    dtype: Dtype = "bfloat16"
    device: Device = "cpu"
    cores: Cores | None = None
    link: LinkConfig = LinkConfig()
    threads: Count | None = None
    width: Annotated[int, Field(ge=1, le=256)] = 8
    num_children: Annotated[int, Field(ge=1, le=64)] = 4
    num_draft_tokens: Annotated[int, Field(ge=1, le=256)] | None = None
    max_model_len: Count | None = None
    vocabulary: Literal["auto", "same", "intersection", "text"] = "auto"
    trust_remote_code: bool = False
    device_map: DeviceMap | None = None
    max_memory: MaxMemory | None = None
    offload_folder: Annotated[str, Field(min_length=1)] | None = None
    quantization: dict[str, Any] | None = None
    placement: ClassVar[Literal["process"]] = "process"

    def is_model_of(self, target: TargetConfig) -> bool:
        """Whether it computes what the target does, bit by bit where both run batch-invariant."""
        whole = self.layers is None and self.device_map is None and self.quantization is None
        return whole and (self.model, self.dtype) == (target.model, target.dtype)


class HeadDrafterConfig(_Settings):
    """A draft head (EAGLE-3) made for this target, in a process of its own: it goes on from the target's hidden features,
    which travel to it with every commit.

    `model`: the folder of a head, or the name of one that is shipped (default: the one shipped for the target).
    `window`: tokens of the past that its guesses rest on. For the rest see `ModelDrafterConfig`.
    """

    kind: Literal["head"]
    name: Name
    model: Annotated[str, Field(min_length=1)] | None = None
    dtype: Dtype = "bfloat16"
    device: Device = "cpu"
    cores: Cores | None = None
    link: LinkConfig = LinkConfig()
    threads: Count | None = None
    width: Annotated[int, Field(ge=1, le=256)] = 8
    num_children: Annotated[int, Field(ge=1, le=64)] = 4
    num_draft_tokens: Annotated[int, Field(ge=1, le=256)] | None = None
    window: Annotated[int, Field(ge=8, le=1024)] = 256
    placement: ClassVar[Literal["process"]] = "process"


class NgramDrafterConfig(_Settings):
    """Prompt lookup: what followed the last tokens when they occurred before. Costs so little that it may live inside
    the leader (`placement: leader`)."""

    kind: Literal["ngram"]
    name: Name
    placement: Literal["process", "leader"] = "process"
    max_ngram: Annotated[int, Field(ge=1, le=8)] = 4
    num_draft_tokens: Annotated[int, Field(ge=1, le=256)] = 8
    cores: Cores | None = None
    link: LinkConfig = LinkConfig()


class SuffixDrafterConfig(_Settings):
    """Lookup of the longest matching ending in prompt, output, earlier outputs and the files of `corpus`; guesses are the
    continuations seen most often. `remember`: keep the outputs of ended requests (until told to forget)."""

    kind: Literal["suffix"]
    name: Name
    placement: Literal["process", "leader"] = "process"
    corpus: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)] = ()
    remember: bool = True
    max_tokens: Count = 1_000_000
    num_draft_tokens: Annotated[int, Field(ge=1, le=256)] = 16
    cores: Cores | None = None
    link: LinkConfig = LinkConfig()


class ScriptedDrafterConfig(_Settings):
    """Guesses from a known text, right by a rank law: the first guess with probability `a`, each further one with `b`
    of the rest. For tests and for comparing methods at a given acceptance."""

    kind: Literal["scripted"]
    name: Name
    text_file: Annotated[str, Field(min_length=1)]
    a: Annotated[float, Field(ge=0, le=1)] = 0.8
    b: Annotated[float, Field(ge=0, le=1)] = 0.5
    step_s: Seconds = 0.0
    seed: Annotated[int, Field(ge=0)] = 0
    width: Annotated[int, Field(ge=1, le=256)] = 8
    num_children: Annotated[int, Field(ge=1, le=64)] = 4
    num_draft_tokens: Annotated[int, Field(ge=1, le=256)] | None = None
    cores: Cores | None = None
    link: LinkConfig = LinkConfig()
    placement: ClassVar[Literal["process"]] = "process"


class PluginDrafterConfig(_Settings):
    """A drafter from outside this package: `target` is "package.module:Class", called with `**options`."""

    kind: Literal["plugin"]
    name: Name
    target: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    options: dict[str, Any] = {}
    width: Annotated[int, Field(ge=1, le=256)] = 8
    num_children: Annotated[int, Field(ge=1, le=64)] = 4
    num_draft_tokens: Annotated[int, Field(ge=1, le=256)] | None = None
    cores: Cores | None = None
    link: LinkConfig = LinkConfig()
    placement: ClassVar[Literal["process"]] = "process"


DrafterConfig: TypeAlias = Annotated[
    ModelDrafterConfig
    | HeadDrafterConfig
    | NgramDrafterConfig
    | SuffixDrafterConfig
    | ScriptedDrafterConfig
    | PluginDrafterConfig,
    Field(discriminator="kind"),
]


class SpeculationConfig(_Settings):
    """The four independent switches, and the amounts that go with them.

    `budget`: nodes verified per step over all sequences (0: drafting off), or `auto`: as many as the price says, at
    most `max_budget`. `fan_out`: outcomes prepared per position. `drafters_per_request`: so many drafters of one kind
    serve a request at most, and the requests are shared out; `auto`: all serve a single one, each its own of many.
    `max_wait_s` bounds a wait on a miss, `pull_timeout_s` a pull's round trip.
    """

    growth: Literal["none", "optimistic", "fan_out", "best_first"] = "best_first"
    delivery: Literal["push", "pull"] = "push"
    verify_shape: Literal["chain", "tree"] = "tree"
    on_miss: Literal["plain", "draft", "wait"] = "plain"
    budget: Budget = "auto"
    max_budget: Annotated[int, Field(ge=1, le=1024)] = 32
    fan_out: Annotated[int, Field(ge=1, le=64)] = 3
    drafters_per_request: PerRequest = "auto"
    max_wait_s: Seconds = 0.005
    pull_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0


class VerificationConfig(_Settings):
    """How a proposal is judged. `auto`: `greedy` at temperature 0, else `coupled`.

    `draft_law` (rule `rejection`): the law of a drafted token travels as its `law_size` most likely ids with 16-bit
    counts (`sparse`), or whole (`dense`, for comparison).
    """

    rule: Literal["auto", "greedy", "coupled", "rejection"] = "auto"
    draft_law: Literal["sparse", "dense"] = "sparse"
    law_size: Annotated[int, Field(ge=1, le=1024)] = 64


class SamplingConfig(_Settings):
    """What a request gets that does not say otherwise."""

    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    max_tokens: Count = 128
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)] = ()
    ignore_eos: bool = False
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    presence_penalty: Annotated[float, Field(ge=-100, le=100)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-100, le=100)] = 0.0
    logit_bias: dict[Annotated[int, Field(ge=0, strict=False)], Annotated[float, Field(allow_inf_nan=False)]] = {}
    bad_words: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)] = ()
    min_tokens: Annotated[int, Field(ge=0)] = 0
    logprobs: Annotated[int, Field(ge=0, le=64)] | None = None


class ParallelConfig(_Settings):
    """The target over `tp_size` processes (tensor-parallel ranks), each with its shard of the weights.

    `backend`: transformers' own sharding (every rank loads its shard only), or DeepSpeed's, which also shards numbers of
    heads that `tp_size` does not divide. `attention: replicated` keeps attention whole on every rank and shards the rest.
    `timeout_s`: a rank that makes no progress for so long ends all of them.
    """

    tp_size: Annotated[int, Field(ge=1, le=1024)] = 1
    backend: Literal["transformers", "deepspeed"] = "transformers"
    attention: Literal["sharded", "replicated"] = "sharded"
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0


class TransportConfig(_Settings):
    """Where the leader listens (port 0: a free one is chosen), and when a silent peer counts as dead."""

    bind: Annotated[str, Field(pattern=r"^tcp://(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9_.*-]+):\d{1,5}$")] = "tcp://127.0.0.1:0"
    heartbeat_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    dead_after_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5.0
    allow_plaintext: bool = False


class TelemetryConfig(_Settings):
    """What is written where. `record`: a file for the order of all consumed inputs, for exact replay; `trace`: a Chrome
    / Perfetto trace; `decisions`: one JSON record per step and row."""

    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    log_dir: str | None = None
    record: str | None = None
    trace: str | None = None
    decisions: str | None = None


class Config(_Settings):
    """All settings of one deployment."""

    target: TargetConfig
    parallel: ParallelConfig = ParallelConfig()
    drafters: Annotated[tuple[DrafterConfig, ...], Field(strict=False)] = ()
    speculation: SpeculationConfig = SpeculationConfig()
    verification: VerificationConfig = VerificationConfig()
    sampling: SamplingConfig = SamplingConfig()
    transport: TransportConfig = TransportConfig()
    telemetry: TelemetryConfig = TelemetryConfig()

    @model_validator(mode="before")
    @classmethod
    def _name_drafters(cls, data: Any) -> Any:
        """A drafter without a name is called after its kind and place: ngram0, model1."""
        if not isinstance(data, dict) or not isinstance(data.get("drafters"), list | tuple):
            return data
        named = [
            {"name": f"{entry['kind']}{index}", **entry} if isinstance(entry, dict) and "kind" in entry else entry
            for index, entry in enumerate(data["drafters"])
        ]
        return {**data, "drafters": named}

    @model_validator(mode="after")
    def _check(self) -> Config:
        check_combinations(self)
        return self

    @property
    def process_drafters(self) -> tuple[DrafterConfig, ...]:
        """The drafters that run in processes of their own."""
        return tuple(drafter for drafter in self.drafters if drafter.placement == "process")

    def drafter(self, name: str) -> DrafterConfig:
        """The drafter of this name; ConfigError with the known names otherwise."""
        for drafter in self.drafters:
            if drafter.name == name:
                return drafter
        known = ", ".join(drafter.name for drafter in self.drafters) or "none"
        raise ConfigError(f"no drafter is called {name!r}", fix=f"drafters in this configuration: {known}")

    def to_yaml(self) -> str:
        """The complete settings, defaults included, as a file that `load_config` reads back to an equal object."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
