"""Trains stock loaders in chunks on two ranks, and writes what arrived: started by a test.

python ranks_program.py RESULTS.json
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch.distributed as dist

from penstock.integrations.lightning import ChunkedTraining

sys.path.insert(0, str(Path(__file__).parents[3]))  # for the modules of the tests

from tests.integrations.lightning.fits import fit

warnings.filterwarnings("ignore")


def main(results: Path) -> None:
    callback = ChunkedTraining(3, 1)
    limits = {"limit_train_batches": 1, "limit_val_batches": 2}
    run = fit(callback, max_epochs=4, devices=2, strategy="ddp", **limits)
    found = {
        "chunks": run.model.chunks,
        "scored": run.scored,
        "sizes": [callback.train_chunk_size, callback.val_chunk_size],
        "samples": callback.summary().samples,
    }
    parts = [None] * 2
    dist.all_gather_object(parts, found)
    if dist.get_rank() == 0:
        results.write_text(json.dumps(parts))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads sometimes abort an interpreter that ends


if __name__ == "__main__":
    main(Path(sys.argv[1]))
