"""Program: the instructions that a wrapper or executor carries out, in order.

Open `nodes.py` first. `text.py`, `verify.py` and `interpret.py` are its text, its rules and its meaning;
`regions.py` says which stretches a driver may replay, `verify_in_flight.py` checks memory in flight.
"""

from coilwork_ir.program.nodes import (
    Alloc,
    AllocPool,
    BindSymbol,
    CheckLayout,
    CheckSize,
    Comment,
    CondCall,
    ExternCall,
    Free,
    Instruction,
    Launch,
    PoolView,
    Program,
    Region,
    Reinterpret,
    Return,
    Reuse,
    SubprogramCall,
    WhileCall,
)
from coilwork_ir.streams import Copy, ForkStream, JoinStream, RecordEvent, WaitEvent

__all__ = [
    "Alloc",
    "AllocPool",
    "BindSymbol",
    "CheckLayout",
    "CheckSize",
    "Comment",
    "CondCall",
    "Copy",
    "ExternCall",
    "ForkStream",
    "Free",
    "Instruction",
    "JoinStream",
    "Launch",
    "PoolView",
    "Program",
    "RecordEvent",
    "Region",
    "Reinterpret",
    "Return",
    "Reuse",
    "SubprogramCall",
    "WaitEvent",
    "WhileCall",
]
