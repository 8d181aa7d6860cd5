"""Continuations are kept as they are made, and are the same however they were made."""

from __future__ import annotations

from pathlib import Path

import pytest

from recur_tune.analysis.topics.continuations import Sampling, Writer, continuations
from recur_tune.common.errors import UserError
from recur_tune.common.files import cache_folder
from recur_tune.common.windowing import Windowing
from recur_tune.data.tokenizers import byte_tokenizer
from recur_tune.models.pretrained import load_model, save_model
from recur_tune.recurrences.pooled.spec import PooledSpec
from tests.conftest import small_model

TEXTS = ["The sea", "A kitchen is", "Court", "Once more the sea", "Bread"]
SAMPLING = Sampling(tokens=12, temperature=0.9, top_k=None, seed=3)


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    monkeypatch.setenv("RECUR_TUNE_CACHE", str(tmp_path / "cache"))
    model = small_model(PooledSpec(width=8, depth=1), vocab_size=256, n_positions=16, n_layer=2)
    save_model(model, byte_tokenizer(), tmp_path / "run")
    return Writer(tmp_path / "run", load_model(tmp_path / "run")[0], byte_tokenizer(), Windowing(8, 2))


def nobody_writes(tokens: int) -> None:
    pytest.fail("everything was written before")


def test_what_was_interrupted_goes_on_and_ends_the_same(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []

    def stop_in_the_second_batch(tokens: int) -> None:
        heard.append(tokens)
        if tokens > 2 * SAMPLING.tokens + 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        continuations(writer, TEXTS, SAMPLING, 2, progress=stop_in_the_second_batch)
    (file,) = (cache_folder() / "continuations").iterdir()
    assert len(file.read_text().splitlines()) == 2
    heard.clear()
    resumed = continuations(writer, TEXTS, SAMPLING, 2, progress=heard.append)
    assert heard[0] > 2 * SAMPLING.tokens and heard[-1] == len(TEXTS) * SAMPLING.tokens
    assert continuations(writer, TEXTS, SAMPLING, 2, progress=nobody_writes) == resumed
    monkeypatch.setenv("RECUR_TUNE_CACHE", str(writer.run.parent / "another"))
    assert continuations(writer, TEXTS, SAMPLING, 5) == resumed  # at one go, in another batch


def test_other_weights_prompts_or_sampling_are_others_files(writer: Writer) -> None:
    first = continuations(writer, TEXTS[:2], SAMPLING, 2)
    seeded = continuations(writer, TEXTS[:2], Sampling(12, 0.9, None, seed=4), 2)
    assert first != seeded
    save_model(small_model(vocab_size=256, n_positions=16, n_layer=2), byte_tokenizer(), writer.run)
    plain = Writer(writer.run, load_model(writer.run)[0], writer.tokenizer, writer.windowing)
    assert continuations(plain, TEXTS[:2], SAMPLING, 2) != first
    assert len(list((cache_folder() / "continuations").iterdir())) == 3


def test_a_damaged_file_is_one_sentence(writer: Writer) -> None:
    continuations(writer, TEXTS[:1], SAMPLING, 1)
    (file,) = (cache_folder() / "continuations").iterdir()
    file.write_text("[0, ")
    with pytest.raises(UserError, match="could not be read"):
        continuations(writer, TEXTS[:1], SAMPLING, 1)


def test_a_prompt_of_no_token_is_refused(writer: Writer) -> None:
    with pytest.raises(UserError, match="makes no token"):
        continuations(writer, [""], SAMPLING, 1)
