"""Malformed HTTP, hostile headers, bodies that come slowly or not at all, encodings, other people's Hosts; malformed
JSON."""

from __future__ import annotations

import gzip
import json
import zlib
from random import Random

from faults.hostile.client import EITHER, FINE, REFUSED, Attempt, Kind, head, listed, post, raw, statuses

COMPLETIONS = "/v1/completions"
SMALL = json.dumps({"prompt": "Hello", "max_tokens": 4}).encode()
DROPPED = statuses(0, 400, 408)


def request_line(chance: Random, i: int) -> Attempt:
    lines = [
        "\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "GET /\r\n\r\n",
        "GET / HTTP/9.9\r\nhost: x\r\n\r\n",
        "\x00\x01\x02\x03\r\n\r\n",
        "get / http/1.1\r\n\r\n",
        "GET  /  HTTP/1.1\r\nhost: x\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "É / HTTP/1.1\r\n\r\n",
        "GET http:// HTTP/1.1\r\n\r\n",
    ]
    return raw(listed(chance, lines, i), then="half")


def header_lines(chance: Random, i: int) -> Attempt:
    lines = [
        "no colon here",
        ": empty name",
        "na me: x",
        "x\x00y: z",
        "x: a\x00b",
        "x: a\x01b",
        "é: x",
        " folded: x",
        "x\t: y",
        "host: again",
    ]
    return raw(
        f"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n{listed(chance, lines, i)}\r\nconnection: close\r\n\r\n",
        then="half",
    )


def long_header(chance: Random, i: int) -> Attempt:
    size = (1 << 20) * (1 + i % 4)
    return raw(head("/health", None, f"x-long: {'a' * size}", method="GET"))


def many_headers(chance: Random, i: int) -> Attempt:
    lines = [f"x-{n}: {'b' * (i % 3)}" for n in range(3000 * (1 + i % 5))]
    return raw(head("/health", None, *lines, method="GET"))


def endless_headers(chance: Random, i: int) -> Attempt:
    pieces = [f"x-{n}: {'c' * 65000}\r\n".encode() for n in range(300)]
    return raw(f"{listed(chance, ['GET', 'POST'], i % 2)} /health HTTP/1.1\r\nhost: 127.0.0.1\r\n", *pieces)


def slow_headers(chance: Random, i: int) -> Attempt:
    pieces = [piece for n in range(10) for piece in (b"x", 0.1)]
    return raw(
        b"POST /v1/completions HTTP/1.1\r\nx-slow: ", *pieces, then=listed(chance, ["close", "reset", "half"], i % 3)
    )


def lengths(chance: Random, i: int) -> Attempt:
    values = ["-1", "1e3", "0x10", "99999999999999999999999", "abc", "", "4, 5", "+4", "4 4", "٤"]
    body = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: "  # noqa: E501, one text
    return raw(f"{body}{listed(chance, values, i)}\r\n\r\n", SMALL, then="half")


def two_lengths(chance: Random, i: int) -> Attempt:
    lines = [
        ("transfer-encoding: chunked",),
        (f"content-length: {len(SMALL) + 1}",),
        ("transfer-encoding: chunked, gzip",),
        ("transfer-encoding: identity",),
        ("Transfer-Encoding : chunked",),
    ]
    return raw(head(COMPLETIONS, len(SMALL), *listed(chance, lines, i % len(lines))), SMALL, then="half")


def chunks(chance: Random, i: int) -> Attempt:
    bodies = [
        "zz\r\n{}\r\n0\r\n\r\n",
        "-1\r\n{}\r\n",
        "fffffffffffffffff\r\n{}",
        "2\r\n{}XX0\r\n\r\n",
        "2;" + "e" * 100_000 + "\r\n{}\r\n0\r\n\r\n",
        "2\n{}\n0\n\n",
    ]
    return raw(
        head(COMPLETIONS, None, "transfer-encoding: chunked"), listed(chance, bodies, i % len(bodies)), then="half"
    )


def tiny_chunks(chance: Random, i: int) -> Attempt:
    body = json.dumps({"prompt": "x" * 5000, "max_tokens": 2, "user": "y" * 20_000}).encode()
    return raw(
        head(COMPLETIONS, None, "transfer-encoding: chunked"),
        b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n",
    )


