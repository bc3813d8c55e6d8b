"""Writes docs/commands.md from the parser of the command line: ``python docs/commands.py``."""

from __future__ import annotations

import argparse
from pathlib import Path

from streamkern.commands.parser import make_parser

PAGE = Path(__file__).parent / "commands.md"


def rows(parser: argparse.ArgumentParser) -> list[str]:
    """A line of a table for each argument."""
    lines = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) or action.help == argparse.SUPPRESS:
            continue
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        if action.nargs == 0:
            value = ""
        elif action.metavar is None and action.choices is not None:
            value = "`" + ", ".join(map(str, action.choices)) + "`"
        else:
            value = f"`{action.metavar or action.dest.upper()}`"
        many = " ..." * (action.nargs in ("+", "*"))
        said = " ".join((action.help or "").replace("%%", "%").replace("|", "\\|").split())
        said += " (required)" if action.required and action.option_strings else ""
        lines.append(f"| {' '.join(filter(None, (names, value)))}{many} | {said} |")
    return lines


def page() -> str:
    """The page."""
    parser = make_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    helps = {choice.dest: choice.help for choice in commands._choices_actions}
    text = [
        "# The command line",
        "",
        "`streamkern COMMAND --help` prints the same; after a pipeline file it lists the settings of the file, too.",
        "`python docs/commands.py` writes this page.",
        "",
        *(f"- [`streamkern {name}`](#streamkern-{name}): {helps[name]}" for name in commands.choices),
        "",
        f"{(parser.epilog or '').capitalize()}.",
    ]
    for name, command in commands.choices.items():
        said = f"{helps[name][0].upper()}{helps[name][1:]}."
        text += ["", f"## streamkern {name}", "", said, "", "| argument | meaning |", "|---|---|", *rows(command)]
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
