"""Repeated blocks are found where they are, whatever they are called and whatever is around them."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layered_problems import NORM, PRODUCT, STREAM, Network, layers, repeated_problems, without_blocks
from planner_problems import problems

from monet.planner.baselines.blocks import Repetition, crossing_bytes, repeated_blocks
from monet.planner.problem import Problem


@pytest.mark.parametrize("count", [2, 3, 12, 100])
def test_layers_are_blocks(count: int) -> None:
    assert repeated_blocks(layers(count)) == (Repetition(1, 4, count),)


def test_names_do_not_matter() -> None:
    assert repeated_blocks(layers(5, seed=1)) == repeated_blocks(layers(5, seed=2)) == (Repetition(1, 4, 5),)


def test_one_layer_is_no_repetition() -> None:
    assert repeated_blocks(layers(1)) == ()
    assert repeated_blocks(without_blocks()) == ()
    assert repeated_blocks(Problem("nothing", (), (), (), (), 0)) == ()


def test_a_mask_that_all_layers_read_and_what_is_made_before_them_do_not_matter() -> None:
    """What the first layer reads need not lie as far before it as a layer's result before the next."""
    network = Network()
    x = network.add(STREAM)
    mask = network.add(2, workspace=3)
    mask = network.add(2, [mask])
    for _ in range(6):
        x = network.layer(x, mask)
    network.add(1, [x], [x])
    assert repeated_blocks(network.problem()) == (Repetition(3, 4, 6),)


def test_a_first_layer_without_a_tensor_to_read_is_no_block() -> None:
    """It reads the step's input, which is in memory anyway. Other layers are still found as a whole."""
    network = Network()
    x = network.add(STREAM, [network.add(PRODUCT, [network.add(NORM)])])
    for _ in range(6):
        x = network.layer(x)
    network.add(1, [x], [x])
    assert repeated_blocks(network.problem()) == (Repetition(3, 4, 6),)


def test_blocks_begin_between_layers() -> None:
    """The first layer has another product, so that alike operators begin in its middle, where more bytes cross."""
    network = Network()
    x = network.add(STREAM)
    product = network.add(PRODUCT, [network.add(NORM, [x], [x])], workspace=7)
    x = network.add(STREAM, [network.add(STREAM, [product], [product]), x])
    for _ in range(5):
        x = network.layer(x)
    network.add(1, [x], [x])
    assert repeated_blocks(network.problem()) == (Repetition(5, 4, 5),)


def test_an_encoder_and_a_decoder_are_two_repetitions() -> None:
    network = Network()
    x = network.add(STREAM)
    for _ in range(4):
        x = network.layer(x)
    memory, x = x, network.add(STREAM, workspace=9)
    for _ in range(3):
        x = network.layer(x)
        crossed = network.add(STREAM + 2, [x, memory], [x])
        x = network.add(STREAM, [crossed, x])
    network.add(1, [x], [x])
    assert repeated_blocks(network.problem()) == (Repetition(1, 4, 4), Repetition(18, 6, 3))


def test_equal_operators_inside_a_block_are_not_its_period() -> None:
    """a a b b a a b b ...: the distance of one a to the next is 1 and 3 and never 4."""
    network = Network()
    x = network.add(7)
    for _ in range(5):
        for size in (3, 3, 5, 5):
            x = network.add(size, [x], [x])
    (found,) = repeated_blocks(network.problem())
    assert (found.period, found.count) == (4, 5)


def test_a_layer_that_differs_divides_the_others() -> None:
    network = Network()
    x = network.add(STREAM)
    for k in range(9):
        if k == 4:
            x = network.add(STREAM, [network.add(40, [x], [x])], [x])
        x = network.layer(x)
    network.add(1, [x], [x])
    assert repeated_blocks(network.problem()) == (Repetition(1, 4, 4), Repetition(19, 4, 5))


@pytest.mark.parametrize("difference", ["kind", "workspace", "pinned"])
def test_signatures_tell_operators_of_one_size_apart(difference: str) -> None:
    network = Network()
    x = network.add(3)
    for k in range(6):
        odd = k % 2 == 1
        x = network.add(
            3,
            [x],
            kind="matmul" if odd and difference == "kind" else "",
            workspace=int(odd and difference == "workspace"),
            pinned=odd and difference == "pinned",
        )
    (found,) = repeated_blocks(network.problem())
    assert (found.period, found.count) == (2, 3)


