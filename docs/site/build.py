"""Builds the site: gathers the pages, runs Sphinx with warnings as errors, checks all links.

The guides are Markdown files that also read well in the repository. Sphinx gets a copy of them in
the same folders, so that the links between them hold in both places. The reference and the gallery
are written from the package and from ``examples``. Nothing in the site asks another server.
"""

from __future__ import annotations

import re
import shutil
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
SOURCE, SITE = ROOT / "build" / "site", ROOT / "site"

# the public modules; of a module with submodules, `__all__` has the public names
MODULES = (
    "kalstream",
    "kalstream.estimators",
    "kalstream.evaluate",
    "kalstream.streams",
    "kalstream.features",
    "kalstream.core",
    "kalstream.deep",
    "kalstream.deep.backbones",
    "kalstream.deep.adapters",
    "kalstream.deep.embed",
    "kalstream.baselines",
    "kalstream.compat.river",
    "kalstream.runs",
    "kalstream.runs.jobs",
    "kalstream.distributed",
    "kalstream.report",
    "kalstream.paper",
    "kalstream.client",
    "kalstream.testing",
    "kalstream.errors",
)

# what pages and links of the repository need; a folder is copied whole
FILES = (
    "docs",
    "deploy",
    "benchmarks/README.md",
    "benchmarks/peers/methods.py",
    "src/kalstream/core/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)

# arguments of examples that would take longer than 15 s
ARGUMENTS = {
    "delayed_labels": ["--rows", "2000"],
    "images": ["--rows", "300"],
    "texts": ["--rows", "3000"],
}


# ---- the pages that Sphinx reads ----------------------------------------------------------------


def gather() -> None:
    """Copy the guides and examples, and write the pages of the reference."""
    if SOURCE.exists():
        shutil.rmtree(SOURCE)
    for name in FILES:
        (SOURCE / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, SOURCE / name, ignore=shutil.ignore_patterns("site"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, SOURCE / name)
    for path in sorted(SOURCE.rglob("*.md")):
        path.write_text(linked(ROOT / path.relative_to(SOURCE)), encoding="utf-8")
    (SOURCE / "scripts").mkdir()
    (SOURCE / "scripts" / "GALLERY_HEADER.rst").write_text(
        "Examples\n========\n\nEach page is a script. Its output is that of this build.\n"
    )
    for path in sorted(ROOT.glob("examples/*.py")):
        (SOURCE / "scripts" / path.name).write_text(titled(path), encoding="utf-8")
    (SOURCE / "reference").mkdir()
    for name, text in reference().items():
        (SOURCE / "reference" / f"{name}.rst").write_text(text, encoding="utf-8")


def linked(path: Path) -> str:
    """Text of a guide as a page of the site.

    Links to examples lead to their pages, those to the package to the reference, and links to other
    folders become text.
    """

    def replaced(link: re.Match[str]) -> str:
        target = (path.parent / link[2]).resolve()
        up = "../" * len(path.relative_to(ROOT).parts[:-1])
        if target.parent == ROOT / "examples":
            return f"[{link[1]}]({up}gallery/{target.stem}.rst)"
        if target == ROOT / "examples":
            return f"[{link[1]}]({up}gallery/index.rst)"
        if target == ROOT / "src" / "kalstream":
            return f"[{link[1]}]({up}reference/index.rst)"
        return link[1] if target.is_dir() else link[0]

    return re.sub(r"\[([^\]]*)\]\(([^)#\s]+)\)", replaced, path.read_text(encoding="utf-8"))


def titled(path: Path) -> str:
    """Text of an example whose first line is a heading, and which names its command."""
    first, rest = path.read_text(encoding="utf-8").split("\n", 1)
    title = first.removeprefix('"""').rstrip(".")
    command = " ".join(["python", f"examples/{path.name}", *ARGUMENTS.get(path.stem, [])])
    about, code = rest.split('"""', 1)
    text = about.replace("`", "``")
    return f'"""{title}\n{"=" * len(title)}\n{text}\nThe page ran ``{command}``.\n"""{code}'


def names(module: str) -> list[str]:
    """Public names that the page of a module lists: `__all__`, or what it defines."""
    loaded = import_module(module)
    if hasattr(loaded, "__all__"):
        listed = list(loaded.__all__)
    else:
        listed = [
            name
            for name, value in vars(loaded).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == module
        ]
    modules = {name for name in listed if f"{module}.{name}" in MODULES}
    return sorted(set(listed) - modules - {"__version__"})


def reference() -> dict[str, str]:
    """Pages of the reference: name of the page -> reStructuredText."""
    pages = {
        "index": "Reference\n=========\n\nEvery public name, by module.\n\n.. toctree::\n\n"
        + "".join(f"   {module}\n" for module in MODULES)
    }
    homes: dict[int, str] = {}  # an object that two modules offer has one page
    for module in MODULES:
        loaded = import_module(module)
        owned = [name for name in names(module) if id(getattr(loaded, name)) not in homes]
        homes |= {id(getattr(loaded, name)): f"{module}.{name}" for name in owned}
        also = [homes[id(getattr(loaded, name))] for name in names(module) if name not in owned]
        text = f"{module}\n{'=' * len(module)}\n\n.. automodule:: {module}\n\n"
        text += f".. currentmodule:: {module}\n\n"
        if owned:
            text += ".. autosummary::\n   :toctree: names\n\n"
            text += "".join(f"   {name}\n" for name in owned) + "\n"
        if also:
            text += f"Also here: {', '.join(f':py:obj:`{name}`' for name in also)}.\n"
        pages[module] = text
    return pages


# ---- checks of the pages that Sphinx wrote ------------------------------------------------------


class Page(HTMLParser):
    """Anchors, links, and addresses that a browser loads by itself, of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and "href" in found:
            self.loaded.append(found["href"])
        elif "src" in found:
            self.loaded.append(found["src"])


def problems(site: Path) -> list[str]:
    """Links inside the site that lead nowhere, and addresses outside that a page would load."""
    pages = {
        path: Page(path) for path in sorted(site.rglob("*.html")) if path.parent.name != "_static"
    }
    wrong = []
    for path, page in pages.items():
        where = path.relative_to(site)
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                if link in page.loaded:
                    wrong.append(f"{where} loads {link}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                wrong.append(f"{where}: {link} does not exist")
                continue
            anchors = pages[target].anchors if target in pages else set()
            if target in pages and parts.fragment and unquote(parts.fragment) not in anchors:
                wrong.append(f"{where}: {link} has no such anchor")
    for path in sorted(site.rglob("*.css")):
        outside = re.findall(
            r"(?:url\(|@import )\s*[\"']?((?:https?:)?//[^)\"']+)", path.read_text()
        )
        wrong += [f"{path.relative_to(site)} loads {address}" for address in outside]
    return wrong


# ---- llms.txt -----------------------------------------------------------------------------------


def summary(index: str) -> str:
    """Text of llms.txt: what kalstream is, and each page of the index with its first sentence."""
    lines = ["# kalstream", "", f"> {' '.join(index.split(chr(10) * 2)[1].split())}", ""]
    for caption, body in re.findall(r":caption: (.*?)\n(.*?)```", index, re.DOTALL):
        lines += [f"## {caption}", ""]
        for name in re.findall(r"^([\w/-]+)$", body, re.MULTILINE):
            path = ROOT / f"{name[1:] if name[0] == '/' else 'docs/' + name}.md"
            if path.exists():
                title, _, rest = path.read_text(encoding="utf-8").partition("\n")
                text = " ".join(rest.strip().split("\n\n")[0].split())
                first = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.split(r"(?<=[.:]) ", text)[0])
                page = path.relative_to(ROOT).with_suffix(".html")
                lines.append(f"- [{title.lstrip('# ')}]({page}): {first}")
        lines.append("")
    lines += ["## Reference", ""]
    lines += [f"- [{name}](reference/{name}.html)" for name in MODULES]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Build the site; 1 if Sphinx warns or a link leads nowhere."""
    from sphinx.cmd.build import main as sphinx

    gather()
    if SITE.exists():
        shutil.rmtree(SITE)
    configuration = str(Path(__file__).parent)
    trees = str(ROOT / "build" / "trees")
    options = ["-W", "--keep-going", "-q", "-b", "html", "-c", configuration, "-d", trees, "-E"]
    if status := sphinx([*options, *sys.argv[1:], str(SOURCE), str(SITE)]):
        return status
    (SITE / "index.html").write_text(
        '<!doctype html><meta charset="utf-8"><title>kalstream</title>'
        '<meta http-equiv="refresh" content="0; url=docs/index.html">'
        '<a href="docs/index.html">kalstream</a>\n'
    )
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    (SITE / "llms.txt").write_text(summary(index), encoding="utf-8")
    wrong = problems(SITE)
    print("\n".join(wrong) or f"{len(list(SITE.rglob('*.html')))} pages: {SITE / 'index.html'}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
