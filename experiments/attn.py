"""Attention forward in Gluon on sm_90: an experiment."""
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    tma, mbarrier, fence_async_shared, warpgroup_mma, warpgroup_mma_init, warpgroup_mma_wait)


@gluon.jit
def count_turns(tiles, SNAKE: gl.constexpr):
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    if SNAKE == 2:
        found = (tiles // 2 - program + programs - 1) // programs * 2
    else:
        found = (tiles - program + programs - 1) // programs
    return found


@gluon.jit
def find_tile(turn, tiles, blocks, heads, CAUSAL: gl.constexpr, SNAKE: gl.constexpr, GROUP: gl.constexpr):
    """Longest rows first, in groups of heads; every other full turn is gone through backwards. SNAKE == 2: pairs."""
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    if SNAKE == 2:
        pair = turn // 2 * programs + program
        half = blocks // 2
        head = pair // half
        at = pair % half
        at = gl.where(turn % 2 == 0, blocks - 1 - at, at)
    else:
        if SNAKE:
            back = (turn % 2 == 1) & ((turn + 1) * programs <= tiles)
            program = gl.where(back, programs - 1 - program, program)
        number = turn * programs + program
        section = number // (GROUP * blocks)
        rest = number % (GROUP * blocks)
        at = rest // GROUP
        if CAUSAL:
            at = blocks - 1 - at
        head = section * GROUP + rest % GROUP
    return at, head


@gluon.jit
def count_blocks(start, ROWS: gl.constexpr, BN: gl.constexpr, length, CAUSAL: gl.constexpr):
    end = length
    if CAUSAL:
        end = gl.minimum(length, start + ROWS)
    return (end + BN - 1) // BN


@gluon.jit
def produce(q_desc, k_desc, v_desc, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty,
            length, heads, tiles, blocks,
            G: gl.constexpr, BN: gl.constexpr, D: gl.constexpr, S: gl.constexpr, CAUSAL: gl.constexpr, SNAKE: gl.constexpr, GROUP: gl.constexpr, AHEAD: gl.constexpr):
    ROWS: gl.constexpr = 64 * G
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    it = 0
    for turn in range(0, count_turns(tiles, SNAKE)):
        at, head = find_tile(turn, tiles, blocks, heads, CAUSAL, SNAKE, GROUP)
        start = at * ROWS
        n = count_blocks(start, ROWS, BN, length, CAUSAL)
        for g in gl.static_range(G):
            mbarrier.wait(q_empty.index(g), (turn & 1) ^ 1)
            mbarrier.expect(q_full.index(g), 64 * D * 2)
            tma.async_copy_global_to_shared(q_desc, [head, start + 64 * g, 0], q_full.index(g), q_smem.index(g))
        if AHEAD:
            s = it % S
            mbarrier.wait(k_empty.index(s), ((it // S) & 1) ^ 1)
            mbarrier.expect(k_full.index(s), BN * D * 2)
            tma.async_copy_global_to_shared(k_desc, [head, (n - 1) * BN, 0], k_full.index(s), k_smem.index(s))
        for i in range(n):
            j = n - 1 - i
            s = it % S
            phase = (it // S) & 1
            if AHEAD:
                if i + 1 < n:
                    s2 = (it + 1) % S
                    mbarrier.wait(k_empty.index(s2), (((it + 1) // S) & 1) ^ 1)
                    mbarrier.expect(k_full.index(s2), BN * D * 2)
                    tma.async_copy_global_to_shared(k_desc, [head, (j - 1) * BN, 0], k_full.index(s2), k_smem.index(s2))
            else:
                mbarrier.wait(k_empty.index(s), phase ^ 1)
                mbarrier.expect(k_full.index(s), BN * D * 2)
                tma.async_copy_global_to_shared(k_desc, [head, j * BN, 0], k_full.index(s), k_smem.index(s))
            mbarrier.wait(v_empty.index(s), phase ^ 1)
            mbarrier.expect(v_full.index(s), BN * D * 2)
            tma.async_copy_global_to_shared(v_desc, [head, j * BN, 0], v_full.index(s), v_smem.index(s))
            it += 1


@gluon.jit
def mask_scores(s, rows0, cols0, length, MASK: gl.constexpr, S_L: gl.constexpr, BN: gl.constexpr):
    if MASK:
        rows = rows0 + gl.arange(0, 64, gl.SliceLayout(1, S_L))
        cols = cols0 + gl.arange(0, BN, gl.SliceLayout(0, S_L))
        s = gl.where(rows[:, None] >= cols[None, :], s, float('-inf'))
    return s


@gluon.jit
def softmax_step(s, m, l, scale, MASK: gl.constexpr):
    high = gl.max(s, 1)
    new = gl.maximum(m, high)
    shift = new * scale
    if MASK:
        shift = gl.where(new == float("-inf"), 0.0, shift)
    alpha = gl.exp2(m * scale - shift)
    p = gl.exp2(s * scale - shift[:, None])
    l = l * alpha + gl.sum(p, 1)
    return p, new, l, alpha


@gluon.jit
def name_barrier(text: gl.constexpr):
    one = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    gl.inline_asm_elementwise(text, "=r,r", [one], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def turn_sync(g: gl.constexpr):
    if g == 0:
        name_barrier("bar.sync 8, 256; mov.b32 $0, $1;")
    else:
        name_barrier("bar.sync 9, 256; mov.b32 $0, $1;")


@gluon.jit
def turn_arrive(g: gl.constexpr):
    if g == 0:
        name_barrier("bar.arrive 8, 256; mov.b32 $0, $1;")
    else:
        name_barrier("bar.arrive 9, 256; mov.b32 $0, $1;")


@gluon.jit
def step(q, k_smem, v_smem, k_full, k_empty, v_full, v_empty, turns, p, m, l, alpha, o, it, beat, skip, rows0, cols0, length, scale,
         g: gl.constexpr, G: gl.constexpr, BN: gl.constexpr, D: gl.constexpr, S: gl.constexpr, PING: gl.constexpr,
         MASK: gl.constexpr, S_L: gl.constexpr, O_L: gl.constexpr, P_L: gl.constexpr, OVERLAP: gl.constexpr, ARR: gl.constexpr):
    """One block of keys: its scores, beside the product of the weights and values of the block before."""
    st = it % S
    ph = (it // S) & 1
    last = (it - 1) % S
    last_ph = ((it - 1) // S) & 1
    zero = gl.full([64, BN], 0.0, gl.float32, S_L)
    mbarrier.wait(k_full.index(st), ph)
    if OVERLAP == 2:
        # the product of the block before the last ends here
        o = warpgroup_mma_wait(0, [o])
        mbarrier.arrive(v_empty.index((it - 2) % S), count=1, pred=it > skip)
    if PING == 2:
        turn_sync(g)
    elif PING:
        mbarrier.wait(turns.index(g), (beat & 1) if g > 0 else ((beat & 1) ^ 1))
    p16 = p
    if OVERLAP < 4:
        p16 = gl.convert_layout(p.to(gl.bfloat16), P_L, assert_trivial=True)
    s = warpgroup_mma(q, k_smem.index(st).reshape([BN, D]).permute([1, 0]), zero, use_acc=False, is_async=True)
    if OVERLAP != 4:
        o = o * gl.convert_layout(alpha, gl.SliceLayout(1, O_L), assert_trivial=True)[:, None]
    if OVERLAP:
        if OVERLAP < 3:
            mbarrier.wait(v_full.index(last), last_ph)
        o = warpgroup_mma(p16, v_smem.index(last).reshape([BN, D]), o, is_async=True)
        if PING == 2:
            turn_arrive(1 - g)
        elif PING:
            mbarrier.arrive(turns.index((g + 1) % G), count=1)
        s = warpgroup_mma_wait(1, [s])
    else:
        if PING == 2:
            turn_arrive(1 - g)
        elif PING:
            mbarrier.arrive(turns.index((g + 1) % G), count=1)
        mbarrier.wait(v_full.index(last), last_ph)
        o = warpgroup_mma(p16, v_smem.index(last).reshape([BN, D]), o, is_async=True)
        o, s = warpgroup_mma_wait(0, [o, s])
        mbarrier.arrive(v_empty.index(last), count=1)
    if not ARR:
        mbarrier.arrive(k_empty.index(st), count=1)
    s = mask_scores(s, rows0, cols0, length, MASK, S_L, BN)
    p, m, l, alpha = softmax_step(s, m, l, scale, MASK)
    if OVERLAP >= 3:
        # a branch, which the wait for the product cannot be moved before
        mbarrier.wait(v_full.index(st), ph)
    if OVERLAP == 1 or OVERLAP >= 3:
        o, l = warpgroup_mma_wait(0, [o, l])
        mbarrier.arrive(v_empty.index(last), count=1)
        if ARR:
            mbarrier.arrive(k_empty.index(st), count=1)
    if OVERLAP == 4:
        o = o * gl.convert_layout(alpha, gl.SliceLayout(1, O_L), assert_trivial=True)[:, None]
    if OVERLAP >= 4:
        p = gl.convert_layout(p.to(gl.bfloat16), P_L, assert_trivial=True)
    return p, m, l, alpha, o, it + 1, beat + 1


@gluon.jit
def consume(o_desc, lse_ptr, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty, turns,
            length, heads, tiles, blocks, scale, g: gl.constexpr,
            G: gl.constexpr, BN: gl.constexpr, D: gl.constexpr, S: gl.constexpr, CAUSAL: gl.constexpr,
            SNAKE: gl.constexpr, GROUP: gl.constexpr, PING: gl.constexpr, OVERLAP: gl.constexpr, ARR: gl.constexpr, QREG: gl.constexpr):
    ROWS: gl.constexpr = 64 * G
    S_L: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    O_L: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    P_L: gl.constexpr = gl.DotOperandLayout(0, O_L, 2)
    MASKED: gl.constexpr = (ROWS + BN - 1) // BN if ROWS > BN else 1
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    it = 0
    beat = 0
    if PING == 2 and g == 1:
        turn_arrive(0)
    for turn in range(0, count_turns(tiles, SNAKE)):
        at, head = find_tile(turn, tiles, blocks, heads, CAUSAL, SNAKE, GROUP)
        start = at * ROWS
        n = count_blocks(start, ROWS, BN, length, CAUSAL)
        rows0 = start + 64 * g
        m = gl.full([64], float('-inf'), gl.float32, gl.SliceLayout(1, S_L))
        l = gl.full([64], 0.0, gl.float32, gl.SliceLayout(1, S_L))
        o = gl.full([64, D], 0.0, gl.float32, O_L)
        zero = gl.full([64, BN], 0.0, gl.float32, S_L)
        q = q_smem.index(g).reshape([64, D])
        mbarrier.wait(q_full.index(g), turn & 1)
        if QREG:
            q = q.load(gl.DotOperandLayout(0, S_L, 2))
        # the first block: the last keys
        st = it % S
        ph = (it // S) & 1
        mbarrier.wait(k_full.index(st), ph)
        s = warpgroup_mma(q, k_smem.index(st).reshape([BN, D]).permute([1, 0]), zero, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, [s])
        mbarrier.arrive(k_empty.index(st), count=1)
        s = mask_scores(s, rows0, (n - 1) * BN, length, CAUSAL, S_L, BN)
        p, m, l, alpha = softmax_step(s, m, l, scale, CAUSAL)
        if OVERLAP >= 4:
            p = gl.convert_layout(p.to(gl.bfloat16), P_L, assert_trivial=True)
        if OVERLAP >= 3:
            mbarrier.wait(v_full.index(st), ph)
        it += 1
        skip = it
        if OVERLAP == 6:
            for i in range(1, gl.minimum(n, 2)):
                st = it % S
                mbarrier.wait(k_full.index(st), (it // S) & 1)
                s = warpgroup_mma(q, k_smem.index(st).reshape([BN, D]).permute([1, 0]), zero, use_acc=False, is_async=True)
                s = warpgroup_mma_wait(0, [s])
                mbarrier.arrive(k_empty.index(st), count=1)
            for i in range(1, n - 1):
                st = it % S
                last = (it - 1) % S
                nxt = (it + 1) % S
                mbarrier.wait(k_full.index(nxt), ((it + 1) // S) & 1)
                o = warpgroup_mma(p, v_smem.index(last).reshape([BN, D]), o, is_async=True)
                s2 = warpgroup_mma(q, k_smem.index(nxt).reshape([BN, D]).permute([1, 0]), zero, use_acc=False, is_async=True)
                p32, m, l, alpha = softmax_step(s, m, l, scale, False)
                mbarrier.wait(v_full.index(st), (it // S) & 1)
                o, s2, l = warpgroup_mma_wait(0, [o, s2, l])
                mbarrier.arrive(v_empty.index(last), count=1)
                mbarrier.arrive(k_empty.index(nxt), count=1)
                o = o * gl.convert_layout(alpha, gl.SliceLayout(1, O_L), assert_trivial=True)[:, None]
                p = gl.convert_layout(p32.to(gl.bfloat16), P_L, assert_trivial=True)
                s = s2
                it += 1
            for i in range(gl.maximum(n - 1, 1), n):
                st = it % S
                last = (it - 1) % S
                o = warpgroup_mma(p, v_smem.index(last).reshape([BN, D]), o, is_async=True)
                p32, m, l, alpha = softmax_step(s, m, l, scale, False)
                mbarrier.wait(v_full.index(st), (it // S) & 1)
                o, l = warpgroup_mma_wait(0, [o, l])
                mbarrier.arrive(v_empty.index(last), count=1)
                o = o * gl.convert_layout(alpha, gl.SliceLayout(1, O_L), assert_trivial=True)[:, None]
                p = gl.convert_layout(p32.to(gl.bfloat16), P_L, assert_trivial=True)
                it += 1
        else:
            if OVERLAP == 2:
                o = warpgroup_mma_init(o)
            if CAUSAL and MASKED > 1:
                for i in range(1, gl.minimum(n, MASKED)):
                    p, m, l, alpha, o, it, beat = step(
                        q, k_smem, v_smem, k_full, k_empty, v_full, v_empty, turns, p, m, l, alpha, o, it, beat, skip,
                        rows0, (n - 1 - i) * BN, length, scale, g, G, BN, D, S, PING, True, S_L, O_L, P_L, OVERLAP, ARR)
            first: gl.constexpr = MASKED if CAUSAL and MASKED > 1 else 1
            for i in range(first, n):
                p, m, l, alpha, o, it, beat = step(
                    q, k_smem, v_smem, k_full, k_empty, v_full, v_empty, turns, p, m, l, alpha, o, it, beat, skip,
                    rows0, (n - 1 - i) * BN, length, scale, g, G, BN, D, S, PING, False, S_L, O_L, P_L, OVERLAP, ARR)
        last = (it - 1) % S
        last_ph = ((it - 1) // S) & 1
        if OVERLAP < 3:
            mbarrier.wait(v_full.index(last), last_ph)
        if OVERLAP == 2:
            o = warpgroup_mma_wait(0, [o])
            mbarrier.arrive(v_empty.index((it - 2) % S), count=1, pred=it > skip)
        p16 = p
        if OVERLAP != 4 and OVERLAP != 6:
            o = o * gl.convert_layout(alpha, gl.SliceLayout(1, O_L), assert_trivial=True)[:, None]
        if OVERLAP < 4:
            p16 = gl.convert_layout(p.to(gl.bfloat16), P_L, assert_trivial=True)
        o = warpgroup_mma(p16, v_smem.index(last).reshape([BN, D]), o, is_async=True)
        o = warpgroup_mma_wait(0, [o])
        mbarrier.arrive(v_empty.index(last), count=1)
        o = o * gl.convert_layout(1.0 / l, gl.SliceLayout(1, O_L), assert_trivial=True)[:, None]
        lse = m * scale + gl.log2(l)
        rows = rows0 + gl.arange(0, 64, gl.SliceLayout(1, S_L))
        gl.store(lse_ptr + head * length + rows, lse, mask=rows < length)
        q_smem.index(g).reshape([64, D]).store(o.to(gl.bfloat16))
        fence_async_shared()
        tma.async_copy_shared_to_global(o_desc, [head, rows0, 0], q_smem.index(g))
        tma.store_wait(0)
        mbarrier.arrive(q_empty.index(g), count=1)


@gluon.jit
def run(q_desc, k_desc, v_desc, o_desc, lse_ptr, length, heads, scale, G: gl.constexpr, BN: gl.constexpr,
        D: gl.constexpr, S: gl.constexpr, CAUSAL: gl.constexpr, SNAKE: gl.constexpr, GROUP: gl.constexpr, PING: gl.constexpr,
        OVERLAP: gl.constexpr, REGS: gl.constexpr, ARR: gl.constexpr, QREG: gl.constexpr):
    blocks = (length + 64 * G - 1) // (64 * G)
    tiles = heads * blocks
    q_smem = gl.allocate_shared_memory(gl.bfloat16, [G, 1, 64, D], q_desc.layout)
    k_smem = gl.allocate_shared_memory(gl.bfloat16, [S, 1, BN, D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(gl.bfloat16, [S, 1, BN, D], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [G, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [G, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [S, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [S, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [S, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [S, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [G, 1], mbarrier.MBarrierLayout())
    for g in gl.static_range(G):
        mbarrier.init(q_full.index(g), count=1)
        mbarrier.init(q_empty.index(g), count=1)
        mbarrier.init(turns.index(g), count=1)
    for s in gl.static_range(S):
        mbarrier.init(k_full.index(s), count=1)
        mbarrier.init(k_empty.index(s), count=G)
        mbarrier.init(v_full.index(s), count=1)
        mbarrier.init(v_empty.index(s), count=G)
    fence_async_shared()
    if G == 1:
        gl.warp_specialize([
            (consume, (o_desc, lse_ptr, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                       turns, length, heads, tiles, blocks, scale, 0, G, BN, D, S, CAUSAL, SNAKE, GROUP, PING, OVERLAP, ARR, QREG)),
            (produce, (q_desc, k_desc, v_desc, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty,
            length, heads, tiles, blocks, G, BN, D, S, CAUSAL, SNAKE, GROUP, OVERLAP == 6))], [1], [24])
    elif G == 2:
        gl.warp_specialize([
            (consume, (o_desc, lse_ptr, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                       turns, length, heads, tiles, blocks, scale, 0, G, BN, D, S, CAUSAL, SNAKE, GROUP, PING, OVERLAP, ARR, QREG)),
            (consume, (o_desc, lse_ptr, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                       turns, length, heads, tiles, blocks, scale, 1, G, BN, D, S, CAUSAL, SNAKE, GROUP, PING, OVERLAP, ARR, QREG)),
            (produce, (q_desc, k_desc, v_desc, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty,
            length, heads, tiles, blocks, G, BN, D, S, CAUSAL, SNAKE, GROUP, OVERLAP == 6))], [4, 1], [REGS, 24])
    else:
        gl.warp_specialize([
            (consume, (o_desc, lse_ptr, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                       turns, length, heads, tiles, blocks, scale, 0, G, BN, D, S, CAUSAL, SNAKE, GROUP, PING, OVERLAP, ARR, QREG)),
            (consume, (o_desc, lse_ptr, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                       turns, length, heads, tiles, blocks, scale, 1, G, BN, D, S, CAUSAL, SNAKE, GROUP, PING, OVERLAP, ARR, QREG)),
            (consume, (o_desc, lse_ptr, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                       turns, length, heads, tiles, blocks, scale, 2, G, BN, D, S, CAUSAL, SNAKE, GROUP, PING, OVERLAP, ARR, QREG)),
            (produce, (q_desc, k_desc, v_desc, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty,
            length, heads, tiles, blocks, G, BN, D, S, CAUSAL, SNAKE, GROUP, OVERLAP == 6))], [4, 4, 1], [REGS, REGS, 24])


@gluon.jit
def attend(q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, length, heads, scale, G: gl.constexpr, BN: gl.constexpr,
           D: gl.constexpr, S: gl.constexpr, CAUSAL: gl.constexpr, SNAKE: gl.constexpr, GROUP: gl.constexpr, PING: gl.constexpr,
           OVERLAP: gl.constexpr, REGS: gl.constexpr, ARR: gl.constexpr, QREG: gl.constexpr):
    Q_S: gl.constexpr = gl.NVMMASharedLayout(128, 16, 3)
    q_desc = tma.make_tensor_descriptor(q_ptr, [heads, length, D], [length * D, D, 1], [1, 64, D], Q_S)
    k_desc = tma.make_tensor_descriptor(k_ptr, [heads, length, D], [length * D, D, 1], [1, BN, D], Q_S)
    v_desc = tma.make_tensor_descriptor(v_ptr, [heads, length, D], [length * D, D, 1], [1, BN, D], Q_S)
    o_desc = tma.make_tensor_descriptor(o_ptr, [heads, length, D], [length * D, D, 1], [1, 64, D], Q_S)
    run(q_desc, k_desc, v_desc, o_desc, lse_ptr, length, heads, scale, G, BN, D, S, CAUSAL, SNAKE, GROUP, PING, OVERLAP, REGS, ARR, QREG)
