"""A hook of mkdocs: links to files of the repository outside docs/ become plain text.

The site does not hold those files; `docs.build --check` makes sure that they exist.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")


def on_page_markdown(markdown: str, /, page: Any, **_: Any) -> str:
    """Return the page's text without links that leave docs/."""
    here = DOCS / Path(page.file.src_path).parent

    def kept(found: re.Match[str]) -> str:
        text, target = found.groups()
        if "://" in target or target.startswith("#"):
            return found.group(0)
        inside = (here / target.partition("#")[0]).resolve().is_relative_to(DOCS)
        return found.group(0) if inside else text

    return _LINK.sub(kept, markdown)
