"""Chunks of different sizes, validations that are due, and skips, in a Trainer."""

import lightning.pytorch as pl
import pytest

from penstock import ConfigError
from penstock.integrations.lightning import ChunkedTraining
from penstock.loaders.chunk_settings import ChunkSettings, ValidationInterval
from tests.integrations.lightning.fits import fit, stock

pytestmark = [  # Lightning's own
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]

GROWING = {"start": 2, "end": 5, "over_chunks": 3}


class SaveAt(pl.Callback):
    """Saves a checkpoint after every batch."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0

    def on_train_batch_end(self, trainer, *_):
        self.count += 1
        trainer.save_checkpoint(self.folder / f"{self.count}.ckpt")


def test_chunks_grow_and_every_checkpoint_resumes_exactly(tmp_path):
    whole = fit(ChunkedTraining(GROWING), max_epochs=6, callbacks=[SaveAt(tmp_path)])
    assert whole.train_batches == [2, 3, 4, 2, 5, 5]  # 11 batches an epoch
    assert sorted(whole.seen[:22]) == list(range(22))
    for count in (1, 2, 3, 8, 9, 10, 11, 12, 20):
        again = fit(ChunkedTraining(GROWING), max_epochs=6, ckpt_path=tmp_path / f"{count}.ckpt")
        batches = [batch for chunk in again.model.chunks for batch in chunk]
        assert batches == [batch for chunk in whole.model.chunks for batch in chunk][count:]
        assert again.callback.loader.state_dict() == whole.callback.loader.state_dict()


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (3, [3, 6]),
        ({"min": 2, "max": 3, "loss_change": 0.0}, [2, 4, 6]),
        ({"min": 1, "max": 4, "loss_change": 1e9}, [1, 5]),  # the first one has no loss before it
    ],
)
def test_validations_come_when_they_are_due_and_the_decision_is_in_the_state(
    tmp_path, every, expected
):
    class When(pl.Callback):
        def __init__(self):
            self.chunks = []

        def on_validation_start(self, trainer, *_):
            if not trainer.sanity_checking:
                self.chunks.append(trainer.current_epoch + 1)

    when, options = When(), {"validate_every": every}
    whole = fit(ChunkedTraining(2, **options), max_epochs=6, callbacks=[when, SaveAt(tmp_path)])
    assert when.chunks == expected
    assert whole.trainer.check_val_every_n_epoch == 1  # the user's own, again
    for count in range(1, 11):
        after, path = When(), tmp_path / f"{count}.ckpt"
        fit(ChunkedTraining(2, **options), max_epochs=6, callbacks=[after], ckpt_path=path)
        # one that was due after that batch comes after the resume
        assert after.chunks == [chunk for chunk in expected if 2 * chunk >= count]


def test_never_more_than_max_chunks_without_a_validation():
    interval = ValidationInterval(2, 5, loss_change=0.5)
    assert not interval.due(1, 100.0, 1.0) and interval.due(5, 1.0, 1.0)
    assert interval.due(2, 1.6, 1.0) and not interval.due(4, 1.4, 1.0)
    assert interval.due(2, float("nan"), 1.0) and interval.due(2, None, None)


def test_skips_of_the_settings_are_left_out_and_resume_inside_them(tmp_path):
    plain, skip = fit(ChunkedTraining(4), max_epochs=3), [[0, 4, 12]]
    run = fit(ChunkedTraining(4, skip=skip), max_epochs=2, callbacks=[SaveAt(tmp_path)])
    assert run.seen == plain.seen[:4] + plain.seen[12:22]
    assert run.train_batches == [4, 3] and run.callback.summary().samples == 14
    again = fit(ChunkedTraining(4, skip=skip), max_epochs=2, ckpt_path=tmp_path / "3.ckpt")
    assert again.seen == run.seen[6:]


@pytest.mark.parametrize(
    ("options", "trainer", "words"),
    [
        ({"validate_every": "often"}, {}, "validate_every must be a whole number of chunks, or"),
        (
            {"validate_every": {"min": 3, "max": 2, "loss_change": 0.1}},
            {},
            "max must be at least 3",
        ),
        ({"validate_every": 0}, {}, "validate_every must be at least 1 chunk"),
        ({"skip": [[1, 2]]}, {}, r"skip must be a list of \[epoch, start, stop\]"),
        ({"skip": [[0, 5, 2]]}, {}, "stop of skip must be at least 5, got 2"),
        ({"validate_every": 2}, {"check_val_every_n_epoch": 3}, "check_val_every_n_epoch=3: use"),
        ({"validate_every": 2}, {"val_check_interval": 0.5}, "val_check_interval=0.5: use only"),
    ],
)
def test_what_cannot_be_is_refused(options, trainer, words):
    with pytest.raises(ConfigError, match=words):
        fit(ChunkedTraining(2, **options), **trainer)


def test_a_configuration_has_the_same_keys():
    train = {"train_chunk_size": "10min", "validate_every": 2, "skip": [[1, 0, 8]]}
    settings = ChunkSettings.of_config({"train": train})
    assert settings.train_chunk_size.seconds == 600 and settings.skip == ((1, 0, 8),)
    assert settings.validate_every == ValidationInterval(2, 2)
    run = fit(ChunkedTraining({"train": {"train_chunk_size": GROWING}}), stock(22), max_epochs=2)
    assert run.train_batches == [2, 3]
