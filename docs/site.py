"""What MkDocs calls while it builds the site: formulas to MathML, and the version.

Browsers draw MathML themselves, so that no page needs a script or the network for its formulas.
"""

import html
import re
import tomllib
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(.*?)(?:\\\)|\\\])</\1>', re.DOTALL)


def on_config(config: Any) -> Any:
    """The name of the site has the version."""
    project = tomllib.loads((Path(config.docs_dir).parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.site_name = f"{project['name']} {project['version']}"
    return config


def on_page_content(content: str, **_: Any) -> str:
    """The HTML of a page with its formulas as MathML."""

    def mathml(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        return convert(html.unescape(found[2]), display=display)

    return _FORMULA.sub(mathml, content)
