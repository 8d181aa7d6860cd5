# recur-tune wrote this beside the model that it trained: recur_tune.model.cache, with imports of its own.
"""What is kept of a text that is read on: the keys and values of its window, and the window's passage.

Shape suffixes: B lanes, T positions, K hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .windows import Windowing
from .recurrence import Passage


@dataclass
class Cache:
    """The part of a window that was already read, for reading on token by token.

    Attributes:
        keys_values: Of every layer, what was inserted before the window among them.
        hidden: How many of them each lane must not see, counted from the first; a layer that is not here hides none.
        passage: The window's.
        length: Tokens of it that were read.
    """

    keys_values: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    hidden: dict[int, torch.Tensor] = field(default_factory=dict)
    passage: Passage | None = None
    length: int = 0

    def reorder(self, lane_B: torch.Tensor) -> None:
        """Put other lanes in the lanes' places."""
        self.keys_values = {layer: (k[lane_B], v[lane_B]) for layer, (k, v) in self.keys_values.items()}
        self.hidden = {layer: hidden_B[lane_B] for layer, hidden_B in self.hidden.items()}
        if self.passage is not None:
            self.passage.reorder(lane_B)


@dataclass
class TextCache:
    """The past of a text without end: what Hugging Face calls `past_key_values`.

    It holds one window, however long the text: when the window is full, its state and the tokens of the overlap are all
    that the next one has of it.
    """

    windowing: Windowing
    window: Cache = field(default_factory=Cache)
    recent_BT: torch.Tensor | None = None  # the last tokens, as many as overlap
    length: int = 0  # of the text so far

    # Hugging Face asks: neither has this cache a fixed shape, nor can it go back to the window before.
    is_compileable = False
    is_croppable = False

    @property
    def room(self) -> int:
        """Tokens that the window still takes."""
        return self.windowing.size - self.window.length

    def next_window(self) -> torch.Tensor | None:
        """Begin a window; the tokens that it reads again."""
        self.window = Cache()
        return self.recent_BT

    def note(self, tokens_BT: torch.Tensor) -> None:
        """Remember what was read of the text."""
        text_BT = tokens_BT if self.recent_BT is None else torch.cat([self.recent_BT, tokens_BT], dim=1)
        self.recent_BT = text_BT[:, max(0, text_BT.shape[1] - self.windowing.overlap) :]
        self.length += tokens_BT.shape[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens of the text so far, by Hugging Face's name: what is given beyond them is new."""
        return self.length

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Put other lanes in the lanes' places, by Hugging Face's name: beam search goes on with the best ones."""
        self.window.reorder(beam_idx)
        self.recent_BT = None if self.recent_BT is None else self.recent_BT[beam_idx]
