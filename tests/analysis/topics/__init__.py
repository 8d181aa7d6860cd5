"""What the tests of topics share: a text with topics that are known."""

from __future__ import annotations

import numpy as np

TOPICS = {
    "sea": "harbour sailor anchor mast storm captain island voyage",
    "kitchen": "butter flour oven sugar recipe apron spoon pastry",
    "court": "judge verdict witness lawyer trial prison evidence oath",
}


def text_about(topic: str, words: int, seed: int = 0) -> str:
    """Random words of one topic, with small words between them that say nothing."""
    random, own = np.random.default_rng([seed, *topic.encode()]), TOPICS[topic].split()
    return " ".join(f"the {own[at]} and" for at in random.integers(len(own), size=words // 3))
