"""Lightning: the callback that trains in chunks."""

from penstock.integrations.lightning.callback import ChunkedTraining as ChunkedTraining
