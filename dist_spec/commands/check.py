"""`dist-spec check`: all that can be wrong with a configuration on this machine, found before anything starts. Starts
nothing and changes nothing (but the cache of converted models)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from dist_spec.commands.footprint import Footprint, head_footprint, model_footprint
from dist_spec.commands.spread import DISK, spread_footprint
from dist_spec.config import (
    Config,
    HeadDrafterConfig,
    ModelDrafterConfig,
    NgramDrafterConfig,
    PluginDrafterConfig,
    ScriptedDrafterConfig,
    SuffixDrafterConfig,
    TargetConfig,
)
from dist_spec.drafters.build import read_texts
from dist_spec.drafters.draft_cache import TREE_SLOTS
from dist_spec.errors import ConfigError, DistSpecError, ModelError
from dist_spec.topology import TARGET, assign_cores, available_cores, listen_address, target_names
from dist_spec.workers.settings import speculation_of

SMALL_PROCESS_BYTES = 100 << 20
"""A drafter's process without a model."""


@dataclass(slots=True)
class Report:
    """What was found: one line per check, the errors among them, and memory by process."""

    lines: list[tuple[str, str, str]] = field(default_factory=list)
    problems: list[DistSpecError] = field(default_factory=list)
    needs: list[tuple[str, str, Footprint | None]] = field(default_factory=list)

    @contextmanager
    def checking(self, what: str, *, found: Callable[[], str]) -> Iterator[None]:
        """Notes what the body raises; `found` says what is good when it raises nothing."""
        try:
            yield
        except DistSpecError as error:
            self.problems.append(error)
            self.lines.append((what, "error", error.message))
        else:
            self.lines.append((what, "ok", found()))


def run_check(config: Config, *, source: str, console: Console | None = None) -> None:
    """Prints all findings, then raises if there was an error.

    Raises:
        DistSpecError: the one error found, or a ConfigError that names all.
    """
    console = console or Console()
    report = check_all(config, source=source, progress=lambda line: console.print(line, style="dim", markup=False))
    _print(report, console)
    if len(report.problems) == 1:
        raise report.problems[0]
    if report.problems:
        lines = "".join(f"\n  {error.message} ({error.fix})" for error in report.problems)
        raise ConfigError(f"{source}: {len(report.problems)} checks failed:{lines}", fix="mend these and check again")


def check_all(config: Config, *, source: str, progress: Callable[[str], None] | None = None) -> Report:
    """Everything, cheapest first; one failed check does not keep the others from being made."""
    report = Report()
    report.lines.append(("configuration", "ok", source))
    with report.checking("cores", found=lambda: _cores_text(config)):
        assign_cores(config, available=available_cores())
    with report.checking("port", found=lambda: config.transport.bind):
        listen_address(config.transport.bind)
    target_is_fine = _check_model(report, TARGET, config.target, config, progress)
    for drafter in config.drafters:
        if isinstance(drafter, ModelDrafterConfig):
            if _check_model(report, drafter.name, drafter, config, progress) and target_is_fine:
                found: list[str] = []
                with report.checking(f"{drafter.name}: tokenizer", found=lambda found=found: found[0]):  # type: ignore[misc]
                    found.append(check_tokenizers(config.target.model, drafter))
        elif isinstance(drafter, HeadDrafterConfig):
            _check_head(report, drafter, config)
        else:
            _check_small_drafter(report, drafter)
    _check_memory(report)
    return report


def _check_small_drafter(
    report: Report, drafter: NgramDrafterConfig | SuffixDrafterConfig | ScriptedDrafterConfig | PluginDrafterConfig
) -> None:
    match drafter:
        case ScriptedDrafterConfig():
            with report.checking(f"{drafter.name}: text", found=lambda: drafter.text_file):
                read_texts(drafter)
        case PluginDrafterConfig():
            with report.checking(f"{drafter.name}: plugin", found=lambda: drafter.target):
                _check_plugin(drafter)
        case SuffixDrafterConfig():
            with report.checking(f"{drafter.name}: corpus", found=lambda: f"{len(drafter.corpus)} files"):
                for file in drafter.corpus:
                    if not Path(file).is_file():
                        raise ConfigError(f"corpus file {file} does not exist", fix="correct or remove it")
        case NgramDrafterConfig():
            report.lines.append((drafter.name, "ok", "needs no model"))
    if drafter.placement == "process":
        report.needs.append((drafter.name, "cpu", None))


def _check_model(
    report: Report,
    name: str,
    settings: TargetConfig | ModelDrafterConfig,
    config: Config,
    progress: Callable[[str], None] | None,
) -> bool:
    """Device and model of one process; whether the model is fine."""
    with report.checking(f"{name}: device", found=lambda: settings.device):
        _check_device(settings.device, name=name)
    footprints: list[Footprint] = []
    with report.checking(f"{name}: model", found=lambda: f"{settings.model}, {footprints[0].max_model_len} positions"):
        footprints.append(
            model_footprint(
                settings.model,
                dtype=settings.dtype,
                max_model_len=settings.max_model_len,
                max_sequences=config.target.max_sequences,
                kv_block_size=config.target.kv_block_size,
                layers=settings.layers if isinstance(settings, ModelDrafterConfig) else None,
                device=settings.device,
                num_tree_slots=speculation_of(config).budget + 1 if name == TARGET else TREE_SLOTS,
                batch_invariant=name == TARGET and config.target.batch_invariant,
                parallel=config.parallel if name == TARGET else None,
                trust_remote_code=settings.trust_remote_code,
                quantised=name != TARGET,
                progress=progress,
            )
        )
        if isinstance(settings, ModelDrafterConfig):
            parts = spread_footprint(settings, footprints[0])
            report.needs.extend((name, place, part) for place, part in parts.items())
            for place in parts:
                _check_device(place, name=name)
        else:
            from dist_spec.models.tokenizer import load_tokenizer

            load_tokenizer(settings.model)
            for index, process in enumerate(target_names(config)):
                report.needs.append((process, _device_of(settings.device, index), footprints[0]))
    return report.lines[-1][1] == "ok"


