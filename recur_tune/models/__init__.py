"""The recurrent model; it knows nothing of training."""

import transformers

from recur_tune.models.bodies import BODIES
from recur_tune.models.bodies.gpt2 import RecurrentGPT2, RecurrentGPT2Config
from recur_tune.models.decoder import WindowedDecoder
from recur_tune.models.kv_cache import Cache, TextCache
from recur_tune.models.windowed import Windowed, WindowOutput
from recur_tune.recurrences.seam import Recurrence, State, WindowPass

__all__ = [
    "Cache",
    "Recurrence",
    "RecurrentGPT2",
    "RecurrentGPT2Config",
    "State",
    "TextCache",
    "WindowOutput",
    "WindowPass",
    "Windowed",
    "WindowedDecoder",
]  # fmt: skip

for _body in BODIES.values():
    transformers.AutoConfig.register(_body.config_class.model_type, _body.config_class)
    getattr(transformers, _body.opened_by).register(_body.config_class, _body)
