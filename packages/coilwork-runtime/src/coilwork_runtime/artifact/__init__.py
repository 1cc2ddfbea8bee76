"""Saved artefacts: a generated module with its kernels' binaries and constants in one file, which runs
without a compiler.
"""

from coilwork_runtime.artifact.load import LoadedArtifact, load_artifact
from coilwork_runtime.artifact.save import save_artifact

__all__ = ["LoadedArtifact", "load_artifact", "save_artifact"]
