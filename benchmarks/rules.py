"""What one rule costs in the engine: python -m benchmarks.rules [--count 100000].

Times `_core.Rules.matches` on a message with four fields and takes off what the same call costs without rules, so the
figures are those of the rules alone. Reading the fields is part of every publish and shown by itself.
"""

import argparse
import re
import time

from busway._core import Rules
from busway.fields import ANY, Where, compile_where, encode_fields, expr

FIELDS = encode_fields({"venue": "krk", "symbol": "ETH-EUR", "price": 3012.5, "size": 7})
PAYLOAD = b"x" * 128
REPEATS = 7

CASES: list[tuple[str, Where, bool]] = [
    ("equal, one field", {"venue": "krk"}, True),
    ("equal, three fields", {"venue": "krk", "symbol": "ETH-EUR", "size": 7}, True),
    ("equal, no match", {"venue": "bin"}, False),
    ("present", {"venue": ANY}, True),
    ("one of 3", {"venue": ["bin", "krk", "okx"]}, True),
    ("one of 1,000", {"venue": ["krk", *(f"v{i}" for i in range(999))]}, True),
    ("glob", {"symbol": "*-EUR"}, True),
    ("glob with a class", {"symbol": "E[A-Z]?-*R"}, True),
    ("glob through the payload", {"msg": "*y*"}, False),
    ("regular expression", {"symbol": re.compile("[A-Z]+-(EUR|USD)")}, True),
    ("CEL, one term", {"price": expr("value > 3000.0")}, True),
    ("CEL, three terms", expr("price > 3000.0 && venue == 'krk' && size < 10"), True),
    ("CEL, functions", expr("venue in ['krk', 'bin'] && symbol.endsWith('EUR') && symbol.matches('^[A-Z]+-')"), True),
    ("CEL, a loop", expr("['bin', 'krk'].exists(name, name == venue)"), True),
    ("CEL, all fields as a map", expr("size(fields) == 4 && has(fields.price)"), True),
]


def measure(rules: Rules, fields: bytes, count: int) -> float:
    """Nanoseconds of one call, the best of some runs."""
    matches, best = rules.matches, float("inf")
    for _ in range(REPEATS):
        begin = time.perf_counter_ns()
        for _ in range(count):
            matches("price/eth", fields, PAYLOAD)
        best = min(best, (time.perf_counter_ns() - begin) / count)
    return best


def costs(count: int) -> dict[str, float]:
    """Nanoseconds by what was done."""
    nothing = Rules(b"")
    call, base = measure(nothing, b"", count), measure(nothing, FIELDS, count)
    found = {"the call itself": call, "reading four fields": base - call}
    for name, where, expected in CASES:
        rules = Rules(compile_where(where).wire)
        if rules.matches("price/eth", FIELDS, PAYLOAD) is not expected or rules.errors:
            raise SystemExit(f"{name}: the rule says something else than it should")
        found[name] = max(measure(rules, FIELDS, count) - base, 0.0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="What one rule costs in the engine.")
    parser.add_argument("--count", type=int, default=100_000, help="messages per run (100000)")
    count = parser.parse_args().count
    print(f"{'':28} {'ns':>8}")
    for name, cost in costs(count).items():
        print(f"{name:28} {cost:8.0f}")


if __name__ == "__main__":
    main()
