"""From the text of a generated module to its callable."""

from __future__ import annotations

import traceback

import pytest
import torch
from runtime_sample_kernels import cpp_kernel, module_text

from coilwork_runtime import Builder, ModuleTextError, load_python
from coilwork_runtime.module_loader import Call, find_fitting_inputs

CONSTANTS = {"c": torch.ones(8)}


def load(text: str) -> Call:
    return load_python(text, builder=Builder(), constants=CONSTANTS, name="sample")


def test_calls_take_a_list_and_empty_it() -> None:
    call = load(module_text(cpp_kernel()))
    x = torch.arange(8.0)
    args = [x]
    (y,) = call(args)
    assert torch.equal(y, 2 * x + 1)
    assert args == []


def test_tracebacks_show_generated_lines() -> None:
    call = load(module_text(cpp_kernel()).replace("args.clear()", 'raise ValueError("inside")'))
    with pytest.raises(ValueError, match="inside") as caught:
        call([torch.ones(8)])
    shown = "".join(traceback.format_exception(caught.value))
    assert '"<coilwork sample>"' in shown and 'raise ValueError("inside")' in shown


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("def f(:", "module-syntax"),
        ("x = '\0'", "module-syntax"),
        ("", "module-contents"),
        ("KERNELS = ()", "module-contents"),
        ("def make_call(kernels, constants): pass", "module-contents"),
        ("KERNELS = (1, 2)\ndef make_call(kernels, constants): pass", "module-contents"),
        ("KERNELS = ()\nmake_call = 3", "module-contents"),
    ],
)
def test_damaged_text_is_refused(text: str, code: str) -> None:
    with pytest.raises(ModuleTextError, match="generated module sample") as caught:
        load(text)
    assert caught.value.code == code
    assert "try     " in str(caught.value)


def test_made_up_inputs_are_changed_until_checks_of_data_pass() -> None:
    """Positions and sizes that a program checks; each may need another number, and layouts stay."""

    def call(args: list[object]) -> list[torch.Tensor]:
        table, rows, count, divisor = args
        args.clear()
        assert isinstance(table, torch.Tensor) and isinstance(rows, torch.Tensor)
        assert isinstance(count, torch.Tensor) and isinstance(divisor, torch.Tensor)
        assert rows.stride() == (0, 2)
        if not 3 <= count.item() <= 7:
            raise RuntimeError("count is out of range")
        if (divisor == 0).any():
            raise ZeroDivisionError("division by zero")
        return [table[rows] // divisor]

    line = torch.ones(8, dtype=torch.int64)
    rows = line.as_strided((3, 4), (0, 2))
    given = [torch.ones(1), rows, torch.tensor(1), torch.tensor(0, dtype=torch.int32)]
    found = find_fitting_inputs(call, given)
    assert found[0] is given[0] and found[1].unique().tolist() == [0]
    assert 3 <= found[2].item() <= 7 and found[3].item() != 0
    with pytest.raises(IndexError, match="first"):
        find_fitting_inputs(lambda args: raise_first(), given)
    assert find_fitting_inputs(lambda args: args, given[:1]) == given[:1]


def raise_first() -> list[torch.Tensor]:
    raise IndexError("the first error")
