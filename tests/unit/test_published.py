"""The settings that rerun published tables: every variant that their comments name is one that can be run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dist_spec.config import load_config
from dist_spec.topology import plan_processes

FILES = sorted((Path(__file__).parents[2] / "configs" / "published").glob("*.yaml"))


def variants(path: Path) -> dict[str, list[str]]:
    """Names with their `--set` options, as the comments at the head of the file give them."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        match = re.match(r"#   (AR|SD|SSD|PEARL|ours) ", line)
        if match:
            found[match[1]] = [text.strip("'") for text in re.findall(r"--set ('[^']+'|\S+)", line)]
    return found


def test_there_are_some() -> None:
    assert len(FILES) >= 4


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_variant_can_be_run(path: Path) -> None:
    found = variants(path)
    assert {"AR", "ours"} < set(found)
    for name, sets in found.items():
        config = load_config(path, sets=sets)
        specs = plan_processes(config, config_path=str(path), address="tcp://127.0.0.1:1", available=[0])
        assert len(specs) == config.parallel.tp_size + (name != "AR"), name
        switches = (config.speculation.growth, config.speculation.delivery)
        expected = {
            "SD": ("none", "pull"),
            "SSD": ("fan_out", "pull"),
            "PEARL": ("optimistic", "pull"),
            "ours": ("best_first", "push"),
        }
        assert name == "AR" or switches == expected[name]
