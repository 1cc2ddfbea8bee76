"""The supported range of torch, and what is told of operators and real tensors."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch._higher_order_ops import effects
from torch._higher_order_ops.effects import has_effects
from torch._higher_order_ops.schema import HopSchema
from torch._higher_order_ops.torchbind import call_torchbind
from torch._subclasses import FakeTensorMode

from coilwork_frontend.errors import UnsupportedTorchError
from coilwork_frontend.torch_compat.aot_autograd import allow_tuples_of_methods, keep_checks, leave_transforms
from coilwork_frontend.torch_compat.operators import OperatorCounter, is_operator
from coilwork_frontend.torch_compat.tensors import leave_fake_mode, list_tensors, map_tensors
from coilwork_frontend.torch_compat.versions import check_torch_version
from coilwork_frontend.workarounds import WORKAROUNDS


@pytest.mark.parametrize("version", ["2.11.0", "2.12.1+cpu", "2.13.0a0+git1234", torch.__version__])
def test_supported_versions_of_torch_are_accepted(version: str) -> None:
    check_torch_version(version)


@pytest.mark.parametrize("version", ["2.10.9", "2.14.0", "1.13.1+cu117", "3.0.0", "nonsense"])
def test_unsupported_versions_say_what_works(version: str) -> None:
    with pytest.raises(UnsupportedTorchError, match=r"works with torch 2\.11 to 2\.13") as caught:
        check_torch_version(version)
    assert caught.value.code == "torch-version"
    assert "pip install" in str(caught.value)


def test_functions_of_torch_are_no_operators() -> None:
    assert is_operator(torch.ops.aten.add.Tensor)
    assert is_operator(torch.ops.higher_order.cond)
    assert not is_operator(torch.add)


def test_real_tensors_under_a_fake_mode() -> None:
    with FakeTensorMode(), leave_fake_mode():
        assert type(torch.ones(2)) is torch.Tensor


def test_counter_leaves_views_out() -> None:
    x = torch.ones(2, 3)
    with OperatorCounter() as counter:
        _ = (x.t() + 1).exp()
    assert counter.count == 2


def test_checks_of_linear_algebra_stay_in_graphs() -> None:
    check = torch.ops.aten._linalg_check_errors.default
    before = has_effects(check)
    with keep_checks():
        assert has_effects(check)
        with keep_checks():
            assert has_effects(check)
        assert has_effects(check)
    assert has_effects(check) == before


def test_nested_tensors_are_found_and_replaced() -> None:
    one, two = torch.ones(2), torch.zeros(3)
    nested = ([one, 5], {"two": two})
    assert [value.shape for value in list_tensors(nested)] == [(2,), (3,)]
    ([doubled, five], mapping) = map_tensors(lambda value: value * 2, nested)
    assert doubled.tolist() == [2.0, 2.0] and five == 5 and list(mapping) == ["two"]


def test_workarounds_are_there_and_tested() -> None:
    folder = Path(__file__).parents[2]
    for row in WORKAROUNDS:
        module, _, name = row.fix.partition(":")
        assert hasattr(import_module(module), name), row
        file, _, test = row.test.partition(":")
        assert f"def {test}(" in (folder / file).read_text(), row
        for version in row.versions:
            check_torch_version(f"{version}.0")


@pytest.mark.filterwarnings("ignore:.*quantize")
def test_methods_of_script_objects_return_tuples() -> None:
    """Torch counts what they return by the schema, so that has the elements of a tuple."""
    weight = torch.quantize_per_tensor(torch.ones(3, 4), 0.1, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(weight, None)
    find = effects._get_schema
    with allow_tuples_of_methods():
        unpack = effects._get_schema(call_torchbind, (packed, "unpack"))
        bias = effects._get_schema(call_torchbind, (packed, "bias"))
    assert isinstance(unpack, HopSchema) and [str(one.type) for one in unpack.returns] == [
        "Tensor",
        "Optional[Tensor]",
    ]
    assert len(bias.returns) == 1 and not isinstance(bias, HopSchema)
    assert effects._get_schema is find


def test_what_raises_within_a_transform_leaves_it() -> None:
    def fail(row: torch.Tensor) -> torch.Tensor:
        torch._C._functorch._vmap_increment_nesting(2, "error")
        raise ValueError(row.shape)

    with pytest.raises(ValueError), leave_transforms():
        torch.vmap(fail)(torch.ones(3, 2))
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0
    assert torch._C._functorch.peek_interpreter_stack() is None
