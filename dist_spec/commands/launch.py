"""`dist-spec launch`: the one program that every launcher starts on every rank. Declares options; how a process finds its
role and the others is not known here."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from dist_spec.commands.options import BindOption, ConfigArgument, SetOption, read_config
from dist_spec.errors import BadInputError
from dist_spec.exits import quiet_torch


def launch(
    config: ConfigArgument,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROMPT]... [-- OPTION...]",
            help="Prompts to answer, then all ends; what follows -- goes to `dist-spec generate` (prompts and options). "
            "None: serve until SIGTERM.",
        ),
    ] = None,
    role: Annotated[
        Literal["target", "drafter"] | None,
        typer.Option(
            "--role",
            help="What all processes of this start are, where the other role is started by itself (torchrun's own --role "
            "needs no repetition here).",
        ),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            "--layout",
            metavar="ROLE:N,ROLE:N",
            help="Which ranks do what, in order; * is all that is left. Default: target:TP_SIZE,drafter:*.",
            show_default=False,
        ),
    ] = None,
    connect: Annotated[
        list[str] | None,
        typer.Option(
            "--connect",
            metavar="tcp://HOST:PORT",
            help="Where the target listens, for drafters started by themselves; repeatable: serve them all.",
            show_default=False,
        ),
    ] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            metavar="NAME",
            help="A drafter of the file that this start runs; repeatable (default: all with a process of their own).",
            show_default=False,
        ),
    ] = None,
    bind: BindOption = None,
    sets: SetOption = None,
    meet_timeout_s: Annotated[
        float, typer.Option("--meet-timeout-s", min=1, help="How long processes of one start wait for each other.")
    ] = 600.0,
) -> None:
    """Run one process of a start by torchrun, accelerate, deepspeed, srun or mpirun, as target or drafter."""
    quiet_torch()
    from dist_spec.workers.elastic import give_up, not_again

    with not_again():
        settings = read_config(config, sets)
        from dist_spec.workers.launch_app import Launch, run_launch

        asked: list[str] = []
        if prompts:
            overrides = [part for text in sets or () for part in ("--set", text)]
            asked = ["--config", str(config), *overrides, *prompts]
        code = run_launch(
            settings,
            Launch(
                role=role,
                layout=layout,
                bind=bind,
                connect=connect or (),
                drafters=drafter or (),
                prompts=asked,
                meet_timeout_s=meet_timeout_s,
            ),
        )
    if code == BadInputError.exit_code:  # of the prompts' own process, which has said why
        give_up()
    raise typer.Exit(code)
