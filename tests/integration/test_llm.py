"""The Python interface with real processes: same text with and without drafters, streams, errors, interrupts, and nothing
left behind."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from dist_spec import LLM, RequestOutput, SamplingParams
from dist_spec.errors import ConfigError, RequestError, WorkerError
from tests.integration.process_cases import alive, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

# So small that it soon repeats itself: prompt lookup finds something to guess.
MODEL = "random:llama?seed=0&layers=1&hidden=16&heads=1&kv_heads=1&ffn=16"
SETTINGS: dict[str, Any] = {
    "target": {"model": MODEL, "dtype": "float32", "max_model_len": 512, "threads": 1},
    "speculation": {"budget": 8},
    "transport": {"heartbeat_s": 0.2},
}
PROMPTS = ["one two three", "Once upon a time", "a, b, a, b, a", "zzzz"]


def tokens(outputs: list[RequestOutput]) -> list[list[tuple[int, ...]]]:
    return [[sample.token_ids for sample in output.outputs] for output in outputs]


def count_accepted(outputs: list[RequestOutput], expected: list[list[tuple[int, ...]]]) -> float:
    """Guesses of the drafter that became text, which is the expected one."""
    assert tokens(outputs) == expected
    accepted = [kind for output in outputs for sample in output.outputs for kind in sample.kinds if kind == "accepted"]
    assert len(accepted) == sum(output.metrics.stats["accepted"] for output in outputs)
    return len(accepted)


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(drafters=["ngram"], **SETTINGS) as one:
        yield one


@pytest.fixture(scope="module")
def plain() -> Iterator[LLM]:
    with LLM(drafters=[], **SETTINGS) as one:
        yield one


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafters_change_no_token(llm: LLM, plain: LLM, temperature: float) -> None:
    params = [SamplingParams(temperature=temperature, seed=i, max_tokens=80, ignore_eos=True, n=2) for i in range(4)]
    expected = tokens(plain.generate(PROMPTS, params))
    ours = llm.generate(PROMPTS, params)
    assert tokens(ours) == expected
    assert [output.prompt for output in ours] == PROMPTS
    assert all(len(sample.token_ids) == 80 for output in ours for sample in output.outputs)
    if temperature > 0:
        assert all(len(set(samples)) == 2 for samples in tokens(ours))
    else:
        wait_for(lambda: count_accepted(llm.generate(PROMPTS, params), expected) > 10)  # a busy machine leaves few


def test_a_seed_that_was_drawn_is_reported_and_gives_the_same(llm: LLM) -> None:
    first, other = llm.generate(PROMPTS[:2], SamplingParams(max_tokens=10))
    assert first.metrics.seed != other.metrics.seed
    [again] = llm.generate(PROMPTS[0], SamplingParams(max_tokens=10, seed=first.metrics.seed))
    assert again.outputs[0].token_ids == first.outputs[0].token_ids
    assert first.metrics.num_tokens == 10
    assert 0 < (first.metrics.time_to_first_token_s or 0) < first.metrics.duration_s


def test_without_params_the_settings_hold() -> None:
    with LLM(drafters=[], **SETTINGS, sampling={"max_tokens": 3, "temperature": 0.5}) as one:
        [output] = one.generate("hello")
        [same] = one.generate("hello", SamplingParams(max_tokens=3, temperature=0.5, seed=0))
    assert (output.metrics.seed, len(output.outputs[0].token_ids)) == (0, 3)
    assert output.outputs == same.outputs


def test_a_stream_is_the_output_in_parts(llm: LLM) -> None:
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=40, n=2, ignore_eos=True)
    whole = llm.generate(PROMPTS, params)
    texts: dict[tuple[int, int], str] = {}
    ids: dict[tuple[int, int], tuple[int, ...]] = {}
    ended = set()
    for news in llm.stream(PROMPTS, params):
        place = news.prompt_index, news.index
        assert place not in ended
        assert len(news.kinds) == len(news.token_ids)
        texts[place] = texts.get(place, "") + news.text
        ids[place] = ids.get(place, ()) + news.token_ids
        if news.finished:
            ended.add(place)
    assert len(ended) == 8
    for (prompt_index, index), text in texts.items():
        sample = whole[prompt_index].outputs[index]
        assert (text, ids[prompt_index, index]) == (sample.text, sample.token_ids)


def test_a_request_that_cannot_be_served_touches_no_other(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    good = llm.generate([PROMPTS[0], PROMPTS[1]], params)
    mixed = llm.generate([PROMPTS[0], "", "x" * 600, [5_000_000], PROMPTS[1]], params)
    assert [tokens(good)[0], tokens(good)[1]] == [tokens(mixed)[0], tokens(mixed)[4]]
    for output, named in zip(mixed[1:4], ("empty", "context is 512", "vocabulary"), strict=True):
        [sample] = output.outputs
        assert (sample.finish_reason, sample.token_ids) == ("error", ())
        assert sample.error is not None
        assert named in sample.error


def test_wrong_calls_are_refused_before_anything_is_sent(llm: LLM) -> None:
    with pytest.raises(RequestError, match="is no prompt"):
        llm.generate(3.5)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="2 prompts and 1 params"):
        llm.generate(["a", "b"], [SamplingParams()])
    with pytest.raises(RequestError, match="no sampling parameters"):
        llm.generate("a", {"temperature": 1})  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="lists of messages"):
        llm.chat("hello")  # type: ignore[arg-type]
    for wrong in ([None], [1, "a"], [[1, 2]], ["a"], [[]]):
        with pytest.raises(RequestError, match="lists of messages"):
            llm.chat(wrong)  # type: ignore[arg-type]
    assert llm.generate([]) == []


def test_chat_goes_through_the_template(llm: LLM) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    params = SamplingParams(temperature=0.0, max_tokens=5)
    [output] = llm.chat(messages, params)
    assert output.prompt_token_ids == tuple(llm.tokenizer.apply_chat(messages))
    assert tokens(llm.chat([messages, messages], params)) == tokens([output]) * 2


def test_probabilities_are_the_same_with_drafters(llm: LLM, plain: LLM) -> None:
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=30, ignore_eos=True, logprobs=3)
    for output, reference in zip(llm.generate(PROMPTS, params), plain.generate(PROMPTS, params), strict=True):
        [sample], [same] = output.outputs, reference.outputs
        assert sample.logprobs is not None
        assert sample.logprobs == same.logprobs
        for token, entry in zip(sample.token_ids, sample.logprobs, strict=True):
            assert 3 <= len(entry) <= 4
            assert sorted(one.rank for one in entry.values() if one.rank) == [1, 2, 3]
            assert entry[token].logprob <= max(one.logprob for one in entry.values()) <= 0
            assert sum(math.exp(one.logprob) for one in entry.values()) <= 1 + 1e-5
        total = sum(entry[token].logprob for token, entry in zip(sample.token_ids, sample.logprobs, strict=True))
        assert sample.cumulative_logprob == pytest.approx(total)
    [greedy] = llm.generate(PROMPTS[0], SamplingParams(temperature=0.0, max_tokens=10, logprobs=1, ignore_eos=True))
    assert [list(entry) for entry in greedy.outputs[0].logprobs or ()] == [
        [token] for token in greedy.outputs[0].token_ids
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"top_k": 5, "min_p": 0.01, "logit_bias": {65: 5.0}},
        {"top_p": 0.9, "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.2},
        {"bad_words": ["a", "Q"], "min_tokens": 20, "ignore_eos": False},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_processed_text_is_the_same_with_drafters(llm: LLM, plain: LLM, changes: dict[str, Any]) -> None:
    params = SamplingParams(**{"temperature": 0.8, "seed": 3, "max_tokens": 40, "ignore_eos": True, **changes})
    ours = llm.generate(PROMPTS, params)
    assert tokens(ours) == tokens(plain.generate(PROMPTS, params))
    if params.bad_words:
        assert not any(word in sample.text for output in ours for sample in output.outputs for word in params.bad_words)


def test_stop_strings_and_ids(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    [whole] = llm.generate(list(PROMPTS[0].encode()), params)
    ids = whole.outputs[0].token_ids
    chosen = ids[20]
    [output] = llm.generate(PROMPTS[0], SamplingParams(temperature=0.0, max_tokens=60, stop_token_ids=[chosen]))
    assert output.outputs[0].token_ids == ids[: ids.index(chosen) + 1]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", chosen)
    text = whole.outputs[0].text
    stop = next((text[i : i + 2] for i in range(8, len(text) - 1) if text[i : i + 2].isascii()), None)
    if stop is not None:
        [output] = llm.generate(PROMPTS[0], SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, stop=stop))
        assert output.outputs[0].text == text[: text.find(stop)]
        assert output.outputs[0].stop_reason == stop


def test_a_stop_string_counts_after_min_tokens(llm: LLM) -> None:
    params = {"temperature": 0.0, "max_tokens": 60, "ignore_eos": True}
    [whole] = llm.generate(PROMPTS[0], SamplingParams(**params))
    text, ids = whole.outputs[0].text, whole.outputs[0].token_ids
    stop = next(letter for letter in text if letter.isascii() and text.count(letter) > 2)
    [output] = llm.generate(PROMPTS[0], SamplingParams(**params, stop=stop, min_tokens=30))
    [sample] = output.outputs
    assert ids[: len(sample.token_ids)] == sample.token_ids
    assert len(sample.token_ids) > 30
    assert text.startswith(sample.text)
    assert stop not in bytes(token for token in sample.token_ids[30:-1] if token < 256).decode(errors="replace")
    assert sample.stop_reason == stop or sample.finish_reason == "length"


def test_leaving_a_stream_gives_the_request_up(llm: LLM) -> None:
    before = llm.stats()["num_tokens"]
    for _ in llm.stream(PROMPTS * 3, SamplingParams(max_tokens=400, ignore_eos=True)):
        break
    assert not llm._deployment.client.streams
    assert llm.stats()["num_tokens"] - before < 12 * 400 / 2
    assert len(llm.generate("go on", SamplingParams(max_tokens=3, ignore_eos=True))[0].outputs[0].token_ids) == 3


def test_calls_may_be_nested_and_come_from_several_threads(llm: LLM) -> None:
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=30, ignore_eos=True)
    expected = tokens(llm.generate(PROMPTS, params))
    streamed: tuple[int, ...] = ()
    for news in llm.stream(PROMPTS[0], params):
        streamed += news.token_ids
        if len(streamed) == len(news.token_ids):
            assert tokens(llm.generate(PROMPTS[1], params)) == [expected[1]]
    assert streamed == expected[0][0]
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda prompt: llm.generate(prompt, params), PROMPTS))
    assert [tokens(one)[0] for one in outputs] == expected
    for [output] in outputs:
        assert len(output.outputs[0].kinds) == len(output.outputs[0].token_ids)


def test_figures_of_the_run(llm: LLM) -> None:
    before = llm.stats()
    llm.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True))
    after = llm.stats()
    assert after["num_tokens"] - before["num_tokens"] == 80
    assert after["num_requests"] - before["num_requests"] == 4
    assert after["session_committed"] - before["session_committed"] == 80
    assert after["tokens_per_s"] == pytest.approx(after["num_tokens"] / after["busy_s"])


def test_nothing_is_left_behind() -> None:
    before = set(children())
    with LLM(drafters=["ngram"], **SETTINGS) as one:
        mine = [process for process in children() if process not in before]
        folder = one._deployment.folder
        assert len(mine) == 2
        one.generate("hello", SamplingParams(max_tokens=3))
    assert not any(process.is_running() for process in mine)
    assert not folder.exists()
    one.close()  # again
    with pytest.raises(WorkerError, match="is closed"):
        one.generate("hello")


def test_one_that_was_dropped_warns_and_leaves_nothing_behind() -> None:
    before = set(children())
    one = LLM(drafters=[], **SETTINGS)
    mine = [process for process in children() if process not in before]
    with pytest.warns(ResourceWarning, match="not closed"):
        del one  # the only reference
    assert mine
    assert not any(process.is_running() for process in mine)


def test_a_target_that_dies_ends_the_llm() -> None:
    before = set(children())
    with LLM(drafters=[], **SETTINGS) as one:
        [target] = [process for process in children() if process not in before]
        stream = one.stream(PROMPTS, SamplingParams(max_tokens=400, ignore_eos=True))
        next(stream)
        target.kill()
        with pytest.raises(WorkerError, match="target ended"):
            list(stream)
        with pytest.raises(WorkerError, match="is closed"):
            one.generate("hello")


def test_what_is_wrong_is_told_before_processes_start() -> None:
    before = set(children())
    with pytest.raises(ConfigError, match="no target model"):
        LLM()
    with pytest.raises(ConfigError, match="unknown key"):
        LLM(MODEL, speculaton={"budget": 3})
    assert set(children()) == before
    with pytest.raises(Exception, match="max_model_len"):
        LLM({**SETTINGS["target"], "max_model_len": 1_000_000})
    assert set(children()) == before


def run_script(body: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs `body` cell by cell in one namespace that is no module, as a notebook does."""
    script = textwrap.dedent(
        f"""
        import sys
        MODEL, SETTINGS = {MODEL!r}, {SETTINGS!r}
        space = {{"MODEL": MODEL, "SETTINGS": SETTINGS, "__name__": "notebook"}}
        for cell in {textwrap.dedent(body).split("# %%")!r}:
            exec(compile(cell, "<cell>", "exec"), space)
        """
    )
    file = folder / "cells.py"
    file.write_text(script)
    return subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=120, check=False)


