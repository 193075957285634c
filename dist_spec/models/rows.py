"""Turns the scheduler's rows (block tables, pending tokens, draft trees) into a packed step. Touches no model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dist_spec.core.types import NO_PARENT, ForwardRow, IntArray
from dist_spec.errors import CapacityError
from dist_spec.models import kv_cache
from dist_spec.models.step import BoolArray, Segment, SlotArray, Visit


def plan_segments(
    rows: Sequence[ForwardRow], *, block_size: int, attention: str, max_positions: int
) -> tuple[list[Segment], SlotArray, list[int]]:
    """Segments of all rows for that attention, rotary positions of all packed tokens, and the packed rows whose logits are
    wanted.

    Raises:
        CapacityError: a row is longer than its blocks or than the model's context.
    """
    segments: list[Segment] = []
    positions: list[SlotArray] = []
    logit_rows: list[int] = []
    first = 0
    for row in rows:
        segment = _segment(row, first=first, block_size=block_size, attention=attention)
        if int(segment.query_positions.max()) >= max_positions:
            raise CapacityError(
                f"token at position {int(segment.query_positions.max())} is beyond the context of {max_positions}",
                fix="shorten the prompt or lower max_tokens",
            )
        first += segment.count
        segments.append(segment)
        positions.append(segment.query_positions)
        logit_rows.extend(range(first - row.num_logits, first))
    return segments, np.concatenate(positions) if positions else np.empty(0, np.int64), logit_rows


def _segment(row: ForwardRow, *, first: int, block_size: int, attention: str) -> Segment:
    pending, nodes = row.num_pending, row.num_nodes
    head, count = row.cached + pending, pending + nodes
    length = row.cached + count
    if length > len(row.block_table) * block_size:
        raise CapacityError(
            f"{length} tokens do not fit into {len(row.block_table)} blocks of {block_size}", fix="allocate more blocks"
        )
    key_slots = kv_cache.slots(row, 0, length, block_size)
    key_positions = np.arange(length, dtype=np.int64)
    depths = node_depths(row.parents)
    key_positions[head:] = head - 1 + depths
    segment = Segment(
        first=first,
        count=count,
        key_start=kv_cache.contiguous_start(row, length, block_size),
        key_slots=key_slots,
        write_slots=key_slots[row.cached :],
        query_positions=key_positions[row.cached :],
        key_positions=key_positions,
        spare=-length % block_size,
    )
    branched = not is_chain(row.parents)
    if attention == "single" or (attention == "shared" and branched):
        segment.visits = _visits(row, first, depths, branched=branched)
        segment.num_tree = nodes if branched else 0
    if attention != "single" and count > 1:
        segment.mask = _mask(row)
    return segment


def node_depths(parents: IntArray) -> SlotArray:
    """Depth of each node below the last pending token (1 = directly below it)."""
    depths = np.ones(len(parents), dtype=np.int64)
    for node, parent in enumerate(parents.tolist()):
        if parent != NO_PARENT:
            depths[node] = depths[parent] + 1
    return depths


def is_chain(parents: IntArray) -> bool:
    return bool((parents == np.arange(-1, len(parents) - 1)).all())


def ancestors(parents: IntArray) -> BoolArray:
    """(n, n) True where the column is the row's node itself or above it."""
    matrix = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents.tolist()):
        if parent != NO_PARENT:
            matrix[node] |= matrix[parent]
    return matrix


def _mask(row: ForwardRow) -> BoolArray:
    pending, cached = row.num_pending, row.cached
    count = pending + row.num_nodes
    mask = np.ones((count, cached + count), dtype=np.bool_)
    mask[:pending, cached:] = np.tri(pending, count, dtype=np.bool_)
    mask[pending:, cached + pending :] = ancestors(row.parents)
    return mask


def _visits(row: ForwardRow, first: int, depths: SlotArray, *, branched: bool) -> list[Visit]:
    """Pending tokens in order, then the nodes depth first: so each node's path is in place when it is asked, at the
    price of placing one row per node. A chain is in place already."""
    pending, head = row.num_pending, row.cached + row.num_pending
    visits = [Visit(first + i, row.cached + i + 1) for i in range(pending)]
    for node in _depth_first(row.parents) if branched else range(row.num_nodes):
        visits.append(Visit(first + pending + node, head + int(depths[node]), branched))
    return visits


def _depth_first(parents: IntArray) -> list[int]:
    below: dict[int, list[int]] = {}
    for node, parent in enumerate(parents.tolist()):
        below.setdefault(parent, []).append(node)
    order: list[int] = []
    stack = below.get(NO_PARENT, [])[::-1]
    while stack:
        node = stack.pop()
        order.append(node)
        stack.extend(below.get(node, [])[::-1])
    return order
