"""Long lists of cases of one kind: `make test` plays some of each, `make test-all` every one."""

from collections import Counter

import pytest

EVERY = {
    "test_a_composition_is_right_or_refused": 4,
    "test_a_variant_runs_one_by_one_and_stacked": 3,
    "test_they_keep_their_bits_in_serial_and_pool_and_a_resumed_run": 3,
    "test_stacked_equals_serial_within_the_tolerance": 3,
    "test_a_quantised_wire_leaves_the_usual_tolerance_by_nature": 3,
}
"""By test: the first of so many cases is played."""


@pytest.hookimpl(tryfirst=True)  # before slow ones are left out
def pytest_collection_modifyitems(items):
    seen = Counter()
    for item in items:
        name = getattr(item, "originalname", "")
        if name in EVERY and "contract" in item.path.parts:
            if seen[name] % EVERY[name]:
                item.add_marker(pytest.mark.slow)
            seen[name] += 1
