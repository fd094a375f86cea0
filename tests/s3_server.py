"""An S3 server for tests, on this machine: moto's, over HTTP, which counts what it is asked."""

from __future__ import annotations

import functools
import os
import threading
import urllib.request
from dataclasses import dataclass, field

# What a client needs, and must not have from whoever runs the tests.
ACCOUNT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass
class Server:
    """environment: how a client reaches it. requests: method, and path with its query, of each."""

    environment: dict[str, str]
    requests: list[tuple[str, str]] = field(default_factory=list)

    def asked(self, method: str, *parts: str) -> list[str]:
        """The paths that were asked for by `method` and have all of `parts` in them."""
        return [path for how, path in list(self.requests) if how == method and all(part in path for part in parts)]


@functools.cache
def started() -> Server:
    """The server of this process, with a bucket called "bucket"."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, *_arguments) -> None:
            pass

    application = DomainDispatcherApplication(create_backend_app)

    def counting(environ, start_response):
        query = environ.get("QUERY_STRING")
        path = environ["PATH_INFO"] + (f"?{query}" if query else "")
        server.requests.append((environ["REQUEST_METHOD"], path))
        return application(environ, start_response)

    http = make_server("127.0.0.1", 0, counting, threaded=True, request_handler=Quiet)
    endpoint = f"http://127.0.0.1:{http.server_port}"
    server = Server(ACCOUNT | {"AWS_ENDPOINT_URL": endpoint})
    threading.Thread(target=http.serve_forever, daemon=True).start()
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/bucket", method="PUT")).close()
    return server
