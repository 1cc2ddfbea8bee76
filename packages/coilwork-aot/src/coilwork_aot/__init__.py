"""Packages of compiled models: one file, loaded and run without a compiler.

Open `loading.py` first: from a file to a `LoadedModel`. `archive.py` and `manifest.py` are the file's form,
`weights.py` and `state.py` its tensors; `exporting.py`, `saved_programs.py` and `packaging.py` make one.
"""

from coilwork_aot.errors import InputError, PackageError, TargetError
from coilwork_aot.loading import load, read_manifest
from coilwork_aot.model import EntryPoint, LoadedModel
from coilwork_aot.saved_programs import save_program
from coilwork_aot.version import __version__

__all__ = [
    "EntryPoint",
    "InputError",
    "LoadedModel",
    "PackageError",
    "TargetError",
    "__version__",
    "load",
    "read_manifest",
    "save_program",
]
