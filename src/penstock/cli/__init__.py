"""The command line: ``penstock train`` and the others."""

from __future__ import annotations

import sys

from penstock.errors import MissingExtraError


def main() -> None:
    """Run the command line; without its libraries, say which extra installs them."""
    try:
        from penstock.cli.commands import app  # here: the command line is an extra
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except ModuleNotFoundError as error:
        missing = MissingExtraError(f"{error.name} is not installed: pip install 'penstock[cli]'")
        print(f"penstock: {missing}", file=sys.stderr)
        raise SystemExit(1) from None
    app()
