"""Reports dead links of the built pages: to a missing file or a missing anchor.

Reads the HTML and nothing else; links to other sites are not followed.
"""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.typing import ExtensionMetadata


class Page(HTMLParser):
    """Anchors of a page, and its links and images."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.add(value)


def broken_links(site: Path) -> list[str]:
    """One line for every dead link of the site."""
    pages = {
        path.resolve(): Page(path) for path in site.rglob("*.html") if "_static" not in path.parts
    }
    return sorted(
        f"{path.relative_to(site.resolve())}: {link}"
        for path, page in pages.items()
        for link in page.links
        if not _leads_somewhere(link, path, pages)
    )


def _leads_somewhere(link: str, path: Path, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if there not in pages:
        return there.is_file()
    return not parts.fragment or unquote(parts.fragment) in pages[there].anchors


def check(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        found = broken_links(Path(app.outdir))
        if found:
            raise ExtensionError("dead links:\n" + "\n".join(found))


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("build-finished", check, priority=900)  # when other extensions have copied files
    return {"parallel_read_safe": True, "parallel_write_safe": True}
