"""Target, drafter and transport in one process and one thread, on tiny random models: the algorithm without the processes.

    python examples/offline.py

The same request is decoded three times: without a drafter, with a drafter that is the target itself, and with one that is
another model altogether. The text is the same each time; what differs is how many verifications it took.
"""

from __future__ import annotations

from time import monotonic

import numpy as np

from dist_spec.core.admission import TargetFacts
from dist_spec.core.attachment import Attachment
from dist_spec.core.block_manager import BlockManager
from dist_spec.core.draft_session import DraftSession
from dist_spec.core.membership import Membership
from dist_spec.core.messages import Hello, Open
from dist_spec.core.plan import Plan
from dist_spec.core.scheduler import Scheduler
from dist_spec.core.settings import Speculation
from dist_spec.core.target_session import TargetSession
from dist_spec.core.types import Sampling, Usage
from dist_spec.drafters.model import ModelDrafter
from dist_spec.models.loading import load_model
from dist_spec.models.runner import ModelRunner
from dist_spec.telemetry.timeline import Timeline
from dist_spec.transports.inproc import InprocHub
from dist_spec.workers.draft import DraftWorker
from dist_spec.workers.model_backend import ModelBackend
from dist_spec.workers.target import TargetWorker

TARGET = "random:llama?seed=1&max_len=256"
STRANGER = "random:llama?seed=2&max_len=256"
BLOCK = 16
SPECULATION = Speculation(budget=8, num_leaves=4, num_children=2, num_draft_tokens=8)


def make_target(hub: InprocHub) -> TargetWorker:
    """The leader: a session that decides, a model that computes, an end of the transport."""
    loaded = load_model(TARGET, dtype="float32", device="cpu")
    blocks = BlockManager(32, block_size=BLOCK)
    session = TargetSession(
        SPECULATION,
        facts=TargetFacts(max_model_len=256, vocab_size=loaded.vocab_size, eos_ids=loaded.tokenizer.eos_ids),
        scheduler=Scheduler(blocks, max_sequences=1, lookahead=SPECULATION.budget + 1),
        membership=Membership(),
    )
    backend = ModelBackend(
        ModelRunner(loaded, num_blocks=blocks.num_blocks, block_size=BLOCK, batch_invariant=True),
        vocab_size=loaded.vocab_size,
        rule="auto",
        noise_rows=SPECULATION.budget + 2,
        with_margin=False,
        timeline=Timeline(monotonic, per_step=()),
    )
    return TargetWorker(session, backend=backend, transport=hub.leader())


def make_drafter(hub: InprocHub, model: str) -> DraftWorker:
    """A drafter: a session that follows the target, a model that guesses, another end of the transport."""
    loaded = load_model(model, dtype="float32", device="cpu")
    return DraftWorker(
        DraftSession(SPECULATION),
        drafter=ModelDrafter(loaded, max_requests=1, max_context=256, batch_invariant=True),
        transport=hub.connect("drafter"),
        attachment=Attachment(Hello(role="drafter", name="drafter", kind="model")),
    )


def decode(
    prompt: str, *, drafter_model: str | None, sampling: Sampling, draft_steps: int = 4
) -> tuple[list[int], Usage]:
    """Generated token ids and counts. `draft_steps` are taken during each verification, as a drafter of its own would."""
    hub = InprocHub()
    target = make_target(hub)
    drafter = make_drafter(hub, drafter_model) if drafter_model is not None else None
    if drafter is not None:
        drafter.start(now=monotonic())
        target.receive(clock=monotonic)
    ids = np.frombuffer(prompt.encode(), np.uint8).astype(np.int32)  # the tokenizer of a random model: one id per byte
    target.open(Open(request="r", generation=0, prompt=ids, sampling=sampling), now=monotonic())
    sequence = target.session.live["r", 0].sequence
    while not sequence.finish_reason:
        target.receive(clock=monotonic)
        plan = target.begin(now=monotonic())  # selects the best part of the tree and starts its forward
        if drafter is not None:
            drafter.receive(clock=monotonic)
            for _ in range(draft_steps):
                batch = drafter.begin(now=monotonic())
                if batch is not None:
                    drafter.finish(batch, now=monotonic())  # expands leaves, publishes the new nodes
        if isinstance(plan, Plan):
            target.finish(plan, now=monotonic())  # verdict, commit, news to the drafter
    return sequence.tokens[len(ids) :], sequence.usage


def main() -> None:
    import torch

    torch.set_num_threads(1)
    for temperature in (0.0, 0.8):
        sampling = Sampling(temperature=temperature, seed=7, max_tokens=60, ignore_eos=True)
        plain, _ = decode("Once upon a time", drafter_model=None, sampling=sampling)
        print(f"temperature {temperature}")
        for name, model in (("no drafter", None), ("itself", TARGET), ("another model", STRANGER)):
            tokens, usage = decode("Once upon a time", drafter_model=model, sampling=sampling)
            print(
                f"  {name:14} {usage.steps:3} verifications for {usage.committed} tokens; "
                f"nodes drafted {usage.drafted:4}, verified {usage.verified:3}, accepted {usage.accepted:2}; "
                f"same text: {tokens == plain}"
            )


if __name__ == "__main__":
    main()
