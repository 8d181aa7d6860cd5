"""Calls to MLflow that arrive, and of which nobody hears."""

from __future__ import annotations

from typing import Any

import pytest
from mlflow import MlflowClient


class Unheard:
    """A method of MLflow's client that goes wrong after it has arrived: in every attempt at the first call that has not
    gone wrong yet."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str, fault: type[BaseException] = ConnectionError) -> None:
        self.real, self.fault = getattr(MlflowClient, name), fault
        self.calls = self.faults = 0
        patch.setattr(MlflowClient, name, lambda *arguments, **options: self.call(*arguments, **options))

    def call(self, *arguments: Any, **options: Any) -> Any:
        answer = self.real(*arguments, **options)
        self.calls += 1
        if self.calls > self.faults:
            self.faults += 1
            raise self.fault
        return answer

    def try_again(self) -> None:
        """Another attempt begins."""
        self.calls = 0
