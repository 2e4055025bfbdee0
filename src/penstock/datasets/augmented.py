"""A dataset with augmented samples: the same in any worker, different in every epoch."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from inspect import signature
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from penstock.arguments import LARGEST_SEED, flag, map_style, mapping, shown, whole_number
from penstock.datasets.gather import TransformedDataset, first_field
from penstock.datasets.standardized import StandardizedDataset
from penstock.errors import ConfigError
from penstock.keyed import current_passes
from penstock.order import Indices, derive_key
from penstock.order.permutation import Keys
from penstock.registry import unknown_name
from penstock.sources.contract import Indexed
from penstock.transforms import Compose, GaussianNoise, SpecAugment, recommended_augmentation
from penstock.transforms.augmentation import refuse_clamp

CLASSES: Final = 31  # if a dataset has no num_classes
_PARTS: Final = {"spec_augment_params": SpecAugment, "gaussian_noise_params": GaussianNoise}
_EPOCH, _TRAINING = 0, 1


class AugmentedDataset(TransformedDataset):
    """The samples of a dataset with `SpecAugment` and `GaussianNoise`, while training.

    Draws are keyed by (seed, epoch, index): a sample is augmented in the same way within an epoch,
    with any number of workers or ranks, in any order, after any resume, and differently in the
    next epoch. A Penstock loader sends the epoch with the indices; in torch's own loader
    it is the one of `set_epoch`, which reaches persistent workers too.

    Augment raw samples, and standardise afterwards: `StandardizedDataset` of this.

    Args:
        base_dataset: A map-style dataset; the first field of a sample is augmented.
        augment_params: `SpecAugment`'s keywords, or ``{"spec_augment_params": {...},
            "gaussian_noise_params": {...}}``, either of which may be None.
        training: False leaves every sample as it is; may be changed at any time.
        seed: The seed of the augmentation.

    >>> import torch
    >>> dataset = AugmentedDataset(torch.ones(5, 1, 64, 64), {"p": 1.0})
    >>> first = dataset[3]
    >>> dataset.set_epoch(1)
    >>> torch.equal(first, dataset[3])
    False
    """

    def __init__(
        self,
        base_dataset: Indexed,
        augment_params: Mapping[str, Any],
        training: bool = True,
        *,
        seed: int = 42,
    ) -> None:
        super().__init__(base_dataset)
        self.augment_params = deepcopy(mapping("augment_params", augment_params, error=ConfigError))
        self.seed = whole_number("seed", seed, minimum=0, maximum=LARGEST_SEED)
        self.transform = build_augmentation(self.augment_params)
        inner = base_dataset
        while isinstance(inner, Subset):
            inner = inner.dataset
        if isinstance(inner, StandardizedDataset):
            refuse_clamp(self.transform)
        self._switches = SharedIntegers(0, flag("training", training))

    @property
    def training(self) -> bool:
        """Whether samples are augmented. A change reaches worker processes at their next batch."""
        return bool(self._switches[_TRAINING])

    @training.setter
    def training(self, training: bool) -> None:
        self._switches[_TRAINING] = flag("training", training)

    def set_training(self, training: bool) -> None:
        """Set whether samples are augmented from now on.

        Args:
            training: Whether samples are augmented.
        """
        self.training = training

    @property
    def epoch(self) -> int:
        """The epoch of this dataset, used if none is sent with the indices."""
        return self._switches[_EPOCH]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, for torch's own loader; a Penstock loader sends it with the indices.

        Args:
            epoch: The epoch, counted from 0.
        """
        self._switches[_EPOCH] = whole_number("epoch", epoch, minimum=0)

    def _keys(self, indices: Indices) -> Keys:
        passes = current_passes(indices, default=self.epoch)
        return np.asarray(derive_key(self.seed, "augment", passes, indices))


WorkerSafeAugmentedDataset = AugmentedDataset  # an alias: every dataset here is worker-safe


