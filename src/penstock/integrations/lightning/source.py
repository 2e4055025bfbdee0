"""What Lightning asks for its loaders, every chunk anew: it is given the same ones each time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from penstock.errors import ConfigError, StateError
from penstock.extras import optional
from penstock.loaders import ChunkedDataLoader, Loader
from penstock.loaders.torch_loader import TorchLoader

log = logging.getLogger("penstock")

connector = optional("lightning.pytorch.trainer.connectors.data_connector", extra="lightning")
combining = optional("lightning.pytorch.utilities.combined_loader", extra="lightning")


class Rest:
    """A chunk of ``length`` batches of which only the last ones, or none, are still to come.

    Lightning reads the length of a chunk once, at its start, and counts from there.
    """

    def __init__(self, loader: Loader, length: int, *, over: bool = False) -> None:
        self._loader, self._length, self._over = loader, length, over

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return iter(()) if self._over else iter(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class SteadySource(connector._DataLoaderSource):  # type: ignore[misc, name-defined]
    """The loaders of a hook that is called once, however often Lightning reloads.

    Reloading makes Lightning read the length of every chunk; but a hook that builds a loader each
    time it is called would begin anew each time.

    Args:
        source: Lightning's own: loaders, or the module whose hook gives them.
        mode: How Lightning combines several.
        asked: Called whenever Lightning asks, before it looks at the loaders.
    """

    def __init__(self, source: Any, mode: str, asked: Callable[[], object] = lambda: None) -> None:
        super().__init__(source.instance, source.name)
        self._mode, self._asked = mode, asked
        self._raw: Any = None  # what the hook gave
        self._combined: Any = None
        self._given: list[Any] = []
        self._aside = self._handed = False
        self.resumed: Any = None  # what stands for the loader until the chunk is over

    def dataloader(self) -> Any:
        """What Lightning iterates for the next chunk."""
        if self._aside and self._handed:
            return super().dataloader()
        if self._combined is not None:  # Lightning may have put samplers into others' loaders
            self._given = [
                given if isinstance(given, Loader) else processed
                for given, processed in zip(self._given, self._combined.flattened, strict=True)
            ]
        self.fetch()
        self._asked()
        self._handed = True
        if self._aside:
            return self._raw
        self._combined.flattened = [self._view(loader) for loader in self._given]
        return self._combined

    def fetch(self) -> None:
        """Call the hook, if nobody did; for one who is inside Lightning's own asking."""
        if self._combined is None:
            given = self._raw = super().dataloader()
            combined = isinstance(given, combining.CombinedLoader)
            self._combined = given if combined else combining.CombinedLoader(given, self._mode)
            self._given = list(self._combined.flattened)

    @property
    def given(self) -> list[Any]:
        """All loaders there are, of whatever kind."""
        return list(self._given)

    def replace(self, loaders: list[Any]) -> None:
        """These instead, one for one, before Lightning looks at them."""
        if loaders:
            self._given = self._combined.flattened = loaders

    def step_aside(self) -> None:
        """Nothing here is ours: Lightning asks the hook as often as it would without us."""
        self._aside = True

    @property
    def length(self) -> int:
        """Batches that Lightning will count for the next chunk."""
        return min(len(self._view(loader)) for loader in self.loaders)

    def _view(self, loader: Any) -> Any:
        if not knows_its_place(loader):
            return loader
        if self.resumed is not None:
            return self.resumed
        left = loader.remaining
        return loader if left == len(loader) else Rest(loader, left)

    def ask(self) -> None:
        """Ask for the loaders now, if Lightning did not yet."""
        if self._combined is None:
            connector._request_dataloader(self)

    @property
    def loaders(self) -> list[Loader]:
        """Those of Penstock that know their place."""
        self.ask()
        return [loader for loader in self._given if knows_its_place(loader)]

    @property
    def fetched_ours(self) -> bool:
        """Is there one of Penstock among those that the hook gave, if it was called?"""
        return any(isinstance(loader, Loader) for loader in self._given)

    @property
    def rotating(self) -> Loader | None:
        """The one loader there is, if every iteration of it is another chunk."""
        moving = self._moving if len(self._given) == 1 else []
        return moving[0] if moving and moving[0].position.chunk is not None else None

    @property
    def only_loader(self) -> Loader | None:
        """The one loader there is, if it is of Penstock."""
        ours = self.loaders
        if ours and len(self._given) > 1:
            raise ConfigError(
                f"ChunkedTraining drives one loader, found {len(self._given)} in {self.name}: join "
                "the datasets in one (torch's ConcatDataset or StackDataset)"
            )
        return ours[0] if ours else None

    @property
    def places(self) -> list[dict[str, Any]]:
        """Where those loaders are that do not begin anew each time."""
        return [loader.state_dict() for loader in self._moving]

    def move(self, places: list[dict[str, Any]]) -> None:
        """Put them there; all begin anew if there are more or fewer of them now."""
        loaders = self._moving
        if len(loaders) != len(places):
            log.warning(
                "%s gives %d loaders, the checkpoint knows the places of %d: all begin anew",
                *(self.name, len(loaders), len(places)),
            )
            return
        for loader, place in zip(loaders, places, strict=True):
            loader.load_state_dict(place)

    @property
    def _moving(self) -> list[Loader]:
        if not self.is_defined():
            return []
        return [loader for loader in self.loaders if not loader.position.evaluation]

    def close(self) -> None:
        """End the workers and threads of our loaders; they may be iterated again."""
        for loader in self._given:
            if isinstance(loader, Loader):
                loader.close()


def why_no_position(loader: Any) -> str | None:
    """What a loader is that ChunkedTraining cannot resume, and what to use instead."""
    if knows_its_place(loader):
        return None
    if isinstance(loader, ChunkedDataLoader):
        return (
            f"a ChunkedDataLoader with {loader.pass_through.reason}, whose order torch decides; "
            "use seed= and order= instead"
        )
    if isinstance(loader, TorchLoader):
        return (
            f"a {type(loader).__name__}, which cannot seek; use a dataset with an index (Parquet, "
            "Zarr, a map-style dataset)"
        )
    kind = "torch DataLoader" if type(loader) is DataLoader else type(loader).__name__
    return f"a {kind}, not a Penstock loader; wrap the dataset in ChunkedDataLoader"


def knows_its_place(loader: Any) -> bool:
    """Is this a loader of Penstock, and not one that only passes through to torch?"""
    if not isinstance(loader, Loader):
        return False
    try:
        loader.state_dict()
    except StateError:
        return False
    return True
