"""C++ functions that sort a row: its elements as integers, and these integers in order.

An element becomes a *record*: from the top a key, an unsigned number in the order of values, its position,
and whether it is -0.0, which has the key of 0.0. So a record says all there is to know of an element, and no
two are equal. Keys of up to 32 bits and positions fit in 64 bits, others in 128.

Short rows are sorted by counting, for each record, those before it (Knuth, "The Art of Computer Programming"
3, 5.2, Algorithm C), which vectorises; longer ones by the bytes of their keys, the lowest one first (5.2.5,
Algorithm R), without those that are the same in all of a row. Of keys of 64 bits the upper four bytes that
differ are taken, and few records are out of order then, which are inserted where they belong (5.2.1,
Algorithm S); if there are more of them, all eight bytes are. Measured on one core with AVX-512 beside
`torch.sort`, in ns per element of random rows of 64, 1024 and 65536: 6, 7 and 11 (28, 49, 104) for f32, 16,
17 and 16 (24, 36, 81) for i64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Elements of the rows among whose equal ones `topk_records` chooses: as many lie on the stack.
LONGEST_TOPK: Final = 512

SORTING: Final[Mapping[str, str]] = {
    "u128": """
using u128 = unsigned __int128;
""",
    "float_record": """
// Zeros have one key, and so have all NaN, the greatest.
template <class Record, class Key, bool descending>
static inline Record float_record(Key bits, Key infinity, i64 position) {
  const Key sign = Key(Key(1) << (8 * sizeof(Key) - 1));
  const Key magnitude = Key(bits & Key(~sign));
  const Key number = Key(bits & sign ? sign - magnitude : sign + magnitude);
  const Key key = magnitude > infinity ? Key(~Key(0)) : number;
  return make_record<Record>(descending ? Key(~key) : key, position, bits == sign);
}
""",
    "float_bits": """
// Of the value that `record` was made of.
template <class Key, bool descending, class Record>
static inline Key float_bits(Record record) {
  const Key sign = Key(Key(1) << (8 * sizeof(Key) - 1));
  const Key key = record_key<Key, descending>(record);
  const Key bits = Key(key < sign ? (sign - key) | sign : key - sign);
  return Key(u64(record) & 1 ? sign : bits);
}
""",
    "integer_record": """
template <class Record, class Key, bool descending, class T>
static inline Record integer_record(T value, i64 position) {
  const Key sign = Key(T(-1) < T(0) ? Key(1) << (8 * sizeof(Key) - 1) : 0);
  const Key key = Key(Key(value) ^ sign);
  return make_record<Record>(descending ? Key(~key) : key, position, false);
}
""",
    "integer_value": """
// That `record` was made of.
template <class T, class Key, bool descending, class Record>
static inline T integer_value(Record record) {
  const Key sign = Key(T(-1) < T(0) ? Key(1) << (8 * sizeof(Key) - 1) : 0);
  return T(Key(record_key<Key, descending>(record) ^ sign));
}
""",
    "make_record": """
template <class Record, class Key>
static inline Record make_record(Key key, i64 position, bool negative_zero) {
  return (Record(key) << (8 * (sizeof(Record) - sizeof(Key)))) | (Record(position) << 1) | \
Record(negative_zero);
}
""",
    "record_key": """
template <class Key, bool descending, class Record>
static inline Key record_key(Record record) {
  const Key key = Key(record >> (8 * (sizeof(Record) - sizeof(Key))));
  return descending ? Key(~key) : key;
}
""",
    "record_position": """
template <class Key, class Record>
static inline i64 record_position(Record record) {
  return i64(Record(record << (8 * sizeof(Key))) >> (8 * sizeof(Key) + 1));
}
""",
    # Not `const u64* records`: g++ then warns of rows that a loop without points leaves as they are.
    "sort_by_counting": """
// At most 128.
static inline void sort_by_counting(u64* records, u64* sorted, i64 count) {
  u64 places[128] = {};
  for (i64 k = 0; k < count; ++k) {
    const u64 record = records[k];
#pragma omp simd
    for (i64 i = 0; i < count; ++i) places[i] += record < records[i];
  }
  for (i64 i = 0; i < count; ++i) sorted[places[i]] = records[i];
}
// Of at most 80, by their upper halves: records that are equal in them lie in order.
static inline void sort_by_counting(u128* records, u128* sorted, i64 count) {
  u64 keys[80], places[80] = {};
  for (i64 i = 0; i < count; ++i) keys[i] = u64(records[i] >> 64);
  for (i64 k = 0; k < count; ++k) {
    const u64 key = keys[k];
#pragma omp simd
    for (i64 i = 0; i < count; ++i) places[i] += (key < keys[i]) | ((key == keys[i]) & (k < i));
  }
  for (i64 i = 0; i < count; ++i) sorted[places[i]] = records[i];
}
""",
    "sort_by_bytes": """