def short_body(chance: Random, i: int) -> Attempt:
    return raw(head(COMPLETIONS, len(SMALL) + 1 + i), SMALL, then=listed(chance, ["half", "close", "reset"], i % 3))


def slow_body(chance: Random, i: int) -> Attempt:
    step = max(1, len(SMALL) // (6 + i))
    pieces = [piece for at in range(0, len(SMALL), step) for piece in (SMALL[at : at + step], 0.1)]
    return raw(head(COMPLETIONS, len(SMALL)), *pieces)


def slow_flood(chance: Random, i: int) -> Attempt:
    """A hundred bodies that never come, all at once."""
    return Attempt(
        slow_body(chance, i).pieces,
        field="",
        beside=tuple(raw(head(COMPLETIONS, 1 << 20), b'{"prompt": "', 0.5, then="reset") for _ in range(100)),
    )


def methods(chance: Random, i: int) -> Attempt:
    names = ["PUT", "PATCH", "TRACE", "DELETE", "OPTIONS", "GET", "BREW", "PROPFIND", "CONNECT", "A" * 100]
    return raw(head(COMPLETIONS, None, method=listed(chance, names, i)), then="half")


def paths(chance: Random, i: int) -> Attempt:
    names = [
        "/v1/nothing",
        "/../../etc/passwd",
        "/v1/completions/",
        "/%00",
        "/%ff%fe",
        "/v1/models/%2e%2e%2f",
        "//v1//completions",
        "/" + "a" * 5000,
        "/?" + "q=1&" * 5000,
        "/v1/models/" + "%F0%9F%98%80" * 50,
    ]
    return raw(head(listed(chance, names, i), None, method="GET"))


def content_types(chance: Random, i: int) -> Attempt:
    names = [
        "text/plain",
        "multipart/form-data; boundary=x",
        "application/xml",
        "text/html",
        "application/octet-stream",
        "application/jsonx",
        "image/png",
        "application/",
        "json",
        "x" * 1000,
    ]
    return raw(head(COMPLETIONS, len(SMALL), f"content-type: {listed(chance, names, i)}"), SMALL)


def zipped(chance: Random, i: int) -> Attempt:
    packed = listed(
        chance,
        [
            gzip.compress(SMALL),
            zlib.compress(SMALL),
            gzip.compress(SMALL)[:-6],
            gzip.compress(SMALL) * 2,
            b"\x1f\x8b" + SMALL,
        ],
        i % 5,
    )
    name = listed(chance, ["gzip", "deflate", "gzip", "gzip", "gzip"], i % 5)
    return raw(head(COMPLETIONS, len(packed), f"content-encoding: {name}"), packed)


def bombs(chance: Random, i: int) -> Attempt:
    packed = (
        gzip.compress(b'{"prompt": "' + b"a" * (200 << 20), compresslevel=1)
        if i == 0
        else gzip.compress(b" " * ((50 + i) << 20), compresslevel=1)
    )
    if i % 3 == 2:
        packed = gzip.compress(packed)
    return raw(head(COMPLETIONS, len(packed), "content-encoding: gzip" + (", gzip" if i % 3 == 2 else "")), packed)


def encodings(chance: Random, i: int) -> Attempt:
    names = [
        "br",
        "zstd",
        "compress",
        "x" * 200,
        "gzip, gzip, gzip, gzip, gzip",
        "none",
        "utf-8",
        "gzip;q=0",
        "*",
        "deflate, br",
    ]
    return raw(head(COMPLETIONS, len(SMALL), f"content-encoding: {listed(chance, names, i)}"), SMALL)


def hosts(chance: Random, i: int) -> Attempt:
    names = [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "169.254.169.254",
        "[::ffff:7f00:1].evil.example",
        "xn--e1afmkfd",
        "0x7f.evil.example",
        "metadata",
        "a" * 300,
    ]
    return raw(head(COMPLETIONS, len(SMALL), host=listed(chance, names, i)), SMALL)


def origins(chance: Random, i: int) -> Attempt:
    names = [
        "https://evil.example",
        "null",
        "http://127.0.0.1.evil.example",
        "file://",
        "http://localhost.evil.example:80",
        "chrome-extension://x",
        "https://evil.example:8000",
        "http://evil",
        "data:",
        "https://*",
    ]
    return raw(head(COMPLETIONS, len(SMALL), f"origin: {listed(chance, names, i)}"), SMALL)


def web_page(chance: Random, i: int) -> Attempt:
    """What a page can send without asking: a simple POST."""
    kind = listed(chance, ["text/plain", "text/plain;charset=UTF-8", "multipart/form-data; boundary=b"], i % 3)
    return raw(
        head(
            "/v1/chat/completions",
            len(SMALL),
            f"content-type: {kind}",
            "origin: https://evil.example",
            "sec-fetch-site: cross-site",
        ),
        SMALL,
    )


def half_closed(chance: Random, i: int) -> Attempt:
    body = json.dumps({"prompt": "Hello", "max_tokens": 4 + i, "stream": i % 2 == 1}).encode()
    return raw(head(COMPLETIONS, len(body)), body, then="half")


def pipelined(chance: Random, i: int) -> Attempt:
    first = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * (20 * (i + 1))
    return raw(first + head(COMPLETIONS, len(SMALL)) + SMALL)


def old_http(chance: Random, i: int) -> Attempt:
    version = listed(chance, ["HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/1.2", "HTTP/10.1"], i % 5)
    return raw(
        f"POST {COMPLETIONS} {version}\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\n"
        f"content-length: {len(SMALL)}\r\n\r\n",
        SMALL,
        then="half",
    )


def expects(chance: Random, i: int) -> Attempt:
    names = ["100-continue", "200-ok", "100-continue, 100-continue", "x" * 1000]
    return raw(head(COMPLETIONS, len(SMALL), f"expect: {listed(chance, names, i % 4)}"), 0.1, SMALL)


def declared_huge(chance: Random, i: int) -> Attempt:
    return raw(head(COMPLETIONS, (17 << 20) * 10 ** (i % 5)), SMALL, then="half")


def really_huge(chance: Random, i: int) -> Attempt:
    paths = [COMPLETIONS, "/v1/chat/completions", "/v1/responses", "/tokenize", "/v1/messages"]
    path = listed(chance, paths, i % 5)
    if i % 2:
        piece = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
        return raw(head(path, None, "transfer-encoding: chunked"), *[piece] * 20, b"0\r\n\r\n")
    return post(path, b'{"prompt": "' + b"x" * (17 << 20) + b'"}', field="")


def request_ids(chance: Random, i: int) -> Attempt:
    names = ["", "x" * 5000, "../../x", "a b", "a\tb", '"', "é", "\x7f", "resp_x", "%00"]
    return raw(head(COMPLETIONS, len(SMALL), f"x-request-id: {listed(chance, names, i)}"), SMALL)


def other_protocols(chance: Random, i: int) -> Attempt:
    openers = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"SSH-2.0-x\r\n",
        b"\x00" * 5000,
        b"EHLO x\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100),
    ]
    return raw(listed(chance, openers, i % 6), then="half")


