"""A body as its page shows it: one file and one line make transformers' own model, with a recurrence and without."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING

from recur_tune.common.shape import FAMILIES
from recur_tune.models.bodies import BODIES, model_class
from recur_tune.recurrences.pooled.spec import PooledSpec
from tests.extending import files_of
from tests.models import bodies, some_tokens


@pytest.mark.parametrize("changes", [{}, {"mlp_bias": True, "attention_bias": True}], ids=["plain", "biases"])
def test_the_body_of_the_page_is_transformers_own_model(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, shown = files_of("adding-a-body"), dict[str, Any](__name__="arcee")
    monkeypatch.setitem(FAMILIES, "arcee", None)  # which is undone after the test
    exec(files["shape.py"] + files["arcee.py"], shown)
    monkeypatch.setitem(sys.modules, "recur_tune.models.bodies.arcee", SimpleNamespace(**shown))
    monkeypatch.setitem(BODIES, "arcee", model_class(FAMILIES["arcee"].model))
    settings = {**bodies.BODIES["llama"], "model_type": "arcee", **changes}
    monkeypatch.setitem(bodies.BODIES, "arcee", settings)

    model, tokens = bodies.body("arcee"), some_tokens(2, 20)
    theirs = bodies.hugging_face(model)
    torch.testing.assert_close(model(tokens).logits, theirs(tokens).logits, rtol=1e-9, atol=1e-9)
    assert model.config.shape.parameters == theirs.num_parameters()
    assert CONFIG_MAPPING["arcee"] in type(model.config).__mro__

    recurrent = bodies.body("arcee", PooledSpec(width=8, depth=1))
    state = recurrent.read(tokens[:, :10]).state
    seen, alone = (recurrent.read(tokens[:, 10:], given).top_BTK for given in (state, None))
    assert not torch.allclose(seen, alone)
