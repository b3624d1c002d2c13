"""A small object store that speaks S3 over HTTP, for tests of storage that is not local: what pyarrow's own client asks for,
and no more.

    with serve() as store:
        Storage(store.uri("runs"))          # s3://key:secret@bucket/runs?endpoint_override=127.0.0.1:PORT&scheme=http&...

Objects are kept in memory. As on any object store, an object is seen when its upload is complete, and not before: parts of an
upload that was cut stay in `uploads`. Whatever is not known here is refused with 501, so that a test cannot pass by accident.
"""

from __future__ import annotations

import hashlib
import io
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

BUCKET = "bucket"
PAGE = 1000  # keys in one answer


@dataclass
class Stored:
    content: bytes
    modified: float = field(default_factory=time.time)

    @property
    def tag(self) -> str:
        return f'"{hashlib.md5(self.content).hexdigest()}"'


@dataclass
class Store:
    """What is in the bucket, what was asked, and what is to go wrong."""

    address: str = ""
    objects: dict[str, Stored] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)  # "PUT runs/a.json" and so on
    page: int = PAGE
    refuse_writes_of: str | None = None  # keys that hold this text: 403
    lock: threading.RLock = field(default_factory=threading.RLock)

    def uri(self, path: str) -> str:
        return f"s3://key:secret@{BUCKET}/{path}?endpoint_override={self.address}&scheme=http&region=us-east-1"


class Refused(Exception):
    def __init__(self, status: int, code: str) -> None:
        self.status, self.code = status, code


