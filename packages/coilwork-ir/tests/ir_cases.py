"""Test cases in text files: what follows a line `# expect: CODE`, up to the next such line."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "graphs"

COPY = """kernel @copy fast {
    size n0 in [0, inf]
    range x0: `n0` parallel
    arg in0: f32 in span `n0`
    arg out0: f32 out span `n0`
    body {
      t0 = load %in0[x0] : f32
      store %out0[x0] = t0
    }
  }"""

UPDATE = """kernel @update fast {
    size n0 in [0, inf]
    range x0: `n0` parallel
    arg io0: f32 inout span `n0`
    body {
      t0 = load %io0[x0] : f32
      t1 = add(t0, t0)
      store %io0[x0] = t1
    }
  }"""


def broken_cases(name: str) -> list[tuple[str, str]]:
    """Pairs (expected code, text) of the file `name`."""
    cases: list[tuple[str, list[str]]] = []
    for line in (FOLDER / name).read_text().splitlines():
        if line.startswith("# expect: "):
            cases.append((line.removeprefix("# expect: "), []))
        elif cases:
            cases[-1][1].append({"KERNEL": COPY, "UPDATE": UPDATE}.get(line.strip(), line))
    return [(code, "\n".join(lines)) for code, lines in cases]
