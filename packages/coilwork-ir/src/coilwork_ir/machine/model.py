"""Measured figures of a machine, as values that are handed down with its target.

One class per subject. A figure's meaning stands here; its value, unit and source stand in the device's data
file, since they are the device's (docs/how-to/measure-a-machine.md). What a figure is compared with decides
between ways that are all correct: a wrong one costs time, never results.

A pass reads `target.machine.reductions.clear_win`. What is no fact of a machine stays where it is used:
bounds of searches and recursions, formats, and what a language or a library takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Main memory and caches, as kernels of loops see them.

    Attributes:
        fetched_bytes: what memory gives at least for one element.
        tile_elements: elements of a row, or of some, that a block of threads has at a time.
        streamed_caches: times the cache's size that a kernel may read before what stays there is too
            little beside it.
        streamed_written_share: share of what it reads that such a kernel may write.
        launch_bytes: bytes that are moved in the time of a launch: what a kernel of its own has to spare.
        recomputed_bytes: bytes of a value from which on recomputing it in a backward is considered.
        strided_bytes: what moves at least for one element of an access that runs across memory.
        layout_gain_us: what other strides must save: kernels that were equal may differ by them.
    """

    fetched_bytes: int
    tile_elements: int
    streamed_caches: int
    streamed_written_share: float
    launch_bytes: int
    recomputed_bytes: int
    strided_bytes: int
    layout_gain_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """Speed of arithmetic, in operations weighted as in the op table.

    Attributes:
        device_operations_per_us: what the whole device does, however many units it has.
        unit_operations_per_us: what each of its units adds to that.
        matrix_rate: products that matrix units add in the time of one operation on vectors.
    """

    device_operations_per_us: float
    unit_operations_per_us: float
    matrix_rate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """Starting kernels.

    Attributes:
        full_programs: programs per unit that together move as much as memory can.
        bound: a kernel shares the launch of another with which it reads nothing in common only if it takes
            at most so many times a launch.
        shared_loss: share of a kernel's time that may be lost in a launch shared with others.
    """

    full_programs: int
    bound: float
    shared_loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reductions:
    """Reductions in pieces.

    Attributes:
        programs_along: programs per unit to aim at where they read along memory: more than across it,
            with less each.
        programs: the same across memory, where loops have some kilobytes of loads on their way.
        block_results: neighbouring results that a program of a column reduction computes where there are
            enough.
        least_along: points of a piece at least, along memory.
        least_across: points of a piece at least, across memory, where each is a block of neighbours.
        resident_along: points of a piece that stays in registers for a mean and the distances from it.
        resident_across: the same across memory.
        few_columns: results across memory, beyond which later rows are loaded ahead instead.
        most_pieces: pieces per result at most: the second reduction has one program for all of them.
        clear_win: share of the one kernel's time that pieces and the reduction of their results must take
            less than.
        results_together: results that a program of a short second reduction computes at least, where they
            lie together.
        few_pieces: pieces that are as quickly reduced across memory as along it, where what is read is in
            a cache.
        short_run_bytes: the longest run of memory that is a short one.
        narrow_bytes: the widest element of such a run that threads load one by one.
        narrow_slowdown: times as long as with wide loads that narrow ones take at least.
        row_loop_miss: factor of fewer pieces beside rows that is better than masks for uneven ones.
        lines_per_us: lines of memory that a unit looks up in a microsecond for threads that have one each.
    """

    programs_along: int
    programs: int
    block_results: int
    least_along: int
    least_across: int
    resident_along: int
    resident_across: int
    few_columns: int
    most_pieces: int
    clear_win: float
    results_together: int
    few_pieces: int
    short_run_bytes: int
    narrow_bytes: int
    narrow_slowdown: float
    row_loop_miss: float
    lines_per_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scans:
    """Scans in pieces, of rows that programs share or not.

    Attributes:
        longest_piece: points of a piece: as many as stay in registers.
        shortest_piece: points of a piece that are worth a program.
        shortest_column_piece: the same of columns.
        most_pieces: pieces of a row: the scan of their results has one program per row.
        column_bytes: neighbouring columns that a program scans at least.
        clear_win: share of one kernel's time that kernels of pieces must take less than together.
        longest_shared_piece: points of a piece of a row that programs share, if a value takes a register.
        shortest_shared_piece: points of the shortest such piece.
        most_shared_pieces: pieces of a shared row: a program asks all of those before its own at once.
        shared_programs: programs per unit below which such pieces are shorter.
        near_cost: cost of a word from the second-level cache.
    """

    longest_piece: int
    shortest_piece: int
    shortest_column_piece: int
    most_pieces: int
    column_bytes: int
    clear_win: float
    longest_shared_piece: int
    shortest_shared_piece: int
    most_shared_pieces: int
    shared_programs: int
    near_cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Inlining:
    """Values that are computed inside their consumers.

    Attributes:
        reread_share: bytes read again per byte saved, up to which a value is computed in several
            consumers.
        edge_factor: time that may be lost by computing in a consumer that pads, which has some more
            points.
        most_joined: tensors up to which a kernel that also reduces joins vectors, beyond which it chooses
            by element.
        most_joined_vectors: tensors that are joined by choosing an address for each whole vector.
        product_block: results along a side of what one program of a product computes.
    """

    reread_share: float
    edge_factor: float
    most_joined: int
    most_joined_vectors: int
    product_block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """Products of matrices: of a library, and of kernels of ours. Rates are of large products in 16 bits.

    Attributes:
        vector_bytes: what kernels for matrix units read at once. Rows between vectors are read by others,
            several times slower.
        skinny_rows: rows, or columns, up to which a product is bound by reading the other factor.
        odd_stores_rate: rate of a kernel of ours whose factors are aligned and whose results are in rows that
            are no whole vectors.
        unaligned_rate_1: a library's rate where a size that decides is a multiple of 1 number and no more.
        unaligned_rate_2: the same of 2.
        unaligned_rate_4: the same of 4.
        least_strip: columns, or rows, that a program of a skinny product computes at least.
        most_strip: the same at most.
        least_piece: terms of a sum's piece at least.
        most_pieces: pieces of a sum at most.
        least_gain_share: share of the call's time that a kernel, or padding, must gain for rows that are no
            whole vectors.
        least_gain_us: what it must gain at least.
        strip_depth_bytes: bytes of the depth of a skinny product's strip.
        aligned_rate: a library's rate where all sizes are whole vectors.
        padded_rate: its rate with aligned rows, as padding of rows is weighed by.
        padded_slowdown: times as long that it takes where rows are not aligned.
        single_rate: its rate in f32 with aligned rows.
        single_slowdown: times as long that it takes in f32 where rows are not aligned.
        copied_bytes_per_us: bytes that a copy of an operand or of a result moves.
        copy_us: the start of such a copy.
        row_tile: rows of whole tiles of a library's kernels.
        least_columns: columns that a kernel for matrix units computes at least.
        chunked_bytes: bytes of a result that nobody needs as a whole, from which on it is computed in chunks.
        chunked_share: times as large as its factors that such a result is at least.
        recomputed_bytes: bytes of such a result of a training step, from which on its backward computes it
            again instead of keeping it: below, one product more costs more than the memory is worth.
        early_gradient_bytes: bytes of such a result, from which on the forward computes what the backward
            would make of it, but for a factor.
        early_gradient_rows: rows of such a result at least: sums are added to for each chunk of them.
        early_gradient_share: what is kept then at most, as a share of the result's bytes.
        chunk_room_bytes: bytes of a chunk, and of sums to which each chunk adds a part.
    """

    vector_bytes: int
    skinny_rows: int
    odd_stores_rate: float
    unaligned_rate_1: float
    unaligned_rate_2: float
    unaligned_rate_4: float
    least_strip: int
    most_strip: int
    least_piece: int
    most_pieces: int
    least_gain_share: float
    least_gain_us: float
    strip_depth_bytes: int
    aligned_rate: float
    padded_rate: float
    padded_slowdown: float
    single_rate: float
    single_slowdown: float
    copied_bytes_per_us: float
    copy_us: float
    row_tile: int
    least_columns: int
    chunked_bytes: int
    chunked_share: float
    recomputed_bytes: int
    early_gradient_bytes: int
    early_gradient_rows: int
    early_gradient_share: float
    chunk_room_bytes: int

    @property
    def halves_per_vector(self) -> int:
        """Numbers of 16 bits in a vector: sizes that are a multiple of it are whole vectors."""
        return self.vector_bytes // 2

    def unaligned_rate(self, size: int) -> float:
        """Return a library's rate where `size`, which decides, is no multiple of a vector of 8 numbers."""
        return (self.unaligned_rate_1, self.unaligned_rate_2, self.unaligned_rate_4)[
            (size & -size).bit_length() - 1
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductKernels:
    """Generated kernels of products in 16 bits, and calls of a library as they are weighed beside these.

    Attributes:
        wide_rate: rate while every multiprocessor multiplies blocks of 128 x 256 results.
        square_rate: the same with 128 x 128.
        narrow_rate: the same with 64 x 128.
        stored_results: results that a multiprocessor turns into what is stored.
        start_us: what a kernel takes besides.
        sustained_rate: the most that large products reach, and rates of blocks do not.
        gated_rate: the same of two products of one factor.
        shared_tile_rate: rate while groups of warps that share a tile of 128 x 256 multiply, and another
            brings blocks; 0 where nobody has measured it.
        own_tile_rate: the same of groups with tiles of 128 x 128 of their own.
        shared_gates_rate: the same of groups that share a tile of 128 x 128 of each of two products.
        epilogue_operations: weighted operations on results, which wait for the sums.
        wide_operation: weighted operations that a product or a shift of 64 bits counts as there.
        saved_launch_us: what a kernel for what follows takes beside its memory traffic.
        loaded_rate: rate where threads load the blocks.
        memory_share: share of the bandwidth that a kernel moves whose sums are short.
        skinny_memory_share: the same of a kernel with few rows or columns.
        few_rows_memory_share: the same with 16 at most, whose programs are enough for all multiprocessors.
        row_gain_us: what a product of one row with a weight takes less than a call.
        call_rate: a library's rate at its best.
        call_start_us: what a call takes besides.
        call_turns_start_us: the same where its turns are counted, and storing their results.
        call_memory_share: share of the bandwidth that a call moves which is bound by memory.
        small_call_share: the same of many products of few rows or columns.
        least_gain_share: share of the call's time that a kernel must gain at least.
        least_gain_us: what it must gain at least.
    """

    wide_rate: float
    square_rate: float
    narrow_rate: float
    stored_results: float
    start_us: float
    sustained_rate: float
    gated_rate: float
    shared_tile_rate: float
    own_tile_rate: float
    shared_gates_rate: float
    epilogue_operations: float
    wide_operation: float
    saved_launch_us: float
    loaded_rate: float
    memory_share: float
    skinny_memory_share: float
    few_rows_memory_share: float
    row_gain_us: float
    call_rate: float
    call_start_us: float
    call_turns_start_us: float
    call_memory_share: float
    small_call_share: float
    least_gain_share: float
    least_gain_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Libraries:
    """Calls of libraries in place of several operators.

    Attributes:
        attention_bytes: bytes of scores from which on attention that is written out becomes one call.
        trained_attention_bytes: the same where gradients follow.
    """

    attention_bytes: int
    trained_attention_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTiles:
    """The times of attention in tiles of rows, each of which goes through blocks of keys.

    Attributes:
        rows: rows of a tile.
        keys: keys of a block.
        start_us: what a tile takes besides its blocks.
        start_column_us: the same for each column of a head.
        block_us: what a block takes at least, on one unit.
        block_column_us: what it takes for each column of a head.
        bias_us: what a block's bias takes besides.
        certain_share: share of the time that counts in a comparison, because figures err.
    """

    rows: int
    keys: int
    start_us: float
    start_column_us: float
    block_us: float
    block_column_us: float
    bias_us: float
    certain_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolutions:
    """Convolutions of single channels as loops, beside a library's.

    Attributes:
        most_taps_per_input: taps for each point read, from which on a library shares what they read.
        most_taps: taps of a window that loops of ours go through.
        few_products: products up to which a launch less counts for more.
        most_gradient_taps: taps of a window whose gradients loops of ours compute.
        gradient_share: share of the bandwidth that a library reaches in gradients.
    """

    most_taps_per_input: int
    most_taps: int
    few_products: int
    most_gradient_taps: int
    gradient_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Walks:
    """Figures of kernels that reduce rows in blocks of threads.

    Attributes:
        kept_bytes: the longest row that a program keeps on chip from one pass over it to the next.
        kept_across: the longest row across memory that is kept so.
        columns: rows across memory that one program reduces side by side.
        crossed_share: share of what lies across rows from which on they are reduced side by side, though
            the rest lies along them.
        loop_row: the longest row that a program keeps beside sums of its columns, while it goes from row
            to row.
        loop_threads: threads that share such a row.
        loop_elements: elements of it that each of them has at least.
        loop_sums: registers for sums of columns.
        loop_values: registers for these and what is read of a row.
    """

    kept_bytes: int
    kept_across: int
    columns: int
    crossed_share: float
    loop_row: int
    loop_threads: int
    loop_elements: int
    loop_sums: int
    loop_values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorts:
    """Rows that kernels of blocks of threads sort better than libraries do.

    Attributes:
        longest_whole: the longest row that kernels sort if all of it is wanted.
        short: the longest row that is best sorted so even if rows are few.
        many: rows from which on they are not few.
        on_chip: the longest row that stays on chip while it is sorted.
        short_across: the longest row that is quickly sorted whatever its elements' order in memory.
        piece: keys of a piece that one program sorts.
        short_piece: the same where there would be few programs.
        many_keys: keys from which on there are programs enough for long pieces.
        most_searches: keys times pieces, each a search, above which a sort by digits is faster.
        values_for_a_tree: values that are searched for, from which on boundaries are laid out as a tree.
        most_in_tree: boundaries of a tree that stays in the first-level cache.
    """

    longest_whole: int
    short: int
    many: int
    on_chip: int
    short_across: int
    piece: int
    short_piece: int
    many_keys: int
    most_searches: int
    values_for_a_tree: int
    most_in_tree: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatters:
    """Elements that are added up where data say.

    Attributes:
        cache_parts: columns that are updated together have one part in so many of what stays in the cache.
        compared_bytes_per_us: bytes that a kernel looks at which compares every element with each row.
        sort_us: what a sort of the elements' rows, and the kernels around it, take at least.
        step_us: a step of the loop over a row's sorted elements.
        most_per_sum: elements per sum, in the mean, above which many would wait for each other at one place.
        most_sums_per_element: sums per element above which their memory is more than a sort moves and keeps.
        few_sums: sums that are not too many, however few elements there are.
        many_elements: elements from which on units are chosen for all sums first, two launches more.
        few_runs: neighbouring runs that are worth taking at a time where they lie.
        least_pieces: pieces of sorted elements that are worth a kernel.
    """

    cache_parts: int
    compared_bytes_per_us: float
    sort_us: float
    step_us: float
    most_per_sum: int
    most_sums_per_element: int
    few_sums: int
    many_elements: int
    few_runs: int
    least_pieces: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grids:
    """Grids of blocks of threads: how many, how large, and how much a thread has room for.

    Attributes:
        line_bytes: a line of cache: what neighbouring columns of a scan fill.
        little_bytes: bytes accessed at a point of which a thread has room for many points, whatever it
            computes of them.
        shortest_run_block: points of a block of which runs are worth while.
        enough_programs: programs per unit that are enough for all of them to have something on its way.
        full_share: share of its units at work with which a device is full.
        histogram_points: points that a thread counts.
        histogram_waste: share of a row's last block of points to count that may lie behind the row's end.
        narrow_access_bytes: accesses that are still worth while.
        idle_lanes_most_elements: elements of a row for which a thread has registers.
        idle_lanes_most_bytes: bytes accessed at each of them, all together.
        room_programs: programs that a unit has room for: fewer wait for each thread instead of for
            memory.
        saved_lanes_by_threads: lanes of which one has to be saved by fewer threads.
        saved_lanes_by_accesses: the same by twice as many accesses.
        transposed_share: share of bytes at unit stride along outer tiles above which a kernel is a
            transpose.
        mostly_contiguous_share: share along the inner tile of which it can be most that counts.
        row_waste: share of a row's last block that may lie behind the row's end.
        sum_registers: registers that sums of sequential rows' columns, or all sums over a loop, may take.
        cached_rows_share: share of the second-level cache that rows may take which are to be found in it
            again.
        rows_at_a_time: rows that a unit walks at a time, by programs of 256 threads.
        crowd_programs: programs of 256 threads that come close to as many as a unit has room for.
        bytes_on_the_way: bytes of its rows on their way that keep a unit's share of memory busy.
        several_rows_waves: waves of programs of several rows each that leave no unit idle for long.
        several_rows_elements: elements of several rows for which a thread has registers.
        many_accumulators: values per point that reductions gather of which a thread cannot have those of
            many points.
        column_registers: registers that what a thread loads of a whole column may take.
        wide_column_block: columns of a block of which half are worth a candidate, too.
        stored_column_bytes: bytes along columns of blocks whose rows are stored along the rows: two
            sectors of memory.
        wide_load_bytes: bytes of the widest loads of a quarter of a warp.
        widest_column_points: points of a block of whole columns: 128 for each of 256 threads.
        busy_operations: operations for each byte accessed above which threads wait for arithmetic as
            well.
        few_sorted_elements: elements of which the two best are found for less than twice as many groups
            are sorted for.
        short_sorted_row: points of rows to sort that share a program where they lie across memory.
        longest_code: operations in the code of one thread.
        busy_points: points per unit from which on it matters how blocks of a shared launch are cut.
        enough_points: points per unit of kernels that keep all of it busy.
        elements_one_by_one: elements of a row that a thread accesses one by one: more, each with mask and
            address, take more registers.
        most_row_warps: warps of a row's program: with more, threads wait for each other.
        search_loads: loads in turn from which on a kernel is a search.
        padded_row_share: share of a power of two of lanes that a row has to fill, to be walked with the
            others empty.
        padded_row_lanes: lanes of the longest row that is walked so.
        near_table_bytes: bytes of a table that lookups find near the threads.
        narrow_share: share of bytes at unit stride in narrow accesses, below which wide ones gain more
            than the others lose.
        near_elements: elements between neighbours that still share a line of cache with others.
        least_row: points of a row that is worth a program's while.
        whole_blocks: points of whole blocks: a row of a multiple of them is walked without masks.
        many_blocks: whole blocks of a row from which on what is masked in the last one is little.
        two_row_points: points of a row, in blocks no longer than which a program still has enough to do.
        long_shifted_row: points from which on a row that begins anywhere is worth a loop.
        shifted_share: share of bytes in rows that begin within a vector, from which on lanes are
            shifted for them.
        part_bytes: bytes of a part of a joined row that keep accesses wide and sectors whole.
        counted_row: points of one row of bins that are worth programs which count.
        counted_points: points in all that are.
        counted_per_bin: points of a row for each of its bins that are.
        paired_share: share of the loads of two rows one by one, up to which rows are done in pairs.
        coarse_points: points of a kernel from which on threads do several.
        coarse_share: share of loads that several points of a thread may leave.
        longest_window: points of a window for which a thread has registers.
        early_rows: whole rows in registers that are on their way at a time.
        longest_odd_row: points of a row in registers, up to which a version for odd sizes pays.
    """

    line_bytes: int
    little_bytes: int
    shortest_run_block: int
    enough_programs: int
    full_share: float
    histogram_points: int
    histogram_waste: float
    narrow_access_bytes: int
    idle_lanes_most_elements: int
    idle_lanes_most_bytes: int
    room_programs: int
    saved_lanes_by_threads: int
    saved_lanes_by_accesses: int
    transposed_share: float
    mostly_contiguous_share: float
    row_waste: float
    sum_registers: int
    cached_rows_share: float
    rows_at_a_time: int
    crowd_programs: int
    bytes_on_the_way: int
    several_rows_waves: int
    several_rows_elements: int
    many_accumulators: int
    column_registers: int
    wide_column_block: int
    stored_column_bytes: int
    wide_load_bytes: int
    widest_column_points: int
    busy_operations: float
    few_sorted_elements: int
    short_sorted_row: int
    longest_code: int
    busy_points: int
    enough_points: int
    elements_one_by_one: int
    most_row_warps: int
    search_loads: int
    padded_row_share: float
    padded_row_lanes: int
    near_table_bytes: int
    narrow_share: float
    near_elements: int
    least_row: int
    whole_blocks: int
    many_blocks: int
    two_row_points: int
    long_shifted_row: int
    shifted_share: float
    part_bytes: int
    counted_row: int
    counted_points: int
    counted_per_bin: int
    paired_share: float
    coarse_points: int
    coarse_share: float
    longest_window: int
    early_rows: int
    longest_odd_row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loops:
    """Loops on a CPU's cores: blocks that threads share, tiles, and rows that are asked for ahead.

    Attributes:
        block: points of a range that threads share in blocks: the same whatever the number of threads.
        tile: points of a block that has serial loops inside, and of the side of a transposition.
        long_tile: points of the longer side of a transposition that only moves: long lines are read.
        widest_tile: columns that are reduced together at most.
        many_columns: columns from which on more of them are reduced together.
        enough_units: units of work that leave nothing to be shared inside them.
        grain: instructions that are worth a thread.
        lanes: values of 4 bytes that a pass along rows has at a time.
        short_row: points of a row of which fewer lanes leave less over, and are folded sooner.
        shortest_ahead_bytes: rows that repay asking for their lines ahead.
        longest_ahead_bytes: rows that stay in the first cache with what is written.
        costly: instructions per point from which on a pass takes longer than memory does.
        many_channels: channels from which on what is the same for all of them is computed once, and kept.
        least_lanes: elements of a range that make a vector worth its while.
        enough_results: results of a reduction that leave threads enough to share.
        reduction_pieces: pieces at most of a reduction of fewer results.
        short_reduction: points of a row that leaves lanes nothing to do, if there are many such rows.
        many_short_rows: rows from which on they are many.
        matrix_call_us: one more call of a library that multiplies the matrices of a batch one by one.
        least_library_terms: terms of a product in a batch that is left to the library.
        packed_rows: rows of a library's product up to which packing its frozen weight shows in a call.
        least_packed_terms: terms of a convolution of one tap in `f32` from which the call that takes a packed
            weight is as fast as a product of matrices.
        least_onednn_terms: terms of a product in `f32` from which on oneDNN's call is faster than MKL's.
        terms_of_copy: terms that oneDNN has to save for each number of an operand that it copies.
        kept_result: numbers of a result up to which an allocator has its pages from the last call.
        terms_of_result: terms that oneDNN has to save for each number of a larger result.
        widened_rows_16: rows in 16 bits up to which a kernel that widens a narrow weight again for each row
            beats a library's product of the weight widened in memory.
        widened_rows_32: the same in f32.
        float8_rows_16: rows in 16 bits of a weight in floats of 8 bits whose exponent and fraction have to be
            taken apart.
        float8_rows_32: the same in f32.
    """

    block: int
    tile: int
    long_tile: int
    widest_tile: int
    many_columns: int
    enough_units: int
    grain: int
    lanes: int
    short_row: int
    shortest_ahead_bytes: int
    longest_ahead_bytes: int
    costly: int
    many_channels: int
    least_lanes: int
    enough_results: int
    reduction_pieces: int
    short_reduction: int
    many_short_rows: int
    matrix_call_us: float
    least_library_terms: int
    packed_rows: int
    least_packed_terms: int
    least_onednn_terms: int
    terms_of_copy: int
    kept_result: int
    terms_of_result: int
    widened_rows_16: int
    widened_rows_32: int
    float8_rows_16: int
    float8_rows_32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineModel:
    """The figures of one device.

    Attributes:
        name: the device, as its data file is called.
        memory, arithmetic, launches and the other subjects: see the classes.
    """

    name: str
    memory: Memory
    arithmetic: Arithmetic
    launches: Launches
    reductions: Reductions
    scans: Scans
    inlining: Inlining
    products: Products
    product_kernels: ProductKernels
    libraries: Libraries
    attention_calls: AttentionTiles
    attention_kernels: AttentionTiles
    convolutions: Convolutions
    row_walks: Walks
    sorts: Sorts
    scatters: Scatters
    grids: Grids
    loops: Loops


def change_figures(model: MachineModel, figures: Mapping[str, int | float]) -> MachineModel:
    """`model` with other figures, by `subject.name`: of a device that was tuned, or of a test.

    Raises:
        AttributeError, TypeError: a subject has no such figure.
    """
    for name, value in figures.items():
        subject, _, figure = name.partition(".")
        model = replace(model, **{subject: replace(getattr(model, subject), **{figure: value})})
    return model
