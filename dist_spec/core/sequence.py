"""One request at the target: its tokens, what of them is cached, and when it ends. It knows nothing of drafts."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TypeAlias

from dist_spec.core.prefix import Prefix
from dist_spec.core.types import Sampling, Usage

Decode: TypeAlias = Callable[[Seq[int]], str]
"""Token ids -> text; needed only for stop strings."""


class Sequence:
    """Committed tokens of one request (law 1: they only grow).

    Args:
        request, generation: the request's name.
        prompt: token ids (>= 1).
        generated: tokens committed elsewhere before (resume), already part of the output. The last of them may have
            ended the request: then `finish_reason` says so from the start.
        max_model_len: positions the model has.
        eos_ids: the model's end-of-sequence ids, used unless `sampling.ignore_eos`.
        decode: turns ids into text; required when `sampling.stop` is set.
    """

    def __init__(
        self,
        request: str,
        generation: int,
        *,
        prompt: Seq[int],
        sampling: Sampling,
        max_model_len: int,
        generated: Seq[int] = (),
        generated_offset: int = 0,
        eos_ids: Seq[int] = (),
        decode: Decode | None = None,
    ) -> None:
        self.request = request
        self.generation = generation
        self.prefix = Prefix([*prompt, *generated])
        self.prompt_length = len(prompt)
        self.sampling = sampling
        self.generated_offset = generated_offset
        self.max_model_len = max_model_len
        self.cached = 0
        self.finish_reason = ""
        self.usage = Usage()
        self._ends = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else frozenset(eos_ids))
        self._decode = decode
        self._stop_window = max((len(text.encode()) for text in sampling.stop), default=0) + 4
        if generated:  # its end may be all that was lost
            self.finish_reason = self._ending(generated[-1])

    @property
    def key(self) -> tuple[str, int]:
        return self.request, self.generation

    @property
    def tokens(self) -> list[int]:
        return self.prefix.tokens

    @property
    def num_generated(self) -> int:
        return len(self.prefix) - self.prompt_length

    @property
    def room(self) -> int:
        """Tokens that may still be committed."""
        return min(self.sampling.max_tokens - self.num_generated, self.max_model_len - len(self.prefix))

    @property
    def noise_index(self) -> int:
        """Noise index of the next token."""
        return self.generated_offset + self.num_generated

    def accept(self, tokens: Seq[int]) -> list[int]:
        """Append a verified block up to the token that ends the request; the rest of the block is not committed."""
        kept: list[int] = []
        for token in tokens:
            kept.append(token)
            self.prefix.extend((token,))
            self.finish_reason = self._ending(token)
            if self.finish_reason:
                break
        self.usage.committed += len(kept)
        return kept

    def _ending(self, token: int) -> str:
        if token in self._ends or self._shows_stop_string():
            return "stop"
        return "length" if self.room <= 0 else ""

    def _shows_stop_string(self) -> bool:
        if not self.sampling.stop or self._decode is None or self.num_generated <= self.sampling.min_tokens:
            return False
        start = max(self.prompt_length, len(self.prefix) - self._stop_window)
        text = self._decode(self.tokens[start:])
        # One that was complete when `min_tokens` were reached ended nothing and does not now; half a character at the end
        # of that text is not counted, as it has become another one since.
        before = self._decode(self.tokens[start : self.prompt_length + self.sampling.min_tokens]).rstrip("\ufffd")
        return any(text.find(stop, max(0, len(before) - len(stop) + 1)) >= 0 for stop in self.sampling.stop)
