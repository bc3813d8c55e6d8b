"""Runs the code cells of a notebook one after another and stores what they print: python docs/img/notebook.py FILE.

It takes the place of Jupyter for notebooks that print and do not draw, so that they run wherever the examples do.
"""

import contextlib
import io
import json
import sys
from pathlib import Path

path = Path(sys.argv[1])
notebook = json.loads(path.read_text(encoding="utf-8"))
names = {"__name__": "__main__"}
number = 0
for cell in notebook["cells"]:
    if cell["cell_type"] != "code":
        continue
    number += 1
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), names)
    text = printed.getvalue().splitlines(keepends=True)
    cell["execution_count"] = number
    cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []
path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
