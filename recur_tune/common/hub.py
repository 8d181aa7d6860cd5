"""The Hugging Face Hub: whether it can be reached, checked once, and one message for what could not be loaded."""

from __future__ import annotations

import os
import socket
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlparse

from recur_tune.common.errors import UserError

_SECONDS_TO_ANSWER = 5.0


@cache
def use_cache_where_offline() -> None:
    """Set offline mode where the Hub cannot be reached, so that loading does not retry for a minute.

    Compute nodes of a cluster often have no network; the login node has filled the cache.
    """
    from huggingface_hub import constants

    behind_proxy = any(name.lower() in ("https_proxy", "all_proxy") for name in os.environ)
    if constants.HF_HUB_OFFLINE or behind_proxy:
        return
    address = urlparse(constants.ENDPOINT)
    try:
        socket.create_connection((address.hostname or "", address.port or 443), _SECONDS_TO_ANSWER).close()
    except OSError:
        constants.HF_HUB_OFFLINE = True
        os.environ["HF_HUB_OFFLINE"] = "1"  # for `datasets`, which reads it when it is first imported


def gguf_file(base: str) -> Path | None:
    """The GGUF file that a base's name means; None where it means something else."""
    if not base.endswith(".gguf"):
        return None
    file = Path(base).expanduser()
    if not file.is_file():
        raise UserError(f"base: there is no file {base}.")
    if not all(map(find_spec, ("gguf", "accelerate"))):
        raise UserError(f"base: {base} is a GGUF file, which needs further packages: pip install 'recur-tune[gguf]'.")
    return file


def hub_message(field: str, name: str, error: Exception, otherwise: str) -> str:
    """Why `name` could not be loaded, and what to give instead."""
    reason = " ".join(str(error).split()).split(". ")[0][:160]  # the advice that follows is ours to give
    if name.endswith(".gguf"):
        return f"{field}: {name} could not be read as a GGUF file ({reason}); is it whole?"
    if Path(name).expanduser().exists():
        return f"{field}: {name} could not be read as a Hugging Face folder ({reason})."
    return (
        f"{field}: {name!r} is neither a local folder nor could it be fetched from the Hub ({reason}); "
        f"check the spelling and the network, or use {otherwise}."
    )
