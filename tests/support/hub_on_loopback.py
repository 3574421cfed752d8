"""A Hugging Face hub on this machine's loopback: repositories in memory, behind the addresses that its packages call.

    with Hub() as hub:
        commit = hub.commit("owner/name", {"config.json": b"…"})      # on the branch main
        hub.url, hub.requests                                          # where it listens, and what it was asked

A repository may be gated or private: `hub.repositories["models/owner/name"].refusal = "GatedRepo"`.
"""

import base64
import dataclasses
import hashlib
import json
import re
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclasses.dataclass
class Repository:
    commits: dict[str, dict[str, bytes]] = dataclasses.field(default_factory=dict)
    """Files of each commit."""
    branches: dict[str, str] = dataclasses.field(default_factory=dict)
    refusal: str = ""
    """GatedRepo: files are refused without a token."""
    private: bool = False


class Hub:
    def __init__(self):
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        self.status = 0
        """If not 0, the answer to every request; -1: none, as if there were no network."""
        self.page = b"{}"
        """What comes with that answer."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *unused):
        self.status = -1  # for connections that are open
        self._server.shutdown()
        self._server.server_close()  # new ones are refused

    def commit(self, name: str, files: dict[str, bytes], kind="models", branch="main") -> str:
        """Make these the files of a branch, and return the commit."""
        repository = self.repositories.setdefault(f"{kind}/{name}", Repository())
        text = json.dumps([name, branch, len(repository.commits), sorted(files)])
        commit = hashlib.sha1(text.encode()).hexdigest()
        repository.commits[commit] = dict(files)
        repository.branches[branch] = commit
        return commit

    def fetched(self) -> list[str]:
        """Return the names of the files whose contents were asked for."""
        got = [line.partition("/resolve/")[2] for line in self.requests if line.startswith("GET ")]
        return sorted(line.partition("/")[2] for line in got if line)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *unused):
        pass

    def _answer(self):
        size = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(size)
        self.url = urllib.parse.urlsplit(self.path)
        self.hub.requests.append(f"{self.command} {self.url.path}")
        if self.hub.status < 0:
            self.close_connection = True
            return None
        if self.hub.status:
            return self._send(self.hub.status, self.hub.page)
        path = self.url.path
        for pattern, answer in ROUTES:
            if match := re.fullmatch(pattern, path):
                found = {key: urllib.parse.unquote(value) for key, value in match.groupdict().items() if value}
                return answer(self, **found)
        return self._send(404, b"{}")

    do_GET = do_HEAD = do_POST = _answer

    def _send(self, status, body, **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value):
        self._send(200, json.dumps(value).encode(), Content_Type="application/json")

    def _find(self, kind, name, revision):
        """Return (repository, commit); None after an answer that there is none."""
        repository = self.hub.repositories.get(f"{kind}/{name}")
        if repository is None:
            return self._send(401, b"{}", X_Error_Code="RepoNotFound")
        commit = repository.branches.get(revision, revision)
        if commit not in repository.commits:
            return self._send(404, b"{}", X_Error_Code="RevisionNotFound")
        return repository, commit

    def info(self, kind, name, revision="main"):
        if found := self._find(kind, name, revision):
            names = [{"rfilename": file} for file in found[0].commits[found[1]]]
            self._json({"id": name, "sha": found[1], "siblings": names, "tags": [], "private": found[0].private})

    def tree(self, kind, name, revision, path=""):
        if found := self._find(kind, name, revision):
            files, below = found[0].commits[found[1]], f"{path}/" if path else ""
            recursive = urllib.parse.parse_qs(self.url.query).get("recursive", [""])[0].lower() in ("true", "1")
            entries = {}
            for file, content in files.items():
                if file.startswith(below):
                    top, slash, _ = file.removeprefix(below).partition("/")
                    if slash:
                        entries[below + top] = {"type": "directory", "path": below + top, "oid": "0" * 40, "size": 0}
                    if recursive or not slash:
                        entries[file] = _entry(file, content)
            self._json(list(entries.values())) if entries else self._send(404, b"{}", X_Error_Code="EntryNotFound")

    def paths_info(self, kind, name, revision):
        if found := self._find(kind, name, revision):
            if self.headers.get("Content-Type", "").startswith("application/json"):
                paths = json.loads(self.body)["paths"]
            else:
                paths = urllib.parse.parse_qs(self.body.decode()).get("paths", [])
            files = found[0].commits[found[1]]
            entries = [_entry(path, files[path]) for path in paths if path in files]
            entries += [
                {"type": "directory", "path": path, "oid": "0" * 40, "size": 0}
                for path in paths
                if any(file.startswith(f"{path}/") for file in files)
            ]
            self._json(entries)

    def resolve(self, name, revision, path, kind="models"):
        if not (found := self._find(kind, name, revision)):
            return
        repository, commit = found
        if repository.refusal and "Authorization" not in self.headers:
            self._send(401, b"{}", X_Error_Code=repository.refusal, X_Repo_Commit=commit)
        elif (content := repository.commits[commit].get(path)) is None:
            self._send(404, b"{}", X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        else:
            self._content(content, commit)

    def _content(self, content, commit):
        headers = {"ETag": f'"{_oid(content)}"', "X_Repo_Commit": commit, "Accept_Ranges": "bytes"}
        if span := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(span[1]), int(span[2] or len(content) - 1)
            headers["Content_Range"] = f"bytes {first}-{min(last, len(content) - 1)}/{len(content)}"
            return self._send(206, content[first : last + 1], **headers)
        return self._send(200, content, **headers)

    def create(self):
        asked = json.loads(self.body)
        if self.headers.get("Authorization") != "Bearer hf_writer":
            return self._send(403, b'{"error": "You may not write there"}')
        name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
        key = f"{asked.get('type', 'model')}s/{name}"
        if key in self.hub.repositories:
            return self._send(409, json.dumps({"url": f"{self.hub.url}/{name}"}).encode())
        self.hub.commit(name, {".gitattributes": b""}, f"{asked.get('type', 'model')}s")
        self.hub.repositories[key].private = asked.get("visibility") == "private" or bool(asked.get("private"))
        return self._json({"url": f"{self.hub.url}/{name}", "name": name, "id": name})

    def preupload(self, kind, name, revision):
        if self._find(kind, name, revision):
            files = json.loads(self.body)["files"]
            self._json({"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]})

    def receive(self, kind, name, revision):
        if not (found := self._find(kind, name, revision)):
            return
        files = dict(found[0].commits[found[1]])
        for line in map(json.loads, self.body.splitlines()):
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        commit = self.hub.commit(name, files, kind, revision)
        self._json({"success": True, "commitOid": commit, "commitUrl": f"{self.hub.url}/{name}/commit/{commit}"})

    def valid(self):
        self._json({"errors": [], "warnings": []})


def _oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _entry(path: str, content: bytes) -> dict:
    return {"type": "file", "path": path, "size": len(content), "oid": _oid(content)}


NAME, REVISION, PATH = r"(?P<name>[^/]+/[^/]+)", r"(?P<revision>[^/]+)", r"(?P<path>.+)"
API = rf"/api/(?P<kind>models|datasets)/{NAME}"
ROUTES = [
    (API, _Handler.info),
    (rf"{API}/revision/{REVISION}", _Handler.info),
    (rf"{API}/tree/{REVISION}(?:/{PATH})?", _Handler.tree),
    (rf"{API}/paths-info/{REVISION}", _Handler.paths_info),
    (rf"{API}/preupload/{REVISION}", _Handler.preupload),
    (rf"{API}/commit/{REVISION}", _Handler.receive),
    (r"/api/repos/create", _Handler.create),
    (r"/api/validate-yaml", _Handler.valid),
    (rf"/{NAME}/resolve/{REVISION}/{PATH}", _Handler.resolve),
    (rf"/(?P<kind>datasets)/{NAME}/resolve/{REVISION}/{PATH}", _Handler.resolve),
]
"""Addresses, whose names are quoted, and what answers them."""
