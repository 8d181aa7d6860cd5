"""Files of a comparison: JSON, tables, a picture, and the texts.

topics.json      settings, means, differences, every prompt's divergences, the topics' words
topics.csv       a row for each source of continuations
differences.csv  a row for each pair of runs
topics.png       both as a picture
texts.txt        prompts, what truly follows, and what each run has written
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from recur_tune.analysis.topics.comparison import BASE, OTHER, TRUTH, Comparison, Difference, Source
from recur_tune.analysis.topics.prompts import Prompts
from recur_tune.analysis.topics.topic_model import TopicModel
from recur_tune.common.errors import UserError
from recur_tune.common.files import whole_folder
from recur_tune.common.parsing import finite

_JSON = "topics.json"


def check_out(folder: Path) -> None:
    """Refuse a folder that holds other files than an earlier comparison."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"out: {folder} is a file; give a folder.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _JSON).exists():
        raise UserError(f"out: {folder} holds other files; give a folder that is new or empty.")


def summary(settings: Mapping[str, Any], prompts: Prompts, found: Comparison, model: TopicModel) -> dict[str, Any]:
    """Everything, as plain values for JSON."""
    return {
        **settings,
        "log_base": BASE,
        "documents": len(set(prompts.documents.tolist())),
        "documents_too_short": prompts.too_short,
        "prompts": len(prompts.chosen),
        "independent": found.independent,
        "sources": [_row(source) for source in found.sources],
        "differences": [asdict(one) for one in found.differences],
        "document_of_prompt": prompts.documents.tolist(),
        "divergences": {source.name: source.divergence_N.tolist() for source in found.sources},
        "topic_words": [model.title(topic, words=10) for topic in range(len(model.weights_KV))],
    }


def write_folder(
    folder: Path, told: dict[str, Any], prompts: Prompts, written: Mapping[str, Sequence[str]],
    found: Comparison, model: TopicModel,
) -> None:  # fmt: skip
    """All files or none; `told` is the summary."""
    from recur_tune.analysis.topics.picture import panels
    from recur_tune.report.figures.pictures import write_picture

    with whole_folder(folder) as partial:
        (partial / _JSON).write_text(json.dumps(finite(told), indent=2) + "\n")
        _write_rows(partial / "topics.csv", list(told["sources"][0]), told["sources"])
        _write_rows(partial / "differences.csv", [one.name for one in fields(Difference)], told["differences"])
        title = f"Do continuations stay on topic? {told['corpus']}, {told['split']} split"
        write_picture(panels(found), title, partial / "topics.png")
        (partial / "texts.txt").write_text(_texts(prompts, written, found, model), encoding="utf-8")


def _row(source: Source) -> dict[str, Any]:
    return {
        "name": source.name, "divergence": source.mean, "standard_error": source.standard_error,
        "known_words": source.known_words,
    }  # fmt: skip


def _write_rows(path: Path, titles: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, titles, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def _texts(
    prompts: Prompts, written: Mapping[str, Sequence[str]], found: Comparison, model: TopicModel
) -> str:  # fmt: skip
    parts = []
    for at, prompt in enumerate(prompts.chosen):
        topic = model.title(int(found.prompt_topic_N[at]))
        title = f"prompt {at + 1} of {len(prompts.chosen)}, from document {prompt.document + 1}"
        parts.append(f"{'=' * 80}\n{title}\ntopic: {topic}\n\n{prompt.text}\n")
        for source in found.sources:
            if source.name == OTHER:
                continue
            text = prompt.truth if source.name == TRUTH else written[source.name][at]
            far = f"{source.divergence_N[at]:.3f} bits from the prompt"
            own = model.title(int(source.topic_N[at]))
            parts.append(f"{'-' * 80}\n{source.name}: {far}\ntopic: {own}\n\n{text}\n")
    return "\n".join(parts)
