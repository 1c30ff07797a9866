"""The little of a client's context that processors use."""

import torch


class Drawing:
    """A client whose random numbers depend on a seed and their purpose."""

    def __init__(self, seed=0):
        self.seed = seed

    def draw(self, purpose, make):
        return make(torch.Generator().manual_seed(hash((self.seed, len(purpose), sum(map(ord, purpose)))) % 2**31))


def send(processor, groups, memory=None, seed=0):
    """What travels, and what the client keeps."""
    return processor.encode(Drawing(seed), groups, memory or {}, "wire/test")


def read(processor, groups, seed=0):
    """What the server reads of these groups."""
    return processor.decode(send(processor, groups, seed=seed)[0])
