"""The process of a target's rank other than the leader: loads its shard and does what the leader tells it. It knows no
requests and opens no socket of ours."""

from __future__ import annotations

from collections.abc import Callable

from dist_spec.config import Config
from dist_spec.models.parallel.place import TpPlace
from dist_spec.telemetry.log import setup_logging
from dist_spec.workers.signals import StopFlag
from dist_spec.workers.target_build import load_weights
from dist_spec.workers.threads import limit_threads, settle_memory, thread_elsewhere


def run_follower(config: Config, *, place: TpPlace, stopping: Callable[[], bool] | None = None) -> int:
    """Follow until the leader says that it is over; returns the exit code. SIGTERM, SIGINT or `stopping()` ask the leader to
    end all ranks.

    Raises:
        ModelError, UnsupportedError: the model cannot be loaded.
        WorkerError: a rank is dead or stuck.
    """
    log = setup_logging(place.name, level=config.telemetry.log_level)
    stop = stopping or StopFlag().listen()
    limit_threads(config.target.threads)
    from dist_spec.models.parallel.follow import Follower
    from dist_spec.models.parallel.group import TpGroup

    with TpGroup.join(place) as group:
        loaded = load_weights(config, group=group)
        log.info("rank %d of %d holds %s", place.rank, place.size, loaded.shard)
        follower = Follower(loaded, group=group, stopping=stop, noise_maker=thread_elsewhere())
        settle_memory()
        follower.run()
        log.info("%d steps done", follower.num_steps)
    return 0
