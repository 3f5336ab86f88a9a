"""What MkDocs does beside its own: pages of the rooms, links into the tree, the navigation.

A link in a page is as it works in the repository. Here one to the README of a room leads to the
page that is made of it, and one to another file of the tree becomes text: the site does not have
it.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = "ops/docs"
ROOMS = "how-it-works"
ROOM_FOLDERS = ("broker", "router", "ops", "loadtest")
SECTIONS = {
    "Start": ("start", ["five-minutes", "docker", "python-tests", "clients"]),
    "How to": (
        "how-to",
        [
            "install", "run", "secure", "listeners", "watch", "tools", "durability", "memory",
            "sizing", "backup", "upgrade", "redis", "standby", "kubernetes", "coming-from-kafka",
            "lake", "quotas",
        ],
    ),
    "Reference": (
        "reference", ["options", "keys", "apis", "metrics", "errors", "limits", "formats"]
    ),
    "How it works": (ROOMS, ["index"]),
}  # fmt: skip
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^][]|\[[^][]*\])*)\]\(([^)\s]+)\)")


def rooms() -> dict[str, str]:
    """The page of each room by the path of its README."""
    found = {}
    for folder in ROOM_FOLDERS:
        for page in sorted((ROOT / folder).rglob("README.md")):
            path = page.relative_to(ROOT).as_posix()
            found[path] = f"{ROOMS}/{posixpath.dirname(path).replace('/', '-')}.md"
    return found


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The order of the pages. Those that are not named in SECTIONS follow the others."""
    docs = Path(config.docs_dir)
    navigation: list[object] = ["index.md"]
    for title, (folder, order) in SECTIONS.items():
        there = {page.stem for page in (docs / folder).glob("*.md")}
        names = [name for name in order if name in there] + sorted(there - set(order))
        pages = [f"{folder}/{name}.md" for name in names]
        if folder == ROOMS:
            pages += rooms().values()
        navigation.append({title: pages})
    config.nav = navigation
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, page in rooms().items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text("utf-8")))
        for image in re.findall(r"!\[[^]]*\]\(([^)]+)\)", (ROOT / path).read_text("utf-8")):
            found = (ROOT / path).parent / image
            name = f"{ROOMS}/{found.name}"
            files.append(File.generated(config, name, abs_src_path=str(found)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    del config, files
    return "".join(_with_links(markdown, page.file.src_uri))


def _with_links(markdown: str, uri: str) -> Iterator[str]:
    """The text of a page with links that work on the site. What is code stays as it is."""
    pages = rooms()
    sources = {page: path for path, page in pages.items()}
    source = sources.get(uri, f"{DOCS}/{uri}")

    def moved(link: re.Match[str]) -> str:
        is_image, text, target = link.groups()
        path, hash_mark, anchor = target.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return link[0]
        found = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if (ROOT / found).is_dir():
            found = f"{found}/README.md"
        if is_image:
            to = f"{ROOMS}/{posixpath.basename(found)}"
        elif found in pages:
            to = pages[found]
        elif found.startswith(f"{DOCS}/"):
            to = found.removeprefix(f"{DOCS}/")
        else:
            return text
        here = os.path.relpath(to, posixpath.dirname(uri) or ".")
        return f"{is_image}[{text}]({here}{hash_mark}{anchor})"

    at = 0
    for code in _FENCE.finditer(markdown):
        yield _LINK.sub(moved, markdown[at : code.start()])
        yield code[0]
        at = code.end()
    yield _LINK.sub(moved, markdown[at:])
