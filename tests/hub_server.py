"""A hub for tests: enough of its API, on this machine, for the real client to fetch checkpoints from it.

Strict: what it does not know is 404 and written down in `unknown`. Large files
come from another host than the API, as the hub's do.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".bin", ".gguf")
REPO_NOT_FOUND = (401, "RepoNotFound", "Invalid username or password.")


@dataclass
class Repository:
    """Commits with their files, and branches. readers: the tokens that may read it; None: everyone may."""

    commits: dict[str, dict[str, bytes]]
    refs: dict[str, str]
    readers: set[str] | None = None
    gated: bool = False
    broken: set[str] = field(default_factory=set)  # files whose download ends with an error of the server

    def commit_of(self, revision: str) -> str | None:
        return self.refs.get(revision) or (revision if revision in self.commits else None)


def commit_named(name: str) -> str:
    return hashlib.sha1(name.encode()).hexdigest()


def repository(files: dict[str, bytes], **more) -> Repository:
    """A repository with one commit, which `main` is at."""
    commit = commit_named("first")
    return Repository({commit: dict(files)}, {"main": commit}, **more)


def blob(content: bytes) -> str:
    """git's name of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def lfs(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Hub:
    """The server. requests: method, path without the query, and Authorization header of each.

    answer: a status and a body that everything gets instead, as from a login page or a hub that is down.
    """

    def __init__(self):
        self.repositories: dict[str, Repository] = {}
        self.requests: list[tuple[str, str, str | None]] = []
        self.unknown: list[str] = []
        self.answer: tuple[int, bytes] | None = None
        self.connections: list[socket.socket] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                hub.connections.append(self.connection)

            def do_GET(self) -> None:
                hub.handle(self)

            def do_HEAD(self) -> None:
                hub.handle(self)

            def log_message(self, *_arguments) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
        for connection in self.connections:  # those that clients keep open too
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def paths(self, start: str = "") -> list[str]:
        """What was asked for, without the questions about the repository."""
        return [path for _, path, _ in self.requests if path.startswith(start)]

    def downloaded(self) -> set[str]:
        """The names of the files that were asked for."""
        return {path.partition("/resolve/")[2].partition("/")[2] for path in self.paths() if "/resolve/" in path}

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(request.path).path)
        authorization = request.headers.get("Authorization")
        self.requests.append((request.command, path, authorization))
        if self.answer:
            self.reply(request, self.answer[0], self.answer[1], {"Content-Type": "text/html"})
        elif path.startswith("/api/models/"):
            self.handle_api(request, path.removeprefix("/api/models/"), authorization)
        elif "/resolve/" in path:
            self.handle_file(request, path, authorization)
        elif path.startswith("/large/"):
            self.handle_large(request, path)
        else:
            self.refuse(request, 404, None, "unknown")

    def handle_api(self, request: BaseHTTPRequestHandler, rest: str, authorization: str | None) -> None:
        name, repo = next(
            ((n, r) for n, r in self.repositories.items() if f"{rest}/".startswith(f"{n}/")), (rest, None)
        )
        if repo is None or (not repo.gated and not may_read(repo, authorization)):
            return self.refuse(request, *REPO_NOT_FOUND)
        what, _, revision = rest.removeprefix(name).lstrip("/").partition("/")
        commit = repo.commit_of(revision or "main")
        if commit is None:
            return self.refuse(request, 404, "RevisionNotFound", f"Invalid rev id: {revision}")
        files = repo.commits[commit]
        if what in ("", "revision"):
            siblings = [
                {"rfilename": file, "size": len(content), "blobId": blob(content)} for file, content in files.items()
            ]
            if "blobs" not in urlsplit(request.path).query:
                siblings = [{"rfilename": file["rfilename"]} for file in siblings]
            return self.reply_json(request, {"id": name, "sha": commit, "siblings": siblings})
        if what == "tree":
            return self.reply_json(request, [tree_entry(file, content) for file, content in files.items()])
        return self.refuse(request, 404, None, "unknown")

    def handle_file(self, request: BaseHTTPRequestHandler, path: str, authorization: str | None) -> None:
        name, _, rest = path.removeprefix("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        repo = self.repositories.get(name)
        if repo is None:
            return self.refuse(request, *REPO_NOT_FOUND)
        if not may_read(repo, authorization):
            code = ("GatedRepo", f"Access to model {name} is restricted.") if repo.gated else REPO_NOT_FOUND[1:]
            return self.refuse(request, 403 if authorization and repo.gated else 401, *code)
        commit = repo.commit_of(revision)
        if commit is None:
            return self.refuse(request, 404, "RevisionNotFound", f"Invalid rev id: {revision}")
        content = repo.commits[commit].get(file)
        if content is None:
            return self.refuse(request, 404, "EntryNotFound", "Entry not found")
        if request.command == "GET" and file in repo.broken:
            return self.refuse(request, 500, None, "Internal error")
        headers = {"X-Repo-Commit": commit, "ETag": f'"{blob(content)}"'}
        if not file.endswith(LARGE):
            return self.reply(request, 200, content, headers)
        location = f"http://localhost:{self.port}/large/{name}/{commit}/{file}"
        large = {"X-Linked-Etag": f'"{lfs(content)}"', "X-Linked-Size": str(len(content)), "Location": location}
        return self.reply(request, 302, b"", headers | large)

    def handle_large(self, request: BaseHTTPRequestHandler, path: str) -> None:
        for name, repo in self.repositories.items():
            for commit, files in repo.commits.items():
                for file, content in files.items():
                    if path == f"/large/{name}/{commit}/{file}":
                        status = 500 if file in repo.broken else 200
                        return self.reply(request, status, b"" if file in repo.broken else content, {})
        return self.refuse(request, 404, None, "unknown")

    def refuse(self, request: BaseHTTPRequestHandler, status: int, code: str | None, message: str) -> None:
        if message == "unknown":
            self.unknown.append(request.path)
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self.reply_json(request, {"error": message}, status, headers)

    def reply_json(
        self, request: BaseHTTPRequestHandler, value, status: int = 200, headers: dict | None = None
    ) -> None:
        self.reply(request, status, json.dumps(value).encode(), {"Content-Type": "application/json"} | (headers or {}))

    def reply(self, request: BaseHTTPRequestHandler, status: int, content: bytes, headers: dict[str, str]) -> None:
        request.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(content)


def may_read(repo: Repository, authorization: str | None) -> bool:
    return repo.readers is None or (authorization or "").removeprefix("Bearer ") in repo.readers


def tree_entry(file: str, content: bytes) -> dict:
    entry = {"type": "file", "path": file, "size": len(content), "oid": blob(content)}
    if file.endswith(LARGE):
        entry["lfs"] = {"oid": lfs(content), "size": len(content), "pointerSize": 134}
    return entry
