"""`dist-spec chat`: a conversation with the target on a terminal or a pipe. It reads lines and shows answers; how they are
made is the LLM's business."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, TextIO

import yaml
from rich.console import Console

from dist_spec.config import Config
from dist_spec.errors import DistSpecError, ModelError, RequestError
from dist_spec.llm import LLM
from dist_spec.server.outputs import StreamOutput
from dist_spec.server.params import SamplingParams

HELP = """\
/help                     this text
/reset                    forget the conversation
/stats                    figures of the last answer, and of all so far
/set NAME VALUE           change a sampling parameter, e.g. /set temperature 0.8 (/set alone shows them)
/system TEXT              begin anew with this system message
/quit                     end (Ctrl-D, too)
Ctrl-C stops an answer; at the prompt, twice, it ends the program."""

PROMPT = "> "


@dataclass(kw_only=True)
class Answer:
    """What came of one turn: its text, and counts of its tokens by kind."""

    text: str = ""
    num_tokens: int = 0
    num_accepted: int = 0
    finish_reason: str | None = None
    error: str | None = None

    def add(self, news: StreamOutput) -> None:
        self.text += news.text
        self.num_tokens += len(news.token_ids)
        self.num_accepted += news.kinds.count("accepted")
        self.finish_reason, self.error = news.finish_reason, news.error


@dataclass(kw_only=True)
class Conversation:
    """One conversation and the parameters of the next answer.

    Attributes:
        say: shows a line that is no answer.
        write: shows a piece of an answer.
    """

    llm: LLM
    params: SamplingParams
    say: Callable[[str], None]
    write: Callable[[str], None]
    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)
    last: Answer | None = None

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def ask(self, text: str) -> None:
        """Show the answer as it comes; what an interrupt leaves of it stays part of the conversation.

        Raises:
            WorkerError, TransportError: the target is gone.
        """
        self.messages.append({"role": "user", "content": text})
        answer = Answer()
        try:
            with closing(self.llm.stream(self.messages, self.params)) as news:
                for one in news:
                    answer.add(one)
                    self.write(one.text)
        except KeyboardInterrupt:
            answer.finish_reason = "abort"
            self.say("\n(stopped)")
        except (RequestError, ModelError) as error:  # ModelError: the chat template does not like the conversation
            answer.error = str(error)
        else:
            self.write("\n")
        self._conclude(answer)

    def _conclude(self, answer: Answer) -> None:
        self.last = answer
        if answer.text:
            self.messages.append({"role": "assistant", "content": answer.text})
        else:
            self.messages.pop()  # turns alternate: a question without an answer was not asked
        if answer.error is not None:
            self.say(f"error: {answer.error}\n  /reset begins a new conversation")
        elif answer.finish_reason == "length":
            self.say(f"(cut after {answer.num_tokens} tokens; /set max_tokens N allows more)")

    def command(self, line: str) -> bool:
        """Carry out one line that begins with a slash; False when it ends the program."""
        name, _, rest = line[1:].strip().partition(" ")
        match name:
            case "quit" | "exit" | "q":
                return False
            case "help" | "h" | "?":
                self.say(HELP)
            case "reset" | "clear":
                self.reset()
                self.say("(a new conversation)")
            case "system":
                self.system = rest.strip() or None
                self.reset()
                self.say("(a new conversation)")
            case "stats":
                self._show_stats()
            case "set":
                self._set(rest.strip())
            case _:
                self.say(f"unknown command /{name}; /help lists them")
        return True

    def _set(self, text: str) -> None:
        shown = {name: value for name, value in vars(self.params).items() if name != "stops"}
        name, _, value = text.replace("=", " ", 1).partition(" ")
        if not name:
            self.say(", ".join(f"{key}={one!r}" for key, one in shown.items()))
            return
        try:
            given: Any = yaml.safe_load(value)
            changed = SamplingParams(**{**shown, name: given})
            if changed.n != 1:
                raise RequestError(f"n = {changed.n}: a conversation goes on with one answer", fix="leave n at 1")
            self.params = changed
            self.say(f"({name} = {getattr(self.params, name)!r})")
        except DistSpecError as error:
            self.say(f"error: {error}")
        except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: a date that is none
            self.say(f"error: {value!r} is no value\n  fix: for instance /set temperature 0.8")

    def _show_stats(self) -> None:
        figures = self.llm.stats()
        if self.last is not None and self.last.num_tokens:
            share = self.last.num_accepted / self.last.num_tokens
            self.say(f"last answer: {self.last.num_tokens} tokens, {share:.0%} of them drafted and accepted")
        self.say(
            f"so far: {figures['num_tokens']:.0f} tokens in {figures['num_requests']:.0f} answers, "
            f"{figures['tokens_per_s']:.1f} tokens/s, {figures['acceptance_length']:.2f} tokens per verification"
        )


def run_chat(
    config: Config,
    *,
    system: str | None = None,
    stdin: TextIO | None = None,
    connect: str | None = None,
    wait_s: float = 60.0,
) -> None:
    """Talk until /quit, the end of the input, or Ctrl-C twice at the prompt.

    Args:
        connect: address of a running target, to be asked instead of one of our own.
        wait_s: how long to wait for that one, at the start and whenever it goes away.

    Raises:
        RequestError: the model has no chat template.
        ModelError, WorkerError, TransportError: see their texts.
    """
    stdin = stdin or sys.stdin
    console = Console(stderr=True, highlight=False)
    with _started(config, console, connect=connect, wait_s=wait_s) as llm:
        if llm.tokenizer.chat_template is None:
            raise RequestError(
                f"{config.target.model} has no chat template",
                fix="take an instruction-tuned model, or `dist-spec generate`",
            )
        conversation = Conversation(
            llm=llm,
            params=_params(config),
            say=lambda text: console.print(text, style="dim", markup=False, soft_wrap=True),
            write=_write,
            system=system,
        )
        terminal = stdin.isatty()
        if terminal:
            with suppress(ImportError):
                import readline  # noqa: F401  (gives `input` its history and editing)
            conversation.say("/help lists the commands")
        _converse(conversation, read=_terminal_lines(conversation.say) if terminal else stdin.readline)


def _params(config: Config) -> SamplingParams:
    """The section `sampling`; without a seed in it, every answer has one of its own."""
    seeded = "seed" in config.sampling.model_fields_set
    return SamplingParams.from_config(config.sampling, **({} if seeded else {"seed": None}))


def _started(config: Config, console: Console, *, connect: str | None, wait_s: float) -> LLM:
    with console.status("starting target and drafters ..." if connect is None else f"waiting for {connect} ..."):
        return LLM(
            config=config,
            connect=connect,
            wait_s=wait_s,
            progress=lambda line: console.print(f"[dim]{line}[/dim]"),
        )


def _converse(conversation: Conversation, *, read: Callable[[], str]) -> None:
    """Lines in, answers out, until `read` gives "" (the end)."""
    while line := read():
        text = line.strip()
        if text.startswith("/"):
            if not conversation.command(text):
                return
        elif text:
            conversation.ask(text)


def _terminal_lines(say: Callable[[str], None]) -> Callable[[], str]:
    """Reads a line with a prompt; "" at Ctrl-D, or at the second Ctrl-C in a row."""

    def read() -> str:
        interrupted = False
        while True:
            try:
                return input(PROMPT) + "\n"
            except EOFError:
                say("")
                return ""
            except KeyboardInterrupt:
                if interrupted:
                    say("")
                    return ""
                interrupted = True
                say("\n(Ctrl-C again, Ctrl-D or /quit ends)")

    return read


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
