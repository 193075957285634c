"""Ports for processes that will listen later: free, and none that the kernel could hand out meanwhile."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dist_spec import free_port as ports


@pytest.mark.parametrize(("handed_out", "end"), [("32768\t60999\n", 32_768), ("16000 65535", 16_000)])
def test_ports_lie_below_those_that_the_kernel_hands_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handed_out: str, end: int
) -> None:
    (tmp_path / "range").write_text(handed_out)
    monkeypatch.setattr(ports, "_HANDED_OUT", tmp_path / "range")
    found = {ports.free_port() for _ in range(50)}
    assert all(15_000 <= port < end for port in found)
    assert len(found) > 25


def test_another_system_is_taken_to_follow_the_registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ports, "_HANDED_OUT", tmp_path / "missing")
    assert all(15_000 <= ports.free_port() < 49_152 for _ in range(20))


def test_where_the_kernel_hands_out_all_of_them_it_chooses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "range").write_text("1024 65535")
    monkeypatch.setattr(ports, "_HANDED_OUT", tmp_path / "range")
    assert ports.free_port() > 0


def test_what_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", ports.free_port()))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            ports.bound_port("127.0.0.1", port)
        monkeypatch.setattr(ports.random.SystemRandom, "sample", lambda self, wanted, count: [port, port + 1])
        assert ports.free_port() != port


def test_a_host_of_another_machine_is_refused() -> None:
    with pytest.raises(OSError, match=r"assign|address"):
        ports.free_port("203.0.113.1")
