"""Hugging Face's own `generate`, plain and with its prompt lookup, as a peer in the same run on the same core.

A small server: one JSON request a line on standard input, one JSON answer a line on standard output, so that its turns
can alternate with ours. It uses nothing of ours but the model's folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from dist_spec.errors import WorkerError
from dist_spec.topology import thread_env

LOOKUP_TOKENS = 10


def serve(folder: str, dtype: str) -> None:
    """Answer requests {"prompt": ids, "max_tokens": n, "lookup": bool, "eos": ids} until end of file."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), local_files_only=True).eval()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        ids = torch.tensor([request["prompt"]])
        extra: dict[str, Any] = {"prompt_lookup_num_tokens": LOOKUP_TOKENS} if request["lookup"] else {}
        start = perf_counter()
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=request["max_tokens"],
                do_sample=False,
                eos_token_id=request["eos"] or None,
                pad_token_id=0,
                **extra,
            )
        seconds = perf_counter() - start
        print(json.dumps({"tokens": out[0, ids.shape[1] :].tolist(), "seconds": seconds}), flush=True)


class HuggingFacePeer:
    """The server as a child process, pinned to `core`; use as a context manager."""

    def __init__(self, *, folder: Path, dtype: str, core: int) -> None:
        self._argv = [sys.executable, "-m", "dist_spec.bench.peers", str(folder), dtype]
        self._core = core
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._argv,
            env={**os.environ, **thread_env(1)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        os.sched_setaffinity(self._process.pid, {self._core})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def wait_ready(self) -> None:
        self._read()

    def generate(self, prompt: list[int], *, max_tokens: int, lookup: bool, eos: list[int]) -> tuple[list[int], float]:
        """(generated ids, seconds). Greedy: its sampling has a noise of its own, so texts could not be compared."""
        if self._process is None or self._process.stdin is None:
            raise WorkerError("the peer was not started")
        request = {"prompt": prompt, "max_tokens": max_tokens, "lookup": lookup, "eos": eos}
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise _ended() from None
        answer = self._read()
        return answer["tokens"], answer["seconds"]

    def _read(self) -> dict[str, Any]:
        if self._process is None or self._process.stdout is None:
            raise WorkerError("the peer was not started")
        line = self._process.stdout.readline()
        if not line:
            raise _ended()
        answer: dict[str, Any] = json.loads(line)
        return answer


def _ended() -> WorkerError:
    return WorkerError("transformers' generate ended unexpectedly", fix="leave --compare-hf out")


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
