"""Shared memory: tensors arrive whole, whatever their type, shape and strides."""

import torch

from unskew.executors.pool.shared_memory import SharedTensors, map_groups

GROUPS = {
    "a": {
        "x": torch.randn(300, 100), "t": torch.randn(300, 100).t(), "n": torch.tensor(5), "e": torch.empty(0, 3),
        "last": torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last), "gaps": torch.randn(8, 8)[::2, ::2],
        "wide": torch.randn(3, 1).expand(3, 4), "grad": torch.ones(2, requires_grad=True),
    },
    "b": {"flag": torch.tensor([True, False]), "h": torch.ones(3, dtype=torch.bfloat16), "z": torch.ones(2).cfloat()},
    "c": {},
}  # fmt: skip


def assert_same(back):
    assert list(back) == list(GROUPS)
    for group, tree in GROUPS.items():
        assert list(back[group]) == list(tree)
        for name, value in tree.items():
            assert torch.equal(back[group][name], value) and back[group][name].dtype == value.dtype, name
            assert back[group][name].stride() == value.detach().clone().stride(), name


def test_views_and_copies_keep_types_shapes_and_strides():
    memory = SharedTensors()
    memory.write({"before": {"x": torch.randn(7)}})
    layout = memory.write(GROUPS)
    assert_same(map_groups(memory.view, layout))
    copies = memory.copy(layout)
    memory.clear()
    memory.write({"other": {"x": torch.zeros(100_000)}})
    assert_same(copies)


def test_a_tensor_is_put_once_and_written_apart_from_what_was_put():
    memory, value = SharedTensors(), torch.randn(1000)
    assert memory.put(value) == memory.put(value) and value in memory and memory.used == 4032
    layout = memory.write({"a": {"x": value, "same": value}})
    assert layout["a"]["x"] == layout["a"]["same"] and memory.used == 8064 and value not in memory


def test_every_tensor_is_aligned_alike():
    memory = SharedTensors()
    layout = memory.write(GROUPS)
    for back in (map_groups(memory.view, layout), memory.copy(layout)):
        assert all(value.data_ptr() % 64 == 0 for tree in back.values() for value in tree.values() if value.numel())


def test_it_grows_and_old_views_stay_valid():
    memory = SharedTensors()
    first = memory.view(memory.put(torch.arange(4)))
    memory.put(torch.zeros(2_000_000))
    assert first.tolist() == [0, 1, 2, 3]


def test_the_other_side_sees_what_was_written_after_it_looked():
    writer = SharedTensors()
    reader = SharedTensors()
    reader._file = writer._file  # as after a fork
    assert reader.view(writer.put(torch.arange(3))).tolist() == [0, 1, 2]
    assert float(reader.view(writer.put(torch.ones(3_000_000))).sum()) == 3_000_000
