"""Operations of a random program that move elements: views, indexing, padding, joining, and
writes in place.
"""

from __future__ import annotations

import torch

from integration_tests.fuzz.draw import Draw, NoValueError


def _bounds(draw: Draw, size: int) -> str:
    """A slice of a dimension of `size` elements, as text."""
    low, high = sorted((draw.rng.randint(0, size), draw.rng.randint(0, size)))
    form = draw.rng.randrange(6)
    step = draw.rng.choice((2, 3, 5))
    return (f"{low}:{high}", f"{low}:", f":{high}", f"::{step}", f"{low}::{step}", f"-{max(1, high)}:")[form]


def sliced(draw: Draw, name: str) -> str:
    """`name` with an index of slices and numbers."""
    shape = draw.tensor(name).shape
    parts: list[str] = []
    for size in shape:
        kind = draw.rng.random()
        if kind < 0.35:
            parts.append(":")
        elif kind < 0.85 or size == 0:
            parts.append(_bounds(draw, size))
        else:
            parts.append(str(draw.rng.randrange(-size, size)))
    if not parts:
        raise NoValueError
    while len(parts) > 1 and parts[-1] == ":" and draw.rng.random() < 0.5:
        parts.pop()
    if draw.rng.random() < 0.1:
        parts.insert(draw.rng.randrange(len(parts) + 1), "None")
    return f"{name}[{', '.join(parts)}]"


def view_of(draw: Draw, name: str) -> str:
    """An expression that is a view of `name` (a copy if its strides do not allow one)."""
    value = draw.tensor(name)
    rank, rng = value.dim(), draw.rng
    dim, other = draw.dim(name), draw.dim(name)
    shape = list(value.shape)
    forms = [f"{name}.unsqueeze({rng.randint(0, rank)})", f"{name}.reshape(-1)", f"{name}.squeeze()"]
    if rank:
        order = rng.sample(range(rank), rank)
        forms += [sliced(draw, name), sliced(draw, name), f"{name}.transpose({dim}, {other})"]
        forms += [f"{name}.permute({', '.join(map(str, order))})", f"{name}.movedim({dim}, {other})"]
        forms += [f"{name}.flatten({min(dim % rank, other % rank)}, {max(dim % rank, other % rank)})"]
        forms += [f"{name}.squeeze({dim})"]
        if shape[dim]:
            forms += [f"{name}.select({dim}, {rng.randrange(shape[dim])})"]
            start = rng.randrange(shape[dim])
            forms += [f"{name}.narrow({dim}, {start}, {rng.randint(0, shape[dim] - start)})"]
            forms += [f"{name}.unfold({dim}, {rng.randint(1, shape[dim])}, {rng.randint(1, 3)})"]
            divisors = [n for n in range(1, shape[dim] + 1) if shape[dim] % n == 0][:8]
            forms += [f"{name}.unflatten({dim}, ({rng.choice(divisors)}, -1))"]
        wide = [n if n != 1 else rng.choice((1, 2, 3, 5)) for n in shape]
        forms += [f"{name}.expand({', '.join(map(str, [*([2] if rng.random() < 0.3 else []), *wide]))})"]
    if rank >= 2:
        forms += [f"{name}.diagonal({rng.randint(-1, 1)}, {dim}, {other})", f"{name}.mT"]
    return rng.choice(forms)


def view(draw: Draw) -> None:
    draw.make(view_of(draw, draw.pick()))


