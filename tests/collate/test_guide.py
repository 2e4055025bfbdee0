"""The guide's code runs, block after block."""

from __future__ import annotations

import re
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "collation.md"


def test_the_blocks_of_the_guide_run(shared_registry):
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) >= 7
    names: dict[str, object] = {"__name__": "guide"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{GUIDE.name}, block {number}", "exec"), names)