def build_augmentation(params: Mapping[str, Any]) -> Compose:
    """Return the transforms that ``augment_params`` describe, masks before noise."""
    if not params or not set(params) <= set(_PARTS):
        params = {"spec_augment_params": params}
    chosen = [(kind, params.get(part)) for part, kind in _PARTS.items()]
    for kind, keywords in chosen:
        known = list(signature(kind).parameters)
        if keywords is not None and not isinstance(keywords, Mapping):
            raise ConfigError(f"{kind.__name__} needs a dict of settings, got {shown(keywords)}")
        for name in keywords or ():
            if name not in known:
                raise ConfigError(unknown_name(f"setting of {kind.__name__}", name, known))
    return Compose([kind(**keywords) for kind, keywords in chosen if keywords is not None])


def create_augmented_dataset_wrapper(
    dataset: Indexed,
    use_spec_augment: bool = False,
    use_gaussian_noise: bool = False,
    augment_params: Mapping[str, Any] | None = None,
    training: bool = True,
) -> AugmentedDataset:
    """Return an `AugmentedDataset` with the chosen kinds of augmentation.

    Settings that are not passed are those recommended for the number of samples per class.

    Args:
        dataset: A map-style dataset.
        use_spec_augment: Mask spectrograms.
        use_gaussian_noise: Add noise.
        augment_params: See `AugmentedDataset`.
        training: See `AugmentedDataset`.

    >>> import torch
    >>> raw = torch.ones(9, 1, 64, 64)
    >>> create_augmented_dataset_wrapper(raw, use_gaussian_noise=True).transform
    Compose([GaussianNoise(std=0.02, p=0.8, clamp=None)])
    """
    samples = len(map_style("dataset", dataset))
    flag("use_spec_augment", use_spec_augment)
    flag("use_gaussian_noise", use_gaussian_noise)
    given = {} if augment_params is None else augment_params
    params = mapping("augment_params", given, error=ConfigError)
    if params and not set(params) <= set(_PARTS):
        params = {"spec_augment_params": params}
    wanted = {"spec_augment_params": use_spec_augment, "gaussian_noise_params": use_gaussian_noise}
    if any(wanted[part] and params.get(part) is None for part in _PARTS):
        shape = tuple(first_field(dataset[0]).shape)
        size = (shape[-2], shape[-1]) if len(shape) > 1 else (224, 313)
        params = recommended_augmentation(samples, classes_of(dataset), size) | params
    chosen = {part: params.get(part) if wanted[part] else None for part in _PARTS}
    return AugmentedDataset(dataset, chosen, training)


def classes_of(dataset: Any) -> int:
    """Return the number of classes of a dataset; 31 if it is unknown.

    >>> import torch
    >>> classes_of(TensorDataset(torch.ones(4, 2), torch.tensor([0, 2, 2, 5])))
    3
    """
    declared = getattr(dataset, "num_classes", None)
    if isinstance(declared, int):
        return declared
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) > 1:
        return len(np.unique(dataset.tensors[1].numpy(force=True), axis=0))
    inner = getattr(dataset, "base_dataset", getattr(dataset, "dataset", None))
    return CLASSES if inner is None else classes_of(inner)


class SharedIntegers:
    """A few integers in shared memory; worker processes see them change.

    Args:
        *values: The first values.

    >>> switches = SharedIntegers(0, 1)
    >>> switches[0] = 7
    >>> switches[0], switches[1]
    (7, 1)
    """

    def __init__(self, *values: int) -> None:
        self.__setstate__({"tensor": torch.tensor(values)})

    def __getstate__(self) -> dict[str, torch.Tensor]:
        return {"tensor": self._tensor}

    def __setstate__(self, state: dict[str, torch.Tensor]) -> None:
        # a worker gets the shared memory itself; a plain pickle gets a copy, which is shared again
        self._tensor = state["tensor"].share_memory_()  # type: ignore[no-untyped-call]
        self._values: Indices = self._tensor.numpy()  # the same memory, faster to read

    def __getitem__(self, index: int) -> int:
        return int(self._values[index])

    def __setitem__(self, index: int, value: int) -> None:
        self._values[index] = value
