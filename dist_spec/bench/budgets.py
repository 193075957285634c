"""The controller (`budget: auto`) against fixed budgets, on the built-in domains and with a random drafter:
`python -m dist_spec.bench.budgets --config configs/laptop.yaml`.

Every budget is a deployment of its own, kept alive; they take turns prompt by prompt. The exit code is 1 when a criterion
fails.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from dist_spec.bench.arguments import at_least_1, check_output, numbers
from dist_spec.bench.budget_table import AUTO, PLAIN, BudgetTable, lines_of
from dist_spec.bench.compare import variant_config
from dist_spec.bench.deployment import Deployment
from dist_spec.bench.generate import encode_prompt, sampling_of
from dist_spec.bench.prompts import Prompt, builtin_prompts
from dist_spec.bench.rounds import Group, timed_run
from dist_spec.bench.run import Job
from dist_spec.bench.show import table_of
from dist_spec.config import Config, load_config, parse_config
from dist_spec.errors import ConfigError
from dist_spec.exits import run
from dist_spec.models.tokenizer import Tokenizer, load_tokenizer

FIXED = (0, 2, 4, 8, 16)


def budget_config(config: Config, budget: str) -> Config:
    """The configuration with this budget; "0" has no drafters at all (plain decoding)."""
    if budget == PLAIN:
        plain = variant_config(config, "plain")
        assert plain is not None  # it always exists
        return plain
    data = config.model_dump(mode="json")
    data["speculation"]["budget"] = AUTO if budget == AUTO else int(budget)
    data["telemetry"] |= {"record": None, "trace": None, "decisions": None}
    data["transport"]["bind"] = f"{config.transport.bind.rpartition(':')[0]}:0"
    return parse_config(data)


def order_of(budgets: Sequence[str], *, turn: int, number: int) -> list[str]:
    """Who runs when: each prompt begins with another budget, and every second round goes the other way round, so that
    neither a drift of the machine nor a neighbour favours anyone."""
    shift = number % len(budgets)
    order = [*budgets[shift:], *budgets[:shift]]
    return order if turn % 2 == 0 else order[::-1]


def measure(
    config: Config,
    groups: Sequence[Group],
    *,
    budgets: Sequence[str],
    rounds: int,
    table: BudgetTable,
    console: Console,
    label: str,
) -> None:
    """Every prompt with every budget in turns, round after round, into `table`.

    Before it counts, every budget decodes the first prompt of each group once: calibration of scores and costs goes on
    from run to run, and a deployment that has served for a minute is what is compared.
    """
    with ExitStack() as stack:
        deployments: dict[str, Deployment] = {}
        with console.status(f"{label}: starting {len(budgets)} deployments ..."):
            for budget in budgets:
                # One after the other: each measures what its verifications cost, on a core that all of them share.
                deployment = stack.enter_context(Deployment(f"budget-{budget}", budget_config(config, budget)))
                deployment.wait_ready()
                deployments[budget] = deployment
        for budget, deployment in deployments.items():
            with console.status(f"{label}: warming up budget {budget} ..."):
                firsts = [group.jobs[0] for group in groups]
                timed_run(deployment, firsts, concurrency=1, name="warm")
        jobs = [(group.domain, number, job) for group in groups for number, job in enumerate(group.jobs)]
        lengths: dict[int, int] = {}
        for turn in range(rounds):
            for place, (case, number, job) in enumerate(jobs):
                for budget in order_of(budgets, turn=turn, number=place):
                    result = timed_run(deployments[budget], [job], concurrency=1, name=f"r{turn}-{place}")
                    # All give the same text, unless a forward is not bit-equal; then it is a matter of seconds per token.
                    length = lengths.setdefault(place, result.num_tokens)
                    table.add(case, number, budget, result.wall_s * length / result.num_tokens)
            console.print(f"[dim]{label}: round {turn + 1} of {rounds} done[/dim]")


def groups_of(config: Config, tokenizer: Tokenizer, prompts: Sequence[Prompt], *, one_case: str = "") -> list[Group]:
    """Jobs by domain, or all as one case."""
    sampling = sampling_of(config, temperature=config.sampling.temperature, tokenizer=tokenizer)
    groups: dict[str, list[Job]] = {}
    for prompt in prompts:
        ids = tuple(encode_prompt(tokenizer, prompt.text, chat=True))
        case = one_case or prompt.domain
        groups.setdefault(case, []).append(Job(prompt=ids, sampling=sampling, domain=prompt.domain))
    return [Group(domain=domain, jobs=jobs) for domain, jobs in groups.items()]


def show(console: Console, table: BudgetTable) -> None:
    """Ratios, and whether the criteria hold."""
    names = ("case", AUTO, *table.fixed, "best fixed", "auto / best")
    shown = table_of("speed over plain decoding (budget 0), prompts paired, ± standard error over rounds", *names)
    for row in lines_of(table):
        shown.add_row(*row)
    console.print(shown)
    for one in table.criteria():
        verdict = "[green]pass[/green]" if one.passed else "[red]FAIL[/red]"
        doubt = "" if one.clear else ", within twice the error"
        console.print(f"{verdict} {one.name}: {one.found} against {one.wanted:.3f} ({one.where}){doubt}")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when all criteria hold."""
    options = _parser().parse_args(arguments)
    overrides: list[tuple[str, Any]] = [("sampling.max_tokens", options.max_tokens)]
    if options.temperature is not None:
        overrides.append(("sampling.temperature", options.temperature))
    config = load_config(options.config, sets=options.set, overrides=overrides)
    check_output(options.json)
    if not config.drafters:
        raise ConfigError(
            f"{options.config}: drafters: there are none, so every budget is plain decoding",
            fix="name at least one drafter",
        )
    budgets = [AUTO, *map(str, sorted({0, *options.budgets}))]
    for budget in budgets:
        budget_config(config, budget)  # refused before anything starts
    console = Console(stderr=True)
    tokenizer = load_tokenizer(config.target.model)
    table = BudgetTable()
    domains = groups_of(config, tokenizer, builtin_prompts(options.prompts_per_domain))
    common = {"budgets": budgets, "rounds": options.rounds, "table": table, "console": console}
    measure(config, domains, label="domains", **common)
    if not options.no_random:
        random = variant_config(config, "random_drafter", vocab_size=tokenizer.size)
        assert random is not None  # there are drafters
        one_each = groups_of(config, tokenizer, builtin_prompts(1), one_case=table.control)
        measure(random, one_each, label=table.control, **common)
    show(console, table)
    if options.json is not None:
        options.json.write_text(json.dumps(table.report(), indent=2) + "\n")
    return 0 if all(one.passed for one in table.criteria()) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="PLACE=VALUE")
    parser.add_argument("--prompts-per-domain", type=at_least_1, default=2)
    parser.add_argument("--max-tokens", type=at_least_1, default=128)
    parser.add_argument("--rounds", type=at_least_1, default=4)
    parser.add_argument("--temperature", type=float, default=None)
    parser.add_argument("--budgets", type=numbers, default=list(FIXED))
    parser.add_argument("--no-random", action="store_true", help="leave the random drafter out")
    parser.add_argument("--json", type=Path, default=None)
    return parser


if __name__ == "__main__":
    sys.exit(run(main))
