"""Where MLflow keeps a search's runs, and the addresses of its pages about them."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from recur_tune.search.record.directory import SearchDirectory

DELIVERED = "mlflow.json"
FILES = "mlartifacts"  # beside the database, which holds no files
TRAINING = "workflowType=machine_learning"  # without it MLflow shows its pages for chat applications
NOTE = "mlflow.note.content"  # the tag with a page's text
PICTURE, SMALL_PICTURE, FIGURE = "front.png", "front-small.png", "front.html"  # files beside a search's run


def tracking_uri(directory: SearchDirectory) -> str:
    """The search's tracking server, or the SQLite file that all searches of a results folder share."""
    return directory.spec.tracking or f"sqlite:///{directory.path.absolute().parent / 'mlflow.db'}"


def is_server(uri: str) -> bool:
    """Whether this is a tracking server, which has pages, and not a file."""
    return uri.startswith(("http://", "https://"))


def without_password(text: str) -> str:
    """Text without the passwords of addresses in it."""
    return re.sub(r"//[^/\s@]*@", "//", text)


@dataclass
class Delivered:
    """What MLflow has received, as `mlflow.json` keeps it."""

    uri: str
    experiment: str = ""
    parent: str = ""
    offset: int = 0  # in the log: everything before it is delivered
    before: str = ""  # a digest of what stands in the log before the offset
    runs: dict[int, str] = field(default_factory=dict)  # run ids by the trials' numbers
    front: list[int] = field(default_factory=list)  # trials tagged as on the front
    table: list[int] = field(default_factory=list)  # the front whose table the server has
    figures: list[int] = field(default_factory=list)  # the front whose figures the server has
    pictured: bool = False  # whether it has any picture at all
    corpus: dict[str, str] = field(default_factory=dict)  # what the corpus was when it began: digests by split

    def page(self, run: str) -> str:
        """Where a run is shown below MLflow's own address."""
        return f"#/experiments/{self.experiment}/runs/{run}"

    def artifact(self, path: str) -> str:
        """Where one of the search's files is shown."""
        return f"{self.page(self.parent)}/artifacts/{path}"

    def image(self, path: str) -> str:
        """A picture among the search's files by itself, relative to any of MLflow's pages."""
        return f"get-artifact?path={quote(path)}&run_uuid={self.parent}"

    @property
    def run_list(self) -> str:
        """All runs of all searches."""
        return f"#/experiments/{self.experiment}/runs?{TRAINING}"

    @classmethod
    def read(cls, path: Path, uri: str) -> Delivered:
        """The file's content; where it is missing, broken or about another server, nothing is delivered yet."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            fields = json.loads(path.read_text())
            if fields["uri"] == uri:
                return cls(**fields | {"runs": {int(number): run for number, run in fields["runs"].items()}})
        return cls(uri)
