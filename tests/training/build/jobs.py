"""Jobs of small configurations, and one way to train them."""

from textwrap import dedent

import lightning.pytorch as L

from penstock import ChunkedTraining
from penstock.training.build import build
from penstock.training.config import read_settings

PARTS = "tests.training.build.parts_for_configs"


def job(folder, text, *overrides):
    """The job of a configuration; ``HERE`` stands for the module of the parts."""
    path = folder / "run.yaml"
    path.write_text(dedent(text).replace("HERE", PARTS))
    return build(read_settings(path, overrides))


def fit(job, **kwargs):
    """A Trainer that ran."""
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    quiet |= {"logger": False, "enable_checkpointing": False}
    trainer = L.Trainer(
        **(job.trainer_kwargs | quiet | kwargs), callbacks=[ChunkedTraining(), *job.callbacks]
    )
    trainer.fit(job.module, datamodule=job.data)
    return trainer
