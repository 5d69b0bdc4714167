"""The join rule: how a backend's url and the path of a request become one url.

The url names the root of the server. A trailing slash, and last path segments `v1`, are dropped,
because every proxied path brings its own `/v1`; what is left is put before the path. So
`http://h`, `http://h/`, `http://h/v1` and `http://h/v1/` are the same server, and `http://h/llm/v1`
is asked for its models at `/llm/v1/models`. Source: BUG-201 and BUG-202 of the public cases.
Held by tests/core/test_urls.py.
"""

from __future__ import annotations


def server_root(url: str) -> str:
    """Return the root of a server: scheme, authority and path prefix, without a slash at its end.

    url: an absolute http or https url without query; whoever reads it in has checked it.
    """
    scheme, separator, rest = url.strip().partition("://")
    authority, _, path = rest.partition("/")
    prefix = path_prefix(f"/{path}")
    return f"{scheme}{separator}{authority}{prefix}"


def path_prefix(path: str) -> str:
    """Return what the path of a backend's url puts before every request's path; "" for nothing."""
    prefix = path.rstrip("/")
    # All of them, so that a root is its own root, however often it is asked for.
    while prefix.rpartition("/")[2] == "v1":
        prefix = prefix[: -len("v1")].rstrip("/")
    return prefix


def join(url: str, path: str) -> str:
    """Return the url of `path` (which begins with a slash) on the server that `url` names."""
    return server_root(url) + path


def same_server(one: str, other: str) -> bool:
    """Tell whether two urls name one server, as far as their spelling tells."""
    return spelled_out(one) == spelled_out(other)


def spelled_out(url: str) -> str:
    """Return a root in one spelling, for comparing: with its port, the host in lower case."""
    scheme, _, rest = server_root(url).partition("://")
    authority, slash, path = rest.partition("/")
    scheme, authority = scheme.lower(), authority.lower()
    default_port = {"http": ":80", "https": ":443"}.get(scheme, "")
    if not authority.rpartition("]")[2].rpartition(":")[1]:
        authority += default_port
    return f"{scheme}://{authority}{slash}{path}"
