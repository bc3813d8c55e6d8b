"""What MkDocs calls while it builds the site: formulas to MathML, and pages that mkdocs.yml does not name.

Browsers draw MathML themselves, so that no page needs a script or the network for its formulas.
"""

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(.*?)(?:\\\)|\\\])</\1>', re.DOTALL)


def on_config(config: Any) -> Any:
    """Decisions, and pages of the guide that are not named, come into the navigation by themselves."""
    docs = Path(config.docs_dir)
    sections = {name: pages for item in config.nav if isinstance(item, dict) for name, pages in item.items()}
    named = re.findall(r"[\w/-]+\.md", repr(config.nav))
    sections["Guide"] += [page.name for page in sorted(docs.glob("*.md")) if page.name not in named]
    sections["Decisions"][:] = [f"adr/{page.name}" for page in sorted((docs / "adr").glob("*.md"))]
    return config


def on_page_content(content: str, **_: Any) -> str:
    """The HTML of a page with its formulas as MathML."""

    def mathml(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        return convert(html.unescape(found[2]), display=display)

    return _FORMULA.sub(mathml, content)
