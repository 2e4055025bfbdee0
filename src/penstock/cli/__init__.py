"""The command line: ``penstock train`` and the others."""

from __future__ import annotations

import sys
from typing import Any

from penstock.errors import MissingExtraError


def main() -> None:
    """Run the command line, and report wrong arguments in one line.

    Without its libraries, say which extra installs them.
    """
    try:
        from typer import BadParameter

        from penstock.cli.commands import app  # here: the command line is an extra
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except ModuleNotFoundError as error:
        missing = MissingExtraError(f"{error.name} is not installed: pip install 'penstock[cli]'")
        print(f"penstock: {missing}", file=sys.stderr)
        raise SystemExit(1) from None
    usage_error: type[Any] = BadParameter.__mro__[1]  # typer does not export it
    try:
        sys.exit(app(standalone_mode=False))
    except usage_error as error:
        # The message is empty where the help was printed instead.
        if message := error.format_message():
            path = error.ctx.command_path if error.ctx else "penstock"
            lead = f"{message} See" if message.endswith("?") else f"{message.rstrip('.')}: see"
            print(f"penstock: {lead} '{path} --help'", file=sys.stderr)
        raise SystemExit(2) from None
