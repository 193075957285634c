"""The drafter's end of the protocol as a sans-I/O state machine: messages and expansions in, batches and messages out.

It knows no sockets, clocks or models. One draft step is `next_batch` -> (a drafter expands it) -> `expanded`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dist_spec.core.draft import Draft
from dist_spec.core.feature_inbox import FeatureInbox, Placed
from dist_spec.core.growth.pace import Pace
from dist_spec.core.growth.policies import build_growth
from dist_spec.core.growth.share import Share
from dist_spec.core.guesses import Guesses
from dist_spec.core.messages import MAX_NODES, Bye, Close, Commit, Features, Forget, Message, Need, Open, Ping, Propose
from dist_spec.core.prefix import Prefix
from dist_spec.core.selection import select_trees
from dist_spec.core.settings import Speculation
from dist_spec.core.tree import DraftTree
from dist_spec.core.types import Expansion

_NEED_AGAIN_S = 0.2
_MAX_UNKNOWN = 256
"""Unknown requests of which it is remembered when they were last asked about."""
_QUIET_S = 2.0
_ANSWER_NODES = 128


@dataclass(kw_only=True, slots=True)
class DraftBatch:
    """Leaves to expand in one step, grouped by request."""

    drafts: list[Draft]
    leaves: list[list[int]]
    width: int

    @property
    def num_leaves(self) -> int:
        return sum(map(len, self.leaves))


class DraftSession:
    """Follows every request's commits, grows its draft tree and publishes guesses.

    Output is never at stake here: whatever is lost, repeated, late or reordered costs speed only (law 3).

    Args:
        first_serial: number of the first proposal; lives of one drafter that a record must tell apart begin anew.

    Attributes:
        pace: how fast drafting and verification go; whoever knows the link's latency sets it there.
        forgotten: the leader asked to forget what ended requests left behind; whoever heeds it sets it back.
    """

    def __init__(self, settings: Speculation, *, first_serial: int = 1) -> None:
        self.settings = settings
        self.pace = Pace()
        self.share = Share()
        self.growth = build_growth(settings, pace=self.pace, share=self.share)
        self.guesses = Guesses(settings)
        self.inbox = FeatureInbox()
        self.drafts: dict[tuple[str, int], Draft] = {}
        self.closed: list[tuple[str, int]] = []
        self.steps = 0
        self.num_drafted = 0
        self.refused: Bye | None = None
        self.forgotten = False
        self._unknown_s: dict[tuple[str, int], float] = {}
        self._serial = first_serial

    def receive(self, message: Message, *, now: float) -> list[Message]:
        """Take in one message from the leader; returns what to send back."""
        match message:
            case Open():
                return self._open(message, now=now)
            case Commit():
                return self._commit(message, now=now)
            case Close():
                self._forget((message.request, message.generation))
            case Bye(fatal=True):
                self.refused = message
            case Features():
                draft = self.drafts.get((message.request, message.generation))
                if draft is not None:
                    self.inbox.came(draft, message)
                else:
                    self.inbox.early(message)
            case Ping():
                self.share.index, self.share.count = message.share_index, max(message.share_count, 1)
            case Forget():
                self.forgotten = True
            case _:
                pass
        return []

    def _open(self, message: Open, *, now: float) -> list[Message]:
        key = (message.request, message.generation)
        tokens = [*message.prompt.tolist(), *message.generated.tolist()]
        if not tokens:
            return []  # no request begins with nothing
        if any(k[0] == key[0] and k[1] > key[1] for k in self.drafts):
            return []  # late: the request has begun anew since
        draft = self.drafts.get(key)
        if draft is not None and tokens[: len(draft.prefix)] == draft.prefix.tokens:
            self._advance(draft, tokens[len(draft.prefix) :])
        elif draft is None or tokens != draft.prefix.tokens[: len(tokens)]:
            draft = self._begin(key, tokens, message)
        draft.heard_s = now
        self._unknown_s.pop(key, None)
        if message.ask and len(tokens) == len(draft.prefix):
            draft.ask()
        return self._answer(draft)

    def _begin(self, key: tuple[str, int], tokens: list[int], message: Open) -> Draft:
        for old in [k for k in self.drafts if k[0] == key[0]]:
            self._forget(old)
        draft = self.drafts[key] = Draft(
            request=message.request,
            generation=message.generation,
            prefix=Prefix(tokens),
            slots=[-1] * len(tokens),
            prompt_length=len(message.prompt),
            generated_offset=message.generated_offset,
            sampling=message.sampling,
            tree=DraftTree(len(tokens), tokens[-1], compact_above=min(512, self.settings.max_nodes // 2)),
        )
        self.inbox.grew(draft)
        return draft

    def _commit(self, message: Commit, *, now: float) -> list[Message]:
        draft = self.drafts.get((message.request, message.generation))
        if draft is None:
            return self._need_unknown((message.request, message.generation), now=now)
        draft.heard_s = now
        self.inbox.rode(draft, message)
        self.guesses.floor = message.floor
        tokens = message.tokens.tolist()
        prefix, base = draft.prefix, message.base_length
        known = len(prefix) - base
        follows = prefix.matches(base, message.base_digest) and prefix.tokens[base:][: len(tokens)] == tokens[:known]
        if known < 0 or not follows:
            if now - draft.needed_s < _NEED_AGAIN_S:
                return []
            draft.needed_s = now
            have = len(draft.prefix) if known < 0 else 0
            return [Need(request=draft.request, generation=draft.generation, have_length=have)]
        if known < len(tokens):
            self.pace.committed(draft.key, now=now)
            self._advance(draft, tokens[known:])
        if message.ask and known <= len(tokens):
            draft.ask()
        if self.settings.delivery == "push" and (lifted := self.guesses.lifted(draft)):
            return [self._propose(draft, lifted), *self._answer(draft)]
        return self._answer(draft)

    def _need_unknown(self, key: tuple[str, int], *, now: float) -> list[Message]:
        """Ask for a request from the start, once in a while: its commits go on while the answer is under way."""
        asked = self._unknown_s
        if now - asked.get(key, float("-inf")) < _NEED_AGAIN_S:
            return []
        asked.pop(key, None)
        asked[key] = now  # the one asked about last comes last
        if len(asked) > _MAX_UNKNOWN:
            del asked[next(iter(asked))]
        return [Need(request=key[0], generation=key[1], have_length=0)]

    def _advance(self, draft: Draft, tokens: Sequence[int]) -> None:
        self.guesses.committed(draft, tokens)
        draft.commit(tokens)
        self.inbox.grew(draft)

    def tick(self, *, now: float) -> list[Message]:
        """Ask about requests that the leader has not spoken of for long: the end of one, too, may have been lost."""
        needs: list[Message] = []
        for draft in self.drafts.values():
            if now - max(draft.heard_s, draft.needed_s) > _QUIET_S:
                draft.needed_s = now
                have = len(draft.prefix)
                needs.append(Need(request=draft.request, generation=draft.generation, have_length=have))
        return needs

    def _forget(self, key: tuple[str, int]) -> None:
        self.pace.closed(key)
        self.inbox.forget(key)
        if self.drafts.pop(key, None) is not None:
            self.closed.append(key)

    def take_closed(self) -> list[tuple[str, int]]:
        """Requests forgotten since the last call, for the drafter to release what it holds for them."""
        closed, self.closed = self.closed, []
        return closed

    def take_features(self) -> list[Placed]:
        """Hidden features that came since the last call, for a drafter that reads them. Where there was nothing to guess
        from, there may be now."""
        placed = self.inbox.take()
        for key, _, _ in placed:
            draft = self.drafts.get(key)
            if draft is not None and draft.tree.is_empty():
                draft.tree.expanded[draft.tree.root] = False
        return [one for one in placed if one[0] in self.drafts]

    def next_batch(self, *, now: float | None = None) -> DraftBatch | None:
        """Leaves to expand now, the best over all requests; None when there is nothing useful to do.

        Args:
            now: for the pace; None: nobody keeps time.
        """
        limit = self.growth.num_leaves
        ranked = sorted(
            (
                (-draft.tree.score(leaf), order, row, leaf)
                for row, draft in enumerate(self.drafts.values())
                for order, leaf in enumerate(self.growth.leaves(draft, limit))
            ),
        )[: max(limit, len(self.drafts))]
        if not ranked:
            self.pace.rested()
            return None
        if now is not None:
            self.pace.began(now=now)
        drafts = list(self.drafts.values())
        rows: dict[int, list[int]] = {}
        for _, _, row, leaf in ranked:
            rows.setdefault(row, []).append(leaf)
            drafts[row].tree.expanded[leaf] = True
        return DraftBatch(
            drafts=[drafts[row] for row in rows], leaves=list(rows.values()), width=self.growth.num_children
        )

    def expanded(
        self, batch: DraftBatch, expansions: Sequence[Sequence[Expansion]], *, hold: bool = False
    ) -> list[Message]:
        """Take in one step's guesses; returns proposals (pushed, or answering a question that is now ready).

        Args:
            hold: keep pushed nodes back for `flush`, so that several cheap steps make one message. Nothing may be
                received between the two.
        """
        self.steps += 1
        messages: list[Message] = []
        fresh = self.guesses.take(batch.drafts, batch.leaves, expansions)
        for draft, nodes in zip(batch.drafts, fresh, strict=True):
            self.num_drafted += len(nodes)
            draft.steps_since_ask += 1
            worth = self.guesses.worth_sending(draft, nodes) if self.settings.delivery == "push" else []
            if worth:
                draft.held += worth
                draft.asked = False
            else:
                messages.extend(self._answer(draft))
        return messages if hold else [*messages, *self.flush()]

    def flush(self) -> list[Message]:
        """Publish what was held back, one proposal per request."""
        messages: list[Message] = []
        for draft in self.drafts.values():
            if draft.held:
                messages.append(self._propose(draft, draft.held))
                draft.held = []
        return messages

    def _answer(self, draft: Draft) -> list[Message]:
        if not draft.asked or not self.growth.ready(draft):
            return []
        draft.asked = False
        tree, settings = draft.tree, self.settings
        nodes = tree.best_chain(settings.num_draft_tokens)
        draft.trunk = [tree.token[node] for node in nodes]
        if settings.verify_shape == "tree":
            cap = settings.num_draft_tokens
            [nodes] = select_trees([tree], depth_caps=[cap], budget=max(_ANSWER_NODES, settings.budget))
        return [self._propose(draft, self.guesses.worth_sending(draft, nodes))]

    def _propose(self, draft: Draft, nodes: Sequence[int]) -> Propose:
        tokens, parents, scores = draft.tree.export(nodes)
        serial, self._serial = self._serial, self._serial + 1
        return Propose(
            request=draft.request,
            generation=draft.generation,
            base_length=len(draft.prefix),
            base_digest=draft.prefix.digest,
            # Parents come first, so any beginning is a tree; the rest travels along when something below it does.
            tokens=tokens[:MAX_NODES],
            parents=parents[:MAX_NODES],
            scores=scores[:MAX_NODES],
            serial=serial,
            laws=draft.tree.export_laws(nodes)[:MAX_NODES],
        )
