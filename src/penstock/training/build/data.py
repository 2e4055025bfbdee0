"""Training, validation and test data behind one door, with Penstock's loaders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.extras import optional

lightning = optional("lightning.pytorch", extra="lightning")


class JobData(lightning.LightningDataModule):  # type: ignore[misc, name-defined]
    """Loaders by part, each made when it is first asked for, then always the same one.

    Args:
        dataset: What models and heads ask for sizes (``d_input``, ``n_tokens``).
        makers: ``"train"``, ``"val"``, ``"test"``: what makes the loader of each part there is.
    """

    def __init__(self, dataset: Any, makers: Mapping[str, Callable[[], Any]]) -> None:
        super().__init__()
        self.dataset = dataset
        self._makers, self._loaders = dict(makers), dict[str, Any]()

    def train_dataloader(self) -> Any:
        """Batches to train on."""
        return self._loader("train")

    def val_dataloader(self) -> Any:
        """Batches to validate on; an empty list, as Lightning wants it, where there are none."""
        return self._loader("val")

    def test_dataloader(self) -> Any:
        """Batches to test on; an empty list where there are none."""
        return self._loader("test")

    def _loader(self, part: str) -> Any:
        if part not in self._loaders:
            made = self._makers[part]() if part in self._makers else None
            self._loaders[part] = [] if made is None else made
        return self._loaders[part]

    def has(self, part: str) -> bool:
        """Is there such a part?"""
        return part in self._makers

    def teardown(self, stage: str) -> None:
        """End what runs for the loaders; they may be iterated again."""
        self.close()

    def close(self) -> None:
        """End every thread and process of the loaders."""
        for loader in self._loaders.values():
            for each in flat(loader):
                getattr(each, "close", lambda: None)()


def flat(loaders: Any) -> list[Any]:
    """Loaders given alone, in a list or by name."""
    if isinstance(loaders, Mapping):
        return [each for value in loaders.values() for each in flat(value)]
    if isinstance(loaders, list | tuple):
        return [each for value in loaders for each in flat(value)]
    return [loaders]
