"""A driver of Ray Train, whose workers train as `torchrun_program` does: for tests.

python -m tests.integrations.ray_program FOLDER WORKERS
"""

import sys
from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from penstock.integrations.ray import RayTraining, recoverable
from tests.distributed.torchrun_program import train


def work(config):
    def resume(loader):
        config["training"] = RayTraining(loader)
        with config["training"].resume():
            pass

    def save(loader):
        config["training"].report({}, lambda folder: None)

    train(Path(config["folder"]), resume, save)


if __name__ == "__main__":
    folder, workers = sys.argv[1:]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    result = TorchTrainer(
        work,
        train_loop_config={"folder": folder},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=int(workers), resources_per_worker={"CPU": 0.5}),
        run_config=recoverable(
            RunConfig(name="run", storage_path=folder, failure_config=FailureConfig(max_failures=1))
        ),
    ).fit()
    print(result.metrics)
