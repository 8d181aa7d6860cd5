"""Precision: the number format of a model's matrix products."""

from typing import Literal

Precision = Literal["auto", "float32", "bfloat16"]
