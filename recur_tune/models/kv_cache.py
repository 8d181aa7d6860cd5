"""Key-value cache of a text that is read on: its current window's keys and values, and the window pass.

Shape suffixes: B batch rows, T positions, K hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from recur_tune.common.windowing import Windowing
from recur_tune.recurrences.seam import WindowPass


@dataclass
class Cache:
    """Key-value cache of one window, for reading it token by token.

    Attributes:
        keys_values: By layer, for nothing else a copy: what was inserted before the window is among them, unless the
            window pass gets them whole; then keys are before rotary position embeddings.
        hidden: By layer, how many of them each batch row must not see, from the first on; without an entry, none.
        window_pass: The window's.
        length: Tokens of the window that were read.
    """

    keys_values: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    hidden: dict[int, torch.Tensor] = field(default_factory=dict)
    window_pass: WindowPass | None = None
    length: int = 0

    @property
    def kept(self) -> int:
        """Rows of which a layer's keys and values are kept."""
        return self.keys_values[0][0].shape[2] if self.keys_values else 0

    def reorder(self, index_B: torch.Tensor) -> None:
        """Take the batch rows at these indices."""
        self.keys_values = {layer: (k[index_B], v[index_B]) for layer, (k, v) in self.keys_values.items()}
        self.hidden = {layer: hidden_B[index_B] for layer, hidden_B in self.hidden.items()}
        if self.window_pass is not None:
            self.window_pass.reorder(index_B)


@dataclass
class TextCache:
    """Key-value cache of a text of any length: Hugging Face's `past_key_values`.

    It holds one window. When that is full, the next one gets its state and the tokens of the overlap, and nothing else.
    """

    windowing: Windowing
    window: Cache = field(default_factory=Cache)
    recent_BT: torch.Tensor | None = None  # the last tokens, as many as windows overlap
    length: int = 0  # of the text so far

    # Hugging Face asks for both: this cache has no fixed shape and cannot return to the window before.
    is_compileable = False
    is_croppable = False

    @property
    def room(self) -> int:
        """Tokens that the window still takes."""
        return self.windowing.size - self.window.length

    def next_window(self) -> torch.Tensor | None:
        """Begin a window, and return the tokens that it reads again."""
        self.window = Cache()
        return self.recent_BT

    def note(self, tokens_BT: torch.Tensor) -> None:
        """Remember what was read of the text."""
        text_BT = tokens_BT if self.recent_BT is None else torch.cat([self.recent_BT, tokens_BT], dim=1)
        self.recent_BT = text_BT[:, max(0, text_BT.shape[1] - self.windowing.overlap) :].clone()
        self.length += tokens_BT.shape[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens of the text so far; Hugging Face's name."""
        return self.length

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Take the batch rows at these indices, as beam search does; Hugging Face's name."""
        self.window.reorder(beam_idx)
        self.recent_BT = None if self.recent_BT is None else self.recent_BT[beam_idx]
