"""Operations of a random program that keep positions, and those that combine elements along dimensions."""

from __future__ import annotations

import torch
from torch import Tensor

from integration_tests.fuzz.draw import Draw, NoValueError

DTYPES = ("float32", "bfloat16", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
SMOOTH = """
    sin({0}) cos({0}) tanh({0}) sigmoid({0}) exp({0}.clamp(-9,4)) exp2({0}.clamp(-9,4)) expm1({0}.clamp(-9,4))
    log({0}.abs()+0.5) log1p({0}.abs()) log2({0}.abs()+0.5) log10({0}.abs()+0.5) sqrt({0}.abs())
    rsqrt({0}.abs()+0.25) reciprocal({0}.abs()+0.5) erf({0}) erfc({0}) atan({0}) asinh({0})
    sinh({0}.clamp(-4,4)) cosh({0}.clamp(-4,4)) neg({0}) abs({0}) relu({0}) square({0}) positive({0})
    lgamma({0}.abs()+1) logit({0},0.1) sinc({0}) nan_to_num({0}) clamp({0},min=-1.0,max=1.5)
    clamp_min({0},0.25) clamp_max({0},1) tan({0}.clamp(-1,1)) asin({0}.clamp(-1,1)) acos({0}.clamp(-1,1))
    atanh({0}.clamp(-0.9,0.9)) digamma({0}.abs()+1) erfinv({0}.clamp(-0.9,0.9)) i0({0}.clamp(-4,4))
    rad2deg({0}) deg2rad({0}) softmax({0},{1}) log_softmax({0},{1}) xlogy({0},{0}.abs()+1) celu({0}) selu({0})
    rrelu({0},0.2,0.2)
""".split()
FUNCTIONAL = """
    gelu({0}) gelu({0},approximate='tanh') silu({0}) mish({0}) softplus({0}) elu({0},0.7) leaky_relu({0},0.2)
    hardtanh({0}) hardsigmoid({0}) hardswish({0}) relu6({0}) logsigmoid({0}) softsign({0}) tanhshrink({0})
    threshold({0},0.3,-2.0) softshrink({0},0.25) hardshrink({0},0.25) glu(torch.cat([{0},{0}],-1),-1)
    normalize({0},dim={1}) softmin({0},{1})
""".split()
JUMPS = """
    floor({0}) ceil({0}) round({0}) trunc({0}) frac({0}) sign({0}) sgn({0}) signbit({0}.nan_to_num())
    isnan({0}) isinf({0}) isfinite({0}) isposinf({0}) logical_not({0}) round({0},decimals=1) frexp({0})[0]
    frexp({0})[1]
""".split()
WHOLE = """
    bitwise_not({0}) neg({0}) abs({0}) sign({0}) square({0}) logical_not({0}) clamp({0},-2,5) sqrt({0}.abs())
    sigmoid({0}) floor({0}) exp({0}.clamp(-3,3)) relu({0}) bitwise_left_shift({0},{0}&3)
    bitwise_right_shift({0},{0}&7) div({0},3) bitwise_and({0},6) bitwise_or({0},9) bitwise_xor({0},5)
    remainder({0},3) floor_divide({0},-2) fmod({0},4) pow({0},2) true_divide({0},7) bitwise_left_shift({0},2)
    bitwise_right_shift({0},1)
""".split()
SMOOTH_PAIRS = """
    {0}+{1} {0}-{1} {0}*{1} {0}/({1}.abs()+0.5) torch.maximum({0},{1}) torch.minimum({0},{1})
    torch.fmax({0},{1}) torch.fmin({0},{1}) torch.atan2({0},{1}.abs()+0.5) torch.hypot({0},{1})
    torch.add({0},{1},alpha=2) torch.sub({0},{1},alpha=0.5) torch.lerp({0},{1},0.3) torch.logaddexp({0},{1})
    torch.addcmul({0},{1},{1},value=0.5) torch.addcdiv({0},{1},{1}.abs()+0.5)
    ({0}.abs()+0.5)**({1}.clamp(-2,2)) torch.where({0}.isfinite(),{1},{0}) F.mse_loss({0},{1})
    F.smooth_l1_loss({0},{1},reduction='none') torch.rsub({0},{1}) F.huber_loss({0},{1},reduction='sum')
    torch.logaddexp2({0},{1}) {0}*2+{1} {0}*{1}+{0} F.l1_loss({0},{1})
""".split()
JUMP_PAIRS = """
    {0}<{1} {0}<={1} {0}>{1} {0}>={1} {0}=={1} {0}!={1} torch.remainder({0},{1}) torch.fmod({0},{1})
    torch.floor_divide({0},{1}) torch.div({0},{1},rounding_mode='trunc')
    torch.div({0},{1},rounding_mode='floor') torch.copysign({0},{1}.nan_to_num()) torch.logical_and({0},{1})
    torch.logical_or({0},{1}) torch.logical_xor({0},{1}) torch.isclose({0},{1}) torch.nextafter({0},{1})*0+{0}
    torch.ldexp({0},{1}.clamp(-3,3).to(torch.int32))
""".split()
WHOLE_PAIRS = """
    {0}+{1} {0}-{1} {0}*{1} {0}&{1} {0}|{1} {0}^{1} torch.maximum({0},{1}) torch.minimum({0},{1}) {0}//{1}
    {0}%{1} {0}<<({1}&7) {0}>>({1}&7) {0}/({1}.abs()+1) {0}<{1} {0}>={1} {0}=={1} {0}**({1}&3)
    torch.fmod({0},{1}) torch.gcd({0},{1}) torch.div({0},{1},rounding_mode='trunc') {0}//({1}|1) {0}%({1}|1)
    torch.div({0},{1}|1,rounding_mode='floor') torch.lcm({0}%7,{1}%5)
""".split()
TRUTH_PAIRS = (
    "{0}&{1} {0}|{1} {0}^{1} {0}=={1} {0}+{1} {0}*{1} torch.logical_xor({0},{1}) {0}<{1} "
    "torch.maximum({0},{1})"
).split()
REDUCE = """
    {0}.sum({1},keepdim={2}) {0}.mean({1},keepdim={2}) {0}.amax({1},keepdim={2}) {0}.amin({1},keepdim={2})
    {0}.var({1},keepdim={2}) {0}.std({1},correction=0,keepdim={2}) torch.logsumexp({0},{1}) {0}.sum()
    {0}.mean() {0}.amax() {0}.norm() {0}.norm(1,{1}) {0}.prod({1},keepdim={2})
    {0}.sum({1},dtype=torch.float64) {0}.nansum({1}) torch.linalg.vector_norm({0},3,{1}) {0}.max() {0}.min()
    {0}.norm(float('inf'),{1}) {0}.max({1},keepdim={2})[0] {0}.min({1})[0] torch.trace({0})
    F.layer_norm({0},({0}.shape[-1],)) {0}.nanmean({1}) {0}.var() {0}.std({1})
    {0}.square().mean({1},keepdim={2}) {0}.median({1})[0] {0}.topk(1,{1})[0] torch.diff({0},dim={1})
""".split()
CROSSED = (
    "{0}.sum({1},keepdim={2}) {0}.amax({1},keepdim={2}) {0}.mean({1},keepdim={2}) "
    "{0}.var({1},keepdim={2}) {0}.softmax({1})"
).split()
REDUCE_SEVERAL = """
    {0}.sum({1},keepdim={2}) {0}.mean({1}) {0}.amax({1},keepdim={2}) {0}.var({1})
    torch.logsumexp({0},{1},keepdim={2}) {0}.std({1},keepdim={2}) torch.count_nonzero({0},{1}) {0}.norm(2,{1})
""".split()
REDUCE_EXACT = """
    {0}.argmax({1},keepdim={2}) {0}.argmin({1}) {0}.argmax() {0}.argmin() {0}.any({1},keepdim={2})
    {0}.all({1}) {0}.any() {0}.all() torch.count_nonzero({0},{1}) {0}.max({1})[1] {0}.min({1})[1]
    torch.count_nonzero({0})
""".split()
REDUCE_WHOLE = """
    {0}.sum({1},keepdim={2}) {0}.sum() {0}.amax({1}) {0}.amin({1},keepdim={2}) {0}.prod({1}) {0}.argmax({1})
    {0}.any({1}) {0}.all() {0}.max() {0}.max({1})[1] {0}.min({1})[0] {0}.sum({1},dtype=torch.int32)
    {0}.sum(dtype=torch.float32) {0}.cumsum({1}) torch.count_nonzero({0},{1}) {0}.argmin({1},keepdim={2})
    torch.bincount({0}.flatten()&15,minlength=16)
""".split()
CUMULATIVE = """
    {0}.cumsum({1}) {0}.cumprod({1}) {0}.logcumsumexp({1}) {0}.cummax({1})[0] {0}.cummin({1})[0]
    {0}.softmax({1}) {0}.flip({1}).cumsum({1}) {0}.sort({1})[0] {0}.sort({1},descending=True)[0]
""".split()
SORTS = """
    {0}.sort({1},stable=True) {0}.sort({1},descending=True,stable=True) {0}.cummax({1}) {0}.cummin({1})
""".split()


def _spelled(template: str, *given: object) -> str:
    prefix = "" if template.startswith(("{", "(", "torch.", "F.")) else "torch."
    return prefix + template.format(*given)


def _loose(draw: Draw) -> bool:
    return draw.rng.random() < 0.3


def unary(draw: Draw) -> None:
    kind = draw.rng.random()
    if kind < 0.6:
        name = draw.floats()
        if draw.rng.random() < 0.3:
            draw.make("F." + draw.rng.choice(FUNCTIONAL).format(name, draw.dim(name)))
        else:
            draw.make(_spelled(draw.rng.choice(SMOOTH), name, draw.dim(name)))
    elif kind < 0.8:
        draw.make(_spelled(draw.rng.choice(JUMPS), draw.floats(exact=True)))
    else:
        draw.make(_spelled(draw.rng.choice(WHOLE), draw.integers()))


def binary(draw: Draw) -> None:
    kind = draw.rng.random()
    if kind < 0.55:
        first = draw.floats()
        second = draw.beside(first, lambda v: v.dtype is not torch.bool)
        pair = [first, second] if draw.rng.random() < 0.5 else [second, first]
        draw.make(_spelled(draw.rng.choice(SMOOTH_PAIRS), *pair))
    elif kind < 0.7:
        first = draw.pick(exact=True)
        draw.make(_spelled(draw.rng.choice(JUMP_PAIRS), first, draw.beside(first, exact=True)))
    elif kind < 0.9:
        first = draw.integers()
        whole = draw.beside(first, lambda v: not v.is_floating_point() and v.dtype is not torch.bool)
        draw.make(_spelled(draw.rng.choice(WHOLE_PAIRS), first, whole))
    else:
        first = draw.pick(lambda v: v.dtype is torch.bool)
        second = draw.beside(first, lambda v: v.dtype is torch.bool)
        draw.make(_spelled(draw.rng.choice(TRUTH_PAIRS), first, second))


def with_number(draw: Draw) -> None:
    operator = draw.rng.choice(("+", "-", "*", "/", "+", "*", "**"))
    name = draw.pick(lambda v: v.dtype is not torch.bool or operator in "+*")
    number = "2" if operator == "**" else draw.scalar()
    text = f"{number} {operator} {name}" if draw.rng.random() < 0.3 and operator in "+-*" else ""
    draw.make(text or f"{name} {operator} {number}")


def compare_with_number(draw: Draw) -> None:
    relation = draw.rng.choice(("<", ">", "<=", ">=", "==", "!="))
    draw.make(f"{draw.pick(exact=True)} {relation} {draw.scalar()}")


def where(draw: Draw) -> None:
    mask = draw.pick(lambda v: v.dtype is torch.bool)
    first = draw.beside(mask)
    other = draw.beside(first) if draw.rng.random() < 0.7 else draw.scalar()
    text = f"torch.where({mask}, {first}, {other})"
    if draw.rng.random() < 0.3:
        text = f"{first}.masked_fill({mask}, {draw.scalar()})"
    draw.make(text)


def cast(draw: Draw) -> None:
    dtype = draw.rng.choice(DTYPES)
    if dtype in DTYPES[:4]:
        draw.make(f"{draw.pick()}.to(torch.{dtype})")
        return
    name = draw.pick(lambda v: True, exact=True)
    value = draw.tensor(name)
    if value.is_floating_point() and dtype != "bool":
        if not _representable(value, getattr(torch, dtype)):
            raise NoValueError
    draw.make(f"{name}.to(torch.{dtype})")


def _representable(value: Tensor, dtype: torch.dtype) -> bool:
    """Whether C defines what casting each element gives."""
    info = torch.iinfo(dtype)
    inside = torch.isfinite(value) & (value > info.min) & (value < info.max)
    return bool(inside.all())


def reduce(draw: Draw) -> None:
    keep = draw.rng.random() < 0.3
    kind = draw.rng.random()
    if kind < 0.45:
        name = draw.floats()
        draw.make(_spelled(draw.rng.choice(REDUCE), name, draw.dim(name), keep))
    elif kind < 0.6:
        name = draw.floats(rank=2)
        rank = draw.tensor(name).dim()
        dims = sorted(draw.rng.sample(range(rank), draw.rng.randint(1, rank)))
        template = draw.rng.choice(REDUCE_SEVERAL)
        if "count" in template and not draw.exact(name):
            raise NoValueError
        draw.make(_spelled(template, name, tuple(dims), keep))
    elif kind < 0.75:
        name = draw.pick(exact=True)
        draw.make(_spelled(draw.rng.choice(REDUCE_EXACT), name, draw.dim(name), keep))
    else:
        name = draw.pick(lambda v: not v.is_floating_point())
        draw.make(_spelled(draw.rng.choice(REDUCE_WHOLE), name, draw.dim(name), keep))


def crossed(draw: Draw) -> None:
    """Two reductions of one value along different dimensions."""
    name = draw.floats(rank=2)
    for dim in draw.rng.sample(range(draw.tensor(name).dim()), 2):
        draw.make(_spelled(draw.rng.choice(CROSSED), name, dim, draw.rng.random() < 0.5))


def cumulative(draw: Draw) -> None:
    if draw.rng.random() < 0.6:
        name = draw.floats()
        draw.make(_spelled(draw.rng.choice(CUMULATIVE), name, draw.dim(name)))
    else:
        name = draw.pick(lambda v: v.dtype is not torch.bool, exact=True)
        draw.make(_spelled(draw.rng.choice(SORTS), name, draw.dim(name)), count=2)


def several(draw: Draw) -> None:
    """Operations with several results."""
    # Of a row with an infinity eager's running mean is NaN, ours is that infinity.
    name = draw.pick(lambda v: v.is_floating_point() and v.dim() >= 1 and bool(torch.isfinite(v).all()))
    text = draw.rng.choice(("torch.var_mean({0},{1})", "torch.std_mean({0},{1},keepdim=True)"))
    draw.make(_spelled(text, name, draw.dim(name)), count=2)


def product(draw: Draw) -> None:
    """Matrix products and what is made of them."""
    first = draw.floats(rank=1)
    value = draw.tensor(first)
    second = draw.pick(lambda v: v.dtype is value.dtype and v.dim() >= 1 and value.shape[-1] in v.shape[-2:])
    text = draw.rng.choice(
        ("{0} @ {1}", "{0} @ {1}.mT", "F.linear({0}, {1})", "torch.einsum('...i,...i->...', {0}, {1})")
    )
    draw.make(text.format(first, second))
