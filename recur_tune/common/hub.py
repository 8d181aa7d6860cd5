"""The Hugging Face Hub: whether it can be reached, whether files came whole, one message for what could not be had."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from urllib.parse import urlparse

from recur_tune.common.errors import UserError
from recur_tune.common.files import cache_folder

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


def check_downloads(field: str, name: str, kind: str = "model", repository: str | None = None) -> None:
    """Refuse downloaded files whose SHA-256 is another than the Hub's, and remove them; each is read once.

    Hugging Face's own code checks a file's length alone. Its cache calls large files by the digests that the Hub tells.
    """
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    repository = repository or name
    if Path(repository).expanduser().exists() or repository.endswith(".gguf"):
        return
    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type=kind)
    wrong = [blob for blob in folder.glob("blobs/*") if re.fullmatch("[0-9a-f]{64}", blob.name) and not _is_whole(blob)]
    links = [link for link in folder.glob("snapshots/**/*") if wrong and link.resolve() in map(Path.resolve, wrong)]
    for file in (*links, *wrong):
        file.unlink(missing_ok=True)
    if links:
        raise UserError(
            f"{field}: {', '.join(sorted({link.name for link in links}))} of {name!r} came from the Hub with another "
            "SHA-256 than the Hub tells; it was not kept. Run the command again."
        )


def _is_whole(blob: Path) -> bool:
    """Whether a file has the digest that it is called by; the answer is stored, for reading takes a while."""
    known = cache_folder() / "checked" / f"{blob.name}-{blob.stat().st_mtime_ns}"
    if known.exists():
        return True
    with blob.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != blob.name:
            return False
    with suppress(OSError):  # it is read again the next time
        known.parent.mkdir(parents=True, exist_ok=True)
        known.touch()
    return True


def hub_message(field: str, name: str, error: Exception, otherwise: str) -> str:
    """Why `name` could not be loaded, and what to give instead."""
    reason = " ".join(str(error).split()).split(". ")[0][:160]  # the advice that follows is ours to give
    if name.endswith(".gguf"):
        return f"{field}: {name} could not be read as a GGUF file ({reason}); is it whole?"
    if refusal := refused_by_hub(error):
        return f"{field}: {name!r} {refusal}."
    if Path(name).expanduser().exists():
        return f"{field}: {name} could not be read as a Hugging Face folder ({reason})."
    if near := _folder_like(name):
        return (
            f"{field}: there is no folder {name}; did you mean {near}? Nor could it be fetched from the Hub ({reason})."
        )
    return (
        f"{field}: {name!r} is neither a local folder nor could it be fetched from the Hub ({reason}); "
        f"check the spelling and the network, or use {otherwise}."
    )


def _folder_like(name: str) -> Path | None:
    """A folder beside the one that was named whose name is spelled alike; None where there is none."""
    meant, beside = Path(name).expanduser(), list[str]()
    with suppress(OSError):  # mostly there is no such place
        beside = [one.name for one in meant.parent.iterdir() if one.is_dir()]
    near = get_close_matches(meant.name, beside, n=1)
    return meant.parent / near[0] if near else None


def refused_by_hub(error: BaseException | None) -> str | None:
    """What a user has to do where the Hub does not let a token in; None where something else went wrong."""
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

    while error is not None:
        status = error.response.status_code if isinstance(error, HfHubHTTPError) and error.response is not None else 0
        if isinstance(error, GatedRepoError) or status == 403:
            return (
                "is restricted on the Hub, and it does not let your token in; ask for access on its page, and give a "
                "token that has it as HF_TOKEN or by `hf auth login`"
            )
        error = error.__cause__ or error.__context__
    return None