def strided(draw: Draw) -> None:
    """`as_strided` within the elements that the value has, if it is dense."""
    name = draw.pick(lambda v: v.is_contiguous() and v.numel() >= 4)
    count = draw.tensor(name).numel()
    rows, step, inner = draw.rng.randint(1, 3), draw.rng.randint(0, 3), draw.rng.choice((0, 1, 1, 2))
    columns = max(1, (count - 1 - (rows - 1) * step) // max(1, inner))
    columns = draw.rng.randint(1, min(columns, 40))
    span = (rows - 1) * step + (columns - 1) * inner + 1
    if span > count:
        raise NoValueError
    base = draw.tensor(name).storage_offset()
    offset = base + draw.rng.randint(0, count - span)
    draw.make(f"{name}.as_strided(({rows}, {columns}), ({step}, {inner}), {offset})")


def rearranged(draw: Draw) -> None:
    """Copies of elements in another order or number."""
    name = draw.pick()
    value, rng = draw.tensor(name), draw.rng
    rank, dim = value.dim(), draw.dim(name)
    forms = [f"{name}.clone()", f"{name}.contiguous()", f"{name}.repeat({', '.join(['2'] * max(1, rank))})"]
    if rank:
        every = tuple(rng.sample(range(rank), rng.randint(1, rank)))
        forms += [f"{name}.flip({every})", f"{name}.roll({rng.randint(-3, 5)}, {dim})", f"{name}.roll(2)"]
        forms += [f"{name}.repeat_interleave({rng.randint(1, 3)}, {dim})", f"{name}.tile((2,))"]
        lengths = [rng.choice((0, 1, 2, 3)) for _ in range(2 * rng.randint(1, min(rank, 2)))]
        forms += [f"F.pad({name}, {lengths})", f"F.pad({name}, {lengths}, value=1)"]
        signed = [rng.choice((0, -1, 2)) for _ in lengths]
        forms += [f"F.pad({name}, {signed}, value=-2)"]
    if rank >= 2:
        forms += [
            f"{name}.tril({rng.randint(-2, 2)})",
            f"{name}.triu({rng.randint(-2, 2)})",
            f"{name}.rot90()",
        ]
        mode = rng.choice(("reflect", "replicate", "circular"))
        forms += [f"F.pad({name}.unsqueeze(0).flatten(0, -3), [1, 2], mode='{mode}')"]
        if value.is_floating_point():
            forms += [f"F.avg_pool1d({name}.unsqueeze(0).flatten(0, -3), 2)"]
            forms += [f"F.max_pool1d({name}.unsqueeze(0).flatten(0, -3), 3, 2, 1)"]
            forms += [f"F.interpolate({name}.unsqueeze(0).flatten(0, -3), scale_factor=2)"]
    if rank == 4 and value.is_floating_point():
        forms += [
            f"F.max_pool2d({name}, 2)",
            f"F.avg_pool2d({name}, 3, 2, 1)",
            f"F.adaptive_avg_pool2d({name}, 2)",
        ]
        forms += [
            f"F.pixel_shuffle({name}.repeat(1, 4, 1, 1), 2)",
            f"{name}.contiguous(memory_format=torch.channels_last)",
        ]
        forms += [f"F.interpolate({name}, scale_factor=2, mode='bilinear')", f"F.pixel_unshuffle({name}, 1)"]
    if rank == 1:
        forms += [f"torch.diag({name})", f"torch.vander({name}, 3)", f"torch.outer({name}, {name})"]
    draw.make(rng.choice(forms))


def like(draw: Draw) -> None:
    """New values of the form of others."""
    name, rng = draw.pick(), draw.rng
    size = rng.choice((1, 5, 8, 13))
    forms = (
        f"torch.zeros_like({name})",
        f"torch.full_like({name}, 3)",
        f"torch.ones({name}.shape[-1:], device={name}.device)",
        f"torch.arange({size}, device={name}.device)",
        f"torch.arange({size}, dtype=torch.float32, device={name}.device) / 4",
        f"torch.eye({size}, device={name}.device)",
        f"{name}.new_zeros({name}.shape)",
        f"torch.arange({name}.numel() % 64, device={name}.device).flip(0)",
        f"torch.full((2, {size}), 0.5, device={name}.device)",
    )
    draw.make(rng.choice(forms))


def joined(draw: Draw) -> None:
    first = draw.pick()
    value, dim = draw.tensor(first), draw.dim(first)
    if draw.rng.random() < 0.4 or not value.dim():
        same = draw.pick(lambda v: v.shape == value.shape)
        draw.make(f"torch.stack([{first}, {same}], {draw.rng.randint(0, value.dim())})")
        return
    position = dim % value.dim()

    def fits(other: torch.Tensor) -> bool:
        return other.dim() == value.dim() and all(
            m == n for at, (m, n) in enumerate(zip(other.shape, value.shape)) if at != position
        )

    parts = [first, *(draw.pick(fits) for _ in range(draw.rng.randint(1, 3)))]
    draw.make(f"torch.cat([{', '.join(parts)}], {dim})")


def split(draw: Draw) -> None:
    name = draw.pick(lambda v: v.dim() > 0 and any(n >= 2 for n in v.shape))
    shape = draw.tensor(name).shape
    dim = draw.rng.choice([at for at, n in enumerate(shape) if n >= 2])
    first = draw.rng.randrange(shape[dim] + 1)
    if draw.rng.random() < 0.5:
        draw.make(f"{name}.split([{first}, {shape[dim] - first}], {dim})", count=2)
    else:
        count = -(-shape[dim] // -(-shape[dim] // 2))
        draw.make(f"{name}.chunk(2, {dim})", count=count)


def indexed(draw: Draw) -> None:
    """Reads at positions from a tensor."""
    name = draw.pick(lambda v: v.dim() > 0 and v.numel() > 0)
    value, rng = draw.tensor(name), draw.rng
    dim = draw.dim(name) % value.dim()
    size = value.shape[dim]
    count = rng.choice((1, 3, 7, 20))
    kind = rng.randrange(9)
    if kind == 0:
        draw.make(f"{name}.index_select({dim}, {draw.index((count,), size)})")
    elif kind == 1:
        draw.make(f"{name}[{':, ' * dim}{draw.index((count,), size)}]")
    elif kind == 2:
        index = draw.index((2, count), size)
        draw.make(f"{name}[{':, ' * dim}{index} - {size}]")
    elif kind == 3:
        shape = tuple(count if at == dim else n for at, n in enumerate(value.shape))
        draw.make(f"{name}.gather({dim}, {draw.index(shape, size)}.long())")
    elif kind == 4:
        draw.make(f"{name}.take({draw.index((2, count), value.numel())}.long())")
    elif kind == 5 and value.dim() >= 2:
        first, second = draw.index((count,), value.shape[0]), draw.index((2, count), value.shape[1])
        draw.make(f"{name}[{first}, {second}]")
    elif kind == 6 and value.dim() == 2:
        draw.make(f"F.embedding({draw.index((2, count), value.shape[0])}, {name})")
    elif kind == 7 and value.dim() >= 3:
        first, second = draw.index((count,), value.shape[0]), draw.index((count,), value.shape[2])
        draw.make(f"{name}[{first}, :, {second}]")
    else:
        sort = f"{name}.flatten().sort()[0]"
        if not draw.exact(name) or value.dtype is torch.bool:
            raise NoValueError
        right = rng.random() < 0.5
        draw.make(f"torch.searchsorted({sort}, {name}.contiguous(), right={right})")


def chosen(draw: Draw) -> None:
    """Elements whose number depends on data."""
    mask = draw.pick(lambda v: v.dtype is torch.bool and v.dim() > 0)
    shape = draw.tensor(mask).shape
    kind = draw.rng.randrange(4)
    if kind == 0:
        draw.make(f"{mask}.nonzero()")
    elif kind == 1:
        draw.make(f"torch.masked_select({draw.beside(mask)}, {mask})")
    else:
        draw.make(f"{draw.pick(lambda v: v.shape[: len(shape)] == shape)}[{mask}]")


def listed(draw: Draw) -> None:
    """One operation on several tensors."""
    first = draw.floats()
    value = draw.tensor(first)
    other = draw.pick(lambda v: v.dtype is value.dtype)
    form = draw.rng.choice(
        (
            "torch._foreach_mul([{0}, {1}], 2.0)",
            "torch._foreach_add([{0}, {1}], [{1}, {0}])",
            "torch._foreach_sqrt(torch._foreach_abs([{0}, {1}]))",
            "torch._foreach_lerp([{0}, {1}], [{0}, {1}], 0.5)",
            "torch.broadcast_tensors({0}, {1})",
            "torch.meshgrid({0}.flatten()[:9], {1}.flatten()[:5], indexing='ij')",
        )
    )
    draw.make(form.format(first, other), count=2)


def scattered(draw: Draw) -> None:
    """Copies with elements written or added at positions from a tensor."""
    name = draw.pick(lambda v: v.dim() > 0 and v.numel() > 0 and v.dtype is not torch.bool)
    draw.make(_scatter(draw, name, ""))


def _scatter(draw: Draw, name: str, mark: str) -> str:
    value, rng = draw.tensor(name), draw.rng
    dim = draw.dim(name) % value.dim()
    size, dtype = value.shape[dim], value.dtype
    count = rng.choice((1, 3, 7, 20))
    shape = tuple(count if at == dim else n for at, n in enumerate(value.shape))
    kind = rng.randrange(7)

    def source(form: tuple[int, ...]) -> str:
        given = draw.new_input(form, str(dtype).removeprefix("torch."), "small")
        return _perhaps_known(draw, given, rng.randrange(3))

    def positions(form: tuple[int, ...], below: int) -> str:
        return _perhaps_known(draw, draw.index(form, below), rng.randrange(below))

    if kind == 0:
        return f"{name}.scatter_add{mark}({dim}, {positions(shape, size)}.long(), {source(shape)})"
    if kind == 1:
        return f"{name}.index_add{mark}({dim}, {positions((count,), size)}, {source(shape)})"
    if kind == 2:
        index = draw.new_input((size,), "int64", "permutation")
        return f"{name}.index_copy{mark}({dim}, {index}, {source(tuple(value.shape))})"
    if kind == 3:
        how = rng.choice(("sum", "amax", "amin", "prod", "mean"))
        own = rng.random() < 0.6
        index = f"{positions(shape, size)}.long()"
        return f"{name}.scatter_reduce{mark}({dim}, {index}, {source(shape)}, '{how}', include_self={own})"
    if kind == 4:
        rest = tuple(value.shape[1:])
        index = positions((count,), value.shape[0])
        return f"{name}.index_put{mark}(({index}.long(),), {source((count, *rest))}, accumulate=True)"
    if kind == 5:
        index = draw.index(shape, size)
        return f"{name}.scatter{mark}({dim}, {index}.long(), {rng.choice((2, -1))})"
    return f"{name}.index_fill{mark}({dim}, {draw.index((count,), size)}.long(), 1)"


def _perhaps_known(draw: Draw, name: str, number: int) -> str:
    """`name`, or sometimes a tensor like it of which the capture knows every element."""
    return f"torch.full_like({name}, {number})" if draw.rng.random() < 0.2 else name


def in_place(draw: Draw) -> None:
    """A write to a value, or to a view of one."""
    rng = draw.rng
    name = draw.pick(lambda v: not _overlaps(v))
    target = name
    if rng.random() < 0.5:
        (target,) = draw.make(view_of(draw, name))
        if _overlaps(draw.tensor(target)):
            raise NoValueError
    value = draw.tensor(target)
    numbers = value.dtype is not torch.bool

    def fits(other: torch.Tensor) -> bool:
        return torch.can_cast(other.dtype, value.dtype) and other.dim() <= value.dim()

    kind = rng.randrange(9)
    if kind == 0:
        draw.write(target, f"{target}.copy_({draw.beside(target, fits)})")
    elif kind == 1 and numbers:
        draw.write(target, f"{target}.{rng.choice(('add_', 'mul_', 'sub_'))}({draw.beside(target, fits)})")
    elif kind == 2 and numbers:
        draw.write(target, f"{target}.{rng.choice(('add_', 'mul_', 'clamp_max_'))}({rng.choice((2, 3, -1))})")
    elif kind == 3:
        draw.write(target, f"{target}.{rng.choice(('zero_()', 'fill_(1)'))}")
    elif kind == 4:
        mask = draw.beside(target, lambda v: v.dtype is torch.bool and v.dim() <= value.dim())
        draw.write(target, f"{target}.masked_fill_({mask}, 2)")
    elif kind == 5 and value.dim():
        source = draw.pick(lambda v: torch.can_cast(v.dtype, value.dtype) and v.dim() == 0)
        draw.write(target, f"{sliced(draw, target)} = {source}")
    elif kind == 6 and value.dim():
        draw.write(target, f"{sliced(draw, target)} += 1")
    elif kind == 7 and value.is_floating_point():
        draw.write(target, f"{target}.{rng.choice(('relu_', 'neg_', 'tanh_', 'sigmoid_', 'abs_'))}()")
    elif value.dim() and value.numel() and numbers:
        draw.write(target, _scatter(draw, target, "_"))
    else:
        raise NoValueError


def _overlaps(value: torch.Tensor) -> bool:
    """Whether several of its elements may be one in memory; torch refuses to write to such."""
    pairs = sorted((s, n) for s, n in zip(value.stride(), value.shape) if n > 1)
    reach = 0
    for stride, size in pairs:
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
