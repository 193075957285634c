"""A draft head whose features travel over torch.distributed beside ZeroMQ: real processes, the drafter killed, its lane cut;
the text stays the same, guesses are used, the ledger tells the links apart."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from time import monotonic

import pytest

from dist_spec.bench.accounts import transfers
from dist_spec.bench.deployment import Deployment
from tests.contracts.lane_cases import cut
from tests.integration.head_cluster import (
    NUM_TOKENS,
    SYNCHRONOUS,
    accepted,
    config,
    fitted_folder,
    plain_texts,
    run,
    samplings,
)
from tests.integration.local_cluster import prompts_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LANE, ZMQ = "link_head@collective_out_features_bytes", "link_head_out_features_bytes"
ROW_BYTES = 3 * 96 * 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = fitted_folder(tmp_path_factory.mktemp("head"))
    [head] = config(folder).model_dump(mode="json")["drafters"]
    drafters = [{**head, "link": {"tensors": "collective"}}]
    patient = {"heartbeat_s": 0.2, "dead_after_s": 5.0}
    settings = config(folder, drafters=drafters, speculation=SYNCHRONOUS, transport=patient)
    with Deployment("collective", settings) as deployment:
        deployment.wait_ready()
        yield deployment


def sent(cluster: Deployment, *, name: str, count: int = 1) -> dict[str, float]:
    """Bytes of features over both links during one run whose text is as it must be, and how many guesses were right."""
    before = dict(cluster.client.last_stats)
    streams = run(cluster, count=count, name=name)
    assert [stream.tokens for stream in streams] == plain_texts(count)
    after = cluster.client.last_stats
    grown = {link: after.get(link, 0.0) - before.get(link, 0.0) for link in (LANE, ZMQ)}
    return {**grown, "accepted": accepted(streams)}


def until(cluster: Deployment, *links: str, name: str) -> None:
    """Runs until features went over all of these links, and guesses were used in the last of them."""
    start = monotonic()
    missing = set(links)
    while monotonic() - start < 200:
        found = sent(cluster, name=f"{name}{monotonic()}-")
        missing -= {link for link in links if found[link] > 0}
        if not missing and found["accepted"] > 0:
            return
    raise AssertionError(f"features do not go over {missing}")


def disturbed(cluster: Deployment, disturb: Callable[[int], object], *, name: str) -> None:
    """A run in the middle of which something is done to the drafter's process; its text is as it must be."""
    pid = cluster.supervisor.running()["head"]
    streams = [
        cluster.client.open(f"{name}{i}", prompt=prompt, sampling=sampling)
        for i, (prompt, sampling) in enumerate(zip(prompts_of(4), samplings(4), strict=True))
    ]
    done = False
    while cluster.client.streams:
        cluster.client.poll(timeout_s=0.002)
        cluster.check()
        if not done and len(streams[0].tokens) > 10:
            disturb(pid)
            done = True
    assert done
    assert [stream.tokens for stream in streams] == plain_texts(4)


def zmq_port(cluster: Deployment) -> int:
    return int(cluster.address.rsplit(":", 1)[1])


def test_features_go_over_the_lane_and_the_text_is_that_of_plain_decoding(cluster: Deployment) -> None:
    until(cluster, LANE, name="up")
    found = sent(cluster, name="four", count=4)
    assert found["accepted"] > 0
    assert found[LANE] > 4 * NUM_TOKENS * ROW_BYTES
    assert found[ZMQ] == 0
    links = {(row["peer"], row["kind"]) for row in transfers(cluster.client.last_stats)}
    assert {("head", "commit"), ("head", "propose"), ("head@collective", "features")} <= links


def test_the_connection_of_the_lane_is_cut(cluster: Deployment) -> None:
    until(cluster, LANE, name="before")
    before = cluster.client.last_stats.get(ZMQ, 0.0)
    disturbed(cluster, lambda pid: cut(pid, spare={zmq_port(cluster)}), name="cut")
    until(cluster, LANE, name="after")
    assert cluster.client.last_stats[ZMQ] > before


def test_the_drafter_is_killed_and_its_successor_has_a_lane(cluster: Deployment) -> None:
    disturbed(cluster, lambda pid: os.kill(pid, signal.SIGKILL), name="kill")
    until(cluster, LANE, name="again")