def upgrades(chance: Random, i: int) -> Attempt:
    names = ["websocket", "h2c", "TLS/1.0", "websocket, h2c"]
    return raw(
        head(
            "/health",
            None,
            f"upgrade: {listed(chance, names, i % 4)}",
            "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
            "sec-websocket-version: 13",
            method="GET",
        ),
        then="half",
    )


def silent(chance: Random, i: int) -> Attempt:
    """Connections on which nothing is said."""
    return Attempt((head("/health", None, method="GET"),), field="", beside=(raw(0.3, then="close"),) * 100)


# ---- JSON


def broken_json(chance: Random, i: int) -> Attempt:
    bodies = [
        b"",
        b"{",
        b'{"prompt": "x"',
        b"not json",
        b"{'prompt': 'x'}",
        b'{"prompt": "x",}',
        b'{"prompt" "x"}',
        b'{"prompt": "\x01"}',
        b'{"prompt": "\\x"}',
        b'{"prompt": "x"} {"n": 1}',
    ]
    return post(COMPLETIONS, listed(chance, bodies, i), field="")


def no_object(chance: Random, i: int) -> Attempt:
    bodies = [b"null", b"[]", b'"x"', b"1", b"true", b"[[]]", b"-0", b'[{"prompt": "x"}]', b"1e9", b'""']
    return post(COMPLETIONS, listed(chance, bodies, i), field="")


