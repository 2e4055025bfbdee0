"""The config of a steering dataset, damaged in any way: read, or refused with its name."""

import penstock
from tests.damage import DamagedFile


class TestSteering(DamagedFile):
    """The config.json of a steering dataset."""

    name = "config.json"

    def write(self, folder):
        penstock.build_steering_directory(
            folder, pairs=6, embedding_dim=4, config={"curriculum": {"mode": "linear"}}
        )

    def read(self, folder):
        with penstock.JASPERSteeringDataset(folder, "train") as dataset:
            dataset.set_epoch(3)
            assert abs(sum(dataset.steering_probs.values()) - 1) < 1e-6
            dataset[0]
        penstock.validate_dataset(folder)
