"""The other end of a lane, for `test_nccl_lane`: answers every message of features with what it found in it.

Usage: python -m tests.gpu.lane_peer ADDRESS DEVICE
"""

from __future__ import annotations

import sys

import numpy as np

from dist_spec.core.messages import Features, Ping
from dist_spec.transports.base import LEADER
from dist_spec.transports.collective import CollectivePeer


def main() -> None:
    address, device = sys.argv[1:]
    peer = CollectivePeer(address, "d0", device=device, retry=False)
    while LEADER in peer.lanes.lanes:
        for _, message in peer.receive(0.1):
            if isinstance(message, Features):
                rows = message.rows
                stays = not isinstance(rows, np.ndarray)
                peer.send(LEADER, Ping(progress=round(float(rows[-1].sum())), num_drafters=int(stays)))
    peer.close()


if __name__ == "__main__":
    main()
