"""Saved artefacts: a program, its kernels' binaries and its constants in one file, run without a compiler.

Open `save.py` and `load.py` first; `records.py` is the file's form, `constants.py` tensors as bytes.
"""

from coilwork_runtime.artifact.load import LoadedArtifact, load_artifact
from coilwork_runtime.artifact.save import save_artifact

__all__ = ["LoadedArtifact", "load_artifact", "save_artifact"]
