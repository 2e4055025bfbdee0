"""The contract can fail: each of these broken sources is caught by the test meant for it."""

import numpy as np
import pytest

from penstock.sources import MemorySource
from penstock.testing.source_contract import SourceContract

DATA = {"x": np.random.default_rng(0).standard_normal((500, 3)), "y": np.arange(500)}


class WrongLength(MemorySource):
    def __len__(self):
        return super().__len__() - 1


class WrongField(MemorySource):
    @property
    def fields(self):
        return {name: type(f)((*f.shape, 1), f.dtype) for name, f in super().fields.items()}


class OffByOne(MemorySource):
    def read(self, start, stop, out):
        super().read(start, stop, out)
        if start % 7 == 3 and stop > start:
            super().read(start - 1, start, out)


class WantsAllFields(MemorySource):
    def read(self, start, stop, out):
        super().read(start, stop, {name: out[name] for name in self.fields})


class SortsWhatIsTaken(MemorySource):
    def take(self, indices, out):
        super().take(np.sort(indices), out)


class ShowsOtherSamples(MemorySource):
    def view(self, start, stop):
        return super().view(0, stop - start)


class ShowsWritableMemory(MemorySource):
    def view(self, start, stop):
        return {name: array.copy() for name, array in super().view(start, stop).items()}


class WritesTooMuch(MemorySource):
    def read(self, start, stop, out):
        super().read(start, stop, out)
        for array in out.values():
            array[stop - start :] = 0


class NeedsContiguousBuffers(MemorySource):
    def read(self, start, stop, out):
        super().read(start, stop, {n: np.ascontiguousarray(a) for n, a in out.items()})


class ForgetsWhenPickled(MemorySource):
    def __reduce__(self):
        return MemorySource, ({n: a[:] * 0 for n, a in self._arrays.items()},)


class NewFingerprintEachTime(MemorySource):
    def fingerprint(self):
        return str(id(self))


class SharesOneBuffer(MemorySource):
    """Reads through a buffer that all threads use at once."""

    meeting = None

    def read(self, start, stop, out):
        import threading

        self.shared = start
        threading.Event().wait(0.001)
        super().read(self.shared, min(len(self), self.shared + stop - start), out)


class WrapsAround(MemorySource):
    def take(self, indices, out):
        super().take(np.asarray(indices) % len(self), out)


class CastsSilently(MemorySource):
    def read(self, start, stop, out):
        for name, array in out.items():
            array[: stop - start] = self._arrays[name][start:stop]


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (WrongLength, "is_a_source_of_the_expected_length"),
        (WrongField, "fields_have_the_expected_shapes_and_dtypes"),
        (OffByOne, "reads_any_range"),
        (WantsAllFields, "reads_only_the_fields_asked_for"),
        (SortsWhatIsTaken, "takes_any_samples"),
        (ShowsOtherSamples, "views_equal_what_is_read"),
        (ShowsWritableMemory, "views_equal_what_is_read"),
        (WritesTooMuch, "leaves_the_rest_of_larger_buffers_alone"),
        (NeedsContiguousBuffers, "reads_into_strided_buffers"),
        (ForgetsWhenPickled, "survives_pickling"),
        (NewFingerprintEachTime, "fingerprint_is_the_same_for_the_same_data"),
        (SharesOneBuffer, "threads_read_at_once"),
        (WrapsAround, "refuses_what_is_out_of_range"),
        (CastsSilently, "refuses_buffers_that_do_not_fit"),
    ],
)
def test_a_broken_source_is_caught(broken, test):
    class Contract(SourceContract):
        def make_source(self):
            return broken(DATA)

        def expected(self):
            return DATA

    with pytest.raises((AssertionError, KeyError, ValueError)):
        getattr(Contract(), f"test_{test}")()


def test_every_test_of_the_contract_is_shown_to_fail():
    marks = test_a_broken_source_is_caught.pytestmark
    shown = {f"test_{case[1]}" for case in marks[0].args[1]}
    assert shown == {name for name in dir(SourceContract) if name.startswith("test_")}
