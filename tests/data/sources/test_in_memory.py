from unskew.data.files.finder import Finder
from unskew.data.sources.in_memory import GivenDataset


def test_data_of_a_program_must_be_handed_over_again(refused):
    refused(lambda: GivenDataset(kind="mine").load(Finder()), "(mine)", "with data=... of unskew.resume or unskew.open")
