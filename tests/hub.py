"""A small Hugging Face Hub on loopback: repositories of files in the Hub's own layout, and its faults."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_INFO = re.compile(r"/api/(?P<kind>models|datasets)/(?P<repo>[^/]+(?:/[^/]+)?)(?:/revision/(?P<commit>[^/]+))?")
_LISTS = re.compile(
    r"/api/(?P<kind>models|datasets)/(?P<repo>.+?)/(?P<what>tree|paths-info)/(?P<commit>[^/]+)(?:/(?P<path>.*))?"
)
_FILE = re.compile(r"/(?P<data>datasets/)?(?P<repo>.+?)/resolve/(?P<commit>[^/]+)/(?P<path>.+)")


@dataclass
class Repository:
    """Files by their paths, and what is wrong with them.

    Attributes:
        files: Their content.
        token: The only one that is let in; None: everybody is.
        cuts: How many downloads of large files break off in the middle.
        flips: How many downloads of large files have a flipped bit, under the digest of the whole ones.
    """

    files: dict[str, bytes]
    token: str | None = None
    cuts: int = 0
    flips: int = 0


@dataclass
class Hub:
    """Repositories by kind and name, such as `models/gpt2`, and the requests that were not understood."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    strange: list[str] = field(default_factory=list)
    address: str = ""

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve until the end of the block."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.address = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def _is_large(path: str) -> bool:
    """Whether Git LFS has it."""
    return path.endswith((".safetensors", ".parquet"))


def _entry(path: str, content: bytes) -> dict[str, object]:
    digest = hashlib.sha256(content).hexdigest()
    entry = {"type": "file", "oid": hashlib.sha1(content).hexdigest(), "size": len(content), "path": path}
    return entry | ({"lfs": {"oid": digest, "size": len(content), "pointerSize": 100}} if _is_large(path) else {})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_POST(self) -> None:
        self._asked = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        if found := _LISTS.fullmatch(path):
            if repository := self._repository(f"{found['kind']}/{found['repo']}"):
                self._list(repository, found, with_body)
        elif found := _FILE.fullmatch(path):
            if repository := self._repository(f"{'datasets' if found['data'] else 'models'}/{found['repo']}"):
                self._file(repository, found["path"], found["commit"], with_body)
        elif found := _INFO.fullmatch(path):
            if repository := self._repository(f"{found['kind']}/{found['repo']}"):
                commit = found["commit"] or "main"
                self._json({
                    "id": found["repo"], "sha": COMMIT if commit == "main" else commit, "private": False,
                    "gated": False, "disabled": False, "downloads": 0, "likes": 0, "tags": [],
                    "siblings": [{"rfilename": name} for name in repository.files],
                }, with_body)  # fmt: skip
        else:
            self.hub.strange.append(path)
            self._refuse(404, "EntryNotFound", "Not found")

    def _repository(self, name: str) -> Repository | None:
        repository = self.hub.repositories.get(name)
        if repository is None:
            self._refuse(401, "RepoNotFound", "Repository not found")
        elif repository.token and self.headers.get("Authorization") != f"Bearer {repository.token}":
            self._refuse(401, "GatedRepo", "Access to this model is restricted; this token is not let in")
            return None
        return repository

    def _list(self, repository: Repository, found: re.Match[str], with_body: bool) -> None:
        files = repository.files
        if found["what"] == "paths-info":
            asked = json.loads(self._asked)["paths"] if self._asked.startswith(b"{") else []
            asked = asked or [unquote(one[6:]) for one in self._asked.decode().split("&") if one.startswith("paths=")]
            folders = {"/".join(name.split("/")[:depth]) for name in files for depth in range(1, name.count("/") + 1)}
            there = [_entry(name, files[name]) for name in asked if name in files]
            there += [{"type": "directory", "oid": COMMIT, "size": 0, "path": one} for one in asked if one in folders]
            return self._json(there, with_body)
        below = f"{found['path']}/" if found["path"] else ""
        inside = {name: content for name, content in files.items() if name.startswith(below)}
        if not inside:
            return self._refuse(404, "EntryNotFound", "no such folder")
        recursive = "recursive=true" in self.path.lower()
        folders = {below + name[len(below) :].split("/")[0] for name in inside if "/" in name[len(below) :]}
        listed = [_entry(*one) for one in inside.items() if recursive or "/" not in one[0][len(below) :]]
        listed += [{"type": "directory", "oid": COMMIT, "size": 0, "path": one} for one in sorted(folders)]
        return self._json(listed, with_body)

    def _file(self, repository: Repository, path: str, commit: str, with_body: bool) -> None:
        content = repository.files.get(path)
        if content is None:
            return self._refuse(404, "EntryNotFound", "no such file")
        whole, begin = len(content), 0
        entry = _entry(path, content)
        large = _is_large(path)
        if large and with_body and repository.flips > 0:
            repository.flips -= 1
            content = content[:-1] + bytes([content[-1] ^ 1])
        if asked := re.fullmatch(r"bytes=(\d+)-.*", self.headers.get("Range", "")):
            begin = int(asked[1])
        self.send_response(206 if begin else 200)
        self.send_header("X-Repo-Commit", COMMIT if commit == "main" else commit)
        self.send_header("ETag", f'"{entry["lfs"]["oid"] if large else entry["oid"]}"')  # type: ignore[index]
        self.send_header("Accept-Ranges", "bytes")
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{whole - 1}/{whole}")
        self.send_header("Content-Length", str(whole - begin))
        self.end_headers()
        if with_body and large and repository.cuts > 0:
            repository.cuts -= 1
            self.wfile.write(content[begin : (begin + whole) // 2])
            self.close_connection = True
        elif with_body:
            self.wfile.write(content[begin:])
        return None

    def _json(self, value: object, with_body: bool) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _refuse(self, code: int, error: str, message: str) -> None:
        self.send_response(code)
        self.send_header("X-Error-Code", error)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()
