"""What the tests of a budget share: small trained runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recur_tune.corpus.tokenizers import byte_tokenizer
from recur_tune.model.pretrained import save_model
from recur_tune.spec import TrialConfig
from recur_tune.trial.run_folder import run_in_folder
from tests.conftest import small_model
from tests.corpus import text_folder
from tests.topics import text_about


def trained(folder: Path, name: str, **fields: Any) -> Path:
    """A run of three steps, whose base and corpus lie beside it; `fields` change its trial."""
    base, corpus = folder / "base", folder / "books"
    if not base.exists():
        save_model(small_model(vocab_size=256), byte_tokenizer(), base)
        text_folder(
            corpus, **{split: [text_about("sea", 200), text_about("court", 99)] for split in ("train", "validation")}
        )
    usual: dict[str, Any] = {
        "base": str(base), "corpus": f"text:{corpus}", "window": 16, "overlap": 2, "windows": 3, "batch": 4,
        "tokens": 400, "validate_every": 400, "validation_tokens": 100, "width": 8, "depth": 1,
    }  # fmt: skip
    run_in_folder(TrialConfig(**usual | fields), folder / name, resume=False, listen=lambda report: None)
    return folder / name
