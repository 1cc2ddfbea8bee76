"""The page that tells what the table found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from typing import Any, Final

from benchmarks.layout_programs.cases import Case

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "ConvNeXt": ("convnext", "convnext-last"),
    "transformers behind a patch embedding": ("vit", "dit", "windows", "mixer"),
    "U-Nets": ("denoiser", "denoiser-last", "normed", "normed-last", "normed-bf16", "normed-residual"),
    "HiFi-GAN": ("vocoder",),
    "transposed convolutions": ("transposed", "decoder", "compressor"),
}
"""Programs of one kind, whose means the page has below all programs."""

_HEAD: Final = """# Programs whose speed depends on layouts

Made by `python -m benchmarks.layout_programs.table`. A case is a program, forward or with a backward pass,
what it computes in, and how it is given: as its own module lies, or in channels-last (`last`). Times are
those in which the GPU is busy in a call; peaks are of memory above what is there before. "off" is the norm of
what results and gradients differ from eager mode's by, as a share of theirs.
"""


def make_page(found: Mapping[str, Mapping[str, Any]], machine: Mapping[str, str]) -> str:
    """Return the page in Markdown."""
    timed = {case: said for case, said in found.items() if _times(said).keys() >= {"coilwork", "inductor"}}
    ratios = {case: _times(said)["inductor"] / _times(said)["coilwork"] for case, said in timed.items()}
    lines = [_HEAD, *(f"- {name}: {said}" for name, said in machine.items()), ""]
    lines += ["| | cases | TorchInductor's time over ours, geometric mean | least |", "|---|---|---|---|"]
    lines += _mean("all", ratios, ratios)
    for mode in ("train", "infer"):
        lines += _mean(mode, ratios, [case for case in ratios if f"/{mode}/" in case])
    for group, programs in GROUPS.items():
        for mode in ("train", "infer"):
            cases = [c for c in ratios if c.split("/")[0] in programs and f"/{mode}/" in c]
            lines += _mean(f"{group}, {mode}", ratios, cases)
    lines += [
        "",
        "| case | ours, us | TorchInductor, us | eager, us | ratio | MB | TorchInductor, MB | off |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in sorted(ratios, key=lambda case: ratios[case]):
        said, times = timed[case], _times(timed[case])
        notes = [
            note
            for note, holds in (
                ("changes from run to run", not said["coilwork repeatable"]),
                ("other strides than eager's", not said["coilwork strides"]),
            )
            if holds
        ]
        off = f"{said['coilwork off']:.1e} (its {said['inductor off']:.1e})"
        lines.append(
            f"| {_describe(case)} | {times['coilwork']:.1f} | {times['inductor']:.1f} | "
            f"{times.get('eager', 0.0):.1f} | {ratios[case]:.2f} | {said['coilwork MB']:.1f} | "
            f"{said['inductor MB']:.1f} | {'; '.join((off, *notes))} |"
        )
    failed = [case for case in found if case not in timed]
    lines += ["", *(f"- {case}: {_explain(found[case])}" for case in failed)]
    return "\n".join(lines).rstrip() + "\n"


def _times(said: Mapping[str, Any]) -> dict[str, float]:
    kernels: Mapping[str, Sequence[Mapping[str, Any]]] = said.get("kernels", {})
    return {name: sum(each["total_us"] for each in listed) for name, listed in kernels.items()}


def _mean(name: str, ratios: Mapping[str, float], cases: Iterable[str]) -> list[str]:
    listed = list(cases)
    if not listed:
        return []
    mean = exp(sum(log(ratios[case]) for case in listed) / len(listed))
    return [f"| {name} | {len(listed)} | {mean:.2f} | {min(ratios[case] for case in listed):.2f} |"]


def _describe(text: str) -> str:
    case = Case.parse(text)
    order = ", last" if case.setting.is_channels_last else ""
    return f"{case.program}, {'train' if case.setting.train else 'infer'}, {case.setting.precision}{order}"


def _explain(said: Mapping[str, Any]) -> str:
    failures = [f"{key}: {text}" for key, text in said.items() if "failed" in key]
    return "; ".join(failures) or "not measured"
