"""LDA finds topics that were planted, and tells texts of one from those of another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recur_tune.analysis.topics import topic_model as module
from recur_tune.analysis.topics.comparison import jensen_shannon
from recur_tune.analysis.topics.topic_model import TopicModel, cut, fit, topic_model
from recur_tune.common.errors import UserError
from tests.analysis.topics import TOPICS, text_about
from tests.data import text_folder


@pytest.fixture(scope="module")
def planted() -> TopicModel:
    return fit([text_about(topic, 120, seed) for seed in range(30) for topic in TOPICS], len(TOPICS), "the text")


def topics_of(model: TopicModel, *texts: str) -> np.ndarray:
    return model.infer(model.counts(texts))


def test_every_planted_topic_is_found_and_small_words_are_none(planted: TopicModel) -> None:
    found = {frozenset(planted.title(topic, 8).split(", ")) for topic in range(len(TOPICS))}
    assert found == {frozenset(words.split()) for words in TOPICS.values()}
    assert "the" not in planted.words


def test_a_continuation_of_the_same_topic_is_nearer_than_one_of_another(planted: TopicModel) -> None:
    for topic in TOPICS:
        prompt = topics_of(planted, text_about(topic, 60, seed=100))
        far = {
            other: jensen_shannon(prompt, topics_of(planted, text_about(other, 60, seed=101)))[0] for other in TOPICS
        }
        assert min(far, key=far.__getitem__) == topic and far[topic] < 0.1
        assert all(far[other] > 0.6 for other in TOPICS if other != topic)


def test_a_text_without_a_known_word_is_about_everything_alike(planted: TopicModel) -> None:
    assert topics_of(planted, "", "the xylophone 42") == pytest.approx(np.full((2, 3), 1 / 3))


def test_what_is_kept_infers_as_the_fit_itself_did(planted: TopicModel) -> None:
    """sklearn's own transform after its own fit, against the one from stored weights."""
    from sklearn.decomposition import LatentDirichletAllocation

    texts = [text_about(topic, 90, seed) for seed in range(10) for topic in TOPICS]
    counts = planted.counts(texts)
    lda = LatentDirichletAllocation(3, learning_method="online", random_state=0).fit(counts)
    restored = TopicModel(planted.words, lda.components_)
    assert restored.infer(counts) == pytest.approx(lda.transform(counts), abs=1e-9)


def test_a_fit_is_made_once_for_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECUR_TUNE_CACHE", str(tmp_path / "cache"))
    corpus = text_folder(tmp_path / "books", train=[text_about(topic, 900) for topic in TOPICS])
    seen: list[int] = []
    first = topic_model(corpus, 3, lambda done, total: seen.append(done))
    again = topic_model(corpus, 3, lambda done, total: pytest.fail("it was fitted before"))
    assert seen and first.words == again.words and np.array_equal(first.weights_KV, again.weights_KV)
    assert len(topic_model(corpus, 2).weights_KV) == 2
    text_folder(tmp_path / "books", train=["harbour butter judge " * 400])
    assert topic_model(corpus, 3).words != [] and len(list((tmp_path / "cache").glob("text-topics-*[!k]"))) == 3


def test_a_fit_that_is_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECUR_TUNE_CACHE", str(tmp_path / "cache"))
    corpus = text_folder(tmp_path / "books", train=[text_about(topic, 900) for topic in TOPICS])

    def stop(seen: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        topic_model(corpus, 3, stop)
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("pieces", [[], ["harbour"], ["harbour butter judge"] * 9, ["one 2 3", "one 2 4", "5", "6"]])
def test_too_few_words_for_the_topics_are_one_sentence(pieces: list[str]) -> None:
    with pytest.raises(UserError, match="topics: 3 cannot be told apart by the 0 words that the text has"):
        fit(pieces, 3, "the text")


@given(st.lists(st.sampled_from(["a", "bc", "\n", " ", "é"])), st.integers(1, 4))
def test_pieces_have_all_words_in_their_order_and_so_many_each(parts: list[str], words: int) -> None:
    data = "".join(parts).encode()
    pieces = [piece.split() for piece in cut(data, words)]
    assert [word for piece in pieces for word in piece] == data.split()
    assert all(len(piece) == words for piece in pieces[:-1]) and all(pieces)


def test_of_many_pieces_some_from_all_over_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PIECES", 3)
    numbers = [" ".join(str(piece) for piece in range(at, at + 5) for _ in range(300)) for at in (0, 5)]
    corpus = module.open_corpus(text_folder(tmp_path, train=numbers))
    assert [piece.split()[0] for piece in module._pieces(corpus)] == ["0", "4", "9"]
