"""The table of torch's faults that Coilwork works around, a row per fault.

All are faults of torch's own tracing, so `aot_eager` has them too. A row goes when no supported version needs
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Workaround:
    """One fault of torch's.

    Attributes:
        what: what a user would see.
        versions: the supported versions of torch that were seen to have it.
        issue: torch's issue, if one is known.
        fix: module and function or class that mends it.
        test: file and function, from the folder of packages, that fails without it.
    """

    what: str
    versions: tuple[str, ...]
    fix: str
    test: str
    issue: str = ""


WORKAROUNDS: Final = (
    Workaround(
        what="training beside integers of less than a byte fails, for which torch's log has no names",
        versions=("2.13",),
        fix="coilwork_frontend.torch_compat.dynamo:name_all_types",
        test="coilwork/tests/test_parts.py:test_parts_do_what_eager_does",
    ),
    Workaround(
        what="of equal device meshes in one process, that of the tangents is looked for in the forward graph",
        versions=("2.13",),
        fix="coilwork_frontend.torch_compat.aot_autograd:return_own_objects",
        test="coilwork/tests/test_parts.py:test_equal_meshes_in_one_process",
    ),
    Workaround(
        what="a graph in which a method of a script object returns a tuple is not traced",
        versions=("2.13",),
        fix="coilwork_frontend.torch_compat.aot_autograd:allow_tuples_of_methods",
        test="coilwork-frontend/tests/test_torch_compat.py:test_methods_of_script_objects_return_tuples",
    ),
    Workaround(
        what=(
            "below code compiled with fullgraph=True, what is behind a graph break runs in eager mode, "
            "without a word"
        ),
        versions=("2.13",),
        fix="coilwork_frontend.torch_compat.dynamo:allow_graph_breaks",
        test="coilwork/tests/test_eager_fallback.py:test_a_call_that_torch_does_not_trace_costs_that_call",
    ),
    Workaround(
        what=(
            "operators that conjugate inside, as linalg.pinv, are wrong in the first call of a compiled graph"
        ),
        versions=("2.13",),
        fix="coilwork_frontend.torch_compat.aot_autograd:FirstCall",
        test="coilwork/tests/test_aot_autograd.py:test_functions_of_complex_matrices_are_those_of_eager",
    ),
    Workaround(
        what="results are written into tensors of types that eager says they cannot be cast to",
        versions=("2.13",),
        fix="coilwork_frontend.capture.dtype_checks:has_writes_of_other_types",
        test="coilwork/tests/test_refused_calls.py:test_results_that_a_tensor_cannot_hold",
    ),
    Workaround(
        what="what is written to lies in one place with another operand, or with itself, and gets a result",
        versions=("2.13",),
        fix="coilwork_frontend.capture.write_overlaps:has_overlapping_writes",
        test="coilwork/tests/test_refused_calls.py:test_writes_to_memory_that_is_read",
    ),
    Workaround(
        what="what is written to an expanded tensor changes its elements by several times the difference",
        versions=("2.13",),
        fix="coilwork_frontend.capture.write_overlaps:write_expansion_source",
        test="coilwork/tests/test_refused_calls.py:test_views_of_expansions_are_written_to",
    ),
    Workaround(
        what=(
            "what is written to an input that is expanded already changes its elements by several times the "
            "difference"
        ),
        versions=("2.13",),
        fix="coilwork_frontend.capture.input_storages:give_expanded_storages",
        test="coilwork/tests/test_refused_calls.py:test_an_input_that_is_expanded_already",
    ),
    Workaround(
        what=("of inputs that overlap, and of which one is overwritten, returned views show other elements"),
        versions=("2.11", "2.13"),
        fix="coilwork_frontend.torch_compat.aot_autograd:view_shared_storages",
        test="coilwork/tests/test_overlapping_inputs.py:test_views_lie_where_eagers_do",
    ),
    Workaround(
        what=(
            "addcdiv divides integers, and addcmul multiplies them by fractions, if there is a number to "
            "multiply by"
        ),
        versions=("2.13",),
        fix="coilwork_frontend.capture.operator_fixes:restore_scaled_products",
        test="coilwork/tests/test_refused_calls.py:test_scaled_products_of_integers",
    ),
    Workaround(
        what="a scan whose gradients need what it returns fails: it might be aliasing the output",
        versions=("2.13",),
        fix="coilwork_frontend.capture.subgraphs:copy_scan_results",
        test="coilwork/tests/test_higher_order_loops.py:test_gradients_need_what_is_returned",
    ),
    Workaround(
        what="classes that one_hot is not told of, and quantiles beyond 0 and 1, are computed with",
        versions=("2.13",),
        fix="coilwork_frontend.capture.runtime_checks:check_values",
        test="coilwork/tests/test_refused_calls.py:test_values_that_tracing_does_not_see",
    ),
    Workaround(
        what=(
            "fakes of tensors that are overwritten with more than they hold grow, and guards of their sizes "
            "fail"
        ),
        versions=("2.13",),
        fix="coilwork_frontend.capture.eager_trial:restore_shapes",
        test="coilwork/tests/test_refused_calls.py:test_more_than_a_tensor_holds",
    ),
    Workaround(
        what="losses, resized images and pooled rows of types that eager has no kernel for are computed",
        versions=("2.13",),
        fix="coilwork_frontend.capture.dtype_checks:has_rejected_types",
        test="coilwork/tests/test_refused_calls.py:test_types_that_are_taken_apart_whatever_they_are",
    ),
    Workaround(
        what="classes of other types than int64 are taken by one_hot if it is told how many there are",
        versions=("2.13",),
        fix="coilwork_frontend.capture.dtype_checks:has_rejected_types",
        test="coilwork/tests/test_refused_calls.py:test_classes_of_other_types",
    ),
    Workaround(
        what="gradients of losses between two types, and pixels of images without elements, are computed",
        versions=("2.13",),
        fix="coilwork_frontend.capture.dtype_checks:has_rejected_types",
        test="coilwork/tests/test_refused_calls.py:test_what_only_eagers_kernels_refuse",
    ),
    Workaround(
        what="labels of multilabel_margin_loss do not end at -1, and the loss of one row has a dimension",
        versions=("2.13",),
        fix="coilwork_frontend.capture.operator_fixes:replace_margin_losses",
        test="coilwork/tests/test_operator_fixes.py:test_labels_end_at_the_first_that_is_none",
    ),
    Workaround(
        what="masked_select of a row by a matrix is held to the number of the row's elements",
        versions=("2.13",),
        fix="coilwork_frontend.capture.operator_fixes:broadcast_masked_select",
        test="coilwork/tests/test_operator_fixes.py:test_broadcast_forms_are_those_of_eager",
    ),
    Workaround(
        what="nansum and nanmean of a list of no dimensions have the input's shape, and no gradient",
        versions=("2.13",),
        fix="coilwork_frontend.capture.operator_fixes:sum_over_empty_dims",
        test="coilwork/tests/test_operator_fixes.py:test_sums_of_no_listed_dimensions",
    ),
    Workaround(
        what=(
            "before 2.13 a singular matrix goes unnoticed: checks of linear algebra are dropped as dead code"
        ),
        versions=("2.11", "2.12"),
        fix="coilwork_frontend.torch_compat.aot_autograd:keep_checks",
        test="coilwork-frontend/tests/test_torch_compat.py:test_checks_of_linear_algebra_stay_in_graphs",
    ),
    Workaround(
        what="a user's torch._check is told as an expression of torch's names",
        versions=("2.13",),
        fix="coilwork_frontend.capture.runtime_checks:put_user_checks_first",
        test="coilwork/tests/test_runtime_checks.py:test_in_the_users_words",
    ),
    Workaround(
        what="a child that is forked while a thread compiles waits for ever in its own first compilation",
        versions=("2.11", "2.12", "2.13"),
        fix="coilwork_frontend.torch_compat.dynamo:free_compile_lock_in_children",
        test="coilwork/tests/test_dynamo.py:test_a_forked_child_compiles",
    ),
    Workaround(
        what=(
            "built for CUDA, without a device: the process crashes in the first tracing after the end of the "
            "thread that traced first"
        ),
        versions=("2.11",),
        fix="coilwork_frontend.torch_compat.fake_devices:keep_absent_device",
        test="coilwork-frontend/tests/test_fake_devices.py:test_the_thread_that_traced_first_has_ended",
    ),
    Workaround(
        what="in training `y.detach()`, returned beside a view `y`, is turned twice, an error, or a crash",
        versions=("2.13",),
        fix="coilwork_frontend.torch_compat.aot_autograd:forget_repeated_views",
        test="coilwork/tests/test_result_aliasing.py:test_detached_views_beside_the_views",
    ),
    Workaround(
        what="layers of nn.LSTM, nn.GRU and nn.RNN are traced without the dropout between them",
        versions=("2.11", "2.12", "2.13"),
        fix="coilwork_frontend.recurrences.calls:replace_recurrent_calls",
        test="coilwork-frontend/tests/test_recurrences.py:test_dropout_is_between_layers",
    ),
    Workaround(
        what="a scan within a checkpoint cannot be traced",
        versions=("2.11", "2.12", "2.13"),
        fix="coilwork_frontend.torch_compat.dynamo:allow_scans_in_checkpoints",
        test="coilwork/tests/test_recurrences.py:test_loops_in_checkpoints",
    ),
    Workaround(
        what=(
            "a backward that keeps its graph is refused once one was compiled that does not, in this process "
            "or in another that wrote the cache"
        ),
        versions=("2.11", "2.13"),
        fix="coilwork_frontend.torch_compat.aot_autograd:allow_kept_graphs",
        test="coilwork/tests/test_input_memory.py:test_a_graph_compiled_to_be_used_once_may_be_kept",
    ),
)
