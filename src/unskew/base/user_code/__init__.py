"""The user's own code that a run uses, by content: plugin files, `python:` functions, classes of a script or notebook.

A file counts whole, and so do the user's files that it imports. A script or notebook also holds what starts the runs,
so there only the class counts, with the functions and values that its code names. What counts is what is loaded, which
an edited file no longer shows: a file is believed only as long as it says what the process runs. Values that were
set in its module from outside count beside it (`values.py`).

Each file imports only from those before it: files, code_objects, description, values, calls, imports, finder.
"""

from unskew.base.user_code.calls import keep_values
from unskew.base.user_code.code_objects import take_apart
from unskew.base.user_code.description import show_uncopied
from unskew.base.user_code.files import Loaded, digest, is_own, list_modules, name_unrecorded, note_loaded
from unskew.base.user_code.finder import find, names_attribute, say_unseeded
from unskew.base.user_code.imports import files_of, is_outdated, note_plugin, walk_imports

__all__ = [
    "Loaded",
    "digest",
    "files_of",
    "find",
    "is_outdated",
    "is_own",
    "keep_values",
    "list_modules",
    "name_unrecorded",
    "names_attribute",
    "note_loaded",
    "note_plugin",
    "say_unseeded",
    "show_uncopied",
    "take_apart",
    "walk_imports",
]