def test_in_a_notebook(tmp_path: Path) -> None:
    """No guard, no block: cells one after the other, an interrupt in the middle of one, and no close at the end."""
    body = """
    import os, psutil, signal, sys, threading
    from dist_spec import LLM, SamplingParams
    # %%
    llm = LLM(drafters=["ngram"], **SETTINGS)
    # %%
    print(len(llm.generate("hi", SamplingParams(max_tokens=4, ignore_eos=True))[0].outputs[0].token_ids))
    # %%
    try:
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        while True:
            llm.generate(["hi"] * 8, SamplingParams(max_tokens=400, ignore_eos=True))
    except KeyboardInterrupt:
        print("interrupted", len(llm._deployment.client.streams))
    # %%
    print(len(llm.generate("hi", SamplingParams(max_tokens=5, ignore_eos=True))[0].outputs[0].token_ids))
    print(*(process.pid for process in psutil.Process().children(recursive=True)))
    print({"torch", "transformers", "multiprocessing.spawn"} & set(sys.modules))
    """
    done = run_script(body, tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["4", "interrupted 0", "5"]
    pids = [int(word) for word in lines[3].split()]
    assert len(pids) == 2
    assert lines[4] == "set()"
    wait_for(lambda: not any(map(alive, pids)))


def test_an_interrupt_while_starting_leaves_nothing_behind() -> None:
    before = set(children())

    def interrupt() -> None:
        wait_for(lambda: len(set(children()) - before) == 2)
        time.sleep(0.3)  # both starts are over; loading takes seconds
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        LLM(drafters=["ngram"], **SETTINGS)
    thread.join()
    assert set(children()) == before