def _device_of(device: str, index: int) -> str:
    """Of the process that is number `index`, from `device` on; several on one machine take a GPU each."""
    kind, _, first = device.partition(":")
    return device if kind == "cpu" else f"{kind}:{int(first) + index}"


def _check_head(report: Report, drafter: HeadDrafterConfig, config: Config) -> None:
    """Device, files, and whether it was made for this target."""
    with report.checking(f"{drafter.name}: device", found=lambda: drafter.device):
        _check_device(drafter.device, name=drafter.name)
    from dist_spec.models.head_formats import head_of

    model = drafter.model or config.target.model
    with report.checking(f"{drafter.name}: head", found=lambda: f"{model}, made for this target"):
        footprint = head_footprint(
            head_of(drafter.model, target=config.target.model),
            target=config.target.model,
            dtype=drafter.dtype,
            window=drafter.window,
            max_sequences=config.target.max_sequences,
            num_tree_slots=TREE_SLOTS,
            device=drafter.device,
        )
        report.needs.append((drafter.name, drafter.device, footprint))


def check_tokenizers(target: str, drafter: ModelDrafterConfig) -> str:
    """How the drafter's vocabulary serves the target, in one line; TokenizerMismatchError where it does not."""
    from dist_spec.drafters.build_model import check_vocabulary
    from dist_spec.models.tokenizer import load_tokenizer

    return check_vocabulary(drafter, target=load_tokenizer(target), drafter=load_tokenizer(drafter.model))


def _check_plugin(drafter: PluginDrafterConfig) -> None:
    module = drafter.target.partition(":")[0]
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise ConfigError(
            f"drafter {drafter.name}: there is no module {module}", fix="install it, or correct the drafter's target"
        )


def _check_device(device: str, *, name: str) -> None:
    if device in ("cpu", DISK):
        return
    import torch

    count = torch.cuda.device_count()
    if int(device.removeprefix("cuda:")) >= count:
        known = ", ".join(["cpu", *(f"cuda:{index}" for index in range(count))])
        raise ModelError(f"{name}: there is no device {device} on this machine", fix=f"use one of: {known}")


def _check_memory(report: Report) -> None:
    by_device: dict[str, int] = {}
    for _, device, footprint in report.needs:
        by_device[device] = by_device.get(device, 0) + _needed_bytes(footprint)
    for device, needed in by_device.items():
        free = _free_bytes(device)
        if free is not None:
            _check_fits(report, device, needed=needed, free=free)


def _check_fits(report: Report, device: str, *, needed: int, free: int) -> None:
    with report.checking(f"memory of {device}", found=lambda: f"{_gib(needed)} of {_gib(free)} free"):
        if needed > free:
            raise ModelError(
                f"{device}: about {_gib(needed)} are needed, {_gib(free)} are free",
                fix="lower target.max_sequences or target.max_model_len, use a smaller model or dtype, or keep drafters "
                "smaller or elsewhere (quantization, device_map)",
            )


def _free_bytes(device: str) -> int | None:
    """Free memory of a device; None when there is no such device, or it is a disk, whose room is not looked at."""
    if device == DISK:
        return None
    if device == "cpu":
        return int(psutil.virtual_memory().available)
    import torch

    index = int(device.removeprefix("cuda:"))
    return int(torch.cuda.mem_get_info(index)[0]) if index < torch.cuda.device_count() else None


def _needed_bytes(footprint: Footprint | None) -> int:
    return SMALL_PROCESS_BYTES if footprint is None else footprint.total_bytes


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"


def _cores_text(config: Config) -> str:
    assigned = assign_cores(config, available=available_cores())
    return "; ".join(f"{name}: {','.join(map(str, cores)) or 'any'}" for name, cores in assigned.items())


def _print(report: Report, console: Console) -> None:
    table = Table(title="checks", title_justify="left")
    table.add_column("what", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("found", overflow="fold")
    for what, result, found in report.lines:
        table.add_row(what, result, found, style="red" if result == "error" else None)
    console.print(table)
    memory = Table(title="memory per process (estimate)", title_justify="left")
    memory.add_column("process", no_wrap=True)
    for heading in ("device", "weights", "KV cache", "process", "sum"):
        memory.add_column(heading, justify="right", no_wrap=True)
    for name, device, footprint in report.needs:
        weights = _gib(footprint.weights_bytes) if footprint else "-"
        cache = _gib(footprint.kv_bytes) if footprint else "-"
        base = footprint.process_bytes if footprint else SMALL_PROCESS_BYTES
        memory.add_row(name, device, weights, cache, _gib(base), _gib(_needed_bytes(footprint)))
    console.print(memory)