@contextmanager
def serve() -> Iterator[Store]:
    """A store of one bucket, at a free port of this machine until the end of the block."""
    store = Store()

    class Handler(_Handler):
        pass

    Handler.store = store
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    store.address = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _unchunked(stream: IO[bytes]) -> bytes:
    """SIZE CRLF BYTES CRLF, again and again up to a size of 0; what stands behind a semicolon is not needed."""
    chunks = []
    while size := int(stream.readline().split(b";")[0], 16):
        chunks.append(stream.read(size))
        stream.readline()
    return b"".join(chunks)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Store

    def handle_any(self) -> None:
        place = urlsplit(self.path)
        bucket, _, key = unquote(place.path.lstrip("/")).partition("/")
        query = {name: values[0] for name, values in parse_qs(place.query, keep_blank_values=True).items()}
        body = self.body()  # always: the next request is behind it on the same connection
        with self.store.lock:
            self.store.requests.append(f"{self.command} {key}" + (f" {sorted(query)}" if query else ""))
            try:
                if bucket != BUCKET:
                    raise Refused(404, "NoSuchBucket")
                refused = self.store.refuse_writes_of
                if refused and refused in key and self.command in ("PUT", "POST"):
                    raise Refused(403, "AccessDenied")
                (self.on_object if key else self.on_bucket)(key, query, body)
            except Refused as refused:
                self.answer(refused.status, f"<Error><Code>{refused.code}</Code><Message>{refused.code}</Message></Error>")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            content = _unchunked(self.rfile)
            self.rfile.readline()
        else:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        wrapped = "aws-chunked" in self.headers.get("Content-Encoding", "")  # chunks once more, then a checksum
        return _unchunked(io.BytesIO(content)) if wrapped else content

    # --- bucket ------------------------------------------------------------------------------------------------------

    def on_bucket(self, _: str, query: dict[str, str], body: bytes) -> None:
        if self.command == "HEAD":
            self.answer(200)
        elif self.command == "GET" and query.get("list-type") == "2":
            self.answer(200, self.listing(query))
        elif self.command == "POST" and "delete" in query:
            tree = ElementTree.fromstring(body)
            keys = [node.text or "" for node in tree.iter() if node.tag.rpartition("}")[2] == "Key"]
            for key in keys:
                self.store.objects.pop(key, None)
            deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            self.answer(200, f"<DeleteResult>{deleted}</DeleteResult>")
        else:
            raise Refused(501, "NotImplemented")

    def listing(self, query: dict[str, str]) -> str:
        """Keys and, with a delimiter, folders, in order; a page at a time."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        entries: dict[str, Stored | None] = {}
        for key, stored in sorted(self.store.objects.items()):
            if not key.startswith(prefix):
                continue
            rest = key[len(prefix) :]
            folder, mark, _ = rest.partition(delimiter) if delimiter else (rest, "", "")
            entries[prefix + folder + mark if mark else key] = None if mark else stored
        names = [name for name in entries if name > query.get("continuation-token", query.get("start-after", ""))]
        size = min(int(query.get("max-keys", PAGE)), self.store.page)
        shown, more = names[:size], len(names) > size
        lines = [f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(shown)}</KeyCount>"]
        lines.append(f"<MaxKeys>{size}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>")
        if more:
            lines.append(f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>")
        for name in shown:
            stored = entries[name]
            if stored is None:
                lines.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
                continue
            when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stored.modified))
            about = f"<LastModified>{when}</LastModified><ETag>{escape(stored.tag)}</ETag><Size>{len(stored.content)}</Size>"
            lines.append(f"<Contents><Key>{escape(name)}</Key>{about}<StorageClass>STANDARD</StorageClass></Contents>")
        return f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{"".join(lines)}</ListBucketResult>'

    # --- objects -----------------------------------------------------------------------------------------------------

    def on_object(self, key: str, query: dict[str, str], body: bytes) -> None:
        objects, uploads = self.store.objects, self.store.uploads
        upload = query.get("uploadId", "")
        if upload and upload not in uploads:
            raise Refused(404, "NoSuchUpload")
        named = f"<Bucket>{BUCKET}</Bucket><Key>{escape(key)}</Key>"
        if self.command in ("GET", "HEAD") and not query:
            if key not in objects:
                raise Refused(404, "NoSuchKey")
            self.answer_object(objects[key])
        elif self.command == "PUT" and upload:
            uploads[upload][int(query["partNumber"])] = body
            self.answer(200, headers={"ETag": Stored(body).tag})
        elif self.command == "PUT" and not query and "x-amz-copy-source" not in self.headers:
            objects[key] = Stored(body)
            self.answer(200, headers={"ETag": objects[key].tag})
        elif self.command == "POST" and "uploads" in query:
            upload = uuid.uuid4().hex
            uploads[upload] = {}
            self.answer(
                200,
                f"<InitiateMultipartUploadResult>{named}<UploadId>{upload}</UploadId></InitiateMultipartUploadResult>",
            )
        elif self.command == "POST" and upload:
            parts = uploads.pop(upload)
            objects[key] = Stored(b"".join(parts[number] for number in sorted(parts)))
            tag = f"<ETag>{escape(objects[key].tag)}</ETag>"
            self.answer(200, f"<CompleteMultipartUploadResult>{named}{tag}</CompleteMultipartUploadResult>")
        elif self.command == "DELETE":
            uploads.pop(upload, None) if upload else objects.pop(key, None)
            self.answer(204)
        else:
            raise Refused(501, "NotImplemented")

    def answer_object(self, stored: Stored) -> None:
        content, status, headers = stored.content, 200, {}
        asked = self.headers.get("Range", "")
        if asked.startswith("bytes=") and self.command == "GET":
            first, _, last = asked.removeprefix("bytes=").partition("-")
            if int(first) >= len(content):
                raise Refused(416, "InvalidRange")
            end = min(int(last or len(content)), len(content) - 1)
            headers["Content-Range"] = f"bytes {first}-{end}/{len(content)}"
            content, status = content[int(first) : end + 1], 206
        headers |= {"ETag": stored.tag, "Last-Modified": formatdate(stored.modified, usegmt=True), "Accept-Ranges": "bytes"}
        self.answer(status, content, {"Content-Type": "application/octet-stream"} | headers)

    # --- answers -----------------------------------------------------------------------------------------------------

    def answer(self, status: int, content: str | bytes = b"", headers: dict[str, str] | None = None) -> None:
        if isinstance(content, str):
            content = f'<?xml version="1.0" encoding="UTF-8"?>{content}'.encode()
            headers = {"Content-Type": "application/xml"} | (headers or {})
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Quiet: `requests` has it."""
