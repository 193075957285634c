"""`dist-spec plan`: the processes that a configuration means, to look at or to hand to a launcher. Starts nothing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from dist_spec.config import Config
from dist_spec.topology import ProcessSpec, kept_alive, listen_address, plan_processes, split_address


def run_plan(config: Config, *, config_path: str, address: str | None, output: str, sets: Sequence[str] = ()) -> None:
    """Prints the plan as a "table", as "shell" lines or as "json".

    Args:
        config: the settings.
        config_path: the file they came from (goes into the commands).
        address: where the target will listen (default: `transport.bind`); a port 0 becomes a free one.
        output: "table", "shell" or "json".
        sets: overrides that `config` was read with (they go into the commands too).

    Raises:
        ConfigError: the address is malformed, or a core is named that this machine does not have.
    """
    where = address or config.transport.bind
    if split_address(where)[1] == 0:
        where = listen_address(where)
    specs = kept_alive(plan_processes(config, config_path=config_path, address=where, sets=sets))
    match output:
        case "shell":
            print("\n".join(shell_line(spec) for spec in specs))
        case "json":
            print(json.dumps([as_json(spec) for spec in specs], indent=2))
        case _:
            _print_table(specs, Console())


def shell_line(spec: ProcessSpec) -> str:
    """One line for a shell: variables, pinning (taskset, Linux), command."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in spec.env.items()]
    pinning = ["taskset", "-c", ",".join(map(str, spec.cores))] if spec.cores else []
    return " ".join([*variables, *pinning, shlex.join(spec.argv)])


def as_json(spec: ProcessSpec) -> dict[str, object]:
    """Plain data with the attributes of the spec."""
    return {
        "name": spec.name,
        "argv": list(spec.argv),
        "env": dict(spec.env),
        "cores": list(spec.cores),
        "restart": spec.restart,
        "group": spec.group,
    }


def _print_table(specs: Sequence[ProcessSpec], console: Console) -> None:
    caption = "under `dist-spec up`; a run that starts its own processes (generate, chat) ends with its target"
    table = Table(title="processes", title_justify="left", show_lines=True, caption=caption, caption_justify="left")
    for heading in ("name", "cores", "threads", "when it ends"):
        table.add_column(heading, no_wrap=True)
    table.add_column("command", overflow="fold")
    for spec in specs:
        cores = ",".join(map(str, spec.cores)) or "any"
        ending = "end all" if not spec.restart else "restart" if spec.group is None else f"restart {spec.group} ranks"
        table.add_row(spec.name, cores, spec.env["OMP_NUM_THREADS"], ending, shlex.join(spec.argv))
    console.print(table)