// By `bytes` bytes from bit `lowest` on; returns the one of `records` and `spare` that holds them in order \
in the end.
template <int bytes, class Record>
static Record* sort_by_bytes(Record* records, Record* spare, i64 count, int lowest) {
  i64 places[bytes][256] = {};
  for (i64 i = 0; i < count; ++i) {
    const u64 key = u64(records[i] >> lowest);
    for (int b = 0; b < bytes; ++b) ++places[b][(key >> (8 * b)) & 255];
  }
  for (int b = 0; b < bytes; ++b) {
    const int shift = lowest + 8 * b;
    i64* const place = places[b];
    if (place[u64(records[0] >> shift) & 255] == count) continue;
    i64 before = 0;
    for (int byte = 0; byte < 256; ++byte) {
      const i64 here = place[byte];
      place[byte] = before;
      before += here;
    }
    for (i64 i = 0; i < count; ++i) {
      const Record record = records[i];
      spare[place[u64(record >> shift) & 255]++] = record;
    }
    Record* const sorted = spare;
    spare = records;
    records = sorted;
  }
  return records;
}
""",
    "insert_few": """
// Puts records in order that nearly are; false if so many are not that it gives up.
template <class Record>
static bool insert_few(Record* records, i64 count) {
  i64 moves = 0;
  for (i64 i = 1; i < count && moves <= count; ++i) {
    const Record record = records[i];
    i64 at = i;
    for (; at > 0 && record < records[at - 1]; --at) records[at] = records[at - 1];
    records[at] = record;
    moves += i - at;
  }
  return moves <= count;
}
""",
    "sort_by_wide_keys": """
// The upper four of the bytes that differ leave little to do, as a rule.
static u128* sort_by_wide_keys(u128* records, u128* spare, i64 count) {
  u64 differing = 0;
  for (i64 i = 1; i < count; ++i) differing |= u64((records[i] ^ records[0]) >> 64);
  int lower = 4;
  while (lower > 0 && !(differing >> (8 * lower + 24))) --lower;
  u128* const upper = sort_by_bytes<4>(records, spare, count, 64 + 8 * lower);
  if (!(differing & ((u64(1) << (8 * lower)) - 1)) || insert_few(upper, count)) return upper;
  u128* const half = sort_by_bytes<4>(upper, upper == records ? spare : records, count, 64);
  return sort_by_bytes<4>(half, half == records ? spare : records, count, 96);
}
""",
    "sort_records": """
// In order, in `records` or in `spare`. Those of equal keys lie in the order of their positions before, too.
template <class Key>
static inline u64* sort_records(u64* records, u64* spare, i64 count) {
  if (count > 128) return sort_by_bytes<sizeof(Key)>(records, spare, count, 64 - 8 * sizeof(Key));
  sort_by_counting(records, spare, count);
  return spare;
}
template <class Key>
static inline u128* sort_records(u128* records, u128* spare, i64 count) {
  if (count > 80 && sizeof(Key) == 8) return sort_by_wide_keys(records, spare, count);
  if (count > 80) return sort_by_bytes<4>(records, spare, count, 96);
  sort_by_counting(records, spare, count);
  return spare;
}
""",
    "first_records": """
// The first `wanted` in order, in `records`. Those found so far are held at the front, and behind them \
others that come before the last
// of these; when there are too many, all that are held are sorted. `spare` has room for 32 more than are \
too many.
template <class Key, class Record>
static Record* first_records(Record* records, Record* spare, i64 count, i64 wanted) {
  const i64 most = min_i64(count, max_i64(2 * wanted, 32));
  i64 held = most;
  Record last = 0;
  const auto sort = [&] {
    const Record* const sorted = sort_records<Key>(records, spare, held);
    if (sorted != records)
      for (i64 i = 0; i < wanted; ++i) records[i] = sorted[i];
    held = wanted;
    last = records[wanted - 1];
  };
  sort();
  for (i64 at = most; at < count; at += 32) {
    const i64 next = min_i64(count - at, 32);
    int found = next < 32;
    if (!found) {
#pragma omp simd reduction(| : found)
      for (i64 i = 0; i < 32; ++i) found |= records[at + i] < last;
    }
    if (!found) continue;
    for (i64 i = 0; i < next; ++i) {
      const Record record = records[at + i];
      records[held] = record;
      held += record < last;
    }
    if (held > most) sort();
  }
  if (held > wanted) sort();
  return records;
}
""",
    "topk_records": f"""
#include <algorithm>
// As `first_records`, of at most {LONGEST_TOPK}. Among equal keys functions of the standard library choose
// that torch calls.
template <class Key, class Record>
static Record* topk_records(Record* records, Record* spare, i64 count, i64 wanted) {{
  Record row[{LONGEST_TOPK}];
  for (i64 i = 0; i < count; ++i) row[i] = records[i];
  first_records<Key>(records, spare, count, wanted);
  const auto key = [](Record record) {{ return Key(record >> (8 * (sizeof(Record) - sizeof(Key)))); }};
  const Key last = key(records[wanted - 1]);
  i64 candidates = 0;
  for (i64 i = 0; i < count; ++i) candidates += key(row[i]) <= last;
  int tied = candidates > wanted;
  for (i64 i = 1; i < wanted; ++i) tied |= key(records[i]) == key(records[i - 1]);
  if (!tied) return records;
  const auto before = [&](Record a, Record b) {{ return key(a) < key(b); }};
  if (64 * wanted <= count) {{
    std::partial_sort(row, row + wanted, row + count, before);
  }} else {{
    std::nth_element(row, row + wanted - 1, row + count, before);
    std::sort(row, row + wanted - 1, before);
  }}
  for (i64 i = 0; i < wanted; ++i) records[i] = row[i];
  return records;
}}
""",
}