def nested_json(chance: Random, i: int) -> Attempt:
    depth = 100_000
    deep = listed(chance, ["[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, "[" * depth], i % 3)
    name = listed(
        chance,
        ["user", "prompt", "metadata", "logit_bias", "tools", "processors", "guided_json", "stop", "unknown", "suffix"],
        i,
    )
    return post(COMPLETIONS, f'{{"prompt": "x", "max_tokens": 2, "{name}": {deep}}}'.encode(), field="")


def bad_utf8(chance: Random, i: int) -> Attempt:
    words = [
        b"\xff",
        b"\xc0\xaf",
        b"\xed\xa0\x80",
        b"\xf5\x80\x80\x80",
        b"a\x80",
        b"\xe2\x82",
        b"\xf0\x9f\x98",
        b"\xfe\xff",
        b"\xc3(",
        b"\x80" * 100,
    ]
    return post(COMPLETIONS, b'{"prompt": "' + listed(chance, words, i) + b'"}', field="")


def surrogates(chance: Random, i: int) -> Attempt:
    words = ["\\ud800", "\\udc00", "\\udc00\\ud800", "\\ud83d", "a\\ud83d\\u0041", "\\ude00\\ud83d"]
    name = listed(chance, ["prompt", "stop", "banned_strings", "guided_regex", "user"], i % 5)
    word = listed(chance, words, i % 6)
    value = f'["{word}"]' if name == "banned_strings" else f'"{word}"'
    return post(COMPLETIONS, f'{{"prompt": "x", "max_tokens": 2, "{name}": {value}}}'.encode(), field="")


def not_numbers(chance: Random, i: int) -> Attempt:
    values = ["NaN", "Infinity", "-Infinity", "nan", "0x1", "1_000", "01", ".5", "+1", "1."]
    return post(
        COMPLETIONS,
        f'{{"prompt": "x", "max_tokens": 2, "temperature": {listed(chance, values, i)}}}'.encode(),
        field="",
    )


def huge_numbers(chance: Random, i: int) -> Attempt:
    values = [
        "1e400",
        "-1e400",
        "1e-400",
        "9" * 400,
        "-" + "9" * 5000,
        "1e999999999",
        "0." + "1" * 5000,
        "1" + "0" * 308,
        "2e308",
        "9" * 19,
    ]
    name = listed(
        chance,
        [
            "temperature",
            "seed",
            "n",
            "top_k",
            "max_tokens",
            "min_p",
            "logprobs",
            "presence_penalty",
            "dry_base",
            "repetition_penalty",
        ],
        (i * 7) % 10,
    )
    return post(COMPLETIONS, f'{{"prompt": "x", "{name}": {listed(chance, values, i)}}}'.encode(), field="")


def twice_the_key(chance: Random, i: int) -> Attempt:
    name = listed(chance, ["prompt", "n", "stream", "seed", "max_tokens"], i % 5)
    values = {"prompt": '"x"', "n": "1", "stream": "false", "seed": "1", "max_tokens": "2"}[name]
    return post(
        COMPLETIONS,
        ('{"max_tokens": 2, "prompt": "x"' + f', "{name}": {values}' * (2 + i * 1000) + "}").encode(),
        field="",
    )


def other_encodings(chance: Random, i: int) -> Attempt:
    text = '{"prompt": "x", "max_tokens": 2}'
    bodies = [
        text.encode("utf-16"),
        text.encode("utf-32"),
        b"\xef\xbb\xbf" + text.encode(),
        text.encode("utf-16-le"),
        text.encode() + b"\x00",
        b"\x00" + text.encode(),
        text.encode("utf-7").replace(b"{", b"+AHs-"),
    ]
    return post(COMPLETIONS, listed(chance, bodies, i % 7), field="")


def many_keys(chance: Random, i: int) -> Attempt:
    count = 100_000 if i % 2 else 200_000
    return post(COMPLETIONS, {"prompt": "x", "max_tokens": 2} | {f"k{n}": n for n in range(count)}, field="")


def long_keys(chance: Random, i: int) -> Attempt:
    return post(
        COMPLETIONS,
        {"prompt": "x", "max_tokens": 2, listed(chance, ["k", "\x00", "é", "\n"], i % 4) * 1_000_000: 1},
        field="",
    )


KINDS = (
    Kind(
        "request lines",
        request_line,
        statuses(0, 400, 403, 404, 405, 505),
        "parsers disagree, or answer without a shape",
    ),
    Kind("header lines", header_lines, statuses(0, 200, 400), "the same"),
    Kind("one long header", long_header, statuses(0, 400, 431), "memory without a key (CVE-2025-48956)"),
    Kind("thousands of headers", many_headers, statuses(0, 400, 431), "the same, and the time to look at them"),
    Kind("headers without end", endless_headers, statuses(0, 400, 431), "300 MB of headers were answered with 200"),
    Kind("headers that trickle", slow_headers, DROPPED, "500 slow senders held 500 connections for good"),
    Kind("content lengths", lengths, statuses(0, 400), "smuggling, overflows"),
    Kind("two lengths", two_lengths, statuses(0, 200, 400, 501), "smuggling"),
    Kind("broken chunks", chunks, statuses(0, 400, 413, 431), "overflows; extensions without end"),
    Kind("a chunk per byte", tiny_chunks, FINE, "an event of the loop per byte"),
    Kind("a body cut off", short_body, statuses(0, 400, 408), "a request that waits for ever"),
    Kind("a body that trickles", slow_body, FINE, "a slow client is no bad one"),
    Kind("a hundred slow bodies", slow_flood, FINE, "connections held"),
    Kind("methods", methods, statuses(0, 400, 405, 501), "answers without a shape"),
    Kind("paths", paths, statuses(0, 400, 404, 414, 200, 431), "files of the machine; lookups that fail as 500"),
    Kind("content types", content_types, statuses(415), "a web page may send these"),
    Kind("packed bodies", zipped, statuses(200, 400, 415), "packed bodies read as they are"),
    Kind("gzip bombs", bombs, statuses(400, 413, 415), "memory: 200 MB out of 200 KB"),
    Kind("unknown encodings", encodings, statuses(200, 400, 415), "ignored, so that the body means something else"),
    Kind("other people's hosts", hosts, statuses(400, 403, 421), "DNS rebinding: a page reads the answers"),
    Kind("other people's origins", origins, statuses(400, 403), "a page makes it generate"),
    Kind("a web page's simple POST", web_page, statuses(403, 415), "the same, without a preflight"),
    Kind("half-closed", half_closed, statuses(0, 200), "work for a client that is gone (decision 0086)"),
    Kind("pipelined", pipelined, EITHER, "an event loop kept busy by one connection"),
    Kind("versions of HTTP", old_http, statuses(0, 200, 400, 505), "answers without a shape"),
    Kind("expectations", expects, statuses(100, 200, 400, 417), "a client that waits for a word"),
    Kind("huge by its length", declared_huge, statuses(413), "refused before it is held"),
    Kind("huge in truth", really_huge, statuses(0, 413), "memory"),
    Kind("request ids", request_ids, statuses(200, 400), "headers that are echoed"),
    Kind("other protocols", other_protocols, statuses(0, 400, 404, 505), "answers without a shape"),
    Kind("upgrades", upgrades, statuses(0, 200, 400, 426), "a connection left in between"),
    Kind("silent connections", silent, FINE, "descriptors held"),
    Kind("broken JSON", broken_json, REFUSED, "500s"),
    Kind("no object", no_object, REFUSED, "500s"),
    Kind("nested JSON", nested_json, statuses(200, 400), "a stack that overflows, in C or in Python"),
    Kind("bad UTF-8", bad_utf8, REFUSED, "500s, or text that is not what was sent"),
    Kind("lone surrogates", surrogates, statuses(200, 400), "strings that no tokenizer takes"),
    Kind("NaN in JSON", not_numbers, REFUSED, "a NaN passes every comparison"),
    Kind("huge numbers", huge_numbers, statuses(200, 400), "overflows; quadratic parsing of digits"),
    Kind("the same key again", twice_the_key, statuses(200, 400), "what is checked is not what is used"),
    Kind("other encodings of JSON", other_encodings, statuses(200, 400), "500s"),
    Kind("hundreds of thousands of keys", many_keys, statuses(200, 400, 413), "the loop's time; a log line each"),
    Kind("keys of a megabyte", long_keys, statuses(200, 400, 413), "messages and log lines as long"),
)
