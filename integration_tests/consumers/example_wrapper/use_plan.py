"""Use a wrapper that another package brings: it is chosen by its name, and nothing is imported for that."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch

import coilwork
from coilwork_cpp import CppCodegen
from coilwork_ir.conformance import WRAPPER_CASES, check_wrapper
from coilwork_ir.program.walk import list_kernels
from coilwork_ir.target import get_target
from coilwork_ir.wrapper import WrapOptions

CPU = get_target("x86-64-avx2")


def main() -> None:
    compile_by_name()
    try:
        coilwork.compile(torch.sin, wrapper="plam")
    except coilwork.errors.OptionError as error:
        print(error)
    keep_the_contract()


def compile_by_name() -> None:
    torch.manual_seed(0)
    layers = torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)
    model, x, trace = torch.nn.Sequential(*layers), torch.randn(8, 16), tempfile.mkdtemp()
    compiled = torch.compile(
        model, backend="coilwork", options={"wrapper": "plan", "strict": True, "trace": trace}
    )
    wanted = model(x)
    wanted.square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    found = compiled(x)
    found.square().sum().backward()
    print("results:", torch.allclose(found, wanted, atol=1e-5))
    pairs = zip(model.parameters(), gradients, strict=True)
    print("gradients:", all(torch.allclose(p.grad, wanted, atol=1e-4) for p, wanted in pairs))
    for path in sorted(Path(trace).glob("*/report.json"), reverse=True):
        steps = json.loads((path.parent / "plan.json").read_text())["steps"]
        launches = sum(step["do"] == "launch" for step in steps)
        report = json.loads(path.read_text())
        print(report["role"], "is run by", report["executor"], launches == report["kernels"] > 0)


def keep_the_contract() -> None:
    from plan_wrapper.wrapper import PLAN, load_plan

    results = check_wrapper(PLAN)
    print("contract:", {(result.status, result.reason) for result in results})
    case = next(case for case in WRAPPER_CASES if case.name == "pools")
    program = case.program()
    sources = {kernel.name: CppCodegen().emit(kernel, CPU, {}) for kernel in list_kernels(program)}
    folder = Path(tempfile.mkdtemp()) / "saved"
    PLAN.emit(program, sources, WrapOptions()).save(folder)
    (result,) = load_plan(folder)([torch.tensor([1.0, -2.0]), torch.tensor([9, -9])])
    print("saved, loaded and played:", result.tolist())


if __name__ == "__main__":
    main()
