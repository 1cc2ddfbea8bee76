"""Lets tests import the modules beside them (`ir_cases`, `random_values`); their names are unique in the
repository.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
