"""Program: the instructions that a wrapper or executor carries out, in order.

Open `nodes.py` first. `text.py` and `parser.py` are its text, `verify.py` its rules, `interpreter.py` its
meaning; `regions.py` says which stretches a driver may replay or call, `walk.py` goes through programs.
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
    LoopCall,
    PoolView,
    Program,
    Region,
    Reinterpret,
    Return,
    Reuse,
    SubprogramCall,
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
    "LoopCall",
]
