"""The command line. Declares commands and turns errors into messages and exit codes; imports nothing heavy before a
command runs, and knows nothing of how one is carried out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from dist_spec import __version__
from dist_spec.commands import generate_options as asked
from dist_spec.commands.chat_command import chat
from dist_spec.commands.distill import distill
from dist_spec.commands.launch import launch
from dist_spec.commands.options import (
    BindOption,
    ConfigArgument,
    ConfigOption,
    DepthOption,
    DeviceOption,
    DrafterDeviceOption,
    DrafterOption,
    NumSpeculativeOption,
    SetOption,
    SpeculativeConfigOption,
    TargetOption,
    option_overrides,
    read_config,
)
from dist_spec.commands.sampling_options import (
    BadWordOption,
    FrequencyOption,
    LogitBiasOption,
    LogprobsOption,
    MinPOption,
    MinTokensOption,
    PresenceOption,
    RepetitionOption,
    TopKOption,
    TopPOption,
    sampling_overrides,
)
from dist_spec.commands.score import ScoreCommand, score
from dist_spec.exits import quiet_torch, run

__all__ = ["app", "main"]

app = typer.Typer(
    name="dist-spec",
    help="Disaggregated speculative decoding: drafters stream a tree of guesses ahead, the target prunes it with truth.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command(cls=asked.GenerateCommand)
def generate(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROMPT]...", help="Prompts, run together; - reads one from standard input."),
    ] = None,
    prompt_file: Annotated[
        list[Path] | None,
        typer.Option("--prompt-file", metavar="FILE", help="A file that holds one prompt; repeatable."),
    ] = None,
    config: ConfigOption = None,
    sets: SetOption = None,
    target: TargetOption = None,
    drafter: DrafterOption = None,
    num_draft_tokens: DepthOption = None,
    num_speculative_tokens: NumSpeculativeOption = None,
    speculative_config: SpeculativeConfigOption = None,
    device: DeviceOption = None,
    drafter_device: DrafterDeviceOption = None,
    temperature: Annotated[float | None, typer.Option(help="0 decodes greedily.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same text, with or without drafting.")] = None,
    max_tokens: Annotated[int | None, typer.Option(metavar="N", help="Tokens to generate at most, per prompt.")] = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    min_p: MinPOption = None,
    repetition_penalty: RepetitionOption = None,
    presence_penalty: PresenceOption = None,
    frequency_penalty: FrequencyOption = None,
    min_tokens: MinTokensOption = None,
    logit_bias: LogitBiasOption = None,
    bad_word: BadWordOption = None,
    logprobs: LogprobsOption = None,
    chat: Annotated[bool, typer.Option(help="Put prompts into the model's chat template.")] = True,
    builtin_prompts: asked.BuiltinOption = None,
    domain: asked.DomainOption = "",
    stats: asked.StatsOption = False,
    compare_plain: asked.ComparePlainOption = False,
    controls: asked.ControlsOption = False,
    compare_hf: asked.CompareHfOption = False,
    rounds: asked.RoundsOption = None,
    concurrency: asked.ConcurrencyOption = None,
    color: asked.ColorOption = False,
    trace: asked.TraceOption = None,
    decisions: asked.DecisionsOption = None,
    json_file: asked.JsonOption = None,
    quiet: asked.QuietOption = False,
    connect: asked.ConnectOption = None,
    wait_s: asked.WaitOption = 60.0,
    await_drafters: asked.AwaitOption = 0,
) -> None:
    """Generate text, streamed as it is committed."""
    from dist_spec.commands.prompts import read_prompts
    from dist_spec.config import load_config

    asked.check_connect(
        connect,
        {
            "--drafter": drafter,
            "--num-draft-tokens": num_draft_tokens,
            "--num-speculative-tokens": num_speculative_tokens,
            "--speculative-config": speculative_config,
            "--device": device,
            "--drafter-device": drafter_device,
            "--compare-plain": compare_plain,
            "--controls": controls,
            "--compare-hf": compare_hf,
            "--trace": trace,
            "--decisions": decisions,
        },
    )
    overrides = option_overrides(
        target=target,
        drafters=drafter,
        num_draft_tokens=num_draft_tokens,
        device=device,
        drafter_device=drafter_device,
        temperature=temperature,
        seed=seed,
        max_tokens=max_tokens,
        speculative_config=speculative_config,
        num_speculative_tokens=num_speculative_tokens,
    )
    overrides += sampling_overrides(
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        min_tokens=min_tokens,
        logit_bias=logit_bias,
        bad_words=bad_word,
        logprobs=logprobs,
    )
    overrides += asked.file_overrides(trace=trace, decisions=decisions)
    settings = load_config(config, sets=sets or (), overrides=overrides)
    texts = read_prompts(prompts or (), files=prompt_file or (), stdin=sys.stdin)
    from dist_spec.bench.generate import Options
    from dist_spec.bench.generate import generate as run_generate

    options = Options(
        chat=chat,
        builtin=builtin_prompts,
        domain=domain,
        stats=stats,
        compare_plain=compare_plain,
        controls=controls,
        compare_hf=compare_hf,
        colour=color,
        rounds=rounds,
        concurrency=concurrency,
        json_file=json_file,
        quiet=quiet,
        connect=connect,
        wait_s=wait_s,
        await_drafters=await_drafters,
    )
    run_generate(settings, prompts=texts, options=options)


@app.command()
def target(
    config: ConfigArgument,
    bind: BindOption = None,
    sets: SetOption = None,
    speculative_config: SpeculativeConfigOption = None,
    rank: Annotated[int, typer.Option("--rank", min=0, help="Which process of a target of several (tp_size).")] = 0,
    store: Annotated[
        str | None, typer.Option("--store", metavar="tcp://HOST:PORT", help="Where these meet; rank 0 hosts it.")
    ] = None,
    store_fd: Annotated[
        int | None, typer.Option("--store-fd", min=0, metavar="N", help="A socket that listens there.", hidden=True)
    ] = None,
) -> None:
    """Run the target alone; drafters connect to it from anywhere."""
    quiet_torch()
    settings = read_config(config, sets, speculative_config=speculative_config)
    from dist_spec.workers.target_rank import run_rank

    raise typer.Exit(
        run_rank(settings, bind=bind or settings.transport.bind, rank=rank, store=store, store_fd=store_fd)
    )


@app.command()
def draft(
    config: ConfigArgument,
    connect: Annotated[
        list[str],
        typer.Option(
            "--connect", metavar="tcp://HOST:PORT", help="Where the target listens; repeatable: serve them all."
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="Which drafter of the file (needed when there are several).")
    ] = None,
    sets: SetOption = None,
) -> None:
    """Run one drafter; it attaches to a running target."""
    from dist_spec.errors import ConfigError
    from dist_spec.topology import split_address

    settings = read_config(config, sets)
    for address in connect:
        split_address(address)
    names = [drafter.name for drafter in settings.process_drafters]
    if not names:
        raise ConfigError(f"{config}: no drafter there has a process of its own", fix="add one (placement: process)")
    if name is None and len(names) != 1:
        raise ConfigError(
            f"{config}: which of {len(names)} drafters?", fix=f"give --name with one of: {', '.join(names)}"
        )
    chosen = settings.drafter(name or names[0])
    if chosen.placement != "process":
        raise ConfigError(
            f"{config}: drafter {chosen.name} runs inside the target",
            fix=f"give --name with one of: {', '.join(names)}",
        )
    from dist_spec.workers.draft_app import run_draft

    run_draft(settings, name=chosen.name, connect=connect)


@app.command()
def up(
    config: ConfigArgument,
    bind: BindOption = None,
    sets: SetOption = None,
    speculative_config: SpeculativeConfigOption = None,
) -> None:
    """Run target and drafters on this machine until Ctrl-C; a drafter that dies is started again."""
    settings = read_config(config, sets, speculative_config=speculative_config)
    from dist_spec.workers.up_app import run_up

    run_up(settings, bind=bind or settings.transport.bind)


@app.command()
def plan(
    config: ConfigArgument,
    bind: BindOption = None,
    sets: SetOption = None,
    output: Annotated[Literal["table", "shell", "json"], typer.Option("--output", help="How to print it.")] = "table",
) -> None:
    """Show the processes that a configuration means; start nothing."""
    settings = read_config(config, sets)
    from dist_spec.commands.plan import run_plan

    run_plan(settings, config_path=str(config), address=bind, output=output, sets=sets or ())


@app.command()
def check(config: ConfigArgument, sets: SetOption = None) -> None:
    """Check configuration, models, tokenizers, devices, ports and memory; start nothing."""
    settings = read_config(config, sets)
    from dist_spec.commands.check import run_check

    run_check(settings, source=str(config))


app.command()(chat)
app.command(cls=ScoreCommand)(score)
app.command()(distill)
app.command()(launch)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"dist-spec {__version__}")


def main() -> NoReturn:
    """Entry point of the console script: an error becomes a message and an exit code, never a traceback."""
    sys.exit(run(app))


if __name__ == "__main__":
    main()
