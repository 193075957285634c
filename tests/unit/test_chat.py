"""The conversation of `dist-spec chat`: turns, commands, interrupts and errors, with an LLM that says what it is told to."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from dist_spec.commands.chat import HELP, Conversation, _converse, _terminal_lines
from dist_spec.errors import RequestError
from dist_spec.server.outputs import StreamOutput
from dist_spec.server.params import SamplingParams


@dataclass
class ScriptedLLM:
    """Answers with the parts in turn; an exception among them is raised there."""

    answers: list[list[Any]]
    asked: list[tuple[list[dict[str, str]], SamplingParams]] = field(default_factory=list)

    def stream(self, messages: list[dict[str, str]], params: SamplingParams) -> Iterator[StreamOutput]:
        self.asked.append(([dict(message) for message in messages], params))
        parts = self.answers.pop(0)
        for place, part in enumerate(parts):
            if isinstance(part, BaseException):
                raise part
            last = place == len(parts) - 1
            yield StreamOutput(
                request_id="r", prompt_index=0, index=0, text=part, token_ids=(1,), kinds=("accepted",),
                finish_reason="stop" if last else None,
            )  # fmt: skip

    def stats(self) -> dict[str, float]:
        return {"num_tokens": 12, "num_requests": 3, "tokens_per_s": 4.5, "acceptance_length": 1.5}


def conversation(*answers: list[Any], system: str | None = None) -> tuple[Conversation, ScriptedLLM, list[str]]:
    llm, said = ScriptedLLM(list(answers)), []
    one = Conversation(
        llm=llm,  # type: ignore[arg-type]
        params=SamplingParams(),
        say=said.append,
        write=lambda text: said.append("> " + text),
        system=system,
    )
    return one, llm, said


def talk(one: Conversation, text: str) -> None:
    _converse(one, read=io.StringIO(text).readline)


def test_turns_follow_each_other() -> None:
    one, llm, said = conversation(["He", "llo"], ["Bye"], system="be kind")
    talk(one, "hi\n\n  and?  \n")
    assert llm.asked[1][0] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "and?"},
    ]
    assert said == ["> He", "> llo", "> \n", "> Bye", "> \n"]


def test_an_interrupt_ends_the_answer_and_keeps_what_was_said() -> None:
    one, llm, said = conversation(["Once", KeyboardInterrupt()], [KeyboardInterrupt()], ["Ok"])
    talk(one, "tell\nmore\nstop\n")
    assert [message["content"] for message in llm.asked[2][0]] == ["tell", "Once", "stop"]
    assert said.count("\n(stopped)") == 2


def test_an_error_takes_the_turn_back() -> None:
    one, llm, said = conversation([RequestError("too long", fix="shorten it")], ["Ok"])
    talk(one, "x\ny\n")
    assert [message["content"] for message in llm.asked[1][0]] == ["y"]
    assert said[0] == "error: too long\n  fix: shorten it\n  /reset begins a new conversation"


def test_commands() -> None:
    one, llm, said = conversation(["A"], ["B"], ["C"])
    talk(one, "a\n/reset\nb\n/system be rude\nc\n/help\n/stats\n/nonsense\n/quit\nnot read\n")
    assert [len(messages) for messages, _ in llm.asked] == [1, 1, 2]
    assert llm.asked[2][0][0] == {"role": "system", "content": "be rude"}
    assert HELP in said
    assert "last answer: 1 tokens, 100% of them drafted and accepted" in said
    assert "so far: 12 tokens in 3 answers, 4.5 tokens/s, 1.50 tokens per verification" in said
    assert said[-1] == "unknown command /nonsense; /help lists them"


def test_parameters_change_for_the_next_answer() -> None:
    one, llm, said = conversation(["A"])
    talk(one, '/set temperature 0.25\n/set stop ["x", "y"]\n/set seed=7\n/set\na\n')
    params = llm.asked[0][1]
    assert (params.temperature, params.stops, params.seed) == (0.25, ("x", "y"), 7)
    assert any("temperature=0.25" in line and "top_p=1.0" in line for line in said)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("/set temprature 1", "did you mean 'temperature'"),
        ("/set temperature hot", "temperature must be of type float"),
        ("/set temperature", "temperature must be of type float"),
        ("/set top_p 3", "top_p must lie in"),
        ("/set best_of 3", "best_of is not supported"),
        ("/set stop [", "is no value"),
        ("/set stop 2024-13-45", "is no value"),
        ("/set n 2", "goes on with one answer"),
    ],
)
def test_wrong_parameters_are_told_and_change_nothing(line: str, named: str) -> None:
    one, _, said = conversation()
    before = one.params
    talk(one, line + "\n")
    assert named in said[0]
    assert one.params == before


def test_the_second_interrupt_in_a_row_at_the_prompt_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    events = iter([KeyboardInterrupt, "hi", KeyboardInterrupt, KeyboardInterrupt, "never", EOFError])

    def read(prompt: str) -> str:
        event = next(events)
        if isinstance(event, str):
            return event
        raise event

    monkeypatch.setattr("builtins.input", read)
    said: list[str] = []
    lines = _terminal_lines(said.append)
    assert [lines(), lines()] == ["hi\n", ""]
    assert said[0] == "\n(Ctrl-C again, Ctrl-D or /quit ends)"
    assert [lines(), lines()] == ["never\n", ""]
