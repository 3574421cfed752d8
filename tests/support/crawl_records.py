"""Records of a crawl, written as ISO 28500 says."""

import gzip


def record(kind, body, content_type="text/plain"):
    body = body.encode() if isinstance(body, str) else body
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: http://example.org/\r\nContent-Type: {content_type}\r\n"
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body + b"\r\n\r\n"


def write(path, records):
    """Write records as Common Crawl does: each is a stream of its own."""
    path.write_bytes(b"".join(gzip.compress(each) if path.suffix == ".gz" else each for each in records))
    return path
