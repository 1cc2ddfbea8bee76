"""From the text of a generated module to its callable."""

from __future__ import annotations

import traceback

import pytest
import torch
from runtime_sample_kernels import cpp_kernel, module_text

from coilwork_runtime import Builder, ModuleTextError, load_python
from coilwork_runtime.module_loader import Call

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