def test_operators_that_are_wired_in_another_way_are_not_alike() -> None:
    """The last operator of the later layers has the same signature and reads another tensor of its layer."""
    network = Network()
    x = network.add(STREAM)
    for k in range(8):
        norm = network.add(NORM, [x], [x])
        product = network.add(PRODUCT, [norm], [norm])
        x = network.add(STREAM, [product, norm if k >= 4 else x])
    network.add(1, [x], [x])
    found = repeated_blocks(network.problem())
    assert len(found) == 2 and all(one.period == 3 for one in found)
    assert found[0].end <= 15 and found[1].first > 12  # 12 is the fourth layer's last operator, 15 the fifth's


def test_blocks_may_read_what_was_made_before_them() -> None:
    """As the second half of a U-Net does, each a tensor of its own."""
    network = Network()
    made = [network.add(STREAM)]
    for size in range(20, 25):
        made.append(network.add(size, [made[-1]]))
    x = made[-1]
    for skip in reversed(made):
        x = network.layer(x, skip)
    network.add(1, [x], [x])
    assert repeated_blocks(network.problem()) == (Repetition(6, 4, 6),)


def test_what_repeats_within_less_than_a_block_is_no_block() -> None:
    """Query, key and value of a layer that is not repeated."""
    network = Network()
    x = network.add(STREAM)
    for _ in range(3):
        x = network.layer(x)
    query, key, value = (network.add(11, [x], [x]) for _ in range(3))
    network.add(STREAM, [query, key, value], [query, key, value])
    assert repeated_blocks(network.problem()) == (Repetition(1, 4, 3),)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_the_longest_stretch_of_a_chain_is_found(data: st.DataObject) -> None:
    """Beside an exhaustive search; each operator reads the one before it, so that sizes alone decide."""
    word = st.lists(st.integers(1, 3), max_size=7)
    block = data.draw(word.filter(bool))
    sizes = data.draw(word) + block * data.draw(st.integers(3, 6)) + data.draw(word)
    network, x = Network(), ""
    for k, size in enumerate([9, *sizes]):
        x = network.add(size, [x] if k else [])
    stretches = []
    for period in range(1, len(sizes)):
        begin = 1
        for i in range(1, len(sizes) + 1 - period + 1):
            if i == len(sizes) + 1 - period or sizes[i - 1] != sizes[i - 1 + period]:
                if i - begin >= period:
                    stretches.append((begin - i, period, begin, i + period))
                begin = i + 1
    _, period, begin, end = min(stretches)
    found = repeated_blocks(network.problem())
    assert any(one.period == period and begin <= one.first and one.end <= end for one in found)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=st.one_of(repeated_problems(), problems(operators=8, pinned=True)))
def test_blocks_are_alike_and_never_overlap(problem: Problem) -> None:
    made = {name: (i, slot) for i, operator in enumerate(problem.forward) for slot, name in enumerate(operator.outputs)}
    size = {tensor.id: (tensor.bytes, tensor.pinned) for tensor in problem.tensors}
    end = 0
    for found in repeated_blocks(problem):
        assert found.first >= end and found.count >= 2 and found.period >= 1
        for i in range(found.first, found.end - found.period):
            old, new = problem.forward[i], problem.forward[i + found.period]
            assert [size[name] for name in old.outputs] == [size[name] for name in new.outputs]
            assert [q.name for q in old.implementations] == [q.name for q in new.implementations]
            assert [q.workspace_bytes for q in old.implementations] == [q.workspace_bytes for q in new.implementations]
            for earlier, later in zip(old.inputs, new.inputs, strict=True):
                (before, place), (after, other) = made[earlier], made[later]
                apart = after == before + found.period and other == place
                assert apart or (before < found.first and after < found.first + found.period)
        end = found.end
    assert end <= len(problem.forward)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(operators=8))
def test_bytes_that_cross_a_position(problem: Problem) -> None:
    for position, crossing in enumerate(crossing_bytes(problem)):
        made = {name for operator in problem.forward[:position] for name in operator.outputs}
        read = {name for operator in problem.forward[position:] for name in operator.inputs}
        assert crossing == sum(tensor.bytes for tensor in problem.tensors if tensor.id in made & read)
