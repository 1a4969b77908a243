"""Random choices that depend on where they are made and on nothing else, so that a longer sequence repeats them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def distinct(limits: NDArray[np.int64], count: int, *stream: Any) -> NDArray[np.int64]:
    """For every limit m, `count` different numbers in `0 .. m - 1`, all sets alike; all of them where m <= count.

    Each place draws from a counter-based generator of its own (splitmix64) instead of sharing one that moves on: its
    numbers depend on its limit and its stream alone. Numbers that came twice are drawn again until none does, which
    favours no set.

    Args:
        limits: int64 `[..]`, the m of each place; below 1 nothing is drawn.
        count: how many numbers to draw.
        stream: integers, or arrays that broadcast to the shape of `limits`, that name the generator of each place:
            seed, layer, head, position.

    Returns int64 `[.., count]`, sorted, -1 where there are fewer. Costs O(places * count log count).
    """
    state = np.zeros(limits.shape, np.uint64)
    for number in stream:
        state = _mixed(state + np.asarray(number, np.uint64))
    slots = np.arange(count)
    chosen = np.where(slots < limits[..., None], slots, -1).reshape(limits.size, count)
    places = np.flatnonzero(limits > count)
    below, state = limits.flat[places][:, None].astype(np.uint64), state.flat[places][:, None]
    numbers = np.zeros((len(places), count), np.uint64)
    again = np.ones_like(numbers, bool)
    while len(places):
        state = _mixed(state)
        numbers = np.sort(np.where(again, _mixed(state + slots.astype(np.uint64)) % below, numbers), axis=-1)
        again[:, 1:] = numbers[:, 1:] == numbers[:, :-1]
        again[:, :1] = False
        done = ~again.any(-1)
        chosen[places[done]] = numbers[done]
        places, below, state, numbers, again = places[~done], below[~done], state[~done], numbers[~done], again[~done]
    return chosen.reshape(*limits.shape, count)


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One step of splitmix64 (Steele, Lea and Flood, 2014): any two states give unrelated numbers."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
