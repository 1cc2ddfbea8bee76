"""Lets test files import the modules beside them, under pytest's importlib mode, and Dynamo be imported
before the first test.
"""

import sys
from pathlib import Path

import torch._dynamo  # noqa: F401  the root's conftest.py sets it up for all tests

sys.path.insert(0, str(Path(__file__).parent))
