"""Backend URLs: http or https, host, port, an optional path prefix, and nothing else.

Held by tests/settings/test_backends.py.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from lifeboat.settings.texts import Host, is_ipv6
from lifeboat.settings.values import BadValueError

URL_RULE = "must be a URL, http://HOST:PORT or https://HOST:PORT, with a path prefix or without"


def parse_url(text: str) -> str:
    """Return the URL in its normal spelling: no trailing slash, host in lower case.

    Raises BadValueError, whose message is the remedy.
    """
    if re.search(r"[\s\x00-\x1f\x7f]", text):
        raise BadValueError("Remove the white space")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise BadValueError(
            "Check its port (1 to 65535) and the brackets of an IPv6 host"
        ) from None
    if parts.scheme not in ("http", "https"):
        raise BadValueError("Begin it with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise BadValueError("Take the user and password out, and use api_key")
    if "?" in text or "#" in text:
        raise BadValueError("Take the query and the fragment out")
    if not host or port == 0:
        raise BadValueError("Name a host, and a port from 1 to 65535")
    bracketed = parts.netloc.startswith("[")
    if bracketed:
        if not is_ipv6(host):
            raise BadValueError("Put an IPv6 address, and only that, in brackets")
    else:
        _check_host(host)
    shown_host = f"[{host}]" if bracketed else host
    shown_port = "" if port is None else f":{port}"
    return f"{parts.scheme}://{shown_host}{shown_port}{parts.path.rstrip('/')}"


def without_password(text: str) -> str:
    """Return a faulty URL as a message repeats it."""
    return re.sub(r"//[^/@]*@", "//(hidden)@", text)


def _check_host(host: str) -> None:
    try:
        Host().parse(host)
    except BadValueError:
        raise BadValueError("Name a host: letters, digits, dots and dashes") from None


def name_from_url(url: str) -> str:
    """Return a backend name made of the host and port of a URL: `127.0.0.1-8081`."""
    parts = urlsplit(url)
    host = re.sub(r"[^A-Za-z0-9._]", "-", parts.hostname or "").strip("-._") or "backend"
    return host if parts.port is None else f"{host}-{parts.port}"
