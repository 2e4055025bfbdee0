"""What docs/streaming.md shows, runs."""

import re
from contextlib import chdir
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "streaming.md"


def test_every_block_of_the_streaming_guide_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) == 6
    names = {}
    with chdir(tmp_path):
        for number, code in enumerate(blocks):
            exec(compile(code, f"block {number} of {GUIDE.name}", "exec"), names)
