"""The built-in prompts: as many as promised, of every domain, and none of them twice."""

from __future__ import annotations

from collections import Counter

from dist_spec.bench.prompts import DEMO_PROMPTS, DOMAINS, builtin_prompts


def test_ten_of_each_domain() -> None:
    prompts = builtin_prompts()
    assert len(prompts) == 60
    assert Counter(prompt.domain for prompt in prompts) == dict.fromkeys(DOMAINS, 10)
    assert len(DOMAINS) == 6


def test_no_prompt_is_part_of_another() -> None:
    texts = [prompt.text for prompt in (*builtin_prompts(), *DEMO_PROMPTS)]
    assert not [(one, other) for i, one in enumerate(texts) for j, other in enumerate(texts) if i != j and one in other]


def test_they_are_texts_of_moderate_length() -> None:
    for prompt in builtin_prompts():
        assert prompt.text == prompt.text.strip()
        assert 20 <= len(prompt.text.split()) <= 250
    assert all("```" in prompt.text for prompt in builtin_prompts() if prompt.domain == "code")


def test_the_first_of_each_domain() -> None:
    assert [prompt.domain for prompt in builtin_prompts(2)] == [domain for domain in DOMAINS for _ in range(2)]
    assert set(builtin_prompts(2)) < set(builtin_prompts(3)) < set(builtin_prompts())
    assert builtin_prompts(0) == ()
