"""Heaps with lazy deletion, and the order within a lane."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lifeboat.core.modes import ParkedOrder
from lifeboat.core.queue import SWEEP_AT, Lane, Place, Ticket, TicketHeap
from lifeboat.core.vocabulary import Priority
from tests.core.building import ask

KEY = frozenset({"a"})
FIFO, SMALLEST = ParkedOrder.FIFO, ParkedOrder.SMALLEST_FIRST


def ticket(
    seq: int, arrived_at: float = 0.0, tokens: int = 10, priority: Priority = Priority.NORMAL
) -> Ticket:
    place = Place(arrived_at, seq)
    return Ticket(ask(tokens=tokens, priority=priority), place, "m", arrived_at, arrived_at + 30.0)


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "leave", "return"]),
        st.sampled_from(Priority),
        st.integers(1, 4),
        st.integers(0, 99),
    ),
    max_size=60,
)


@given(steps, st.sampled_from(ParkedOrder), st.sampled_from([0.0, 5.0, 1e9]))
def test_the_head_is_the_smallest_of_the_sorted_list(
    found: list[tuple[str, Priority, int, int]], order: ParkedOrder, boost_s: float
) -> None:
    lane, other = Lane(KEY), Lane(frozenset())
    inside: list[Ticket] = []
    outside: list[Ticket] = []
    for number, (what, priority, tokens, chance) in enumerate(found):
        now = float(number)
        if what == "add":
            one = ticket(number, now, tokens, priority)
            lane.add(one)
            inside.append(one)
        elif what == "leave" and inside:
            one = inside.pop(chance % len(inside))
            lane.discard(one)
            other.add(one)
            outside.append(one)
        elif what == "return" and outside:
            one = outside.pop(chance % len(outside))
            other.discard(one)
            lane.add(one)
            inside.append(one)

        def key(one: Ticket, at: float = now) -> tuple[float, ...]:
            place = one.place
            if at - place.arrived_at >= boost_s:
                return (0, place.arrived_at, place.seq)
            size = one.ask.estimate.total_tokens if order is SMALLEST else place.arrived_at
            return (1, one.ask.priority.rank, size, place.seq)

        head = lane.head(now, boost_s, order)
        assert (head and head[1]) == min(inside, key=key, default=None)
        assert set(lane) == set(inside) and lane.count == len(inside)


def test_entries_of_tickets_that_came_and_went_do_not_pile_up() -> None:
    lane, other = Lane(KEY), Lane(frozenset())
    stays = ticket(0)
    lane.add(stays)
    for _ in range(50 * SWEEP_AT):
        lane.discard(stays)
        other.add(stays)
        other.discard(stays)
        lane.add(stays)
    for heap in (*lane._by_arrival, *lane._by_size):
        assert len(heap._entries) <= SWEEP_AT + 1
    assert lane.head(0.0, 10.0, FIFO) is not None


def test_a_heap_is_swept_as_it_grows_and_keeps_every_living_ticket() -> None:
    lane = Lane(KEY)
    heap = TicketHeap()
    living: set[Ticket] = set()
    for number in range(5000):
        one = ticket(number)
        lane.add(one)
        heap.push(float(number), one)
        if number % 10:
            lane.discard(one)
        else:
            living.add(one)
    assert set(heap) == living
    assert len(heap._entries) <= 2 * len(living) + SWEEP_AT


def test_entries_of_one_request_never_compare_their_tickets() -> None:
    lane = Lane(KEY)
    place = Place(0.0, 1)
    for _ in range(10):
        lane.add(Ticket(ask(), place, "m", 0.0, 30.0))
    assert lane.head(0.0, 10.0, SMALLEST) is not None
