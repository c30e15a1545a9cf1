"""The site that MkDocs made: every link leads to a file and an anchor of it, and nothing that a
page needs comes from another host.

    check_site.py FOLDER
"""

from __future__ import annotations

import html.parser
import pathlib
import re
import sys
import urllib.parse

# Elements whose address is fetched when the page is shown.
ASSETS = {"script", "img", "iframe", "source", "video", "audio", "embed", "object", "image"}
CSS_URL = re.compile(r"url\(\s*['\"]?(?!data:|#)([^'\")]+)|@import\s+['\"]([^'\"]+)")


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[tuple[str, bool]] = []  # (address, whether the page fetches it)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        given = dict(attrs)
        self.ids |= {given[k] for k in ("id", "name") if given.get(k)}
        fetched = (
            tag in ASSETS or tag == "link" and given.get("rel") not in ("canonical", "prev", "next")
        )
        for key in ("href", "src", "data", "xlink:href"):
            if given.get(key) and (key != "data" or tag == "object"):
                self.links.append((given[key], fetched))


def read(path: pathlib.Path) -> Page:
    page = Page()
    page.feed(path.read_text("utf-8"))
    return page


def wrong_link(site: pathlib.Path, at: pathlib.Path, link: str, fetched: bool,
               pages: dict[pathlib.Path, Page]) -> str | None:  # fmt: skip
    parts = urllib.parse.urlsplit(link)
    if parts.scheme in ("http", "https") or parts.netloc:
        return f"{link}: this comes from another host" if fetched else None
    if parts.scheme:
        return None  # mailto:, data:
    name = urllib.parse.unquote(parts.path)
    target = (site / name.lstrip("/") if name.startswith("/") else at.parent / name).resolve()
    target = at.resolve() if not name else target
    if target.is_dir():
        target = target / "index.html"
    if not target.is_file():
        return f"{link}: there is no such file"
    anchor = urllib.parse.unquote(parts.fragment)
    if anchor and target.suffix == ".html" and anchor not in pages[target].ids:
        return f"{link}: there is no such anchor"
    return None


def main() -> int:
    site = pathlib.Path(sys.argv[1]).resolve()
    pages = {path.resolve(): read(path) for path in sorted(site.rglob("*.html"))}
    wrong, links = [], 0
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # It is served from any address, so its links begin at the site's root.
        for link, fetched in page.links:
            links += 1
            if found := wrong_link(site, path, link, fetched, pages):
                wrong.append(f"{path.relative_to(site)}: {found}")
    for path in sorted(site.rglob("*.css")):
        for match in CSS_URL.finditer(path.read_text("utf-8")):
            url = match[1] or match[2]
            if "//" in url or not (path.parent / url.split("?")[0].split("#")[0]).exists():
                wrong.append(f"{path.relative_to(site)}: {url}: not a file of the site")
    for line in wrong:
        print(line)
    print(f"{len(pages)} pages, {links} links, {len(wrong)} wrong")
    # A check that sees nothing must not pass.
    return 1 if wrong or len(pages) < 20 or links < 500 else 0


if __name__ == "__main__":
    sys.exit(main())
