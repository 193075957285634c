"""When a request ends: end tokens, stop strings, limits, also in the middle of an accepted block."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest

from dist_spec.core.sequence import Sequence
from dist_spec.core.types import Sampling
from dist_spec.errors import RequestError

EOS = 2


def make(
    *, prompt: Seq[int] = (10, 11, 12), generated: Seq[int] = (), max_model_len: int = 100, offset: int = 0, **sampling
) -> Sequence:
    return Sequence(
        "r",
        0,
        prompt=prompt,
        generated=generated,
        generated_offset=offset,
        sampling=Sampling(**{"max_tokens": 20, **sampling}),
        max_model_len=max_model_len,
        eos_ids=(EOS,),
        decode=lambda tokens: "".join(chr(token) for token in tokens),
    )


def test_a_plain_block_is_committed_whole() -> None:
    sequence = make()
    assert sequence.accept([20, 21, 22]) == [20, 21, 22]
    assert sequence.tokens == [10, 11, 12, 20, 21, 22]
    assert (sequence.finish_reason, sequence.num_generated, sequence.room) == ("", 3, 17)
    assert sequence.usage.committed == 3


def test_eos_inside_a_block_ends_the_text_there() -> None:
    sequence = make()
    assert sequence.accept([20, EOS, 22, 23]) == [20, EOS]
    assert sequence.finish_reason == "stop"
    assert sequence.tokens[-1] == EOS


def test_eos_is_a_token_like_others_when_asked_to_ignore_it() -> None:
    sequence = make(ignore_eos=True, stop_token_ids=(30,))
    assert sequence.accept([20, EOS, 30, 23]) == [20, EOS, 30]
    assert sequence.finish_reason == "stop"


def test_max_tokens_inside_a_block() -> None:
    sequence = make(max_tokens=2)
    assert sequence.accept([20, 21, 22]) == [20, 21]
    assert sequence.finish_reason == "length"
    assert sequence.room == 0


def test_the_end_of_the_context_inside_a_block() -> None:
    sequence = make(max_model_len=5)
    assert sequence.room == 2
    assert sequence.accept([20, 21, 22]) == [20, 21]
    assert sequence.finish_reason == "length"


def test_eos_as_the_last_allowed_token_is_a_stop() -> None:
    sequence = make(max_tokens=1)
    assert sequence.accept([EOS]) == [EOS]
    assert sequence.finish_reason == "stop"


@pytest.mark.parametrize("blocks", [["abENDcd"], ["abE", "N", "Dcd"], ["a", "bEND", "cd"]])
def test_a_stop_string_is_found_however_the_blocks_fall(blocks: list[str]) -> None:
    sequence = make(stop=("nowhere", "END"))
    for block in blocks:
        if not sequence.finish_reason:
            sequence.accept([ord(letter) for letter in block])
    assert sequence.finish_reason == "stop"
    assert "".join(map(chr, sequence.tokens[3:])) == "abEND"


def test_a_stop_string_is_not_found_in_the_prompt() -> None:
    sequence = make(prompt=[ord(letter) for letter in "END EN"], stop=("END",))
    sequence.accept([ord("D"), ord("x")])
    assert sequence.finish_reason == ""


def test_a_stop_string_far_back_is_not_found_again() -> None:
    """Only what is new can complete one: a resumed text that holds it goes on."""
    sequence = make(generated=[ord(letter) for letter in "END" + "." * 12], stop=("END",))
    sequence.accept([ord("x")])
    assert sequence.finish_reason == ""


@pytest.mark.parametrize("stop", ["END", "é"])
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("xEND.......END..", "xEND.......END"),  # the first one came too early
        ("xEND.END..", "xEND.END"),  # both within the text that is looked at
        ("x...END..", "x...END"),  # `min_tokens` lies in the middle of it
        ("xEND......", "xEND......"),  # none later
    ],
)
@pytest.mark.parametrize("size", [1, 3, 20])
def test_a_stop_string_counts_once_enough_was_generated(stop: str, text: str, shown: str, size: int) -> None:
    """As end tokens do: `min_tokens` may fall in front of it, behind it and in the middle of a character of it."""
    data, shown = text.replace("END", stop).encode(), shown.replace("END", stop)
    first = 5
    sequence = Sequence(
        "r",
        0,
        prompt=list(stop.encode()),
        sampling=Sampling(max_tokens=40, min_tokens=first, stop=(stop,)),
        max_model_len=100,
        decode=lambda tokens: bytes(tokens).decode(errors="replace"),
    )
    for at in range(0, len(data), size):
        if not sequence.finish_reason:
            sequence.accept(data[at : at + size])
    assert bytes(sequence.tokens[sequence.prompt_length :]).decode() == shown
    assert sequence.finish_reason == ("stop" if shown.endswith(stop) and len(shown.encode()) > first else "")


def test_resume_counts_what_was_generated_before() -> None:
    sequence = make(generated=(20, 21), max_tokens=4)
    assert (sequence.num_generated, sequence.room, sequence.noise_index) == (2, 2, 2)
    assert sequence.accept([22, 23, 24]) == [22, 23]
    assert sequence.finish_reason == "length"
    assert sequence.usage.committed == 2


def test_the_noise_index_goes_on_from_an_offset() -> None:
    sequence = make(generated=(20,), offset=7)
    assert sequence.noise_index == 8
    sequence.accept([21, 22])
    assert sequence.noise_index == 10


def test_a_committed_text_only_grows() -> None:
    """Law 1 at its root: nothing but `accept` touches the text, and it appends."""
    sequence = make()
    seen = list(sequence.tokens)
    for block in ([20], [21, 22], [23]):
        sequence.accept(block)
        assert sequence.tokens[: len(seen)] == seen
        seen = list(sequence.tokens)


@pytest.mark.parametrize(
    "bad",
    [{"temperature": -1.0}, {"max_tokens": 0}, {"seed": 2**64}, {"sample_index": -1}, {"stop": ("",)}],
)
def test_bad_sampling_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        Sampling(**bad)  # type: ignore[arg-type]
