from coilwork_cpp import CppCodegen
from coilwork_ir.conformance import CORE_CASES, check_cores, format_failures


def test_cores(build_source, machine):
    def run(source, args, sizes):
        values = [
            sizes[a.name] if a.role == "size" else args[a.name] for a in source.args if a.role != "scratch"
        ]
        build_source(source)(*values)

    results = []
    for case in CORE_CASES:
        try:
            rr = check_cores(CppCodegen(), machine, run, [case]); results += rr; print("CASE", case.name, len(rr), [(r.sizes, r.status) for r in rr])
        except Exception as e:
            print("EXC", case.name, repr(e)[:1500])
    from collections import Counter

    print(Counter((r.status, r.reason[:100]) for r in results))
    print(format_failures(results)[:6000])
    assert 0
