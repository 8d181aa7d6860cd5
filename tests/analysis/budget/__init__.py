"""What the tests of a budget share: small runs, made on the spot or really trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recur_tune.common.parsing import write_yaml
from recur_tune.config.trial import TrialConfig
from recur_tune.data.tokenizers import byte_tokenizer
from recur_tune.models.pretrained import save_model
from recur_tune.training.run_folder import run_in_folder
from tests.analysis.topics import text_about
from tests.conftest import small_model
from tests.data import text_folder


def trial_in(folder: Path, **fields: Any) -> TrialConfig:
    """A trial whose base and corpus lie in the folder; `fields` change it."""
    base, corpus, texts = folder / "base", folder / "books", [text_about("sea", 75), text_about("court", 45)]
    if not base.exists():
        save_model(small_model(vocab_size=256), byte_tokenizer(), base)
        text_folder(corpus, train=texts, validation=texts)
    usual: dict[str, Any] = {
        "base": str(base), "corpus": f"text:{corpus}", "window": 16, "overlap": 2, "bptt_windows": 3, "batch": 4,
        "tokens": 400, "validate_every": 400, "validation_tokens": 100, "width": 8, "depth": 1,
    }  # fmt: skip
    return TrialConfig(**usual | fields)


def made(folder: Path, name: str, **fields: Any) -> Path:
    """What `recur-tune export` leaves: a model, here of random weights, and its trial."""
    trial = trial_in(folder, **fields)
    save_model(small_model(trial.recurrence_spec, vocab_size=256), byte_tokenizer(), folder / name)
    write_yaml(folder / name / "trial.yaml", trial.plain_values())
    return folder / name


def trained(folder: Path, name: str, **fields: Any) -> Path:
    """What `recur-tune train` leaves after three steps."""
    run_in_folder(trial_in(folder, **fields), folder / name, resume=False, listen=lambda report: None)
    return folder / name
