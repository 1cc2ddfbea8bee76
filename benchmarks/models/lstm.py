"""A two-layer LSTM, once written cell by cell and once as torch's nn.LSTM.

Dynamo breaks the graph at nn.LSTM unless `torch._dynamo.config.allow_rnn` is set, so the case `lstm` writes
out the cells (this is what a compiler can fuse) and `lstm_nn` keeps the module, captured with that setting.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.models.case import ModelCase, Setting, Size, at, normal

# Input width, hidden width, time steps.
SHAPES = {Size.REDUCED: (64, 128, 8), Size.FULL: (256, 512, 32)}


class Cell(nn.Module):
    """One step: x [b, in], h [b, hidden], c [b, hidden] -> the next h and c (Hochreiter and Schmidhuber
    1997).
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(width, 4 * hidden)
        self.from_hidden = nn.Linear(hidden, 4 * hidden)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        gates = self.from_input(x) + self.from_hidden(h)
        enter, forget, candidate, leave = gates.chunk(4, dim=-1)
        c = torch.sigmoid(forget) * c + torch.sigmoid(enter) * torch.tanh(candidate)
        return torch.sigmoid(leave) * torch.tanh(c), c


class CellLSTM(nn.Module):
    """x [b, steps, in] -> the last layer's hidden states [b, steps, hidden]; the loop over steps
    is unrolled.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        width, self.hidden, _ = at(SHAPES, size)
        self.cells = nn.ModuleList((Cell(width, self.hidden), Cell(self.hidden, self.hidden)))

    def forward(self, x: Tensor) -> Tensor:
        sequence = x.unbind(1)
        for cell in self.cells:
            h = c = x.new_zeros(x.shape[0], self.hidden)
            outputs = []
            for step in sequence:
                h, c = cell(step, h, c)
                outputs.append(h)
            sequence = tuple(outputs)
        return torch.stack(sequence, dim=1)


class ModuleLSTM(nn.Module):
    """The same shapes through nn.LSTM."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width, hidden, _ = at(SHAPES, size)
        self.lstm = nn.LSTM(width, hidden, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.lstm(x)[0]
        return output


def inputs(setting: Setting, generator: torch.Generator) -> tuple[Tensor, ...]:
    width, _, steps = at(SHAPES, setting.size)
    batch = 64 if setting.large else 4
    return (normal((batch, steps, width), setting, generator),)


CASES = (
    ModelCase(name="lstm", build=CellLSTM, inputs=inputs),
    ModelCase(name="lstm_nn", build=ModuleLSTM, inputs=inputs, dynamo={"allow_rnn": True}),
)
