"""A target with its drafters as one Python object: prompts in, texts out. It starts processes and follows requests; it
runs no model and knows nothing of trees or rules.

    with LLM(target="smollm2", drafters=["ngram"]) as llm:
        for output in llm.generate(["Once upon a time"], SamplingParams(temperature=0.8, max_tokens=40)):
            print(output.outputs[0].text)
"""

from __future__ import annotations

import os
import secrets
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Self

from dist_spec.bench.connection import WAIT_S, Connection, serving_of
from dist_spec.bench.deployment import Deployment
from dist_spec.config import Config, ModelDrafterConfig, load_config
from dist_spec.config.arguments import argument_overrides
from dist_spec.errors import ConfigError, DistSpecError, ProtocolError, RequestError, WorkerError
from dist_spec.models.source import Progress, resolve
from dist_spec.models.tokenizer import load_tokenizer
from dist_spec.server.outputs import RequestOutput, Sample, StreamOutput, metrics_of
from dist_spec.server.params import SamplingParams
from dist_spec.server.prompts import Encoded, Message, Prompt, encode_prompt, is_conversation, split_prompts

__all__ = ["LLM"]

_POLL_S = 0.25
_ABORT_S = 1.0
"""How long is waited for the target to confirm that a request was given up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """One sample to be made."""

    request_id: str
    prompt: Encoded
    prompt_index: int
    index: int
    params: SamplingParams
    seed: int


class LLM:
    """Starts the processes of one configuration on this machine; `close`, or leaving the `with` block, ends them.

    Create it in the main thread (the processes end with the thread that started them); use it from any.

    Args:
        target: the model: a folder, a .gguf file, a hub name, "smollm2", "random:..."; or the section `target` as a dict.
        drafters: "ngram", "suffix", a model with the target's tokenizer, or entries of the section `drafters` as dicts.
        config: a settings file, or settings; the other arguments win over it.
        speculative_config, num_speculative_tokens: vLLM's names (see `dist_spec.config.aliases`).
        progress: is told what a slow start is doing.
        connect: address of a running target ("tcp://HOST:PORT") to ask instead of starting one; `target` says whose
            tokenizer.
        wait_s: how long to wait for that target, at the start and whenever it goes away.
        settings: sections of the settings, as dicts: `speculation={"budget": 8}`, `transport={...}`, ...

    Attributes:
        config: the complete settings.
        tokenizer: of the target, in this process.

    Raises:
        ConfigError, UnsupportedError: a setting is wrong, or not in this release.
        ModelError: a model cannot be found or run faithfully.
        WorkerError: a process did not come up.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        *,
        drafters: Sequence[str | os.PathLike[str] | Mapping[str, Any]] | None = None,
        config: str | Path | Mapping[str, Any] | Config | None = None,
        speculative_config: Mapping[str, Any] | None = None,
        num_speculative_tokens: int | None = None,
        progress: Progress | None = None,
        connect: str | None = None,
        wait_s: float = WAIT_S,
        **settings: Any,
    ) -> None:
        if connect is not None and (drafters or speculative_config):
            raise ConfigError("LLM: connect names a running target, which has its drafters", fix="leave drafters out")
        overrides = argument_overrides(
            {"target": target, **settings},
            drafters=drafters,
            speculative_config=speculative_config,
            num_speculative_tokens=num_speculative_tokens,
        )
        data = config.model_dump(mode="json", exclude_none=True) if isinstance(config, Config) else config
        if data is None and target is None:
            raise ConfigError("LLM: no target model is given", fix='say LLM(target="smollm2"), or give config=FILE')
        self.config = load_config(data, overrides=overrides)
        for model in [self.config.target.model, *(_models(self.config) if connect is None else ())]:
            resolve(model, progress=progress)  # before the processes, which would do it all at once
        self.tokenizer = load_tokenizer(self.config.target.model)
        if connect is None and threading.current_thread() is not threading.main_thread():
            warnings.warn("the processes of an LLM end with the thread that made it", RuntimeWarning, stacklevel=2)
        self._lock = threading.RLock()
        self._count = 0
        self._busy_s = 0.0
        self._busy_since_s: float | None = None
        self._totals = {"num_requests": 0, "num_prompt_tokens": 0, "num_tokens": 0}
        self._deployment = serving_of(self.config, tokenizer=self.tokenizer, name="llm", connect=connect, wait_s=wait_s)
        self._end = weakref.finalize(self, _end, self._deployment, os.getpid())
        try:
            self._deployment.__enter__()
            self._deployment.wait_ready()
        except BaseException:
            self._end()
            raise

    # ---- requests -------------------------------------------------------------------------------------------------

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Decode all prompts together; one output per prompt, in order.

        A request that cannot be served ends with `finish_reason` "error" and does not touch the others.

        Args:
            prompts: a text, token ids or a list of messages (then put into the chat template), or a list of these.
            params: for all, or one per prompt; None: the section `sampling` of the settings.

        Raises:
            RequestError: what was given is no prompt, or there are not as many `params` as prompts.
            WorkerError, TransportError: the target is gone; the LLM is closed then.
        """
        jobs = self._jobs(prompts, params)
        samples: list[list[Sample]] = [[] for _ in range(1 + max((job.prompt_index for job in jobs), default=-1))]
        with closing(self._follow(jobs, samples)) as news:
            for _ in news:
                pass
        first = {job.prompt_index: job for job in reversed(jobs)}
        return [
            RequestOutput(
                request_id=first[index].request_id,
                prompt=first[index].prompt.text,
                prompt_token_ids=first[index].prompt.ids,
                outputs=[sample.output() for sample in sorted(group, key=lambda one: one.index)],
                metrics=metrics_of(group, seed=first[index].seed),
            )
            for index, group in enumerate(samples)
        ]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """As `generate`, for one conversation or several: lists of {"role": ..., "content": ...}."""
        for conversation in split_prompts(messages):
            if not is_conversation(conversation):
                raise RequestError("chat wants lists of messages", fix='[{"role": "user", "content": "..."}]')
        return self.generate(messages, params)

    def stream(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> Generator[StreamOutput, None, None]:
        """As `generate`, but yields what is committed as it comes; `prompt_index` and `index` say to what.

        Leaving the loop early gives the rest up.
        """
        jobs = self._jobs(prompts, params)
        return self._follow(jobs, [[] for _ in jobs])

    def forget(self) -> None:
        """Let the drafters forget the texts of earlier requests."""
        with self._lock:
            self._opened().client.forget()

    def stats(self) -> dict[str, float]:
        """Figures since the start: `num_requests`, `num_prompt_tokens`, `num_tokens`, `busy_s` (seconds with a request
        open), `tokens_per_s`, `acceptance_length` (tokens per verification), and the target's own totals as of the
        request that ended last (`session_verified`, `time_forward_s`, ...: see docs/operating.md)."""
        leader = self._deployment.client.last_stats
        since = self._busy_since_s
        busy_s = self._busy_s + (monotonic() - since if since is not None else 0.0)
        rows = leader.get("session_rows", 0.0)
        own = {
            **self._totals,
            "busy_s": busy_s,
            "tokens_per_s": self._totals["num_tokens"] / busy_s if busy_s else 0.0,
            "acceptance_length": leader.get("session_committed", 0.0) / rows if rows else 0.0,
        }
        shared = ("time_", "session_", "depth_", "link_", "drafter_", "coordination_")
        return own | {name: value for name, value in leader.items() if name.startswith(shared)}

    def _jobs(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[_Job]:
        self._opened()
        encoded = [encode_prompt(prompt, self.tokenizer) for prompt in split_prompts(prompts)]
        each = self._params(params, count=len(encoded))
        jobs: list[_Job] = []
        for place, (prompt, one) in enumerate(zip(encoded, each, strict=True)):
            seed = one.seed if one.seed is not None else secrets.randbits(32)
            with self._lock:
                request, self._count = f"r{self._count}", self._count + 1
            jobs += [
                _Job(request_id=request, prompt=prompt, prompt_index=place, index=index, params=one, seed=seed)
                for index in range(one.n)
            ]
        return jobs

    def _params(
        self, params: SamplingParams | Sequence[SamplingParams] | None, *, count: int
    ) -> Sequence[SamplingParams]:
        if params is None:
            params = SamplingParams.from_config(self.config.sampling)
        if isinstance(params, SamplingParams):
            return [params] * count
        if not isinstance(params, Sequence) or not all(isinstance(one, SamplingParams) for one in params):
            raise RequestError(
                f"{params!r} are no sampling parameters", fix="give SamplingParams(...), or a list of them"
            )
        if len(params) != count:
            raise RequestError(f"{count} prompts and {len(params)} params", fix="give one SamplingParams, or one each")
        return params

    def _follow(self, jobs: Sequence[_Job], samples: Sequence[list[Sample]]) -> Generator[StreamOutput, None, None]:
        """Open what the target has room for, yield what is committed, until all has ended; what is still open when the
        caller (or Ctrl-C) leaves is given up."""
        waiting = deque(jobs)
        running: list[Sample] = []
        # The target queues what it has no room for: with a second set at hand it never waits for us.
        window = 2 * self.config.target.max_sequences
        try:
            while waiting or running:
                while waiting and len(running) < window:
                    sample = self._open(waiting.popleft())
                    running.append(sample)
                    samples[sample.prompt_index].append(sample)
                with self._lock:  # another thread may be taking in what arrived for us
                    news = [one for sample in running if (one := sample.advance()) is not None]
                running = [sample for sample in running if not sample.finished]
                yield from news
                if not news:
                    self._pump()
        finally:
            self._give_up(running)

    def _open(self, job: _Job) -> Sample:
        stream, error = None, job.prompt.error
        with self._lock:
            client = self._opened().client
            self._totals["num_requests"] += job.index == 0
            self._totals["num_prompt_tokens"] += len(job.prompt.ids) * (job.index == 0)
            try:
                if error is None:
                    sampling = job.params.to_sampling(self._plain_ids, seed=job.seed, sample_index=job.index)
                    name = f"{self._deployment.tag}{job.request_id}.{job.index}"
                    stream = client.open(name, prompt=job.prompt.ids, sampling=sampling)
                    self._busy_since_s = self._busy_since_s or monotonic()
            except (RequestError, ProtocolError) as refusal:
                error = str(refusal)
        return Sample(
            stream,
            request_id=job.request_id,
            prompt_index=job.prompt_index,
            index=job.index,
            params=job.params,
            tokenizer=self.tokenizer,
            error=error,
        )

    def _plain_ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special=False)

    def _pump(self, *, timeout_s: float = _POLL_S) -> None:
        """Take in what has arrived, for whoever asked; raises what makes the whole LLM useless, and closes it."""
        with self._lock:
            deployment = self._opened()
            try:
                for _, fresh in deployment.client.poll(timeout_s=timeout_s):
                    self._totals["num_tokens"] += fresh
                deployment.check()
            except DistSpecError:
                self.close()
                raise
            if not deployment.client.streams and self._busy_since_s is not None:
                self._busy_s += monotonic() - self._busy_since_s
                self._busy_since_s = None

    def _give_up(self, samples: Sequence[Sample]) -> None:
        """Tell the target that nobody waits for these any more."""
        streams = [sample.stream for sample in samples if sample.stream is not None and not sample.stream.reason]
        if not streams or not self._end.alive:
            return
        with self._lock:
            for stream in streams:
                self._deployment.client.abort(stream)
            deadline = monotonic() + _ABORT_S
            while any(not stream.reason for stream in streams) and monotonic() < deadline:
                try:
                    self._pump(timeout_s=0.05)
                except DistSpecError:
                    return  # whatever made the caller leave is what it should hear of

    # ---- life -----------------------------------------------------------------------------------------------------

    def _opened(self) -> Deployment | Connection:
        if not self._end.alive:
            raise WorkerError("this LLM is closed", fix="make a new one")
        return self._deployment

    def close(self) -> None:
        """End all processes. May be called again."""
        self._end()

    def __enter__(self) -> Self:
        self._opened()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        end = getattr(self, "_end", None)
        if end is not None and end.alive:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)
            end()


def _end(deployment: Deployment | Connection, pid: int) -> None:
    """Also runs when the interpreter ends. A forked copy of this process leaves the processes to the original."""
    if os.getpid() == pid:
        deployment.__exit__(None, None, None)


def _models(config: Config) -> list[str]:
    return [drafter.model for drafter in config.drafters if isinstance(drafter, ModelDrafterConfig)]
