"""The structure holds: who may import what, how long a file may be, what starting costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dist_spec
from dist_spec import errors

PACKAGE = Path(dist_spec.__file__).parent
FORBIDDEN_IN_CORE = {"zmq", "asyncio", "threading", "socket", "time", "random", "os", "logging"}
MAX_LINES = 350


def python_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def imported_modules(path: Path) -> Iterator[str]:
    """Dotted names of everything a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def top_level(module: str) -> str:
    return module.split(".", 1)[0]


def test_the_reader_of_imports_sees_them(tmp_path: Path) -> None:
    file = tmp_path / "sample.py"
    file.write_text("import os.path\ndef f():\n    from torch import nn\n", encoding="utf-8")
    assert list(imported_modules(file)) == ["os.path", "torch.nn"]


def test_core_is_pure() -> None:
    files = python_files(PACKAGE / "core")
    assert files
    found = {
        (file.name, name) for file in files for name in imported_modules(file) if top_level(name) in FORBIDDEN_IN_CORE
    }
    assert not found


def test_in_core_only_verification_and_sampling_use_torch() -> None:
    core = PACKAGE / "core"
    allowed = {core / "verification", core / "sampling"}
    for file in python_files(core):
        names = set(imported_modules(file))
        assert not any(name.startswith("torch.distributed") for name in names), file
        if not allowed & set(file.parents):
            assert "torch" not in {top_level(name) for name in names}, file


@pytest.mark.parametrize("part", ["config", "commands", "transports", "server", "cli.py", "topology.py", "errors.py"])
def test_parts_that_talk_but_do_not_compute_never_import_torch_on_loading(part: str) -> None:
    path = PACKAGE / part
    files = python_files(path) if path.is_dir() else [path] if path.exists() else []
    if not files:
        pytest.skip(f"there is no {part} yet")
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in tree.body:
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not {"torch", "transformers"} & {top_level(name) for name in names}, file


def test_help_imports_no_torch() -> None:
    """One process says it for all: what one command loads stays loaded."""
    commands = ["--help", "generate --help", "launch --help", "chat --help", "score --help", "version"]
    script = (
        "import sys\n"
        "from dist_spec.cli import app\n"
        f"for command in {commands!r}:\n"
        "    try:\n        app(command.split())\n"
        "    except SystemExit as exit_:\n        assert not exit_.code, exit_.code\n"
        "    heavy = {'torch', 'transformers', 'numpy', 'zmq'} & set(sys.modules)\n"
        "    print('HEAVY', command, sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    said = [line for line in done.stdout.splitlines() if line.startswith("HEAVY")]
    assert said == [f"HEAVY {command} []" for command in commands]


def test_reading_settings_imports_no_torch() -> None:
    script = (
        "import sys\n"
        "from dist_spec.config import parse_config\n"
        "import dist_spec.topology\n"
        "parse_config({'target': {'model': 'm'}})\n"
        "assert not {'torch', 'transformers', 'zmq'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], timeout=120, check=True)


def test_no_file_is_too_long() -> None:
    lengths = {str(file): len(file.read_text(encoding="utf-8").splitlines()) for file in python_files(PACKAGE)}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_every_file_says_what_it_is() -> None:
    silent = [
        str(file)
        for file in python_files(PACKAGE)
        if (text := file.read_text(encoding="utf-8").strip()) and not ast.get_docstring(ast.parse(text))
    ]
    assert silent == []


def test_all_errors_are_exported_and_share_one_root() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert set(errors.__all__) == defined
    for name in errors.__all__:
        error = getattr(errors, name)("what is wrong", fix="what to do")
        assert isinstance(error, errors.DistSpecError)
        assert (error.message, error.fix, str(error)) == (
            "what is wrong",
            "what to do",
            "what is wrong\n  fix: what to do",
        )
        assert error.exit_code in (1, 2)
