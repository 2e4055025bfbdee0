"""Memory that is used again is never somebody's who still looks at it."""

import threading

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.sources.thread_buffers import ReusedMemory, borrowed_buffers, thread_buffer

F4 = np.dtype("f4")


def address(array):
    return array.ctypes.data


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=30))
def test_arrays_that_live_never_share_memory(requests):
    memory, alive = ReusedMemory(), {}
    for number, (rows, place) in enumerate(requests):
        alive.pop(place, None)  # of four, one goes and another comes
        array = memory.empty((rows, 3), F4)
        assert array.shape == (rows, 3) and array.flags.writeable and array.flags.c_contiguous
        array[...] = number
        alive[place] = (number, array)
        for known, kept in alive.values():
            assert (kept == known).all()


def test_memory_of_an_array_that_is_gone_is_used_again_for_one_as_large_or_smaller():
    memory = ReusedMemory()
    kept = memory.empty((8, 3), F4)
    array = memory.empty((8, 3), F4)
    where = address(array)
    del array
    array = memory.empty((6, 3), F4)
    assert address(array) == where and kept.shape == (8, 3)


def test_a_part_a_tensor_or_a_view_of_another_kind_keeps_it():
    for look in (lambda a: a[2:, 1], torch.from_numpy, lambda a: a.view("u1").reshape(-1)[5:6]):
        memory = ReusedMemory()
        memory.empty((8, 3), F4)
        array = memory.empty((8, 3), F4)
        where, seen = address(array), look(array)
        del array
        other = memory.empty((8, 3), F4)
        assert address(other) != where
        del seen
        assert address(memory.empty((8, 3), F4)) == where


def test_what_is_much_larger_than_others_goes_back_to_the_system():
    memory, kept = ReusedMemory(), []
    for rows in (1000, 10, 10):  # the whole of it once, then chunks
        memory.empty((rows, 3), F4)
        kept.append([piece.size for piece in memory._spare])
    assert kept == [[], [120], [120]]


def test_threads_that_come_and_go_have_the_same_buffers_and_never_one_at_once():
    spare, seen, both = [], [], threading.Barrier(2)

    def work():
        with borrowed_buffers(spare):
            seen.append(address(thread_buffer("stored", 1 << 20)))
            both.wait(20)

    for _ in range(3):
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(spare) == 2
    assert len(set(seen)) == 2 and len({seen[-1], seen[-2]}) == 2


def test_buffers_of_a_read_that_failed_are_not_lost_and_its_own_come_back():
    mine, spare = thread_buffer("stored", 10), []
    try:
        with borrowed_buffers(spare):
            assert not np.shares_memory(thread_buffer("stored", 10), mine)
            raise OSError
    except OSError:
        pass
    assert len(spare) == 1 and np.shares_memory(thread_buffer("stored", 10), mine)
