"""Each launcher, started as a user would start it: it generates the text of plain decoding, speculates, ends by itself with
code 0, and leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import yaml

from dist_spec.core.types import Sampling
from dist_spec.free_port import free_port
from dist_spec.server.client import Client
from dist_spec.transports.zmq import ZmqPeer
from tests.integration.launchers import (
    PROMPTS,
    ROOT,
    SCRIPTS,
    Starter,
    ask,
    check_report,
    plain_tokens,
    prompt_ids,
    prompts,
    settings,
    starter,
)

__all__ = ["starter"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

TORCHRUN = str(SCRIPTS / "torchrun.sh")
QUICK = {"heartbeat_s": 0.2, "dead_after_s": 1.0}
"""The leader soon notices that a drafter is dead."""
MANY = 160
"""Tokens of a request that lasts long enough to be disturbed."""


@pytest.mark.parametrize("tp_size", [2, pytest.param(1, marks=pytest.mark.long)])
def test_torchrun_on_one_node(starter: Starter, tp_size: int) -> None:
    report = starter.folder / "report.json"
    config = starter.config(settings(tp_size=tp_size))
    starter.wait(starter.start(TORCHRUN, str(tp_size + 1), config, *prompts(report)))
    check_report(report)


@pytest.mark.long
@pytest.mark.parametrize("layout", ["drafter:1,target:1", "target:1,drafter:2"])
def test_layouts(starter: Starter, layout: str) -> None:
    """Any order of ranks, and several drafters."""
    drafters = 2 if layout.endswith("2") else 1
    report = starter.folder / "report.json"
    config = starter.config(settings(drafters=drafters))
    starter.wait(starter.start(TORCHRUN, str(drafters + 1), config, "--layout", layout, *prompts(report)))
    check_report(report)


@pytest.mark.long
def test_torchrun_on_unequal_nodes(starter: Starter) -> None:
    """Two agents; which of them is rank 0 is up to them."""
    report = starter.folder / "report.json"
    config = starter.config(settings(tp_size=2))
    environ = {"RDZV": f"127.0.0.1:{free_port()}", "NNODES": "2", "LOCAL_ADDR": "127.0.0.1"}
    script = str(SCRIPTS / "torchrun_unequal.sh")
    drafting = starter.start(script, "drafter", "1", config, *prompts(report), name="drafter", **environ)
    target = starter.start(script, "target", "2", config, *prompts(report), name="target", **environ)
    starter.wait(target, name="target")
    starter.wait(drafting, name="drafter")
    check_report(report)


@pytest.mark.long
def test_an_elastic_restart_of_unequal_nodes(starter: Starter) -> None:
    """A drafter is killed: both agents start everything anew, and what the first try left in their store misleads nobody."""
    report = starter.folder / "report.json"
    config = starter.config(settings(tp_size=1) | {"transport": {"bind": f"tcp://127.0.0.1:{free_port()}"}})
    environ = {"RDZV": f"127.0.0.1:{free_port()}", "NNODES": "2", "LOCAL_ADDR": "127.0.0.1", "MAX_RESTARTS": "2"}
    script = str(SCRIPTS / "torchrun_unequal.sh")
    drafting = starter.start(script, "drafter", "1", config, name="drafter", **environ)
    target = starter.start(script, "target", "1", config, name="target", **environ)
    before = starter.folder / "before.json"
    ask(starter, address_of(config), config, before)
    check_report(before)
    workers = starter.workers()
    os.kill(starter.workers(of=drafting)[0], signal.SIGKILL)
    starter.until(lambda: len(set(starter.workers()) - set(workers)) == 2, name="target")
    ask(starter, address_of(config), config, report)
    check_report(report)
    for job, name in ((target, "target"), (drafting, "drafter")):
        job.terminate()
        starter.wait(job, code=None, name=name)


@pytest.mark.long
def test_a_drafter_that_crashes_in_a_job_of_its_own_is_restarted_alone(starter: Starter) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    config = starter.config(settings(tp_size=2, transport=QUICK))
    job = starter.start(str(SCRIPTS / "two_jobs.sh"), "2", "1", address, config)
    reports = [starter.folder / f"{name}.json" for name in ("before", "after")]
    ask(starter, address, config, reports[0])
    check_report(reports[0])
    (drafter,), targets = starter.workers("--role drafter"), starter.workers("--role target")
    assert len(targets) == 2
    os.kill(drafter, signal.SIGKILL)
    starter.until(lambda: [pid for pid in starter.workers("--role drafter") if pid != drafter])
    time.sleep(2 * QUICK["dead_after_s"])  # the leader counts the dead one until then
    ask(starter, address, config, reports[1])
    check_report(reports[1])
    assert starter.workers("--role target") == targets
    job.terminate()
    starter.wait(job, code=None)


@pytest.mark.long
def test_two_jobs_end_with_the_prompts(starter: Starter) -> None:
    report = starter.folder / "report.json"
    config = starter.config(settings())
    address = f"tcp://127.0.0.1:{free_port()}"
    starter.wait(starter.start(str(SCRIPTS / "two_jobs.sh"), "1", "1", address, config, *prompts(report)))
    check_report(report)


def test_deepspeed_on_one_node(starter: Starter) -> None:
    pytest.importorskip("deepspeed")
    report = starter.folder / "report.json"
    config = starter.config(settings(tp_size=2))
    environ = {"MASTER_PORT": str(free_port())}
    starter.wait(starter.start(str(SCRIPTS / "deepspeed.sh"), "3", config, *prompts(report), **environ))
    check_report(report)


@pytest.mark.long
def test_deepspeed_without_ssh_on_two_nodes(starter: Starter) -> None:
    pytest.importorskip("deepspeed")
    report = starter.folder / "report.json"
    config = starter.config(settings(tp_size=2))
    hostfile = starter.folder / "hostfile"
    hostfile.write_text("node-a slots=2\nnode-b slots=1\n")
    environ = {"HOSTFILE": str(hostfile), "NO_SSH": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    script = str(SCRIPTS / "deepspeed.sh")
    jobs = [
        starter.start(script, "all", config, *prompts(report), name=f"node{node}", NODE_RANK=str(node), **environ)
        for node in (0, 1)
    ]
    for node, job in enumerate(jobs):
        starter.wait(job, name=f"node{node}")
    check_report(report)


def test_accelerate(starter: Starter) -> None:
    report = starter.folder / "report.json"
    config = starter.config(settings(tp_size=2))
    script, shape = str(SCRIPTS / "accelerate.sh"), str(ROOT / "configs/launchers/accelerate_cpu.yaml")
    environ = {"MASTER_PORT": str(free_port())}
    starter.wait(starter.start(script, shape, config, *prompts(report), **environ))
    check_report(report)


@pytest.mark.long
def test_accelerate_on_two_machines(starter: Starter) -> None:
    report = starter.folder / "report.json"
    config = starter.config(settings(tp_size=2))
    script, shape = str(SCRIPTS / "accelerate.sh"), str(ROOT / "configs/launchers/accelerate_multi_node.yaml")
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    jobs = {}
    for machine, (role, count) in enumerate((("target", 2), ("drafter", 1))):
        own = {"ROLE": role, "MACHINE_RANK": str(machine), "NUM_PROCESSES": str(2 * count)}
        jobs[role] = starter.start(script, shape, config, *prompts(report), name=role, **environ, **own)
    for role, job in jobs.items():
        starter.wait(job, name=role)
    check_report(report)


SRUN = """#!{python}
# Starts $SLURM_NTASKS processes as srun does, on one machine; --kill-on-bad-exit as srun knows it.
import os, subprocess, sys, time
command = [word for word in sys.argv[1:] if not word.startswith("--kill-on-bad-exit")]
count = int(os.environ["SLURM_NTASKS"])
tasks = [
    subprocess.Popen(command, env=os.environ | {{"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)}}) for i in range(count)
]
while any(task.poll() is None for task in tasks):
    if any(task.poll() for task in tasks):
        [task.terminate() for task in tasks if task.poll() is None]
    time.sleep(0.05)
sys.exit(max(abs(task.returncode) for task in tasks))
"""


@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_slurm(starter: Starter, nodes: int) -> None:
    """With stand-ins for srun and scontrol; on "two" nodes the address is found by the way to the first of them."""
    report = starter.folder / "report.json"
    config = starter.config(settings())
    shims = starter.folder / "bin"
    shims.mkdir()
    for name, text in {"srun": SRUN.format(python=sys.executable), "scontrol": "#!/bin/sh\necho localhost\n"}.items():
        (shims / name).write_text(text)
        (shims / name).chmod(0o755)
    environ = {"SLURM_JOB_NODELIST": "localhost", "SLURM_NTASKS": "2", "SLURM_NNODES": str(nodes)}
    environ |= {"MASTER_PORT": str(free_port()), "PATH": f"{shims}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    starter.wait(starter.start(str(SCRIPTS / "slurm.sbatch"), config, *prompts(report), **environ))
    check_report(report)


@pytest.mark.long
def test_sigterm_lets_requests_finish(starter: Starter) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    config = starter.config(settings(tp_size=2))
    job = starter.start(TORCHRUN, "3", config, "--bind", address)
    frontend = Client(ZmqPeer(address, "frontend"), name="frontend", heartbeat_s=0.2)
    try:
        starter.until(
            lambda: frontend.connect(timeout_s=0.2) and (frontend.poll(timeout_s=0.05), frontend.num_drafters)[1]
        )
        asked = Sampling(temperature=0.0, seed=0, max_tokens=MANY, ignore_eos=True)
        streams = [frontend.open(f"r{i}", prompt=prompt, sampling=asked) for i, prompt in enumerate(prompt_ids())]
        starter.until(lambda: (frontend.poll(timeout_s=0.01), all(stream.tokens for stream in streams))[1])
        job.terminate()
        assert any(len(stream.tokens) < MANY for stream in streams), "over before it was asked to end"
        starter.until(lambda: (frontend.poll(timeout_s=0.01), not frontend.streams)[1])
    finally:
        frontend.close()
    assert [stream.tokens for stream in streams] == plain_tokens(MANY)
    assert sum(int(stream.stats["accepted"]) for stream in streams) > 0
    starter.wait(job, code=1)  # torchrun's own code after SIGTERM, however well its processes ended
    assert "failed" not in starter.log()


@pytest.mark.long
def test_sigterm_lets_the_prompts_of_the_start_finish(starter: Starter) -> None:
    """Also the one that has not begun: torchrun signals all ranks, and only the leader's wish counts."""
    config = starter.config(settings(tp_size=2))
    report = starter.folder / "report.json"
    job = starter.start(TORCHRUN, "3", config, *prompts(report, "--max-tokens", str(MANY), "--concurrency", "1"))
    starter.until(lambda: f"\n> {PROMPTS[0]}\n" in starter.log())
    job.terminate()
    starter.wait(job, code=1)  # torchrun's own code after SIGTERM, however well its processes ended
    found = json.loads(report.read_text())
    assert found["token_ids"] == plain_tokens(MANY)
    assert found["num_accepted"] > 0  # drafters leave at once, the rest is decoded without them


@pytest.mark.long
def test_up_with_a_target_of_two_processes(starter: Starter) -> None:
    """A rank that dies takes the others with it; the group is started again and its drafter goes on."""
    address = f"tcp://127.0.0.1:{free_port()}"
    config = starter.config(settings(tp_size=2))
    job = starter.start("dist-spec", "up", config, "--bind", address)
    reports = [starter.folder / f"{name}.json" for name in ("before", "after")]
    ask(starter, address, config, reports[0])
    check_report(reports[0])
    ranks, (drafter,) = starter.workers("dist_spec.cli target"), starter.workers("dist_spec.cli draft")
    assert len(ranks) == 2
    os.kill(starter.workers("dist_spec.cli target", "--rank 1")[0], signal.SIGKILL)
    starter.until(lambda: not set(starter.workers("dist_spec.cli target")) & set(ranks))
    ask(starter, address, config, reports[1])
    check_report(reports[1])
    assert starter.workers("dist_spec.cli draft") == [drafter]
    job.terminate()
    starter.wait(job)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layout", "target:2,drafter:*"], "2 of 2 processes are to be the target"),
        pytest.param(
            ["--role", "drafter", "--connect", "tcp://127.0.0.1:1"],
            "2 of 2 processes are to draft",
            marks=pytest.mark.long,
        ),
        pytest.param(["--connect", "tcp://127.0.0.1:1"], "--connect is for drafters", marks=pytest.mark.long),
    ],
)
def test_a_wrong_start_ends_at_once_with_a_way_out(starter: Starter, arguments: list[str], message: str) -> None:
    config = starter.config(settings())
    starter.wait(starter.start(TORCHRUN, "2", config, *arguments), code=1)
    assert message in starter.log()
    assert "fix: " in starter.log()


def address_of(config: str) -> str:
    """Of the configuration file's `transport.bind`."""
    return str(yaml.safe_load(Path(config).read_text())["transport"]["bind"])


def test_torchrun_does_not_try_again_what_is_misconfigured(starter: Starter) -> None:
    config = starter.config(settings() | {"targte": {}})
    words = ("torchrun", "--standalone", "--max-restarts", "50", "-m", "dist_spec", "launch", config)
    job = starter.start(*words, "--role", "drafter", "--connect", "tcp://127.0.0.1:9")
    starter.wait(job, code=1)
    assert starter.log().count("error: ") == 1, starter.log()
    assert "targte" in starter.log()
