"""`dist-spec chat` on the command line: declares its options. What a conversation is, `chat.py` knows."""

from __future__ import annotations

from typing import Annotated

import typer

from dist_spec.commands.generate_options import ConnectOption, WaitOption, check_connect
from dist_spec.commands.options import (
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
)


def chat(
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
    seed: Annotated[int | None, typer.Option(help="Same seed and same turns, same answers.")] = None,
    max_tokens: Annotated[int | None, typer.Option(metavar="N", help="Tokens at most, per answer.")] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The conversation's system message.")] = None,
    connect: ConnectOption = None,
    wait_s: WaitOption = 60.0,
) -> None:
    """Talk with the target; /help lists what can be done in between. Ctrl-C stops an answer."""
    from dist_spec.config import load_config

    check_connect(
        connect,
        {
            "--drafter": drafter,
            "--num-draft-tokens": num_draft_tokens,
            "--num-speculative-tokens": num_speculative_tokens,
            "--speculative-config": speculative_config,
            "--device": device,
            "--drafter-device": drafter_device,
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
    settings = load_config(config, sets=sets or (), overrides=overrides)
    from dist_spec.commands.chat import run_chat

    run_chat(settings, system=system, connect=connect, wait_s=wait_s)
